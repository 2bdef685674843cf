/* k1-inferd: answers completions from one model. The main thread is the event thread; the engine has its own. */
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "auth.h"
#include "http.h"
#include "k1/log.h"
#include "k1/options.h"
#include "k1/runtime.h"
#include "worker.h"

enum {
    MAX_WAITING = 32,
    MAX_FILES = 128, /* bounds the clients, and by that what their unfinished bodies take: 48 MiB at n_ctx 2048 */
};

typedef struct settings {
    char *model, *cpu_list, *host, *config, *api_token_file, *log_level;
    uint32_t n_ctx, n_batch, n_threads, port;
    bool local, insecure;
} settings;

static int check_access(const settings *s, k1_auth *auth, k1_err *err) {
    if (s->api_token_file != NULL) {
        return k1_auth_load(auth, s->api_token_file, err);
    }
    if (!s->insecure && !k1_is_loopback(s->host)) {
        return k1_fail(err,
                       "host %s can be reached by others, and there is no token: give --api_token_file FILE, or "
                       "--insecure to serve everybody",
                       s->host);
    }
    return 0;
}

static int read_settings(settings *s, int argc, char **argv, k1_options *options, k1_auth *auth, k1_log *log,
                         k1_err *err) {
    k1_options_result result = k1_options_parse(options, argc, argv, NULL, 0, NULL, err);
    if (result != K1_OPTIONS_RUN) {
        return result == K1_OPTIONS_SHOWN ? 1 : -1;
    }
    if (s->model == NULL) {
        return k1_fail(err, "no model: give --model FILE, a GGUF file");
    }
    if (k1_log_level_parse(s->log_level, &log->level, err) != 0) {
        return -1;
    }
    return check_access(s, auth, err);
}

static void bound_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > MAX_FILES) {
        limit.rlim_cur = MAX_FILES;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void on_signal(evutil_socket_t number, short what, void *arg) {
    (void)number, (void)what;
    k1_http_stop(arg);
}

/* Until a signal ends it. */
static int loop(struct event_base *base, k1_http *http, const k1_log *log, k1_err *err) {
    struct event *term = evsignal_new(base, SIGTERM, on_signal, http);
    struct event *interrupt = evsignal_new(base, SIGINT, on_signal, http);
    int failed = 0;
    if (term == NULL || interrupt == NULL || event_add(term, NULL) != 0 || event_add(interrupt, NULL) != 0 ||
        event_base_dispatch(base) < 0) {
        failed = k1_fail(err, "the event loop failed: %s", strerror(errno));
    } else {
        k1_log_line(log, K1_LOG_INFO, "stopped", "reason=signal");
    }
    if (term != NULL) {
        event_free(term);
    }
    if (interrupt != NULL) {
        event_free(interrupt);
    }
    return failed;
}

static void warn_of_long_context(const k1_runtime *runtime, const k1_log *log) {
    uint32_t trained = k1_model_hparams(runtime->model)->n_ctx_train;
    if (runtime->n_ctx > trained) {
        k1_log_line(log, K1_LOG_WARN, "long_context", "n_ctx=%u trained=%u text=\"answers get worse beyond\"",
                    runtime->n_ctx, trained);
    }
}

/* Takes the worker. */
static int listen_and_loop(const settings *s, k1_runtime *runtime, k1_worker *worker, struct event_base *base,
                           const k1_auth *auth, const k1_log *log, k1_err *err) {
    k1_http_config config = {
        .host = s->host, .port = (uint16_t)s->port, .auth = auth, .log = log, .worker = worker, .runtime = runtime};
    k1_http *http = k1_http_new(base, &config, err);
    if (http == NULL) {
        k1_worker_free(worker);
        return K1_EXIT_USER;
    }
    warn_of_long_context(runtime, log);
    k1_log_line(log, K1_LOG_INFO, "listening", "host=%s port=%u model=%s n_ctx=%u n_threads=%u pinned=%s kernels=%s",
                s->host, k1_http_port(http), runtime->name, runtime->n_ctx, runtime->n_threads,
                runtime->pinned ? "yes" : "no", runtime->kernels->name);
    int failed = loop(base, http, log, err);
    k1_worker_free(worker); /* first: its last replies go through http */
    k1_http_free(http);
    return failed != 0 ? K1_EXIT_BUG : K1_EXIT_OK;
}

static int serve(const settings *s, k1_runtime *runtime, const k1_auth *auth, const k1_log *log, k1_err *err) {
    k1_runtime_config config = {.model = s->model,
                                .n_ctx = s->n_ctx,
                                .n_batch = s->n_batch,
                                .n_threads = s->n_threads,
                                .cpu_list = s->cpu_list};
    if (k1_runtime_open(runtime, &config, err) != 0) {
        return K1_EXIT_USER;
    }
    struct event_base *base = event_base_new();
    if (base == NULL) {
        k1_fail(err, "cannot make an event loop: %s", strerror(errno));
        return K1_EXIT_BUG;
    }
    k1_worker *worker = k1_worker_new(runtime, MAX_WAITING, err);
    int code = worker == NULL ? K1_EXIT_USER : listen_and_loop(s, runtime, worker, base, auth, log, err);
    event_base_free(base);
    return code;
}

static int run(const settings *s, const k1_auth *auth, const k1_log *log) {
    k1_err err = {""};
    k1_runtime runtime = {0};
    signal(SIGPIPE, SIG_IGN);
    bound_files();
    int code = serve(s, &runtime, auth, log, &err);
    k1_runtime_close(&runtime);
    libevent_global_shutdown();
    if (code != K1_EXIT_OK) {
        fprintf(stderr, "k1-inferd: %s\n", err.text);
    }
    return code;
}

int main(int argc, char **argv) {
    settings s = {0};
    const k1_option table[] = {
        {"model", 0, K1_OPTION_TEXT, &s.model, NULL, 0, 0, "FILE", "the model, a GGUF file", NULL},
        {"n_ctx", 0, K1_OPTION_U32, &s.n_ctx, "2048", 8, 1 << 20, "N", "tokens of prompt and answer together", NULL},
        {"n_batch", 0, K1_OPTION_U32, &s.n_batch, "512", 1, 1 << 16, "N", "prompt tokens taken at a time", NULL},
        {"n_threads", 0, K1_OPTION_U32, &s.n_threads, NULL, 1, K1_MAX_THREADS, "N",
         "compute threads (default: one per physical core)", NULL},
        {"cpu_list", 0, K1_OPTION_TEXT, &s.cpu_list, NULL, 0, 0, "LIST", "CPUs to compute on, such as 0,2-3", NULL},
        {"host", 0, K1_OPTION_TEXT, &s.host, "127.0.0.1", 0, 0, "ADDRESS", "address to listen on", NULL},
        {"port", 0, K1_OPTION_U32, &s.port, "8080", 0, 65535, "N", "port to listen on; 0: any free one", NULL},
        {"api_token_file", 0, K1_OPTION_TEXT, &s.api_token_file, NULL, 0, 0, "FILE",
         "tokens that clients must show, one a line", NULL},
        {"insecure", 0, K1_OPTION_FLAG, &s.insecure, NULL, 0, 0, "", "serve others without a token", NULL},
        {"local", 0, K1_OPTION_FLAG, &s.local, NULL, 0, 0, "", "one node, no cluster", NULL},
        {"log_level", 0, K1_OPTION_TEXT, &s.log_level, "info", 0, 0, "LEVEL", "error, warn, info or debug", NULL},
        {"config", 0, K1_OPTION_TEXT, &s.config, NULL, 0, 0, "FILE",
         "options as \"name = value\" lines; the command line wins", NULL},
    };
    k1_options options = {
        "k1-inferd", "--model FILE [options]",     "Answer OpenAI-compatible completions from a model, over HTTP.",
        table,       sizeof table / sizeof *table, &s.config};
    k1_err err;
    k1_auth auth = {0};
    k1_log log = {.fd = STDERR_FILENO, .level = K1_LOG_INFO};
    int code = K1_EXIT_OK;
    if (sodium_init() < 0) {
        fprintf(stderr, "k1-inferd: libsodium does not start\n");
        return K1_EXIT_BUG;
    }
    int stop = read_settings(&s, argc, argv, &options, &auth, &log, &err);
    if (stop < 0) {
        fprintf(stderr, "k1-inferd: %s\n", err.text);
        code = K1_EXIT_USER;
    } else if (stop == 0) {
        code = run(&s, &auth, &log);
    }
    k1_options_free(&options);
    return code;
}
