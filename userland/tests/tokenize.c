/* For tests from outside: tokenize MODEL.gguf [--special]
 * stdin: texts, each as its length (uint32, little-endian) and its bytes. stdout: one line for each: the ids with
 * spaces between, a tab, and in hexadecimal what the streaming detokenizer shows of them (control tokens too). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "k1/tokenizer.h"

static int show(const k1_tokenizer *tokenizer, const k1_tokens *tokens, char *piece, size_t capacity) {
    for (size_t i = 0; i < tokens->n; i++) {
        printf("%s%d", i > 0 ? " " : "", tokens->ids[i]);
    }
    putchar('\t');
    k1_detok state = {0};
    for (size_t i = 0; i <= tokens->n; i++) {
        ptrdiff_t n = i < tokens->n ? k1_detok_next(tokenizer, &state, tokens->ids[i], true, piece, capacity)
                                    : k1_detok_end(&state, piece, capacity);
        if (n < 0) {
            fprintf(stderr, "tokenize: k1_detok_capacity is too small\n");
            return -1;
        }
        for (ptrdiff_t k = 0; k < n; k++) {
            printf("%02x", (unsigned)(unsigned char)piece[k]);
        }
    }
    putchar('\n');
    return 0;
}

static char *read_text(uint32_t len) {
    char *text = malloc((size_t)len + 1);
    if (text != NULL && fread(text, 1, len, stdin) != len) {
        fprintf(stderr, "tokenize: the input is cut\n");
        free(text);
        return NULL;
    }
    return text;
}

static int tokenize(const k1_tokenizer *tokenizer, bool special) {
    size_t capacity = k1_detok_capacity(tokenizer);
    char *piece = malloc(capacity);
    k1_tokens tokens = {0};
    k1_err err = {{0}};
    uint8_t header[4];
    int result = piece == NULL ? -1 : 0;
    while (result == 0 && fread(header, 1, sizeof header, stdin) == sizeof header) {
        uint32_t len = header[0] | (uint32_t)header[1] << 8 | (uint32_t)header[2] << 16 | (uint32_t)header[3] << 24;
        char *text = read_text(len);
        tokens.n = 0;
        if (text == NULL) {
            result = -1;
        } else if (k1_tokenizer_encode(tokenizer, text, len, special, &tokens, &err) != 0) {
            fprintf(stderr, "tokenize: %s\n", err.text);
            result = -1;
        } else {
            result = show(tokenizer, &tokens, piece, capacity);
        }
        free(text);
    }
    free(tokens.ids);
    free(piece);
    return result;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: tokenize MODEL.gguf [--special]\n");
        return 2;
    }
    k1_err err = {{0}};
    k1_gguf *gguf = k1_gguf_open(argv[1], &err);
    k1_tokenizer *tokenizer = gguf == NULL ? NULL : k1_tokenizer_new(gguf, &err);
    int result = 1;
    if (tokenizer == NULL) {
        fprintf(stderr, "tokenize: %s\n", err.text);
    } else {
        result = tokenize(tokenizer, argc > 2 && strcmp(argv[2], "--special") == 0) == 0 ? 0 : 1;
    }
    k1_tokenizer_free(tokenizer);
    k1_gguf_close(gguf);
    return result;
}
