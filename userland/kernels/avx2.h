/* Functions of the AVX2 table, shared with the tables of processors that have more. */
#ifndef K1_AVX2_H
#define K1_AVX2_H

#include "k1/kernels.h"

k1_matmul_fn k1_avx2_matmul_f32;
k1_matmul_fn k1_avx2_matmul_f16;
k1_matmul_fn k1_avx2_matmul_bf16;

void k1_avx2_quantize(const float *x, k1_q16 *out, size_t n);
void k1_avx2_rmsnorm(const float *x, const float *weight, float eps, float *out, size_t n);
void k1_avx2_add(float *x, const float *y, size_t n);
void k1_avx2_swiglu(float *gate, const float *up, size_t n);
float k1_avx2_dot_f16(const float *q, const uint16_t *k, size_t n);
void k1_avx2_axpy_f16(float *acc, float scale, float weight, const uint16_t *v, size_t n);
void k1_avx2_to_f16(const float *x, uint16_t *out, size_t n);

#endif
