/* Errors as values: a function that can fail returns 0, or -1 after it has filled a k1_err. */
#ifndef K1_ERROR_H
#define K1_ERROR_H

#include <stddef.h>

/* One sentence for the user: what is wrong, where, and what to try. Always NUL-terminated. */
typedef struct k1_err {
    char text[512];
} k1_err;

/* Fill err (which may be NULL) from a printf format and return -1. Text that does not fit is cut, and control
 * characters become '?': names from files and from the network may be quoted. */
int k1_fail(k1_err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
