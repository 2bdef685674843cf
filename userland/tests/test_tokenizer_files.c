/* What a vocabulary in a file says, and which error each kind of bad vocabulary gets. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tiny_vocab.h"

static const k1t_token two[] = {{"a", NORMAL, 0}, {"b", NORMAL, 0}};
static const char *const merge[] = {"a b"};

/* The vocabulary must be refused with an error that has both parts. */
static void refuse(k1t_gguf *file, const char *part, const char *other) {
    k1_err err = k1t_refused(file);
    if (strstr(err.text, part) == NULL || strstr(err.text, other) == NULL) {
        fail_msg("error has not \"%s\" and \"%s\": %s", part, other, err.text);
    }
}

static void kinds_that_are_not_known_name_the_known(void **state) {
    (void)state;
    k1t_gguf file = {0};
    k1t_str(&file, "general.architecture", "llama");
    refuse(&file, "tokenizer.ggml.model is missing", "convert");
    file = (k1t_gguf){0};
    k1t_str(&file, "tokenizer.ggml.model", "bert");
    refuse(&file, "tokenizer bert is not known", "gpt2 (byte-level BPE) and llama (SentencePiece)");
    file = (k1t_gguf){0};
    k1t_put_bpe(&file, "tekken");
    refuse(&file, "pre-tokenizer tekken is not known", "gpt-2, smollm, llama-bpe and qwen2");
}

static void missing_parts_are_named(void **state) {
    (void)state;
    static const char *const texts[] = {"a"};
    k1t_gguf file = {0};
    k1t_str(&file, "tokenizer.ggml.model", "gpt2");
    refuse(&file, "tokenizer.ggml.tokens", "missing");
    file = (k1t_gguf){0};
    k1t_str(&file, "tokenizer.ggml.model", "gpt2");
    k1t_strs(&file, "tokenizer.ggml.tokens", texts, 1);
    refuse(&file, "tokenizer.ggml.pre is missing", "convert");
    file = (k1t_gguf){0};
    k1t_put_vocab(&file, "gpt-2", two, 2, merge, 0);
    refuse(&file, "tokenizer.ggml.merges", "missing");
    file = (k1t_gguf){0};
    k1t_str(&file, "tokenizer.ggml.model", "llama");
    k1t_strs(&file, "tokenizer.ggml.tokens", texts, 1);
    refuse(&file, "tokenizer.ggml.scores", "0 scores for 1 tokens");
}

static void merges_must_be_pairs_of_tokens(void **state) {
    (void)state;
    static const char *const bad[] = {"ab", "", "a c", "c a", "a b", " ", "a "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        k1t_gguf file = {0};
        k1t_put_vocab(&file, "gpt-2", two, 2, &bad[i], 1);
        refuse(&file, "tokenizer.ggml.merges", "entry 0");
    }
}

static void arrays_must_have_one_entry_for_each_token(void **state) {
    (void)state;
    static const char *const texts[] = {"a", "b"};
    static const int32_t types[] = {1};
    k1t_gguf file = {0};
    k1t_str(&file, "tokenizer.ggml.model", "llama");
    k1t_strs(&file, "tokenizer.ggml.tokens", texts, 2);
    k1t_i32s(&file, "tokenizer.ggml.token_type", types, 1);
    refuse(&file, "tokenizer.ggml.token_type", "1 types for 2 tokens");
}

static void impossible_tokens_are_refused(void **state) {
    (void)state;
    static const k1t_token nan_score[] = {{"a", NORMAL, NAN}};
    static const k1t_token bad_byte[] = {{"<0xG0>", BYTE, 0}};
    char longest[65537];
    const k1t_token too_long[] = {{longest, NORMAL, 0}};
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    k1t_gguf file = {0};
    k1t_put_vocab(&file, NULL, nan_score, 1, NULL, 0);
    refuse(&file, "token 0", "not a number");
    file = (k1t_gguf){0};
    k1t_put_vocab(&file, NULL, bad_byte, 1, NULL, 0);
    refuse(&file, "token 0", "<0x0A>");
    file = (k1t_gguf){0};
    k1t_put_vocab(&file, NULL, too_long, 1, NULL, 0);
    refuse(&file, "token 0", "65536 bytes");
}

static void special_ids_must_be_in_the_vocabulary(void **state) {
    (void)state;
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
                                       "tokenizer.ggml.unknown_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        k1t_gguf file = {0};
        k1t_put_spm(&file);
        k1t_u32(&file, keys[i], 23);
        refuse(&file, keys[i], "token 23, but the vocabulary has 23");
    }
}

static void special_ids_come_from_the_file(void **state) {
    (void)state;
    k1t_gguf file = {0};
    k1t_put_bpe(&file, "gpt-2");
    k1t_u32(&file, "tokenizer.ggml.bos_token_id", 5);
    k1t_u32(&file, "tokenizer.ggml.eos_token_id", 6);
    k1t_u32(&file, "tokenizer.ggml.eot_token_id", 7);
    k1t_u32(&file, "tokenizer.ggml.eom_token_id", 8);
    k1t_vocab vocab = k1t_load(&file);
    assert_int_equal(k1_tokenizer_n_vocab(vocab.tokenizer), 25);
    assert_int_equal(k1_tokenizer_bos(vocab.tokenizer), 5);
    assert_int_equal(k1_tokenizer_eos(vocab.tokenizer), 6);
    for (int32_t id = -1; id < 26; id++) {
        /* <|end|> is token 0, and an end by its name. */
        assert_int_equal(k1_tokenizer_is_end(vocab.tokenizer, id), id == 0 || (id >= 6 && id <= 8));
    }
    k1t_unload(&vocab);
}

static void a_file_without_special_ids_has_none(void **state) {
    (void)state;
    k1t_gguf file = {0};
    k1t_put_vocab(&file, NULL, two, 2, NULL, 0);
    k1t_vocab vocab = k1t_load(&file);
    assert_int_equal(k1_tokenizer_bos(vocab.tokenizer), -1);
    assert_int_equal(k1_tokenizer_eos(vocab.tokenizer), -1);
    assert_false(k1_tokenizer_adds_bos(vocab.tokenizer));
    assert_false(k1_tokenizer_is_end(vocab.tokenizer, -1));
    k1t_unload(&vocab);
}

/* -1: the file does not say. */
static bool adds_bos(const char *pre, int said) {
    k1t_gguf file = {0};
    if (pre == NULL) {
        k1t_put_spm(&file);
    } else {
        k1t_put_bpe(&file, pre);
    }
    k1t_u32(&file, "tokenizer.ggml.bos_token_id", 1);
    if (said >= 0) {
        k1t_bool(&file, "tokenizer.ggml.add_bos_token", said > 0);
    }
    k1t_vocab vocab = k1t_load(&file);
    bool adds = k1_tokenizer_adds_bos(vocab.tokenizer);
    k1t_unload(&vocab);
    return adds;
}

static void bos_is_added_as_the_file_says_or_as_its_kind_was_trained(void **state) {
    (void)state;
    assert_true(adds_bos("gpt-2", 1));
    assert_false(adds_bos(NULL, 0));
    assert_true(adds_bos(NULL, -1));
    assert_true(adds_bos("llama-bpe", -1));
    assert_false(adds_bos("smollm", -1));
    assert_false(adds_bos("qwen2", -1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_that_are_not_known_name_the_known),
        cmocka_unit_test(missing_parts_are_named),
        cmocka_unit_test(merges_must_be_pairs_of_tokens),
        cmocka_unit_test(arrays_must_have_one_entry_for_each_token),
        cmocka_unit_test(impossible_tokens_are_refused),
        cmocka_unit_test(special_ids_must_be_in_the_vocabulary),
        cmocka_unit_test(special_ids_come_from_the_file),
        cmocka_unit_test(a_file_without_special_ids_has_none),
        cmocka_unit_test(bos_is_added_as_the_file_says_or_as_its_kind_was_trained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
