/* AVX2, FMA and F16C. Same results as the reference to the bit: integer sums are exact, and every float is rounded in
 * the order that scalar.h states (so products and sums are kept apart, not fused).
 *
 * Products with int8 activations take eight rows at once, one per 32-bit lane. Four bytes of a row meet four broadcast
 * bytes of a token, so no horizontal sum is needed, and the float sum of a row is one chain in its lane. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "fmath.h"
#include "half.h"
#include "scalar.h"

#define ROWS 8
#define SLICE 16 /* blocks of eight rows unpacked at a time when several tokens share them: 5 KiB of stack */
#define TILE 4   /* tokens in registers */
#define AHEAD 2  /* groups of rows from use to prefetch */
#define INLINE static inline __attribute__((always_inline))

/* A block of 32 weights of eight rows. q[j]: lane r holds values 4 j … 4 j + 3 of row r. */
typedef struct panel {
    __m256i q[8];
    __m256 d;
    __m256 m;
} panel;

typedef void load_fn(const uint8_t *w, size_t row_bytes, panel *out);
typedef __m256 sums_fn(const panel *p, const int8_t *a);

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

INLINE void load_nibbles(const uint8_t *w, size_t row_bytes, __m256i q[8]) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i bytes[4];
    transpose(w, row_bytes, bytes);
    for (size_t j = 0; j < 4; j++) {
        q[j] = _mm256_and_si256(bytes[j], low);
        q[j + 4] = _mm256_and_si256(_mm256_srli_epi16(bytes[j], 4), low);
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
    transpose(w + 2, row_bytes, out->q);
    transpose(w + 18, row_bytes, out->q + 4);
    out->d = load_scales(w, row_bytes);
    out->m = _mm256_setzero_ps();
}

INLINE __m256i four_bytes(const int8_t *a, size_t j) { return _mm256_set1_epi32(load_i32(a + 4 * j)); }

/* Integer sums of a block, weights 0 to 15: at most 8 * 2 * 15 * 127 = 30480 in a 16-bit lane. */
INLINE __m256 sums_nibbles(const panel *p, const int8_t *a) {
    __m256i sum = _mm256_maddubs_epi16(p->q[0], four_bytes(a, 0));
    for (size_t j = 1; j < 8; j++) {
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(p->q[j], four_bytes(a, j)));
    }
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

/* Weights of -128 to 127: |w| * (a with w's sign), at most 2 * 128 * 127 = 32512 in a 16-bit lane. */
INLINE __m256 sums_bytes(const panel *p, const int8_t *a) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (size_t j = 0; j < 8; j++) {
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(p->q[j]), _mm256_sign_epi8(four_bytes(a, j), p->q[j]));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return _mm256_cvtepi32_ps(sum);
}

INLINE __m256 add_block(sums_fn *sums, const panel *p, const k1_q8 *act, __m256 sum) {
    __m256 scale = _mm256_mul_ps(p->d, _mm256_set1_ps(act->d));
    __m256 product = _mm256_mul_ps(scale, sums(p, act->q));
    return _mm256_add_ps(sum, _mm256_add_ps(product, _mm256_mul_ps(p->m, _mm256_set1_ps(act->s))));
}

/* A matrix with eight rows or more, seen as groups of eight. */
typedef struct product {
    const uint8_t *w;
    size_t row_bytes;
    const char *x; /* k1_q8[n_tokens][n_blocks], x_bytes apart */
    size_t x_bytes;
    float *out; /* float[n_tokens][out_stride] */
    size_t out_stride;
    size_t n_tokens;
    size_t n_blocks;
} product;

INLINE const k1_q8 *acts_of(const product *m, size_t token) {
    return (const k1_q8 *)(const void *)(m->x + token * m->x_bytes);
}

/* Ask for rows to come, a piece per block: the hardware does not foresee eight streams. An address
 * beyond the end of the matrix is harmless. */
INLINE void prefetch(uintptr_t at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)(at + i), _MM_HINT_T0);
    }
}

/* Eight rows, one token: weights go from memory to registers once. */
INLINE void rows_one(load_fn *load, sums_fn *sums, size_t bytes, const product *m, size_t row) {
    const uint8_t *w = m->w + row * m->row_bytes;
    const k1_q8 *act = acts_of(m, 0);
    __m256 sum = _mm256_setzero_ps();
    for (size_t b = 0; b < m->n_blocks; b++) {
        panel p;
        prefetch((uintptr_t)w + AHEAD * ROWS * m->row_bytes + b * ROWS * bytes, ROWS * bytes);
        load(w + b * bytes, m->row_bytes, &p);
        sum = add_block(sums, &p, act + b, sum);
    }
    _mm256_storeu_ps(m->out + row, sum);
}

/* n_tokens of TILE or one (a constant) from token on, over n unpacked blocks; sums so far are in out. */
INLINE void tile_slice(sums_fn *sums, const panel *panels, const product *m, size_t row, size_t token, size_t n_tokens,
                       size_t first_block, size_t n) {
    __m256 sum[TILE];
    const k1_q8 *act[TILE];
    for (size_t t = 0; t < n_tokens; t++) {
        sum[t] = first_block == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(m->out + (token + t) * m->out_stride + row);
        act[t] = acts_of(m, token + t) + first_block;
    }
    for (size_t b = 0; b < n; b++) {
        for (size_t t = 0; t < n_tokens; t++) {
            sum[t] = add_block(sums, panels + b, act[t] + b, sum[t]);
        }
    }
    for (size_t t = 0; t < n_tokens; t++) {
        _mm256_storeu_ps(m->out + (token + t) * m->out_stride + row, sum[t]);
    }
}

/* Eight rows, many tokens: a slice of blocks is unpacked once for all of them. */
INLINE void rows_many(load_fn *load, sums_fn *sums, size_t bytes, const product *m, size_t row) {
    const uint8_t *w = m->w + row * m->row_bytes;
    panel panels[SLICE];
    for (size_t first = 0; first < m->n_blocks; first += SLICE) {
        size_t n = m->n_blocks - first < SLICE ? m->n_blocks - first : SLICE;
        for (size_t b = 0; b < n; b++) {
            load(w + (first + b) * bytes, m->row_bytes, panels + b);
        }
        size_t t = 0;
        for (; t + TILE <= m->n_tokens; t += TILE) {
            tile_slice(sums, panels, m, row, t, TILE, first, n);
        }
        for (; t < m->n_tokens; t++) {
            tile_slice(sums, panels, m, row, t, 1, first, n);
        }
    }
}

/* Rows beyond the last whole group go to the reference, which gives the same bits. */
INLINE void matmul_q8(load_fn *load, sums_fn *sums, k1_matmul_fn *rest, size_t bytes, const void *w, size_t row_bytes,
                      const void *x, size_t x_bytes, float *out, size_t out_stride, size_t n_rows, size_t n_tokens,
                      size_t n) {
    const product m = {w, row_bytes, x, x_bytes, out, out_stride, n_tokens, n / K1_Q8_BLOCK};
    size_t row = 0;
    for (; row + ROWS <= n_rows; row += ROWS) {
        if (n_tokens == 1) {
            rows_one(load, sums, bytes, &m, row);
        } else {
            rows_many(load, sums, bytes, &m, row);
        }
    }
    if (row < n_rows) {
        rest(m.w + row * row_bytes, row_bytes, x, x_bytes, out + row, out_stride, n_rows - row, n_tokens, n);
    }
}

#define MATMUL_Q8(type, bytes, sums)                                                                                   \
    static void matmul_##type(const void *w, size_t row_bytes, const void *x, size_t x_bytes, float *out,              \
                              size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {                           \
        matmul_q8(load_##type, sums, k1_scalar_matmul_##type, bytes, w, row_bytes, x, x_bytes, out, out_stride,        \
                  n_rows, n_tokens, n);                                                                                \
    }

MATMUL_Q8(q4_0, 18, sums_nibbles)
MATMUL_Q8(q4_1, 20, sums_nibbles)
MATMUL_Q8(q8_0, 34, sums_bytes)

/* ---- floats ---- */

INLINE float sum_lanes(__m256 v) {
    float lanes[K1_LANES];
    _mm256_storeu_ps(lanes, v);
    return k1_lanes_sum(lanes);
}

typedef __m256 load_eight_fn(const uint8_t *w, size_t k);

INLINE __m128i eight_halves(const uint8_t *w, size_t k) {
    return _mm_loadu_si128((const __m128i *)(const void *)(w + 2 * k));
}

INLINE __m256 eight_f32(const uint8_t *w, size_t k) { return _mm256_loadu_ps((const float *)(const void *)w + k); }

INLINE __m256 eight_f16(const uint8_t *w, size_t k) { return _mm256_cvtph_ps(eight_halves(w, k)); }

INLINE __m256 eight_bf16(const uint8_t *w, size_t k) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_halves(w, k)), 16));
}

/* One row times n_tokens of TILE or one (a constant). */
INLINE void row_floats(load_eight_fn *eight, const uint8_t *w, const char *x, size_t x_bytes, float *out,
                       size_t out_stride, size_t n_tokens, size_t n) {
    __m256 sum[TILE];
    for (size_t t = 0; t < n_tokens; t++) {
        sum[t] = _mm256_setzero_ps();
    }
    for (size_t k = 0; k < n; k += K1_LANES) {
        __m256 values = eight(w, k);
        for (size_t t = 0; t < n_tokens; t++) {
            const float *at = (const float *)(const void *)(x + t * x_bytes) + k;
            sum[t] = _mm256_add_ps(sum[t], _mm256_mul_ps(values, _mm256_loadu_ps(at)));
        }
    }
    for (size_t t = 0; t < n_tokens; t++) {
        out[t * out_stride] = sum_lanes(sum[t]);
    }
}

INLINE void matmul_floats(load_eight_fn *eight, k1_matmul_fn *rest, const void *w, size_t row_bytes, const void *x,
                          size_t x_bytes, float *out, size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {
    if (n % K1_LANES != 0) {
        rest(w, row_bytes, x, x_bytes, out, out_stride, n_rows, n_tokens, n);
        return;
    }
    const char *acts = x;
    for (size_t r = 0; r < n_rows; r++) {
        const uint8_t *row = (const uint8_t *)w + r * row_bytes;
        size_t t = 0;
        for (; t + TILE <= n_tokens; t += TILE) {
            row_floats(eight, row, acts + t * x_bytes, x_bytes, out + t * out_stride + r, out_stride, TILE, n);
        }
        for (; t < n_tokens; t++) {
            row_floats(eight, row, acts + t * x_bytes, x_bytes, out + t * out_stride + r, out_stride, 1, n);
        }
    }
}

#define MATMUL_FLOATS(type)                                                                                            \
    static void matmul_##type(const void *w, size_t row_bytes, const void *x, size_t x_bytes, float *out,              \
                              size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {                           \
        matmul_floats(eight_##type, k1_scalar_matmul_##type, w, row_bytes, x, x_bytes, out, out_stride, n_rows,        \
                      n_tokens, n);                                                                                    \
    }

MATMUL_FLOATS(f32)
MATMUL_FLOATS(f16)
MATMUL_FLOATS(bf16)

static void rmsnorm(const float *x, const float *weight, float eps, float *out, size_t n) {
    size_t whole = n / K1_LANES * K1_LANES;
    float lanes[K1_LANES];
    __m256 squares = _mm256_setzero_ps();
    for (size_t i = 0; i < whole; i += K1_LANES) {
        __m256 v = _mm256_loadu_ps(x + i);
        squares = _mm256_add_ps(squares, _mm256_mul_ps(v, v));
    }
    _mm256_storeu_ps(lanes, squares);
    for (size_t i = whole; i < n; i++) {
        lanes[i - whole] += x[i] * x[i];
    }
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

/* k1_exp() in eight lanes. */
INLINE __m256 exp_lanes(__m256 x) {
    const __m256 magic = _mm256_set1_ps(K1_EXP_MAGIC);
    x = _mm256_min_ps(_mm256_set1_ps(K1_EXP_MAX), x); /* in this order NaN stays */
    x = _mm256_max_ps(_mm256_set1_ps(K1_EXP_MIN), x);
    __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(K1_EXP_LOG2E)), magic);
    __m256 n = _mm256_sub_ps(shifted, magic);
    __m256 r = _mm256_sub_ps(x, _mm256_mul_ps(n, _mm256_set1_ps(K1_EXP_LN2_HIGH)));
    r = _mm256_sub_ps(r, _mm256_mul_ps(n, _mm256_set1_ps(K1_EXP_LN2_LOW)));
    const float coefficients[] = {K1_EXP_P1, K1_EXP_P2, K1_EXP_P3, K1_EXP_P4, K1_EXP_P5};
    __m256 p = _mm256_set1_ps(K1_EXP_P0);
    for (size_t i = 0; i < 5; i++) {
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(coefficients[i]));
    }
    __m256 value = _mm256_add_ps(_mm256_add_ps(_mm256_mul_ps(p, _mm256_mul_ps(r, r)), r), _mm256_set1_ps(1.0f));
    __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), exponent));
}

static void swiglu(float *gate, const float *up, size_t n) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 one = _mm256_set1_ps(1.0f);
    size_t whole = n / K1_LANES * K1_LANES;
    for (size_t i = 0; i < whole; i += K1_LANES) {
        __m256 g = _mm256_loadu_ps(gate + i);
        __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, exp_lanes(_mm256_xor_ps(g, sign))));
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
    for (size_t i = whole; i < n; i++) {
        gate[i] = gate[i] / (1.0f + k1_exp(-gate[i])) * up[i];
    }
}

static float dot_f16(const float *q, const uint16_t *k, size_t n) {
    size_t whole = n / K1_LANES * K1_LANES;
    __m256 sum = _mm256_setzero_ps();
    for (size_t i = 0; i < whole; i += K1_LANES) {
        __m256 keys = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(k + i)));
        sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_loadu_ps(q + i), keys));
    }
    if (whole == n) {
        return sum_lanes(sum);
    }
    float lanes[K1_LANES];
    _mm256_storeu_ps(lanes, sum);
    for (size_t i = whole; i < n; i++) {
        lanes[i - whole] += q[i] * k1_f16_to_f32(k[i]);
    }
    return k1_lanes_sum(lanes);
}

static void axpy_f16(float *acc, float scale, float weight, const uint16_t *v, size_t n) {
    const __m256 scales = _mm256_set1_ps(scale);
    const __m256 weights = _mm256_set1_ps(weight);
    size_t whole = n / K1_LANES * K1_LANES;
    for (size_t i = 0; i < whole; i += K1_LANES) {
        __m256 values = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(v + i)));
        __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(acc + i), scales);
        _mm256_storeu_ps(acc + i, _mm256_add_ps(kept, _mm256_mul_ps(weights, values)));
    }
    for (size_t i = whole; i < n; i++) {
        acc[i] = acc[i] * scale + weight * k1_f16_to_f32(v[i]);
    }
}

static void to_f16(const float *x, uint16_t *out, size_t n) {
    const __m256 limit = _mm256_set1_ps(K1_F16_MAX);
    const __m256 lower = _mm256_set1_ps(-K1_F16_MAX);
    size_t whole = n / K1_LANES * K1_LANES;
    for (size_t i = 0; i < whole; i += K1_LANES) {
        __m256 v = _mm256_max_ps(lower, _mm256_min_ps(limit, _mm256_loadu_ps(x + i))); /* in this order NaN stays */
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    for (size_t i = whole; i < n; i++) {
        out[i] = k1_f32_to_f16(x[i]);
    }
}

/* ---- quantization of activations ---- */

INLINE float largest_magnitude(const __m256 v[4]) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 a = _mm256_max_ps(_mm256_andnot_ps(sign, v[0]), _mm256_andnot_ps(sign, v[1]));
    __m256 b = _mm256_max_ps(_mm256_andnot_ps(sign, v[2]), _mm256_andnot_ps(sign, v[3]));
    a = _mm256_max_ps(a, b);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

INLINE int all_finite(const __m256 v[4]) {
    const __m256 zero = _mm256_setzero_ps();
    __m256 poison = zero; /* x * 0 is NaN for NaN and infinity */
    for (size_t i = 0; i < 4; i++) {
        poison = _mm256_add_ps(poison, _mm256_mul_ps(v[i], zero));
    }
    return _mm256_movemask_ps(_mm256_cmp_ps(poison, poison, _CMP_UNORD_Q)) == 0;
}

/* Half away from zero: truncate, then step where the exact rest is a half or more. */
INLINE __m256i round_away(__m256 v) {
    __m256i q = _mm256_cvttps_epi32(v);
    __m256 rest = _mm256_sub_ps(v, _mm256_cvtepi32_ps(q));
    __m256i up = _mm256_castps_si256(_mm256_cmp_ps(rest, _mm256_set1_ps(0.5f), _CMP_GE_OQ));
    __m256i down = _mm256_castps_si256(_mm256_cmp_ps(rest, _mm256_set1_ps(-0.5f), _CMP_LE_OQ));
    return _mm256_add_epi32(_mm256_sub_epi32(q, up), down);
}

INLINE int sum_i32(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

static void quantize_block(const float *x, k1_q8 *out) {
    __m256 v[4];
    for (size_t i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + i * 8);
    }
    float d = largest_magnitude(v) / 127.0f;
    float inverse = 1.0f / d;
    if (!all_finite(v) || !(inverse < INFINITY)) {
        k1_scalar_quantize(x, out, K1_Q8_BLOCK);
        return;
    }
    __m256i q[4];
    for (size_t i = 0; i < 4; i++) {
        q[i] = round_away(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
    }
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    /* Packing works within 128-bit lanes; the permutation puts groups of four bytes back in order. */
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)out->q, bytes);
    out->d = d;
    out->s = d * (float)sum_i32(sum);
}

static void quantize(const float *x, k1_q8 *out, size_t n) {
    for (size_t i = 0; i < n / K1_Q8_BLOCK; i++) {
        quantize_block(x + i * K1_Q8_BLOCK, out + i);
    }
}

const k1_kernels k1_kernels_avx2 = {
    .name = "avx2",
    .matmul =
        {
            [K1_F32] = {K1_ACT_F32, matmul_f32},
            [K1_F16] = {K1_ACT_F32, matmul_f16},
            [K1_BF16] = {K1_ACT_F32, matmul_bf16},
            [K1_Q4_0] = {K1_ACT_Q8, matmul_q4_0},
            [K1_Q4_1] = {K1_ACT_Q8, matmul_q4_1},
            [K1_Q5_0] = {K1_ACT_Q8, k1_scalar_matmul_q5_0},
            [K1_Q8_0] = {K1_ACT_Q8, matmul_q8_0},
            [K1_Q4_K] = {K1_ACT_F32, k1_scalar_matmul_q4_k},
            [K1_Q6_K] = {K1_ACT_F32, k1_scalar_matmul_q6_k},
        },
    .quantize = quantize,
    .dequantize = k1_scalar_dequantize,
    .rmsnorm = rmsnorm,
    .add = add,
    .swiglu = swiglu,
    .dot_f16 = dot_f16,
    .axpy_f16 = axpy_f16,
    .to_f16 = to_f16,
};
