/* Text to token ids and back, from the vocabulary in a GGUF file (tokenizer.ggml.*).
 * Byte-level BPE with the pre-tokenizers gpt-2, smollm, llama-bpe and qwen2; SentencePiece (model "llama"). */
#ifndef K1_TOKENIZER_H
#define K1_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "k1/error.h"
#include "k1/gguf.h"

typedef struct k1_tokenizer k1_tokenizer;

/* NULL and err when the vocabulary is missing, inconsistent or of a kind that is not known (names the known).
 * The tokenizer keeps pointers into the gguf, which must outlive it. Immutable afterwards: any thread may use it. */
k1_tokenizer *k1_tokenizer_new(const k1_gguf *gguf, k1_err *err);
void k1_tokenizer_free(k1_tokenizer *tokenizer);

uint32_t k1_tokenizer_n_vocab(const k1_tokenizer *tokenizer);
int32_t k1_tokenizer_bos(const k1_tokenizer *tokenizer); /* -1 when there is none */
int32_t k1_tokenizer_eos(const k1_tokenizer *tokenizer); /* -1 when there is none */
/* Whether a token ends a generation: EOS, EOT, EOM and their kin. */
bool k1_tokenizer_is_end(const k1_tokenizer *tokenizer, int32_t token);
/* Whether the file asks for BOS in front of a prompt (tokenizer.ggml.add_bos_token). */
bool k1_tokenizer_adds_bos(const k1_tokenizer *tokenizer);

/* Token ids that grow; zero-initialise, free ids with free(). */
typedef struct k1_tokens {
    int32_t *ids;
    size_t n;
    size_t capacity;
} k1_tokens;

/* -1 when memory runs out; tokens is unchanged then. */
int k1_tokens_add(k1_tokens *tokens, int32_t id);

/* Append the tokens of text[0..len) to out. Bytes that are not UTF-8 are encoded as bytes, never refused: byte-level
 * BPE cuts the text there, so that such a byte merges with nothing. A byte for which the vocabulary has no token
 * becomes the unknown token (SentencePiece), or is left out (BPE; SmolLM2's lacks 21 of them). BOS is not added.
 * special: whether the text of control tokens (<|im_start|>) becomes that token, or plain text.
 * O(n log n), no recursion. -1, err and out as it was when memory runs out, a pre-tokenizer limit is hit or the text is
 * longer than 256 MiB. */
int k1_tokenizer_encode(const k1_tokenizer *tokenizer, const char *text, size_t len, bool special, k1_tokens *out,
                        k1_err *err);
/* The same for the text that a sequence begins with: BOS goes in front where the file asks for it, and where the text
 * is empty and there would be no token at all. */
int k1_tokenizer_encode_first(const k1_tokenizer *tokenizer, const char *text, size_t len, bool special, k1_tokens *out,
                              k1_err *err);

/* Streaming detokenizer: holds back bytes until they make whole UTF-8 sequences. Zero-initialise; to go on from other
 * text, as a completion does from its prompt, set `started`: SentencePiece's space in front of the first word then
 * stays, which otherwise is taken off again at the beginning and after a control token. */
typedef struct k1_detok {
    uint8_t held[4];
    uint8_t n_held;
    bool started;
} k1_detok;

/* The text that one more token makes visible: writes up to capacity bytes (never half a UTF-8 sequence; invalid bytes
 * become U+FFFD) to out and returns how many, or -1 when capacity is too small. special: show control tokens. */
ptrdiff_t k1_detok_next(const k1_tokenizer *tokenizer, k1_detok *state, int32_t token, bool special, char *out,
                        size_t capacity);
/* What is left at the end: U+FFFD for a sequence that was never finished. */
ptrdiff_t k1_detok_end(k1_detok *state, char *out, size_t capacity);
/* Enough capacity for k1_detok_next with any token of this vocabulary. */
size_t k1_detok_capacity(const k1_tokenizer *tokenizer);

#endif
