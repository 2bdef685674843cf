/* Which positions a token attends to, as 64-bit words: bit b of word w stands for position 64 w + b. A word is also the
 * tile of the streaming softmax, so skipping empty words skips whole tiles. */
#ifndef K1_MASK_H
#define K1_MASK_H

#include <stddef.h>
#include <stdint.h>

#define K1_MASK_BITS 64u
#define K1_MASK_FULL UINT64_MAX

/* rows NULL: causal, token t of a pass at position first_pos + t sees itself and all before it.
 * Else rows: uint64[n_tokens][words_per_row], any pattern within the positions that are in the cache. */
typedef struct k1_mask {
    const uint64_t *rows;
    size_t words_per_row;
    uint32_t first_pos;
} k1_mask;

/* Positions 0 to pos, both included. */
static inline uint64_t k1_mask_causal_word(uint32_t pos, uint32_t word) {
    uint32_t own = pos / K1_MASK_BITS;
    if (word != own) {
        return word < own ? K1_MASK_FULL : 0;
    }
    return K1_MASK_FULL >> (K1_MASK_BITS - 1 - pos % K1_MASK_BITS);
}

static inline uint64_t k1_mask_word(const k1_mask *mask, uint32_t token, uint32_t word) {
    if (mask->rows != NULL) {
        return mask->rows[token * mask->words_per_row + word];
    }
    return k1_mask_causal_word(mask->first_pos + token, word);
}

static inline uint32_t k1_mask_count(uint64_t word) { return (uint32_t)__builtin_popcountll(word); }

/* The lowest set bit, which is taken out of the word; the word must not be 0. */
static inline uint32_t k1_mask_next(uint64_t *word) {
    uint32_t bit = (uint32_t)__builtin_ctzll(*word);
    *word &= *word - 1;
    return bit;
}

#endif
