#include "sse.h"

#include <stdlib.h>
#include <string.h>

/* An empty line ends the event. */
static int dispatch(k1_sse *sse) {
    if (!sse->any_data) {
        return 0;
    }
    int result = sse->on_event(sse->arg, sse->data.n > 0 ? sse->data.data : "", sse->data.n);
    sse->data.n = 0;
    sse->any_data = false;
    return result;
}

/* "data:" with or without one space; several of them make several lines. */
static int take_line(k1_sse *sse) {
    static const char field[] = "data:";
    size_t n = sse->line.n;
    const char *line = sse->line.data;
    if (n == 0) {
        return dispatch(sse);
    }
    sse->line.n = 0;
    if (n < sizeof field - 1 || memcmp(line, field, sizeof field - 1) != 0) {
        return 0;
    }
    size_t at = sizeof field - 1;
    at += at < n && line[at] == ' ';
    if (sse->data.n + n > K1_SSE_MAX_EVENT || (sse->any_data && k1_text_add(&sse->data, "\n", 1) != 0)) {
        return -1;
    }
    sse->any_data = true;
    return k1_text_add(&sse->data, line + at, n - at);
}

int k1_sse_feed(k1_sse *sse, const char *bytes, size_t n) {
    size_t i = 0;
    while (i < n) {
        if (sse->after_cr && bytes[i] == '\n') {
            sse->after_cr = false;
            i++;
            continue;
        }
        sse->after_cr = false;
        size_t end = i;
        while (end < n && bytes[end] != '\n' && bytes[end] != '\r') {
            end++;
        }
        if (sse->line.n + (end - i) > K1_SSE_MAX_EVENT || k1_text_add(&sse->line, bytes + i, end - i) != 0) {
            return -1;
        }
        if (end == n) {
            return 0;
        }
        sse->after_cr = bytes[end] == '\r';
        i = end + 1;
        int result = take_line(sse);
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

void k1_sse_free(k1_sse *sse) {
    free(sse->line.data);
    free(sse->data.data);
    sse->line = sse->data = (k1_text){0};
}
