#include <stdlib.h>
#include <string.h>

#include "tokenizer_internal.h"

/* By text; of equal texts the one that every caller may match first, so that no other need be looked at. */
static int compare(const void *a, const void *b) {
    const k1_added_token *x = a;
    const k1_added_token *y = b;
    int order = k1_str_compare(x->text, y->text);
    if (order != 0) {
        return order;
    }
    if (x->control != y->control) {
        return x->control ? 1 : -1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

static bool is_added(const k1_tokenizer *tokenizer, int32_t id) {
    k1_token_type type = k1_token_type_of(tokenizer, id);
    return tokenizer->texts[id].len > 0 &&
           (type == K1_TOKEN_CONTROL || type == K1_TOKEN_USER || type == K1_TOKEN_UNKNOWN);
}

static void index_first_bytes(k1_added *added) {
    size_t at = 0;
    for (size_t byte = 0; byte < 256; byte++) {
        added->first[byte] = at;
        while (at < added->n && (uint8_t)added->tokens[at].text.data[0] == byte) {
            at++;
        }
    }
    added->first[256] = at;
}

/* The text to look for: SentencePiece spells spaces in a user's tokens as U+2581. */
static k1_str plain_text(k1_added *added, const k1_tokenizer *tokenizer, int32_t id, size_t *used) {
    k1_str text = tokenizer->texts[id];
    if (!tokenizer->is_spm || k1_token_type_of(tokenizer, id) != K1_TOKEN_USER) {
        return text;
    }
    char *copy = added->copies + *used;
    size_t len = 0;
    for (size_t at = 0; at < text.len;) {
        copy[len++] = (char)k1_spm_take(text, &at);
    }
    *used += len;
    return (k1_str){copy, len};
}

static void collect(k1_added *added, const k1_tokenizer *tokenizer) {
    size_t used = 0;
    for (int32_t id = 0; id < (int32_t)tokenizer->n_vocab; id++) {
        if (is_added(tokenizer, id)) {
            bool control = k1_token_type_of(tokenizer, id) != K1_TOKEN_USER;
            added->tokens[added->n++] = (k1_added_token){plain_text(added, tokenizer, id, &used), id, control};
        }
    }
}

int k1_added_init(k1_added *added, const k1_tokenizer *tokenizer, k1_err *err) {
    size_t n = 0;
    size_t bytes = 0;
    for (int32_t id = 0; id < (int32_t)tokenizer->n_vocab; id++) {
        if (is_added(tokenizer, id)) {
            n++;
            bytes += tokenizer->texts[id].len;
        }
    }
    added->tokens = calloc(n + 1, sizeof *added->tokens);
    added->copies = tokenizer->is_spm ? malloc(bytes + 1) : NULL;
    if (added->tokens == NULL || (tokenizer->is_spm && added->copies == NULL)) {
        return k1_fail(err, "tokenizer: no memory for %zu added tokens", n);
    }
    collect(added, tokenizer);
    qsort(added->tokens, added->n, sizeof *added->tokens, compare);
    index_first_bytes(added);
    return 0;
}

void k1_added_free(k1_added *added) {
    free(added->tokens);
    free(added->copies);
}

/* The first token in [low, high), which share their first `depth` bytes, whose next byte is at least `byte`; tokens
 * of just `depth` bytes come before all others. */
static size_t lower_bound(const k1_added *added, size_t low, size_t high, size_t depth, unsigned byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        k1_str text = added->tokens[middle].text;
        if (text.len == depth || (uint8_t)text.data[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const k1_added_token *k1_added_match(const k1_added *added, const char *text, size_t len, bool special) {
    uint8_t byte = (uint8_t)text[0];
    size_t low = added->first[byte];
    size_t high = added->first[byte + 1U];
    const k1_added_token *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        const k1_added_token *shortest = &added->tokens[low];
        if (shortest->text.len == depth && (special || !shortest->control)) {
            best = shortest;
        }
        if (depth == len) {
            break;
        }
        byte = (uint8_t)text[depth];
        low = lower_bound(added, low, high, depth, byte);
        high = lower_bound(added, low, high, depth, byte + 1U);
    }
    return best;
}
