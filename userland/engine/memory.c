/* How much memory a part of a model takes to run, how much there is, and the refusal when that is not enough. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"
#include "k1/sampler.h"

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

/* What the runtime keeps beside the last layers. */
static uint64_t choice_bytes(const k1_hparams *hp) {
    return k1_add_sat(k1_mul_sat(hp->n_vocab, sizeof(float)), k1_sample_scratch(hp->n_vocab));
}

uint64_t k1_memory_more(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last) {
    uint64_t kv = k1_kv_bytes(&model->hp, k1_kv_rows(n_ctx), last - first);
    return k1_add_sat(kv, k1_scratch_bytes(&model->hp, n_batch < n_ctx ? n_batch : n_ctx));
}

uint64_t k1_memory_needed(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last) {
    const k1_hparams *hp = &model->hp;
    uint64_t bytes = k1_weight_bytes(model, first, last);
    bytes = k1_add_sat(bytes, k1_memory_more(model, n_ctx, n_batch, first, last));
    bytes = k1_add_sat(bytes, k1_rope_bytes(hp, n_ctx));
    return last == hp->n_layer ? k1_add_sat(bytes, choice_bytes(hp)) : bytes;
}

/* MemAvailable, in bytes. */
static int read_available(FILE *file, const char *path, uint64_t *bytes, k1_err *err) {
    char line[128];
    uint64_t kib;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1) {
            *bytes = k1_mul_sat(kib, 1024);
            return 0;
        }
    }
    return k1_fail(err, "%s: no line MemAvailable, so that nobody knows how much memory is free", path);
}

int k1_memory_budget(const char *root, uint64_t *bytes, k1_err *err) {
    char path[512];
    snprintf(path, sizeof path, "%s/proc/meminfo", root != NULL ? root : "");
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return k1_fail(err, "cannot read how much memory is free: %s: %s; is /proc mounted?", path, strerror(errno));
    }
    uint64_t available = 0;
    int failed = read_available(file, path, &available, err);
    (void)fclose(file);
    if (failed == 0) {
        uint64_t reserve = available / 8;
        *bytes = available - (reserve < RESERVE_MAX ? reserve : RESERVE_MAX);
    }
    return failed;
}

/* The largest n_ctx up to max whose needs are within the budget; 0 when there is none. */
static uint32_t largest_ctx(const k1_model *model, uint32_t max, uint32_t n_batch, uint32_t first, uint32_t last,
                            uint64_t budget) {
    uint32_t fits = 0;
    uint32_t too_large = max + 1;
    while (too_large - fits > 1) {
        uint32_t middle = fits + (too_large - fits) / 2;
        if (k1_memory_needed(model, middle, n_batch, first, last) <= budget) {
            fits = middle;
        } else {
            too_large = middle;
        }
    }
    return fits;
}

int k1_memory_check(const k1_model *model, uint32_t n_ctx, uint32_t n_batch, uint32_t first, uint32_t last,
                    uint64_t budget, k1_err *err) {
    uint64_t needed = k1_memory_needed(model, n_ctx, n_batch, first, last);
    if (needed <= budget) {
        return 0;
    }
    uint32_t largest = largest_ctx(model, n_ctx, n_batch, first, last, budget);
    if (largest == 0) {
        return k1_fail(err,
                       "layers %" PRIu32 " to %" PRIu32 " need %.0f MiB without any context, %.0f MiB are free: give "
                       "fewer layers to this node, or choose a smaller model",
                       first, last, (double)k1_memory_needed(model, 1, 1, first, last) / MIB, (double)budget / MIB);
    }
    return k1_fail(err,
                   "n_ctx %" PRIu32 " needs %.0f MiB (weights, KV cache, tables and scratch), %.0f MiB are free: the "
                   "largest n_ctx that fits is %" PRIu32 " (n_batch %" PRIu32 ")",
                   n_ctx, (double)needed / MIB, (double)budget / MIB, largest, n_batch);
}
