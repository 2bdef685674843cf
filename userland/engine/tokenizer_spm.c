#include <math.h>
#include <string.h>

#include "k1/utf8.h"
#include "tokenizer_internal.h"

/* SentencePiece BPE: spaces are spelled U+2581; of all neighbours whose joined text is a token, those with the best
 * score merge first; what is no token at the end is spelled in bytes (<0x0A>), or is unknown. */
static const char SPACE[] = "\xE2\x96\x81";
enum { SPACE_LEN = 3 };

static bool is_space(const char *text, size_t len) { return len >= SPACE_LEN && memcmp(text, SPACE, SPACE_LEN) == 0; }

static int hex(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int k1_spm_byte(k1_str token) {
    if (token.len != 6 || memcmp(token.data, "<0x", 3) != 0 || token.data[5] != '>') {
        return -1;
    }
    int high = hex(token.data[3]);
    int low = hex(token.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

uint8_t k1_spm_take(k1_str token, size_t *at) {
    if (is_space(token.data + *at, token.len - *at)) {
        *at += SPACE_LEN;
        return ' ';
    }
    return (uint8_t)token.data[(*at)++];
}

static int read_scores(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    size_t n = k1_gguf_f32s(gguf, "tokenizer.ggml.scores", &tokenizer->spm.scores);
    if (n != tokenizer->n_vocab) {
        return k1_fail(err, "tokenizer.ggml.scores: %zu scores for %u tokens; convert the model again", n,
                       tokenizer->n_vocab);
    }
    for (size_t i = 0; i < n; i++) {
        if (isnan(tokenizer->spm.scores[i])) {
            return k1_fail(err,
                           "tokenizer.ggml.scores: the score of token %zu is not a number; convert the model again", i);
        }
    }
    return 0;
}

static int read_bytes(k1_tokenizer *tokenizer, k1_err *err) {
    for (int32_t id = 0; id < (int32_t)tokenizer->n_vocab; id++) {
        if (k1_token_type_of(tokenizer, id) != K1_TOKEN_BYTE) {
            continue;
        }
        int byte = k1_spm_byte(tokenizer->texts[id]);
        if (byte < 0) {
            return k1_fail(err,
                           "tokenizer.ggml.tokens: token %d is a byte by its type but not written like <0x0A>; convert "
                           "the model again",
                           id);
        }
        tokenizer->byte_id[byte] = id;
    }
    return 0;
}

int k1_spm_init(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    tokenizer->spm.space_prefix = true;
    (void)k1_gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", &tokenizer->spm.space_prefix);
    return read_scores(tokenizer, gguf, err) != 0 || read_bytes(tokenizer, err) != 0 ? -1 : 0;
}

/* A float as an integer of the opposite order. */
static uint32_t descending(float score) {
    uint32_t bits;
    score += 0.0F; /* -0 → 0 */
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000U ? bits : ~(bits | 0x80000000U);
}

static bool pair_score(const void *arg, const k1_symbol *left, const k1_symbol *right, uint32_t *priority,
                       int32_t *id) {
    const k1_encode *encode = arg;
    size_t len = (size_t)left->len + right->len;
    if (len > encode->tokenizer->max_len) {
        return false;
    }
    *id = k1_vocab_index_find(&encode->tokenizer->index, encode->buffer + left->start, len);
    if (*id < 0) {
        return false;
    }
    *priority = descending(encode->tokenizer->spm.scores[*id]);
    return true;
}

/* Write the text to the buffer with spaces spelled; returns the length there. */
static size_t spell(char *out, const char *text, size_t len, bool prefix) {
    size_t n = 0;
    if (prefix) {
        memcpy(out, SPACE, SPACE_LEN);
        n = SPACE_LEN;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] == ' ') {
            memcpy(out + n, SPACE, SPACE_LEN);
            n += SPACE_LEN;
        } else {
            out[n++] = text[i];
        }
    }
    return n;
}

/* One symbol per character; a byte that is not UTF-8 is one too. */
static void push_characters(k1_encode *encode, size_t len) {
    const uint8_t *s = (const uint8_t *)encode->buffer;
    encode->merger.n = 0;
    for (size_t at = 0; at < len;) {
        int n = k1_utf8_next(s + at, len - at, NULL);
        size_t step = n > 0 ? (size_t)n : 1;
        k1_merger_push(&encode->merger, K1_SYMBOL_NONE, at, step);
        at += step;
    }
}

/* A run of unknown symbols is one unknown token; *was_unknown carries it over. */
static int emit_unknown(k1_encode *encode, bool *was_unknown) {
    int32_t unknown = encode->tokenizer->unknown;
    if (unknown < 0 || *was_unknown) {
        return 0;
    }
    *was_unknown = true;
    return k1_encode_emit(encode, unknown);
}

static int emit_bytes(k1_encode *encode, const k1_symbol *symbol, bool *was_unknown) {
    const uint8_t *s = (const uint8_t *)encode->buffer + symbol->start;
    for (uint32_t i = 0; i < symbol->len; i++) {
        int32_t id = encode->tokenizer->byte_id[s[i]];
        if (id < 0) {
            if (emit_unknown(encode, was_unknown) != 0) {
                return -1;
            }
            continue;
        }
        *was_unknown = false;
        if (k1_encode_emit(encode, id) != 0) {
            return -1;
        }
    }
    return 0;
}

static int emit_symbols(k1_encode *encode) {
    bool was_unknown = false;
    for (uint32_t i = 0; i != K1_SYMBOL_END; i = encode->merger.symbols[i].next) {
        const k1_symbol *symbol = &encode->merger.symbols[i];
        int32_t id = symbol->id;
        if (id == K1_SYMBOL_NONE) {
            id = k1_vocab_index_find(&encode->tokenizer->index, encode->buffer + symbol->start, symbol->len);
        }
        if (id >= 0) {
            was_unknown = false;
        }
        if ((id >= 0 ? k1_encode_emit(encode, id) : emit_bytes(encode, symbol, &was_unknown)) != 0) {
            return -1;
        }
    }
    return 0;
}

int k1_spm_encode(k1_encode *encode, const char *text, size_t len, bool prefix) {
    if (k1_encode_buffer(encode, (len + 1) * SPACE_LEN) != 0) {
        return -1;
    }
    if (k1_merger_reserve(&encode->merger, len + 1, encode->err) != 0) {
        return -1;
    }
    push_characters(encode, spell(encode->buffer, text, len, prefix));
    if (encode->merger.n == 0) {
        return 0;
    }
    k1_merger_run(&encode->merger, pair_score, encode);
    return emit_symbols(encode);
}
