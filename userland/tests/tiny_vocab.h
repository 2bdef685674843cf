/* Vocabularies small enough to work out by hand what a text becomes. */
#ifndef K1_TESTS_TINY_VOCAB_H
#define K1_TESTS_TINY_VOCAB_H

#include "k1/tokenizer.h"
#include "support.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

typedef struct k1t_token {
    const char *text;
    int32_t type;
    float score;
} k1t_token;

/* A tokenizer and what it keeps pointers into. */
typedef struct k1t_vocab {
    uint8_t *bytes;
    k1_gguf *gguf;
    k1_tokenizer *tokenizer;
} k1t_vocab;

/* Add the keys of a vocabulary to a file; merges NULL: SentencePiece, with scores. */
void k1t_put_vocab(k1t_gguf *file, const char *pre, const k1t_token *tokens, size_t n, const char *const *merges,
                   size_t n_merges);
/* Finish the file and load its vocabulary, which must succeed; k1t_unload it. */
k1t_vocab k1t_load(k1t_gguf *file);
void k1t_unload(k1t_vocab *vocab);
/* Finish the file; the error that its vocabulary is refused with, empty when it is not refused. */
k1_err k1t_refused(k1t_gguf *file);

/* Ids: a = "a" … as the comments say.
 *  0 <|end|> (control)   1 <tool   2 <tool_call> (user)   3 a   4 b   5 c   6 ab   7 bc   8 abc   9 space   10 space a
 * 11 aa   12 aaaa   13 byte FF   14 Z   15 ZZ   16 ZZZZ   17 <   18 o   19 byte C3   20 byte A9   21 é   22 1   23 cab
 * 24 ca (control) Merges in order: b c, a b, a bc, space a, a a, aa aa, Z Z, ZZ ZZ, C3 A9, c a. Nothing merges to cab.
 */
void k1t_put_bpe(k1t_gguf *file, const char *pre);
/*  0 <unk>   1 <s>   2 </s> (control)   3 <0x41>   4 <0x0A>   5 <0xF0>   6 <0x9F>   7 <0x98>   8 <0x80> (bytes)
 *  9 ▁  10 a  11 b  12 c  13 ab (2)  14 bc (1)  15 ▁a (-3)  16 abc (-4)  17 aa (-5)  18 aaaa (-6)
 * 19 <tool> (user)  20 [PAD] (unused)  21 é  22 ba (unused, 9) */
void k1t_put_spm(k1t_gguf *file);

/* The ids of the text, as "1 2 3"; free() it. */
char *k1t_ids(const k1_tokenizer *tokenizer, const char *text, size_t len, bool special);

#endif
