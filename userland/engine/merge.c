#include <stdlib.h>

#include "tokenizer_internal.h"

/* A heap of candidates over a linked list of symbols. A merge takes one candidate and adds at most two, so there are
 * never more than 2n of them; those that a later merge has outdated are recognised by their size when they surface. */

int k1_merger_reserve(k1_merger *merger, size_t n, k1_err *err) {
    if (n <= merger->capacity) {
        return 0;
    }
    size_t capacity = n + n / 2 + 64;
    free(merger->symbols);
    free(merger->heap);
    merger->symbols = calloc(capacity, sizeof *merger->symbols);
    merger->heap = calloc(capacity, 2 * sizeof *merger->heap);
    merger->capacity = capacity;
    if (merger->symbols == NULL || merger->heap == NULL) {
        merger->capacity = 0;
        return k1_fail(err, "tokenizer: no memory for a text of %zu symbols; shorten it", n);
    }
    return 0;
}

void k1_merger_free(k1_merger *merger) {
    free(merger->symbols);
    free(merger->heap);
}

void k1_merger_push(k1_merger *merger, int32_t id, size_t start, size_t len) {
    uint32_t i = (uint32_t)merger->n;
    merger->symbols[i] = (k1_symbol){id, (uint32_t)start, (uint32_t)len, i - 1, i + 1};
    merger->n++;
}

static void sift_up(k1_candidate *heap, size_t at) {
    k1_candidate moving = heap[at];
    while (at > 0 && moving.key < heap[(at - 1) / 2].key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = moving;
}

static void sift_down(k1_candidate *heap, size_t n, size_t at) {
    k1_candidate moving = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) {
            break;
        }
        child += child + 1 < n && heap[child + 1].key < heap[child].key;
        if (moving.key <= heap[child].key) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static k1_candidate pop(k1_merger *merger) {
    k1_candidate best = merger->heap[0];
    merger->n_heap--;
    if (merger->n_heap > 0) {
        merger->heap[0] = merger->heap[merger->n_heap];
        sift_down(merger->heap, merger->n_heap, 0);
    }
    return best;
}

static void consider(k1_merger *merger, uint32_t left, k1_pair_fn *pair, const void *arg) {
    const k1_symbol *a = &merger->symbols[left];
    if (a->next == K1_SYMBOL_END) {
        return;
    }
    const k1_symbol *b = &merger->symbols[a->next];
    uint32_t priority;
    int32_t id;
    if (pair(arg, a, b, &priority, &id)) {
        merger->heap[merger->n_heap] = (k1_candidate){(uint64_t)priority << 32 | left, a->len + b->len, id};
        sift_up(merger->heap, merger->n_heap);
        merger->n_heap++;
    }
}

/* Whether the candidate's symbols are still as they were when it was found. */
static bool is_current(const k1_merger *merger, const k1_candidate *candidate) {
    const k1_symbol *a = &merger->symbols[(uint32_t)candidate->key];
    return a->len > 0 && a->next != K1_SYMBOL_END && a->len + merger->symbols[a->next].len == candidate->size;
}

static void join(k1_merger *merger, uint32_t left, int32_t id) {
    k1_symbol *a = &merger->symbols[left];
    k1_symbol *b = &merger->symbols[a->next];
    a->id = id;
    a->len += b->len;
    b->len = 0;
    a->next = b->next;
    if (a->next != K1_SYMBOL_END) {
        merger->symbols[a->next].prev = left;
    }
}

void k1_merger_run(k1_merger *merger, k1_pair_fn *pair, const void *arg) {
    merger->symbols[0].prev = K1_SYMBOL_END;
    merger->symbols[merger->n - 1].next = K1_SYMBOL_END;
    merger->n_heap = 0;
    for (uint32_t i = 0; i < merger->n; i++) {
        consider(merger, i, pair, arg);
    }
    while (merger->n_heap > 0) {
        k1_candidate best = pop(merger);
        if (!is_current(merger, &best)) {
            continue;
        }
        uint32_t left = (uint32_t)best.key;
        join(merger, left, best.id);
        consider(merger, left, pair, arg);
        if (merger->symbols[left].prev != K1_SYMBOL_END) {
            consider(merger, merger->symbols[left].prev, pair, arg);
        }
    }
}
