#include "client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_BYTES = 16 << 10 };

static int cannot_connect(const k1_client_request *r, const char *why, k1_err *err) {
    return k1_fail(err, "cannot connect to %s port %u: %s; is k1-inferd running there, with --host and --port as here?",
                   r->host, r->port, why);
}

static int connect_any(const k1_client_request *r, const struct addrinfo *addresses, k1_err *err) {
    int why = 0;
    for (const struct addrinfo *a = addresses; a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            int on = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            return fd;
        }
        why = errno;
        if (fd >= 0) {
            close(fd);
        }
    }
    return cannot_connect(r, strerror(why), err);
}

static int dial(const k1_client_request *r, k1_err *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses;
    char port[16];
    snprintf(port, sizeof port, "%u", r->port);
    int failed = getaddrinfo(r->host, port, &hints, &addresses);
    if (failed != 0) {
        return cannot_connect(r, gai_strerror(failed), err);
    }
    int fd = connect_any(r, addresses, err);
    freeaddrinfo(addresses);
    return fd;
}

/* A server that answers early and closes is heard out, so a broken pipe is no error here. */
static int send_all(int fd, const char *bytes, size_t n, k1_err *err) {
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            return 0;
        }
        if (sent < 0 && errno != EINTR) {
            return k1_fail(err, "sending the request failed: %s", strerror(errno));
        }
        bytes += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

static int send_request(int fd, const k1_client_request *r, k1_err *err) {
    char head[1024];
    const char *bearer = r->token == NULL ? "" : "Authorization: Bearer ";
    const char *token = r->token == NULL ? "" : r->token;
    bool v6 = strchr(r->host, ':') != NULL;
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.0\r\nHost: %s%s%s:%u\r\n%s%s%sContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     r->path, v6 ? "[" : "", r->host, v6 ? "]" : "", r->port, bearer, token,
                     r->token == NULL ? "" : "\r\n", r->body_len);
    if (n < 0 || (size_t)n >= sizeof head) {
        return k1_fail(err, "host name or token too long");
    }
    return send_all(fd, head, (size_t)n, err) == 0 ? send_all(fd, r->body, r->body_len, err) : -1;
}

/* 0 at the end. */
static ssize_t receive(int fd, char *buffer, size_t n, const k1_client_request *r, k1_err *err) {
    ssize_t got;
    do {
        got = recv(fd, buffer, n, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return k1_fail(err, "the connection to %s port %u broke: %s", r->host, r->port, strerror(errno));
    }
    return got;
}

/* Read up to the end of the headers. The status, or -1. *used: bytes of the head, of *n in the buffer. */
static int read_head(int fd, char *buffer, size_t *n, size_t *used, const k1_client_request *r, k1_err *err) {
    *n = 0;
    for (;;) {
        const char *end = memmem(buffer, *n, "\r\n\r\n", 4);
        if (end != NULL) {
            *used = (size_t)(end - buffer) + 4;
            break;
        }
        if (*n == HEAD_BYTES) {
            return k1_fail(err, "%s port %u does not speak HTTP", r->host, r->port);
        }
        ssize_t got = receive(fd, buffer + *n, HEAD_BYTES - *n, r, err);
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            return k1_fail(err, "%s port %u closed the connection without an answer; is that k1-inferd?", r->host,
                           r->port);
        }
        *n += (size_t)got;
    }
    int status = 0;
    if (*n < 12 || sscanf(buffer, "HTTP/1.%*1[01] %3d", &status) != 1 || status < 100) {
        return k1_fail(err, "%s port %u does not speak HTTP", r->host, r->port);
    }
    return status;
}

static int converse(int fd, char *buffer, const k1_client_request *r, k1_client_fn *on_body, void *arg, k1_err *err) {
    size_t n;
    size_t used = 0;
    if (send_request(fd, r, err) != 0) {
        return -1;
    }
    int status = read_head(fd, buffer, &n, &used, r, err);
    if (status < 0) {
        return -1;
    }
    int result = n > used ? on_body(arg, status, buffer + used, n - used) : 0;
    while (result == 0) {
        ssize_t got = receive(fd, buffer, HEAD_BYTES, r, err);
        if (got <= 0) {
            return got < 0 ? -1 : status;
        }
        result = on_body(arg, status, buffer, (size_t)got);
    }
    return result;
}

int k1_client_post(const k1_client_request *request, k1_client_fn *on_body, void *arg, k1_err *err) {
    char *buffer = calloc(HEAD_BYTES + 1, 1);
    if (buffer == NULL) {
        return k1_fail(err, "out of memory");
    }
    int result = -1;
    int fd = dial(request, err);
    if (fd >= 0) {
        result = converse(fd, buffer, request, on_body, arg, err);
        close(fd);
    }
    free(buffer);
    return result;
}
