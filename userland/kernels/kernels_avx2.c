/* AVX2, FMA and F16C. Same results as the reference to the bit: integer sums are exact, and every float is rounded in
 * the order that scalar.h states (so products and sums are kept apart, not fused). */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "avx2.h"
#include "fmath.h"
#include "half.h"
#include "scalar.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i add_pairs(__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }

#include "products_avx2.h"

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
    void k1_avx2_matmul_##type(const void *w, size_t row_bytes, const void *x, size_t x_bytes, float *out,             \
                               size_t out_stride, size_t n_rows, size_t n_tokens, size_t n) {                          \
        matmul_floats(eight_##type, k1_scalar_matmul_##type, w, row_bytes, x, x_bytes, out, out_stride, n_rows,        \
                      n_tokens, n);                                                                                    \
    }

MATMUL_FLOATS(f32)
MATMUL_FLOATS(f16)
MATMUL_FLOATS(bf16)

void k1_avx2_rmsnorm(const float *x, const float *weight, float eps, float *out, size_t n) {
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

void k1_avx2_add(float *x, const float *y, size_t n) {
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

void k1_avx2_swiglu(float *gate, const float *up, size_t n) {
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

float k1_avx2_dot_f16(const float *q, const uint16_t *k, size_t n) {
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

void k1_avx2_axpy_f16(float *acc, float scale, float weight, const uint16_t *v, size_t n) {
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

void k1_avx2_to_f16(const float *x, uint16_t *out, size_t n) {
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

static void quantize_block(const float *x, k1_q16 *out) {
    __m256 v[4];
    for (size_t i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + i * 8);
    }
    float d = largest_magnitude(v) / (float)K1_Q16_MAX;
    float inverse = 1.0f / d;
    if (!all_finite(v) || !(inverse < INFINITY)) {
        k1_scalar_quantize(x, out, K1_Q16_BLOCK);
        return;
    }
    __m256i q[4];
    for (size_t i = 0; i < 4; i++) {
        q[i] = round_away(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
    }
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    for (size_t i = 0; i < 2; i++) { /* packing works within 128-bit lanes: put groups of four values back in order */
        __m256i pack = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * i], q[2 * i + 1]), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(out->q + 16 * i), pack);
    }
    out->d = d;
    out->s = d * (float)sum_i32(sum);
}

void k1_avx2_quantize(const float *x, k1_q16 *out, size_t n) {
    for (size_t i = 0; i < n / K1_Q16_BLOCK; i++) {
        quantize_block(x + i * K1_Q16_BLOCK, out + i);
    }
}

const k1_kernels k1_kernels_avx2 = TABLE("avx2");
