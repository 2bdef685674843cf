/* Any vocabulary and any text. Input: the length of a GGUF file (uint32, little-endian), the file, and the text.
 * The vocabulary is refused with a reason, or encodes the text to its own tokens, which show as valid UTF-8. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "k1/tokenizer.h"
#include "k1/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check_shown(const char *text, ptrdiff_t len) {
    must(len >= 0);
    for (ptrdiff_t i = 0; i < len;) {
        int n = k1_utf8_next((const uint8_t *)text + i, (size_t)(len - i), NULL);
        must(n > 0);
        i += n;
    }
}

static void show(const k1_tokenizer *tokenizer, const k1_tokens *tokens, bool special) {
    /* Just so many bytes as promised, so that a sanitizer sees one more. */
    size_t capacity = k1_detok_capacity(tokenizer);
    char *piece = malloc(capacity);
    k1_detok state = {0};
    for (size_t i = 0; piece != NULL && i < tokens->n; i++) {
        must(tokens->ids[i] >= 0 && (uint32_t)tokens->ids[i] < k1_tokenizer_n_vocab(tokenizer));
        check_shown(piece, k1_detok_next(tokenizer, &state, tokens->ids[i], special, piece, capacity));
    }
    if (piece != NULL) {
        check_shown(piece, k1_detok_end(&state, piece, capacity));
    }
    free(piece);
}

static void encode(const k1_tokenizer *tokenizer, const uint8_t *text, size_t len, bool special) {
    char *copy = malloc(len + (len == 0));
    k1_tokens tokens = {0};
    k1_err err = {""};
    if (copy == NULL) {
        return;
    }
    if (len > 0) {
        memcpy(copy, text, len);
    }
    must(k1_tokenizer_encode(tokenizer, copy, len, special, &tokens, &err) == 0);
    show(tokenizer, &tokens, special);
    free(tokens.ids);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) {
        return 0;
    }
    size_t len = data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16 | (size_t)data[3] << 24;
    len = len < size - 4 ? len : size - 4;
    void *copy = NULL;
    if (posix_memalign(&copy, 64, len + (len == 0)) != 0) {
        return 0;
    }
    memcpy(copy, data + 4, len);
    k1_err err = {""};
    k1_gguf *gguf = k1_gguf_parse(copy, len, &err);
    k1_tokenizer *tokenizer = gguf == NULL ? NULL : k1_tokenizer_new(gguf, &err);
    must((tokenizer == NULL) == (err.text[0] != '\0'));
    if (tokenizer != NULL) {
        encode(tokenizer, data + 4 + len, size - 4 - len, false);
        encode(tokenizer, data + 4 + len, size - 4 - len, true);
    }
    k1_tokenizer_free(tokenizer);
    k1_gguf_close(gguf);
    free(copy);
    return 0;
}
