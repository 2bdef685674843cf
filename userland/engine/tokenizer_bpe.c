#include <stdlib.h>
#include <string.h>

#include "gguf_internal.h"
#include "k1/utf8.h"
#include "tokenizer_internal.h"

/* Byte-level BPE. */

/* ---- merges */

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static k1_merge *find_merge(const k1_bpe *bpe, uint64_t pair) {
    uint64_t h = pair * 0x9E3779B97F4A7C15U;
    size_t slot = (size_t)(h ^ h >> 32) & bpe->mask;
    while (bpe->merges[slot].id >= 0 && bpe->merges[slot].pair != pair) {
        slot = (slot + 1) & bpe->mask;
    }
    return &bpe->merges[slot];
}

static int alloc_merges(k1_bpe *bpe, size_t n, k1_err *err) {
    size_t size = 16;
    while (size < n + n / 2) {
        size *= 2;
    }
    bpe->mask = size - 1;
    bpe->merges = calloc(size, sizeof *bpe->merges);
    if (bpe->merges == NULL) {
        return k1_fail(err, "tokenizer: no memory for %zu merges", n);
    }
    for (size_t i = 0; i < size; i++) {
        bpe->merges[i].id = -1;
    }
    return 0;
}

/* A merge is "left right"; its tokens hold no space, which bytes are spelled without. */
static int add_merge(k1_tokenizer *tokenizer, k1_str text, size_t rank, char *joined, k1_err *err) {
    const k1_vocab_index *index = &tokenizer->index;
    const char *space = text.len > 0 ? memchr(text.data, ' ', text.len) : NULL;
    if (space == NULL || text.len > 2 * K1_MAX_TOKEN_LEN) {
        return k1_fail(err,
                       "tokenizer.ggml.merges: entry %zu is not two tokens with a space between; convert the model "
                       "again",
                       rank);
    }
    size_t left_len = (size_t)(space - text.data);
    size_t right_len = text.len - left_len - 1;
    memcpy(joined, text.data, left_len);
    memcpy(joined + left_len, space + 1, right_len);
    int32_t left = k1_vocab_index_find(index, joined, left_len);
    int32_t right = k1_vocab_index_find(index, space + 1, right_len);
    int32_t id = k1_vocab_index_find(index, joined, left_len + right_len);
    if (left < 0 || right < 0 || id < 0) {
        return k1_fail(err,
                       "tokenizer.ggml.merges: entry %zu names a token that is not in tokenizer.ggml.tokens; convert "
                       "the model again",
                       rank);
    }
    k1_merge *merge = find_merge(&tokenizer->bpe, pair_of(left, right));
    if (merge->id < 0 && k1_token_is_text(tokenizer, id)) {
        *merge = (k1_merge){pair_of(left, right), (uint32_t)rank, id};
    }
    return 0;
}

static int read_merges(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    const k1_str *texts;
    size_t n = k1_gguf_strs(gguf, "tokenizer.ggml.merges", &texts);
    if (n == 0 || n > INT32_MAX) {
        return k1_fail(err, "tokenizer.ggml.merges is missing or not an array of texts; convert the model again");
    }
    if (alloc_merges(&tokenizer->bpe, n, err) != 0) {
        return -1;
    }
    char *joined = malloc(2 * K1_MAX_TOKEN_LEN);
    if (joined == NULL) {
        return k1_fail(err, "tokenizer: no memory for merges");
    }
    int result = 0;
    for (size_t rank = 0; rank < n && result == 0; rank++) {
        result = add_merge(tokenizer, texts[rank], rank, joined, err);
    }
    free(joined);
    return result;
}

static int read_pre(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    k1_str name;
    k1_pre pre;
    if (!k1_gguf_str(gguf, "tokenizer.ggml.pre", &name)) {
        return k1_fail(err, "tokenizer.ggml.pre is missing, as in files of early converters; convert the model again");
    }
    if (!k1_pre_by_name(name, &pre)) {
        return k1_fail(err, "tokenizer.ggml.pre: %s is not known; known are gpt-2, smollm, llama-bpe and qwen2",
                       k1_gguf_show("pre-tokenizer", name).text);
    }
    tokenizer->bpe.whole_pieces = pre == K1_PRE_LLAMA_BPE;
    tokenizer->bpe.pre = k1_pretokenizer_new(pre, true, err);
    return tokenizer->bpe.pre == NULL ? -1 : 0;
}

int k1_bpe_init(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    if (read_pre(tokenizer, gguf, err) != 0 || read_merges(tokenizer, gguf, err) != 0) {
        return -1;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[2];
        size_t len = k1_bpe_spell((uint8_t)byte, text);
        tokenizer->byte_id[byte] = k1_vocab_index_find(&tokenizer->index, text, len);
    }
    if (!tokenizer->bpe.whole_pieces) {
        k1_vocab_index_free(&tokenizer->index);
    }
    return 0;
}

void k1_bpe_free(k1_bpe *bpe) {
    free(bpe->merges);
    k1_pretokenizer_free(bpe->pre);
}

/* ---- encoding */

static bool pair_rank(const void *arg, const k1_symbol *left, const k1_symbol *right, uint32_t *priority, int32_t *id) {
    const k1_merge *merge = find_merge(arg, pair_of(left->id, right->id));
    *priority = merge->rank;
    *id = merge->id;
    return merge->id >= 0;
}

/* The token that is the whole piece, -1 when there is none; -2 and the run's err when memory runs out. */
static int32_t whole_piece(k1_encode *encode, const char *piece, size_t len) {
    if (len > encode->tokenizer->max_len) {
        return -1;
    }
    if (k1_encode_buffer(encode, 2 * len) != 0) {
        return -2;
    }
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        n += k1_bpe_spell((uint8_t)piece[i], encode->buffer + n);
    }
    int32_t id = k1_vocab_index_find(&encode->tokenizer->index, encode->buffer, n);
    return id >= 0 && k1_token_is_text(encode->tokenizer, id) ? id : -1;
}

/* A byte without a token is left out: the model has never seen it. */
static int encode_byte(k1_encode *encode, char byte) {
    int32_t id = encode->tokenizer->byte_id[(uint8_t)byte];
    return id < 0 ? 0 : k1_encode_emit(encode, id);
}

static int merge_piece(k1_encode *encode, const char *piece, size_t len) {
    k1_merger *merger = &encode->merger;
    if (k1_merger_reserve(merger, len, encode->err) != 0) {
        return -1;
    }
    merger->n = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = encode->tokenizer->byte_id[(uint8_t)piece[i]];
        if (id >= 0) {
            k1_merger_push(merger, id, i, 1);
        }
    }
    if (merger->n == 0) {
        return 0;
    }
    k1_merger_run(merger, pair_rank, &encode->tokenizer->bpe);
    for (uint32_t i = 0; i != K1_SYMBOL_END; i = merger->symbols[i].next) {
        if (k1_encode_emit(encode, merger->symbols[i].id) != 0) {
            return -1;
        }
    }
    return 0;
}

static int encode_piece(k1_encode *encode, const char *piece, size_t len) {
    if (len == 1) {
        return encode_byte(encode, *piece);
    }
    if (encode->tokenizer->bpe.whole_pieces) {
        int32_t id = whole_piece(encode, piece, len);
        if (id != -1) {
            return id < 0 ? -1 : k1_encode_emit(encode, id);
        }
    }
    return merge_piece(encode, piece, len);
}

static int encode_valid(k1_encode *encode, const char *text, size_t len) {
    if (len > 0 && encode->pre == NULL) {
        encode->pre = k1_pretok_run_new(encode->tokenizer->bpe.pre, encode->err);
        if (encode->pre == NULL) {
            return -1;
        }
    }
    while (len > 0) {
        /* The expressions take at most a few steps per byte. */
        k1_pretok_run_limit(encode->pre, len < UINT32_MAX / 16 ? (uint32_t)len * 8 + 1000 : UINT32_MAX / 2);
        size_t n = k1_pretok_next(encode->pre, text, len, encode->err);
        if (n == 0 || encode_piece(encode, text, n) != 0) {
            return -1;
        }
        text += n;
        len -= n;
    }
    return 0;
}

/* Text is cut at bytes that are not UTF-8: each of them becomes its byte's token and merges with nothing, and the valid
 * text on either side is encoded as if it stood alone. */
int k1_bpe_encode(k1_encode *encode, const char *text, size_t len) {
    const uint8_t *s = (const uint8_t *)text;
    size_t start = 0;
    for (size_t at = 0; at < len;) {
        int n = k1_utf8_next(s + at, len - at, NULL);
        if (n > 0) {
            at += (size_t)n;
            continue;
        }
        if (encode_valid(encode, text + start, at - start) != 0 || encode_byte(encode, text[at]) != 0) {
            return -1;
        }
        at++;
        start = at;
    }
    return encode_valid(encode, text + start, len - start);
}
