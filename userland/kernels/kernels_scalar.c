/* The reference table: plain C, no instruction set assumed. scalar.h states the orders of summation. */
#include <math.h>
#include <string.h>

#include "fmath.h"
#include "half.h"
#include "scalar.h"

/* Tokens that share one unpacking of a weight. */
#define TILE 8
#define TILE_FLOATS 32

typedef void unpack_fn(const uint8_t *in, k1_block *out);

/* At most 32 * 128 * 32767 < 2^27. */
static int32_t dot_block(const int8_t *a, const int16_t *b) {
    int32_t sum = 0;
    for (size_t i = 0; i < K1_Q16_BLOCK; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* One row times up to TILE tokens. x: k1_q16[n_tokens][n / 32], x_bytes apart. */
static inline void row_q16(unpack_fn *unpack, size_t bytes, const uint8_t *w, const char *x, size_t x_bytes, float *out,
                           size_t out_stride, size_t n_tokens, size_t n) {
    float sum[TILE] = {0};
    for (size_t b = 0; b < n / K1_Q16_BLOCK; b++) {
        k1_block block;
        unpack(w + b * bytes, &block);
        for (size_t t = 0; t < n_tokens; t++) {
            const k1_q16 *act = (const k1_q16 *)(const void *)(x + t * x_bytes) + b;
            float product = block.d * act->d * (float)dot_block(block.q, act->q);
            sum[t] += product + block.m * act->s;
        }
    }
    for (size_t t = 0; t < n_tokens; t++) {
        out[t * out_stride] = sum[t];
    }
}

static inline void matmul_q16(unpack_fn *unpack, size_t bytes, const void *w, size_t row_bytes, const void *x,
                              size_t x_bytes, float *out, size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {
    for (size_t r = 0; r < n_rows; r++) {
        const uint8_t *row = (const uint8_t *)w + r * row_bytes;
        for (size_t t = 0; t < n_tokens; t += TILE) {
            size_t tile = n_tokens - t < TILE ? n_tokens - t : TILE;
            row_q16(unpack, bytes, row, (const char *)x + t * x_bytes, x_bytes, out + t * out_stride + r, out_stride,
                    tile, n);
        }
    }
}

#define MATMUL_Q16(type, bytes)                                                                                        \
    void k1_scalar_matmul_##type(const void *w, size_t row_bytes, const void *x, size_t x_bytes, float *out,           \
                                 size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {                        \
        matmul_q16(k1_unpack_##type, bytes, w, row_bytes, x, x_bytes, out, out_stride, n_rows, n_tokens, n);           \
    }

MATMUL_Q16(q4_0, 18)
MATMUL_Q16(q4_1, 20)
MATMUL_Q16(q5_0, 22)
MATMUL_Q16(q8_0, 34)

/* Values dequantized at a time: the largest block, and a multiple of the lanes. */
#define PIECE 256

/* lanes[k mod 8] += w[k] * x[k] */
static void dot_lanes(const float *w, const float *x, size_t n, float lanes[K1_LANES]) {
    size_t k = 0;
    for (; k + K1_LANES <= n; k += K1_LANES) {
        for (size_t i = 0; i < K1_LANES; i++) {
            lanes[i] += w[k + i] * x[k + i];
        }
    }
    for (size_t i = 0; k + i < n; i++) {
        lanes[i] += w[k + i] * x[k + i];
    }
}

/* One row times up to TILE_FLOATS tokens with float activations. x: float[n_tokens][n], x_bytes apart. */
static void row_f32(k1_dtype type, const uint8_t *w, const char *x, size_t x_bytes, float *out, size_t out_stride,
                    size_t n_tokens, size_t n) {
    float lanes[TILE_FLOATS][K1_LANES] = {{0}};
    float piece[PIECE];
    size_t piece_bytes = PIECE / k1_dtype_block(type) * k1_dtype_block_bytes(type);
    for (size_t k = 0; k < n; k += PIECE, w += piece_bytes) {
        size_t len = n - k < PIECE ? n - k : PIECE;
        k1_scalar_dequantize(type, w, piece, len);
        for (size_t t = 0; t < n_tokens; t++) {
            dot_lanes(piece, (const float *)(const void *)(x + t * x_bytes) + k, len, lanes[t]);
        }
    }
    for (size_t t = 0; t < n_tokens; t++) {
        out[t * out_stride] = k1_lanes_sum(lanes[t]);
    }
}

static void matmul_f32(k1_dtype type, const void *w, size_t row_bytes, const void *x, size_t x_bytes, float *out,
                       size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {
    for (size_t r = 0; r < n_rows; r++) {
        const uint8_t *row = (const uint8_t *)w + r * row_bytes;
        for (size_t t = 0; t < n_tokens; t += TILE_FLOATS) {
            size_t tile = n_tokens - t < TILE_FLOATS ? n_tokens - t : TILE_FLOATS;
            row_f32(type, row, (const char *)x + t * x_bytes, x_bytes, out + t * out_stride + r, out_stride, tile, n);
        }
    }
}

#define MATMUL_F32(name, type)                                                                                         \
    void k1_scalar_matmul_##name(const void *w, size_t row_bytes, const void *x, size_t x_bytes, float *out,           \
                                 size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {                        \
        matmul_f32(type, w, row_bytes, x, x_bytes, out, out_stride, n_rows, n_tokens, n);                              \
    }

MATMUL_F32(f32, K1_F32)
MATMUL_F32(f16, K1_F16)
MATMUL_F32(bf16, K1_BF16)
MATMUL_F32(q4_k, K1_Q4_K)
MATMUL_F32(q6_k, K1_Q6_K)

static void rmsnorm(const float *x, const float *weight, float eps, float *out, size_t n) {
    float lanes[K1_LANES] = {0};
    dot_lanes(x, x, n, lanes);
    float scale = 1.0f / sqrtf(k1_lanes_sum(lanes) / (float)n + eps);
    for (size_t i = 0; i < n; i++) {
        out[i] = x[i] * scale * weight[i];
    }
}

static void add(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        x[i] += y[i];
    }
}

static void swiglu(float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) {
        gate[i] = gate[i] / (1.0f + k1_exp(-gate[i])) * up[i];
    }
}

static float dot_f16(const float *q, const uint16_t *k, size_t n) {
    float lanes[K1_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        lanes[i % K1_LANES] += q[i] * k1_f16_to_f32(k[i]);
    }
    return k1_lanes_sum(lanes);
}

static void axpy_f16(float *acc, float scale, float weight, const uint16_t *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        acc[i] = acc[i] * scale + weight * k1_f16_to_f32(v[i]);
    }
}

static void to_f16(const float *x, uint16_t *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        out[i] = k1_f32_to_f16(x[i]);
    }
}

const k1_kernels k1_kernels_scalar = {
    .name = "scalar",
    .matmul =
        {
            [K1_F32] = {K1_ACT_F32, k1_scalar_matmul_f32},
            [K1_F16] = {K1_ACT_F32, k1_scalar_matmul_f16},
            [K1_BF16] = {K1_ACT_F32, k1_scalar_matmul_bf16},
            [K1_Q4_0] = {K1_ACT_Q16, k1_scalar_matmul_q4_0},
            [K1_Q4_1] = {K1_ACT_Q16, k1_scalar_matmul_q4_1},
            [K1_Q5_0] = {K1_ACT_Q16, k1_scalar_matmul_q5_0},
            [K1_Q8_0] = {K1_ACT_Q16, k1_scalar_matmul_q8_0},
            [K1_Q4_K] = {K1_ACT_F32, k1_scalar_matmul_q4_k},
            [K1_Q6_K] = {K1_ACT_F32, k1_scalar_matmul_q6_k},
        },
    .quantize = k1_scalar_quantize,
    .dequantize = k1_scalar_dequantize,
    .rmsnorm = rmsnorm,
    .add = add,
    .swiglu = swiglu,
    .dot_f16 = dot_f16,
    .axpy_f16 = axpy_f16,
    .to_f16 = to_f16,
};
