/* What messages carry: docs/protocol.md, Messages. */
#include <string.h>

#include "k1/rpc.h"
#include "wire.h"

enum { PLACE = 64, ENTRIES = 64 /* where a trace's and a plan's entries begin */, TRACE_ENTRY = 16, PLAN_ENTRY = 8 };

static int check_size(const char *name, size_t size, size_t expected, k1_err *err) {
    return size == expected ? 0 : k1_fail(err, "%s: %zu bytes, expected %zu", name, size, expected);
}

static int check_ranks(const char *name, uint32_t n, k1_err *err) {
    return n >= 1 && n <= K1_RPC_MAX_RANKS
               ? 0
               : k1_fail(err, "%s: %u ranks, possible are 1 to %d", name, n, K1_RPC_MAX_RANKS);
}

void k1_trace_encode(const k1_trace *trace, uint8_t out[K1_TRACE_BYTES]) {
    memset(out, 0, K1_TRACE_BYTES);
    k1_put_u32(out, (uint32_t)trace->token);
    k1_put_u32(out + 4, trace->n_ranks);
    for (uint32_t r = 0; r < K1_RPC_MAX_RANKS; r++) {
        uint8_t *entry = out + ENTRIES + (size_t)r * TRACE_ENTRY;
        k1_put_u32(entry, trace->rank[r].wait_us);
        k1_put_u32(entry + 4, trace->rank[r].run_us);
    }
}

int k1_trace_decode(const uint8_t *in, size_t size, k1_trace *trace, k1_err *err) {
    if (check_size("trace", size, K1_TRACE_BYTES, err) != 0) {
        return -1;
    }
    trace->token = k1_get_i32(in);
    trace->n_ranks = k1_get_u32(in + 4);
    for (uint32_t r = 0; r < K1_RPC_MAX_RANKS; r++) {
        const uint8_t *entry = in + ENTRIES + (size_t)r * TRACE_ENTRY;
        trace->rank[r].wait_us = k1_get_u32(entry);
        trace->rank[r].run_us = k1_get_u32(entry + 4);
    }
    if (trace->token < -1) {
        return k1_fail(err, "trace: token %d", trace->token);
    }
    return check_ranks("trace", trace->n_ranks, err);
}

void k1_sampling_encode(const k1_sampling *sampling, uint8_t out[K1_SAMPLING_BYTES]) {
    memset(out, 0, K1_SAMPLING_BYTES);
    k1_put_f32(out, sampling->temperature);
    k1_put_u32(out + 4, (uint32_t)sampling->top_k);
    k1_put_f32(out + 8, sampling->top_p);
    k1_put_f32(out + 12, sampling->min_p);
    k1_put_f32(out + 16, sampling->repeat_penalty);
    k1_put_u32(out + 20, sampling->repeat_last_n);
    k1_put_u64(out + 24, sampling->seed);
}

int k1_sampling_decode(const uint8_t *in, size_t size, k1_sampling *sampling, k1_err *err) {
    if (check_size("sampling", size, K1_SAMPLING_BYTES, err) != 0) {
        return -1;
    }
    *sampling = (k1_sampling){
        .temperature = k1_get_f32(in),
        .top_k = k1_get_i32(in + 4),
        .top_p = k1_get_f32(in + 8),
        .min_p = k1_get_f32(in + 12),
        .repeat_penalty = k1_get_f32(in + 16),
        .repeat_last_n = k1_get_u32(in + 20),
        .seed = k1_get_u64(in + 24),
    };
    return k1_sampling_check(sampling, err);
}

void k1_plan_encode(const k1_plan *plan, uint8_t out[K1_PLAN_BYTES]) {
    memset(out, 0, K1_PLAN_BYTES);
    k1_put_u32(out, plan->n_ranks);
    k1_put_u32(out + 4, plan->n_ctx);
    k1_put_u32(out + 8, plan->n_batch);
    k1_put_u32(out + 12, plan->n_slots);
    for (uint32_t r = 0; r < plan->n_ranks && r < K1_RPC_MAX_RANKS; r++) {
        uint8_t *entry = out + ENTRIES + (size_t)r * PLAN_ENTRY;
        k1_put_u32(entry, plan->layers[r].first);
        k1_put_u32(entry + 4, plan->layers[r].end);
    }
}

static int check_plan(const k1_plan *plan, uint32_t n_layer, k1_err *err) {
    uint32_t next = 0;
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        if (plan->layers[r].first != next || plan->layers[r].end <= next) {
            return k1_fail(err, "plan: rank %u has layers %u to %u, but %u comes next", r, plan->layers[r].first,
                           plan->layers[r].end, next);
        }
        next = plan->layers[r].end;
    }
    if (next != n_layer) {
        return k1_fail(err, "plan: ends after layer %u, but the model has %u", next, n_layer);
    }
    if (plan->n_ctx == 0 || plan->n_slots == 0 || plan->n_batch == 0 || plan->n_batch > K1_RPC_MAX_TOKENS) {
        return k1_fail(err, "plan: n_ctx %u, n_batch %u (possible are 1 to %d), n_slots %u", plan->n_ctx, plan->n_batch,
                       K1_RPC_MAX_TOKENS, plan->n_slots);
    }
    return 0;
}

int k1_plan_decode(const uint8_t *in, size_t size, uint32_t n_layer, k1_plan *plan, k1_err *err) {
    if (check_size("plan", size, K1_PLAN_BYTES, err) != 0) {
        return -1;
    }
    *plan = (k1_plan){
        .n_ranks = k1_get_u32(in),
        .n_ctx = k1_get_u32(in + 4),
        .n_batch = k1_get_u32(in + 8),
        .n_slots = k1_get_u32(in + 12),
    };
    if (check_ranks("plan", plan->n_ranks, err) != 0) {
        return -1;
    }
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const uint8_t *entry = in + ENTRIES + (size_t)r * PLAN_ENTRY;
        plan->layers[r].first = k1_get_u32(entry);
        plan->layers[r].end = k1_get_u32(entry + 4);
    }
    return check_plan(plan, n_layer, err);
}

k1_forward_parts k1_forward_layout(uint32_t n_tokens, uint32_t n_embd) {
    size_t ids = (size_t)n_tokens * sizeof(int32_t);
    size_t trace = (ids + PLACE - 1) / PLACE * PLACE;
    size_t activations = trace + K1_TRACE_BYTES;
    return (k1_forward_parts){trace, activations, activations + (size_t)n_tokens * n_embd * sizeof(float)};
}
