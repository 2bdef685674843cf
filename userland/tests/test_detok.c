/* Tokens to text as they come: whole characters only, whatever the tokens are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../engine/tokenizer_internal.h"
#include "k1/utf8.h"
#include "tiny_vocab.h"

#define FFFD "\xEF\xBF\xBD"

/* Feed tokens until -1; the pieces with '|' after each, and what the end adds. */
static void expect(const k1t_vocab *vocab, bool special, bool started, const int32_t *tokens, const char *wanted) {
    size_t capacity = k1_detok_capacity(vocab->tokenizer);
    char *piece = malloc(capacity);
    char got[256];
    size_t n = 0;
    k1_detok state = {.started = started};
    assert_non_null(piece);
    for (; *tokens >= 0; tokens++) {
        ptrdiff_t len = k1_detok_next(vocab->tokenizer, &state, *tokens, special, piece, capacity);
        assert_true(len >= 0);
        n += (size_t)snprintf(got + n, sizeof got - n, "%.*s|", (int)len, piece);
    }
    ptrdiff_t len = k1_detok_end(&state, piece, capacity);
    assert_true(len >= 0);
    (void)snprintf(got + n, sizeof got - n, "%.*s", (int)len, piece);
    assert_string_equal(got, wanted);
    free(piece);
}

#define TOKENS(...) ((const int32_t[]){__VA_ARGS__, -1})

static k1t_vocab load_spm(void) {
    k1t_gguf file = {0};
    k1t_put_spm(&file);
    return k1t_load(&file);
}

static k1t_vocab load_bpe(void) {
    k1t_gguf file = {0};
    k1t_put_bpe(&file, "gpt-2");
    return k1t_load(&file);
}

static void a_character_comes_when_its_last_byte_has(void **state) {
    (void)state;
    k1t_vocab spm = load_spm();
    expect(&spm, false, true, TOKENS(5, 6, 7, 8, 10), "|||\xF0\x9F\x98\x80|a|");
    k1t_unload(&spm);
    k1t_vocab bpe = load_bpe();
    expect(&bpe, false, false, TOKENS(19, 20, 10, 21), "|é| a|é|");
    k1t_unload(&bpe);
}

static void bytes_that_cannot_become_a_character_are_replaced(void **state) {
    (void)state;
    k1t_vocab spm = load_spm();
    expect(&spm, false, true, TOKENS(5, 10), "|" FFFD "a|");
    expect(&spm, false, true, TOKENS(5, 6, 5, 6, 7, 8), "||" FFFD "|||\xF0\x9F\x98\x80|");
    expect(&spm, false, true, TOKENS(8, 8), FFFD "|" FFFD "|");
    expect(&spm, false, true, TOKENS(5, 6, 7), "|||" FFFD);
    k1t_unload(&spm);
    k1t_vocab bpe = load_bpe();
    expect(&bpe, false, false, TOKENS(13, 19, 3), FFFD "||" FFFD "a|");
    k1t_unload(&bpe);
}

static void control_tokens_show_only_when_asked_for(void **state) {
    (void)state;
    k1t_vocab spm = load_spm();
    expect(&spm, false, true, TOKENS(10, 2, 0, 20, 10), "a||||a|");
    expect(&spm, true, true, TOKENS(10, 2, 0, 20, 10), "a|</s>|<unk>|[PAD]|a|");
    k1t_unload(&spm);
    k1t_vocab bpe = load_bpe();
    expect(&bpe, false, false, TOKENS(0, 1, 2), "|<tool|<tool_call>|");
    expect(&bpe, true, false, TOKENS(0), "<|end|>|");
    k1t_unload(&bpe);
}

static void the_space_prefix_is_taken_off_where_encoding_put_it(void **state) {
    (void)state;
    k1t_vocab spm = load_spm();
    expect(&spm, false, false, TOKENS(15, 15), "a| a|");
    expect(&spm, false, false, TOKENS(9, 15, 9), "| a| |");
    expect(&spm, false, false, TOKENS(9, 19, 10), "|<tool>|a|");
    expect(&spm, true, false, TOKENS(1, 15, 2, 15), "<s>|a|</s>|a|");
    /* A text that goes on keeps its space. */
    expect(&spm, false, true, TOKENS(15), " a|");
    k1t_unload(&spm);
}

static void tokens_outside_the_vocabulary_show_nothing(void **state) {
    (void)state;
    k1t_vocab bpe = load_bpe();
    k1_detok detok = {0};
    char piece[8];
    assert_int_equal(k1_detok_next(bpe.tokenizer, &detok, 25, true, piece, sizeof piece), 0);
    assert_int_equal(k1_detok_next(bpe.tokenizer, &detok, -1, true, piece, sizeof piece), 0);
    k1t_unload(&bpe);
}

static void too_little_room_changes_nothing(void **state) {
    (void)state;
    k1t_vocab bpe = load_bpe();
    k1_detok detok = {0};
    char piece[8];
    assert_int_equal(k1_detok_next(bpe.tokenizer, &detok, 19, false, piece, 0), 0);
    assert_int_equal(k1_detok_next(bpe.tokenizer, &detok, 20, false, piece, 1), -1);
    assert_int_equal(k1_detok_next(bpe.tokenizer, &detok, 20, false, piece, 2), 2);
    assert_memory_equal(piece, "é", 2);
    assert_int_equal(k1_detok_next(bpe.tokenizer, &detok, 19, false, piece, 0), 0);
    assert_int_equal(k1_detok_end(&detok, piece, 2), -1);
    assert_int_equal(k1_detok_end(&detok, piece, 3), 3);
    assert_int_equal(k1_detok_end(&detok, piece, 3), 0);
    k1t_unload(&bpe);
}

static void utf8_is_valid_cut_or_broken(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int len;
        uint32_t cp;
    } cases[] = {
        {"a", 1, 0x61},
        {"\x7F", 1, 0x7F},
        {"\xC2\x80", 2, 0x80},
        {"\xDF\xBF", 2, 0x7FF},
        {"\xE0\xA0\x80", 3, 0x800},
        {"\xED\x9F\xBF", 3, 0xD7FF},
        {"\xEE\x80\x80", 3, 0xE000},
        {"\xEF\xBF\xBF", 3, 0xFFFF},
        {"\xF0\x90\x80\x80", 4, 0x10000},
        {"\xF4\x8F\xBF\xBF", 4, 0x10FFFF},
        {"\xC3", 0, 0},
        {"\xE2\x82", 0, 0},
        {"\xF0\x9F\x98", 0, 0},
        {"\x80", -1, 0},
        {"\xC0\x80", -1, 0},         /* overlong */
        {"\xE0\x9F\x80", -1, 0},     /* overlong */
        {"\xF0\x8F\x80\x80", -1, 0}, /* overlong */
        {"\xED\xA0\x80", -1, 0},     /* surrogate */
        {"\xF4\x90\x80\x80", -1, 0}, /* beyond U+10FFFF */
        {"\xF5\x80", -1, 0},
        {"\xC3"
         "a",
         -1, 0},
        {"\xE2\x82"
         "a",
         -2, 0},
        {"\xF0\x9F\x98"
         "a",
         -3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t cp = 0;
        assert_int_equal(k1_utf8_next((const uint8_t *)cases[i].text, strlen(cases[i].text), &cp), cases[i].len);
        assert_int_equal(cp, cases[i].cp);
    }
}

static void each_byte_has_a_character_of_its_own(void **state) {
    (void)state;
    /* The first and last bytes that stand for themselves, and the ends of the others. */
    static const char *const known[256] = {[0x00] = "Ā", [0x20] = "Ġ", [0x21] = "!", [0x7E] = "~", [0x7F] = "ġ",
                                           [0xA0] = "ł", [0xA1] = "¡", [0xAC] = "¬", [0xAD] = "Ń", [0xFF] = "ÿ"};
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[3] = {0};
        size_t len = k1_bpe_spell((uint8_t)byte, text);
        if (known[byte] != NULL) {
            assert_string_equal(text, known[byte]);
        }
        size_t at = 0;
        assert_true(k1_bpe_is_spelled((k1_str){text, len}));
        assert_int_equal(k1_bpe_take((k1_str){text, len}, &at), byte);
        assert_int_equal(at, len);
    }
    assert_false(k1_bpe_is_spelled((k1_str){"a b", 3}));
    assert_false(k1_bpe_is_spelled((k1_str){"\xC2\xAD", 2}));
    assert_false(k1_bpe_is_spelled((k1_str){"日", 3}));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_comes_when_its_last_byte_has),
        cmocka_unit_test(bytes_that_cannot_become_a_character_are_replaced),
        cmocka_unit_test(control_tokens_show_only_when_asked_for),
        cmocka_unit_test(the_space_prefix_is_taken_off_where_encoding_put_it),
        cmocka_unit_test(tokens_outside_the_vocabulary_show_nothing),
        cmocka_unit_test(too_little_room_changes_nothing),
        cmocka_unit_test(each_byte_has_a_character_of_its_own),
        cmocka_unit_test(utf8_is_valid_cut_or_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
