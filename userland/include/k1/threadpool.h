/* A pinned compute pool. Threads split outputs, never the K dimension, so results do not depend on their number. */
#ifndef K1_THREADPOOL_H
#define K1_THREADPOOL_H

#include <stddef.h>
#include <stdint.h>

#include "k1/error.h"

typedef struct k1_threadpool k1_threadpool;

/* Called with an index below n_threads on each thread at once; the caller's thread is index 0. */
typedef void k1_task_fn(void *arg, uint32_t index, uint32_t n_threads);

/* n_threads 1 to 256, each on the CPU cpus[i] (cpus NULL: not pinned). Stacks are 4 MiB.
 * One thread makes, runs and frees a pool: it is index 0, and stays on cpus[0] until it frees the pool. */
k1_threadpool *k1_threadpool_new(uint32_t n_threads, const uint32_t *cpus, k1_err *err);
void k1_threadpool_free(k1_threadpool *pool);
uint32_t k1_threadpool_size(const k1_threadpool *pool);
/* Run task on all threads and return when all have. Bounded adaptive spin, then futex sleep. NULL pool: one thread. */
void k1_threadpool_run(k1_threadpool *pool, k1_task_fn *task, void *arg);

/* CPUs to compute on: one per physical core of those online that this process may use, from sysfs
 * (topology/thread_siblings_list) and /proc/self/status. root, NULL or "" by default, prefixes both for tests. Writes
 * at most capacity CPU numbers and returns how many cores there are; 0 when neither /proc nor /sys tells. */
size_t k1_topology_cpus(const char *root, uint32_t *cpus, size_t capacity);
/* Parse a list such as "0,2-3" (--cpu_list), in its order; -1 and err when it is malformed, names a CPU twice or more
 * than capacity. */
int k1_cpu_list(const char *text, uint32_t *cpus, size_t capacity, size_t *n, k1_err *err);

#endif
