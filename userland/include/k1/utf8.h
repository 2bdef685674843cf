/* UTF-8, one character at a time. */
#ifndef K1_UTF8_H
#define K1_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* What stands at s[0..n), n > 0:
 *   1 to 4    a valid sequence of so many bytes, its code point in *cp (which may be NULL);
 *   0         the beginning of a valid sequence, cut off by the end;
 *   -1 to -3  so many bytes that cannot begin a valid sequence (the maximal subpart, which U+FFFD replaces as a whole:
 *             The Unicode Standard, section 3.9). */
int k1_utf8_next(const uint8_t *s, size_t n, uint32_t *cp);

#endif
