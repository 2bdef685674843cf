#include <stdlib.h>
#include <string.h>

#include "k1/rpc.h"

enum { ALIGNMENT = 64 };

/* A frame's memory, a multiple of the alignment; 0 when it cannot be. */
static size_t wire_bytes(size_t payload) {
    size_t bytes;
    if (payload > UINT32_MAX || __builtin_add_overflow(payload, K1_RPC_HEADER + ALIGNMENT - 1, &bytes)) {
        return 0;
    }
    return bytes / ALIGNMENT * ALIGNMENT;
}

static int make_wire(k1_frame *frame, size_t payload) {
    size_t bytes = wire_bytes(payload);
    frame->wire = bytes == 0 ? NULL : aligned_alloc(ALIGNMENT, bytes);
    if (frame->wire == NULL) {
        return -1;
    }
    memset(frame->wire, 0, bytes); /* its pages are there before the first message is */
    frame->capacity = payload;
    return 0;
}

int k1_frames_init(k1_frames *frames, size_t n, size_t payload, k1_err *err) {
    memset(frames, 0, sizeof *frames);
    if (n == 0 || (n & (n - 1)) != 0) {
        return k1_fail(err, "frames: %zu is no power of two", n);
    }
    frames->all = calloc(n, sizeof *frames->all);
    int failed = frames->all == NULL || k1_ring_init(&frames->free, n) != 0;
    for (size_t i = 0; !failed && i < n; i++) {
        frames->n = i + 1;
        failed = make_wire(&frames->all[i], payload) != 0 || !k1_ring_push(&frames->free, &frames->all[i]);
    }
    if (failed) {
        k1_frames_free(frames);
        return k1_fail(err, "frames: no memory for %zu of %zu bytes", n, payload);
    }
    return 0;
}

void k1_frames_free(k1_frames *frames) {
    for (size_t i = 0; i < frames->n; i++) {
        free(frames->all[i].wire);
    }
    free(frames->all);
    k1_ring_free(&frames->free);
    frames->all = NULL;
    frames->n = 0;
}

k1_frame *k1_frames_take(k1_frames *frames) {
    k1_frame *frame = k1_ring_pop(&frames->free);
    if (frame != NULL) {
        frame->header = (k1_header){0};
    }
    return frame;
}

void k1_frames_give(k1_frames *frames, k1_frame *frame) {
    (void)k1_ring_push(&frames->free, frame); /* it has room for all of them */
}
