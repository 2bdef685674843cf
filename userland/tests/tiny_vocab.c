#include "tiny_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the test program: this is no test of its own. */
static void must(bool holds, const char *what, const char *reason) {
    if (!holds) {
        (void)fprintf(stderr, "%s: %s\n", what, reason);
        abort();
    }
}

void k1t_put_vocab(k1t_gguf *file, const char *pre, const k1t_token *tokens, size_t n, const char *const *merges,
                   size_t n_merges) {
    const char *texts[64];
    int32_t types[64];
    float scores[64];
    must(n <= 64, "vocabulary", "too large for the helper");
    for (size_t i = 0; i < n; i++) {
        texts[i] = tokens[i].text;
        types[i] = tokens[i].type;
        scores[i] = tokens[i].score;
    }
    k1t_str(file, "tokenizer.ggml.model", merges == NULL ? "llama" : "gpt2");
    k1t_strs(file, "tokenizer.ggml.tokens", texts, n);
    k1t_i32s(file, "tokenizer.ggml.token_type", types, n);
    if (merges == NULL) {
        k1t_f32s(file, "tokenizer.ggml.scores", scores, n);
    } else {
        k1t_str(file, "tokenizer.ggml.pre", pre);
        k1t_strs(file, "tokenizer.ggml.merges", merges, n_merges);
    }
}

void k1t_put_bpe(k1t_gguf *file, const char *pre) {
    static const k1t_token tokens[] = {
        {"<|end|>", CONTROL, 0}, {"<tool", USER, 0},  {"<tool_call>", USER, 0}, {"a", NORMAL, 0},   {"b", NORMAL, 0},
        {"c", NORMAL, 0},        {"ab", NORMAL, 0},   {"bc", NORMAL, 0},        {"abc", NORMAL, 0}, {"Ġ", NORMAL, 0},
        {"Ġa", NORMAL, 0},       {"aa", NORMAL, 0},   {"aaaa", NORMAL, 0},      {"ÿ", NORMAL, 0},   {"Z", NORMAL, 0},
        {"ZZ", NORMAL, 0},       {"ZZZZ", NORMAL, 0}, {"<", NORMAL, 0},         {"o", NORMAL, 0},   {"Ã", NORMAL, 0},
        {"©", NORMAL, 0},        {"Ã©", NORMAL, 0},   {"1", NORMAL, 0},         {"cab", NORMAL, 0}, {"ca", CONTROL, 0},
    };
    static const char *const merges[] = {"b c", "a b", "a bc", "Ġ a", "a a", "aa aa", "Z Z", "ZZ ZZ", "Ã ©", "c a"};
    k1t_put_vocab(file, pre, tokens, sizeof tokens / sizeof *tokens, merges, sizeof merges / sizeof *merges);
}

void k1t_put_spm(k1t_gguf *file) {
    static const k1t_token tokens[] = {
        {"<unk>", UNKNOWN, 0}, {"<s>", CONTROL, 0}, {"</s>", CONTROL, 0}, {"<0x41>", BYTE, 0},  {"<0x0A>", BYTE, 0},
        {"<0xF0>", BYTE, 0},   {"<0x9F>", BYTE, 0}, {"<0x98>", BYTE, 0},  {"<0x80>", BYTE, 0},  {"▁", NORMAL, -9},
        {"a", NORMAL, -9},     {"b", NORMAL, -9},   {"c", NORMAL, -9},    {"ab", NORMAL, 2},    {"bc", NORMAL, 1},
        {"▁a", NORMAL, -3},    {"abc", NORMAL, -4}, {"aa", NORMAL, -5},   {"aaaa", NORMAL, -6}, {"<tool>", USER, 0},
        {"[PAD]", UNUSED, 0},  {"é", NORMAL, -9},   {"ba", UNUSED, 9},
    };
    k1t_put_vocab(file, NULL, tokens, sizeof tokens / sizeof *tokens, NULL, 0);
}

k1t_vocab k1t_load(k1t_gguf *file) {
    k1_err err = {""};
    size_t size;
    k1t_vocab vocab = {.bytes = k1t_finish(file, &size)};
    vocab.gguf = k1_gguf_parse(vocab.bytes, size, &err);
    vocab.tokenizer = vocab.gguf == NULL ? NULL : k1_tokenizer_new(vocab.gguf, &err);
    must(vocab.tokenizer != NULL, "vocabulary not loaded", err.text);
    return vocab;
}

void k1t_unload(k1t_vocab *vocab) {
    k1_tokenizer_free(vocab->tokenizer);
    k1_gguf_close(vocab->gguf);
    free(vocab->bytes);
}

k1_err k1t_refused(k1t_gguf *file) {
    k1_err err = {""};
    size_t size;
    uint8_t *bytes = k1t_finish(file, &size);
    k1_gguf *gguf = k1_gguf_parse(bytes, size, &err);
    must(gguf != NULL, "file not loaded", err.text);
    k1_tokenizer *tokenizer = k1_tokenizer_new(gguf, &err);
    k1_tokenizer_free(tokenizer);
    k1_gguf_close(gguf);
    free(bytes);
    return tokenizer == NULL ? err : (k1_err){""};
}

char *k1t_ids(const k1_tokenizer *tokenizer, const char *text, size_t len, bool special) {
    k1_err err = {""};
    k1_tokens tokens = {0};
    /* A copy of just these bytes, so that a sanitizer sees reads beyond them. */
    char *copy = malloc(len + (len == 0));
    must(copy != NULL, "ids", "no memory");
    memcpy(copy, text, len);
    must(k1_tokenizer_encode(tokenizer, copy, len, special, &tokens, &err) == 0, "not encoded", err.text);
    free(copy);
    char *ids = calloc(tokens.n + 1, 12);
    must(ids != NULL, "ids", "no memory");
    size_t n = 0;
    for (size_t i = 0; i < tokens.n; i++) {
        n += (size_t)sprintf(ids + n, "%s%d", i > 0 ? " " : "", tokens.ids[i]);
    }
    free(tokens.ids);
    return ids;
}
