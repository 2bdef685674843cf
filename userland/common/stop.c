#include "k1/stop.h"

#include <string.h>

bool k1_stops_add(k1_stops *stops, const char *text, size_t len) {
    if (stops->n == K1_STOP_MAX || len == 0 || len > K1_STOP_BYTES) {
        return false;
    }
    memcpy(stops->text[stops->n], text, len);
    stops->len[stops->n++] = len;
    return true;
}

/* Where the first complete stop string begins; n when there is none. */
static size_t find_complete(const k1_stops *stops, const char *text, size_t n) {
    size_t first = n;
    for (size_t i = 0; i < stops->n; i++) {
        const char *at = n == 0 ? NULL : memmem(text, n, stops->text[i], stops->len[i]);
        if (at != NULL && (size_t)(at - text) < first) {
            first = (size_t)(at - text);
        }
    }
    return first;
}

/* Whether text[0..n) is the beginning of a stop string. */
static bool begins_one(const k1_stops *stops, const char *text, size_t n) {
    for (size_t i = 0; i < stops->n; i++) {
        if (n < stops->len[i] && memcmp(text, stops->text[i], n) == 0) {
            return true;
        }
    }
    return false;
}

/* Where the text that may still become a stop string begins; n when there is none. Only the last K1_STOP_BYTES matter.
 */
static size_t find_partial(const k1_stops *stops, const char *text, size_t n) {
    for (size_t at = n > K1_STOP_BYTES ? n - K1_STOP_BYTES : 0; at < n; at++) {
        if (begins_one(stops, text + at, n - at)) {
            return at;
        }
    }
    return n;
}

/* Add the first n held bytes to out and forget them. */
static int release(k1_stop_state *state, size_t n, k1_text *out) {
    if (n == 0) {
        return 0;
    }
    if (k1_text_add(out, state->held.data, n) != 0) {
        return -1;
    }
    state->held.n -= n;
    memmove(state->held.data, state->held.data + n, state->held.n);
    return 0;
}

int k1_stop_next(const k1_stops *stops, k1_stop_state *state, const char *piece, size_t n, k1_text *out) {
    if (state->hit) {
        return 0;
    }
    if (k1_text_add(&state->held, piece, n) != 0) {
        return -1;
    }
    size_t found = find_complete(stops, state->held.data, state->held.n);
    if (found < state->held.n) {
        state->hit = true;
        int failed = release(state, found, out);
        state->held.n = 0;
        return failed;
    }
    return release(state, find_partial(stops, state->held.data, state->held.n), out);
}

int k1_stop_end(k1_stop_state *state, k1_text *out) { return release(state, state->held.n, out); }
