/* Layers for ranks: contiguous, none empty, and no other split has a smaller largest part. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../engine/internal.h"

enum { MOST = 9 };

static uint64_t largest_part(const uint64_t *costs, uint32_t n, const uint32_t *ends, uint32_t n_ranks) {
    uint64_t largest = 0;
    for (uint32_t r = 0, i = 0; r < n_ranks; r++) {
        uint64_t sum = 0;
        assert_true(ends[r] > i);
        for (; i < ends[r]; i++) {
            sum += costs[i];
        }
        largest = sum > largest ? sum : largest;
    }
    assert_int_equal(ends[n_ranks - 1], n);
    return largest;
}

/* All splits: bit i of cuts says that a rank ends after layer i. */
static uint64_t best_of_all(const uint64_t *costs, uint32_t n, uint32_t n_ranks) {
    uint64_t best = UINT64_MAX;
    for (uint32_t cuts = 0; cuts < 1u << (n - 1); cuts++) {
        uint32_t ends[MOST];
        uint32_t rank = 0;
        for (uint32_t i = 0; i < n && rank < n_ranks; i++) {
            if (i + 1 == n || (cuts >> i & 1u)) {
                ends[rank++] = i + 1;
            }
        }
        if (rank == n_ranks && ends[rank - 1] == n) {
            uint64_t largest = largest_part(costs, n, ends, n_ranks);
            best = largest < best ? largest : best;
        }
    }
    return best;
}

static void no_split_is_better(void **state) {
    (void)state;
    uint64_t random = 1;
    for (uint32_t n = 1; n <= MOST; n++) {
        for (uint32_t n_ranks = 1; n_ranks <= n; n_ranks++) {
            uint64_t costs[MOST];
            uint32_t ends[MOST];
            for (uint32_t i = 0; i < n; i++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                costs[i] = random >> 60;
            }
            assert_int_equal(k1_split_costs(costs, n, n_ranks, ends, NULL), 0);
            assert_true(largest_part(costs, n, ends, n_ranks) == best_of_all(costs, n, n_ranks));
        }
    }
}

static void the_output_matrix_takes_layers_from_the_last_rank(void **state) {
    (void)state;
    uint64_t costs[30]; /* SmolLM2: the output matrix costs as much as eight layers */
    uint32_t ends[4];
    for (size_t i = 0; i < 30; i++) {
        costs[i] = i == 29 ? 9 : 1;
    }
    assert_int_equal(k1_split_costs(costs, 30, 4, ends, NULL), 0);
    assert_true(largest_part(costs, 30, ends, 4) == 10);
    assert_true(ends[3] - ends[2] <= 2);
}

static void more_ranks_than_layers_are_refused(void **state) {
    (void)state;
    k1_err err;
    uint32_t ends[3];
    const uint64_t costs[2] = {1, 1};
    assert_int_equal(k1_split_costs(costs, 2, 3, ends, &err), -1);
    assert_non_null(strstr(err.text, "3 ranks cannot share 2 layers"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_split_is_better),
        cmocka_unit_test(the_output_matrix_takes_layers_from_the_last_rank),
        cmocka_unit_test(more_ranks_than_layers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
