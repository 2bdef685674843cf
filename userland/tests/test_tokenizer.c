/* What texts become, with vocabularies small enough to work it out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tiny_vocab.h"

static k1t_vocab load_bpe(const char *pre) {
    k1t_gguf file = {0};
    k1t_put_bpe(&file, pre);
    return k1t_load(&file);
}

static k1t_vocab load_spm(void) {
    k1t_gguf file = {0};
    k1t_put_spm(&file);
    return k1t_load(&file);
}

static void expect_bytes(const k1t_vocab *vocab, const char *text, size_t len, bool special, const char *wanted) {
    char *ids = k1t_ids(vocab->tokenizer, text, len, special);
    assert_string_equal(ids, wanted);
    free(ids);
}

static void expect(const k1t_vocab *vocab, const char *text, const char *wanted) {
    expect_bytes(vocab, text, strlen(text), true, wanted);
}

static void expect_plain(const k1t_vocab *vocab, const char *text, const char *wanted) {
    expect_bytes(vocab, text, strlen(text), false, wanted);
}

/* ---- byte-level BPE */

static void merges_go_by_rank_then_from_the_left(void **state) {
    (void)state;
    k1t_vocab vocab = load_bpe("gpt-2");
    expect(&vocab, "", "");
    expect(&vocab, "ab", "6");
    expect(&vocab, "abc", "8");
    expect(&vocab, "aaa", "11 3");
    expect(&vocab, "aaaaa", "12 3");
    expect(&vocab, "aab", "3 6");
    expect(&vocab, "a aab abc", "3 10 6 9 8");
    expect(&vocab, "é", "21");
    k1t_unload(&vocab);
}

static void only_llama3_takes_whole_words_past_the_merges(void **state) {
    (void)state;
    static const char *const others[] = {"gpt-2", "smollm", "qwen2"};
    static const char *const llama3[] = {"llama-bpe", "llama3", "llama-v3"};
    for (size_t i = 0; i < 3; i++) {
        k1t_vocab vocab = load_bpe(others[i]);
        expect_plain(&vocab, "cab", "5 6");
        k1t_unload(&vocab);
        vocab = load_bpe(llama3[i]);
        expect_plain(&vocab, "cab", "23");
        expect_plain(&vocab, "cabc", "5 8");
        k1t_unload(&vocab);
    }
}

static void bytes_that_are_not_utf8_stand_alone(void **state) {
    (void)state;
    k1t_vocab vocab = load_bpe("gpt-2");
    expect(&vocab,
           "ab\xFF\xFF"
           "c",
           "6 13 13 5");
    expect(&vocab, "a\xC3", "3 19");
    expect(&vocab, "\xC3\xC3\xA9\xA9", "19 21 20");
    expect(&vocab,
           " \xFF"
           "a",
           "9 13 3");
    k1t_unload(&vocab);
}

static void bytes_without_a_token_are_left_out(void **state) {
    (void)state;
    k1t_vocab vocab = load_bpe("gpt-2");
    expect(&vocab, "?", "");
    expect(&vocab, "xbxcx", "7");
    expect_bytes(&vocab, "a\0b", 3, true, "3 4");
    k1t_unload(&vocab);
}

static void added_tokens_come_first_and_the_longest_wins(void **state) {
    (void)state;
    k1t_vocab vocab = load_bpe("gpt-2");
    expect(&vocab, "<tool", "1");
    expect_plain(&vocab, "<tool_cal", "1 5 3");
    expect(&vocab, "<tool_call>", "2");
    expect(&vocab, "a<tool_call><tool><too", "3 2 1 17 18 18");
    expect(&vocab, "<<tool>b", "17 1 4");
    expect(&vocab, "<too", "17 18 18");
    k1t_unload(&vocab);
}

static void control_tokens_are_text_unless_asked_for(void **state) {
    (void)state;
    k1t_vocab vocab = load_bpe("gpt-2");
    expect(&vocab, "a<|end|>a", "3 0 3");
    expect_plain(&vocab, "a<|end|>a", "3 17 3");
    expect_plain(&vocab, "<tool", "1");
    k1t_unload(&vocab);
}

static void merges_make_no_control_tokens(void **state) {
    (void)state;
    static const char *const pres[] = {"gpt-2", "llama-bpe"};
    for (size_t i = 0; i < 2; i++) {
        k1t_vocab vocab = load_bpe(pres[i]);
        expect_plain(&vocab, "ca", "5 3");
        k1t_unload(&vocab);
    }
}

static void of_tokens_with_one_text_the_first_that_is_text_counts(void **state) {
    (void)state;
    static const k1t_token tokens[] = {{"a", CONTROL, 0}, {"a", NORMAL, 0},  {"b", NORMAL, 0},
                                       {"ab", NORMAL, 0}, {"ab", NORMAL, 0}, {"a", NORMAL, 0}};
    static const char *const merges[] = {"a b"};
    k1t_gguf file = {0};
    k1t_put_vocab(&file, "llama-bpe", tokens, 6, merges, 1);
    k1t_vocab vocab = k1t_load(&file);
    expect_plain(&vocab, "a ab", "1 3");
    expect(&vocab, "b", "2");
    k1t_unload(&vocab);
}

static void tokens_are_appended(void **state) {
    (void)state;
    k1t_vocab vocab = load_bpe("gpt-2");
    k1_tokens tokens = {0};
    assert_int_equal(k1_tokenizer_encode(vocab.tokenizer, "ab", 2, true, &tokens, NULL), 0);
    assert_int_equal(k1_tokenizer_encode(vocab.tokenizer, "c", 1, true, &tokens, NULL), 0);
    assert_int_equal(tokens.n, 2);
    assert_int_equal(tokens.ids[0], 6);
    assert_int_equal(tokens.ids[1], 5);
    free(tokens.ids);
    k1t_unload(&vocab);
}

static void a_text_beyond_all_measure_is_refused(void **state) {
    (void)state;
    k1t_vocab vocab = load_bpe("gpt-2");
    k1_tokens tokens = {0};
    k1_err err = {""};
    assert_int_equal(k1_tokenizer_encode(vocab.tokenizer, "a", (size_t)1 << 30, true, &tokens, &err), -1);
    assert_non_null(strstr(err.text, "268435456"));
    assert_int_equal(tokens.n, 0);
    k1t_unload(&vocab);
}

/* ---- SentencePiece */

static void the_best_score_merges_first(void **state) {
    (void)state;
    k1t_vocab vocab = load_spm();
    expect(&vocab, "", "");
    expect(&vocab, "abc", "9 16");
    expect(&vocab, "a", "15");
    expect(&vocab, " a", "9 15");
    expect(&vocab, "bab", "9 11 13");
    expect(&vocab, "baaab", "9 11 17 13");
    expect(&vocab, "baaa", "9 11 17 10");
    k1t_unload(&vocab);
}

static void what_is_no_token_is_bytes_or_unknown(void **state) {
    (void)state;
    k1t_vocab vocab = load_spm();
    expect(&vocab, "A\n\xF0\x9F\x98\x80", "9 3 4 5 6 7 8");
    expect(&vocab, "\xF0", "9 5");
    expect(&vocab, "b??b?", "9 11 0 11 0");
    expect(&vocab, "é\xC3", "9 21 0");
    k1t_unload(&vocab);
}

static void text_that_looks_like_a_token_stays_text(void **state) {
    (void)state;
    k1t_vocab vocab = load_spm();
    expect(&vocab, "<0x41>", "9 0");
    expect(&vocab, "[PAD]", "9 0 3 0");
    expect(&vocab, "ba", "9 11 10");
    expect_plain(&vocab, "</s>", "9 0");
    expect(&vocab, "</s>", "2");
    k1t_unload(&vocab);
}

static void the_space_prefix_stands_at_the_beginning_and_after_control_tokens(void **state) {
    (void)state;
    k1t_vocab vocab = load_spm();
    expect(&vocab, "<s>a</s>a", "1 15 2 15");
    expect(&vocab, "a<tool>a", "15 19 10");
    expect(&vocab, "<tool>a", "9 19 10");
    k1t_unload(&vocab);
    k1t_gguf file = {0};
    k1t_put_spm(&file);
    k1t_bool(&file, "tokenizer.ggml.add_space_prefix", false);
    vocab = k1t_load(&file);
    expect(&vocab, "a a", "10 15");
    k1t_unload(&vocab);
}

/* ---- both */

static double encode_seconds(const k1t_vocab *vocab, const char *text, size_t len, size_t wanted) {
    k1_tokens tokens = {0};
    clock_t begin = clock();
    assert_int_equal(k1_tokenizer_encode(vocab->tokenizer, text, len, true, &tokens, NULL), 0);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    assert_int_equal(tokens.n, wanted);
    free(tokens.ids);
    return seconds;
}

/* Linear but for a logarithm: 16 times the text may not take 64 times the time, and 131072 letters not a second. The
 * second is the machine's, not an emulator's. */
static void long_words_take_no_quadratic_time(void **state) {
    (void)state;
    enum { LONG = 131072, SHORT = LONG / 16 };
    k1t_vocab bpe = load_bpe("gpt-2");
    k1t_vocab spm = load_spm();
    char *text = malloc(LONG);
    assert_non_null(text);
    memset(text, 'Z', LONG);
    double small = encode_seconds(&bpe, text, SHORT, SHORT / 4);
    double large = encode_seconds(&bpe, text, LONG, LONG / 4);
    assert_true(large < 1 || large < 64 * small);
    memset(text, 'a', LONG);
    small = encode_seconds(&spm, text, SHORT, SHORT / 4 + 2);
    large = encode_seconds(&spm, text, LONG, LONG / 4 + 2);
    assert_true(large < 1 || large < 64 * small);
    free(text);
    k1t_unload(&bpe);
    k1t_unload(&spm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_go_by_rank_then_from_the_left),
        cmocka_unit_test(only_llama3_takes_whole_words_past_the_merges),
        cmocka_unit_test(bytes_that_are_not_utf8_stand_alone),
        cmocka_unit_test(bytes_without_a_token_are_left_out),
        cmocka_unit_test(added_tokens_come_first_and_the_longest_wins),
        cmocka_unit_test(control_tokens_are_text_unless_asked_for),
        cmocka_unit_test(merges_make_no_control_tokens),
        cmocka_unit_test(of_tokens_with_one_text_the_first_that_is_text_counts),
        cmocka_unit_test(tokens_are_appended),
        cmocka_unit_test(a_text_beyond_all_measure_is_refused),
        cmocka_unit_test(the_best_score_merges_first),
        cmocka_unit_test(what_is_no_token_is_bytes_or_unknown),
        cmocka_unit_test(text_that_looks_like_a_token_stays_text),
        cmocka_unit_test(the_space_prefix_stands_at_the_beginning_and_after_control_tokens),
        cmocka_unit_test(long_words_take_no_quadratic_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
