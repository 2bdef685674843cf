#include "clients.h"

#include <event2/bufferevent.h>
#include <stdbool.h>
#include <stdlib.h>

#include "k1/request.h"

/* A place for one connection. */
typedef struct client {
    struct evhttp_connection *connection; /* NULL: the place is free */
    uint64_t used;                        /* when, in counts of k1_clients.clock */
    void (*gone)(void *owner);            /* NULL: no answer is pending */
    void *owner;
} client;

struct k1_clients {
    const k1_log *log;
    k1_log_rate rate;
    struct event *settle;
    struct bufferevent *fresh; /* of the connection accepted last, until it has a place */
    uint64_t clock;
    size_t max;
    client place[];
};

/* ---- places ---- */

static void on_close(struct evhttp_connection *connection, void *arg) {
    client *c = arg;
    void (*gone)(void *owner) = c->gone;
    (void)connection;
    c->connection = NULL;
    c->gone = NULL;
    if (gone != NULL) {
        gone(c->owner);
    }
}

static bool gives_way_before(const client *a, const client *b) {
    if ((a->connection == NULL) != (b->connection == NULL)) {
        return a->connection == NULL;
    }
    if ((a->gone == NULL) != (b->gone == NULL)) {
        return a->gone == NULL;
    }
    return a->used < b->used;
}

static client *make_place(k1_clients *clients) {
    client *first = clients->place;
    for (size_t i = 1; i < clients->max; i++) {
        if (gives_way_before(&clients->place[i], first)) {
            first = &clients->place[i];
        }
    }
    if (first->connection != NULL) {
        if (k1_log_rate_allows(&clients->rate, k1_now_ns())) {
            k1_log_line(clients->log, K1_LOG_WARN, "clients_full",
                        "max=%zu text=\"the connection that was idle longest gives way to a new one\"", clients->max);
        }
        evhttp_connection_free(first->connection); /* calls on_close */
    }
    return first;
}

static client *enter(k1_clients *clients, struct evhttp_connection *connection) {
    client *c = make_place(clients);
    *c = (client){.connection = connection, .used = ++clients->clock};
    evhttp_connection_set_closecb(connection, on_close, c);
    return c;
}

/* One without a place got its stream from evhttp itself, when there was no memory for ours. */
static client *find(k1_clients *clients, struct evhttp_connection *connection) {
    for (size_t i = 0; i < clients->max; i++) {
        if (clients->place[i].connection == connection) {
            return &clients->place[i];
        }
    }
    return enter(clients, connection);
}

/* ---- new connections ---- */

/* evhttp tells of a connection only with its first request, but asks for each one's stream before; the argument of the
 * stream's callbacks is the connection then (NULL: it has ended). */
static void settle(k1_clients *clients) {
    struct bufferevent *fresh = clients->fresh;
    void *connection = NULL;
    if (fresh != NULL) {
        clients->fresh = NULL;
        bufferevent_getcb(fresh, NULL, NULL, NULL, &connection);
        bufferevent_decref(fresh);
        if (connection != NULL) {
            enter(clients, connection);
        }
    }
}

static void on_settle(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    settle(arg);
}

/* settle runs before the loop looks at sockets again, thus before anything can end the connection. */
static struct bufferevent *on_accepted(struct event_base *base, void *arg) {
    k1_clients *clients = arg;
    settle(clients);
    clients->fresh = bufferevent_socket_new(base, -1, 0);
    if (clients->fresh != NULL) {
        bufferevent_incref(clients->fresh);
        event_active(clients->settle, EV_TIMEOUT, 0);
    }
    return clients->fresh;
}

/* ---- use ---- */

void k1_clients_used(k1_clients *clients, struct evhttp_connection *connection) {
    find(clients, connection)->used = ++clients->clock;
}

void k1_clients_hold(k1_clients *clients, struct evhttp_connection *connection, void (*gone)(void *owner),
                     void *owner) {
    client *c = find(clients, connection);
    c->gone = gone;
    c->owner = owner;
}

void k1_clients_release(k1_clients *clients, struct evhttp_connection *connection) {
    client *c = find(clients, connection);
    c->gone = NULL;
    c->used = ++clients->clock;
}

/* ---- life ---- */

k1_clients *k1_clients_new(struct event_base *base, struct evhttp *server, size_t max, const k1_log *log, k1_err *err) {
    k1_clients *clients = calloc(1, sizeof *clients + max * sizeof clients->place[0]);
    struct event *event = clients == NULL ? NULL : event_new(base, -1, 0, on_settle, clients);
    if (event == NULL) {
        free(clients);
        k1_fail(err, "out of memory");
        return NULL;
    }
    clients->settle = event;
    clients->max = max;
    clients->log = log;
    evhttp_set_bevcb(server, on_accepted, clients);
    return clients;
}

void k1_clients_free(k1_clients *clients) {
    settle(clients);
    event_free(clients->settle);
    free(clients);
}
