/* Stop strings over text that arrives in pieces: what could still become a stop string is held back, so that no part of
 * one is ever shown. */
#ifndef K1_STOP_H
#define K1_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "k1/text.h"

#define K1_STOP_MAX 4
#define K1_STOP_BYTES 256

typedef struct k1_stops {
    size_t n;
    size_t len[K1_STOP_MAX]; /* 1 to K1_STOP_BYTES */
    char text[K1_STOP_MAX][K1_STOP_BYTES];
} k1_stops;

/* Add one stop string; false when it is empty, too long, or one too many. */
bool k1_stops_add(k1_stops *stops, const char *text, size_t len);

/* What is held back; zero-initialise, free held.data. */
typedef struct k1_stop_state {
    k1_text held;
    bool hit;
} k1_stop_state;

/* Append one more piece; what is certainly not part of a stop string is added to out. Once a stop string is complete,
 * hit is set, and it and what follows it are dropped. -1 when memory runs out. */
int k1_stop_next(const k1_stops *stops, k1_stop_state *state, const char *piece, size_t n, k1_text *out);
/* The end of the text: what was held back is added to out. */
int k1_stop_end(k1_stop_state *state, k1_text *out);

#endif
