/* The cache of keys and values. */
#include <stdlib.h>

#include "internal.h"

#define ALIGNMENT 64u

uint32_t k1_kv_rows(uint32_t n_ctx) { return ((n_ctx + 7u) & ~7u) | 8u; }

uint64_t k1_kv_bytes(const k1_hparams *hp, uint32_t n_rows, uint32_t n_layers) {
    uint64_t run = k1_mul_sat(n_rows, (uint64_t)hp->head_dim * sizeof(uint16_t));
    return k1_mul_sat(k1_mul_sat(run, (uint64_t)hp->n_head_kv * n_layers), 2);
}

int k1_kv_init(k1_kv *kv, const k1_hparams *hp, uint32_t n_rows, uint32_t n_layers, k1_kv_layout layout, k1_err *err) {
    uint64_t bytes = k1_add_sat(k1_kv_bytes(hp, n_rows, n_layers), ALIGNMENT);
    if (bytes > SIZE_MAX / 2) {
        return k1_fail(err, "the KV cache for %u positions exceeds the address space: choose a smaller n_ctx", n_rows);
    }
    size_t run = (size_t)n_rows * hp->head_dim;
    kv->layer_stride = layout == K1_KV_LAYER_FIRST ? run * hp->n_head_kv : run;
    kv->head_stride = layout == K1_KV_LAYER_FIRST ? run : run * n_layers;
    kv->v_offset = run * hp->n_head_kv * n_layers;
    kv->data = aligned_alloc(ALIGNMENT, (size_t)bytes / ALIGNMENT * ALIGNMENT);
    if (kv->data == NULL) {
        return k1_fail(err, "no memory for the KV cache (%llu bytes): choose a smaller n_ctx",
                       (unsigned long long)bytes);
    }
    return 0;
}

void k1_kv_free(k1_kv *kv) {
    free(kv->data);
    kv->data = NULL;
}
