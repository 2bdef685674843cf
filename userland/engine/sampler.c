/* Choosing a token. Candidates are (logit, id), best first where an order is needed: a heap yields only as many as the
 * limits let through, so the vocabulary is never sorted. */
#include "k1/sampler.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define MAX_TEMPERATURE 100.0f
#define MAX_PENALTY 100.0f

const k1_sampling k1_sampling_default = {
    .temperature = 0.8f,
    .top_k = 40,
    .top_p = 0.95f,
    .min_p = 0.05f,
    .repeat_penalty = 1.0f,
    .repeat_last_n = 64,
    .seed = 0,
};

static int check(const char *field, float value, float min, float max, k1_err *err) {
    if (value >= min && value <= max) {
        return 0;
    }
    return k1_fail(err, "%s is %g, outside %g to %g", field, (double)value, (double)min, (double)max);
}

int k1_sampling_check(const k1_sampling *sampling, k1_err *err) {
    if (check("temperature", sampling->temperature, 0.0f, MAX_TEMPERATURE, err) != 0 ||
        check("top_p", sampling->top_p, 0.0f, 1.0f, err) != 0 ||
        check("min_p", sampling->min_p, 0.0f, 1.0f, err) != 0 ||
        check("repeat_penalty", sampling->repeat_penalty, 0.01f, MAX_PENALTY, err) != 0) {
        return -1;
    }
    if (sampling->top_k < 0) {
        return k1_fail(err, "top_k is %d, outside 0 (off) to %d", (int)sampling->top_k, INT32_MAX);
    }
    return 0;
}

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

size_t k1_sample_scratch(uint32_t n_vocab) { return (size_t)n_vocab * (sizeof(candidate) + 1); }

/* SplitMix64's output function (Steele, Lea and Flood 2014). */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Uniform in [0, 1): number `position` of the SplitMix64 stream whose start is the mixed seed. */
static double uniform(uint64_t seed, uint64_t position) {
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t bits = mix(mix(seed + golden) + golden * (position + 1));
    return (double)(bits >> 11) * 0x1p-53;
}

/* Tokens of the last repeat_last_n become less likely, each once however often it occurred. */
static float penalized(float logit, float penalty) { return logit > 0.0f ? logit / penalty : logit * penalty; }

static void mark_seen(const k1_sampling *s, uint32_t n_vocab, const int32_t *past, size_t n_past, uint8_t *seen) {
    memset(seen, 0, n_vocab);
    if (s->repeat_penalty == 1.0f) {
        return;
    }
    size_t first = n_past > s->repeat_last_n ? n_past - s->repeat_last_n : 0;
    for (size_t i = first; i < n_past; i++) {
        if (past[i] >= 0 && (uint32_t)past[i] < n_vocab) {
            seen[past[i]] = 1;
        }
    }
}

/* All tokens that may be chosen at all, by id. */
static size_t collect(const k1_sampling *s, const float *logits, uint32_t n_vocab, const uint8_t *seen,
                      candidate *out) {
    size_t n = 0;
    for (uint32_t id = 0; id < n_vocab; id++) {
        float logit = seen[id] ? penalized(logits[id], s->repeat_penalty) : logits[id];
        if (logit > -INFINITY) {
            out[n++] = (candidate){logit < FLT_MAX ? logit : FLT_MAX, (int32_t)id};
        }
    }
    return n;
}

static bool better(candidate a, candidate b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

static void sift_down(candidate *heap, size_t n, size_t at) {
    candidate moving = heap[at];
    for (size_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && better(heap[child + 1], heap[child])) {
            child++;
        }
        if (!better(heap[child], moving)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void make_heap(candidate *heap, size_t n) {
    for (size_t i = n / 2; i-- > 0;) {
        sift_down(heap, n, i);
    }
}

/* Move the best of heap[0..n) behind the others; n - 1 remain. */
static candidate pop(candidate *heap, size_t n) {
    candidate best = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = best;
    sift_down(heap, n - 1, 0);
    return best;
}

static candidate best_of(const candidate *all, size_t n) {
    candidate best = all[0];
    for (size_t i = 1; i < n; i++) {
        best = better(all[i], best) ? all[i] : best;
    }
    return best;
}

/* Probability relative to the best, at temperature 1. */
static double relative(candidate c, candidate best) { return exp((double)c.logit - (double)best.logit); }

static double total(const candidate *some, size_t n, candidate best) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += relative(some[i], best);
    }
    return sum;
}

/* Take candidates off the heap until the limits are met; they end up at the end of all[0..n), best last. Returns how
 * many. top_p is measured on what top_k leaves. */
static size_t take_best(const k1_sampling *s, candidate *all, size_t n, candidate best) {
    size_t limit = s->top_k > 0 && (size_t)s->top_k < n ? (size_t)s->top_k : n;
    double wanted = INFINITY;
    make_heap(all, n);
    if (limit == n && s->top_p < 1.0f) {
        wanted = (double)s->top_p * total(all, n, best);
    }
    size_t taken = 0;
    for (double mass = 0.0; taken < limit && mass < wanted; taken++) {
        mass += relative(pop(all, n - taken), best);
    }
    if (limit == n || s->top_p >= 1.0f) {
        return taken;
    }
    wanted = (double)s->top_p * total(all + n - taken, taken, best);
    size_t kept = 0;
    for (double mass = 0.0; kept < taken && mass < wanted; kept++) {
        mass += relative(all[n - 1 - kept], best);
    }
    return kept;
}

/* Drop what is less likely than min_p times the best; keeps the order. */
static size_t drop_unlikely(const k1_sampling *s, candidate *some, size_t n, candidate best) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (relative(some[i], best) >= (double)s->min_p) {
            some[kept++] = some[i];
        }
    }
    return kept;
}

static double weight(const k1_sampling *s, candidate c, candidate best) {
    return exp(((double)c.logit - (double)best.logit) / (double)s->temperature);
}

static int32_t draw(const k1_sampling *s, const candidate *some, size_t n, candidate best, uint64_t position) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += weight(s, some[i], best);
    }
    double left = uniform(s->seed, position) * sum;
    for (size_t i = 0; i < n; i++) {
        left -= weight(s, some[i], best);
        if (left < 0.0) {
            return some[i].id;
        }
    }
    return best.id; /* rounding left a crumb */
}

int32_t k1_sample(const k1_sampling *sampling, const float *logits, uint32_t n_vocab, const int32_t *past,
                  size_t n_past, uint64_t position, void *scratch) {
    candidate *all = scratch;
    uint8_t *seen = (uint8_t *)(all + n_vocab);
    mark_seen(sampling, n_vocab, past, n_past, seen);
    size_t n = collect(sampling, logits, n_vocab, seen, all);
    if (n == 0) {
        return -1;
    }
    candidate best = best_of(all, n);
    if (sampling->temperature == 0.0f) {
        return best.id;
    }
    candidate *some = all;
    if (sampling->top_k > 0 || sampling->top_p < 1.0f) {
        size_t taken = take_best(sampling, all, n, best);
        some = all + n - taken;
        n = taken;
    }
    n = drop_unlikely(sampling, some, n, best);
    return draw(sampling, some, n, best, position);
}
