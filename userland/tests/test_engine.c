/* The engine on small random models: the same bits however a text is cut, threaded or split over stages; refusals that
 * name what is wrong; attention and its mask; the memory guard. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "../engine/internal.h"
#include "../kernels/half.h"
#include "k1/sampler.h"
#include "support.h"

#define N_EMBD 64u
#define N_FF 96u
#define N_HEAD 4u
#define N_HEAD_KV 2u
#define HEAD_DIM 16u
#define N_VOCAB 40u
#define N_LAYER 3u
#define N_CTX 160u
#define N_TEXT 150u /* more than two tiles of attention */

/* How a test's file departs from a sound one. */
typedef struct recipe {
    const char *arch;
    k1_dtype type;
    const char *leave_out; /* a tensor */
    const char *misshape;  /* a tensor: one row too few */
    const char *retype;    /* a vector in F16 */
    const char *drop_key;  /* by its suffix */
    const char *rope_type;
    uint32_t n_head_kv; /* 0: N_HEAD_KV */
    float eps;          /* 0: 1e-5 */
    bool untied;
    void (*extra)(k1t_gguf *file); /* adds keys and tensors; may be NULL */
} recipe;

static uint32_t random_state;

static float random_float(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (float)(1u << 23) - 1.0f;
}

static void *random_blocks(k1_dtype type, size_t n, size_t *bytes) {
    size_t block_bytes = k1_dtype_block_bytes(type);
    *bytes = n / k1_dtype_block(type) * block_bytes;
    uint8_t *data = malloc(*bytes);
    assert_non_null(data);
    for (size_t at = 0; at < *bytes; at += block_bytes) {
        if (type == K1_F32) {
            float value = random_float() * 0.2f;
            memcpy(data + at, &value, sizeof value);
            continue;
        }
        for (size_t i = 0; i < block_bytes; i++) {
            data[at + i] = (uint8_t)(random_float() * 127.0f + 128.0f);
        }
        uint16_t scale = k1_f32_to_f16(type == K1_Q8_0 ? 0.0015f : 0.025f);
        memcpy(data + at, &scale, sizeof scale);
    }
    return data;
}

static bool is(const char *name, const char *other) { return other != NULL && strcmp(name, other) == 0; }

static void put_matrix(k1t_gguf *file, const recipe *r, const char *name, uint64_t n_in, uint64_t n_out) {
    if (is(name, r->leave_out)) {
        return;
    }
    size_t bytes;
    void *data = random_blocks(r->type, n_in * n_out, &bytes);
    uint64_t ne[2] = {n_in, is(name, r->misshape) ? n_out - 1 : n_out};
    k1t_tensor(file, name, r->type, ne, 2, data, bytes / n_out * ne[1]);
    free(data);
}

static void put_vector(k1t_gguf *file, const recipe *r, const char *name, uint64_t n) {
    if (is(name, r->leave_out)) {
        return;
    }
    float values[N_EMBD];
    for (size_t i = 0; i < n; i++) {
        values[i] = 1.0f + random_float() * 0.3f;
    }
    bool half = is(name, r->retype);
    k1t_tensor(file, name, half ? K1_F16 : K1_F32, &n, 1, values, n * (half ? 2 : sizeof(float)));
}

static const char *in_layer(char *text, uint32_t layer, const char *part) {
    (void)snprintf(text, 64, "blk.%" PRIu32 ".%s", layer, part);
    return text;
}

static void put_layer(k1t_gguf *file, const recipe *r, uint32_t i) {
    char name[64];
    uint32_t q_dim = N_HEAD * HEAD_DIM;
    uint32_t kv_dim = (r->n_head_kv != 0 ? r->n_head_kv : N_HEAD_KV) * HEAD_DIM;
    put_vector(file, r, in_layer(name, i, "attn_norm.weight"), N_EMBD);
    put_matrix(file, r, in_layer(name, i, "attn_q.weight"), N_EMBD, q_dim);
    put_matrix(file, r, in_layer(name, i, "attn_k.weight"), N_EMBD, kv_dim);
    put_matrix(file, r, in_layer(name, i, "attn_v.weight"), N_EMBD, kv_dim);
    put_matrix(file, r, in_layer(name, i, "attn_output.weight"), q_dim, N_EMBD);
    put_vector(file, r, in_layer(name, i, "ffn_norm.weight"), N_EMBD);
    put_matrix(file, r, in_layer(name, i, "ffn_gate.weight"), N_EMBD, N_FF);
    put_matrix(file, r, in_layer(name, i, "ffn_up.weight"), N_EMBD, N_FF);
    put_matrix(file, r, in_layer(name, i, "ffn_down.weight"), N_FF, N_EMBD);
    if (strcmp(r->arch, "qwen2") == 0) {
        put_vector(file, r, in_layer(name, i, "attn_q.bias"), q_dim);
        put_vector(file, r, in_layer(name, i, "attn_k.bias"), kv_dim);
        put_vector(file, r, in_layer(name, i, "attn_v.bias"), kv_dim);
    }
    if (strcmp(r->arch, "qwen3") == 0) {
        put_vector(file, r, in_layer(name, i, "attn_q_norm.weight"), HEAD_DIM);
        put_vector(file, r, in_layer(name, i, "attn_k_norm.weight"), HEAD_DIM);
    }
}

static void put_count(k1t_gguf *file, const recipe *r, const char *suffix, uint32_t value) {
    char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", r->arch, suffix);
    if (!is(suffix, r->drop_key)) {
        k1t_u32(file, key, value);
    }
}

static void put_keys(k1t_gguf *file, const recipe *r) {
    char key[96];
    k1t_str(file, "general.architecture", r->arch);
    put_count(file, r, "block_count", N_LAYER);
    put_count(file, r, "context_length", 2048);
    put_count(file, r, "embedding_length", N_EMBD);
    put_count(file, r, "feed_forward_length", N_FF);
    put_count(file, r, "attention.head_count", N_HEAD);
    put_count(file, r, "attention.head_count_kv", r->n_head_kv != 0 ? r->n_head_kv : N_HEAD_KV);
    (void)snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", r->arch);
    k1t_f32(file, key, r->eps != 0.0f ? r->eps : 1e-5f);
    if (r->rope_type != NULL) {
        (void)snprintf(key, sizeof key, "%s.rope.scaling.type", r->arch);
        k1t_str(file, key, r->rope_type);
    }
}

/* A model and the bytes below it. */
typedef struct tiny {
    uint8_t *bytes;
    k1_gguf *gguf;
    k1_model *model; /* NULL when it was refused */
    k1_err err;
} tiny;

static tiny make(const recipe *r) {
    random_state = 11;
    k1t_gguf file = {0};
    put_keys(&file, r);
    put_matrix(&file, r, "token_embd.weight", N_EMBD, N_VOCAB);
    put_vector(&file, r, "output_norm.weight", N_EMBD);
    for (uint32_t i = 0; i < N_LAYER; i++) {
        put_layer(&file, r, i);
    }
    if (r->untied) {
        put_matrix(&file, r, "output.weight", N_EMBD, N_VOCAB);
    }
    if (r->extra != NULL) {
        r->extra(&file);
    }
    tiny t = {0};
    size_t size;
    t.bytes = k1t_finish(&file, &size);
    t.gguf = k1_gguf_parse(t.bytes, size, &t.err);
    if (t.gguf == NULL) {
        print_message("%s\n", t.err.text);
    }
    assert_non_null(t.gguf);
    t.model = k1_model_new(t.gguf, k1_kernels_pick(NULL), &t.err);
    return t;
}

static void unmake(tiny *t) {
    k1_model_free(t->model);
    k1_gguf_close(t->gguf);
    free(t->bytes);
}

static tiny make_sound(const char *arch, k1_dtype type) {
    recipe r = {.arch = arch, .type = type};
    tiny t = make(&r);
    if (t.model == NULL) {
        print_message("%s\n", t.err.text);
    }
    assert_non_null(t.model);
    return t;
}

static k1_seq *new_seq(const tiny *t, uint32_t n_batch, uint32_t first, uint32_t last) {
    k1_err err;
    k1_seq *seq = k1_seq_new(t->model, N_CTX, n_batch, first, last, &err);
    assert_non_null(seq);
    return seq;
}

static void get_text(int32_t *ids) {
    for (uint32_t i = 0; i < N_TEXT; i++) {
        ids[i] = (int32_t)(i * i * 7 % 37 + i % 3);
    }
}

static float *new_logits(void) {
    float *logits = calloc((size_t)N_TEXT * N_VOCAB, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

/* Logits of the whole text, chunk tokens a call and n_batch a pass. */
static float *run(const tiny *t, uint32_t n_threads, uint32_t chunk, uint32_t n_batch) {
    k1_err err;
    int32_t ids[N_TEXT];
    float *logits = new_logits();
    k1_seq *seq = new_seq(t, n_batch, 0, N_LAYER);
    k1_threadpool *pool = n_threads != 0 ? k1_threadpool_new(n_threads, NULL, &err) : NULL;
    get_text(ids);
    for (uint32_t done = 0; done < N_TEXT; done += chunk) {
        uint32_t n = N_TEXT - done < chunk ? N_TEXT - done : chunk;
        assert_int_equal(
            k1_forward(seq, pool, ids + done, NULL, n, NULL, K1_LOGITS_ALL, logits + (size_t)done * N_VOCAB, &err), 0);
    }
    assert_int_equal(k1_seq_n_past(seq), N_TEXT);
    k1_threadpool_free(pool);
    k1_seq_free(seq);
    return logits;
}

static void expect_equal_and_free(float *got, const float *expected) {
    assert_memory_equal(got, expected, (size_t)N_TEXT * N_VOCAB * sizeof *got);
    free(got);
}

static const struct {
    const char *arch;
    k1_dtype type;
} kinds[] = {{"llama", K1_F32}, {"llama", K1_Q4_0}, {"qwen2", K1_Q8_0}, {"qwen3", K1_Q4_0}};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static void chunks_batches_and_threads_change_no_bit(void **state) {
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        tiny t = make_sound(kinds[k].arch, kinds[k].type);
        float *whole = run(&t, 0, N_TEXT, N_TEXT);
        for (size_t i = 0; i < N_VOCAB; i++) {
            assert_true(isfinite(whole[(N_TEXT - 1) * N_VOCAB + i]));
        }
        assert_true(whole[0] != whole[1]);
        expect_equal_and_free(run(&t, 1, 1, 1), whole);
        expect_equal_and_free(run(&t, 2, 7, 64), whole);
        expect_equal_and_free(run(&t, 4, 64, 13), whole);
        expect_equal_and_free(run(&t, 3, N_TEXT, 64), whole);
        free(whole);
        unmake(&t);
    }
}

static void every_table_of_kernels_gives_the_same_logits(void **state) {
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        tiny t = make_sound(kinds[k].arch, kinds[k].type);
        float *fast = run(&t, 0, N_TEXT, N_TEXT);
        k1_model_free(t.model);
        t.model = k1_model_new(t.gguf, &k1_kernels_scalar, &t.err);
        assert_non_null(t.model);
        expect_equal_and_free(run(&t, 0, N_TEXT, N_TEXT), fast);
        free(fast);
        unmake(&t);
    }
}

/* Three stages of one layer, in pieces of 20 tokens. */
static void stages_of_a_pipeline_change_no_bit(void **state) {
    (void)state;
    tiny t = make_sound("llama", K1_Q4_0);
    float *whole = run(&t, 0, N_TEXT, N_TEXT);
    float *logits = new_logits();
    k1_seq *stages[N_LAYER];
    int32_t ids[N_TEXT];
    float hidden[2][20 * N_EMBD];
    k1_err err;
    get_text(ids);
    for (uint32_t i = 0; i < N_LAYER; i++) {
        stages[i] = new_seq(&t, 9, i, i + 1);
    }
    for (uint32_t done = 0; done < N_TEXT; done += 20) {
        uint32_t n = N_TEXT - done < 20 ? N_TEXT - done : 20;
        float *out = logits + (size_t)done * N_VOCAB;
        assert_int_equal(k1_forward(stages[0], NULL, ids + done, NULL, n, hidden[0], K1_LOGITS_NONE, NULL, &err), 0);
        assert_int_equal(k1_forward(stages[1], NULL, NULL, hidden[0], n, hidden[1], K1_LOGITS_NONE, NULL, &err), 0);
        assert_int_equal(k1_forward(stages[2], NULL, NULL, hidden[1], n, NULL, K1_LOGITS_ALL, out, &err), 0);
    }
    for (uint32_t i = 0; i < N_LAYER; i++) {
        k1_seq_free(stages[i]);
    }
    expect_equal_and_free(logits, whole);
    free(whole);
    unmake(&t);
}

static void the_last_logits_are_the_last_of_all(void **state) {
    (void)state;
    tiny t = make_sound("qwen3", K1_F32);
    float *whole = run(&t, 0, N_TEXT, N_TEXT);
    float last[N_VOCAB];
    int32_t ids[N_TEXT];
    k1_err err;
    k1_seq *seq = new_seq(&t, 64, 0, N_LAYER);
    get_text(ids);
    assert_int_equal(k1_forward(seq, NULL, ids, NULL, 100, NULL, K1_LOGITS_NONE, NULL, &err), 0);
    assert_int_equal(k1_forward(seq, NULL, ids + 100, NULL, N_TEXT - 100, NULL, K1_LOGITS_LAST, last, &err), 0);
    assert_memory_equal(last, whole + (size_t)(N_TEXT - 1) * N_VOCAB, sizeof last);
    k1_seq_free(seq);
    free(whole);
    unmake(&t);
}

static void a_truncated_sequence_goes_on_as_if_nothing_had_followed(void **state) {
    (void)state;
    tiny t = make_sound("llama", K1_F32);
    float *whole = run(&t, 0, N_TEXT, N_TEXT);
    float logits[N_VOCAB];
    const int32_t other[] = {1, 2, 3, 4, 5};
    int32_t ids[N_TEXT];
    k1_err err;
    k1_seq *seq = new_seq(&t, 64, 0, N_LAYER);
    get_text(ids);
    assert_int_equal(k1_forward(seq, NULL, ids, NULL, 70, NULL, K1_LOGITS_NONE, NULL, &err), 0);
    assert_int_equal(k1_forward(seq, NULL, other, NULL, 5, NULL, K1_LOGITS_NONE, NULL, &err), 0);
    k1_seq_truncate(seq, 1000);
    assert_int_equal(k1_seq_n_past(seq), 75);
    k1_seq_truncate(seq, 60);
    assert_int_equal(k1_forward(seq, NULL, ids + 60, NULL, 20, NULL, K1_LOGITS_LAST, logits, &err), 0);
    assert_memory_equal(logits, whole + (size_t)79 * N_VOCAB, sizeof logits);
    k1_seq_free(seq);
    free(whole);
    unmake(&t);
}

static void an_output_of_its_own_is_used(void **state) {
    (void)state;
    recipe r = {.arch = "llama", .type = K1_F32, .untied = true};
    tiny own = make(&r);
    tiny tied = make_sound("llama", K1_F32);
    assert_non_null(own.model);
    float *a = run(&own, 0, N_TEXT, N_TEXT);
    float *b = run(&tied, 0, N_TEXT, N_TEXT);
    assert_memory_not_equal(a, b, N_VOCAB * sizeof *a);
    free(a);
    free(b);
    unmake(&own);
    unmake(&tied);
}

/* ---- refusals ---- */

static void expect_refusal(recipe r, const char *what, const char *also) {
    tiny t = make(&r);
    if (t.model != NULL || strstr(t.err.text, what) == NULL || strstr(t.err.text, also) == NULL) {
        print_message("wanted \"%s\" and \"%s\", got: %s\n", what, also, t.model != NULL ? "a model" : t.err.text);
    }
    assert_null(t.model);
    assert_non_null(strstr(t.err.text, what));
    assert_non_null(strstr(t.err.text, also));
    unmake(&t);
}

static void an_unknown_architecture_names_the_known(void **state) {
    (void)state;
    expect_refusal((recipe){.arch = "mamba"}, "architecture mamba is not known", "known are llama, qwen2 and qwen3");
}

static void faulty_tensors_are_named(void **state) {
    (void)state;
    expect_refusal((recipe){.arch = "llama", .leave_out = "blk.2.ffn_up.weight"}, "blk.2.ffn_up.weight", "missing");
    expect_refusal((recipe){.arch = "llama", .leave_out = "token_embd.weight"}, "token_embd.weight", "missing");
    expect_refusal((recipe){.arch = "qwen2", .leave_out = "blk.1.attn_k.bias"}, "blk.1.attn_k.bias", "missing");
    expect_refusal((recipe){.arch = "qwen3", .leave_out = "blk.0.attn_q_norm.weight"}, "blk.0.attn_q_norm.weight",
                   "missing");
    expect_refusal((recipe){.arch = "llama", .misshape = "blk.1.attn_v.weight"}, "blk.1.attn_v.weight is 64 x 31",
                   "64 x 32");
    expect_refusal((recipe){.arch = "llama", .retype = "output_norm.weight"}, "output_norm.weight is of type F16",
                   "must be F32");
}

static void faulty_keys_are_named(void **state) {
    (void)state;
    expect_refusal((recipe){.arch = "llama", .drop_key = "block_count"}, "llama.block_count", "missing");
    expect_refusal((recipe){.arch = "llama", .n_head_kv = 3}, "llama.attention.head_count is 4",
                   "no multiple of head_count_kv 3");
    expect_refusal((recipe){.arch = "llama", .eps = -1.0f}, "layer_norm_rms_epsilon is -1", "outside");
    expect_refusal((recipe){.arch = "llama", .eps = NAN}, "layer_norm_rms_epsilon is", "outside");
    expect_refusal((recipe){.arch = "llama", .rope_type = "yarn"}, "llama.rope.scaling.type: scaling yarn",
                   "known are none, linear and llama3");
    expect_refusal((recipe){.arch = "llama", .rope_type = "linear"}, "llama.rope.scaling.factor", "missing");
}

static void put_two(k1t_gguf *file, const char *name) {
    const uint64_t ne = 2;
    const float values[2] = {2.0f, 3.0f};
    k1t_tensor(file, name, K1_F32, &ne, 1, values, sizeof values);
}

static void add_output_bias(k1t_gguf *file) { put_two(file, "output.bias"); }
static void add_attn_output_bias(k1t_gguf *file) { put_two(file, "blk.1.attn_output.bias"); }
static void add_ffn_bias(k1t_gguf *file) { put_two(file, "blk.0.ffn_up.bias"); }
static void add_fourth_layer(k1t_gguf *file) { put_two(file, "blk.3.attn_norm.weight"); }
static void add_hostile(k1t_gguf *file) { put_two(file, "\x1b[2J\nx"); }

/* What the forward pass would leave out. */
static void tensors_without_a_place_are_refused(void **state) {
    (void)state;
    const char *why = "has no place in a llama model";
    expect_refusal((recipe){.arch = "llama", .extra = add_output_bias}, "tensor output.bias", why);
    expect_refusal((recipe){.arch = "llama", .extra = add_attn_output_bias}, "tensor blk.1.attn_output.bias", why);
    expect_refusal((recipe){.arch = "llama", .extra = add_ffn_bias}, "tensor blk.0.ffn_up.bias", why);
    expect_refusal((recipe){.arch = "llama", .extra = add_fourth_layer}, "tensor blk.3.attn_norm.weight", why);
    expect_refusal((recipe){.arch = "llama", .extra = add_hostile}, "tensor ?[2J?x", why);
}

static void add_early_scaling(k1t_gguf *file) { k1t_f32(file, "llama.rope.scale_linear", 4.0f); }
static void add_numeric_scaling(k1t_gguf *file) { k1t_u32(file, "llama.rope.scaling.type", 1); }
static void add_bare_factor(k1t_gguf *file) { k1t_f32(file, "llama.rope.scaling.factor", 4.0f); }

static void add_llama3_twice(k1t_gguf *file) {
    const uint64_t ne = HEAD_DIM / 2;
    k1t_tensor(file, "rope_freqs.weight", K1_F32, &ne, 1, NULL, HEAD_DIM / 2 * sizeof(float));
    k1t_f32(file, "llama.rope.scaling.factor", 8.0f);
    k1t_u32(file, "llama.rope.scaling.original_context_length", 64);
}

static void scaling_is_never_ignored(void **state) {
    (void)state;
    expect_refusal((recipe){.arch = "llama", .extra = add_early_scaling}, "key llama.rope.scale_linear",
                   "convert the model again");
    expect_refusal((recipe){.arch = "llama", .extra = add_numeric_scaling}, "key llama.rope.scaling.type is no text",
                   "convert the model again");
    expect_refusal((recipe){.arch = "llama", .extra = add_bare_factor}, "key llama.rope.scaling.factor is there",
                   "without llama.rope.scaling.type");
    expect_refusal((recipe){.arch = "llama", .rope_type = "llama3", .extra = add_llama3_twice}, "rope_freqs.weight",
                   "llama.rope.scaling.type");
}

static void a_context_that_cannot_fit_names_the_largest(void **state) {
    (void)state;
    tiny t = make_sound("llama", K1_F32);
    k1_err err;
    assert_null(k1_seq_new(t.model, 0, 8, 0, N_LAYER, &err));
    assert_string_equal(err.text, "n_ctx is 0, outside 1 to 2147483647");
    assert_null(k1_seq_new(t.model, UINT32_MAX, 8, 0, N_LAYER, &err));
    assert_string_equal(err.text, "n_ctx is 4294967295, outside 1 to 2147483647");
    assert_null(k1_seq_new(t.model, INT32_MAX, 8, 0, N_LAYER, &err));
    assert_non_null(strstr(err.text, "n_ctx 2147483647 needs"));
    assert_non_null(strstr(err.text, "the largest n_ctx that fits is"));
    unmake(&t);
}

static void calls_that_make_no_sense_are_refused(void **state) {
    (void)state;
    tiny t = make_sound("llama", K1_F32);
    k1_err err;
    assert_null(k1_seq_new(t.model, N_CTX, 0, 0, N_LAYER, &err));
    assert_non_null(strstr(err.text, "n_batch is 0"));
    assert_null(k1_seq_new(t.model, N_CTX, 8, 2, 2, &err));
    assert_null(k1_seq_new(t.model, N_CTX, 8, 1, N_LAYER + 1, &err));
    assert_non_null(strstr(err.text, "layers 1 to 4 are no range of a model with 3 layers"));
    k1_seq *seq = new_seq(&t, 8, 0, N_LAYER);
    const int32_t ids[] = {1, 2, N_VOCAB, -1};
    assert_int_equal(k1_forward(seq, NULL, ids, NULL, 3, NULL, K1_LOGITS_NONE, NULL, &err), -1);
    assert_non_null(strstr(err.text, "token id 40 at 2 is outside the vocabulary of 40"));
    assert_int_equal(k1_forward(seq, NULL, ids + 3, NULL, 1, NULL, K1_LOGITS_NONE, NULL, &err), -1);
    assert_int_equal(k1_forward(seq, NULL, ids, NULL, 2, NULL, K1_LOGITS_LAST, NULL, &err), -1);
    assert_int_equal(k1_forward(seq, NULL, NULL, NULL, 2, NULL, K1_LOGITS_NONE, NULL, &err), -1);
    assert_int_equal(k1_seq_n_past(seq), 0);
    k1_seq_free(seq);
    unmake(&t);
}

static void a_full_context_is_refused_and_kept(void **state) {
    (void)state;
    tiny t = make_sound("llama", K1_F32);
    k1_err err;
    int32_t ids[N_TEXT];
    k1_seq *seq = new_seq(&t, 64, 0, N_LAYER);
    get_text(ids);
    assert_int_equal(k1_forward(seq, NULL, ids, NULL, N_TEXT, NULL, K1_LOGITS_NONE, NULL, &err), 0);
    assert_int_equal(k1_forward(seq, NULL, ids, NULL, 11, NULL, K1_LOGITS_NONE, NULL, &err), -1);
    assert_non_null(strstr(err.text, "the context is full: 150 positions are used and 11 more do not fit"));
    assert_int_equal(k1_forward(seq, NULL, ids, NULL, 10, NULL, K1_LOGITS_NONE, NULL, &err), 0);
    assert_int_equal(k1_seq_n_past(seq), N_CTX);
    k1_seq_free(seq);
    unmake(&t);
}

/* ---- attention ---- */

#define N_POS 200u

static void plain_attention(const float *q, const uint16_t *keys, const uint16_t *values, const uint64_t *mask,
                            double *out) {
    double sum = 0.0;
    memset(out, 0, HEAD_DIM * sizeof *out);
    for (size_t p = 0; p < N_POS; p++) {
        double score = 0.0;
        for (size_t i = 0; i < HEAD_DIM; i++) {
            score += (double)q[i] * (double)k1_f16_to_f32(keys[p * HEAD_DIM + i]);
        }
        double weight = (mask[p / 64] >> p % 64 & 1u) != 0 ? exp(score * 0.25) : 0.0;
        sum += weight;
        for (size_t i = 0; i < HEAD_DIM; i++) {
            out[i] += weight * (double)k1_f16_to_f32(values[p * HEAD_DIM + i]);
        }
    }
    for (size_t i = 0; i < HEAD_DIM; i++) {
        out[i] /= sum;
    }
}

static void attention_sees_what_the_mask_lets_it(void **state) {
    (void)state;
    static const uint64_t masks[][4] = {
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0xff},
        {0, 0, 0x8000000000000001u, 0},
        {0x5555555555555555u, 0, 0x00ff00ff00ff00ffu, 0x80},
        {1, 0, 0, 0},
    };
    float q[HEAD_DIM];
    uint16_t keys[N_POS * HEAD_DIM];
    uint16_t values[N_POS * HEAD_DIM];
    random_state = 3;
    for (size_t i = 0; i < N_POS * HEAD_DIM; i++) {
        keys[i] = k1_f32_to_f16(random_float() * 3.0f);
        values[i] = k1_f32_to_f16(random_float());
        q[i % HEAD_DIM] = random_float() * 3.0f;
    }
    for (size_t m = 0; m < sizeof masks / sizeof masks[0]; m++) {
        double expected[HEAD_DIM];
        float got[HEAD_DIM];
        k1_mask mask = {masks[m], 4, 0};
        plain_attention(q, keys, values, masks[m], expected);
        k1_attend(&k1_kernels_scalar, q, keys, values, HEAD_DIM, 0.25f, &mask, 0, N_POS, got);
        for (size_t i = 0; i < HEAD_DIM; i++) {
            assert_true(fabs(expected[i] - (double)got[i]) < 2e-6);
        }
    }
}

static void attention_to_nothing_is_zero(void **state) {
    (void)state;
    const uint64_t none[4] = {0, 0, 0, UINT64_MAX << 8}; /* only positions that are not there */
    const float q[HEAD_DIM] = {1.0f};
    const uint16_t cache[N_POS * HEAD_DIM] = {0x3c00};
    const float zeros[HEAD_DIM] = {0};
    float out[HEAD_DIM];
    k1_mask mask = {none, 4, 0};
    k1_attend(&k1_kernels_scalar, q, cache, cache, HEAD_DIM, 0.25f, &mask, 0, N_POS, out);
    assert_memory_equal(out, zeros, sizeof zeros);
}

static void causal_masks_end_at_the_own_position(void **state) {
    (void)state;
    for (uint32_t pos = 0; pos < 300; pos++) {
        uint32_t seen = 0;
        for (uint32_t word = 0; word < 5; word++) {
            uint64_t bits = k1_mask_causal_word(pos, word);
            seen += k1_mask_count(bits);
            while (bits != 0) {
                assert_true(word * 64 + k1_mask_next(&bits) <= pos);
            }
        }
        assert_int_equal(seen, pos + 1);
    }
}

static void both_cache_layouts_hold_every_run_apart(void **state) {
    (void)state;
    const k1_hparams hp = {.n_head_kv = N_HEAD_KV, .head_dim = HEAD_DIM};
    for (int layout = K1_KV_LAYER_FIRST; layout <= K1_KV_HEAD_FIRST; layout++) {
        k1_kv kv;
        k1_err err;
        assert_int_equal(k1_kv_init(&kv, &hp, 8, N_LAYER, (k1_kv_layout)layout, &err), 0);
        size_t run_length = (size_t)8 * HEAD_DIM;
        memset(kv.data, 0, (size_t)k1_kv_bytes(&hp, 8, N_LAYER));
        for (uint32_t i = 0; i < N_LAYER * N_HEAD_KV; i++) {
            uint16_t *runs[2] = {k1_kv_keys(&kv, i / N_HEAD_KV, i % N_HEAD_KV),
                                 k1_kv_values(&kv, i / N_HEAD_KV, i % N_HEAD_KV)};
            for (size_t j = 0; j < 2 * run_length; j++) {
                runs[j / run_length][j % run_length]++;
            }
        }
        for (size_t i = 0; i < k1_kv_bytes(&hp, 8, N_LAYER) / sizeof(uint16_t); i++) {
            assert_int_equal(kv.data[i], 1);
        }
        k1_kv_free(&kv);
    }
}

/* ---- memory ---- */

static uint64_t budget_below(const char *root) {
    uint64_t bytes = 0;
    k1_err err = {""};
    assert_int_equal(k1_memory_budget(root, &bytes, &err), 0);
    return bytes;
}

static void the_budget_is_what_is_available_less_a_reserve(void **state) {
    (void)state;
    char *root = k1t_folder();
    k1t_text(root, "proc/meminfo", "MemTotal:        1782080 kB\nMemFree: 1000 kB\nMemAvailable:    1600000 kB\n");
    assert_true(budget_below(root) == 1600000u * 1024u / 8 * 7);
    k1t_text(root, "proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable: 16777216 kB\n");
    assert_true(budget_below(root) == (uint64_t)16 * 1024 * 1024 * 1024 - 256 * 1024 * 1024);
    k1t_remove(root);
    assert_true(budget_below(NULL) > 1 << 20);
}

static void a_budget_that_cannot_be_read_is_an_error_and_never_without_end(void **state) {
    (void)state;
    char *root = k1t_folder();
    uint64_t bytes;
    k1_err err = {""};
    assert_int_equal(k1_memory_budget(root, &bytes, &err), -1);
    assert_non_null(strstr(err.text, "cannot read how much memory is free: "));
    assert_non_null(strstr(err.text, "/proc/meminfo: No such file or directory; is /proc mounted?"));
    k1t_text(root, "proc/meminfo", "MemTotal:        1782080 kB\n");
    assert_int_equal(k1_memory_budget(root, &bytes, &err), -1);
    assert_non_null(strstr(err.text, "/proc/meminfo: no line MemAvailable"));
    k1t_remove(root);
}

/* As a daemon that strangers have made use up its descriptors. */
static void a_sequence_is_refused_while_no_file_can_be_opened(void **state) {
    (void)state;
    tiny t = make_sound("llama", K1_Q4_0);
    struct rlimit limit, none;
    k1_err err = {""};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    k1_seq *seq = k1_seq_new(t.model, 16, 4, 0, N_LAYER, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_null(seq);
    assert_non_null(strstr(err.text, "cannot read how much memory is free: /proc/meminfo: "));
    unmake(&t);
}

/* The n_ctx that a refusal names. */
static uint32_t named_largest(const k1_model *model, uint32_t n_batch, uint64_t budget) {
    k1_err err;
    assert_int_equal(k1_memory_check(model, 1000000, n_batch, 0, N_LAYER, budget, &err), -1);
    const char *number = strstr(err.text, "that fits is ");
    assert_non_null(number);
    return (uint32_t)strtoul(number + strlen("that fits is "), NULL, 10);
}

static void the_largest_context_named_fits_and_no_larger(void **state) {
    (void)state;
    static const uint32_t batches[] = {1, 32, 1000, 1u << 16}; /* the last are larger than the contexts found */
    tiny t = make_sound("llama", K1_Q4_0);
    k1_err err;
    uint64_t budget = 1 << 20;
    uint32_t before = UINT32_MAX;
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        uint32_t largest = named_largest(t.model, batches[i], budget);
        assert_true(largest > 100 && largest <= before);
        assert_int_equal(k1_memory_check(t.model, largest, batches[i], 0, N_LAYER, budget, &err), 0);
        assert_int_equal(k1_memory_check(t.model, largest + 1, batches[i], 0, N_LAYER, budget, &err), -1);
        assert_int_equal(k1_memory_check(t.model, largest + 1, batches[i], 1, N_LAYER, budget, &err), 0);
        before = largest;
    }
    assert_int_equal(k1_memory_check(t.model, 1, 32, 0, N_LAYER, 1000, &err), -1);
    assert_non_null(strstr(err.text, "without any context"));
    unmake(&t);
}

static void sequences_of_one_length_share_their_rope_tables(void **state) {
    (void)state;
    tiny t = make_sound("llama", K1_F32);
    k1_err err;
    k1_seq *first = k1_seq_new(t.model, 32, 4, 0, N_LAYER, &err);
    k1_seq *second = k1_seq_new(t.model, 32, 8, 1, 2, &err);
    k1_seq *longer = k1_seq_new(t.model, 64, 4, 0, N_LAYER, &err);
    assert_true(first != NULL && second != NULL && longer != NULL);
    assert_ptr_equal(first->rope, second->rope);
    assert_ptr_not_equal(first->rope, longer->rope);
    assert_memory_equal(first->rope->cos, longer->rope->cos, (size_t)32 * HEAD_DIM / 2 * sizeof(float));
    k1_seq_free(first);
    assert_true(second->rope->cos[0] == 1.0f); /* still there */
    k1_seq_free(longer);
    k1_seq_free(second);
    assert_null(t.model->ropes);
    unmake(&t);
}

static void what_is_needed_is_what_is_taken(void **state) {
    (void)state;
    tiny t = make_sound("llama", K1_F32); /* one embedding serves as the output too */
    uint64_t layer = (uint64_t)N_EMBD * (2 * N_HEAD * HEAD_DIM + 2 * N_HEAD_KV * HEAD_DIM + 3 * N_FF) * sizeof(float);
    uint64_t embedding = (uint64_t)N_VOCAB * N_EMBD * sizeof(float);
    uint64_t kv = (uint64_t)2 * 136 * N_HEAD_KV * HEAD_DIM * sizeof(uint16_t);
    uint64_t rope = (uint64_t)2 * 128 * HEAD_DIM / 2 * sizeof(float);
    uint64_t choice = N_VOCAB * sizeof(float) + k1_sample_scratch(N_VOCAB);
    uint64_t scratch = k1_scratch_bytes(k1_model_hparams(t.model), 16);
    assert_true(k1_memory_needed(t.model, 128, 16, 1, 2) == layer + kv + rope + scratch);
    assert_true(k1_memory_needed(t.model, 128, 16, 0, 1) == layer + kv + rope + scratch + embedding);
    assert_true(k1_memory_needed(t.model, 128, 16, 2, 3) == layer + kv + rope + scratch + embedding + choice);
    assert_true(k1_memory_needed(t.model, 128, 16, 0, 3) == 3 * (layer + kv) + rope + scratch + embedding + choice);
    assert_true(k1_memory_more(t.model, 128, 16, 0, 3) == 3 * kv + scratch);
    assert_true(k1_memory_needed(t.model, 128, 128, 0, 3) == k1_memory_needed(t.model, 128, 512, 0, 3));
    unmake(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_batches_and_threads_change_no_bit),
        cmocka_unit_test(every_table_of_kernels_gives_the_same_logits),
        cmocka_unit_test(stages_of_a_pipeline_change_no_bit),
        cmocka_unit_test(the_last_logits_are_the_last_of_all),
        cmocka_unit_test(a_truncated_sequence_goes_on_as_if_nothing_had_followed),
        cmocka_unit_test(an_output_of_its_own_is_used),
        cmocka_unit_test(an_unknown_architecture_names_the_known),
        cmocka_unit_test(faulty_tensors_are_named),
        cmocka_unit_test(faulty_keys_are_named),
        cmocka_unit_test(tensors_without_a_place_are_refused),
        cmocka_unit_test(scaling_is_never_ignored),
        cmocka_unit_test(a_context_that_cannot_fit_names_the_largest),
        cmocka_unit_test(calls_that_make_no_sense_are_refused),
        cmocka_unit_test(a_full_context_is_refused_and_kept),
        cmocka_unit_test(attention_sees_what_the_mask_lets_it),
        cmocka_unit_test(attention_to_nothing_is_zero),
        cmocka_unit_test(causal_masks_end_at_the_own_position),
        cmocka_unit_test(both_cache_layouts_hold_every_run_apart),
        cmocka_unit_test(the_budget_is_what_is_available_less_a_reserve),
        cmocka_unit_test(a_budget_that_cannot_be_read_is_an_error_and_never_without_end),
        cmocka_unit_test(a_sequence_is_refused_while_no_file_can_be_opened),
        cmocka_unit_test(the_largest_context_named_fits_and_no_larger),
        cmocka_unit_test(sequences_of_one_length_share_their_rope_tables),
        cmocka_unit_test(what_is_needed_is_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
