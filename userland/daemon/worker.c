#include "worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "k1/ring.h"

enum {
    SLOTS = 1,         /* jobs the worker has at once; its job ring never holds more */
    JOB_RING = 2,      /* a power of two, at least SLOTS */
    REPLY_RING = 1024, /* replies the event thread may lag behind */
    STACK_BYTES = 4 << 20,
};

struct k1_worker {
    k1_ring jobs;
    k1_ring replies;
    int job_fd;   /* wakes the worker */
    int reply_fd; /* wakes the event thread */
    atomic_bool quit;
    k1_runtime *runtime;
    pthread_t thread;
    bool joinable;
    int start_failed; /* set by the thread before its first wake */
    k1_err start_err;
    /* the event thread's own */
    k1_job *first, *last; /* waiting */
    size_t n_waiting, max_waiting;
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

/* ---- the worker's thread ---- */

static void push_reply(k1_worker *worker, k1_reply *reply) {
    while (!k1_ring_push(&worker->replies, reply)) {
        wake(worker->reply_fd);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the event thread lags: rare, and it never waits */
    }
    wake(worker->reply_fd);
}

/* The last reply must arrive, so memory for it is tried until it comes. */
static void reply(k1_worker *worker, k1_job *job, k1_reply_kind kind, const char *text, size_t n) {
    k1_reply *r;
    while ((r = malloc(sizeof *r + n + 1)) == NULL) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    *r = (k1_reply){.job = job, .kind = kind, .n = n};
    memcpy(r->text, text, n);
    r->text[n] = '\0';
    push_reply(worker, r);
}

static void reply_error(k1_worker *worker, k1_job *job, k1_reply_kind kind, const k1_err *err) {
    reply(worker, job, kind, err->text, strlen(err->text));
}

static bool is_cancelled(k1_worker *worker, k1_job *job) {
    return atomic_load_explicit(&job->cancelled, memory_order_relaxed) ||
           atomic_load_explicit(&worker->quit, memory_order_relaxed);
}

/* Run a request to its end, looking for a cancellation between any two steps. */
static void run_steps(k1_worker *worker, k1_job *job, k1_text *out) {
    k1_err err;
    while (job->request.finish == K1_FINISH_NONE) {
        if (is_cancelled(worker, job)) {
            reply(worker, job, K1_REPLY_CANCELLED, "", 0);
            return;
        }
        out->n = 0;
        if (k1_runtime_step(worker->runtime, &job->request, out, &err) != 0) {
            reply_error(worker, job, K1_REPLY_FAILED, &err);
            return;
        }
        if (out->n > 0) {
            reply(worker, job, K1_REPLY_TEXT, out->data, out->n);
        }
    }
    reply(worker, job, K1_REPLY_DONE, "", 0);
}

static void run_job(k1_worker *worker, k1_job *job, k1_text *out) {
    k1_err err;
    const k1_runtime *runtime = worker->runtime;
    if (is_cancelled(worker, job)) {
        reply(worker, job, K1_REPLY_CANCELLED, "", 0);
    } else if (k1_request_begin(&job->request, runtime->tokenizer, &job->params, runtime->n_ctx, &err) != 0) {
        reply_error(worker, job, K1_REPLY_REFUSED, &err);
    } else {
        run_steps(worker, job, out);
    }
}

static void *worker_main(void *arg) {
    k1_worker *worker = arg;
    worker->start_failed = k1_runtime_start(worker->runtime, &worker->start_err);
    wake(worker->reply_fd);
    if (worker->start_failed != 0) {
        return NULL;
    }
    k1_text out = {0};
    for (;;) {
        k1_job *job = k1_ring_pop(&worker->jobs);
        if (job != NULL) {
            run_job(worker, job, &out);
        } else if (atomic_load(&worker->quit)) {
            break;
        } else {
            take_wakes(worker->job_fd);
        }
    }
    free(out.data);
    k1_runtime_stop(worker->runtime);
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

static int open_ways(k1_worker *worker, k1_err *err) {
    worker->job_fd = eventfd(0, EFD_CLOEXEC);
    worker->reply_fd = eventfd(0, EFD_CLOEXEC);
    if (worker->job_fd < 0 || worker->reply_fd < 0) {
        return k1_fail(err, "cannot make an eventfd: %s", strerror(errno));
    }
    if (k1_ring_init(&worker->jobs, JOB_RING) != 0 || k1_ring_init(&worker->replies, REPLY_RING) != 0) {
        return k1_fail(err, "out of memory");
    }
    return 0;
}

k1_worker *k1_worker_new(k1_runtime *runtime, size_t max_waiting, k1_err *err) {
    k1_worker *worker = aligned_alloc(_Alignof(k1_worker), sizeof *worker);
    if (worker == NULL) {
        k1_fail(err, "out of memory");
        return NULL;
    }
    memset(worker, 0, sizeof *worker);
    worker->runtime = runtime;
    worker->max_waiting = max_waiting;
    worker->job_fd = worker->reply_fd = -1;
    atomic_init(&worker->quit, false);
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

/* Give waiting jobs to the worker as long as it has a free slot. */
static void feed(k1_worker *worker) {
    while (worker->first != NULL && worker->n_running < SLOTS) {
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
    if (worker->n_waiting >= worker->max_waiting && worker->n_running >= SLOTS) {
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
    if (!job->started) {
        unlink_job(worker, job);
        job->on_reply(job, &(k1_reply){.job = job, .kind = K1_REPLY_CANCELLED});
    }
}

static void hand_out(k1_worker *worker) {
    k1_reply *r;
    while ((r = k1_ring_pop(&worker->replies)) != NULL) {
        if (r->kind != K1_REPLY_TEXT) {
            worker->n_running--;
        }
        r->job->on_reply(r->job, r);
        free(r);
    }
}

void k1_worker_poll(k1_worker *worker) {
    take_wakes(worker->reply_fd);
    hand_out(worker);
    feed(worker);
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
    k1_ring_free(&worker->jobs);
    k1_ring_free(&worker->replies);
    if (worker->job_fd >= 0) {
        close(worker->job_fd);
    }
    if (worker->reply_fd >= 0) {
        close(worker->reply_fd);
    }
    free(worker);
}
