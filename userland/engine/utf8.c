#include "k1/utf8.h"

/* Well-formed sequences: The Unicode Standard, table 3-7. `low` and `high` bound the second byte. */
static int lead(uint8_t byte, uint8_t *low, uint8_t *high) {
    *low = 0x80;
    *high = 0xBF;
    if (byte < 0x80) {
        return 1;
    }
    if (byte < 0xC2 || byte > 0xF4) {
        return 0;
    }
    if (byte < 0xE0) {
        return 2;
    }
    if (byte < 0xF0) {
        *low = byte == 0xE0 ? 0xA0 : 0x80;
        *high = byte == 0xED ? 0x9F : 0xBF;
        return 3;
    }
    *low = byte == 0xF0 ? 0x90 : 0x80;
    *high = byte == 0xF4 ? 0x8F : 0xBF;
    return 4;
}

int k1_utf8_next(const uint8_t *s, size_t n, uint32_t *cp) {
    uint8_t low;
    uint8_t high;
    int len = lead(s[0], &low, &high);
    if (len == 0) {
        return -1;
    }
    uint32_t value = len == 1 ? s[0] : s[0] & (0x7FU >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n) {
            return 0;
        }
        if (s[i] < low || s[i] > high) {
            return -i;
        }
        low = 0x80;
        high = 0xBF;
        value = value << 6 | (s[i] & 0x3FU);
    }
    if (cp != NULL) {
        *cp = value;
    }
    return len;
}
