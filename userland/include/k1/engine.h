/* The engine between model file and server: a model, sequences with their KV cache, and forward passes over a
 * contiguous range of layers, so that a pipeline stage is the same call as a whole model. */
#ifndef K1_ENGINE_H
#define K1_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "k1/error.h"
#include "k1/gguf.h"
#include "k1/kernels.h"
#include "k1/threadpool.h"

typedef struct k1_hparams {
    char arch[16]; /* llama, qwen2, qwen3 */
    uint32_t n_layer;
    uint32_t n_embd;
    uint32_t n_head;
    uint32_t n_head_kv;
    uint32_t head_dim;
    uint32_t n_ff;
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t n_rot; /* rotated dimensions of a head */
    float rms_eps;
    float rope_base;
} k1_hparams;

typedef struct k1_model k1_model;

/* Check architecture, tensors and shapes of an open file. The gguf must outlive the model. NULL and err: unknown
 * architecture (names the known), a tensor that is missing, misshaped or of no use to the architecture, scaling of
 * positions that is not known. */
k1_model *k1_model_new(const k1_gguf *gguf, const k1_kernels *kernels, k1_err *err);
void k1_model_free(k1_model *model);
const k1_hparams *k1_model_hparams(const k1_model *model);

/* Bytes that it takes to run the layers [first, last) with one sequence of n_ctx positions: weights, KV cache, RoPE
 * tables and scratch; after the last layer also logits and the sampler's scratch. */
uint64_t k1_memory_needed(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last);
/* Bytes that each further sequence of that kind takes: KV cache and scratch. */
uint64_t k1_memory_more(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last);
/* Memory that may be used: MemAvailable of /proc/meminfo less a reserve of an eighth, at most 256 MiB. `root`, NULL by
 * default, prefixes the path (tests). -1 and err when it cannot be read: nothing may be promised then. */
int k1_memory_budget(const char *root, uint64_t *bytes, k1_err *err);

/* Deal out contiguous layers to ranks of equal speed by counted multiplications, the output matrix included. ends[r]:
 * one after the last layer of rank r. -1 and err: more ranks than layers. */
int k1_split(const k1_model *model, uint32_t n_ranks, uint32_t *ends, k1_err *err);

typedef struct k1_seq k1_seq;

/* One sequence: the FP16 KV cache of the layers [first, last), scratch for up to n_batch tokens a pass, and RoPE tables
 * that it shares with the model's other sequences of this n_ctx; the model must outlive it. One thread at a time makes
 * and frees the sequences of a model. NULL and err: no such layers, no k1_memory_budget, or k1_memory_needed exceeds it
 * (names the largest n_ctx). */
k1_seq *k1_seq_new(k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last, k1_err *err);
void k1_seq_free(k1_seq *seq);
uint32_t k1_seq_n_past(const k1_seq *seq);
/* Forget all positions from n_past on. */
void k1_seq_truncate(k1_seq *seq, uint32_t n_past);

/* Which logits a forward pass computes on the stage with the last layer. */
typedef enum k1_logits { K1_LOGITS_NONE, K1_LOGITS_LAST, K1_LOGITS_ALL } k1_logits;

/* Run n_tokens tokens, the next positions of seq, through its layers.
 * ids: int32[n_tokens], needed when the range begins with layer 0; else hidden_in: float[n_tokens][n_embd].
 * hidden_out: float[n_tokens][n_embd] of the range's last layer, needed unless the range ends with the model's last
 * layer; then logits: float[1 or n_tokens][n_vocab], as asked for. n_tokens may exceed n_batch: it is split, which does
 * not change a single bit of any result, and neither does the number of threads. -1 and err: id outside the vocabulary,
 * context full. */
int k1_forward(k1_seq *seq, k1_threadpool *pool, const int32_t *ids, const float *hidden_in, uint32_t n_tokens,
               float *hidden_out, k1_logits which, float *logits, k1_err *err);

#endif
