/* From an open GGUF file to a model: hyper-parameters, tensors and shapes, each checked with an error that names it.
 * Names of keys and tensors: gguf-py/gguf/constants.py. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_internal.h"
#include "internal.h"

#define DEFAULT_ROPE_BASE 10000.0f

/* What tells the architectures apart. */
typedef struct family {
    const char *name;
    k1_rope_pairs rope_pairs;
    bool qkv_bias;
    bool qk_norm;
} family;

static const family families[] = {
    {"llama", K1_ROPE_NEIGHBOURS, false, false},
    {"qwen2", K1_ROPE_HALVES, true, false},
    {"qwen3", K1_ROPE_HALVES, false, true},
};

typedef struct loader {
    const k1_gguf *gguf;
    k1_model *model;
    const family *family;
    bool *used; /* bool[n_tensors]: which the model has taken */
    k1_err *err;
} loader;

static int find_family(loader *l) {
    k1_str arch;
    if (!k1_gguf_str(l->gguf, "general.architecture", &arch)) {
        return k1_fail(l->err, "key general.architecture is missing: is this file a language model?");
    }
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const char *name = families[i].name;
        if (k1_str_is(arch, name)) {
            l->family = &families[i];
            memcpy(l->model->hp.arch, name, arch.len + 1);
            return 0;
        }
    }
    return k1_fail(l->err, "key general.architecture: %s is not known; known are llama, qwen2 and qwen3",
                   k1_gguf_show("architecture", arch).text);
}

typedef struct key {
    char text[96];
} key;

static key arch_key(const loader *l, const char *suffix) {
    key k;
    (void)snprintf(k.text, sizeof k.text, "%s.%s", l->family->name, suffix);
    return k;
}

/* A count between 1 and max; absent: fallback, or an error when that is 0. */
static int load_count(loader *l, const char *suffix, uint32_t max, uint32_t fallback, uint32_t *value) {
    key k = arch_key(l, suffix);
    *value = fallback;
    if (!k1_gguf_u32(l->gguf, k.text, value) && (fallback == 0 || k1_gguf_has(l->gguf, k.text))) {
        return k1_fail(l->err, "key %s is missing or no count: convert the model again", k.text);
    }
    if (*value == 0 || *value > max) {
        return k1_fail(l->err, "key %s is %" PRIu32 ", outside 1 to %" PRIu32, k.text, *value, max);
    }
    return 0;
}

static int load_float(loader *l, const char *suffix, float min, float max, float *value) {
    key k = arch_key(l, suffix);
    if (!k1_gguf_f32(l->gguf, k.text, value) && (*value == 0.0f || k1_gguf_has(l->gguf, k.text))) {
        return k1_fail(l->err, "key %s is missing or no float: convert the model again", k.text);
    }
    if (!(*value >= min && *value <= max)) {
        return k1_fail(l->err, "key %s is %g, outside %g to %g", k.text, (double)*value, (double)min, (double)max);
    }
    return 0;
}

static int load_heads(loader *l) {
    k1_hparams *hp = &l->model->hp;
    if (load_count(l, "attention.head_count", 1u << 12, 0, &hp->n_head) != 0 ||
        load_count(l, "attention.head_count_kv", 1u << 12, hp->n_head, &hp->n_head_kv) != 0) {
        return -1;
    }
    if (hp->n_head % hp->n_head_kv != 0) {
        return k1_fail(l->err, "key %s.attention.head_count is %" PRIu32 ", no multiple of head_count_kv %" PRIu32,
                       hp->arch, hp->n_head, hp->n_head_kv);
    }
    uint32_t implied = hp->n_embd / hp->n_head;
    uint32_t value_dim;
    if (load_count(l, "attention.key_length", 1u << 12, implied, &hp->head_dim) != 0 ||
        load_count(l, "attention.value_length", 1u << 12, hp->head_dim, &value_dim) != 0 ||
        load_count(l, "rope.dimension_count", hp->head_dim, hp->head_dim, &hp->n_rot) != 0) {
        return -1;
    }
    if (value_dim != hp->head_dim || hp->n_rot % 2 != 0) {
        return k1_fail(l->err,
                       "key %s.attention.value_length is %" PRIu32 ", which must equal key_length %" PRIu32
                       ", and rope.dimension_count is %" PRIu32 ", which must be even",
                       hp->arch, value_dim, hp->head_dim, hp->n_rot);
    }
    return 0;
}

static int load_hparams(loader *l) {
    k1_hparams *hp = &l->model->hp;
    hp->rms_eps = 0.0f; /* no fallback */
    hp->rope_base = DEFAULT_ROPE_BASE;
    if (load_count(l, "block_count", 1u << 12, 0, &hp->n_layer) != 0 ||
        load_count(l, "embedding_length", 1u << 20, 0, &hp->n_embd) != 0 || load_heads(l) != 0 ||
        load_count(l, "feed_forward_length", 1u << 22, 0, &hp->n_ff) != 0 ||
        load_count(l, "context_length", UINT32_MAX, 0, &hp->n_ctx_train) != 0 ||
        load_float(l, "attention.layer_norm_rms_epsilon", 1e-12f, 1.0f, &hp->rms_eps) != 0) {
        return -1;
    }
    return load_float(l, "rope.freq_base", 1.0f, 1e12f, &hp->rope_base);
}

/* ---- tensors ---- */

static const k1_tensor *need(loader *l, const char *name) {
    const k1_tensor *tensor = k1_gguf_tensor(l->gguf, name);
    if (tensor == NULL) {
        (void)k1_fail(l->err, "tensor %s is missing: the file does not hold a whole %s model", name, l->family->name);
        return NULL;
    }
    l->used[tensor - k1_gguf_tensor_at(l->gguf, 0)] = true;
    return tensor;
}

static int check_shape(loader *l, const k1_tensor *tensor, uint64_t n_in, uint64_t n_out) {
    if (tensor->ne[0] == n_in && tensor->ne[1] == n_out && tensor->ne[2] == 1 && tensor->ne[3] == 1) {
        return 0;
    }
    return k1_fail(l->err,
                   "tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 ", but the keys of %s ask for "
                   "%" PRIu64 " x %" PRIu64 ": convert the model again",
                   tensor->name, tensor->ne[0], tensor->ne[1], tensor->ne[2], tensor->ne[3], l->family->name, n_in,
                   n_out);
}

/* A vector of n floats. Absent: NULL, an error when it is needed. */
static int load_vector(loader *l, const char *name, bool needed, uint32_t n, const float **out) {
    *out = NULL;
    if (!needed && k1_gguf_tensor(l->gguf, name) == NULL) {
        return 0;
    }
    const k1_tensor *tensor = need(l, name);
    if (tensor == NULL || check_shape(l, tensor, n, 1) != 0) {
        return -1;
    }
    if (tensor->type != K1_F32) {
        return k1_fail(l->err, "tensor %s is of type %s, but norms and biases must be F32: convert the model again",
                       name, k1_dtype_name(tensor->type));
    }
    *out = tensor->data;
    return 0;
}

static int load_linear(loader *l, const char *name, uint32_t n_in, uint64_t n_out, k1_linear *out) {
    const k1_tensor *tensor = need(l, name);
    if (tensor == NULL || check_shape(l, tensor, n_in, n_out) != 0) {
        return -1;
    }
    if ((size_t)tensor->type >= K1_N_DTYPES || l->model->kernels->matmul[tensor->type].run == NULL) {
        return k1_fail(l->err, "tensor %s is of type %s, for which the %s kernels have no product", name,
                       k1_dtype_name(tensor->type), l->model->kernels->name);
    }
    out->data = tensor->data;
    out->type = tensor->type;
    out->row_bytes = n_in / k1_dtype_block(tensor->type) * k1_dtype_block_bytes(tensor->type);
    out->n_in = n_in;
    out->n_out = (uint32_t)n_out;
    out->bias = NULL;
    return 0;
}

/* "blk.<layer>.<part>" */
static key layer_name(uint32_t layer, const char *part) {
    key k;
    (void)snprintf(k.text, sizeof k.text, "blk.%" PRIu32 ".%s", layer, part);
    return k;
}

static int layer_linear(loader *l, uint32_t layer, const char *part, uint32_t n_in, uint64_t n_out, k1_linear *out) {
    if (load_linear(l, layer_name(layer, part).text, n_in, n_out, out) != 0) {
        return -1;
    }
    l->model->layers[layer].bytes += (uint64_t)out->row_bytes * n_out;
    return 0;
}

static int layer_vector(loader *l, uint32_t layer, const char *part, bool needed, uint32_t n, const float **out) {
    return load_vector(l, layer_name(layer, part).text, needed, n, out);
}

static int load_attention(loader *l, uint32_t i) {
    const k1_hparams *hp = &l->model->hp;
    k1_layer *layer = &l->model->layers[i];
    uint32_t q_dim = hp->n_head * hp->head_dim;
    uint32_t kv_dim = hp->n_head_kv * hp->head_dim;
    bool bias = l->family->qkv_bias;
    if (layer_vector(l, i, "attn_norm.weight", true, hp->n_embd, &layer->attn_norm) != 0 ||
        layer_linear(l, i, "attn_q.weight", hp->n_embd, q_dim, &layer->q) != 0 ||
        layer_linear(l, i, "attn_k.weight", hp->n_embd, kv_dim, &layer->k) != 0 ||
        layer_linear(l, i, "attn_v.weight", hp->n_embd, kv_dim, &layer->v) != 0 ||
        layer_linear(l, i, "attn_output.weight", q_dim, hp->n_embd, &layer->o) != 0 ||
        layer_vector(l, i, "attn_q.bias", bias, q_dim, &layer->q.bias) != 0 ||
        layer_vector(l, i, "attn_k.bias", bias, kv_dim, &layer->k.bias) != 0 ||
        layer_vector(l, i, "attn_v.bias", bias, kv_dim, &layer->v.bias) != 0) {
        return -1;
    }
    layer->q_norm = NULL;
    layer->k_norm = NULL;
    if (!l->family->qk_norm) {
        return 0;
    }
    return layer_vector(l, i, "attn_q_norm.weight", true, hp->head_dim, &layer->q_norm) != 0 ||
                   layer_vector(l, i, "attn_k_norm.weight", true, hp->head_dim, &layer->k_norm) != 0
               ? -1
               : 0;
}

static int load_feed_forward(loader *l, uint32_t i) {
    const k1_hparams *hp = &l->model->hp;
    k1_layer *layer = &l->model->layers[i];
    if (layer_vector(l, i, "ffn_norm.weight", true, hp->n_embd, &layer->ffn_norm) != 0 ||
        layer_linear(l, i, "ffn_gate.weight", hp->n_embd, hp->n_ff, &layer->gate) != 0 ||
        layer_linear(l, i, "ffn_up.weight", hp->n_embd, hp->n_ff, &layer->up) != 0) {
        return -1;
    }
    return layer_linear(l, i, "ffn_down.weight", hp->n_ff, hp->n_embd, &layer->down);
}

/* The vocabulary's size is that of the embedding; a key that says otherwise is a fault of the file. */
static int load_embedding(loader *l) {
    k1_hparams *hp = &l->model->hp;
    const k1_tensor *tensor = need(l, "token_embd.weight");
    if (tensor == NULL) {
        return -1;
    }
    if (tensor->ne[1] > 1u << 24) {
        return k1_fail(l->err, "tensor token_embd.weight has %" PRIu64 " rows, outside 1 to %u", tensor->ne[1],
                       1u << 24);
    }
    if (load_count(l, "vocab_size", 1u << 24, (uint32_t)tensor->ne[1], &hp->n_vocab) != 0 ||
        load_linear(l, "token_embd.weight", hp->n_embd, hp->n_vocab, &l->model->embedding) != 0) {
        return -1;
    }
    if (k1_gguf_tensor(l->gguf, "output.weight") == NULL) {
        l->model->output = l->model->embedding;
        return 0;
    }
    return load_linear(l, "output.weight", hp->n_embd, hp->n_vocab, &l->model->output);
}

static int load_tensors(loader *l) {
    k1_model *model = l->model;
    model->layers = calloc(model->hp.n_layer, sizeof *model->layers);
    if (model->layers == NULL) {
        return k1_fail(l->err, "no memory for %" PRIu32 " layers", model->hp.n_layer);
    }
    if (load_embedding(l) != 0 ||
        load_vector(l, "output_norm.weight", true, model->hp.n_embd, &model->output_norm) != 0) {
        return -1;
    }
    for (uint32_t i = 0; i < model->hp.n_layer; i++) {
        if (load_attention(l, i) != 0 || load_feed_forward(l, i) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- rotary position embedding ---- */

static int load_llama3_scaling(loader *l) {
    float factor = 0.0f;
    float low = 1.0f;
    float high = 4.0f;
    uint32_t original;
    if (load_float(l, "rope.scaling.factor", 1.0f, 1e6f, &factor) != 0 ||
        load_float(l, "rope.scaling.low_freq_factor", 1e-3f, 1e3f, &low) != 0 ||
        load_float(l, "rope.scaling.high_freq_factor", 1e-3f, 1e3f, &high) != 0 ||
        load_count(l, "rope.scaling.original_context_length", UINT32_MAX, 0, &original) != 0) {
        return -1;
    }
    if (high <= low) {
        return k1_fail(l->err, "key %s.rope.scaling.high_freq_factor is %g, not above low_freq_factor %g",
                       l->family->name, (double)high, (double)low);
    }
    k1_rope_scaling *scaling = &l->model->rope_scaling;
    scaling->llama3 = true;
    scaling->llama3_factor = (double)factor;
    scaling->low_freq_factor = (double)low;
    scaling->high_freq_factor = (double)high;
    scaling->original_context = original;
    return 0;
}

/* Keys that ask for scaling in a way that is not read here. */
static int check_scaling_keys(loader *l) {
    key type = arch_key(l, "rope.scaling.type");
    key factor = arch_key(l, "rope.scaling.factor");
    key early = arch_key(l, "rope.scale_linear");
    k1_str ignored;
    if (k1_gguf_has(l->gguf, early.text)) {
        return k1_fail(l->err, "key %s is that of early converters and not read: convert the model again", early.text);
    }
    if (!k1_gguf_has(l->gguf, type.text) && k1_gguf_has(l->gguf, factor.text)) {
        return k1_fail(l->err, "key %s is there without %s: convert the model again", factor.text, type.text);
    }
    if (k1_gguf_has(l->gguf, type.text) && !k1_gguf_str(l->gguf, type.text, &ignored)) {
        return k1_fail(l->err, "key %s is no text: convert the model again", type.text);
    }
    return 0;
}

static int load_scaling(loader *l) {
    key k = arch_key(l, "rope.scaling.type");
    k1_str type;
    float factor = 0.0f;
    l->model->rope_scaling.linear = 1.0;
    if (check_scaling_keys(l) != 0) {
        return -1;
    }
    if (!k1_gguf_str(l->gguf, k.text, &type) || k1_str_is(type, "none")) {
        return 0;
    }
    if (k1_str_is(type, "llama3")) {
        return load_llama3_scaling(l);
    }
    if (!k1_str_is(type, "linear")) {
        return k1_fail(l->err, "key %s: %s is not known; known are none, linear and llama3", k.text,
                       k1_gguf_show("scaling", type).text);
    }
    if (load_float(l, "rope.scaling.factor", 1e-3f, 1e6f, &factor) != 0) {
        return -1;
    }
    l->model->rope_scaling.linear = (double)factor;
    return 0;
}

static int load_factors(loader *l) {
    uint32_t n_pairs = l->model->hp.n_rot / 2;
    k1_rope_scaling *scaling = &l->model->rope_scaling;
    if (load_vector(l, "rope_freqs.weight", false, n_pairs, &scaling->factors) != 0) {
        return -1;
    }
    if (scaling->factors != NULL && scaling->llama3) {
        return k1_fail(l->err,
                       "tensor rope_freqs.weight and key %s both scale by Llama 3's rule, which would be done twice: "
                       "convert the model again",
                       arch_key(l, "rope.scaling.type").text);
    }
    for (uint32_t i = 0; scaling->factors != NULL && i < n_pairs; i++) {
        if (!(scaling->factors[i] >= 1e-3f && scaling->factors[i] <= 1e6f)) {
            return k1_fail(l->err, "tensor rope_freqs.weight holds %g at %" PRIu32 ", outside 0.001 to 1000000",
                           (double)scaling->factors[i], i);
        }
    }
    return 0;
}

/* A tensor that the architecture has no place for would change the answers if it were used. */
static int check_all_used(loader *l) {
    for (size_t i = 0; i < k1_gguf_n_tensors(l->gguf); i++) {
        if (!l->used[i]) {
            return k1_fail(l->err, "%s has no place in a %s model as it is known here: this file cannot be run",
                           k1_gguf_show_tensor(k1_gguf_tensor_at(l->gguf, i)).text, l->family->name);
        }
    }
    return 0;
}

static int load(loader *l) {
    l->used = calloc(k1_gguf_n_tensors(l->gguf) + 1, sizeof *l->used);
    if (l->used == NULL) {
        return k1_fail(l->err, "no memory for the model");
    }
    if (find_family(l) != 0 || load_hparams(l) != 0 || load_tensors(l) != 0 || load_scaling(l) != 0 ||
        load_factors(l) != 0) {
        return -1;
    }
    l->model->rope_pairs = l->family->rope_pairs;
    return check_all_used(l);
}

k1_model *k1_model_new(const k1_gguf *gguf, const k1_kernels *kernels, k1_err *err) {
    k1_model *model = calloc(1, sizeof *model);
    if (model == NULL) {
        (void)k1_fail(err, "no memory for the model");
        return NULL;
    }
    model->kernels = kernels;
    loader l = {.gguf = gguf, .model = model, .err = err};
    int failed = load(&l);
    free(l.used);
    if (failed != 0) {
        k1_model_free(model);
        return NULL;
    }
    return model;
}

void k1_model_free(k1_model *model) {
    if (model == NULL) {
        return;
    }
    free(model->layers);
    free(model);
}

const k1_hparams *k1_model_hparams(const k1_model *model) { return &model->hp; }
