/* k1-inferd: answers completions from one model. The main thread is the event thread; the engine has its own. */
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "auth.h"
#include "cluster.h"
#include "http.h"
#include "k1/log.h"
#include "k1/options.h"
#include "k1/runtime.h"
#include "stage.h"
#include "worker.h"

enum {
    MAX_WAITING = 32,
    /* Those whose requests run or wait, and others. It bounds what unfinished bodies take: 36 MiB at n_ctx 2048. */
    MAX_CLIENTS = K1_MAX_SLOTS + MAX_WAITING + 32,
    /* Links (two for each rank), those in their handshake (two for each and 8), and what everything else opens. */
    OTHER_FILES = 4 * K1_RPC_MAX_RANKS + 8 + 24,
    MAX_FILES = MAX_CLIENTS + OTHER_FILES,
};

typedef struct settings {
    char *model, *cpu_list, *host, *config, *api_token_file, *log_level;
    char *nodes, *rpc_master, *cluster_key_file;
    uint32_t n_ctx, n_batch, n_threads, n_parallel, port, rpc_rank;
    float timeout_scale;
    bool local, insecure, rank_given;
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

/* Each kind of descriptor is bounded by itself, so that none can use up what another needs: all must fit together. */
static int need_files(k1_err *err) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return k1_fail(err, "cannot tell how many descriptors are allowed: %s", strerror(errno));
    }
    if (limit.rlim_cur >= MAX_FILES) {
        return 0;
    }
    rlim_t allowed = limit.rlim_max;
    limit.rlim_cur = MAX_FILES;
    return allowed >= MAX_FILES && setrlimit(RLIMIT_NOFILE, &limit) == 0
               ? 0
               : k1_fail(err, "%llu open files are allowed, %d are needed: raise ulimit -Hn",
                         (unsigned long long)allowed, MAX_FILES);
}

static const char *timeout_scale(void) {
    const char *text = getenv("K1_TIMEOUT_SCALE");
    return text == NULL || text[0] == '\0' ? "1" : text;
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

/* What a running daemon consists of; freed in the order of node_free. */
typedef struct node {
    const settings *settings;
    const k1_log *log;
    k1_runtime runtime;
    k1_cluster *cluster; /* NULL: on its own */
    struct event_base *base;
    k1_worker *worker;
    k1_http *http;
} node;

static void node_free(node *n) {
    if (n->cluster != NULL) {
        k1_cluster_stop(n->cluster);
    }
    if (n->worker != NULL) {
        k1_worker_free(n->worker); /* its last replies go through http */
    }
    if (n->http != NULL) {
        k1_http_free(n->http);
    }
    k1_cluster_free(n->cluster);
    k1_runtime_close(&n->runtime);
    if (n->base != NULL) {
        event_base_free(n->base);
    }
    libevent_global_shutdown();
}

static int make_cluster(node *n, k1_err *err) {
    const settings *s = n->settings;
    if (s->local || (s->nodes == NULL && s->rpc_master == NULL && !s->rank_given)) {
        return 0;
    }
    if (s->nodes == NULL) {
        return k1_fail(err, "nodes: missing; give the addresses of all nodes by rank, or --local to run alone");
    }
    if (!s->rank_given) {
        return k1_fail(err, "rpc_rank: missing; say which of nodes this one is, or --local to run alone");
    }
    k1_cluster_config config = {.nodes = s->nodes,
                                .master = s->rpc_master,
                                .key_file = s->cluster_key_file,
                                .rank = s->rpc_rank,
                                .n_slots = s->n_parallel,
                                .timeout_scale = (double)s->timeout_scale,
                                .log = n->log};
    n->cluster = k1_cluster_new(&config, err);
    return n->cluster == NULL ? -1 : 0;
}

static int make_engine(node *n, k1_err *err) {
    const settings *s = n->settings;
    k1_runtime_config config = {.model = s->model,
                                .n_ctx = s->n_ctx,
                                .n_batch = s->n_batch,
                                .n_threads = s->n_threads,
                                .cpu_list = s->cpu_list,
                                .no_seq = true};
    if (k1_runtime_open(&n->runtime, &config, err) != 0) {
        return -1;
    }
    k1_worker_config worker = {.runtime = &n->runtime,
                               .max_waiting = MAX_WAITING,
                               .n_slots = s->n_parallel,
                               .rank = n->cluster == NULL ? 0 : s->rpc_rank,
                               .n_ranks = n->cluster == NULL ? 1 : k1_cluster_n_ranks(n->cluster),
                               .arg = n->cluster,
                               .on_frame = k1_cluster_send,
                               .on_room = k1_cluster_resume};
    n->worker = k1_worker_new(&worker, err);
    return n->worker == NULL ? -1 : 0;
}

static int join_cluster(node *n, k1_err *err) {
    uint8_t digest[32];
    char hex[2 * sizeof digest + 1];
    if (n->cluster == NULL) {
        return 0;
    }
    if (k1_gguf_sha256(n->runtime.gguf, digest) != 0) {
        return k1_fail(err, "%s: out of memory while hashing", n->settings->model);
    }
    sodium_bin2hex(hex, sizeof hex, digest, sizeof digest);
    k1_log_line(n->log, K1_LOG_INFO, "joining", "nodes=%s model_sha256=%.12s", n->settings->nodes, hex);
    return k1_cluster_start(n->cluster, n->base, &n->runtime, n->worker, digest, err);
}

static int open_http(node *n, const k1_auth *auth, k1_err *err) {
    const settings *s = n->settings;
    const k1_runtime *runtime = &n->runtime;
    k1_http_config config = {.host = s->host,
                             .port = (uint16_t)s->port,
                             .max_clients = MAX_CLIENTS,
                             .auth = auth,
                             .log = n->log,
                             .worker = n->worker,
                             .cluster = n->cluster,
                             .runtime = runtime};
    n->http = k1_http_new(n->base, &config, err);
    if (n->http == NULL) {
        return -1;
    }
    warn_of_long_context(runtime, n->log);
    k1_log_line(n->log, K1_LOG_INFO, "listening", "host=%s port=%u model=%s n_ctx=%u n_threads=%u pinned=%s kernels=%s",
                s->host, k1_http_port(n->http), runtime->name, runtime->n_ctx, runtime->n_threads,
                runtime->pinned ? "yes" : "no", runtime->kernels->name);
    return 0;
}

static int serve(node *n, const k1_auth *auth, k1_err *err) {
    n->base = event_base_new();
    if (n->base == NULL) {
        k1_fail(err, "cannot make an event loop: %s", strerror(errno));
        return K1_EXIT_BUG;
    }
    if (make_cluster(n, err) != 0 || make_engine(n, err) != 0 || join_cluster(n, err) != 0 ||
        open_http(n, auth, err) != 0) {
        return K1_EXIT_USER;
    }
    return loop(n->base, n->http, n->log, err) != 0 ? K1_EXIT_BUG : K1_EXIT_OK;
}

static int run(const settings *s, const k1_auth *auth, k1_log *log) {
    k1_err err = {""};
    node n = {.settings = s, .log = log};
    if (s->rank_given && !s->local) {
        snprintf(log->who, sizeof log->who, "rank=%u ", s->rpc_rank);
    }
    signal(SIGPIPE, SIG_IGN);
    int code = need_files(&err) == 0 ? serve(&n, auth, &err) : K1_EXIT_USER;
    node_free(&n);
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
        {"n_parallel", 0, K1_OPTION_U32, &s.n_parallel, "1", 1, K1_MAX_SLOTS, "N",
         "requests that run at once, each with a cache of n_ctx tokens", NULL},
        {"nodes", 0, K1_OPTION_TEXT, &s.nodes, NULL, 0, 0, "LIST",
         "addresses of the cluster's nodes by rank, with commas: HOST or HOST:PORT (8090)", NULL},
        {"rpc_rank", 0, K1_OPTION_U32, &s.rpc_rank, NULL, 0, K1_RPC_MAX_RANKS - 1, "N", "which of nodes this one is",
         &s.rank_given},
        {"rpc_master", 0, K1_OPTION_TEXT, &s.rpc_master, NULL, 0, 0, "ADDRESS", "rank 0's address, as in nodes", NULL},
        {"cluster_key_file", 0, K1_OPTION_TEXT, &s.cluster_key_file, NULL, 0, 0, "FILE",
         "the key that all nodes share, 64 hex digits", NULL},
        {"timeout_scale", 0, K1_OPTION_FLOAT, &s.timeout_scale, timeout_scale(), 0.1, 1000, "F",
         "factor on the time-outs between nodes, for slow machines (default: $K1_TIMEOUT_SCALE, else 1)", NULL},
        {"local", 0, K1_OPTION_FLAG, &s.local, NULL, 0, 0, "", "run alone, whatever nodes says", NULL},
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
