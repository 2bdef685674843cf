/* The reference functions, shared with the other tables where those have nothing faster.
 *
 * Fixed orders of summation, which every table follows to the bit:
 * - 16-bit activations (Q4_0, Q4_1, Q5_0, Q8_0): block after block of 32, sum += (dw * da) * isum + m * s, where isum
 * is the exact integer sum of the stored weights times the activations' integers, and m the block's minimum (Q4_0: -8
 * dw, Q5_0: -16 dw, Q8_0: none).
 * - Everything else: eight partial sums, value k in sum k mod 8, put together by k1_lanes_sum(). */
#ifndef K1_SCALAR_H
#define K1_SCALAR_H

#include "k1/kernels.h"

#define K1_LANES 8

static inline float k1_lanes_sum(const float lanes[K1_LANES]) {
    float a = lanes[0] + lanes[4];
    float b = lanes[1] + lanes[5];
    float c = lanes[2] + lanes[6];
    float d = lanes[3] + lanes[7];
    return (a + c) + (b + d);
}

/* A block of 32 weights: w = d * q + m. */
typedef struct k1_block {
    float d;
    float m;
    int8_t q[K1_Q16_BLOCK];
} k1_block;

void k1_unpack_q4_0(const uint8_t *in, k1_block *out);
void k1_unpack_q4_1(const uint8_t *in, k1_block *out);
void k1_unpack_q5_0(const uint8_t *in, k1_block *out);
void k1_unpack_q8_0(const uint8_t *in, k1_block *out);

void k1_scalar_dequantize(k1_dtype type, const void *row, float *out, size_t n);
void k1_scalar_quantize(const float *x, k1_q16 *out, size_t n);

k1_matmul_fn k1_scalar_matmul_f32;
k1_matmul_fn k1_scalar_matmul_f16;
k1_matmul_fn k1_scalar_matmul_bf16;
k1_matmul_fn k1_scalar_matmul_q4_0;
k1_matmul_fn k1_scalar_matmul_q4_1;
k1_matmul_fn k1_scalar_matmul_q5_0;
k1_matmul_fn k1_scalar_matmul_q8_0;
k1_matmul_fn k1_scalar_matmul_q4_k;
k1_matmul_fn k1_scalar_matmul_q6_k;

#endif
