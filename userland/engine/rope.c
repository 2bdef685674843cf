/* Rotary position embedding (Su et al. 2021, arXiv:2104.09864) by exact angles: tables computed in double precision,
 * rounded once to float. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "internal.h"

#define ALIGNMENT 64u
#define TWO_PI 6.283185307179586476925

/* Llama 3.1: wavelengths beyond the original context are stretched by the factor, short ones kept, and those between
 * interpolated (transformers, modeling_rope_utils.py, _compute_llama3_parameters). */
static double llama3_scaled(double freq, const k1_rope_scaling *scaling) {
    double turns = scaling->original_context * freq / TWO_PI;
    double smooth = (turns - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor);
    smooth = fmin(1.0, fmax(0.0, smooth));
    return freq * (smooth + (1.0 - smooth) / scaling->llama3_factor);
}

void k1_rope_freqs(uint32_t n_rot, double base, const k1_rope_scaling *scaling, double *freqs) {
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        double freq = pow(base, -2.0 * i / n_rot) / scaling->linear;
        if (scaling->llama3) {
            freq = llama3_scaled(freq, scaling);
        }
        freqs[i] = scaling->factors != NULL ? freq / (double)scaling->factors[i] : freq;
    }
}

void k1_rope_tables(const double *freqs, uint32_t n_pairs, uint32_t first, uint32_t n_positions, float *cos_out,
                    float *sin_out) {
    for (uint32_t p = 0; p < n_positions; p++) {
        double pos = (double)first + p;
        for (uint32_t i = 0; i < n_pairs; i++) {
            size_t at = (size_t)p * n_pairs + i;
            cos_out[at] = (float)cos(pos * freqs[i]);
            sin_out[at] = (float)sin(pos * freqs[i]);
        }
    }
}

/* Of one table. */
static uint64_t table_bytes(const k1_hparams *hp, uint32_t n_ctx) {
    uint64_t bytes = k1_mul_sat(n_ctx, (uint64_t)hp->n_rot / 2 * sizeof(float));
    return k1_add_sat(bytes, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

uint64_t k1_rope_bytes(const k1_hparams *hp, uint32_t n_ctx) { return k1_mul_sat(2, table_bytes(hp, n_ctx)); }

static void free_tables(k1_rope *rope) {
    free(rope->cos);
    free(rope->sin);
    free(rope);
}

static k1_rope *make_tables(const k1_model *model, uint32_t n_ctx) {
    const k1_hparams *hp = &model->hp;
    uint32_t n_pairs = hp->n_rot / 2;
    uint64_t bytes = table_bytes(hp, n_ctx);
    k1_rope *rope = bytes <= SIZE_MAX / 2 ? calloc(1, sizeof *rope) : NULL;
    double *freqs = calloc(n_pairs, sizeof *freqs);
    if (rope != NULL) {
        rope->n_ctx = n_ctx;
        rope->cos = aligned_alloc(ALIGNMENT, (size_t)bytes);
        rope->sin = aligned_alloc(ALIGNMENT, (size_t)bytes);
    }
    if (rope != NULL && (freqs == NULL || rope->cos == NULL || rope->sin == NULL)) {
        free_tables(rope);
        rope = NULL;
    }
    if (rope != NULL) {
        k1_rope_freqs(hp->n_rot, (double)hp->rope_base, &model->rope_scaling, freqs);
        k1_rope_tables(freqs, n_pairs, 0, n_ctx, rope->cos, rope->sin);
    }
    free(freqs);
    return rope;
}

k1_rope *k1_rope_take(k1_model *model, uint32_t n_ctx, k1_err *err) {
    k1_rope *rope = model->ropes;
    while (rope != NULL && rope->n_ctx != n_ctx) {
        rope = rope->next;
    }
    if (rope == NULL) {
        rope = make_tables(model, n_ctx);
        if (rope == NULL) {
            k1_fail(err, "no memory for the RoPE tables of n_ctx %" PRIu32 ": choose a smaller n_ctx", n_ctx);
            return NULL;
        }
        rope->next = model->ropes;
        model->ropes = rope;
    }
    rope->n_users++;
    return rope;
}

void k1_rope_release(k1_model *model, k1_rope *rope) {
    if (--rope->n_users > 0) {
        return;
    }
    k1_rope **at = &model->ropes;
    while (*at != rope) {
        at = &(*at)->next;
    }
    *at = rope->next;
    free_tables(rope);
}

void k1_rope_apply(float *head, const float *cos_row, const float *sin_row, uint32_t n_pairs, k1_rope_pairs pairs) {
    size_t step = pairs == K1_ROPE_HALVES ? 1 : 2;
    size_t distance = pairs == K1_ROPE_HALVES ? n_pairs : 1;
    for (uint32_t i = 0; i < n_pairs; i++) {
        float *a = head + i * step;
        float *b = a + distance;
        float rotated = *a * cos_row[i] - *b * sin_row[i];
        *b = *a * sin_row[i] + *b * cos_row[i];
        *a = rotated;
    }
}
