/* How much memory a sequence takes, how much there is, and the refusal when that is not enough. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define MIB (1024.0 * 1024.0)
#define RESERVE_MAX (256u << 20)

static uint64_t linear_bytes(const k1_linear *linear) { return k1_mul_sat(linear->row_bytes, linear->n_out); }

static uint64_t widest(const k1_hparams *hp) {
    uint64_t q_dim = (uint64_t)hp->n_head * hp->head_dim;
    uint64_t width = hp->n_embd > hp->n_ff ? hp->n_embd : hp->n_ff;
    return width > q_dim ? width : q_dim;
}

uint64_t k1_scratch_bytes(const k1_hparams *hp, uint32_t n_batch) {
    uint64_t heads = (uint64_t)2 * hp->n_head + (uint64_t)2 * hp->n_head_kv;
    uint64_t floats = (uint64_t)2 * hp->n_embd + heads * hp->head_dim + (uint64_t)2 * hp->n_ff;
    uint64_t blocks = (widest(hp) + K1_Q16_BLOCK - 1) / K1_Q16_BLOCK;
    uint64_t per_token = floats * sizeof(float) + blocks * sizeof(k1_q16);
    return k1_add_sat(k1_mul_sat(per_token, n_batch), (uint64_t)16 * 64); /* each piece is aligned to 64 */
}

uint64_t k1_rope_bytes(const k1_hparams *hp, uint32_t n_ctx) {
    return k1_mul_sat(n_ctx, (uint64_t)hp->n_rot / 2 * 2 * sizeof(float));
}

uint64_t k1_weight_bytes(const k1_model *model, uint32_t first, uint32_t last) {
    uint64_t bytes = first == 0 ? linear_bytes(&model->embedding) : 0;
    for (uint32_t i = first; i < last; i++) {
        bytes = k1_add_sat(bytes, model->layers[i].bytes);
    }
    bool tied = model->output.data == model->embedding.data;
    if (last == model->hp.n_layer && !(tied && first == 0)) {
        bytes = k1_add_sat(bytes, linear_bytes(&model->output));
    }
    return bytes;
}

uint64_t k1_seq_bytes(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last) {
    uint64_t kv = k1_kv_bytes(&model->hp, n_ctx, last > first ? last - first : 0);
    return k1_add_sat(kv, k1_scratch_bytes(&model->hp, n_batch));
}

uint64_t k1_memory_budget(const char *root) {
    char path[512];
    int len = snprintf(path, sizeof path, "%s/proc/meminfo", root != NULL ? root : "");
    if (len < 0 || (size_t)len >= sizeof path) {
        return UINT64_MAX;
    }
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return UINT64_MAX;
    }
    char line[128];
    uint64_t available = UINT64_MAX;
    while (fgets(line, sizeof line, file) != NULL) {
        uint64_t kib;
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1) {
            available = k1_mul_sat(kib, 1024);
            break;
        }
    }
    (void)fclose(file);
    if (available == UINT64_MAX) {
        return UINT64_MAX;
    }
    uint64_t reserve = available / 8;
    return available - (reserve < RESERVE_MAX ? reserve : RESERVE_MAX);
}

int k1_memory_check(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last,
                    uint64_t budget, k1_err *err) {
    const k1_hparams *hp = &model->hp;
    uint64_t per_position = k1_rope_bytes(hp, 1) + k1_kv_bytes(hp, 1, last - first);
    uint64_t fixed = k1_add_sat(k1_weight_bytes(model, first, last), k1_scratch_bytes(hp, n_batch));
    uint64_t needed = k1_add_sat(fixed, k1_mul_sat(per_position, n_ctx));
    if (needed <= budget) {
        return 0;
    }
    if (budget < fixed || budget - fixed < per_position) {
        return k1_fail(err,
                       "layers %" PRIu32 " to %" PRIu32 " need %.0f MiB without any context, %.0f MiB are free: give "
                       "fewer layers to this node, or choose a smaller model or --n_batch",
                       first, last, (double)fixed / MIB, (double)budget / MIB);
    }
    return k1_fail(err,
                   "n_ctx %" PRIu32 " needs %.0f MiB (weights, KV cache, tables and scratch), %.0f MiB are free: the "
                   "largest n_ctx that fits is %" PRIu64,
                   n_ctx, (double)needed / MIB, (double)budget / MIB, (budget - fixed) / per_position);
}
