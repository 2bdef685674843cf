#include "k1/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "gguf_internal.h"
#include "tokenizer_internal.h"

k1_token_type k1_token_type_of(const k1_tokenizer *tokenizer, int32_t id) {
    return tokenizer->types == NULL ? K1_TOKEN_NORMAL : (k1_token_type)tokenizer->types[id];
}

bool k1_token_is_text(const k1_tokenizer *tokenizer, int32_t id) {
    k1_token_type type = k1_token_type_of(tokenizer, id);
    return type == K1_TOKEN_NORMAL || type == K1_TOKEN_USER;
}

/* ---- loading */

static int read_texts(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    size_t n = k1_gguf_strs(gguf, "tokenizer.ggml.tokens", &tokenizer->texts);
    if (n == 0 || n > INT32_MAX) {
        return k1_fail(err, "tokenizer.ggml.tokens is missing or not an array of texts; the file holds no vocabulary, "
                            "convert the model again");
    }
    tokenizer->n_vocab = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        size_t len = tokenizer->texts[i].len;
        if (len > K1_MAX_TOKEN_LEN) {
            return k1_fail(err,
                           "tokenizer.ggml.tokens: token %zu is %zu bytes long, at most %d are possible; the file is "
                           "damaged",
                           i, len, K1_MAX_TOKEN_LEN);
        }
        tokenizer->max_len = len > tokenizer->max_len ? len : tokenizer->max_len;
    }
    return 0;
}

static int read_types(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    if (!k1_gguf_has(gguf, "tokenizer.ggml.token_type")) {
        return 0;
    }
    size_t n = k1_gguf_i32s(gguf, "tokenizer.ggml.token_type", &tokenizer->types);
    if (n != tokenizer->n_vocab) {
        return k1_fail(err, "tokenizer.ggml.token_type: %zu types for %u tokens; convert the model again", n,
                       tokenizer->n_vocab);
    }
    return 0;
}

/* *id stays as it is when the key is absent. */
static int read_id(const k1_tokenizer *tokenizer, const k1_gguf *gguf, const char *key, int32_t *id, k1_err *err) {
    uint32_t value;
    if (!k1_gguf_u32(gguf, key, &value)) {
        return 0;
    }
    if (value >= tokenizer->n_vocab) {
        return k1_fail(err, "%s: token %u, but the vocabulary has %u tokens; convert the model again", key, value,
                       tokenizer->n_vocab);
    }
    *id = (int32_t)value;
    return 0;
}

static void add_end(k1_tokenizer *tokenizer, int32_t id) {
    if (id >= 0 && !k1_tokenizer_is_end(tokenizer, id) && tokenizer->n_ends < K1_MAX_ENDS) {
        tokenizer->ends[tokenizer->n_ends++] = id;
    }
}

/* Many files name only one end in their metadata though the model was trained with several. */
static void add_known_ends(k1_tokenizer *tokenizer) {
    static const char *const known[] = {"<|endoftext|>", "<|im_end|>",    "<|eot_id|>", "<|eom_id|>",
                                        "<|end|>",       "<end_of_turn>", "<EOT>",      "_<EOT>"};
    for (size_t i = 0; i < tokenizer->added.n; i++) {
        const k1_added_token *token = &tokenizer->added.tokens[i];
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
            if (token->control && k1_str_is(token->text, known[k])) {
                add_end(tokenizer, token->id);
            }
        }
    }
}

static int read_special_ids(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    static const char *const ends[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    tokenizer->bos = tokenizer->eos = tokenizer->unknown = -1;
    for (int32_t id = (int32_t)tokenizer->n_vocab - 1; id >= 0; id--) {
        if (k1_token_type_of(tokenizer, id) == K1_TOKEN_UNKNOWN) {
            tokenizer->unknown = id;
        }
    }
    if (read_id(tokenizer, gguf, "tokenizer.ggml.bos_token_id", &tokenizer->bos, err) != 0 ||
        read_id(tokenizer, gguf, "tokenizer.ggml.eos_token_id", &tokenizer->eos, err) != 0 ||
        read_id(tokenizer, gguf, "tokenizer.ggml.unknown_token_id", &tokenizer->unknown, err) != 0) {
        return -1;
    }
    add_end(tokenizer, tokenizer->eos);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int32_t id = -1;
        if (read_id(tokenizer, gguf, ends[i], &id, err) != 0) {
            return -1;
        }
        add_end(tokenizer, id);
    }
    add_known_ends(tokenizer);
    return 0;
}

/* Of two tokens with one text, that which plain text may become is found. */
static int build_index(k1_tokenizer *tokenizer, k1_err *err) {
    if (k1_vocab_index_init(&tokenizer->index, tokenizer->texts, tokenizer->n_vocab, err) != 0) {
        return -1;
    }
    int32_t n = (int32_t)tokenizer->n_vocab;
    for (int32_t id = 0; id < n; id++) {
        if (k1_token_is_text(tokenizer, id)) {
            k1_vocab_index_add(&tokenizer->index, id);
        }
    }
    /* In SentencePiece text never becomes a token of another type; merges may name such tokens. */
    for (int32_t id = 0; id < n && !tokenizer->is_spm; id++) {
        if (!k1_token_is_text(tokenizer, id)) {
            k1_vocab_index_add(&tokenizer->index, id);
        }
    }
    return 0;
}

static int read_model(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    k1_str model;
    if (!k1_gguf_str(gguf, "tokenizer.ggml.model", &model)) {
        return k1_fail(err, "tokenizer.ggml.model is missing; the file holds no vocabulary, convert the model again");
    }
    tokenizer->is_spm = k1_str_is(model, "llama");
    if (!tokenizer->is_spm && !k1_str_is(model, "gpt2")) {
        return k1_fail(
            err, "tokenizer.ggml.model: %s is not known; known are gpt2 (byte-level BPE) and llama (SentencePiece)",
            k1_gguf_show("tokenizer", model).text);
    }
    return 0;
}

static int load(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err) {
    memset(tokenizer->byte_id, 0xFF, sizeof tokenizer->byte_id);
    if (read_model(tokenizer, gguf, err) != 0 || read_texts(tokenizer, gguf, err) != 0 ||
        read_types(tokenizer, gguf, err) != 0 || k1_added_init(&tokenizer->added, tokenizer, err) != 0 ||
        read_special_ids(tokenizer, gguf, err) != 0 || build_index(tokenizer, err) != 0) {
        return -1;
    }
    if ((tokenizer->is_spm ? k1_spm_init(tokenizer, gguf, err) : k1_bpe_init(tokenizer, gguf, err)) != 0) {
        return -1;
    }
    /* Files that do not say: SentencePiece and Llama 3 models were trained with BOS. */
    tokenizer->add_bos = tokenizer->is_spm || tokenizer->bpe.whole_pieces;
    (void)k1_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &tokenizer->add_bos);
    return 0;
}

k1_tokenizer *k1_tokenizer_new(const k1_gguf *gguf, k1_err *err) {
    k1_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (tokenizer == NULL) {
        k1_fail(err, "tokenizer: no memory");
        return NULL;
    }
    if (load(tokenizer, gguf, err) != 0) {
        k1_tokenizer_free(tokenizer);
        return NULL;
    }
    return tokenizer;
}

void k1_tokenizer_free(k1_tokenizer *tokenizer) {
    if (tokenizer == NULL) {
        return;
    }
    k1_vocab_index_free(&tokenizer->index);
    k1_added_free(&tokenizer->added);
    k1_bpe_free(&tokenizer->bpe);
    free(tokenizer);
}

/* ---- what the vocabulary says */

uint32_t k1_tokenizer_n_vocab(const k1_tokenizer *tokenizer) { return tokenizer->n_vocab; }

int32_t k1_tokenizer_bos(const k1_tokenizer *tokenizer) { return tokenizer->bos; }

int32_t k1_tokenizer_eos(const k1_tokenizer *tokenizer) { return tokenizer->eos; }

bool k1_tokenizer_adds_bos(const k1_tokenizer *tokenizer) { return tokenizer->add_bos && tokenizer->bos >= 0; }

bool k1_tokenizer_is_end(const k1_tokenizer *tokenizer, int32_t token) {
    for (size_t i = 0; i < tokenizer->n_ends; i++) {
        if (tokenizer->ends[i] == token) {
            return true;
        }
    }
    return false;
}

/* ---- encoding */

int k1_tokens_add(k1_tokens *tokens, int32_t id) {
    if (tokens->n == tokens->capacity) {
        size_t capacity = tokens->capacity + tokens->capacity / 2 + 64;
        int32_t *ids = reallocarray(tokens->ids, capacity, sizeof *ids);
        if (ids == NULL) {
            return -1;
        }
        tokens->ids = ids;
        tokens->capacity = capacity;
    }
    tokens->ids[tokens->n++] = id;
    return 0;
}

int k1_encode_emit(k1_encode *encode, int32_t id) {
    return k1_tokens_add(encode->out, id) == 0
               ? 0
               : k1_fail(encode->err, "tokenizer: no memory for more than %zu tokens; shorten the text",
                         encode->out->n);
}

int k1_encode_buffer(k1_encode *encode, size_t capacity) {
    if (capacity <= encode->capacity) {
        return 0;
    }
    free(encode->buffer);
    encode->buffer = malloc(capacity);
    encode->capacity = encode->buffer == NULL ? 0 : capacity;
    return encode->buffer != NULL
               ? 0
               : k1_fail(encode->err, "tokenizer: no memory for a text of %zu bytes; shorten it", capacity);
}

/* Text between two added tokens. at_start: nothing, or a control token, is before it. */
static int encode_plain(k1_encode *encode, const char *text, size_t len, bool at_start) {
    const k1_tokenizer *tokenizer = encode->tokenizer;
    if (tokenizer->is_spm) {
        return k1_spm_encode(encode, text, len, at_start && tokenizer->spm.space_prefix);
    }
    return k1_bpe_encode(encode, text, len);
}

static int encode_text(k1_encode *encode, const char *text, size_t len, bool special) {
    bool at_start = true;
    size_t start = 0;
    for (size_t at = 0; at < len;) {
        const k1_added_token *added = k1_added_match(&encode->tokenizer->added, text + at, len - at, special);
        if (added == NULL) {
            at++;
            continue;
        }
        /* In front of a control token there is no empty text that would take a space. */
        at_start = at_start && !(added->control && at == start);
        if (encode_plain(encode, text + start, at - start, at_start) != 0 || k1_encode_emit(encode, added->id) != 0) {
            return -1;
        }
        at += added->text.len;
        start = at;
        at_start = added->control;
    }
    return start == len ? 0 : encode_plain(encode, text + start, len - start, at_start);
}

int k1_tokenizer_encode(const k1_tokenizer *tokenizer, const char *text, size_t len, bool special, k1_tokens *out,
                        k1_err *err) {
    if (len > K1_MAX_TEXT) {
        return k1_fail(err, "tokenizer: a text of %zu bytes; at most %u are possible, shorten it", len, K1_MAX_TEXT);
    }
    k1_encode encode = {.tokenizer = tokenizer, .out = out, .err = err};
    size_t before = out->n;
    int result = encode_text(&encode, text, len, special);
    if (result != 0) {
        out->n = before;
    }
    k1_merger_free(&encode.merger);
    k1_pretok_run_free(encode.pre);
    free(encode.buffer);
    return result;
}

int k1_tokenizer_encode_first(const k1_tokenizer *tokenizer, const char *text, size_t len, bool special, k1_tokens *out,
                              k1_err *err) {
    size_t before = out->n;
    bool leads = k1_tokenizer_adds_bos(tokenizer) || (len == 0 && tokenizer->bos >= 0);
    if (leads && k1_tokens_add(out, tokenizer->bos) != 0) {
        return k1_fail(err, "tokenizer: no memory for a token");
    }
    int result = k1_tokenizer_encode(tokenizer, text, len, special, out, err);
    if (result != 0) {
        out->n = before;
    }
    return result;
}
