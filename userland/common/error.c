#include "k1/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "k1/text.h"

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
    k1_text_plain(err->text, strlen(err->text));
    return -1;
}
