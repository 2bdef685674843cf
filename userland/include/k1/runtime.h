/* What a program needs to run a whole model: file, tokenizer, engine, threads. Used by k1-inferd, k1-cli and k1-bench.
 */
#ifndef K1_RUNTIME_H
#define K1_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "k1/engine.h"
#include "k1/gguf.h"
#include "k1/request.h"
#include "k1/threadpool.h"
#include "k1/tokenizer.h"

#define K1_MAX_THREADS 256

extern const char k1_no_logits[]; /* what an error says of a token that could not be chosen */

typedef struct k1_runtime_config {
    const char *model;
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_threads;   /* 0: one per physical core, or as many as cpu_list has */
    const char *cpu_list; /* NULL: one CPU per physical core */
    bool no_seq;          /* the caller makes its own sequences */
} k1_runtime_config;

typedef struct k1_runtime {
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_threads;
    bool pinned;
    uint32_t cpus[K1_MAX_THREADS];
    const k1_kernels *kernels;
    k1_gguf *gguf;
    k1_tokenizer *tokenizer;
    k1_model *model;
    k1_seq *seq;
    k1_threadpool *pool;
    float *logits;  /* [n_vocab] */
    void *scratch;  /* for the sampler */
    char name[128]; /* the file's name without folder and .gguf, as UTF-8 */
} k1_runtime;

/* Which CPUs to compute on. -1 and err: bad list, more threads than it has. */
int k1_runtime_place(k1_runtime *runtime, const k1_runtime_config *config, k1_err *err);
/* Open everything but the threads. The environment variable K1_KERNELS may name the kernels. -1 and err; call
 * k1_runtime_close in any case. */
int k1_runtime_open(k1_runtime *runtime, const k1_runtime_config *config, k1_err *err);
/* Start the compute threads; the calling thread is the first of them and makes all further calls. */
int k1_runtime_start(k1_runtime *runtime, k1_err *err);
void k1_runtime_stop(k1_runtime *runtime);
void k1_runtime_close(k1_runtime *runtime);

/* One step of a request on a sequence of all layers: a batch of its prompt, or one token. The first step of a request
 * clears the sequence. -1 and err when the engine failed. */
int k1_runtime_step(k1_runtime *runtime, k1_seq *seq, k1_request *request, k1_text *out, k1_err *err);

#endif
