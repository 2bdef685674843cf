#include "http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"
#include "clients.h"

enum {
    MAX_HEADERS = 16 << 10,
    MAX_EARLY = 64 << 10, /* bytes a client may send ahead while its answer is pending */
    IDLE_SECONDS = 60,
    ID_BYTES = 12,
};

static const struct timeval idle = {.tv_sec = IDLE_SECONDS};
static const struct timeval stop_limit = {.tv_sec = 5};

/* One completion and its client. */
typedef struct exchange {
    k1_http *http;
    struct evhttp_request *req; /* NULL: the client has gone */
    k1_job job;
    bool stream, include_usage;
    bool begun;   /* the stream's headers are out */
    bool starved; /* text was lost for want of memory */
    char id[8 + 2 * ID_BYTES];
    char model[128];
    int64_t created;
    k1_text text; /* of an answer in one piece */
    struct exchange *before, *next;
} exchange;

struct k1_http {
    k1_http_config config;
    struct event_base *base;
    struct evhttp *server;
    k1_clients *clients;
    struct evhttp_bound_socket *bound; /* NULL once stopped */
    struct event *worker_event;
    struct event *resume_event; /* accepts again after files ran out */
    k1_log_rate no_files;
    exchange *exchanges;
    int64_t started; /* seconds since 1970 */
    uint16_t port;
};

/* ---- answers ---- */

static void add_header(struct evhttp_request *req, const char *name, const char *value) {
    evhttp_add_header(evhttp_request_get_output_headers(req), name, value);
}

/* body: malloc'ed, taken; NULL when memory ran out. */
static void send_json(struct evhttp_request *req, int status, char *body) {
    static const char oom[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
                              "\"code\":null}}";
    const char *text = body == NULL ? oom : body;
    struct evbuffer *buffer = evbuffer_new();
    bool filled = buffer != NULL && evbuffer_add(buffer, text, strlen(text)) == 0;
    add_header(req, "Content-Type", "application/json");
    evhttp_send_reply(req, filled && body != NULL ? status : 500, NULL, buffer);
    if (buffer != NULL) {
        evbuffer_free(buffer);
    }
    free(body);
}

static void send_error(struct evhttp_request *req, const k1_api_error *error) {
    if (error->status == 401) {
        add_header(req, "WWW-Authenticate", "Bearer");
    } else if (error->status == 503) {
        add_header(req, "Retry-After", "1");
    }
    send_json(req, error->status, k1_api_error_body(error));
}

static k1_api_error make_error(int status, const char *field, const char *message) {
    k1_api_error error = {.status = status};
    snprintf(error.field, sizeof error.field, "%s", field);
    snprintf(error.message, sizeof error.message, "%.390s", message);
    return error;
}

/* One server-sent event. body: malloc'ed, taken. -1 when memory runs out: nothing was sent. */
static int send_event(struct evhttp_request *req, char *body) {
    struct evbuffer *buffer = evbuffer_new();
    bool filled = buffer != NULL && body != NULL && evbuffer_add_printf(buffer, "data: %s\n\n", body) > 0;
    if (filled) {
        evhttp_send_reply_chunk(req, buffer);
    }
    if (buffer != NULL) {
        evbuffer_free(buffer);
    }
    free(body);
    return filled ? 0 : -1;
}

/* ---- exchanges ---- */

static void link_exchange(k1_http *http, exchange *x) {
    x->next = http->exchanges;
    if (x->next != NULL) {
        x->next->before = x;
    }
    http->exchanges = x;
}

static void leave_when_idle(k1_http *http) {
    /* A moment for the last answers to reach their sockets. */
    static const struct timeval moment = {.tv_usec = 50000};
    if (http->bound == NULL && http->exchanges == NULL) {
        event_base_loopexit(http->base, &moment);
    }
}

static void free_exchange(exchange *x) {
    k1_http *http = x->http;
    if (x->before != NULL) {
        x->before->next = x->next;
    } else {
        http->exchanges = x->next;
    }
    if (x->next != NULL) {
        x->next->before = x->before;
    }
    k1_job_clear(&x->job);
    free(x->text.data);
    free(x);
    leave_when_idle(http);
}

/* evhttp frees the connection: cancel the job, whose last reply frees the exchange. */
static void on_gone(void *owner) {
    exchange *x = owner;
    /* A request without a connection has been left to us; else evhttp frees it too. */
    if (evhttp_request_get_connection(x->req) == NULL) {
        evhttp_request_free(x->req);
    }
    x->req = NULL;
    k1_worker_cancel(x->http->config.worker, &x->job);
}

static struct bufferevent *stream_of(const exchange *x) {
    return evhttp_connection_get_bufferevent(evhttp_request_get_connection(x->req));
}

/* A client may send its next requests ahead, but not without end. */
static void on_early_bytes(struct bufferevent *stream, void *arg) {
    if (evbuffer_get_length(bufferevent_get_input(stream)) > MAX_EARLY) {
        evhttp_connection_free(arg);
    }
}

/* While an answer is pending evhttp does not read, and would not notice a client that closes. Reading is turned on, but
 * evhttp's read callback must not run: it ends the program when bytes come in this state (libevent 2.1). Each write
 * replaces the callbacks. Their common argument is the connection. */
static void watch_client(exchange *x) {
    struct bufferevent *stream = stream_of(x);
    bufferevent_data_cb on_write;
    bufferevent_event_cb on_event;
    void *connection;
    bufferevent_getcb(stream, NULL, &on_write, &on_event, &connection);
    bufferevent_setcb(stream, on_early_bytes, on_write, on_event, connection);
    bufferevent_enable(stream, EV_READ);
}

static void hold_client(exchange *x) {
    bufferevent_set_timeouts(stream_of(x), NULL, &idle); /* silence is fine now; not taking our bytes is not */
    k1_clients_hold(x->http->clients, evhttp_request_get_connection(x->req), on_gone, x);
    watch_client(x);
}

/* Undo hold_client, before the last bytes of the answer. */
static struct evhttp_request *release_client(exchange *x) {
    struct evhttp_request *req = x->req;
    k1_clients_release(x->http->clients, evhttp_request_get_connection(req));
    bufferevent_set_timeouts(stream_of(x), &idle, &idle);
    x->req = NULL;
    return req;
}

static k1_api_answer answer_of(const exchange *x) {
    return (k1_api_answer){.id = x->id, .model = x->model, .created = x->created, .include_usage = x->include_usage};
}

static void begin_stream(exchange *x) {
    if (!x->begun) {
        x->begun = true;
        add_header(x->req, "Content-Type", "text/event-stream");
        add_header(x->req, "Cache-Control", "no-cache");
        evhttp_send_reply_start(x->req, HTTP_OK, NULL);
    }
}

static void end_with_error(exchange *x, const k1_api_error *error) {
    struct evhttp_request *req = release_client(x);
    if (x->begun) {
        (void)send_event(req, k1_api_error_body(error)); /* without [DONE] the client knows all the same */
        evhttp_send_reply_end(req);
    } else {
        send_error(req, error);
    }
}

static void end_well(exchange *x) {
    k1_api_answer answer = answer_of(x);
    if (!x->stream) {
        char *body = k1_api_result(&answer, &x->job, x->text.n > 0 ? x->text.data : "", x->text.n);
        send_json(release_client(x), HTTP_OK, body);
        return;
    }
    begin_stream(x);
    struct evhttp_request *req = release_client(x);
    /* [DONE] says that the client has got all of it. */
    if (send_event(req, k1_api_last_part(&answer, &x->job)) == 0 &&
        (!x->include_usage || send_event(req, k1_api_usage_part(&answer, &x->job)) == 0)) {
        (void)send_event(req, strdup("[DONE]"));
    }
    evhttp_send_reply_end(req);
}

static int send_text(exchange *x, const k1_reply *reply) {
    k1_api_answer answer = answer_of(x);
    begin_stream(x);
    int failed = send_event(x->req, k1_api_part(&answer, reply->text, reply->n));
    watch_client(x);
    return failed;
}

static void add_text(exchange *x, const k1_reply *reply) {
    if (x->starved) {
        return;
    }
    if ((x->stream ? send_text(x, reply) : k1_text_add(&x->text, reply->text, reply->n)) != 0) {
        x->starved = true;
        k1_worker_cancel(x->http->config.worker, &x->job);
    }
}

static void log_end(const exchange *x, k1_reply_kind how, const char *why) {
    static const char *const outcomes[] = {
        [K1_REPLY_DONE] = "done",           [K1_REPLY_REFUSED] = "refused",         [K1_REPLY_FAILED] = "failed",
        [K1_REPLY_CANCELLED] = "cancelled", [K1_REPLY_UNAVAILABLE] = "unavailable",
    };
    const k1_request *r = &x->job.request;
    bool done = how == K1_REPLY_DONE;
    k1_log_line(x->http->config.log, how == K1_REPLY_FAILED ? K1_LOG_ERROR : K1_LOG_INFO, "completion",
                "id=%s outcome=%s prompt=%zu generated=%zu prompt_ms=%.1f predicted_ms=%.1f%s%s%s", x->id,
                outcomes[how], r->n_prompt, k1_request_n_generated(r), done ? k1_request_prompt_ms(r) : 0,
                done ? k1_request_predicted_ms(r) : 0, why[0] != '\0' ? " error=\"" : "", why,
                why[0] != '\0' ? "\"" : "");
}

static void tell_end(exchange *x, k1_reply_kind how, const char *why) {
    k1_api_error error;
    switch (how) {
    case K1_REPLY_DONE:
        end_well(x);
        return;
    case K1_REPLY_REFUSED:
        error = make_error(400, "prompt", why);
        break;
    case K1_REPLY_FAILED:
        error = make_error(500, "", why);
        break;
    case K1_REPLY_UNAVAILABLE:
        error = make_error(503, "", why);
        break;
    default:
        error = make_error(503, "", "the server is stopping; try again later");
        break;
    }
    end_with_error(x, &error);
}

static void on_reply(k1_job *job, const k1_reply *reply) {
    exchange *x = job->owner;
    if (reply->kind == K1_REPLY_TEXT) {
        if (x->req != NULL) {
            add_text(x, reply);
        }
        return;
    }
    k1_reply_kind how = x->starved ? K1_REPLY_FAILED : reply->kind;
    const char *why = x->starved ? "out of memory" : reply->n > 0 ? reply->text : "";
    if (x->req != NULL) {
        tell_end(x, how, why);
    }
    log_end(x, how, why);
    free_exchange(x);
}

/* ---- routes ---- */

static void set_identity(exchange *x, const k1_completion *wanted) {
    unsigned char bytes[ID_BYTES];
    randombytes_buf(bytes, sizeof bytes);
    memcpy(x->id, "cmpl-", 5);
    sodium_bin2hex(x->id + 5, sizeof x->id - 5, bytes, sizeof bytes);
    snprintf(x->model, sizeof x->model, "%s", wanted->model[0] ? wanted->model : x->http->config.runtime->name);
    x->created = (int64_t)time(NULL);
}

static void start_exchange(k1_http *http, struct evhttp_request *req, k1_completion *wanted) {
    exchange *x = calloc(1, sizeof *x);
    if (x == NULL) {
        k1_request_params_free(&wanted->params);
        send_json(req, 500, NULL);
        return;
    }
    *x = (exchange){.http = http, .req = req, .stream = wanted->stream, .include_usage = wanted->include_usage};
    x->job.params = wanted->params;
    x->job.on_reply = on_reply;
    x->job.owner = x;
    set_identity(x, wanted);
    link_exchange(http, x);
    if (k1_worker_submit(http->config.worker, &x->job)) {
        hold_client(x);
        return;
    }
    k1_api_error error = make_error(503, "", "too many requests are waiting; try again later");
    send_error(req, &error);
    free_exchange(x);
}

/* A valid one, where tokens are asked for. */
static bool shows_token(const k1_http *http, struct evhttp_request *req) {
    const char *given = evhttp_find_header(evhttp_request_get_input_headers(req), "Authorization");
    return k1_auth_allows(http->config.auth, given);
}

/* Why no completion can begin now; NULL: it can. */
static const char *why_not(const k1_http *http) {
    if (http->bound == NULL) { /* a kept-alive client must not hold off the end */
        return "the server is stopping";
    }
    return http->config.cluster == NULL ? NULL : k1_cluster_why_not(http->config.cluster);
}

static void post_completions(k1_http *http, struct evhttp_request *req) {
    const char *why = why_not(http);
    if (why != NULL) {
        k1_api_error refused = make_error(503, "", why);
        send_error(req, &refused);
        return;
    }
    struct evbuffer *input = evhttp_request_get_input_buffer(req);
    size_t n = evbuffer_get_length(input);
    const unsigned char *body = n == 0 ? (const unsigned char *)"" : evbuffer_pullup(input, -1);
    k1_completion wanted;
    k1_api_error error;
    if (body == NULL) {
        send_json(req, 500, NULL);
    } else if (k1_api_completion((const char *)body, n, http->config.runtime->n_ctx, &wanted, &error) != 0) {
        k1_request_params_free(&wanted.params);
        send_error(req, &error);
    } else {
        evbuffer_drain(input, n);
        start_exchange(http, req, &wanted);
    }
}

static void get_models(k1_http *http, struct evhttp_request *req) {
    send_json(req, HTTP_OK, k1_api_models(http->config.runtime->name, http->started));
}

static void get_health(k1_http *http, struct evhttp_request *req) {
    const k1_runtime *runtime = http->config.runtime;
    k1_api_health health = {
        .model = runtime->name,
        .kernels = runtime->kernels->name,
        .n_ctx = runtime->n_ctx,
        .n_threads = runtime->n_threads,
        .n_running = k1_worker_n_running(http->config.worker),
        .n_waiting = k1_worker_n_waiting(http->config.worker),
        .why_not = why_not(http),
        .cluster = http->config.cluster,
        .batches = k1_worker_batches(http->config.worker),
        .in_full = shows_token(http, req),
    };
    if (http->bound != NULL && health.cluster != NULL && !k1_cluster_is_head(health.cluster)) {
        health.why_not = NULL; /* it does what is asked of it: to be a worker */
    }
    send_json(req, health.why_not == NULL ? HTTP_OK : 503, k1_api_health_body(&health));
}

typedef struct route {
    const char *path;
    enum evhttp_cmd_type method;
    const char *allow;
    bool open; /* without a token */
    void (*handle)(k1_http *http, struct evhttp_request *req);
} route;

static const route routes[] = {
    {"/health", EVHTTP_REQ_GET, "GET", true, get_health},
    {"/v1/models", EVHTTP_REQ_GET, "GET", false, get_models},
    {"/v1/completions", EVHTTP_REQ_POST, "POST", false, post_completions},
};

static const route *find_route(const struct evhttp_request *req) {
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    for (size_t i = 0; path != NULL && i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(path, routes[i].path) == 0) {
            return &routes[i];
        }
    }
    return NULL;
}

static void on_request(struct evhttp_request *req, void *arg) {
    k1_http *http = arg;
    const route *r = find_route(req);
    k1_api_error error;
    k1_clients_used(http->clients, evhttp_request_get_connection(req));
    if ((r == NULL || !r->open) && !shows_token(http, req)) {
        error = make_error(401, "", "a valid API token is needed: send \"Authorization: Bearer TOKEN\"");
    } else if (r == NULL) {
        error = make_error(404, "", "no such path; there are /health, /v1/models and /v1/completions");
    } else if (evhttp_request_get_command(req) != r->method) {
        add_header(req, "Allow", r->allow);
        error = make_error(405, "", "this path does not take this method; see the header Allow");
    } else {
        r->handle(http, req);
        return;
    }
    send_error(req, &error);
}

/* ---- listening ---- */

static void on_worker(evutil_socket_t fd, short what, void *arg) {
    k1_http *http = arg;
    (void)fd, (void)what;
    k1_worker_poll(http->config.worker);
}

static void on_resume(evutil_socket_t fd, short what, void *arg) {
    k1_http *http = arg;
    (void)fd, (void)what;
    if (http->bound != NULL) {
        evconnlistener_enable(evhttp_bound_socket_get_listener(http->bound));
    }
}

static int find_http(const struct event_base *base, const struct event *event, void *found) {
    (void)base;
    if (event_get_callback(event) != on_worker) {
        return 0;
    }
    *(k1_http **)found = event_get_callback_arg(event);
    return 1;
}

/* Out of files: the client that waits would be reported again and again. The listener's argument is evhttp's, so ours
 * is found by the worker's event. */
static void on_accept_error(struct evconnlistener *listener, void *arg) {
    static const struct timeval pause = {.tv_usec = 200000};
    k1_http *http = NULL;
    int why = errno;
    (void)arg;
    event_base_foreach_event(evconnlistener_get_base(listener), find_http, &http);
    if (http != NULL) {
        if (k1_log_rate_allows(&http->no_files, k1_now_ns())) {
            k1_log_line(http->config.log, K1_LOG_WARN, "accept", "error=\"%s\"", strerror(why));
        }
        evconnlistener_disable(listener);
        event_add(http->resume_event, &pause);
    }
}

static uint16_t bound_port(struct evhttp_bound_socket *bound) {
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    memset(&address, 0, sizeof address);
    if (getsockname(evhttp_bound_socket_get_fd(bound), (struct sockaddr *)&address, &n) != 0) {
        return 0;
    }
    if (address.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, &address, sizeof v6);
        return ntohs(v6.sin6_port);
    }
    struct sockaddr_in v4;
    memcpy(&v4, &address, sizeof v4);
    return ntohs(v4.sin_port);
}

/* Accepted sockets inherit it: a stream of tokens is many small writes, none of which should wait for the others. */
static void send_at_once(struct evhttp_bound_socket *bound) {
    int on = 1;
    setsockopt(evhttp_bound_socket_get_fd(bound), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int listen_on(k1_http *http, k1_err *err) {
    const char *host = http->config.host;
    errno = 0;
    http->bound = evhttp_bind_socket_with_handle(http->server, host, http->config.port);
    if (http->bound == NULL) {
        return k1_fail(err, "cannot listen on %s port %u: %s; choose another --host or --port", host, http->config.port,
                       errno != 0 ? strerror(errno) : "no such address");
    }
    send_at_once(http->bound);
    http->port = bound_port(http->bound);
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(http->bound), on_accept_error);
    return 0;
}

/* evhttp hands a request over with its body, so that no token can be looked at before: what all clients together can
 * make us hold is bounded by their number and by this. It answers a body of more than twice our limit by itself, when
 * the headers announce it; a shorter one comes to us, who say in JSON what is wrong. */
static void set_limits(struct evhttp *server, uint32_t n_ctx) {
    evhttp_set_max_body_size(server, (ev_ssize_t)(2 * k1_api_max_body(n_ctx)));
    evhttp_set_max_headers_size(server, MAX_HEADERS);
    evhttp_set_timeout(server, IDLE_SECONDS);
    evhttp_set_flags(server, EVHTTP_SERVER_LINGERING_CLOSE); /* so that the sender of a huge body reads its 413 */
    evhttp_set_default_content_type(server, NULL);
    evhttp_set_allowed_methods(server, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT |
                                           EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE |
                                           EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
}

static int set_up(k1_http *http, k1_err *err) {
    http->server = evhttp_new(http->base);
    http->worker_event =
        event_new(http->base, k1_worker_fd(http->config.worker), EV_READ | EV_PERSIST, on_worker, http);
    http->resume_event = event_new(http->base, -1, 0, on_resume, http);
    if (http->server == NULL || http->worker_event == NULL || http->resume_event == NULL) {
        return k1_fail(err, "out of memory");
    }
    http->clients = k1_clients_new(http->base, http->server, http->config.max_clients, http->config.log, err);
    if (http->clients == NULL) {
        return -1;
    }
    set_limits(http->server, http->config.runtime->n_ctx);
    evhttp_set_gencb(http->server, on_request, http);
    event_add(http->worker_event, NULL);
    return listen_on(http, err);
}

k1_http *k1_http_new(struct event_base *base, const k1_http_config *config, k1_err *err) {
    k1_http *http = calloc(1, sizeof *http);
    if (http == NULL) {
        k1_fail(err, "out of memory");
        return NULL;
    }
    http->config = *config;
    http->base = base;
    http->started = (int64_t)time(NULL);
    if (set_up(http, err) != 0) {
        k1_http_free(http);
        return NULL;
    }
    return http;
}

void k1_http_stop(k1_http *http) {
    if (http->bound == NULL) {
        return;
    }
    evhttp_del_accept_socket(http->server, http->bound);
    http->bound = NULL;
    exchange *next;
    for (exchange *x = http->exchanges; x != NULL; x = next) {
        next = x->next;
        k1_worker_cancel(http->config.worker, &x->job);
    }
    leave_when_idle(http);
    event_base_loopexit(http->base, &stop_limit); /* whatever the other ranks do */
}

void k1_http_free(k1_http *http) {
    if (http->server != NULL) {
        evhttp_free(http->server);
    }
    if (http->clients != NULL) {
        k1_clients_free(http->clients);
    }
    if (http->worker_event != NULL) {
        event_free(http->worker_event);
    }
    if (http->resume_event != NULL) {
        event_free(http->resume_event);
    }
    free(http);
}

uint16_t k1_http_port(const k1_http *http) { return http->port; }
