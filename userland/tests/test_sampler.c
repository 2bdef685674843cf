/* The sampler: each limit alone, faults in the logits, and the same token for the same seed and position. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "k1/sampler.h"

#define N_VOCAB 6u
#define N_DRAWS 20000u

static const k1_sampling plain = {.temperature = 1.0f, .top_p = 1.0f, .repeat_penalty = 1.0f, .seed = 7};

/* Probabilities 0.4 0.3 0.15 0.1 0.04 0.01, in shuffled order. */
static const float probabilities[N_VOCAB] = {0.1f, 0.4f, 0.01f, 0.3f, 0.04f, 0.15f};

static void get_logits(float *logits) {
    for (size_t i = 0; i < N_VOCAB; i++) {
        logits[i] = logf(probabilities[i]) + 3.0f;
    }
}

static int32_t sample(const k1_sampling *s, const float *logits, uint64_t position) {
    _Alignas(8) unsigned char scratch[N_VOCAB * 16];
    assert_true(k1_sample_scratch(N_VOCAB) <= sizeof scratch);
    return k1_sample(s, logits, N_VOCAB, NULL, 0, position, scratch);
}

/* How often each token comes, over many positions. */
static void frequencies(const k1_sampling *s, double *share) {
    float logits[N_VOCAB];
    get_logits(logits);
    memset(share, 0, N_VOCAB * sizeof *share);
    for (uint64_t position = 0; position < N_DRAWS; position++) {
        int32_t id = sample(s, logits, position);
        assert_true(id >= 0 && id < (int32_t)N_VOCAB);
        share[id] += 1.0 / N_DRAWS;
    }
}

static void expect_shares(const k1_sampling *s, const double *expected) {
    double share[N_VOCAB];
    frequencies(s, share);
    for (size_t i = 0; i < N_VOCAB; i++) {
        assert_true(fabs(share[i] - expected[i]) < 0.015);
        assert_true((share[i] == 0.0) == (expected[i] == 0.0));
    }
}

static void plain_sampling_follows_the_probabilities(void **state) {
    (void)state;
    const double expected[N_VOCAB] = {0.1, 0.4, 0.01, 0.3, 0.04, 0.15};
    expect_shares(&plain, expected);
}

static void temperature_zero_takes_the_best_and_the_smaller_id_of_equals(void **state) {
    (void)state;
    k1_sampling s = plain;
    s.temperature = 0.0f;
    const float logits[N_VOCAB] = {-1.0f, 2.0f, 0.0f, 5.0f, 5.0f, 1.0f};
    assert_int_equal(sample(&s, logits, 0), 3);
}

static void temperature_sharpens(void **state) {
    (void)state;
    k1_sampling s = plain;
    s.temperature = 0.5f; /* squares of the probabilities, normalised by their sum 0.2842 */
    const double expected[N_VOCAB] = {0.0352, 0.5630, 0.00035, 0.3167, 0.0056, 0.0792};
    expect_shares(&s, expected);
}

static void top_k_keeps_the_k_best(void **state) {
    (void)state;
    k1_sampling s = plain;
    s.top_k = 2;
    const double expected[N_VOCAB] = {0, 0.4 / 0.7, 0, 0.3 / 0.7, 0, 0};
    expect_shares(&s, expected);
    s.top_k = 1000;
    const double all[N_VOCAB] = {0.1, 0.4, 0.01, 0.3, 0.04, 0.15};
    expect_shares(&s, all);
}

static void top_p_keeps_the_smallest_set_that_reaches_it(void **state) {
    (void)state;
    k1_sampling s = plain;
    s.top_p = 0.8f;
    const double expected[N_VOCAB] = {0, 0.4 / 0.85, 0, 0.3 / 0.85, 0, 0.15 / 0.85};
    expect_shares(&s, expected);
    s.top_p = 0.0f;
    const double best[N_VOCAB] = {0, 1, 0, 0, 0, 0};
    expect_shares(&s, best);
}

static void top_p_counts_within_top_k(void **state) {
    (void)state;
    k1_sampling s = plain;
    s.top_k = 3; /* leaves 0.4 0.3 0.15, of which two reach 80 % */
    s.top_p = 0.8f;
    const double expected[N_VOCAB] = {0, 0.4 / 0.7, 0, 0.3 / 0.7, 0, 0};
    expect_shares(&s, expected);
}

static void min_p_is_relative_to_the_best(void **state) {
    (void)state;
    k1_sampling s = plain;
    s.min_p = 0.3f; /* of 0.4: 0.12 */
    const double expected[N_VOCAB] = {0, 0.4 / 0.85, 0, 0.3 / 0.85, 0, 0.15 / 0.85};
    expect_shares(&s, expected);
}

static void penalty_counts_the_last_n_once_each(void **state) {
    (void)state;
    k1_sampling s = plain;
    s.temperature = 0.0f;
    s.repeat_penalty = 2.0f;
    s.repeat_last_n = 2;
    _Alignas(8) unsigned char scratch[N_VOCAB * 16];
    const float logits[N_VOCAB] = {4.0f, 3.0f, 2.5f, -1.0f, -9.0f, -9.0f};
    const int32_t once[] = {5, 0};
    const int32_t twice[] = {0, 0};
    const int32_t long_ago[] = {0, 5, 5};
    const int32_t both[] = {0, 1, -1, 99}; /* ids outside the vocabulary are passed over */
    assert_int_equal(k1_sample(&s, logits, N_VOCAB, once, 2, 0, scratch), 1);
    assert_int_equal(k1_sample(&s, logits, N_VOCAB, twice, 2, 0, scratch), 1);
    assert_int_equal(k1_sample(&s, logits, N_VOCAB, long_ago, 3, 0, scratch), 0);
    s.repeat_last_n = 4;
    assert_int_equal(k1_sample(&s, logits, N_VOCAB, both, 4, 0, scratch), 2);
    const float negative[N_VOCAB] = {-1.0f, -1.5f, -9.0f, -9.0f, -9.0f, -9.0f};
    assert_int_equal(k1_sample(&s, negative, N_VOCAB, once, 2, 0, scratch), 1);
}

static void the_same_seed_and_position_give_the_same_token(void **state) {
    (void)state;
    float logits[N_VOCAB];
    get_logits(logits);
    k1_sampling other = plain;
    other.seed = 8;
    unsigned equal = 0;
    for (uint64_t position = 0; position < 1000; position++) {
        int32_t id = sample(&plain, logits, position);
        assert_int_equal(id, sample(&plain, logits, position));
        equal += id == sample(&other, logits, position);
    }
    assert_true(equal > 200 && equal < 360); /* sum of squares: 0.2842 by chance */
}

static void tokens_stay_the_same_over_releases(void **state) {
    (void)state;
    float logits[N_VOCAB];
    get_logits(logits);
    const int32_t golden[8] = {3, 3, 3, 3, 1, 1, 5, 5};
    for (uint64_t position = 0; position < 8; position++) {
        assert_int_equal(sample(&plain, logits, position), golden[position]);
    }
}

static void faulty_logits_have_a_stated_outcome(void **state) {
    (void)state;
    k1_sampling greedy = plain;
    greedy.temperature = 0.0f;
    const float nan_first[N_VOCAB] = {NAN, 1.0f, 2.0f, NAN, -INFINITY, 0.0f};
    assert_int_equal(sample(&greedy, nan_first, 0), 2);
    const float infinite[N_VOCAB] = {1.0f, 1.0f, INFINITY, 1.0f, 1.0f, 1.0f};
    const float hopeless[N_VOCAB] = {NAN, NAN, -INFINITY, NAN, NAN, NAN};
    k1_sampling limited = plain;
    limited.top_k = 3;
    limited.top_p = 0.9f;
    for (uint64_t position = 0; position < 100; position++) {
        int32_t id = sample(&limited, nan_first, position);
        assert_true(id == 1 || id == 2 || id == 5);
        assert_int_equal(sample(&plain, infinite, position), 2);
        assert_int_equal(sample(&plain, hopeless, position), -1);
    }
}

static void values_out_of_range_are_named(void **state) {
    (void)state;
    k1_err err;
    assert_int_equal(k1_sampling_check(&k1_sampling_default, &err), 0);
    k1_sampling s = plain;
    s.temperature = -0.5f;
    assert_int_equal(k1_sampling_check(&s, &err), -1);
    assert_string_equal(err.text, "temperature is -0.5, outside 0 to 100");
    s = plain;
    s.top_p = NAN;
    assert_int_equal(k1_sampling_check(&s, &err), -1);
    assert_non_null(strstr(err.text, "top_p is"));
    s = plain;
    s.min_p = 1.5f;
    assert_int_equal(k1_sampling_check(&s, &err), -1);
    assert_non_null(strstr(err.text, "min_p is 1.5, outside 0 to 1"));
    s = plain;
    s.repeat_penalty = 0.0f;
    assert_int_equal(k1_sampling_check(&s, &err), -1);
    assert_non_null(strstr(err.text, "repeat_penalty is 0"));
    s = plain;
    s.top_k = -1;
    assert_int_equal(k1_sampling_check(&s, &err), -1);
    assert_non_null(strstr(err.text, "top_k is -1"));
}

/* Both ways through the candidates, over a vocabulary large enough for a deep heap. */
static void a_large_vocabulary_is_cut_right(void **state) {
    (void)state;
    enum { N = 5000 };
    float *logits = calloc(N, sizeof *logits);
    void *scratch = calloc(1, k1_sample_scratch(N));
    assert_non_null(logits);
    assert_non_null(scratch);
    for (uint32_t i = 0; i < N; i++) {
        logits[i] = (float)(i * 2654435761u % 5003u) * 1e-4f;
    }
    k1_sampling s = plain;
    s.top_k = 10;
    for (uint64_t position = 0; position < 200; position++) {
        int32_t id = k1_sample(&s, logits, N, NULL, 0, position, scratch);
        unsigned better = 0;
        for (uint32_t i = 0; i < N; i++) {
            better += logits[i] > logits[id];
        }
        assert_true(better < 10);
    }
    free(scratch);
    free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_sampling_follows_the_probabilities),
        cmocka_unit_test(temperature_zero_takes_the_best_and_the_smaller_id_of_equals),
        cmocka_unit_test(temperature_sharpens),
        cmocka_unit_test(top_k_keeps_the_k_best),
        cmocka_unit_test(top_p_keeps_the_smallest_set_that_reaches_it),
        cmocka_unit_test(top_p_counts_within_top_k),
        cmocka_unit_test(min_p_is_relative_to_the_best),
        cmocka_unit_test(penalty_counts_the_last_n_once_each),
        cmocka_unit_test(the_same_seed_and_position_give_the_same_token),
        cmocka_unit_test(tokens_stay_the_same_over_releases),
        cmocka_unit_test(faulty_logits_have_a_stated_outcome),
        cmocka_unit_test(values_out_of_range_are_named),
        cmocka_unit_test(a_large_vocabulary_is_cut_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
