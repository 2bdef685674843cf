#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer_internal.h"

/* Text is cut into pieces before merging, by the regular expression that the model was trained with; each matches any
 * text without a gap. They are those of the models' tokenizer.json, except for two rewrites that change no result:
 *   - \s is written out as White_Space, for PCRE2's \s also holds U+180E;
 *   - smollm cuts out single digits first and then applies GPT-2's expression to what is between; one expression does
 *     both, where white space in front of a digit counts as white space at the end of a text. */
#define WHITE "\\t-\\r\\x{85}\\p{Z}"
#define SPACE "[" WHITE "]"
#define SUFFIXES "'s|'t|'re|'ve|'m|'ll|'d"

static const char *const expressions[] = {
    [K1_PRE_GPT2] = SUFFIXES "| ?\\p{L}+| ?\\p{N}+| ?[^" WHITE "\\p{L}\\p{N}]+|" SPACE "+(?![^" WHITE "])|" SPACE "+",
    [K1_PRE_SMOLLM] =
        "\\p{N}|" SUFFIXES "| ?\\p{L}+| ?[^" WHITE "\\p{L}\\p{N}]+|" SPACE "+(?![^" WHITE "\\p{N}])|" SPACE "+",
    [K1_PRE_LLAMA_BPE] = "(?i:" SUFFIXES ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" WHITE
                         "\\p{L}\\p{N}]+[\\r\\n]*|" SPACE "*[\\r\\n]+|" SPACE "+(?![^" WHITE "])|" SPACE "+",
    [K1_PRE_QWEN2] = "(?i:" SUFFIXES ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WHITE
                     "\\p{L}\\p{N}]+[\\r\\n]*|" SPACE "*[\\r\\n]+|" SPACE "+(?![^" WHITE "])|" SPACE "+",
};

static const struct {
    const char *name;
    k1_pre pre;
} names[] = {
    {"gpt-2", K1_PRE_GPT2},       {"smollm", K1_PRE_SMOLLM},      {"llama-bpe", K1_PRE_LLAMA_BPE},
    {"llama3", K1_PRE_LLAMA_BPE}, {"llama-v3", K1_PRE_LLAMA_BPE}, {"qwen2", K1_PRE_QWEN2},
};

/* A match is a few nested groups deep, whatever the text. */
enum { DEPTH_LIMIT = 1000, HEAP_LIMIT_KIB = 1024 };

struct k1_pretokenizer {
    pcre2_code *code;
};

struct k1_pretok_run {
    const pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
};

bool k1_pre_by_name(k1_str name, k1_pre *pre) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (k1_str_is(name, names[i].name)) {
            *pre = names[i].pre;
            return true;
        }
    }
    return false;
}

static int fail_pcre2(int code, const char *what, k1_err *err) {
    PCRE2_UCHAR message[120] = "unknown error";
    pcre2_get_error_message(code, message, sizeof message);
    return k1_fail(err, "tokenizer: %s: %s", what, (const char *)message);
}

k1_pretokenizer *k1_pretokenizer_new(k1_pre pre, bool jit, k1_err *err) {
    k1_pretokenizer *self = calloc(1, sizeof *self);
    if (self == NULL) {
        k1_fail(err, "tokenizer: no memory for its regular expression");
        return NULL;
    }
    int code;
    PCRE2_SIZE at;
    self->code = pcre2_compile((PCRE2_SPTR)expressions[pre], PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &at, NULL);
    if (self->code == NULL) {
        fail_pcre2(code, "its regular expression does not compile with this PCRE2", err);
        free(self);
        return NULL;
    }
    if (jit) {
        /* Where there is no JIT, or no memory may be executable, the interpreter does the same. */
        (void)pcre2_jit_compile(self->code, PCRE2_JIT_COMPLETE);
    }
    return self;
}

void k1_pretokenizer_free(k1_pretokenizer *pre) {
    if (pre != NULL) {
        pcre2_code_free(pre->code);
        free(pre);
    }
}

k1_pretok_run *k1_pretok_run_new(const k1_pretokenizer *pre, k1_err *err) {
    k1_pretok_run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        k1_fail(err, "tokenizer: no memory to match text");
        return NULL;
    }
    run->code = pre->code;
    run->match = pcre2_match_data_create(1, NULL);
    run->context = pcre2_match_context_create(NULL);
    if (run->match == NULL || run->context == NULL) {
        k1_fail(err, "tokenizer: no memory to match text");
        k1_pretok_run_free(run);
        return NULL;
    }
    pcre2_set_depth_limit(run->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(run->context, HEAP_LIMIT_KIB);
    return run;
}

void k1_pretok_run_free(k1_pretok_run *run) {
    if (run != NULL) {
        pcre2_match_data_free(run->match);
        pcre2_match_context_free(run->context);
        free(run);
    }
}

void k1_pretok_run_limit(k1_pretok_run *run, uint32_t match_limit) { pcre2_set_match_limit(run->context, match_limit); }

size_t k1_pretok_next(k1_pretok_run *run, const char *s, size_t n, k1_err *err) {
    /* Checking the rest of the text as UTF-8 at every piece would take quadratic time; the caller has checked it. */
    int found = pcre2_match(run->code, (PCRE2_SPTR)s, n, 0, PCRE2_NO_UTF_CHECK, run->match, run->context);
    if (found < 0) {
        fail_pcre2(found, "cutting the text into words failed", err);
        return 0;
    }
    return pcre2_get_ovector_pointer(run->match)[1];
}
