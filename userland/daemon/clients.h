/* The HTTP connections, bounded: when more come, the one whose last request is longest ago gives way. So strangers
 * cannot use up the descriptors that links between nodes and files need. It belongs to the event thread. */
#ifndef K1_CLIENTS_H
#define K1_CLIENTS_H

#include <event2/event.h>
#include <event2/http.h>

#include "k1/error.h"
#include "k1/log.h"

typedef struct k1_clients k1_clients;

/* Watch over a server's connections, at most max, which must be more than will be held at once. */
k1_clients *k1_clients_new(struct event_base *base, struct evhttp *server, size_t max, const k1_log *log, k1_err *err);
/* After the server is freed. */
void k1_clients_free(k1_clients *clients);

/* A request has come: whose connection was idle starts to be so anew. */
void k1_clients_used(k1_clients *clients, struct evhttp_connection *connection);
/* Its answer is pending: the connection does not give way. gone(owner) is called when it ends all the same. */
void k1_clients_hold(k1_clients *clients, struct evhttp_connection *connection, void (*gone)(void *owner), void *owner);
void k1_clients_release(k1_clients *clients, struct evhttp_connection *connection);

#endif
