#include "k1/text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int k1_text_add(k1_text *text, const char *data, size_t n) {
    if (n > text->capacity - text->n) {
        size_t wanted;
        if (__builtin_add_overflow(text->n, n, &wanted) || wanted > SIZE_MAX / 2) {
            return -1;
        }
        wanted = wanted < 64 ? 64 : wanted * 2;
        char *grown = realloc(text->data, wanted);
        if (grown == NULL) {
            return -1;
        }
        text->data = grown;
        text->capacity = wanted;
    }
    if (n > 0) {
        memcpy(text->data + text->n, data, n);
    }
    text->n += n;
    return 0;
}

int k1_text_read(k1_text *text, FILE *from, const char *name, size_t max, k1_err *err) {
    char piece[4096];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, from)) > 0) {
        if (n > max - text->n) {
            return k1_fail(err, "%s: longer than %zu MiB", name, max >> 20);
        }
        if (k1_text_add(text, piece, n) != 0) {
            return k1_fail(err, "%s: out of memory", name);
        }
    }
    if (ferror(from)) {
        return k1_fail(err, "%s: cannot be read: %s", name, strerror(errno));
    }
    text->n -= text->n > 0 && text->data[text->n - 1] == '\n';
    return 0;
}

void k1_text_plain(char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        unsigned char next = i + 1 < n ? (unsigned char)text[i + 1] : 0;
        if (c < 0x20 || c == 0x7f) {
            text[i] = '?';
        } else if (c == 0xc2 && next >= 0x80 && next < 0xa0) {
            text[i] = text[i + 1] = '?';
        }
    }
}
