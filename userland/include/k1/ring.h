/* A ring of pointers between exactly one producing and one consuming thread. What was written before a push is seen
 * after the pop. Head and tail live on cache lines of their own: each is written by one side only. */
#ifndef K1_RING_H
#define K1_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define K1_CACHE_LINE 64

typedef struct k1_ring {
    void **slots;
    size_t mask;
    _Alignas(K1_CACHE_LINE) atomic_size_t head; /* next to pop, moved by the consumer */
    _Alignas(K1_CACHE_LINE) atomic_size_t tail; /* next to push, moved by the producer */
} k1_ring;

/* capacity: a power of two. -1 when memory runs out. */
static inline int k1_ring_init(k1_ring *ring, size_t capacity) {
    ring->slots = calloc(capacity, sizeof *ring->slots);
    ring->mask = capacity - 1;
    atomic_init(&ring->head, 0);
    atomic_init(&ring->tail, 0);
    return ring->slots == NULL ? -1 : 0;
}

static inline void k1_ring_free(k1_ring *ring) {
    free(ring->slots);
    ring->slots = NULL;
}

/* false: full. */
static inline bool k1_ring_push(k1_ring *ring, void *item) {
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&ring->head, memory_order_acquire) > ring->mask) {
        return false;
    }
    ring->slots[tail & ring->mask] = item;
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

/* NULL: empty. */
static inline void *k1_ring_pop(k1_ring *ring) {
    size_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&ring->tail, memory_order_acquire)) {
        return NULL;
    }
    void *item = ring->slots[head & ring->mask];
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return item;
}

#endif
