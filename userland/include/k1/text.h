/* Bytes that grow, and text made fit to be shown. */
#ifndef K1_TEXT_H
#define K1_TEXT_H

#include <stddef.h>
#include <stdio.h>

#include "k1/error.h"

/* Zero-initialise, free data with free(). */
typedef struct k1_text {
    char *data;
    size_t n;
    size_t capacity;
} k1_text;

/* -1 when memory runs out; text is unchanged then. */
int k1_text_add(k1_text *text, const char *data, size_t n);
/* Add all that is left in a file, less one line feed at its end. -1 and err, which begins with name: it cannot be read,
 * or text would hold more than max bytes. */
int k1_text_read(k1_text *text, FILE *from, const char *name, size_t max, k1_err *err);

/* Put '?' for every byte of a control character, C0 or UTF-8's C1, so that text from elsewhere moves no cursor and
 * begins no line. */
void k1_text_plain(char *text, size_t n);

#endif
