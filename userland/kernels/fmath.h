/* exp() with the same bits on every machine: only additions, multiplications and bit moves, so that the vector tables
 * can repeat it lane by lane and no C library's rounding enters. */
#ifndef K1_FMATH_H
#define K1_FMATH_H

#include <stdint.h>

#include "half.h"

#define K1_EXP_MIN (-87.0f)
#define K1_EXP_MAX 88.0f
#define K1_EXP_LOG2E 1.44269504f
#define K1_EXP_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, held in the low bits */
/* ln 2 in two parts; the first has trailing zeros, so n * LN2_HIGH is exact. */
#define K1_EXP_LN2_HIGH 0.693359375f
#define K1_EXP_LN2_LOW (-2.12194440e-4f)
/* exp(r) = 1 + r + r^2 p(r), |r| <= ln 2 / 2: the minimax coefficients of Cephes' expf. */
#define K1_EXP_P0 1.9875691500e-4f
#define K1_EXP_P1 1.3981999507e-3f
#define K1_EXP_P2 8.3334519073e-3f
#define K1_EXP_P3 4.1665795894e-2f
#define K1_EXP_P4 1.6666665459e-1f
#define K1_EXP_P5 5.0000001201e-1f

/* Error below 2 ulp between the limits; clipped beyond them. NaN stays NaN. */
static inline float k1_exp(float x) {
    x = x > K1_EXP_MAX ? K1_EXP_MAX : x;
    x = x < K1_EXP_MIN ? K1_EXP_MIN : x;
    float shifted = x * K1_EXP_LOG2E + K1_EXP_MAGIC;
    float n = shifted - K1_EXP_MAGIC;
    float r = (x - n * K1_EXP_LN2_HIGH) - n * K1_EXP_LN2_LOW;
    float p = K1_EXP_P0;
    p = p * r + K1_EXP_P1;
    p = p * r + K1_EXP_P2;
    p = p * r + K1_EXP_P3;
    p = p * r + K1_EXP_P4;
    p = p * r + K1_EXP_P5;
    float value = (p * (r * r) + r) + 1.0f;
    uint32_t exponent = k1_bits_of_float(shifted) << 23;
    return k1_float_of_bits(k1_bits_of_float(value) + exponent);
}

#endif
