#include <stdlib.h>
#include <string.h>

#include "tokenizer_internal.h"

/* FNV-1a, with a last mix because the table uses the low bits. */
static size_t hash(const char *text, size_t len) {
    uint64_t h = 0xCBF29CE484222325U;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ (uint8_t)text[i]) * 0x100000001B3U;
    }
    return (size_t)(h ^ h >> 32);
}

/* The slot that holds the text, or the free one where it belongs. */
static size_t find_slot(const k1_vocab_index *index, const char *text, size_t len) {
    size_t slot = hash(text, len) & index->mask;
    while (index->slots[slot] >= 0) {
        k1_str have = index->texts[index->slots[slot]];
        if (have.len == len && memcmp(have.data, text, len) == 0) {
            break;
        }
        slot = (slot + 1) & index->mask;
    }
    return slot;
}

int k1_vocab_index_init(k1_vocab_index *index, const k1_str *texts, size_t n, k1_err *err) {
    size_t size = 16;
    while (size < n + n / 2) {
        size *= 2;
    }
    index->texts = texts;
    index->mask = size - 1;
    index->slots = malloc(size * sizeof *index->slots);
    if (index->slots == NULL) {
        return k1_fail(err, "tokenizer: no memory for an index of %zu tokens", n);
    }
    memset(index->slots, 0xFF, size * sizeof *index->slots);
    return 0;
}

void k1_vocab_index_free(k1_vocab_index *index) {
    free(index->slots);
    index->slots = NULL;
}

void k1_vocab_index_add(k1_vocab_index *index, int32_t id) {
    k1_str text = index->texts[id];
    size_t slot = find_slot(index, text.data, text.len);
    if (index->slots[slot] < 0) {
        index->slots[slot] = id;
    }
}

int32_t k1_vocab_index_find(const k1_vocab_index *index, const char *text, size_t len) {
    return index->slots[find_slot(index, text, len)];
}
