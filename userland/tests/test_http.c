/* The HTTP side without an engine: this file stands in for the worker, and memory runs out where a test says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "http.h"

/* ---- memory: calls of http.c that the linker sends here first (--wrap) */

static int fail_text_add, fail_part, fail_last_part, fail_buffer_add;

int __real_k1_text_add(k1_text *text, const char *data, size_t n);
int __wrap_k1_text_add(k1_text *text, const char *data, size_t n);
int __wrap_k1_text_add(k1_text *text, const char *data, size_t n) {
    return fail_text_add > 0 && fail_text_add-- > 0 ? -1 : __real_k1_text_add(text, data, n);
}

char *__real_k1_api_part(const void *answer, const char *text, size_t n);
char *__wrap_k1_api_part(const void *answer, const char *text, size_t n);
char *__wrap_k1_api_part(const void *answer, const char *text, size_t n) {
    return fail_part > 0 && fail_part-- > 0 ? NULL : __real_k1_api_part(answer, text, n);
}

char *__real_k1_api_last_part(const void *answer, const k1_job *job);
char *__wrap_k1_api_last_part(const void *answer, const k1_job *job);
char *__wrap_k1_api_last_part(const void *answer, const k1_job *job) {
    return fail_last_part > 0 && fail_last_part-- > 0 ? NULL : __real_k1_api_last_part(answer, job);
}

int __real_evbuffer_add(struct evbuffer *buffer, const void *data, size_t n);
int __wrap_evbuffer_add(struct evbuffer *buffer, const void *data, size_t n);
int __wrap_evbuffer_add(struct evbuffer *buffer, const void *data, size_t n) {
    return fail_buffer_add > 0 && fail_buffer_add-- > 0 ? -1 : __real_evbuffer_add(buffer, data, n);
}

/* ---- the worker */

static k1_job *submitted;
static bool cancelled;
static int idle_pipe[2];

bool k1_worker_submit(k1_worker *worker, k1_job *job) {
    (void)worker;
    submitted = job;
    return true;
}

void k1_worker_cancel(k1_worker *worker, k1_job *job) {
    (void)worker, (void)job;
    cancelled = true;
}

int k1_worker_fd(const k1_worker *worker) {
    (void)worker;
    return idle_pipe[0];
}

void k1_worker_poll(k1_worker *worker) { (void)worker; }

size_t k1_worker_n_waiting(const k1_worker *worker) {
    (void)worker;
    return 0;
}

size_t k1_worker_n_running(const k1_worker *worker) {
    (void)worker;
    return submitted != NULL;
}

k1_batches k1_worker_batches(const k1_worker *worker) {
    (void)worker;
    return (k1_batches){0};
}

void k1_job_clear(k1_job *job) {
    k1_request_end(&job->request);
    k1_request_params_free(&job->params);
}

/* ---- the cluster: none */

const char *k1_cluster_why_not(k1_cluster *cluster) {
    (void)cluster;
    return NULL;
}

uint32_t k1_cluster_n_ranks(const k1_cluster *cluster) {
    (void)cluster;
    return 0;
}

bool k1_cluster_is_head(const k1_cluster *cluster) {
    (void)cluster;
    return true;
}

k1_cluster_node k1_cluster_node_of(const k1_cluster *cluster, uint32_t rank) {
    (void)cluster, (void)rank;
    return (k1_cluster_node){0};
}

static void reply(k1_reply_kind kind, const char *text) {
    k1_job *job = submitted;
    size_t n = strlen(text);
    k1_reply *r = malloc(sizeof *r + n + 1);
    assert_non_null(r);
    *r = (k1_reply){.job = job, .kind = kind, .n = n};
    memcpy(r->text, text, n + 1);
    if (kind != K1_REPLY_TEXT) {
        submitted = NULL;
    }
    job->on_reply(job, r);
    free(r);
}

/* ---- a server and one client */

enum { MAX_CLIENTS = 4 };

typedef struct fixture {
    struct event_base *base;
    k1_auth auth;
    k1_log log;
    k1_runtime runtime;
    k1_http *http;
    int client;
    char answer[8192];
    size_t n;
} fixture;

static int dial(const fixture *f) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(k1_http_port(f->http))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static int set_up(void **state) {
    static const k1_kernels kernels = {.name = "none"};
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(pipe(idle_pipe), 0);
    fail_text_add = fail_part = fail_last_part = fail_buffer_add = 0;
    submitted = NULL;
    cancelled = false;
    f->base = event_base_new();
    f->log = (k1_log){.fd = STDERR_FILENO, .level = K1_LOG_ERROR};
    f->runtime = (k1_runtime){.n_ctx = 64, .kernels = &kernels, .name = "m"};
    k1_http_config config = {
        .host = "127.0.0.1", .max_clients = MAX_CLIENTS, .auth = &f->auth, .log = &f->log, .runtime = &f->runtime};
    k1_err err = {""};
    f->http = k1_http_new(f->base, &config, &err);
    assert_string_equal(err.text, "");
    f->client = dial(f);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    close(f->client);
    k1_http_free(f->http);
    event_base_free(f->base);
    close(idle_pipe[0]);
    close(idle_pipe[1]);
    free(f);
    libevent_global_shutdown();
    return 0;
}

static void send_request(const fixture *f, const char *head, const char *body) {
    char request[1024];
    int n = snprintf(request, sizeof request, "%s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", head, strlen(body), body);
    assert_int_equal(send(f->client, request, (size_t)n, 0), n);
}

static void post(fixture *f, const char *body) {
    send_request(f, "POST /v1/completions", body);
    while (submitted == NULL) {
        assert_int_equal(event_base_loop(f->base, EVLOOP_ONCE), 0);
    }
}

/* The answer up to its end, which closes an HTTP/1.0 connection. */
static const char *hear(fixture *f) {
    for (;;) {
        assert_true(event_base_loop(f->base, EVLOOP_NONBLOCK) >= 0);
        ssize_t got = recv(f->client, f->answer + f->n, sizeof f->answer - 1 - f->n, MSG_DONTWAIT);
        if (got == 0) {
            return f->answer;
        }
        f->n += got > 0 ? (size_t)got : 0;
        assert_true(f->n < sizeof f->answer - 1);
    }
}

static void expect(const char *answer, const char *status, const char *part) {
    if (strstr(answer, status) == NULL || strstr(answer, part) == NULL) {
        fail_msg("wanted %s and %s, got: %s", status, part, answer);
    }
}

#define PROMPT "{\"prompt\":\"p\"}"
#define STREAM "{\"prompt\":\"p\",\"stream\":true}"
#define TOLD "\"message\":\"out of memory\""

static void all_is_well_with_memory(void **state) {
    post(*state, PROMPT);
    reply(K1_REPLY_TEXT, "one ");
    reply(K1_REPLY_TEXT, "two");
    reply(K1_REPLY_DONE, "");
    expect(hear(*state), " 200 ", "\"text\":\"one two\"");
    assert_false(cancelled);
}

/* Whether the engine was stopped in time, or was done just then. */
static void lost_text_is_told_and_stops_the_engine(void **state) {
    post(*state, PROMPT);
    fail_text_add = 1;
    reply(K1_REPLY_TEXT, "one ");
    assert_true(cancelled);
    reply(K1_REPLY_TEXT, "two");
    reply(K1_REPLY_CANCELLED, "");
    expect(hear(*state), " 500 ", TOLD);
}

static void an_answer_with_a_gap_is_never_given_as_whole(void **state) {
    post(*state, PROMPT);
    fail_text_add = 1;
    reply(K1_REPLY_TEXT, "one ");
    reply(K1_REPLY_TEXT, "two");
    reply(K1_REPLY_DONE, "");
    expect(hear(*state), " 500 ", TOLD);
}

static void a_stream_with_a_gap_ends_with_an_error(void **state) {
    post(*state, STREAM);
    reply(K1_REPLY_TEXT, "one ");
    fail_part = 1;
    reply(K1_REPLY_TEXT, "two ");
    assert_true(cancelled);
    reply(K1_REPLY_TEXT, "three");
    reply(K1_REPLY_DONE, "");
    const char *answer = hear(*state);
    expect(answer, "\"text\":\"one \"", TOLD);
    assert_null(strstr(answer, "three"));
    assert_null(strstr(answer, "[DONE]"));
}

static void a_stream_without_its_last_part_is_not_done(void **state) {
    post(*state, STREAM);
    reply(K1_REPLY_TEXT, "one");
    fail_last_part = 1;
    reply(K1_REPLY_DONE, "");
    const char *answer = hear(*state);
    expect(answer, " 200 ", "\"text\":\"one\"");
    assert_null(strstr(answer, "[DONE]"));
}

static void an_answer_that_finds_no_room_is_an_error(void **state) {
    fail_buffer_add = 1;
    send_request(*state, "GET /health", "");
    expect(hear(*state), " 500 ", "\r\n\r\n");
}

/* ---- more connections than there may be */

static void dial_more(const fixture *f, int fds[], size_t n) {
    for (size_t i = 0; i < n; i++) {
        fds[i] = dial(f);
        assert_true(event_base_loop(f->base, EVLOOP_ONCE) >= 0); /* each is accepted before the next dials */
    }
}

static void expect_closed(const fixture *f, const int fds[], const bool closed[], size_t n) {
    for (int turn = 0; turn < 10; turn++) {
        assert_true(event_base_loop(f->base, EVLOOP_NONBLOCK) >= 0);
    }
    for (size_t i = 0; i < n; i++) {
        char byte;
        assert_int_equal(recv(fds[i], &byte, 1, MSG_DONTWAIT), closed[i] ? 0 : -1);
        close(fds[i]);
    }
}

static void the_idle_give_way_and_pending_requests_do_not(void **state) {
    static const bool closed[] = {true, true, false, false, false};
    int others[5];
    post(*state, PROMPT);
    dial_more(*state, others, 5);
    expect_closed(*state, others, closed, 5);
    assert_false(cancelled);
    reply(K1_REPLY_TEXT, "still here");
    reply(K1_REPLY_DONE, "");
    expect(hear(*state), " 200 ", "still here");
}

static void who_has_just_asked_is_not_who_was_idle_longest(void **state) {
    static const char request[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    static const bool closed[] = {true, false, false, false};
    fixture *f = *state;
    int others[4];
    dial_more(f, others, 3);
    assert_int_equal(send(f->client, request, sizeof request - 1, 0), sizeof request - 1);
    while (recv(f->client, f->answer, sizeof f->answer, MSG_DONTWAIT) <= 0) {
        assert_true(event_base_loop(f->base, EVLOOP_NONBLOCK) >= 0);
    }
    dial_more(f, others + 3, 1);
    expect_closed(f, others, closed, 4);
    send_request(f, "GET /health", "");
    expect(hear(f), " 200 ", "\"status\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_is_well_with_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lost_text_is_told_and_stops_the_engine, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_answer_with_a_gap_is_never_given_as_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stream_with_a_gap_ends_with_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stream_without_its_last_part_is_not_done, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_answer_that_finds_no_room_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_idle_give_way_and_pending_requests_do_not, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_has_just_asked_is_not_who_was_idle_longest, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
