/* Workers wait for the generation to change, the caller for pending to become zero. Both spin for a while first, since
 * a forward pass starts hundreds of tasks in a row, and then sleep on a futex. */
#include "k1/threadpool.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MAX_THREADS = 256,
    STACK_BYTES = 4 << 20,
    /* Turns of the spin loop: about 1 µs and 50 µs. */
    SPIN_MIN = 32,
    SPIN_MAX = 2048,
    /* From linux/futex.h, which musl-gcc does not see. */
    WAIT_PRIVATE = 128,
    WAKE_PRIVATE = 129,
};

typedef _Atomic(uint32_t) word;

typedef struct worker {
    k1_threadpool *pool;
    uint32_t index;
    pthread_t thread;
} worker;

struct k1_threadpool {
    /* What threads write at different times lies on different cache lines. */
    alignas(64) word generation;
    k1_task_fn *task;
    void *arg;
    bool stop;
    alignas(64) word pending;
    alignas(64) word asleep;        /* workers in futex wait */
    alignas(64) word caller_asleep; /* 0 or 1 */

    uint32_t n_threads;
    uint32_t n_started;
    uint32_t spin_max;
    uint32_t caller_spin;
    bool pinned;
    cpu_set_t caller_cpus; /* as they were before */
    worker workers[];
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__riscv)
    __asm__ volatile(".insn i 0x0F, 0, x0, x0, 0x010"); /* pause; a plain fence where Zihintpause is unknown */
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(word *at, uint32_t value) { (void)syscall(SYS_futex, at, WAIT_PRIVATE, value, NULL, NULL, 0); }

static void futex_wake(word *at) { (void)syscall(SYS_futex, at, WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

/* Spin while *at is value. True when it changed in time; the next spin is then longer, else shorter. */
static bool spin(word *at, uint32_t value, uint32_t *budget, uint32_t limit) {
    for (uint32_t turn = 0; turn < *budget && turn < limit; turn++) {
        if (atomic_load_explicit(at, memory_order_acquire) != value) {
            *budget = *budget < SPIN_MAX / 2 ? *budget * 2 : SPIN_MAX;
            return true;
        }
        relax();
    }
    *budget = *budget > 2 * SPIN_MIN ? *budget / 2 : SPIN_MIN;
    return false;
}

static void wait_for_task(k1_threadpool *pool, uint32_t seen, uint32_t *budget) {
    if (spin(&pool->generation, seen, budget, pool->spin_max)) {
        return;
    }
    atomic_fetch_add(&pool->asleep, 1);
    while (atomic_load(&pool->generation) == seen) {
        futex_wait(&pool->generation, seen);
    }
    atomic_fetch_sub(&pool->asleep, 1);
}

static void wait_for_workers(k1_threadpool *pool) {
    uint32_t left = atomic_load_explicit(&pool->pending, memory_order_acquire);
    while (left != 0) {
        if (!spin(&pool->pending, left, &pool->caller_spin, pool->spin_max)) {
            atomic_store(&pool->caller_asleep, 1);
            left = atomic_load(&pool->pending);
            if (left != 0) {
                futex_wait(&pool->pending, left);
            }
            atomic_store(&pool->caller_asleep, 0);
        }
        left = atomic_load_explicit(&pool->pending, memory_order_acquire);
    }
}

static void *work(void *arg) {
    const worker *self = arg;
    k1_threadpool *pool = self->pool;
    uint32_t budget = SPIN_MAX;
    for (uint32_t seen = 0;; seen++) {
        wait_for_task(pool, seen, &budget);
        if (pool->stop) {
            return NULL;
        }
        pool->task(pool->arg, self->index, pool->n_threads);
        if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->caller_asleep)) {
            futex_wake(&pool->pending);
        }
    }
}

/* Let the workers see what the caller has written. */
static void announce(k1_threadpool *pool) {
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->asleep) != 0) {
        futex_wake(&pool->generation);
    }
}

static int pin(pthread_t thread, uint32_t cpu, uint32_t index, k1_err *err) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu < CPU_SETSIZE) {
        CPU_SET(cpu, &set);
    }
    int code = pthread_setaffinity_np(thread, sizeof set, &set);
    if (code != 0) {
        return k1_fail(err,
                       "thread %" PRIu32 " cannot run on CPU %" PRIu32 ": %s; name CPUs that are online and allowed",
                       index, cpu, strerror(code));
    }
    return 0;
}

static int start_worker(k1_threadpool *pool, uint32_t index, const pthread_attr_t *attr, k1_err *err) {
    worker *self = &pool->workers[index];
    self->pool = pool;
    self->index = index;
    int code = pthread_create(&self->thread, attr, work, self);
    if (code != 0) {
        return k1_fail(err, "thread %" PRIu32 " of %" PRIu32 " cannot be started: %s; use fewer threads", index,
                       pool->n_threads, strerror(code));
    }
    pool->n_started++;
    return 0;
}

/* Start the workers with all signals blocked: those are for the event thread. */
static int start_workers(k1_threadpool *pool, k1_err *err) {
    sigset_t all, before;
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) {
        return k1_fail(err, "no memory for threads");
    }
    int result = pthread_attr_setstacksize(&attr, STACK_BYTES) == 0 ? 0 : k1_fail(err, "no stacks of 4 MiB");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 1; result == 0 && i < pool->n_threads; i++) {
        result = start_worker(pool, i, &attr, err);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return result;
}

static int pin_all(k1_threadpool *pool, const uint32_t *cpus, k1_err *err) {
    if (pthread_getaffinity_np(pthread_self(), sizeof pool->caller_cpus, &pool->caller_cpus) != 0) {
        return k1_fail(err, "the CPUs of the calling thread are not known; run without a list of CPUs");
    }
    for (uint32_t i = 1; i < pool->n_threads; i++) {
        if (pin(pool->workers[i].thread, cpus[i], i, err) != 0) {
            return -1;
        }
    }
    if (pin(pthread_self(), cpus[0], 0, err) != 0) {
        return -1;
    }
    pool->pinned = true;
    return 0;
}

/* Spinning is of use only while every thread has a CPU. */
static bool has_cpu_for_each(uint32_t n_threads) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && n_threads <= (uint32_t)CPU_COUNT(&set);
}

k1_threadpool *k1_threadpool_new(uint32_t n_threads, const uint32_t *cpus, k1_err *err) {
    if (n_threads < 1 || n_threads > MAX_THREADS) {
        k1_fail(err, "%" PRIu32 " threads: allowed are 1 to %d", n_threads, MAX_THREADS);
        return NULL;
    }
    size_t bytes = sizeof(k1_threadpool) + n_threads * sizeof(worker);
    bytes = (bytes + 63) / 64 * 64;
    k1_threadpool *pool = aligned_alloc(64, bytes);
    if (pool == NULL) {
        k1_fail(err, "no memory for %" PRIu32 " threads", n_threads);
        return NULL;
    }
    memset(pool, 0, bytes);
    pool->n_threads = n_threads;
    pool->spin_max = has_cpu_for_each(n_threads) ? SPIN_MAX : 0;
    pool->caller_spin = SPIN_MAX;
    if (start_workers(pool, err) != 0 || (cpus != NULL && pin_all(pool, cpus, err) != 0)) {
        k1_threadpool_free(pool);
        return NULL;
    }
    return pool;
}

void k1_threadpool_free(k1_threadpool *pool) {
    if (pool == NULL) {
        return;
    }
    pool->stop = true;
    announce(pool);
    for (uint32_t i = 1; i <= pool->n_started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    if (pool->pinned) {
        (void)pthread_setaffinity_np(pthread_self(), sizeof pool->caller_cpus, &pool->caller_cpus);
    }
    free(pool);
}

uint32_t k1_threadpool_size(const k1_threadpool *pool) { return pool != NULL ? pool->n_threads : 1; }

void k1_threadpool_run(k1_threadpool *pool, k1_task_fn *task, void *arg) {
    if (pool == NULL || pool->n_threads == 1) {
        task(arg, 0, 1);
        return;
    }
    pool->task = task;
    pool->arg = arg;
    atomic_store_explicit(&pool->pending, pool->n_threads - 1, memory_order_relaxed);
    announce(pool);
    task(arg, 0, pool->n_threads);
    wait_for_workers(pool);
}
