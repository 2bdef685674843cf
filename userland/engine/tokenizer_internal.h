/* What the tokenizer's files share. */
#ifndef K1_TOKENIZER_INTERNAL_H
#define K1_TOKENIZER_INTERNAL_H

#include "k1/tokenizer.h"

/* Token types by their GGUF numbers. */
typedef enum k1_token_type {
    K1_TOKEN_NORMAL = 1,
    K1_TOKEN_UNKNOWN = 2,
    K1_TOKEN_CONTROL = 3,
    K1_TOKEN_USER = 4,
    K1_TOKEN_UNUSED = 5,
    K1_TOKEN_BYTE = 6,
} k1_token_type;

/* ---- vocab_index.c: text → id, open addressing */

typedef struct k1_vocab_index {
    const k1_str *texts; /* k1_str[n_vocab] of the gguf */
    int32_t *slots;      /* int32[mask + 1], -1 when free */
    size_t mask;
} k1_vocab_index;

int k1_vocab_index_init(k1_vocab_index *index, const k1_str *texts, size_t n, k1_err *err);
void k1_vocab_index_free(k1_vocab_index *index);
/* Texts are kept once: a second token of the same text is not added. */
void k1_vocab_index_add(k1_vocab_index *index, int32_t id);
int32_t k1_vocab_index_find(const k1_vocab_index *index, const char *text, size_t len); /* -1 when absent */

/* ---- added_tokens.c: tokens that are matched in the text before anything else */

typedef struct k1_added_token {
    k1_str text;
    int32_t id;
    bool control; /* matched only when the caller wants control tokens */
} k1_added_token;

typedef struct k1_added {
    k1_added_token *tokens; /* sorted by text */
    char *copies;           /* texts that are not as in the gguf */
    size_t n;
    size_t first[257]; /* tokens that begin with byte b: [first[b], first[b + 1]) */
} k1_added;

int k1_added_init(k1_added *added, const k1_tokenizer *tokenizer, k1_err *err);
void k1_added_free(k1_added *added);
/* The longest added token at the beginning of text[0..len), len > 0; NULL when there is none. */
const k1_added_token *k1_added_match(const k1_added *added, const char *text, size_t len, bool special);

/* ---- pretokenize.c: the regular expressions that cut text into pieces */

typedef enum k1_pre { K1_PRE_GPT2, K1_PRE_SMOLLM, K1_PRE_LLAMA_BPE, K1_PRE_QWEN2 } k1_pre;

typedef struct k1_pretokenizer k1_pretokenizer;
typedef struct k1_pretok_run k1_pretok_run; /* what one caller needs to use it */

/* Values of tokenizer.ggml.pre, with their aliases. */
bool k1_pre_by_name(k1_str name, k1_pre *pre);
k1_pretokenizer *k1_pretokenizer_new(k1_pre pre, bool jit, k1_err *err);
void k1_pretokenizer_free(k1_pretokenizer *pre);
k1_pretok_run *k1_pretok_run_new(const k1_pretokenizer *pre, k1_err *err);
void k1_pretok_run_free(k1_pretok_run *run);
/* Steps that one match may take. */
void k1_pretok_run_limit(k1_pretok_run *run, uint32_t match_limit);
/* Length of the first piece of s[0..n), which is valid UTF-8, n > 0. 0 and err: a limit was hit. */
size_t k1_pretok_next(k1_pretok_run *run, const char *s, size_t n, k1_err *err);

/* ---- merge.c: repeated merging of the best pair of neighbours, O(n log n) */

typedef struct k1_symbol {
    int32_t id; /* or K1_SYMBOL_NONE */
    uint32_t start;
    uint32_t len; /* 0: merged into its left neighbour */
    uint32_t prev;
    uint32_t next;
} k1_symbol;

#define K1_SYMBOL_NONE (-1)      /* no token yet */
#define K1_SYMBOL_END UINT32_MAX /* prev of the first, next of the last */

typedef struct k1_candidate {
    uint64_t key;  /* priority in the high half, index of the left symbol in the low: least first */
    uint32_t size; /* of both symbols; another size means that one has been merged meanwhile */
    int32_t id;    /* of the merged token */
} k1_candidate;

typedef struct k1_merger {
    k1_symbol *symbols;
    size_t n; /* symbols before merging */
    size_t capacity;
    k1_candidate *heap; /* [2 * capacity] */
    size_t n_heap;
} k1_merger;

/* Whether left and right may merge: to which token, and how soon (least priority first, leftmost among equals). */
typedef bool k1_pair_fn(const void *arg, const k1_symbol *left, const k1_symbol *right, uint32_t *priority,
                        int32_t *id);

int k1_merger_reserve(k1_merger *merger, size_t n, k1_err *err);
void k1_merger_free(k1_merger *merger);
/* Append a symbol; there is room for as many as were reserved. Start with n = 0. */
void k1_merger_push(k1_merger *merger, int32_t id, size_t start, size_t len);
/* Merge until no pair is left. The result: symbols[0], then along next. Needs n > 0. */
void k1_merger_run(k1_merger *merger, k1_pair_fn *pair, const void *arg);

/* ---- what one call of k1_tokenizer_encode works with */

typedef struct k1_encode {
    const k1_tokenizer *tokenizer;
    k1_merger merger;
    k1_pretok_run *pre; /* BPE */
    char *buffer;       /* text as the vocabulary spells it */
    size_t capacity;
    k1_tokens *out;
    k1_err *err;
} k1_encode;

int k1_encode_emit(k1_encode *encode, int32_t id);
int k1_encode_buffer(k1_encode *encode, size_t capacity);

/* ---- tokenizer_bpe.c */

typedef struct k1_merge {
    uint64_t pair; /* left id, right id */
    uint32_t rank;
    int32_t id;
} k1_merge;

typedef struct k1_bpe {
    k1_merge *merges; /* [mask + 1], open addressing; id -1 when free */
    size_t mask;
    bool whole_pieces; /* a piece that is a token needs no merges (Llama 3) */
    k1_pretokenizer *pre;
} k1_bpe;

int k1_bpe_init(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err);
void k1_bpe_free(k1_bpe *bpe);
int k1_bpe_encode(k1_encode *encode, const char *text, size_t len);

/* ---- byte_level.c: bytes as the printable characters that GPT-2's vocabulary spells them with */

/* Write the UTF-8 of a byte's character, 1 or 2 bytes; returns how many. */
size_t k1_bpe_spell(uint8_t byte, char *out);
/* Whether all of the token's characters spell bytes. */
bool k1_bpe_is_spelled(k1_str token);
/* The byte that the character at *at spells; moves on. */
uint8_t k1_bpe_take(k1_str token, size_t *at);

/* ---- tokenizer_spm.c */

typedef struct k1_spm {
    const float *scores; /* float[n_vocab] of the gguf */
    bool space_prefix;
} k1_spm;

int k1_spm_init(k1_tokenizer *tokenizer, const k1_gguf *gguf, k1_err *err);
/* prefix: whether this text stands at the beginning, or after a control token. */
int k1_spm_encode(k1_encode *encode, const char *text, size_t len, bool prefix);
/* The byte of text at *at, where U+2581 is a space; moves on. */
uint8_t k1_spm_take(k1_str token, size_t *at);
/* The byte that a token such as <0x0A> stands for, -1 when it is none. */
int k1_spm_byte(k1_str token);

/* ---- tokenizer.c */

#define K1_MAX_TOKEN_LEN 65535
#define K1_MAX_TEXT (256U << 20)
#define K1_MAX_ENDS 16

struct k1_tokenizer {
    const k1_str *texts; /* k1_str[n_vocab] of the gguf */
    uint32_t n_vocab;
    const int32_t *types; /* int32[n_vocab] of the gguf; NULL: all normal */
    k1_vocab_index index; /* freed when only loading needed it */
    k1_added added;
    int32_t byte_id[256]; /* -1 when the vocabulary has no token for a byte */
    size_t max_len;       /* of a token's text */
    int32_t bos;
    int32_t eos;
    int32_t unknown;
    int32_t ends[K1_MAX_ENDS];
    size_t n_ends;
    bool add_bos;
    bool is_spm;
    k1_bpe bpe;
    k1_spm spm;
};

k1_token_type k1_token_type_of(const k1_tokenizer *tokenizer, int32_t id);
/* Whether plain text may become this token. */
bool k1_token_is_text(const k1_tokenizer *tokenizer, int32_t id);

#endif
