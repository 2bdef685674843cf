/* Products with 16-bit activations in AVX2, for the tables that differ in one instruction only: the file that includes
 * this defines add_pairs(sum, a, b) first, which adds to each 32-bit lane of sum the two products of its 16-bit halves
 * of a and b.
 *
 * Eight rows at once, one per 32-bit lane. Two values of a row meet two broadcast values of a token, so no horizontal
 * sum is needed, and the float sum of a row is one chain in its lane. Every float is rounded in the order that scalar.h
 * states (so products and sums are kept apart, not fused). */
#ifndef K1_PRODUCTS_AVX2_H
#define K1_PRODUCTS_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "avx2.h"
#include "scalar.h"

#define ROWS 8
#define SLICE 16 /* blocks of eight rows unpacked at a time when several tokens share them: 9 KiB of stack */
#define TILE 4   /* tokens in registers */
#define AHEAD 2  /* groups of rows from use to prefetch */

/* A block of 32 weights of eight rows. q[j]: lane r holds values 2 j and 2 j + 1 of row r as 16-bit halves. */
typedef struct panel {
    __m256i q[16];
    __m256 d;
    __m256 m;
} panel;

typedef void load_fn(const uint8_t *w, size_t row_bytes, panel *out);

/* 16 bytes of eight rows, transposed: out[j] holds bytes 4 j … 4 j + 3 of each row. */
INLINE void transpose(const uint8_t *w, size_t row_bytes, __m256i out[4]) {
    __m256i v[4];
    for (size_t i = 0; i < 4; i++) {
        __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(w + i * row_bytes));
        __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(w + (i + 4) * row_bytes));
        v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    __m256i a = _mm256_unpacklo_epi32(v[0], v[1]);
    __m256i b = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i c = _mm256_unpacklo_epi32(v[2], v[3]);
    __m256i d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

/* Bytes 2 half and 2 half + 1 of each 32-bit lane, each in the low (shift 0) or high (shift 1) byte of its 16 bits. */
INLINE __m256i spread(__m256i bytes, char half, char shift) {
    char first = (char)(2 * half), zero = -128;
    __m128i lane = shift ? _mm_setr_epi8(zero, first, zero, first + 1, zero, first + 4, zero, first + 5, zero,
                                         first + 8, zero, first + 9, zero, first + 12, zero, first + 13)
                         : _mm_setr_epi8(first, zero, first + 1, zero, first + 4, zero, first + 5, zero, first + 8,
                                         zero, first + 9, zero, first + 12, zero, first + 13, zero);
    return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(lane));
}

INLINE void load_nibbles(const uint8_t *w, size_t row_bytes, __m256i q[16]) {
    __m256i bytes[4];
    transpose(w, row_bytes, bytes);
    for (size_t j = 0; j < 8; j++) {
        __m256i pair = spread(bytes[j / 2], j % 2, 0);
        q[j] = _mm256_and_si256(pair, _mm256_set1_epi16(15));
        q[j + 8] = _mm256_srli_epi16(pair, 4);
    }
}

/* 16 signed bytes of eight rows. */
INLINE void load_bytes(const uint8_t *w, size_t row_bytes, __m256i q[8]) {
    __m256i bytes[4];
    transpose(w, row_bytes, bytes);
    for (size_t j = 0; j < 8; j++) {
        q[j] = _mm256_srai_epi16(spread(bytes[j / 2], j % 2, 1), 8);
    }
}

INLINE int load_i32(const void *p) {
    int value;
    memcpy(&value, p, sizeof value);
    return value;
}

/* The first four bytes of eight rows. */
INLINE __m256i load_heads(const uint8_t *w, size_t row_bytes) {
    return _mm256_setr_epi32(load_i32(w), load_i32(w + row_bytes), load_i32(w + 2 * row_bytes),
                             load_i32(w + 3 * row_bytes), load_i32(w + 4 * row_bytes), load_i32(w + 5 * row_bytes),
                             load_i32(w + 6 * row_bytes), load_i32(w + 7 * row_bytes));
}

/* The low halves of eight 32-bit lanes as floats. */
INLINE __m256 halves_to_floats(__m256i halves) {
    __m128i low = _mm256_castsi256_si128(halves);
    __m128i high = _mm256_extracti128_si256(halves, 1);
    return _mm256_cvtph_ps(_mm_packus_epi32(low, high));
}

INLINE __m256 load_scales(const uint8_t *w, size_t row_bytes) {
    return halves_to_floats(_mm256_and_si256(load_heads(w, row_bytes), _mm256_set1_epi32(0xffff)));
}

INLINE void load_q4_0(const uint8_t *w, size_t row_bytes, panel *out) {
    load_nibbles(w + 2, row_bytes, out->q);
    out->d = load_scales(w, row_bytes);
    out->m = _mm256_mul_ps(out->d, _mm256_set1_ps(-8.0f));
}

INLINE void load_q4_1(const uint8_t *w, size_t row_bytes, panel *out) {
    __m256i heads = load_heads(w, row_bytes);
    load_nibbles(w + 4, row_bytes, out->q);
    out->d = halves_to_floats(_mm256_and_si256(heads, _mm256_set1_epi32(0xffff)));
    out->m = halves_to_floats(_mm256_srli_epi32(heads, 16));
}

INLINE void load_q8_0(const uint8_t *w, size_t row_bytes, panel *out) {
    load_bytes(w + 2, row_bytes, out->q);
    load_bytes(w + 18, row_bytes, out->q + 8);
    out->d = load_scales(w, row_bytes);
    out->m = _mm256_setzero_ps();
}

INLINE __m256i two_values(const int16_t *a) { return _mm256_set1_epi32(load_i32(a)); }

/* sum + (dw * da) * isum + m * s. The integer sum is at most 32 * 128 * 32767 < 2^27 in its lane; it is kept in two
 * parts, since each addition waits for the one before. */
INLINE __m256 add_block(const panel *p, const k1_q16 *act, __m256 sum) {
    __m256i even = _mm256_setzero_si256();
    __m256i odd = _mm256_setzero_si256();
    for (size_t j = 0; j < K1_Q16_BLOCK / 2; j += 2) {
        even = add_pairs(even, p->q[j], two_values(act->q + 2 * j));
        odd = add_pairs(odd, p->q[j + 1], two_values(act->q + 2 * j + 2));
    }
    __m256 isum = _mm256_cvtepi32_ps(_mm256_add_epi32(even, odd));
    __m256 product = _mm256_mul_ps(_mm256_mul_ps(p->d, _mm256_set1_ps(act->d)), isum);
    return _mm256_add_ps(sum, _mm256_add_ps(product, _mm256_mul_ps(p->m, _mm256_set1_ps(act->s))));
}

/* A matrix with eight rows or more, seen as groups of eight. */
typedef struct product {
    const uint8_t *w;
    size_t row_bytes;
    const char *x; /* k1_q16[n_tokens][n_blocks], x_bytes apart */
    size_t x_bytes;
    float *out; /* float[n_tokens][out_stride] */
    size_t out_stride;
    size_t n_tokens;
    size_t n_blocks;
} product;

INLINE const k1_q16 *acts_of(const product *m, size_t token) {
    return (const k1_q16 *)(const void *)(m->x + token * m->x_bytes);
}

/* Ask for rows to come, a piece per block: the hardware does not foresee eight streams. An address
 * beyond the end of the matrix is harmless. */
INLINE void prefetch(uintptr_t at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)(at + i), _MM_HINT_T0);
    }
}

/* Eight rows, one token: weights go from memory to registers once. */
INLINE void rows_one(load_fn *load, size_t bytes, const product *m, size_t row) {
    const uint8_t *w = m->w + row * m->row_bytes;
    const k1_q16 *act = acts_of(m, 0);
    __m256 sum = _mm256_setzero_ps();
    for (size_t b = 0; b < m->n_blocks; b++) {
        panel p;
        prefetch((uintptr_t)w + AHEAD * ROWS * m->row_bytes + b * ROWS * bytes, ROWS * bytes);
        load(w + b * bytes, m->row_bytes, &p);
        sum = add_block(&p, act + b, sum);
    }
    _mm256_storeu_ps(m->out + row, sum);
}

/* n_tokens of TILE or one (a constant) from token on, over n unpacked blocks; sums so far are in out. */
INLINE void tile_slice(const panel *panels, const product *m, size_t row, size_t token, size_t n_tokens,
                       size_t first_block, size_t n) {
    __m256 sum[TILE];
    const k1_q16 *act[TILE];
    for (size_t t = 0; t < n_tokens; t++) {
        sum[t] = first_block == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(m->out + (token + t) * m->out_stride + row);
        act[t] = acts_of(m, token + t) + first_block;
    }
    for (size_t b = 0; b < n; b++) {
        for (size_t t = 0; t < n_tokens; t++) {
            sum[t] = add_block(panels + b, act[t] + b, sum[t]);
        }
    }
    for (size_t t = 0; t < n_tokens; t++) {
        _mm256_storeu_ps(m->out + (token + t) * m->out_stride + row, sum[t]);
    }
}

/* Eight rows, many tokens: a slice of blocks is unpacked once for all of them. */
INLINE void rows_many(load_fn *load, size_t bytes, const product *m, size_t row) {
    const uint8_t *w = m->w + row * m->row_bytes;
    panel panels[SLICE];
    for (size_t first = 0; first < m->n_blocks; first += SLICE) {
        size_t n = m->n_blocks - first < SLICE ? m->n_blocks - first : SLICE;
        for (size_t b = 0; b < n; b++) {
            load(w + (first + b) * bytes, m->row_bytes, panels + b);
        }
        size_t t = 0;
        for (; t + TILE <= m->n_tokens; t += TILE) {
            tile_slice(panels, m, row, t, TILE, first, n);
        }
        for (; t < m->n_tokens; t++) {
            tile_slice(panels, m, row, t, 1, first, n);
        }
    }
}

/* Rows beyond the last whole group go to the reference, which gives the same bits. */
INLINE void matmul_q16(load_fn *load, k1_matmul_fn *rest, size_t bytes, const void *w, size_t row_bytes, const void *x,
                       size_t x_bytes, float *out, size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {
    const product m = {w, row_bytes, x, x_bytes, out, out_stride, n_tokens, n / K1_Q16_BLOCK};
    size_t row = 0;
    for (; row + ROWS <= n_rows; row += ROWS) {
        if (n_tokens == 1) {
            rows_one(load, bytes, &m, row);
        } else {
            rows_many(load, bytes, &m, row);
        }
    }
    if (row < n_rows) {
        rest(m.w + row * row_bytes, row_bytes, x, x_bytes, out + row, out_stride, n_rows - row, n_tokens, n);
    }
}

#define MATMUL_Q16(type, bytes)                                                                                        \
    static void matmul_##type(const void *w, size_t row_bytes, const void *x, size_t x_bytes, float *out,              \
                              size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {                           \
        matmul_q16(load_##type, k1_scalar_matmul_##type, bytes, w, row_bytes, x, x_bytes, out, out_stride, n_rows,     \
                   n_tokens, n);                                                                                       \
    }

MATMUL_Q16(q4_0, 18)
MATMUL_Q16(q4_1, 20)
MATMUL_Q16(q8_0, 34)

/* The whole table: these products, and the float functions of AVX2. */
#define TABLE(title)                                                                                                   \
    {                                                                                                                  \
        .name = title,                                                                                                 \
        .matmul =                                                                                                      \
            {                                                                                                          \
                [K1_F32] = {K1_ACT_F32, k1_avx2_matmul_f32},                                                           \
                [K1_F16] = {K1_ACT_F32, k1_avx2_matmul_f16},                                                           \
                [K1_BF16] = {K1_ACT_F32, k1_avx2_matmul_bf16},                                                         \
                [K1_Q4_0] = {K1_ACT_Q16, matmul_q4_0},                                                                 \
                [K1_Q4_1] = {K1_ACT_Q16, matmul_q4_1},                                                                 \
                [K1_Q5_0] = {K1_ACT_Q16, k1_scalar_matmul_q5_0},                                                       \
                [K1_Q8_0] = {K1_ACT_Q16, matmul_q8_0},                                                                 \
                [K1_Q4_K] = {K1_ACT_F32, k1_scalar_matmul_q4_k},                                                       \
                [K1_Q6_K] = {K1_ACT_F32, k1_scalar_matmul_q6_k},                                                       \
            },                                                                                                         \
        .quantize = k1_avx2_quantize,                                                                                  \
        .dequantize = k1_scalar_dequantize,                                                                            \
        .rmsnorm = k1_avx2_rmsnorm,                                                                                    \
        .add = k1_avx2_add,                                                                                            \
        .swiglu = k1_avx2_swiglu,                                                                                      \
        .dot_f16 = k1_avx2_dot_f16,                                                                                    \
        .axpy_f16 = k1_avx2_axpy_f16,                                                                                  \
        .to_f16 = k1_avx2_to_f16,                                                                                      \
    }

#endif
