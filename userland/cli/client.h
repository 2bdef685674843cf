/* One POST over a plain socket, as HTTP/1.0: the answer then comes unchunked and ends with the connection. */
#ifndef K1_CLIENT_H
#define K1_CLIENT_H

#include <stddef.h>

#include "k1/error.h"

typedef struct k1_client_request {
    const char *host;
    unsigned port;
    const char *path;
    const char *token; /* may be NULL */
    const char *body;
    size_t body_len;
} k1_client_request;

/* Called for the bytes of the answer's body as they come. Not 0 ends the call. */
typedef int k1_client_fn(void *arg, int status, const char *bytes, size_t n);

/* The HTTP status, what on_body returned if not 0, or -1 and err: cannot connect, no HTTP, connection lost. */
int k1_client_post(const k1_client_request *request, k1_client_fn *on_body, void *arg, k1_err *err);

#endif
