#include "worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "k1/ring.h"
#include "stage.h"

enum {
    REPLY_RING = 1024, /* replies the event thread may lag behind */
    RX_FRAMES = 16,
    TX_FRAMES = 16,
    STACK_BYTES = 4 << 20,
};

/* What the event thread wants of the engine besides jobs and messages. */
typedef struct orders {
    pthread_mutex_t lock;
    bool plan_given, lost;
    k1_plan plan;
    uint64_t session;
    uint32_t epoch;
    char why[K1_RPC_TEXT + 1];
} orders;

struct k1_worker {
    k1_worker_config config;
    k1_ring jobs;
    k1_ring replies;
    k1_ring in, out; /* frames */
    k1_frames rx, tx;
    orders orders;
    atomic_bool ordered;
    atomic_bool starved; /* the engine waits for a frame of tx */
    int job_fd;          /* wakes the worker */
    int reply_fd;        /* wakes the event thread */
    atomic_bool quit;
    atomic_uint cancelled[K1_MAX_SLOTS]; /* the slot_gen of the last cancel that came; 0: none since the plan */
    atomic_ullong n_computed, n_dropped; /* batches */
    pthread_t thread;
    bool joinable;
    int start_failed; /* set by the thread before its first wake */
    k1_err start_err;
    /* the engine's own */
    k1_stage *stage;
    k1_job *job;      /* taken from the ring, not begun yet */
    k1_frame *frame;  /* likewise */
    bool sync_wanted; /* the plan was made, rank 0 does not know yet */
    orders taken;
    k1_err plan_err;
    bool plan_failed;
    /* the event thread's own */
    k1_job *first, *last; /* waiting */
    size_t n_waiting;
    size_t n_running;
};

static void wake(int fd) {
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);
    (void)written; /* a full counter wakes just as well */
}

/* Wait for a wake; a non-blocking fd returns at once. */
static void take_wakes(int fd) {
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

/* ---- the engine's thread ---- */

static void push_reply(k1_worker *worker, k1_reply *reply) {
    while (!k1_ring_push(&worker->replies, reply)) {
        wake(worker->reply_fd);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the event thread lags: rare, and it never waits */
    }
    wake(worker->reply_fd);
}

/* NULL: out of memory. */
static k1_reply *make_reply(k1_job *job, k1_reply_kind kind, const char *text, size_t n) {
    k1_reply *r = malloc(sizeof *r + n + 1);
    if (r != NULL) {
        *r = (k1_reply){.job = job, .kind = kind, .n = n};
        memcpy(r->text, text, n);
        r->text[n] = '\0';
    }
    return r;
}

/* The last reply must arrive, so memory for it is tried until it comes. */
static void reply(void *arg, k1_job *job, k1_reply_kind kind, const char *text, size_t n) {
    k1_reply *r;
    while ((r = make_reply(job, kind, text, n)) == NULL) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    push_reply(arg, r);
}

static k1_frame *take_tx(void *arg) {
    k1_worker *worker = arg;
    k1_frame *frame = k1_frames_take(&worker->tx);
    if (frame == NULL) {
        atomic_store(&worker->starved, true);
        atomic_thread_fence(memory_order_seq_cst); /* pairs with the one in k1_worker_sent: one side sees the other */
        frame = k1_frames_take(&worker->tx);       /* one may have come in between, and nobody would tell */
    }
    return frame;
}

static void send_frame(void *arg, k1_frame *frame) {
    k1_worker *worker = arg;
    k1_ring_push(&worker->out, frame); /* holds all frames of tx */
    wake(worker->reply_fd);
}

static bool is_cancelled(void *arg, uint32_t slot, uint32_t slot_gen) {
    return atomic_load(&((k1_worker *)arg)->cancelled[slot]) == slot_gen;
}

static void count_batch(void *arg, bool computed) {
    k1_worker *worker = arg;
    atomic_fetch_add_explicit(computed ? &worker->n_computed : &worker->n_dropped, 1, memory_order_relaxed);
}

static bool take_orders(k1_worker *worker) {
    if (!atomic_exchange(&worker->ordered, false)) {
        return false;
    }
    pthread_mutex_lock(&worker->orders.lock);
    worker->taken = worker->orders;
    worker->orders.plan_given = worker->orders.lost = false;
    pthread_mutex_unlock(&worker->orders.lock);
    const orders *o = &worker->taken;
    if (o->lost) {
        k1_stage_end(worker->stage, K1_REPLY_FAILED, o->why);
    }
    if (o->plan_given) {
        k1_stage_end(worker->stage, K1_REPLY_FAILED, "the layers were dealt out anew; try again");
        worker->plan_failed =
            k1_stage_plan(worker->stage, &o->plan, worker->config.rank, o->session, o->epoch, &worker->plan_err) != 0;
        worker->sync_wanted = true;
    }
    return true;
}

static bool give_sync(k1_worker *worker) {
    if (!worker->sync_wanted || !k1_stage_send_sync(worker->stage, worker->taken.session, worker->taken.epoch,
                                                    worker->plan_failed ? &worker->plan_err : NULL)) {
        return false;
    }
    worker->sync_wanted = false;
    return true;
}

static bool take_message(k1_worker *worker) {
    if (worker->frame == NULL) {
        worker->frame = k1_ring_pop(&worker->in);
    }
    if (worker->frame == NULL || !k1_stage_take_frame(worker->stage, worker->frame)) {
        return false;
    }
    k1_frames_give(&worker->rx, worker->frame);
    worker->frame = NULL;
    wake(worker->reply_fd);
    return true;
}

static bool take_job(k1_worker *worker) {
    if (worker->job == NULL) {
        worker->job = k1_ring_pop(&worker->jobs);
    }
    if (worker->job == NULL) {
        return false;
    }
    if (atomic_load(&worker->quit) || atomic_load_explicit(&worker->job->cancelled, memory_order_relaxed)) {
        reply(worker, worker->job, K1_REPLY_CANCELLED, "", 0);
    } else if (!k1_stage_begin(worker->stage, worker->job)) {
        return false;
    }
    worker->job = NULL;
    return true;
}

static int start_engine(k1_worker *worker, k1_err *err) {
    const k1_worker_config *config = &worker->config;
    const k1_runtime *runtime = config->runtime;
    k1_stage_ways ways = {worker, reply, take_tx, send_frame, is_cancelled, count_batch};
    if (k1_runtime_start(config->runtime, err) != 0) {
        return -1;
    }
    worker->stage = k1_stage_new(config->runtime, &ways);
    if (worker->stage == NULL) {
        return k1_fail(err, "out of memory");
    }
    if (config->n_ranks > 1) {
        return 0;
    }
    k1_plan alone = {
        1, runtime->n_ctx, runtime->n_batch, config->n_slots, {{0, k1_model_hparams(runtime->model)->n_layer}}};
    return k1_stage_plan(worker->stage, &alone, 0, 0, 0, err);
}

static void *worker_main(void *arg) {
    k1_worker *worker = arg;
    worker->start_failed = start_engine(worker, &worker->start_err);
    wake(worker->reply_fd);
    while (worker->start_failed == 0) {
        if (take_orders(worker) || give_sync(worker) || (!atomic_load(&worker->quit) && take_message(worker)) ||
            take_job(worker)) {
            continue;
        }
        if (atomic_load(&worker->quit)) {
            k1_stage_end(worker->stage, K1_REPLY_CANCELLED, "");
            break;
        }
        if (!k1_stage_step(worker->stage)) {
            take_wakes(worker->job_fd);
        }
    }
    k1_stage_free(worker->stage);
    k1_runtime_stop(worker->config.runtime);
    return NULL;
}

/* ---- the event thread ---- */

static int start_thread(k1_worker *worker, k1_err *err) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int failed = pthread_create(&worker->thread, &attr, worker_main, worker);
    pthread_attr_destroy(&attr);
    if (failed != 0) {
        return k1_fail(err, "cannot start the engine's thread: %s", strerror(failed));
    }
    worker->joinable = true;
    take_wakes(worker->reply_fd);
    if (worker->start_failed != 0) {
        *err = worker->start_err;
        return -1;
    }
    return 0;
}

static size_t power_of_two(size_t least) {
    size_t n = 1;
    while (n < least) {
        n *= 2;
    }
    return n;
}

static int make_frames(k1_worker *worker, k1_err *err) {
    if (worker->config.n_ranks == 1) {
        return 0;
    }
    size_t payload = k1_forward_layout(K1_RPC_MAX_TOKENS, k1_model_hparams(worker->config.runtime->model)->n_embd).size;
    return k1_frames_init(&worker->rx, RX_FRAMES, payload, err) != 0
               ? -1
               : k1_frames_init(&worker->tx, TX_FRAMES, payload, err);
}

static int open_ways(k1_worker *worker, k1_err *err) {
    worker->job_fd = eventfd(0, EFD_CLOEXEC);
    worker->reply_fd = eventfd(0, EFD_CLOEXEC);
    if (worker->job_fd < 0 || worker->reply_fd < 0) {
        return k1_fail(err, "cannot make an eventfd: %s", strerror(errno));
    }
    if (k1_ring_init(&worker->jobs, power_of_two(worker->config.n_slots)) != 0 ||
        k1_ring_init(&worker->replies, REPLY_RING) != 0 || k1_ring_init(&worker->in, RX_FRAMES) != 0 ||
        k1_ring_init(&worker->out, TX_FRAMES) != 0) {
        return k1_fail(err, "out of memory");
    }
    return make_frames(worker, err);
}

k1_worker *k1_worker_new(const k1_worker_config *config, k1_err *err) {
    k1_worker *worker = aligned_alloc(_Alignof(k1_worker), sizeof *worker);
    if (worker == NULL) {
        k1_fail(err, "out of memory");
        return NULL;
    }
    memset(worker, 0, sizeof *worker);
    worker->config = *config;
    worker->job_fd = worker->reply_fd = -1;
    pthread_mutex_init(&worker->orders.lock, NULL);
    if (open_ways(worker, err) != 0 || start_thread(worker, err) != 0) {
        k1_worker_free(worker);
        return NULL;
    }
    return worker;
}

void k1_job_clear(k1_job *job) {
    k1_request_end(&job->request);
    k1_request_params_free(&job->params);
}

int k1_worker_fd(const k1_worker *worker) { return worker->reply_fd; }
size_t k1_worker_n_waiting(const k1_worker *worker) { return worker->n_waiting; }
size_t k1_worker_n_running(const k1_worker *worker) { return worker->n_running; }

k1_batches k1_worker_batches(const k1_worker *worker) {
    return (k1_batches){atomic_load(&worker->n_computed), atomic_load(&worker->n_dropped)};
}

k1_frames *k1_worker_rx(k1_worker *worker) { return &worker->rx; }

/* Give waiting jobs to the worker as long as it has a free slot. */
static void feed(k1_worker *worker) {
    while (worker->first != NULL && worker->n_running < worker->config.n_slots) {
        k1_job *job = worker->first;
        if (!k1_ring_push(&worker->jobs, job)) {
            return;
        }
        worker->first = job->next;
        if (worker->first == NULL) {
            worker->last = NULL;
        }
        job->started = true;
        worker->n_waiting--;
        worker->n_running++;
        wake(worker->job_fd);
    }
}

bool k1_worker_submit(k1_worker *worker, k1_job *job) {
    if (worker->n_waiting >= worker->config.max_waiting && worker->n_running >= worker->config.n_slots) {
        return false;
    }
    job->next = NULL;
    if (worker->last != NULL) {
        worker->last->next = job;
    } else {
        worker->first = job;
    }
    worker->last = job;
    worker->n_waiting++;
    feed(worker);
    return true;
}

/* Take a waiting job out of the queue. */
static void unlink_job(k1_worker *worker, k1_job *job) {
    k1_job *before = NULL;
    for (k1_job *at = worker->first; at != job; at = at->next) {
        before = at;
    }
    if (before == NULL) {
        worker->first = job->next;
    } else {
        before->next = job->next;
    }
    if (worker->last == job) {
        worker->last = before;
    }
    worker->n_waiting--;
}

void k1_worker_cancel(k1_worker *worker, k1_job *job) {
    atomic_store_explicit(&job->cancelled, true, memory_order_relaxed);
    if (job->started) {
        wake(worker->job_fd);
    } else {
        unlink_job(worker, job);
        job->on_reply(job, &(k1_reply){.job = job, .kind = K1_REPLY_CANCELLED});
    }
}

static void hand_out(k1_worker *worker) {
    k1_reply *r;
    k1_frame *frame;
    while ((r = k1_ring_pop(&worker->replies)) != NULL) {
        if (r->kind != K1_REPLY_TEXT) {
            worker->n_running--;
        }
        r->job->on_reply(r->job, r);
        free(r);
    }
    while ((frame = k1_ring_pop(&worker->out)) != NULL) {
        worker->config.on_frame(worker->config.arg, frame);
    }
}

void k1_worker_poll(k1_worker *worker) {
    take_wakes(worker->reply_fd);
    hand_out(worker);
    if (worker->config.n_ranks > 1) {
        worker->config.on_room(worker->config.arg);
    }
    feed(worker);
}

/* A cancel overtakes the batches that wait before it: the engine computes none of them. */
static void note_cancel(k1_worker *worker, const k1_header *h) {
    const orders *o = &worker->orders; /* no other thread writes these two */
    if (h->session == o->session && h->plan_epoch == o->epoch && h->slot < K1_MAX_SLOTS) {
        atomic_store(&worker->cancelled[h->slot], h->slot_gen);
    }
}

void k1_worker_take_frame(k1_worker *worker, k1_frame *frame) {
    if (frame->header.msg_type == K1_MSG_CANCEL) {
        note_cancel(worker, &frame->header);
    }
    k1_ring_push(&worker->in, frame); /* holds all frames of rx */
    wake(worker->job_fd);
}

void k1_worker_sent(k1_worker *worker, k1_frame *frame) {
    k1_frames_give(&worker->tx, frame);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_exchange(&worker->starved, false)) {
        wake(worker->job_fd);
    }
}

void k1_worker_plan(k1_worker *worker, const k1_plan *plan, uint64_t session, uint32_t epoch) {
    for (uint32_t i = 0; i < K1_MAX_SLOTS; i++) {
        atomic_store(&worker->cancelled[i], 0); /* a new session counts slot_gen anew */
    }
    pthread_mutex_lock(&worker->orders.lock);
    worker->orders.plan_given = true;
    worker->orders.plan = *plan;
    worker->orders.session = session;
    worker->orders.epoch = epoch;
    pthread_mutex_unlock(&worker->orders.lock);
    atomic_store(&worker->ordered, true);
    wake(worker->job_fd);
}

void k1_worker_lost(k1_worker *worker, const char *why) {
    pthread_mutex_lock(&worker->orders.lock);
    worker->orders.plan_given = false;
    worker->orders.lost = true;
    strncpy(worker->orders.why, why, K1_RPC_TEXT);
    pthread_mutex_unlock(&worker->orders.lock);
    atomic_store(&worker->ordered, true);
    wake(worker->job_fd);
    while (worker->first != NULL) { /* those that wait would wait for nodes */
        k1_job *job = worker->first;
        k1_reply *r = make_reply(job, K1_REPLY_UNAVAILABLE, why, strnlen(why, K1_RPC_TEXT));
        unlink_job(worker, job);
        if (r == NULL) {
            job->on_reply(job, &(k1_reply){.job = job, .kind = K1_REPLY_UNAVAILABLE});
            continue;
        }
        job->on_reply(job, r);
        free(r);
    }
}

void k1_worker_free(k1_worker *worker) {
    atomic_store(&worker->quit, true);
    while (worker->first != NULL) {
        k1_worker_cancel(worker, worker->first);
    }
    if (worker->joinable) {
        wake(worker->job_fd);
        while (worker->n_running > 0) {
            take_wakes(worker->reply_fd);
            hand_out(worker);
        }
        pthread_join(worker->thread, NULL);
    }
    k1_frames_free(&worker->rx);
    k1_frames_free(&worker->tx);
    k1_ring_free(&worker->jobs);
    k1_ring_free(&worker->replies);
    k1_ring_free(&worker->in);
    k1_ring_free(&worker->out);
    pthread_mutex_destroy(&worker->orders.lock);
    if (worker->job_fd >= 0) {
        close(worker->job_fd);
    }
    if (worker->reply_fd >= 0) {
        close(worker->reply_fd);
    }
    free(worker);
}
