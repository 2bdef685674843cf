/* Sequences and the forward pass. A pass runs in phases; each phase splits its outputs (rows of a product, tokens,
 * heads) among the threads and ends at the pool's barrier. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define ALIGNMENT 64u
#define ROW_GROUP 8u /* threads split products in groups of rows that the vector kernels take at once */

/* ---- sequences ---- */

static void *take(char **at, size_t width, size_t n_tokens) {
    void *piece = *at;
    *at += (width * n_tokens + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return piece;
}

static int alloc_scratch(k1_seq *seq, k1_err *err) {
    const k1_hparams *hp = &seq->model->hp;
    uint64_t bytes = k1_scratch_bytes(hp, seq->n_batch);
    bytes = k1_add_sat(bytes, ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    seq->arena = bytes < SIZE_MAX / 2 ? aligned_alloc(ALIGNMENT, (size_t)bytes) : NULL;
    if (seq->arena == NULL) {
        return k1_fail(err, "no memory for scratch (%" PRIu64 " bytes): choose a smaller n_batch", bytes);
    }
    size_t n = seq->n_batch;
    size_t q_width = (size_t)hp->n_head * hp->head_dim * sizeof(float);
    size_t kv_width = (size_t)hp->n_head_kv * hp->head_dim * sizeof(float);
    char *at = seq->arena;
    seq->x = take(&at, hp->n_embd * sizeof(float), n);
    seq->xn = take(&at, hp->n_embd * sizeof(float), n);
    seq->q = take(&at, q_width, n);
    seq->k = take(&at, kv_width, n);
    seq->v = take(&at, kv_width, n);
    seq->att = take(&at, q_width, n);
    seq->gate = take(&at, hp->n_ff * sizeof(float), n);
    seq->up = take(&at, hp->n_ff * sizeof(float), n);
    seq->acts16 = (k1_q16 *)(void *)at;
    return 0;
}

static int check_range(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last,
                       k1_err *err) {
    if (first >= last || last > model->hp.n_layer) {
        return k1_fail(err, "layers %" PRIu32 " to %" PRIu32 " are no range of a model with %" PRIu32 " layers", first,
                       last, model->hp.n_layer);
    }
    if (n_ctx == 0 || n_ctx > INT32_MAX) {
        return k1_fail(err, "n_ctx is %" PRIu32 ", outside 1 to %d", n_ctx, INT32_MAX);
    }
    if (n_batch == 0 || n_batch > 1u << 16) {
        return k1_fail(err, "n_batch is %" PRIu32 ", outside 1 to %u", n_batch, 1u << 16);
    }
    uint64_t budget;
    return k1_memory_budget(NULL, &budget, err) != 0 ? -1
                                                     : k1_memory_check(model, n_ctx, n_batch, first, last, budget, err);
}

k1_seq *k1_seq_new(k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last, k1_err *err) {
    if (check_range(model, n_ctx, n_batch, first, last, err) != 0) {
        return NULL;
    }
    k1_seq *seq = calloc(1, sizeof *seq);
    if (seq == NULL) {
        (void)k1_fail(err, "no memory for a sequence");
        return NULL;
    }
    seq->model = model;
    seq->n_ctx = n_ctx;
    seq->n_batch = n_batch < n_ctx ? n_batch : n_ctx;
    seq->first = first;
    seq->last = last;
    if (k1_kv_init(&seq->kv, &model->hp, k1_kv_rows(n_ctx), last - first, K1_KV_LAYER_FIRST, err) != 0 ||
        (seq->rope = k1_rope_take(model, n_ctx, err)) == NULL || alloc_scratch(seq, err) != 0) {
        k1_seq_free(seq);
        return NULL;
    }
    return seq;
}

void k1_seq_free(k1_seq *seq) {
    if (seq == NULL) {
        return;
    }
    k1_kv_free(&seq->kv);
    if (seq->rope != NULL) {
        k1_rope_release(seq->model, seq->rope);
    }
    free(seq->arena);
    free(seq);
}

uint32_t k1_seq_n_past(const k1_seq *seq) { return seq->n_past; }

void k1_seq_truncate(k1_seq *seq, uint32_t n_past) {
    if (n_past < seq->n_past) {
        seq->n_past = n_past;
    }
}

/* ---- phases ---- */

/* One pass over at most n_batch tokens. */
typedef struct pass {
    k1_seq *seq;
    const k1_model *model;
    const k1_kernels *kernels;
    const k1_hparams *hp;
    k1_threadpool *pool;
    const k1_layer *layer;
    uint32_t layer_index; /* within the cache */
    uint32_t n_tokens;
    uint32_t first_pos;
} pass;

typedef struct range {
    size_t begin;
    size_t end;
} range;

/* Part index of n_parts of 0 … n. */
static range share(size_t n, uint32_t index, uint32_t n_parts) {
    return (range){n * index / n_parts, n * (index + 1) / n_parts};
}

/* A phase whose work is by token. One token is done by the caller alone: cheaper than waking the others. */
static void run_tokens(const pass *p, k1_task_fn *task, void *arg) {
    if (p->n_tokens == 1) {
        task(arg, 0, 1);
    } else {
        k1_threadpool_run(p->pool, task, arg);
    }
}

/* Products of up to three matrices with the same input: x float[n_tokens][n_in], and q16 the same quantized. */
typedef struct products {
    const pass *pass;
    const float *x;
    const k1_linear *linear[3];
    float *out[3]; /* float[n_tokens][n_out] */
    size_t n;
} products;

static size_t row_groups(const k1_linear *linear) { return ((size_t)linear->n_out + ROW_GROUP - 1) / ROW_GROUP; }

static void multiply_rows(const products *m, size_t i, range groups) {
    const pass *p = m->pass;
    const k1_linear *w = m->linear[i];
    const k1_matmul *matmul = &p->kernels->matmul[w->type];
    size_t begin = groups.begin * ROW_GROUP;
    size_t end = groups.end * ROW_GROUP < w->n_out ? groups.end * ROW_GROUP : w->n_out;
    bool q16 = matmul->act == K1_ACT_Q16;
    const void *x = q16 ? (const void *)p->seq->acts16 : (const void *)m->x;
    size_t x_bytes = q16 ? w->n_in / K1_Q16_BLOCK * sizeof(k1_q16) : w->n_in * sizeof(float);
    matmul->run((const char *)w->data + begin * w->row_bytes, w->row_bytes, x, x_bytes, m->out[i] + begin, w->n_out,
                end - begin, p->n_tokens, w->n_in);
}

static void products_task(void *arg, uint32_t index, uint32_t n_threads) {
    const products *m = arg;
    size_t total = 0;
    for (size_t i = 0; i < m->n; i++) {
        total += row_groups(m->linear[i]);
    }
    range mine = share(total, index, n_threads);
    for (size_t i = 0, before = 0; i < m->n; i++) {
        size_t groups = row_groups(m->linear[i]);
        size_t begin = mine.begin > before ? mine.begin - before : 0;
        size_t end = mine.end > before ? mine.end - before : 0;
        end = end < groups ? end : groups;
        if (begin < end) {
            multiply_rows(m, i, (range){begin, end});
        }
        before += groups;
    }
}

static bool takes_q16(const pass *p, const k1_linear *linear) {
    return p->kernels->matmul[linear->type].act == K1_ACT_Q16;
}

/* Rows [0, n_tokens) of x to the sequence's 16-bit activations, for the tokens of a range. x: float[n_tokens][n] */
static void quantize_tokens(const pass *p, const float *x, size_t n, range tokens) {
    for (size_t t = tokens.begin; t < tokens.end; t++) {
        p->kernels->quantize(x + t * n, p->seq->acts16 + t * (n / K1_Q16_BLOCK), n);
    }
}

/* Normalise x for a block; before that, add what the block before left in xn. */
typedef struct norm_phase {
    const pass *pass;
    const float *weight; /* float[n_embd]; NULL: only add */
    bool add;
    bool q16;
} norm_phase;

static void norm_task(void *arg, uint32_t index, uint32_t n_threads) {
    const norm_phase *phase = arg;
    const pass *p = phase->pass;
    size_t n = p->hp->n_embd;
    range tokens = share(p->n_tokens, index, n_threads);
    for (size_t t = tokens.begin; t < tokens.end; t++) {
        float *x = p->seq->x + t * n;
        float *xn = p->seq->xn + t * n;
        if (phase->add) {
            p->kernels->add(x, xn, n);
        }
        if (phase->weight != NULL) {
            p->kernels->rmsnorm(x, phase->weight, p->hp->rms_eps, xn, n);
        }
    }
    if (phase->q16) {
        quantize_tokens(p, p->seq->xn, n, tokens);
    }
}

static void norm(const pass *p, const float *weight, bool add, bool q16) {
    norm_phase phase = {p, weight, add, q16};
    run_tokens(p, norm_task, &phase);
}

/* Bias, norm and rotation of the heads of q or k of one token. x: float[n_heads][head_dim] */
static void finish_heads(const pass *p, float *x, uint32_t n_heads, const float *bias, const float *weight,
                         uint32_t pos) {
    uint32_t dim = p->hp->head_dim;
    uint32_t n_pairs = p->hp->n_rot / 2;
    const float *cos_row = p->seq->rope->cos + (size_t)pos * n_pairs;
    const float *sin_row = p->seq->rope->sin + (size_t)pos * n_pairs;
    if (bias != NULL) {
        p->kernels->add(x, bias, (size_t)n_heads * dim);
    }
    for (uint32_t h = 0; h < n_heads; h++) {
        float *head = x + (size_t)h * dim;
        if (weight != NULL) {
            p->kernels->rmsnorm(head, weight, p->hp->rms_eps, head, dim);
        }
        k1_rope_apply(head, cos_row, sin_row, n_pairs, p->model->rope_pairs);
    }
}

/* k, v: float[n_head_kv][head_dim] of one token, into the cache. */
static void store_kv(const pass *p, const float *k, const float *v, uint32_t pos) {
    size_t dim = p->hp->head_dim;
    for (uint32_t h = 0; h < p->hp->n_head_kv; h++) {
        p->kernels->to_f16(k + h * dim, k1_kv_keys(&p->seq->kv, p->layer_index, h) + pos * dim, dim);
        p->kernels->to_f16(v + h * dim, k1_kv_values(&p->seq->kv, p->layer_index, h) + pos * dim, dim);
    }
}

static void heads_task(void *arg, uint32_t index, uint32_t n_threads) {
    const pass *p = arg;
    const k1_hparams *hp = p->hp;
    size_t q_dim = (size_t)hp->n_head * hp->head_dim;
    size_t kv_dim = (size_t)hp->n_head_kv * hp->head_dim;
    range tokens = share(p->n_tokens, index, n_threads);
    for (size_t t = tokens.begin; t < tokens.end; t++) {
        uint32_t pos = p->first_pos + (uint32_t)t;
        float *v = p->seq->v + t * kv_dim;
        finish_heads(p, p->seq->q + t * q_dim, hp->n_head, p->layer->q.bias, p->layer->q_norm, pos);
        finish_heads(p, p->seq->k + t * kv_dim, hp->n_head_kv, p->layer->k.bias, p->layer->k_norm, pos);
        if (p->layer->v.bias != NULL) {
            p->kernels->add(v, p->layer->v.bias, kv_dim);
        }
        store_kv(p, p->seq->k + t * kv_dim, v, pos);
    }
}

/* Work items are (head, token), dealt out in turn because later tokens see more. */
static void attention_task(void *arg, uint32_t index, uint32_t n_threads) {
    const pass *p = arg;
    const k1_hparams *hp = p->hp;
    size_t q_dim = (size_t)hp->n_head * hp->head_dim;
    float scale = 1.0f / sqrtf((float)hp->head_dim);
    k1_mask mask = {NULL, 0, p->first_pos};
    for (size_t i = index; i < (size_t)hp->n_head * p->n_tokens; i += n_threads) {
        uint32_t h = (uint32_t)(i / p->n_tokens);
        uint32_t t = (uint32_t)(i % p->n_tokens);
        uint32_t kv_head = h / (hp->n_head / hp->n_head_kv);
        size_t at = t * q_dim + (size_t)h * hp->head_dim;
        k1_attend(p->kernels, p->seq->q + at, k1_kv_keys(&p->seq->kv, p->layer_index, kv_head),
                  k1_kv_values(&p->seq->kv, p->layer_index, kv_head), hp->head_dim, scale, &mask, t,
                  p->first_pos + t + 1, p->seq->att + at);
    }
}

static void quantize_att_task(void *arg, uint32_t index, uint32_t n_threads) {
    const pass *p = arg;
    quantize_tokens(p, p->seq->att, (size_t)p->hp->n_head * p->hp->head_dim, share(p->n_tokens, index, n_threads));
}

static void swiglu_task(void *arg, uint32_t index, uint32_t n_threads) {
    const pass *p = arg;
    size_t n = p->hp->n_ff;
    range tokens = share(p->n_tokens, index, n_threads);
    for (size_t t = tokens.begin; t < tokens.end; t++) {
        p->kernels->swiglu(p->seq->gate + t * n, p->seq->up + t * n, n);
    }
    if (takes_q16(p, &p->layer->down)) {
        quantize_tokens(p, p->seq->gate, n, tokens);
    }
}

/* ---- a pass ---- */

static void attention_block(pass *p) {
    const k1_layer *layer = p->layer;
    k1_seq *seq = p->seq;
    products qkv = {p, seq->xn, {&layer->q, &layer->k, &layer->v}, {seq->q, seq->k, seq->v}, 3};
    k1_threadpool_run(p->pool, products_task, &qkv);
    run_tokens(p, heads_task, p);
    k1_threadpool_run(p->pool, attention_task, p);
    if (takes_q16(p, &layer->o)) {
        run_tokens(p, quantize_att_task, p);
    }
    products o = {p, seq->att, {&layer->o}, {seq->xn}, 1};
    k1_threadpool_run(p->pool, products_task, &o);
}

static void feed_forward_block(pass *p) {
    const k1_layer *layer = p->layer;
    k1_seq *seq = p->seq;
    products gate_up = {p, seq->xn, {&layer->gate, &layer->up}, {seq->gate, seq->up}, 2};
    k1_threadpool_run(p->pool, products_task, &gate_up);
    run_tokens(p, swiglu_task, p);
    products down = {p, seq->gate, {&layer->down}, {seq->xn}, 1};
    k1_threadpool_run(p->pool, products_task, &down);
}

static void run_layers(pass *p) {
    k1_seq *seq = p->seq;
    for (uint32_t i = seq->first; i < seq->last; i++) {
        const k1_layer *layer = &p->model->layers[i];
        p->layer = layer;
        p->layer_index = i - seq->first;
        bool q16 = takes_q16(p, &layer->q) || takes_q16(p, &layer->k) || takes_q16(p, &layer->v);
        norm(p, layer->attn_norm, i > seq->first, q16);
        attention_block(p);
        norm(p, layer->ffn_norm, true, takes_q16(p, &layer->gate) || takes_q16(p, &layer->up));
        feed_forward_block(p);
    }
    norm(p, NULL, true, false);
}

/* Logits of the last n tokens of the pass. logits: float[n][n_vocab] */
static void run_output(pass *p, uint32_t n, float *logits) {
    const k1_linear *output = &p->model->output;
    size_t n_embd = p->hp->n_embd;
    if (n < p->n_tokens) {
        memmove(p->seq->x, p->seq->x + (p->n_tokens - n) * n_embd, n * n_embd * sizeof(float));
        p->n_tokens = n;
    }
    norm(p, p->model->output_norm, false, takes_q16(p, output));
    products product = {p, p->seq->xn, {output}, {logits}, 1};
    k1_threadpool_run(p->pool, products_task, &product);
}

static void embed(const pass *p, const int32_t *ids) {
    const k1_linear *w = &p->model->embedding;
    for (size_t t = 0; t < p->n_tokens; t++) {
        const char *row = (const char *)w->data + (size_t)ids[t] * w->row_bytes;
        p->kernels->dequantize(w->type, row, p->seq->x + t * w->n_in, w->n_in);
    }
}

static int check_call(const k1_seq *seq, const int32_t *ids, const float *hidden_in, uint32_t n_tokens,
                      const float *hidden_out, k1_logits which, const float *logits, k1_err *err) {
    const k1_hparams *hp = &seq->model->hp;
    bool head = seq->first == 0;
    bool tail = seq->last == hp->n_layer;
    if ((head ? ids == NULL : hidden_in == NULL) || (!tail && hidden_out == NULL) ||
        (tail && which != K1_LOGITS_NONE && logits == NULL)) {
        return k1_fail(err, "a forward pass over layers %" PRIu32 " to %" PRIu32 " lacks its input or output buffer",
                       seq->first, seq->last);
    }
    if (n_tokens > seq->n_ctx - seq->n_past) {
        return k1_fail(err,
                       "the context is full: %" PRIu32 " positions are used and %" PRIu32 " more do not fit into n_ctx "
                       "%" PRIu32 ": shorten the prompt or raise --n_ctx",
                       seq->n_past, n_tokens, seq->n_ctx);
    }
    for (uint32_t t = 0; head && t < n_tokens; t++) {
        if (ids[t] < 0 || (uint32_t)ids[t] >= hp->n_vocab) {
            return k1_fail(err, "token id %" PRId32 " at %" PRIu32 " is outside the vocabulary of %" PRIu32, ids[t], t,
                           hp->n_vocab);
        }
    }
    return 0;
}

int k1_forward(k1_seq *seq, k1_threadpool *pool, const int32_t *ids, const float *hidden_in, uint32_t n_tokens,
               float *hidden_out, k1_logits which, float *logits, k1_err *err) {
    const k1_hparams *hp = &seq->model->hp;
    if (check_call(seq, ids, hidden_in, n_tokens, hidden_out, which, logits, err) != 0) {
        return -1;
    }
    bool tail = seq->last == hp->n_layer;
    for (uint32_t done = 0; done < n_tokens;) {
        uint32_t n = n_tokens - done < seq->n_batch ? n_tokens - done : seq->n_batch;
        size_t width = (size_t)n * hp->n_embd * sizeof(float);
        pass p = {.seq = seq,
                  .model = seq->model,
                  .kernels = seq->model->kernels,
                  .hp = hp,
                  .pool = pool,
                  .n_tokens = n,
                  .first_pos = seq->n_past};
        if (seq->first == 0) {
            embed(&p, ids + done);
        } else {
            memcpy(seq->x, hidden_in + (size_t)done * hp->n_embd, width);
        }
        run_layers(&p);
        if (!tail) {
            memcpy(hidden_out + (size_t)done * hp->n_embd, seq->x, width);
        } else if (which == K1_LOGITS_ALL) {
            run_output(&p, n, logits + (size_t)done * hp->n_vocab);
        } else if (which == K1_LOGITS_LAST && done + n == n_tokens) {
            run_output(&p, 1, logits);
        }
        done += n;
        seq->n_past += n;
    }
    return 0;
}
