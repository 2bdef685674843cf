/* Choosing a token from logits. The random numbers are counter-based on (seed, position): the same request gives the
 * same tokens whatever else runs. */
#ifndef K1_SAMPLER_H
#define K1_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "k1/error.h"

typedef struct k1_sampling {
    float temperature;    /* 0: greedy */
    int32_t top_k;        /* 0: off */
    float top_p;          /* 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 1: off */
    uint32_t repeat_last_n;
    uint64_t seed;
} k1_sampling;

extern const k1_sampling k1_sampling_default;

/* -1 and err (names the field, its value and range) when a value is out of range or NaN. */
int k1_sampling_check(const k1_sampling *sampling, k1_err *err);

/* The next token, or -1 when no logit is a number above -infinity (the model or its file is broken). NaN is never
 * chosen; +infinity counts as the largest float. Of equal logits the smaller id goes first.
 * Order: penalty, top_k, top_p, min_p (these on the probabilities at temperature 1), temperature. logits:
 * float[n_vocab], left unchanged. past: the tokens so far, for the penalty. position: of the token to choose. scratch:
 * k1_sample_scratch(n_vocab) bytes, aligned to 8. */
int32_t k1_sample(const k1_sampling *sampling, const float *logits, uint32_t n_vocab, const int32_t *past,
                  size_t n_past, uint64_t position, void *scratch);
size_t k1_sample_scratch(uint32_t n_vocab);

#endif
