/* What the parts of the engine share: model, cache, sequence. */
#ifndef K1_ENGINE_INTERNAL_H
#define K1_ENGINE_INTERNAL_H

#include "k1/engine.h"
#include "mask.h"

/* Saturating arithmetic on byte counts: too much stays too much. */
static inline uint64_t k1_mul_sat(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static inline uint64_t k1_add_sat(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* ---- rope.c ---- */

/* How the rotated pairs lie in a head: llama's files hold neighbours (0,1)(2,3)…, qwen's the two halves. */
typedef enum k1_rope_pairs { K1_ROPE_NEIGHBOURS, K1_ROPE_HALVES } k1_rope_pairs;

/* Scaling of the frequencies for longer contexts. */
typedef struct k1_rope_scaling {
    const float *factors; /* float[n_rot / 2], divisors of the frequencies (rope_freqs.weight), or NULL */
    double linear;        /* divisor of every frequency, 1: none */
    bool llama3;          /* Llama 3.1's rule instead, with the fields below */
    double llama3_factor;
    double low_freq_factor;
    double high_freq_factor;
    double original_context;
} k1_rope_scaling;

/* Tables, float[n_ctx][n_rot / 2] each, that the sequences of a model with the same n_ctx share. */
typedef struct k1_rope {
    uint32_t n_ctx;
    uint32_t n_users;
    float *cos;
    float *sin;
    struct k1_rope *next; /* of the same model */
} k1_rope;

uint64_t k1_rope_bytes(const k1_hparams *hp, uint32_t n_ctx);
/* Those of a model, made for the first who asks and freed with the last who lets them go. NULL and err: no memory. */
k1_rope *k1_rope_take(k1_model *model, uint32_t n_ctx, k1_err *err);
void k1_rope_release(k1_model *model, k1_rope *rope);

/* freqs: double[n_rot / 2], radians per position. */
void k1_rope_freqs(uint32_t n_rot, double base, const k1_rope_scaling *scaling, double *freqs);
/* cos, sin: float[n_positions][n_pairs], for the positions from first on. */
void k1_rope_tables(const double *freqs, uint32_t n_pairs, uint32_t first, uint32_t n_positions, float *cos_out,
                    float *sin_out);
/* Rotate the first 2 n_pairs values of one head in place; cos, sin: float[n_pairs] of its position. */
void k1_rope_apply(float *head, const float *cos_row, const float *sin_row, uint32_t n_pairs, k1_rope_pairs pairs);

/* ---- model.c ---- */

/* y = W x (+ bias). data: n_out rows of n_in values in the tensor's type. */
typedef struct k1_linear {
    const void *data;
    k1_dtype type;
    size_t row_bytes;
    uint32_t n_in;
    uint32_t n_out;
    const float *bias; /* float[n_out] or NULL */
} k1_linear;

typedef struct k1_layer {
    const float *attn_norm; /* float[n_embd] */
    k1_linear q;            /* n_embd → n_head * head_dim */
    k1_linear k;            /* n_embd → n_head_kv * head_dim */
    k1_linear v;
    const float *q_norm; /* float[head_dim] or NULL */
    const float *k_norm;
    k1_linear o;           /* n_head * head_dim → n_embd */
    const float *ffn_norm; /* float[n_embd] */
    k1_linear gate;        /* n_embd → n_ff */
    k1_linear up;
    k1_linear down; /* n_ff → n_embd */
    uint64_t bytes; /* of all its tensors */
} k1_layer;

struct k1_model {
    k1_hparams hp;
    const k1_kernels *kernels;
    k1_rope_pairs rope_pairs;
    k1_rope_scaling rope_scaling;
    k1_rope *ropes; /* in use */
    k1_layer *layers;
    k1_linear embedding; /* n_vocab rows of n_embd */
    const float *output_norm;
    k1_linear output; /* n_embd → n_vocab; the embedding when tied */
};

/* ---- kv.c ---- */

typedef enum k1_kv_layout { K1_KV_LAYER_FIRST, K1_KV_HEAD_FIRST } k1_kv_layout;

/* Keys and values in half precision. Within a layer and head: uint16[n_ctx][head_dim]; the layout says in which order
 * those runs lie. */
typedef struct k1_kv {
    uint16_t *data;
    size_t layer_stride; /* in values */
    size_t head_stride;
    size_t v_offset; /* from a key to its value */
} k1_kv;

/* Positions a cache for n_ctx is made with: an odd multiple of 8. With a power of two the runs of all heads would begin
 * in one set of a CPU's cache, and short contexts would miss the K1's L2 nearly always (make bench-kv). */
uint32_t k1_kv_rows(uint32_t n_ctx);
uint64_t k1_kv_bytes(const k1_hparams *hp, uint32_t n_rows, uint32_t n_layers);
int k1_kv_init(k1_kv *kv, const k1_hparams *hp, uint32_t n_rows, uint32_t n_layers, k1_kv_layout layout, k1_err *err);
void k1_kv_free(k1_kv *kv);

/* uint16[n_ctx][head_dim] */
static inline uint16_t *k1_kv_keys(const k1_kv *kv, uint32_t layer, uint32_t head) {
    return kv->data + layer * kv->layer_stride + head * kv->head_stride;
}

static inline uint16_t *k1_kv_values(const k1_kv *kv, uint32_t layer, uint32_t head) {
    return k1_kv_keys(kv, layer, head) + kv->v_offset;
}

/* ---- attention.c ---- */

/* out = softmax(q · keys * scale) · values over the positions below n_positions that the mask lets token see.
 * q, out: float[head_dim]; keys, values: half[n_positions][head_dim]. Nothing to see gives zeros. */
void k1_attend(const k1_kernels *kernels, const float *q, const uint16_t *keys, const uint16_t *values,
               uint32_t head_dim, float scale, const k1_mask *mask, uint32_t token, uint32_t n_positions, float *out);

/* ---- memory.c ---- */

/* Scratch of a sequence, in bytes. */
uint64_t k1_scratch_bytes(const k1_hparams *hp, uint32_t n_batch);
/* Weights that the layers [first, last) touch, with the embedding and the output where they are needed. */
uint64_t k1_weight_bytes(const k1_model *model, uint32_t first, uint32_t last);
/* -1 and err, which names the largest n_ctx that fits, when k1_memory_needed exceeds the budget. */
int k1_memory_check(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last,
                    uint64_t budget, k1_err *err);

/* ---- split.c ---- */

/* ends[r]: one after the last layer of rank r, each rank having one or more, so that the largest sum of costs[n] is as
 * small as it can be. */
int k1_split_costs(const uint64_t *costs, uint32_t n, uint32_t n_ranks, uint32_t *ends, k1_err *err);

/* ---- forward.c ---- */

struct k1_seq {
    k1_model *model;
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t first;
    uint32_t last;
    uint32_t n_past;
    k1_kv kv;
    k1_rope *rope;
    void *arena;    /* owns what follows; each for n_batch tokens */
    float *x;       /* float[][n_embd], the residual stream */
    float *xn;      /* float[][n_embd], a block's normalised input or its output */
    float *q;       /* float[][n_head * head_dim] */
    float *k;       /* float[][n_head_kv * head_dim] */
    float *v;       /* float[][n_head_kv * head_dim] */
    float *att;     /* float[][n_head * head_dim] */
    float *gate;    /* float[][n_ff] */
    float *up;      /* float[][n_ff] */
    k1_q16 *acts16; /* k1_q16[][widest of the inputs / 32] */
};

#endif
