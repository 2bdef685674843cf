/* RoPE: exact angles, both orders of pairs, scaled frequencies, and no floating-point exception at any position. */
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../engine/internal.h"

#define N_ROT 64u
#define N_PAIRS (N_ROT / 2)

static const k1_rope_scaling unscaled = {.linear = 1.0};

static const k1_rope_scaling llama3 = {.linear = 1.0,
                                       .llama3 = true,
                                       .llama3_factor = 32.0,
                                       .low_freq_factor = 1.0,
                                       .high_freq_factor = 4.0,
                                       .original_context = 8192.0};

/* As of Llama 2, SmolLM2, Llama 3.2 and Qwen2. */
static const struct {
    double base;
    const k1_rope_scaling *scaling;
} models[] = {{10000.0, &unscaled}, {100000.0, &unscaled}, {500000.0, &llama3}, {1000000.0, &unscaled}};

/* One stretch of positions: their rows of the tables, and a head turned by each. */
static void turn_heads(const double *freqs, uint32_t first, uint32_t n) {
    float cos_row[N_PAIRS];
    float sin_row[N_PAIRS];
    float head[N_ROT];
    for (size_t i = 0; i < N_ROT; i++) {
        head[i] = (float)i - 31.5f;
    }
    for (uint32_t pos = first; pos < first + n; pos++) {
        k1_rope_tables(freqs, N_PAIRS, pos, 1, cos_row, sin_row);
        k1_rope_apply(head, cos_row, sin_row, N_PAIRS, pos % 2 == 0 ? K1_ROPE_NEIGHBOURS : K1_ROPE_HALVES);
    }
}

/* All positions at first, where sines are smallest, then runs of 64 spread up to 2^20. */
static void positions_up_to_a_million_raise_no_exception(void **state) {
    (void)state;
    enum { ALL = 2048, RUN = 64, STEP = 1021 };
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        double freqs[N_PAIRS];
        assert_int_equal(feclearexcept(FE_ALL_EXCEPT), 0);
        k1_rope_freqs(N_ROT, models[m].base, models[m].scaling, freqs);
        turn_heads(freqs, 0, ALL);
        for (uint32_t first = ALL; first < 1u << 20; first += STEP) {
            turn_heads(freqs, first, RUN);
        }
        turn_heads(freqs, (1u << 20) - RUN, RUN);
        assert_int_equal(fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW), 0);
    }
}

static void angles_are_exact_far_out(void **state) {
    (void)state;
    double freqs[N_PAIRS];
    float cos_row[N_PAIRS];
    float sin_row[N_PAIRS];
    k1_rope_freqs(N_ROT, 10000.0, &unscaled, freqs);
    k1_rope_tables(freqs, N_PAIRS, 1000000, 1, cos_row, sin_row);
    assert_true(fabs((double)cos_row[0] - 0.93675212753314474) < 1e-7); /* cos(1000000) */
    assert_true(fabs((double)sin_row[0] + 0.34999350217129294) < 1e-7);
    for (size_t i = 0; i < N_PAIRS; i++) {
        double norm = (double)cos_row[i] * (double)cos_row[i] + (double)sin_row[i] * (double)sin_row[i];
        assert_true(fabs(norm - 1.0) < 3e-7);
    }
}

static void neighbours_and_halves_rotate_the_same_pairs(void **state) {
    (void)state;
    const float cos_row[2] = {0.0f, 1.0f}; /* a quarter turn for the first pair, none for the second */
    const float sin_row[2] = {1.0f, 0.0f};
    float neighbours[5] = {1, 2, 3, 4, 9};
    float halves[5] = {1, 3, 2, 4, 9};
    k1_rope_apply(neighbours, cos_row, sin_row, 2, K1_ROPE_NEIGHBOURS);
    k1_rope_apply(halves, cos_row, sin_row, 2, K1_ROPE_HALVES);
    const float turned[5] = {-2, 1, 3, 4, 9};
    const float turned_halves[5] = {-2, 3, 1, 4, 9};
    assert_memory_equal(neighbours, turned, sizeof turned);
    assert_memory_equal(halves, turned_halves, sizeof turned_halves);
}

static void linear_scaling_and_factors_divide_frequencies(void **state) {
    (void)state;
    const float factors[2] = {1.0f, 8.0f};
    k1_rope_scaling scaling = {.factors = factors, .linear = 2.0};
    double freqs[2];
    k1_rope_freqs(4, 100.0, &scaling, freqs);
    assert_true(fabs(freqs[0] - 0.5) < 1e-15);
    assert_true(fabs(freqs[1] - 0.1 / 16.0) < 1e-15);
}

static void llama3_keeps_short_waves_and_stretches_long_ones(void **state) {
    (void)state;
    k1_rope_scaling scaling = {.linear = 1.0,
                               .llama3 = true,
                               .llama3_factor = 8.0,
                               .low_freq_factor = 1.0,
                               .high_freq_factor = 4.0,
                               .original_context = 8192.0};
    double plain[64];
    double scaled[64];
    k1_rope_freqs(128, 500000.0, &unscaled, plain);
    k1_rope_freqs(128, 500000.0, &scaling, scaled);
    assert_true(scaled[0] == plain[0]);
    assert_true(fabs(scaled[63] * 8.0 / plain[63] - 1.0) < 1e-12);
    for (size_t i = 1; i < 64; i++) {
        assert_true(scaled[i] < scaled[i - 1]);
        assert_true(scaled[i] <= plain[i] && scaled[i] >= plain[i] / 8.0001);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_up_to_a_million_raise_no_exception),
        cmocka_unit_test(angles_are_exact_far_out),
        cmocka_unit_test(neighbours_and_halves_rotate_the_same_pairs),
        cmocka_unit_test(linear_scaling_and_factors_divide_frequencies),
        cmocka_unit_test(llama3_keeps_short_waves_and_stretches_long_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
