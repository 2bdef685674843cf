#include "auth.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 512, TOKEN_MIN = 16 };

static void hash(const char *token, size_t n, unsigned char out[K1_AUTH_HASH]) {
    crypto_generichash(out, K1_AUTH_HASH, (const unsigned char *)token, n, NULL, 0);
}

static int add_line(k1_auth *auth, const char *path, const char *line, k1_err *err) {
    const char *token = line + strspn(line, " \t");
    size_t n = strcspn(token, " \t\r\n");
    if (n == 0 || token[0] == '#') {
        return 0;
    }
    if (n < TOKEN_MIN) {
        return k1_fail(err, "%s: a token of %zu characters; at least %d are needed (try: openssl rand -hex 16)", path,
                       n, TOKEN_MIN);
    }
    if (auth->n == K1_AUTH_MAX) {
        return k1_fail(err, "%s: more than %d tokens", path, K1_AUTH_MAX);
    }
    hash(token, n, auth->hash[auth->n++]);
    return 0;
}

int k1_auth_load(k1_auth *auth, const char *path, k1_err *err) {
    auth->n = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return k1_fail(err, "cannot read the API tokens in %s: %s", path, strerror(errno));
    }
    char line[LINE_BYTES];
    int failed = 0;
    while (failed == 0 && fgets(line, sizeof line, file) != NULL) {
        failed = strlen(line) == sizeof line - 1 ? k1_fail(err, "%s: a line longer than %d bytes", path, LINE_BYTES - 2)
                                                 : add_line(auth, path, line, err);
    }
    sodium_memzero(line, sizeof line);
    fclose(file);
    if (failed == 0 && auth->n == 0) {
        return k1_fail(err, "%s: holds no token; write one on a line of its own", path);
    }
    return failed;
}

bool k1_auth_allows(const k1_auth *auth, const char *header) {
    static const char scheme[] = "Bearer ";
    if (auth->n == 0) {
        return true;
    }
    if (header == NULL || strncasecmp(header, scheme, sizeof scheme - 1) != 0) {
        return false;
    }
    const char *token = header + sizeof scheme - 1;
    unsigned char given[K1_AUTH_HASH];
    bool known = false;
    hash(token, strlen(token), given);
    for (size_t i = 0; i < auth->n; i++) {
        known |= sodium_memcmp(given, auth->hash[i], K1_AUTH_HASH) == 0;
    }
    return known;
}

bool k1_is_loopback(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1) {
        return (ntohl(v4.s_addr) >> 24) == 127;
    }
    if (inet_pton(AF_INET6, host, &v6) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&v6);
    }
    return strcmp(host, "localhost") == 0;
}
