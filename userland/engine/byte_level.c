#include "k1/utf8.h"
#include "tokenizer_internal.h"

/* GPT-2, bytes_to_unicode: bytes that are printable in Latin-1 stand for themselves, the other 68 are U+0100 and up, in
 * their order. */
static uint32_t character(uint8_t byte) {
    if (byte <= 0x20) {
        return 0x100U + byte;
    }
    if (byte < 0x7F) {
        return byte;
    }
    if (byte <= 0xA0) {
        return 0x121U + byte - 0x7FU;
    }
    return byte == 0xAD ? 0x143 : byte;
}

/* -1 for a character that spells no byte. */
static int byte_of(uint32_t cp) {
    if (cp >= 0x100 && cp <= 0x120) {
        return (int)(cp - 0x100);
    }
    if (cp >= 0x121 && cp <= 0x142) {
        return (int)(cp - 0x121 + 0x7F);
    }
    if (cp == 0x143) {
        return 0xAD;
    }
    return cp < 0x100 && character((uint8_t)cp) == cp ? (int)cp : -1;
}

size_t k1_bpe_spell(uint8_t byte, char *out) {
    uint32_t cp = character(byte);
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    out[0] = (char)(0xC0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3F));
    return 2;
}

static int take(k1_str token, size_t *at) {
    uint32_t cp;
    int len = k1_utf8_next((const uint8_t *)token.data + *at, token.len - *at, &cp);
    *at += len > 0 ? (size_t)len : 1;
    return len > 0 ? byte_of(cp) : -1;
}

bool k1_bpe_is_spelled(k1_str token) {
    for (size_t at = 0; at < token.len;) {
        if (take(token, &at) < 0) {
            return false;
        }
    }
    return true;
}

uint8_t k1_bpe_take(k1_str token, size_t *at) {
    int byte = take(token, at);
    return byte < 0 ? '?' : (uint8_t)byte;
}
