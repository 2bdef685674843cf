/* The inner loops, one table of function pointers per instruction set.
 * `k1_kernels_scalar` is the reference in plain C; each other table gives the same results to the bit, so that nodes of
 * different kinds agree (kernels/scalar.h fixes the order of every sum). No result depends on how many rows or tokens a
 * call covers: every output element is summed in one fixed order over the whole row, so batch size, chunking and thread
 * count cannot change it. */
#ifndef K1_KERNELS_H
#define K1_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "k1/gguf.h"

/* Activations quantized in blocks of 32: x = d * q, rounded half away from zero; s = d * sum(q). 16 bits, where ggml's
 * Q8_1 has 8: with 8, one next token in 27 of SmolLM2 is another than in double precision, with 9 bits one in 44, with
 * 10 one in 85 (docs/userland.md). */
#define K1_Q16_MAX 32767
#define K1_Q16_BLOCK 32
typedef struct k1_q16 {
    float d;
    float s;
    int16_t q[K1_Q16_BLOCK];
} k1_q16;

/* In which form a matmul takes its activations. */
typedef enum k1_act { K1_ACT_F32, K1_ACT_Q16 } k1_act;

/* out[t * out_stride + r] = sum over k of w[r][k] * x[t][k].
 * w: n_rows rows of row_bytes bytes in a GGUF tensor type. x: n_tokens vectors of n values, x_bytes apart, in the form
 * that the table says. n: a multiple of the type's block. out: float[n_tokens][out_stride], r < n_rows <= out_stride.
 */
typedef void k1_matmul_fn(const void *w, size_t row_bytes, const void *x, size_t x_bytes, float *out, size_t out_stride,
                          size_t n_rows, size_t n_tokens, size_t n);

typedef struct k1_matmul {
    k1_act act;
    k1_matmul_fn *run;
} k1_matmul;

#define K1_N_DTYPES 31

typedef struct k1_kernels {
    const char *name; /* "scalar", "avx2", … */
    /* By k1_dtype; run is NULL for numbers that are no type. Every known type has one. */
    k1_matmul matmul[K1_N_DTYPES];
    /* Quantize n values (a multiple of 32) to n / 32 blocks. */
    void (*quantize)(const float *x, k1_q16 *out, size_t n);
    /* One row of a tensor as n floats. */
    void (*dequantize)(k1_dtype type, const void *row, float *out, size_t n);
    /* out = x / sqrt(mean(x^2) + eps) * weight, n values. */
    void (*rmsnorm)(const float *x, const float *weight, float eps, float *out, size_t n);
    /* x += y */
    void (*add)(float *x, const float *y, size_t n);
    /* gate = silu(gate) * up */
    void (*swiglu)(float *gate, const float *up, size_t n);
    /* sum of q[i] * k[i]; k is IEEE half precision. */
    float (*dot_f16)(const float *q, const uint16_t *k, size_t n);
    /* acc[i] = acc[i] * scale + weight * v[i]; v is IEEE half precision (streaming softmax). */
    void (*axpy_f16)(float *acc, float scale, float weight, const uint16_t *v, size_t n);
    /* Float to half precision, clipped to ±65504; NaN stays NaN. */
    void (*to_f16)(const float *x, uint16_t *out, size_t n);
} k1_kernels;

extern const k1_kernels k1_kernels_scalar;
#ifdef K1_HAVE_AVX2
extern const k1_kernels k1_kernels_avx2; /* AVX2, FMA and F16C */
#endif
#ifdef K1_HAVE_AVXVNNI
extern const k1_kernels k1_kernels_avxvnni; /* and AVX-VNNI */
#endif

/* The fastest table this processor can run (cpuid; riscv_hwprobe, else AT_HWCAP), or the one called `name`
 * (K1_KERNELS in the environment of the programs); NULL when that one does not exist or cannot run here. */
const k1_kernels *k1_kernels_pick(const char *name);

#endif
