#include "k1/error.h"

#include <stdarg.h>
#include <stdio.h>

int k1_fail(k1_err *err, const char *format, ...) {
    if (err == NULL) {
        return -1;
    }
    va_list args;
    va_start(args, format);
    if (vsnprintf(err->text, sizeof err->text, format, args) < 0) {
        err->text[0] = '\0';
    }
    va_end(args);
    return -1;
}
