/* Which layers each rank of a pipeline runs. */
#include <inttypes.h>
#include <stdlib.h>

#include "internal.h"

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* best[r][i]: the smallest possible largest cost of ranks 0 to r on the first i layers; from[r][i]: where rank r begins
 * then. before[i]: the cost of the first i layers. */
static void fill(const uint64_t *before, uint32_t n, uint32_t n_ranks, uint64_t *best, uint32_t *from) {
    size_t width = (size_t)n + 1;
    for (uint32_t i = 1; i <= n; i++) {
        best[i] = before[i];
        from[i] = 0;
    }
    for (uint32_t r = 1; r < n_ranks; r++) {
        for (uint32_t i = r + 1; i <= n; i++) {
            uint64_t *least = &best[r * width + i];
            *least = UINT64_MAX;
            for (uint32_t j = r; j < i; j++) {
                uint64_t cost = larger(best[(r - 1) * width + j], before[i] - before[j]);
                if (cost < *least) {
                    *least = cost;
                    from[r * width + i] = j;
                }
            }
        }
    }
}

int k1_split_costs(const uint64_t *costs, uint32_t n, uint32_t n_ranks, uint32_t *ends, k1_err *err) {
    if (n_ranks == 0 || n_ranks > n) {
        return k1_fail(err, "%" PRIu32 " ranks cannot share %" PRIu32 " layers: each needs one; use fewer nodes",
                       n_ranks, n);
    }
    size_t cells = (size_t)n_ranks * (n + 1u);
    uint64_t *before = calloc(n + 1u, sizeof *before);
    uint64_t *best = calloc(cells, sizeof *best);
    uint32_t *from = calloc(cells, sizeof *from);
    int failed = before == NULL || best == NULL || from == NULL ? k1_fail(err, "no memory to split the layers") : 0;
    if (failed == 0) {
        for (uint32_t i = 0; i < n; i++) {
            before[i + 1] = k1_add_sat(before[i], costs[i]);
        }
        fill(before, n, n_ranks, best, from);
        for (uint32_t r = n_ranks, end = n; r-- > 0; end = from[r * (n + 1u) + end]) {
            ends[r] = end;
        }
    }
    free(before);
    free(best);
    free(from);
    return failed;
}

static uint64_t products(const k1_linear *linear) { return (uint64_t)linear->n_in * linear->n_out; }

/* Multiplications per token of a layer's matrices, the last one's with the output matrix; attention is alike in all. */
static uint64_t layer_cost(const k1_model *model, uint32_t i) {
    const k1_layer *l = &model->layers[i];
    uint64_t cost = products(&l->q) + products(&l->k) + products(&l->v) + products(&l->o) + products(&l->gate) +
                    products(&l->up) + products(&l->down);
    return cost + (i + 1 == model->hp.n_layer ? products(&model->output) : 0);
}

int k1_split(const k1_model *model, uint32_t n_ranks, uint32_t *ends, k1_err *err) {
    uint64_t *costs = calloc(model->hp.n_layer, sizeof *costs);
    if (costs == NULL) {
        return k1_fail(err, "no memory to split the layers");
    }
    for (uint32_t i = 0; i < model->hp.n_layer; i++) {
        costs[i] = layer_cost(model, i);
    }
    int failed = k1_split_costs(costs, model->hp.n_layer, n_ranks, ends, err);
    free(costs);
    return failed;
}
