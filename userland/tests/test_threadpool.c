/* The compute pool: every index runs once a call, whatever the number of threads and the time between calls. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "k1/threadpool.h"

typedef struct counts {
    uint32_t calls[256]; /* by index: each thread writes its own, unlocked, so that TSan sees a lost hand-over */
    uint32_t n_threads;
} counts;

static void count(void *arg, uint32_t index, uint32_t n_threads) {
    counts *seen = arg;
    seen->calls[index]++;
    if (index == 0) {
        seen->n_threads = n_threads;
    }
}

static void nap(long microseconds) {
    const struct timespec time = {0, microseconds * 1000};
    (void)nanosleep(&time, NULL);
}

static void every_index_runs_once_a_call(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 8};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        counts seen = {0};
        k1_threadpool *pool = k1_threadpool_new(sizes[s], NULL, NULL);
        assert_non_null(pool);
        assert_int_equal(k1_threadpool_size(pool), sizes[s]);
        for (uint32_t call = 1; call <= 500; call++) {
            k1_threadpool_run(pool, count, &seen);
            for (uint32_t i = 0; i < 256; i++) {
                assert_int_equal(seen.calls[i], i < sizes[s] ? call : 0);
            }
        }
        assert_int_equal(seen.n_threads, sizes[s]);
        k1_threadpool_free(pool);
    }
}

static void workers_that_fell_asleep_are_woken(void **state) {
    (void)state;
    counts seen = {0};
    k1_threadpool *pool = k1_threadpool_new(2, NULL, NULL);
    for (uint32_t call = 1; call <= 50; call++) {
        nap(call % 5 * 500);
        k1_threadpool_run(pool, count, &seen);
        assert_int_equal(seen.calls[1], call);
    }
    k1_threadpool_free(pool);
}

static void be_slow(void *arg, uint32_t index, uint32_t n_threads) {
    count(arg, index, n_threads);
    if (index == 1) {
        nap(2000);
    }
}

static void the_caller_waits_for_a_slow_worker(void **state) {
    (void)state;
    counts seen = {0};
    k1_threadpool *pool = k1_threadpool_new(3, NULL, NULL);
    for (uint32_t call = 1; call <= 20; call++) {
        k1_threadpool_run(pool, be_slow, &seen);
        assert_int_equal(seen.calls[1] + seen.calls[2], 2 * call);
    }
    k1_threadpool_free(pool);
}

static void idle_workers_take_no_cpu_time(void **state) {
    (void)state;
    counts seen = {0};
    k1_threadpool *pool = k1_threadpool_new(2, NULL, NULL);
    k1_threadpool_run(pool, count, &seen);
    nap(50000);
    clock_t before = clock();
    nap(200000);
    double used = (double)(clock() - before) / CLOCKS_PER_SEC;
    k1_threadpool_free(pool);
    assert_true(used < 0.1);
}

static void no_pool_means_one_thread(void **state) {
    (void)state;
    counts seen = {0};
    k1_threadpool_run(NULL, count, &seen);
    assert_int_equal(seen.calls[0], 1);
    assert_int_equal(seen.n_threads, 1);
    assert_int_equal(k1_threadpool_size(NULL), 1);
    k1_threadpool_free(NULL);
}

static void silly_thread_counts_are_refused(void **state) {
    (void)state;
    static const uint32_t wrong[] = {0, 257, 1000, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        k1_err err = {""};
        char text[64];
        (void)snprintf(text, sizeof text, "%u threads: allowed are 1 to 256", wrong[i]);
        assert_null(k1_threadpool_new(wrong[i], NULL, &err));
        assert_string_equal(err.text, text);
    }
}

/* What each thread of a pool sees of itself. */
typedef struct view {
    int cpu[2];
    size_t stack[2];
    int blocked[2];
} view;

static void look(void *arg, uint32_t index, uint32_t n_threads) {
    (void)n_threads;
    view *seen = arg;
    pthread_attr_t attr;
    sigset_t blocked;
    cpu_set_t cpus;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstacksize(&attr, &seen->stack[index]);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    seen->blocked[index] = sigismember(&blocked, SIGTERM);
    seen->cpu[index] = -1;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) == 1) {
        for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            seen->cpu[index] = CPU_ISSET(cpu, &cpus) ? (int)cpu : seen->cpu[index];
        }
    }
}

static void threads_stay_on_their_cpus_with_large_stacks(void **state) {
    (void)state;
    uint32_t cpus[256];
    view seen;
    cpu_set_t before, after;
    if (k1_topology_cpus(NULL, cpus, 256) < 2) {
        cpus[1] = cpus[0];
    }
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    k1_threadpool *pool = k1_threadpool_new(2, cpus, NULL);
    assert_non_null(pool);
    k1_threadpool_run(pool, look, &seen);
    k1_threadpool_free(pool);
    assert_int_equal(seen.cpu[0], cpus[0]);
    assert_int_equal(seen.cpu[1], cpus[1]);
    assert_in_range(seen.stack[1], 4 << 20, (4 << 20) + (64 << 10));
    assert_false(seen.blocked[0]);
    assert_true(seen.blocked[1]);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static void a_cpu_that_cannot_be_used_is_named(void **state) {
    (void)state;
    static const uint32_t cpus[] = {0, 1023}, far[] = {0, 100000};
    k1_err err = {""};
    assert_null(k1_threadpool_new(2, cpus, &err));
    assert_non_null(strstr(err.text, "thread 1 cannot run on CPU 1023"));
    assert_null(k1_threadpool_new(2, far, &err));
    assert_non_null(strstr(err.text, "thread 1 cannot run on CPU 100000"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_runs_once_a_call),
        cmocka_unit_test(workers_that_fell_asleep_are_woken),
        cmocka_unit_test(the_caller_waits_for_a_slow_worker),
        cmocka_unit_test(idle_workers_take_no_cpu_time),
        cmocka_unit_test(no_pool_means_one_thread),
        cmocka_unit_test(silly_thread_counts_are_refused),
        cmocka_unit_test(threads_stay_on_their_cpus_with_large_stacks),
        cmocka_unit_test(a_cpu_that_cannot_be_used_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
