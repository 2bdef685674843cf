/* The kernels: each table against plain sums in double precision and, to the bit, against the reference. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../kernels/fmath.h"
#include "../kernels/half.h"
#include "k1/kernels.h"

static const k1_dtype types[] = {K1_F32, K1_F16, K1_BF16, K1_Q4_0, K1_Q4_1, K1_Q5_0, K1_Q8_0, K1_Q4_K, K1_Q6_K};
#define N_TYPES (sizeof types / sizeof types[0])

#define N_VALUES 1280u /* of a row: more than a slice of unpacked blocks, and five large blocks */
#define N_ROWS 19u     /* no multiple of what a vector table takes at once */
#define N_TOKENS 11u

static uint32_t random_state = 1;

static uint32_t random_u32(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static float random_float(void) { return (float)random_u32() / (float)(1u << 23) - 1.0f; }

static void put_f16(uint8_t *at, float value) {
    uint16_t h = k1_f32_to_f16(value);
    memcpy(at, &h, sizeof h);
}

/* Where the half-precision scales lie in a block. */
static void put_scales(k1_dtype type, uint8_t *block) {
    float scale = 0.001f + fabsf(random_float()) * 0.01f;
    switch (type) {
    case K1_Q4_1:
    case K1_Q4_K:
        put_f16(block + 2, random_float() * 0.01f);
        put_f16(block, scale);
        break;
    case K1_Q6_K:
        put_f16(block + 208, scale);
        break;
    default:
        put_f16(block, scale);
    }
}

/* A matrix of random valid blocks: uint8[N_ROWS][row_bytes] */
static uint8_t *random_matrix(k1_dtype type, size_t *row_bytes) {
    size_t block_bytes = k1_dtype_block_bytes(type);
    size_t n_blocks = N_VALUES / k1_dtype_block(type);
    *row_bytes = n_blocks * block_bytes;
    uint8_t *w = malloc(N_ROWS * *row_bytes);
    assert_non_null(w);
    for (size_t i = 0; i < N_ROWS * n_blocks; i++) {
        uint8_t *block = w + i * block_bytes;
        float value = random_float();
        if (type == K1_F32) {
            memcpy(block, &value, sizeof value);
        } else if (type == K1_F16) {
            put_f16(block, value);
        } else if (type == K1_BF16) {
            uint16_t high = (uint16_t)(k1_bits_of_float(value) >> 16);
            memcpy(block, &high, sizeof high);
        } else {
            for (size_t j = 0; j < block_bytes; j++) {
                block[j] = (uint8_t)random_u32();
            }
            put_scales(type, block);
        }
    }
    return w;
}

typedef struct acts {
    float *f32; /* float[N_TOKENS][N_VALUES] */
    k1_q16 *q16;
} acts;

static acts random_acts(const k1_kernels *kernels) {
    acts a = {malloc(N_TOKENS * N_VALUES * sizeof(float)), malloc(N_TOKENS * N_VALUES / K1_Q16_BLOCK * sizeof(k1_q16))};
    assert_non_null(a.f32);
    assert_non_null(a.q16);
    for (size_t i = 0; i < N_TOKENS * N_VALUES; i++) {
        a.f32[i] = random_float() * (i % 97 == 0 ? 20.0f : 1.0f);
    }
    kernels->quantize(a.f32, a.q16, N_TOKENS * N_VALUES);
    return a;
}

static void free_acts(acts a) {
    free(a.f32);
    free(a.q16);
}

static void multiply(const k1_kernels *kernels, k1_dtype type, const uint8_t *w, size_t row_bytes, acts a,
                     size_t first_row, size_t n_rows, size_t first_token, size_t n_tokens, float *out) {
    const k1_matmul *matmul = &kernels->matmul[type];
    bool q16 = matmul->act == K1_ACT_Q16;
    const void *x = q16 ? (const void *)(a.q16 + first_token * (N_VALUES / K1_Q16_BLOCK))
                        : (const void *)(a.f32 + first_token * N_VALUES);
    size_t x_bytes = q16 ? N_VALUES / K1_Q16_BLOCK * sizeof(k1_q16) : N_VALUES * sizeof(float);
    matmul->run(w + first_row * row_bytes, row_bytes, x, x_bytes, out + first_token * N_ROWS + first_row, N_ROWS,
                n_rows, n_tokens, N_VALUES);
}

static float act_value(const k1_kernels *kernels, k1_dtype type, acts a, size_t i) {
    if (kernels->matmul[type].act == K1_ACT_F32) {
        return a.f32[i];
    }
    const k1_q16 *block = a.q16 + i / K1_Q16_BLOCK;
    return block->d * (float)block->q[i % K1_Q16_BLOCK];
}

static void expect_plain_sums(const k1_kernels *kernels, k1_dtype type) {
    size_t row_bytes;
    uint8_t *w = random_matrix(type, &row_bytes);
    acts a = random_acts(kernels);
    float out[N_TOKENS * N_ROWS];
    float row[N_VALUES];
    multiply(kernels, type, w, row_bytes, a, 0, N_ROWS, 0, N_TOKENS, out);
    for (size_t r = 0; r < N_ROWS; r++) {
        kernels->dequantize(type, w + r * row_bytes, row, N_VALUES);
        for (size_t t = 0; t < N_TOKENS; t++) {
            double sum = 0.0;
            double size = 0.0;
            for (size_t k = 0; k < N_VALUES; k++) {
                double term = (double)row[k] * (double)act_value(kernels, type, a, t * N_VALUES + k);
                sum += term;
                size += fabs(term);
            }
            assert_true(fabs(sum - (double)out[t * N_ROWS + r]) <= 3e-6 * size);
        }
    }
    free(w);
    free_acts(a);
}

static const k1_kernels *const tables[] = {
    &k1_kernels_scalar,
#ifdef K1_HAVE_AVX2
    &k1_kernels_avx2,
#endif
#ifdef K1_HAVE_AVXVNNI
    &k1_kernels_avxvnni,
#endif
};
#define N_TABLES (sizeof tables / sizeof tables[0])

/* The table, or NULL when this processor cannot run it. */
static const k1_kernels *table(size_t i) { return k1_kernels_pick(tables[i]->name); }

static void products_are_the_sums_of_the_dequantized(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TABLES; i++) {
        for (size_t t = 0; table(i) != NULL && t < N_TYPES; t++) {
            expect_plain_sums(table(i), types[t]);
        }
    }
}

/* All at once, row by row and token by token, and in odd pieces. */
static void expect_same_bits(const k1_kernels *kernels, k1_dtype type, const float *reference, const uint8_t *w,
                             size_t row_bytes, acts a) {
    float out[N_TOKENS * N_ROWS];
    multiply(kernels, type, w, row_bytes, a, 0, N_ROWS, 0, N_TOKENS, out);
    assert_memory_equal(out, reference, sizeof out);
    memset(out, 0, sizeof out);
    for (size_t r = 0; r < N_ROWS; r++) {
        for (size_t t = 0; t < N_TOKENS; t++) {
            multiply(kernels, type, w, row_bytes, a, r, 1, t, 1, out);
        }
    }
    assert_memory_equal(out, reference, sizeof out);
    memset(out, 0, sizeof out);
    multiply(kernels, type, w, row_bytes, a, 0, 9, 0, 5, out);
    multiply(kernels, type, w, row_bytes, a, 0, 9, 5, 6, out);
    multiply(kernels, type, w, row_bytes, a, 9, 10, 0, 10, out);
    multiply(kernels, type, w, row_bytes, a, 9, 10, 10, 1, out);
    assert_memory_equal(out, reference, sizeof out);
}

static void products_depend_on_neither_pieces_nor_table(void **state) {
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        size_t row_bytes;
        uint8_t *w = random_matrix(types[t], &row_bytes);
        acts a = random_acts(&k1_kernels_scalar);
        float reference[N_TOKENS * N_ROWS];
        multiply(&k1_kernels_scalar, types[t], w, row_bytes, a, 0, N_ROWS, 0, N_TOKENS, reference);
        for (size_t i = 0; i < N_TABLES; i++) {
            if (table(i) != NULL) {
                expect_same_bits(table(i), types[t], reference, w, row_bytes, a);
            }
        }
        free(w);
        free_acts(a);
    }
}

/* The largest weights and activations in every place: nothing overflows on the way. */
static void extreme_integers_do_not_overflow(void **state) {
    (void)state;
    static const k1_dtype integer[] = {K1_Q4_0, K1_Q4_1, K1_Q5_0, K1_Q8_0};
    for (size_t i = 0; i < 4 * N_TABLES; i++) {
        const k1_kernels *kernels = table(i / 4);
        k1_dtype type = integer[i % 4];
        if (kernels == NULL || kernels->matmul[type].act != K1_ACT_Q16) {
            continue;
        }
        uint8_t w[8 * 34];
        k1_q16 act = {.d = 1.0f};
        size_t bytes = k1_dtype_block_bytes(type);
        memset(w, type == K1_Q8_0 ? 0x80 : 0xff, sizeof w);
        for (size_t r = 0; r < 8; r++) {
            put_f16(w + r * bytes, 1.0f);
            if (type == K1_Q4_1) {
                put_f16(w + r * bytes + 2, 0.0f);
            }
        }
        for (size_t j = 0; j < K1_Q16_BLOCK; j++) {
            act.q[j] = -K1_Q16_MAX;
        }
        act.s = -32767.0f * 32.0f;
        float largest = type == K1_Q8_0 ? -128.0f : type == K1_Q5_0 ? 15.0f : type == K1_Q4_0 ? 7.0f : 15.0f;
        float out[8];
        kernels->matmul[type].run(w, bytes, &act, sizeof act, out, 8, 8, 1, 32);
        for (size_t r = 0; r < 8; r++) {
            assert_true(out[r] == largest * -32767.0f * 32.0f);
        }
    }
}

static void half_precision_survives_the_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float value = k1_f16_to_f32((uint16_t)h);
        uint16_t back;
        k1_kernels_scalar.to_f16(&value, &back, 1);
        if ((h & 0x7c00u) != 0x7c00u) {
            assert_int_equal(back, h);
        } else if ((h & 0x3ffu) == 0) { /* infinity is clipped */
            assert_int_equal(back, (h & 0x8000u) | 0x7bffu);
        } else {
            assert_true(isnan(value) && isnan(k1_f16_to_f32(back)));
        }
    }
    assert_true(k1_f16_to_f32(0x3c00) == 1.0f);
    assert_true(k1_f16_to_f32(0x0001) == 0x1p-24f);
}

static const float awkward[] = {0.0f,          -0.0f,    65504.0f,      65519.9f,  65520.0f, -1e30f,   1e-8f,
                                5.9604645e-8f, 2.98e-8f, 2.9802323e-8f, 6.1e-5f,   1.00049f, 1.00146f, -0.3333f,
                                2048.5f,       2049.5f,  INFINITY,      -INFINITY, NAN,      3.14159f};
#define N_AWKWARD (sizeof awkward / sizeof awkward[0])

static void half_precision_rounds_alike_everywhere(void **state) {
    (void)state;
    uint16_t expected[N_AWKWARD];
    k1_kernels_scalar.to_f16(awkward, expected, N_AWKWARD);
    assert_int_equal(expected[3], 0x7bff);
    assert_int_equal(expected[5], 0xfbff);
    assert_int_equal(expected[14], k1_f32_to_f16(2048.0f)); /* to even */
    for (size_t i = 0; i < N_TABLES; i++) {
        uint16_t got[N_AWKWARD];
        if (table(i) != NULL) {
            table(i)->to_f16(awkward, got, N_AWKWARD);
            assert_memory_equal(got, expected, sizeof got);
        }
    }
}

static void activations_round_half_away_from_zero(void **state) {
    (void)state;
    float x[K1_Q16_BLOCK] = {32767.0f, 0.5f, -0.5f, 1.5f, -2.5f, 0.49999997f, -32766.5f, 32766.4f};
    const int16_t expected[K1_Q16_BLOCK] = {32767, 1, -1, 2, -3, 0, -32767, 32766};
    for (size_t i = 0; i < N_TABLES; i++) {
        k1_q16 out;
        if (table(i) != NULL) {
            table(i)->quantize(x, &out, K1_Q16_BLOCK);
            assert_true(out.d == 1.0f);
            assert_memory_equal(out.q, expected, sizeof expected);
            assert_true(out.s == 32765.0f);
        }
    }
}

static void activations_that_are_no_numbers_stay_visible(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3 * N_TABLES; i++) {
        float x[2 * K1_Q16_BLOCK] = {1.0f};
        k1_q16 out[2];
        x[5] = bad[i % 3];
        if (table(i / 3) != NULL) {
            table(i / 3)->quantize(x, out, 2 * K1_Q16_BLOCK);
            assert_true(isnan(out[0].d) && isnan(out[0].s));
            assert_true(out[1].d == 0.0f && out[1].s == 0.0f && out[1].q[3] == 0);
        }
    }
}

static void exp_is_right_to_two_ulp(void **state) {
    (void)state;
    for (float x = -87.0f; x < 88.0f; x += 0.00313f) {
        double exact = exp((double)x);
        assert_true(fabs((double)k1_exp(x) - exact) <= 2.0 * 0x1p-23 * exact);
    }
    assert_true(k1_exp(0.0f) == 1.0f);
    assert_true(k1_exp(-INFINITY) < 2e-38f && k1_exp(-1000.0f) >= 0.0f);
    assert_true(k1_exp(1000.0f) > 1e38f);
    assert_true(isnan(k1_exp(NAN)));
}

#define N_VECTOR 75u /* with a rest beyond whole vectors */

/* Results of all functions on vectors, one after the other. */
static void vector_functions(const k1_kernels *kernels, float *out) {
    float x[N_VECTOR];
    float y[N_VECTOR];
    uint16_t h[N_VECTOR];
    random_state = 5;
    for (size_t i = 0; i < N_VECTOR; i++) {
        x[i] = random_float() * 3.0f;
        y[i] = random_float();
        h[i] = k1_f32_to_f16(random_float());
    }
    kernels->rmsnorm(x, y, 1e-5f, out, N_VECTOR);
    out += N_VECTOR;
    *out++ = kernels->dot_f16(x, h, N_VECTOR);
    *out++ = kernels->dot_f16(x, h, 64);
    memcpy(out, x, sizeof x);
    kernels->axpy_f16(out, 0.25f, 1.75f, h, N_VECTOR);
    out += N_VECTOR;
    memcpy(out, x, sizeof x);
    kernels->swiglu(out, y, N_VECTOR);
    out += N_VECTOR;
    memcpy(out, x, sizeof x);
    kernels->add(out, y, N_VECTOR);
}

static void vector_functions_give_the_same_bits_everywhere(void **state) {
    (void)state;
    float expected[4 * N_VECTOR + 2];
    vector_functions(&k1_kernels_scalar, expected);
    for (size_t i = 0; i < N_TABLES; i++) {
        float got[4 * N_VECTOR + 2];
        if (table(i) != NULL) {
            vector_functions(table(i), got);
            assert_memory_equal(got, expected, sizeof got);
        }
    }
}

static void vector_functions_are_right(void **state) {
    (void)state;
    const float x[4] = {1.0f, -2.0f, 3.0f, 4.0f};
    const float weight[4] = {1.0f, 2.0f, 1.0f, 0.5f};
    float out[4];
    k1_kernels_scalar.rmsnorm(x, weight, 0.0f, out, 4);
    double scale = 1.0 / sqrt(30.0 / 4.0);
    for (size_t i = 0; i < 4; i++) {
        assert_true(fabs((double)out[i] - (double)x[i] * scale * (double)weight[i]) < 1e-6);
    }
    memcpy(out, x, sizeof x);
    k1_kernels_scalar.swiglu(out, weight, 4);
    assert_true(fabs((double)out[1] - 2.0 * -2.0 / (1.0 + exp(2.0))) < 1e-6);
}

static void tables_are_picked_by_name(void **state) {
    (void)state;
    assert_ptr_equal(k1_kernels_pick("scalar"), &k1_kernels_scalar);
    assert_null(k1_kernels_pick("mmx"));
    assert_non_null(k1_kernels_pick(NULL));
    for (size_t t = 0; t < N_TYPES; t++) {
        assert_true(k1_kernels_pick(NULL)->matmul[types[t]].run != NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_sums_of_the_dequantized),
        cmocka_unit_test(products_depend_on_neither_pieces_nor_table),
        cmocka_unit_test(extreme_integers_do_not_overflow),
        cmocka_unit_test(half_precision_survives_the_round_trip),
        cmocka_unit_test(half_precision_rounds_alike_everywhere),
        cmocka_unit_test(activations_round_half_away_from_zero),
        cmocka_unit_test(activations_that_are_no_numbers_stay_visible),
        cmocka_unit_test(exp_is_right_to_two_ulp),
        cmocka_unit_test(vector_functions_give_the_same_bits_everywhere),
        cmocka_unit_test(vector_functions_are_right),
        cmocka_unit_test(tables_are_picked_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
