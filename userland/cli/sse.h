/* Server-sent events, read from bytes that arrive in any pieces.
 * https://html.spec.whatwg.org/multipage/server-sent-events.html (the field "data"; others are skipped). */
#ifndef K1_SSE_H
#define K1_SSE_H

#include <stdbool.h>
#include <stddef.h>

#include "k1/stop.h"

enum { K1_SSE_MAX_EVENT = 1 << 20 };

/* The data of one event. Not 0 stops the parser, which returns it. */
typedef int k1_sse_fn(void *arg, const char *data, size_t n);

/* Zero-initialise, then set on_event and arg. */
typedef struct k1_sse {
    k1_sse_fn *on_event;
    void *arg;
    k1_text line, data;
    bool any_data; /* the event has a data field, perhaps empty */
    bool after_cr; /* a line feed that follows belongs to the line break */
} k1_sse;

/* 0, what on_event returned, or -1: out of memory, or an event beyond K1_SSE_MAX_EVENT. */
int k1_sse_feed(k1_sse *sse, const char *bytes, size_t n);
void k1_sse_free(k1_sse *sse);

#endif
