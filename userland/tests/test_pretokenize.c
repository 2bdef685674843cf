/* How each pre-tokenizer cuts text into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../engine/tokenizer_internal.h"

static void expect(k1_pre pre, const char *text, const char *wanted) {
    for (int jit = 0; jit < 2; jit++) {
        k1_err err = {""};
        k1_pretokenizer *tokenizer = k1_pretokenizer_new(pre, jit > 0, &err);
        assert_non_null(tokenizer);
        k1_pretok_run *run = k1_pretok_run_new(tokenizer, &err);
        assert_non_null(run);
        char got[256];
        size_t n = 0;
        for (const char *at = text; *at != '\0';) {
            size_t len = k1_pretok_next(run, at, strlen(at), &err);
            assert_int_not_equal(len, 0);
            n += (size_t)snprintf(got + n, sizeof got - n, "%s%.*s", n > 0 ? "|" : "", (int)len, at);
            at += len;
        }
        assert_string_equal(got, wanted);
        k1_pretok_run_free(run);
        k1_pretokenizer_free(tokenizer);
    }
}

static void gpt2(void **state) {
    (void)state;
    expect(K1_PRE_GPT2, "Hello world", "Hello| world");
    expect(K1_PRE_GPT2, "we'll  I'M", "we|'ll| | I|'|M");
    expect(K1_PRE_GPT2, "x2024 12", "x|2024| 12");
    expect(K1_PRE_GPT2, "a\n\n b  ", "a|\n\n| b|  ");
    expect(K1_PRE_GPT2, "  1", " | 1");
    expect(K1_PRE_GPT2, "日本語、です", "日本語|、|です");
}

static void smollm(void **state) {
    (void)state;
    expect(K1_PRE_SMOLLM, "x2024 12", "x|2|0|2|4| |1|2");
    expect(K1_PRE_SMOLLM, "a   1", "a|   |1");
    expect(K1_PRE_SMOLLM, "a   b", "a|  | b");
    expect(K1_PRE_SMOLLM, "it's ½", "it|'s| |½");
}

static void llama_bpe(void **state) {
    (void)state;
    expect(K1_PRE_LLAMA_BPE, "x2024 12", "x|202|4| |12");
    expect(K1_PRE_LLAMA_BPE, "I'LL \"say\"", "I|'LL| \"|say|\"");
    expect(K1_PRE_LLAMA_BPE, "a, b!\r\n\r\nc", "a|,| b|!\r\n\r\n|c");
    expect(K1_PRE_LLAMA_BPE, " \n \tb", " \n| |\tb");
    expect(K1_PRE_LLAMA_BPE, "(foo", "(foo");
}

static void qwen2(void **state) {
    (void)state;
    expect(K1_PRE_QWEN2, "x2024 12", "x|2|0|2|4| |1|2");
    expect(K1_PRE_QWEN2, "we'Re a\n\n\nb", "we|'Re| a|\n\n\n|b");
}

static void white_space_is_as_unicode_has_it(void **state) {
    (void)state;
    /* U+0085 and U+3000 are, U+180E and U+200B are not. */
    expect(K1_PRE_GPT2, "a\xC2\x85\xE3\x80\x80", "a|\xC2\x85\xE3\x80\x80");
    expect(K1_PRE_GPT2, " \xE1\xA0\x8E\xE2\x80\x8B", " \xE1\xA0\x8E\xE2\x80\x8B");
}

static void a_limit_is_an_error(void **state) {
    (void)state;
    static const char text[] = "                                                  a";
    k1_err err = {""};
    k1_pretokenizer *tokenizer = k1_pretokenizer_new(K1_PRE_QWEN2, false, &err);
    assert_non_null(tokenizer);
    k1_pretok_run *run = k1_pretok_run_new(tokenizer, &err);
    assert_non_null(run);
    k1_pretok_run_limit(run, 5);
    assert_int_equal(k1_pretok_next(run, text, strlen(text), &err), 0);
    assert_non_null(strstr(err.text, "match limit exceeded"));
    k1_pretok_run_limit(run, 500);
    assert_int_equal(k1_pretok_next(run, text, strlen(text), &err), 49);
    k1_pretok_run_free(run);
    k1_pretokenizer_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2),
        cmocka_unit_test(smollm),
        cmocka_unit_test(llama_bpe),
        cmocka_unit_test(qwen2),
        cmocka_unit_test(white_space_is_as_unicode_has_it),
        cmocka_unit_test(a_limit_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
