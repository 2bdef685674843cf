/* The HTTP side of the daemon, on the event thread: translates requests into jobs and replies into answers. */
#ifndef K1_HTTP_H
#define K1_HTTP_H

#include <event2/event.h>
#include <stdint.h>

#include "auth.h"
#include "cluster.h"
#include "k1/log.h"
#include "worker.h"

typedef struct k1_http k1_http;

typedef struct k1_http_config {
    const char *host;
    uint16_t port;      /* 0: any free one */
    size_t max_clients; /* connections; more than the worker takes requests */
    const k1_auth *auth;
    const k1_log *log;
    k1_worker *worker;
    k1_cluster *cluster;       /* NULL: a node of its own */
    const k1_runtime *runtime; /* its constant parts */
} k1_http_config;

/* Listen. The pointers of config must outlive it. */
k1_http *k1_http_new(struct event_base *base, const k1_http_config *config, k1_err *err);
/* Accept no more, cancel what runs and leave the event loop when all clients have been told. */
void k1_http_stop(k1_http *http);
void k1_http_free(k1_http *http);
uint16_t k1_http_port(const k1_http *http);

#endif
