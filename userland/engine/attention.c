/* Attention of one head of one token by streaming softmax (Milakov and Gimelshein 2018, arXiv:1805.02867), in tiles of
 * one mask word and in rising order, so that the result depends on nothing but the positions seen. */
#include <math.h>
#include <string.h>

#include "../kernels/fmath.h"
#include "internal.h"

typedef struct softmax {
    float max;
    float sum;
} softmax;

typedef struct head {
    const k1_kernels *kernels;
    const float *q;         /* float[dim] */
    const uint16_t *keys;   /* half[n_positions][dim] */
    const uint16_t *values; /* half[n_positions][dim] */
    size_t dim;
    float scale;
} head;

/* Scores of the positions base + (set bits), in order; returns their maximum. NaN never is the maximum, but its weight
 * later is NaN, and with it the result. */
static float tile_scores(const head *h, uint32_t base, uint64_t word, float *scores) {
    float max = -INFINITY;
    for (size_t i = 0; word != 0; i++) {
        size_t pos = base + k1_mask_next(&word);
        scores[i] = h->kernels->dot_f16(h->q, h->keys + pos * h->dim, h->dim) * h->scale;
        max = scores[i] > max ? scores[i] : max;
    }
    return max;
}

static void tile_add(const head *h, uint32_t base, uint64_t word, const float *scores, float max, softmax *state,
                     float *acc) {
    float rescale = 1.0f;
    if (max > state->max) {
        rescale = state->max > -INFINITY ? k1_exp(state->max - max) : 0.0f;
        state->max = max;
    }
    state->sum *= rescale;
    for (size_t i = 0; word != 0; i++) {
        size_t pos = base + k1_mask_next(&word);
        float weight = k1_exp(scores[i] - state->max);
        state->sum += weight;
        h->kernels->axpy_f16(acc, rescale, weight, h->values + pos * h->dim, h->dim);
        rescale = 1.0f;
    }
}

void k1_attend(const k1_kernels *kernels, const float *q, const uint16_t *keys, const uint16_t *values,
               uint32_t head_dim, float scale, const k1_mask *mask, uint32_t token, uint32_t n_positions, float *out) {
    head h = {kernels, q, keys, values, head_dim, scale};
    softmax state = {-INFINITY, 0.0f};
    float scores[K1_MASK_BITS];
    memset(out, 0, head_dim * sizeof *out);
    for (uint32_t base = 0, word_index = 0; base < n_positions; base += K1_MASK_BITS, word_index++) {
        uint64_t word = k1_mask_word(mask, token, word_index);
        if (n_positions - base < K1_MASK_BITS) {
            word &= K1_MASK_FULL >> (K1_MASK_BITS - (n_positions - base));
        }
        if (k1_mask_count(word) == 0) {
            continue;
        }
        float max = tile_scores(&h, base, word, scores);
        tile_add(&h, base, word, scores, max, &state, out);
    }
    if (state.sum != 0.0f) {
        float inverse = 1.0f / state.sum;
        for (uint32_t i = 0; i < head_dim; i++) {
            out[i] *= inverse;
        }
    }
}
