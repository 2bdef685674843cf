/* Writes the seeds of fuzz_model to PREFIXname.seed: models of one layer, with ones for weights. */
#include <stdio.h>

#include "support.h"

enum { N_EMBD = 4, N_FF = 4, N_VOCAB = 2, N_HEAD = 2, N_HEAD_KV = 1, HEAD_DIM = 2 };

typedef struct tensor {
    const char *name;
    uint64_t ne[2]; /* ne[1] 0: a vector */
} tensor;

static const tensor all[] = {
    {"token_embd.weight", {N_EMBD, N_VOCAB}},
    {"output_norm.weight", {N_EMBD, 0}},
    {"blk.0.attn_norm.weight", {N_EMBD, 0}},
    {"blk.0.attn_q.weight", {N_EMBD, N_HEAD * HEAD_DIM}},
    {"blk.0.attn_k.weight", {N_EMBD, N_HEAD_KV * HEAD_DIM}},
    {"blk.0.attn_v.weight", {N_EMBD, N_HEAD_KV * HEAD_DIM}},
    {"blk.0.attn_output.weight", {N_HEAD * HEAD_DIM, N_EMBD}},
    {"blk.0.ffn_norm.weight", {N_EMBD, 0}},
    {"blk.0.ffn_gate.weight", {N_EMBD, N_FF}},
    {"blk.0.ffn_up.weight", {N_EMBD, N_FF}},
    {"blk.0.ffn_down.weight", {N_FF, N_EMBD}},
};
static const tensor llama[] = {{"output.weight", {N_EMBD, N_VOCAB}}, {"rope_freqs.weight", {HEAD_DIM / 2, 0}}};
static const tensor qwen2[] = {
    {"blk.0.attn_q.bias", {N_HEAD * HEAD_DIM, 0}},
    {"blk.0.attn_k.bias", {N_HEAD_KV * HEAD_DIM, 0}},
    {"blk.0.attn_v.bias", {N_HEAD_KV * HEAD_DIM, 0}},
};
static const tensor qwen3[] = {{"blk.0.attn_q_norm.weight", {HEAD_DIM, 0}},
                               {"blk.0.attn_k_norm.weight", {HEAD_DIM, 0}}};

static const struct {
    const char *arch;
    const tensor *own;
    size_t n_own;
    const char *scaling;
} seeds[] = {
    {"llama", llama, sizeof llama / sizeof *llama, "linear"},
    {"qwen2", qwen2, sizeof qwen2 / sizeof *qwen2, "llama3"},
    {"qwen3", qwen3, sizeof qwen3 / sizeof *qwen3, "none"},
};

static const char *key_of(const char *arch, const char *suffix) {
    static char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", arch, suffix);
    return key;
}

static void put_keys(k1t_gguf *file, const char *arch, const char *scaling) {
    static const struct {
        const char *suffix;
        uint32_t value;
    } counts[] = {
        {"block_count", 1},
        {"context_length", 8},
        {"embedding_length", N_EMBD},
        {"feed_forward_length", N_FF},
        {"attention.head_count", N_HEAD},
        {"attention.head_count_kv", N_HEAD_KV},
        {"rope.dimension_count", HEAD_DIM},
        {"rope.scaling.original_context_length", 4},
    };
    k1t_str(file, "general.architecture", arch);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        k1t_u32(file, key_of(arch, counts[i].suffix), counts[i].value);
    }
    k1t_f32(file, key_of(arch, "attention.layer_norm_rms_epsilon"), 1e-5f);
    k1t_f32(file, key_of(arch, "rope.freq_base"), 10000.0f);
    k1t_str(file, key_of(arch, "rope.scaling.type"), scaling);
    k1t_f32(file, key_of(arch, "rope.scaling.factor"), 2.0f);
}

static void put_tensors(k1t_gguf *file, const tensor *tensors, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const tensor *t = &tensors[i];
        float ones[N_EMBD * N_EMBD];
        size_t values = t->ne[0] * (t->ne[1] == 0 ? 1 : t->ne[1]);
        for (size_t v = 0; v < values; v++) {
            ones[v] = 1.0f;
        }
        k1t_tensor(file, t->name, K1_F32, t->ne, t->ne[1] == 0 ? 1 : 2, ones, values * sizeof *ones);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s PREFIX\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        k1t_gguf file = {0};
        put_keys(&file, seeds[i].arch, seeds[i].scaling);
        put_tensors(&file, all, sizeof all / sizeof *all);
        put_tensors(&file, seeds[i].own, seeds[i].n_own);
        if (k1t_seed_gguf(argv[1], seeds[i].arch, &file) != 0) {
            return 1;
        }
    }
    return 0;
}
