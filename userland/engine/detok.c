#include <string.h>

#include "k1/utf8.h"
#include "tokenizer_internal.h"

static const uint8_t replacement[3] = {0xEF, 0xBF, 0xBD}; /* U+FFFD */

/* ---- a token's bytes, one after the other */

typedef enum spelling { HIDDEN, PLAIN, BYTE_LEVEL, SENTENCEPIECE, ONE_BYTE } spelling;

static spelling spelling_of(const k1_tokenizer *tokenizer, int32_t token, bool special) {
    k1_str text = tokenizer->texts[token];
    switch (k1_token_type_of(tokenizer, token)) {
    case K1_TOKEN_CONTROL:
    case K1_TOKEN_UNKNOWN:
    case K1_TOKEN_UNUSED:
        return special ? PLAIN : HIDDEN;
    case K1_TOKEN_BYTE:
        return k1_spm_byte(text) >= 0 ? ONE_BYTE : PLAIN;
    case K1_TOKEN_USER:
        return tokenizer->is_spm ? SENTENCEPIECE : PLAIN;
    case K1_TOKEN_NORMAL:
    default:
        break;
    }
    if (tokenizer->is_spm) {
        return SENTENCEPIECE;
    }
    return k1_bpe_is_spelled(text) ? BYTE_LEVEL : PLAIN;
}

static uint8_t take_byte(spelling how, k1_str text, size_t *at) {
    switch (how) {
    case BYTE_LEVEL:
        return k1_bpe_take(text, at);
    case SENTENCEPIECE:
        return k1_spm_take(text, at);
    case ONE_BYTE:
        *at = text.len;
        return (uint8_t)k1_spm_byte(text);
    case PLAIN:
    case HIDDEN:
    default:
        return (uint8_t)text.data[(*at)++];
    }
}

/* ---- bytes to whole characters */

typedef struct sink {
    char *out;
    size_t capacity;
    size_t n;
    bool full;
} sink;

static void put(sink *to, const uint8_t *bytes, size_t n) {
    if (n > to->capacity - to->n) {
        to->full = true;
        return;
    }
    memcpy(to->out + to->n, bytes, n);
    to->n += n;
}

/* Add a byte to those held back and write what is complete, or can no longer become so. */
static void push(k1_detok *state, uint8_t byte, sink *to) {
    state->held[state->n_held++] = byte;
    while (state->n_held > 0) {
        int len = k1_utf8_next(state->held, state->n_held, NULL);
        if (len == 0) {
            return;
        }
        size_t used = (size_t)(len > 0 ? len : -len);
        put(to, len > 0 ? state->held : replacement, len > 0 ? used : sizeof replacement);
        state->n_held = (uint8_t)(state->n_held - used);
        memmove(state->held, state->held + used, state->n_held);
    }
}

/* Skip the space that encoding puts in front of a text. */
static size_t skip_prefix(const k1_tokenizer *tokenizer, const k1_detok *state, spelling how, k1_str text) {
    size_t at = 0;
    if (!tokenizer->is_spm || !tokenizer->spm.space_prefix || state->started || how != SENTENCEPIECE || text.len == 0 ||
        k1_spm_take(text, &at) != ' ') {
        return 0;
    }
    return at;
}

ptrdiff_t k1_detok_next(const k1_tokenizer *tokenizer, k1_detok *state, int32_t token, bool special, char *out,
                        size_t capacity) {
    if (token < 0 || (uint32_t)token >= tokenizer->n_vocab || state->n_held >= sizeof state->held) {
        return 0;
    }
    k1_str text = tokenizer->texts[token];
    spelling how = spelling_of(tokenizer, token, special);
    k1_detok next = *state;
    sink to = {out, capacity, 0, false};
    for (size_t at = skip_prefix(tokenizer, state, how, text); how != HIDDEN && at < text.len;) {
        push(&next, take_byte(how, text, &at), &to);
    }
    if (to.full) {
        return -1;
    }
    next.started = k1_token_type_of(tokenizer, token) != K1_TOKEN_CONTROL;
    *state = next;
    return (ptrdiff_t)to.n;
}

ptrdiff_t k1_detok_end(k1_detok *state, char *out, size_t capacity) {
    size_t n = state->n_held > 0 ? sizeof replacement : 0;
    if (n > capacity) {
        return -1;
    }
    if (n > 0) {
        memcpy(out, replacement, n);
    }
    memset(state, 0, sizeof *state);
    return (ptrdiff_t)n;
}

size_t k1_detok_capacity(const k1_tokenizer *tokenizer) {
    /* Each byte of the token and each held back may become a U+FFFD of three bytes. */
    return (tokenizer->max_len + sizeof((k1_detok *)0)->held) * sizeof replacement;
}
