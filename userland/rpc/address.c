#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static int parse_port(const char *text, uint16_t *port) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > UINT16_MAX) {
        return -1;
    }
    *port = (uint16_t)value;
    return 0;
}

int k1_address_parse(const char *text, char *host, size_t capacity, uint16_t *port, k1_err *err) {
    bool brackets = text[0] == '[';
    const char *begin = text + brackets;
    size_t n = strcspn(begin, brackets ? "]" : ":");
    const char *rest = begin + n + (brackets && begin[n] == ']');
    *port = K1_DEFAULT_PORT;
    if (n == 0 || n >= capacity || (brackets && begin[n] != ']') || (*rest != '\0' && *rest != ':') ||
        (*rest == ':' && parse_port(rest + 1, port) != 0)) {
        return k1_fail(err, "the address \"%.100s\" is none: write host, host:port, [IPv6] or [IPv6]:port", text);
    }
    memcpy(host, begin, n);
    host[n] = '\0';
    return 0;
}

int k1_address_resolve(const char *text, struct addrinfo **out, k1_err *err) {
    char host[K1_ADDRESS_TEXT], service[8];
    uint16_t port;
    if (k1_address_parse(text, host, sizeof host, &port, err) != 0) {
        return -1;
    }
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int failed = getaddrinfo(host, service, &hints, out);
    if (failed != 0) {
        return k1_fail(err, "cannot find the node %.200s: %s", text,
                       failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed));
    }
    return 0;
}

void k1_address_text(const struct sockaddr *address, socklen_t n, bool with_port, char *out, size_t capacity) {
    char host[INET6_ADDRSTRLEN + 16], service[8];
    if (getnameinfo(address, n, host, sizeof host, service, sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(out, capacity, "unknown");
        return;
    }
    const char *text = strncmp(host, "::ffff:", 7) == 0 && strchr(host, '.') != NULL ? host + 7 : host;
    bool brackets = with_port && strchr(text, ':') != NULL;
    snprintf(out, capacity, "%s%s%s%s%s", brackets ? "[" : "", text, brackets ? "]" : "", with_port ? ":" : "",
             with_port ? service : "");
}
