#include "cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum state { WAITING, PLANNING, READY } state;

enum { PAUSE_SECONDS = 1, MAX_PAUSE_SECONDS = 60, SYNC_SECONDS = 10, CONTROL_FRAMES = 64 };

struct k1_cluster {
    k1_cluster_config config;
    char *nodes; /* the list, cut up */
    const char *address[K1_RPC_MAX_RANKS];
    uint32_t n_ranks;
    uint8_t key[K1_RPC_KEY];
    k1_rpc *rpc;
    k1_runtime *runtime;
    k1_worker *worker;
    k1_frames control; /* taken and given back here */
    struct event *timer;
    int pause;   /* seconds until the next plan after one that failed */
    state state; /* rank 0's */
    k1_plan plan;
    uint32_t epoch;
    bool synced[K1_RPC_MAX_RANKS];
    k1_frame *sync; /* the engine's, until the links it promises stand */
    char why[K1_RPC_TEXT + 1];
    char missing[K1_RPC_TEXT + 64];
};

/* ---- configuration ---- */

static int cut_nodes(k1_cluster *c, k1_err *err) {
    char *rest = NULL;
    for (char *word = strtok_r(c->nodes, ", ", &rest); word != NULL; word = strtok_r(NULL, ", ", &rest)) {
        for (uint32_t r = 0; r < c->n_ranks; r++) {
            if (strcmp(c->address[r], word) == 0) {
                return k1_fail(err, "nodes: %s stands twice, as rank %" PRIu32 " and rank %" PRIu32, word, r,
                               c->n_ranks);
            }
        }
        if (c->n_ranks == K1_RPC_MAX_RANKS) {
            return k1_fail(err, "nodes: more than %d addresses", K1_RPC_MAX_RANKS);
        }
        c->address[c->n_ranks++] = word;
    }
    return 0;
}

static int check_config(const k1_cluster *c, k1_err *err) {
    const k1_cluster_config *config = &c->config;
    if (c->n_ranks < 2) {
        return k1_fail(err, "nodes: %" PRIu32 " address; a cluster has two or more, by rank and with commas between",
                       c->n_ranks);
    }
    if (config->rank >= c->n_ranks) {
        return k1_fail(err, "rpc_rank: %" PRIu32 ", but nodes has the ranks 0 to %" PRIu32, config->rank,
                       c->n_ranks - 1);
    }
    if (config->master != NULL && strcmp(config->master, c->address[0]) != 0) {
        return k1_fail(err, "rpc_master: %s is not the first of nodes, %s; rank 0 is the master", config->master,
                       c->address[0]);
    }
    if (config->key_file == NULL) {
        return k1_fail(err, "no cluster key: give --cluster_key_file FILE, the same 64 hex digits on every node (try: "
                            "openssl rand -hex 32)");
    }
    return 0;
}

k1_cluster *k1_cluster_new(const k1_cluster_config *config, k1_err *err) {
    k1_cluster *c = calloc(1, sizeof *c);
    char *nodes = strdup(config->nodes);
    if (c == NULL || nodes == NULL) {
        k1_fail(err, "out of memory");
        free(nodes);
        free(c);
        return NULL;
    }
    c->config = *config;
    c->pause = PAUSE_SECONDS;
    c->nodes = nodes;
    if (cut_nodes(c, err) != 0 || check_config(c, err) != 0 ||
        k1_cluster_key_load(config->key_file, c->key, err) != 0) {
        k1_cluster_free(c);
        return NULL;
    }
    return c;
}

uint32_t k1_cluster_n_ranks(const k1_cluster *c) { return c->n_ranks; }
bool k1_cluster_is_head(const k1_cluster *c) { return c->config.rank == 0; }

/* ---- messages of our own ---- */

/* To a rank; NULL: all control frames are under way, and the timer tries again. */
static k1_frame *control_frame(k1_cluster *c, k1_msg type, uint32_t to) {
    k1_frame *frame = k1_frames_take(&c->control);
    if (frame != NULL) {
        frame->to = to;
        frame->header.msg_type = (uint16_t)type;
        frame->header.plan_epoch = c->epoch;
        frame->header.session = k1_rpc_session(c->rpc);
    }
    return frame;
}

static void on_sent(void *arg, k1_frame *frame) {
    k1_cluster *c = arg;
    if (frame >= c->control.all && frame < c->control.all + c->control.n) {
        k1_frames_give(&c->control, frame);
    } else {
        k1_worker_sent(c->worker, frame);
    }
}

static void set_timer(k1_cluster *c, int seconds) {
    double wait = seconds * c->config.timeout_scale;
    struct timeval tv = {.tv_sec = (time_t)wait, .tv_usec = (suseconds_t)((wait - (double)(time_t)wait) * 1e6)};
    evtimer_add(c->timer, &tv);
}

/* ---- rank 0 ---- */

static bool all_up(const k1_cluster *c) {
    for (uint32_t r = 1; r < c->n_ranks; r++) {
        if (!k1_rpc_is_up(c->rpc, r)) {
            return false;
        }
    }
    return true;
}

static void make_plan(k1_cluster *c) {
    if (!all_up(c)) {
        return;
    }
    c->state = PLANNING;
    c->epoch++;
    memset(c->synced, 0, sizeof c->synced);
    k1_worker_plan(c->worker, &c->plan, k1_rpc_session(c->rpc), c->epoch);
    for (uint32_t r = 1; r < c->n_ranks; r++) {
        k1_frame *frame = control_frame(c, K1_MSG_PLAN, r);
        if (frame == NULL) { /* none left: links that do not take what is sent are lost soon */
            c->state = WAITING;
            set_timer(c, PAUSE_SECONDS);
            return;
        }
        k1_plan_encode(&c->plan, k1_frame_payload(frame));
        frame->header.payload_size = K1_PLAN_BYTES;
        k1_rpc_send(c->rpc, frame);
    }
    set_timer(c, SYNC_SECONDS);
}

/* Keep why requests cannot be served; a reason that stays is logged once. */
static void set_why(k1_cluster *c, const char *why) {
    if (strcmp(c->why, why) != 0) {
        snprintf(c->why, sizeof c->why, "%s", why);
        k1_log_line(c->config.log, K1_LOG_ERROR, "not_ready", "plan=%" PRIu32 " reason=\"%s\"", c->epoch, why);
    }
}

/* A plan that fails again is made again, but ever more seldom. */
static void lose(k1_cluster *c, const char *why) {
    set_why(c, why);
    c->state = WAITING;
    k1_worker_lost(c->worker, why);
    set_timer(c, c->pause);
    c->pause = 2 * c->pause < MAX_PAUSE_SECONDS ? 2 * c->pause : MAX_PAUSE_SECONDS;
}

static void describe_split(const k1_cluster *c, char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t r = 0; r < c->n_ranks && n < size; r++) {
        n += (size_t)snprintf(out + n, size - n, "%s%" PRIu32 "-%" PRIu32, r == 0 ? "" : ",", c->plan.layers[r].first,
                              c->plan.layers[r].end - 1);
    }
}

/* A rank has made its caches (while PLANNING), or cannot serve this plan (at any time). */
static void take_sync(k1_cluster *c, const k1_header *h, const char *error, size_t n) {
    bool failed = (h->flags & K1_FLAG_ERROR) != 0;
    if (h->session != k1_rpc_session(c->rpc) || h->plan_epoch != c->epoch || h->rank >= c->n_ranks ||
        c->state == WAITING || (c->state == READY && !failed)) {
        return;
    }
    if (failed) {
        char why[K1_RPC_TEXT + 1];
        snprintf(why, sizeof why, "rank %" PRIu32 " (%s): %.*s", h->rank, c->address[h->rank], (int)n, error);
        lose(c, why);
        return;
    }
    c->synced[h->rank] = true;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        if (!c->synced[r]) {
            return;
        }
    }
    char split[256];
    describe_split(c, split, sizeof split);
    c->state = READY;
    c->why[0] = '\0';
    c->pause = PAUSE_SECONDS;
    evtimer_del(c->timer);
    k1_log_line(c->config.log, K1_LOG_INFO, "ready", "plan=%" PRIu32 " ranks=%" PRIu32 " layers=%s", c->epoch,
                c->n_ranks, split);
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    k1_cluster *c = arg;
    (void)fd, (void)what;
    if (c->state != PLANNING) {
        make_plan(c);
        return;
    }
    /* Large caches take their time, and a rank that is gone is noticed by its link: wait on. */
    for (uint32_t r = 0; c->why[0] == '\0' && r < c->n_ranks; r++) {
        if (!c->synced[r]) {
            char why[K1_RPC_TEXT + 1];
            snprintf(why, sizeof why, "rank %" PRIu32 " (%s) has not answered the plan yet", r, c->address[r]);
            set_why(c, why);
        }
    }
    set_timer(c, SYNC_SECONDS);
}

/* ---- the other ranks ---- */

static bool links_stand(const k1_cluster *c) {
    uint32_t next = c->config.rank + 1;
    return k1_rpc_is_up(c->rpc, 0) && (next == c->n_ranks || k1_rpc_is_up(c->rpc, next));
}

static void release_sync(k1_cluster *c) {
    bool failed = c->sync != NULL && (c->sync->header.flags & K1_FLAG_ERROR) != 0;
    if (c->sync != NULL && (failed || links_stand(c))) {
        k1_frame *frame = c->sync;
        c->sync = NULL;
        k1_rpc_send(c->rpc, frame);
    }
}

static void drop_sync(k1_cluster *c) {
    if (c->sync != NULL) {
        k1_worker_sent(c->worker, c->sync);
        c->sync = NULL;
    }
}

/* Tell rank 0 that its plan cannot be served here, or not any more: a loss between two others it cannot see. */
static void report(k1_cluster *c, const char *why) {
    k1_frame *frame = k1_rpc_is_up(c->rpc, 0) ? control_frame(c, K1_MSG_SYNC, 0) : NULL;
    if (frame != NULL) {
        size_t n = strnlen(why, K1_RPC_TEXT);
        memcpy(k1_frame_payload(frame), why, n);
        frame->header.payload_size = (uint32_t)n;
        frame->header.flags = K1_FLAG_ERROR;
        k1_rpc_send(c->rpc, frame);
    }
}

static void take_plan(k1_cluster *c, const k1_frame *frame) {
    k1_err err;
    k1_plan plan;
    uint32_t n_layer = k1_model_hparams(c->runtime->model)->n_layer;
    int failed = k1_plan_decode(k1_frame_payload(frame), frame->header.payload_size, n_layer, &plan, &err);
    if (failed == 0 && plan.n_ranks != c->n_ranks) {
        failed = k1_fail(&err, "plan: %" PRIu32 " ranks, but nodes has %" PRIu32, plan.n_ranks, c->n_ranks);
    }
    c->epoch = frame->header.plan_epoch;
    if (failed != 0) {
        k1_log_line(c->config.log, K1_LOG_ERROR, "plan_refused", "plan=%" PRIu32 " reason=\"%s\"", c->epoch, err.text);
        report(c, err.text);
        return;
    }
    drop_sync(c);
    c->plan = plan;
    k1_log_line(c->config.log, K1_LOG_INFO, "plan", "plan=%" PRIu32 " layers=%" PRIu32 "-%" PRIu32, c->epoch,
                plan.layers[c->config.rank].first, plan.layers[c->config.rank].end - 1);
    k1_worker_plan(c->worker, &plan, frame->header.session, c->epoch);
}

/* ---- what comes in ---- */

static bool on_frame(void *arg, k1_frame *frame) {
    k1_cluster *c = arg;
    const k1_header *h = &frame->header;
    if (c->config.rank == 0 && h->msg_type == K1_MSG_SYNC) {
        take_sync(c, h, (const char *)k1_frame_payload(frame), h->payload_size);
    } else if (c->config.rank > 0 && h->rank == 0 && h->msg_type == K1_MSG_PLAN) {
        take_plan(c, frame);
    }
    k1_worker_take_frame(c->worker, frame); /* the engine gives all frames back */
    return true;
}

static void on_up(void *arg, uint32_t rank) {
    k1_cluster *c = arg;
    (void)rank;
    if (c->config.rank > 0) {
        release_sync(c);
    } else if (c->state == WAITING) {
        c->pause = PAUSE_SECONDS;
        make_plan(c);
    }
}

static void on_down(void *arg, uint32_t rank, const char *reason) {
    k1_cluster *c = arg;
    if (c->config.rank == 0) {
        if (c->state != WAITING) {
            lose(c, reason);
        }
    } else if (rank == 0) {
        drop_sync(c); /* a new rank 0 must not get it */
    } else if (rank == c->config.rank + 1) {
        report(c, reason);
    }
}

/* ---- what goes out ---- */

/* The ranks behind the next learn of a cancel by rank 0's own links too, ahead of the batches on their way. */
static void tell_cancel(k1_cluster *c, const k1_header *h) {
    for (uint32_t r = 2; r < c->n_ranks; r++) {
        k1_frame *frame = control_frame(c, K1_MSG_CANCEL, r);
        if (frame == NULL) {
            return; /* the cancel along the pipeline does all that must be done */
        }
        frame->header = *h;
        k1_rpc_send(c->rpc, frame);
    }
}

void k1_cluster_send(void *arg, k1_frame *frame) {
    k1_cluster *c = arg;
    if (c->rpc == NULL) {
        k1_worker_sent(c->worker, frame);
    } else if (frame->to == c->config.rank) { /* rank 0's own sync */
        frame->header.rank = c->config.rank;
        take_sync(c, &frame->header, (const char *)k1_frame_payload(frame), frame->header.payload_size);
        k1_worker_sent(c->worker, frame);
    } else if (frame->header.msg_type == K1_MSG_SYNC) {
        drop_sync(c);
        c->sync = frame;
        release_sync(c);
    } else {
        if (c->config.rank == 0 && frame->header.msg_type == K1_MSG_CANCEL) {
            tell_cancel(c, &frame->header);
        }
        k1_rpc_send(c->rpc, frame);
    }
}

void k1_cluster_resume(void *arg) {
    k1_cluster *c = arg;
    if (c->rpc != NULL) {
        k1_rpc_resume(c->rpc);
    }
}

/* ---- life ---- */

static int first_plan(k1_cluster *c, k1_err *err) {
    uint32_t ends[K1_RPC_MAX_RANKS];
    if (k1_split(c->runtime->model, c->n_ranks, ends, err) != 0) {
        return -1;
    }
    uint32_t n_batch = c->runtime->n_batch < K1_RPC_MAX_TOKENS ? c->runtime->n_batch : K1_RPC_MAX_TOKENS;
    c->plan = (k1_plan){c->n_ranks, c->runtime->n_ctx, n_batch, c->config.n_slots, {{0}}};
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        c->plan.layers[r].first = r == 0 ? 0 : ends[r - 1];
        c->plan.layers[r].end = ends[r];
    }
    return 0;
}

static k1_rpc_config rpc_config(k1_cluster *c, const uint8_t model_sha256[32]) {
    const k1_hparams *hp = k1_model_hparams(c->runtime->model);
    k1_rpc_config config = {
        .rank = c->config.rank,
        .n_ranks = c->n_ranks,
        .n_layer = hp->n_layer,
        .n_embd = hp->n_embd,
        .n_vocab = hp->n_vocab,
        .timeout_scale = c->config.timeout_scale,
        .log = c->config.log,
        .arg = c,
        .on_frame = on_frame,
        .on_up = on_up,
        .on_down = on_down,
        .on_sent = on_sent,
    };
    memcpy(config.address, c->address, sizeof config.address);
    memcpy(config.key, c->key, sizeof config.key);
    memcpy(config.model_sha256, model_sha256, sizeof config.model_sha256);
    return config;
}

int k1_cluster_start(k1_cluster *c, struct event_base *base, k1_runtime *runtime, k1_worker *worker,
                     const uint8_t model_sha256[32], k1_err *err) {
    c->runtime = runtime;
    c->worker = worker;
    c->timer = evtimer_new(base, on_timer, c);
    if (c->timer == NULL) {
        return k1_fail(err, "out of memory");
    }
    if ((c->config.rank == 0 && first_plan(c, err) != 0) ||
        k1_frames_init(&c->control, CONTROL_FRAMES, K1_RPC_TEXT, err) != 0) {
        return -1;
    }
    k1_rpc_config config = rpc_config(c, model_sha256);
    c->rpc = k1_rpc_new(base, &config, k1_worker_rx(worker), err);
    return c->rpc == NULL ? -1 : 0;
}

void k1_cluster_stop(k1_cluster *c) {
    if (c->rpc != NULL) {
        k1_rpc *rpc = c->rpc;
        c->rpc = NULL;
        k1_rpc_free(rpc, "the daemon stops");
    }
    drop_sync(c);
}

void k1_cluster_free(k1_cluster *c) {
    if (c == NULL) {
        return;
    }
    if (c->timer != NULL) {
        event_free(c->timer);
    }
    k1_frames_free(&c->control);
    explicit_bzero(c->key, sizeof c->key);
    free(c->nodes);
    free(c);
}

/* ---- what others see ---- */

const char *k1_cluster_why_not(k1_cluster *c) {
    if (c->config.rank > 0) {
        return "this node is not rank 0, which answers requests";
    }
    for (uint32_t r = 1; c->state == WAITING && r < c->n_ranks; r++) {
        if (!k1_rpc_is_up(c->rpc, r)) {
            const char *why = k1_rpc_why_down(c->rpc, r);
            if (strncmp(why, "rank ", 5) == 0) {
                return why;
            }
            snprintf(c->missing, sizeof c->missing, "rank %" PRIu32 " is missing: %s", r, why);
            return c->missing;
        }
    }
    return c->state == READY ? NULL : c->why[0] != '\0' ? c->why : "the nodes are making their caches";
}

k1_cluster_node k1_cluster_node_of(const k1_cluster *c, uint32_t rank) {
    bool self = rank == c->config.rank;
    return (k1_cluster_node){
        .address = c->address[rank],
        .self = self,
        .up = self || k1_rpc_is_up(c->rpc, rank),
        .first = c->epoch > 0 ? c->plan.layers[rank].first : 0,
        .end = c->epoch > 0 ? c->plan.layers[rank].end : 0,
        .rtt_us = self ? 0 : k1_rpc_rtt_us(c->rpc, rank),
    };
}
