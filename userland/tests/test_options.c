/* Options: where values come from, and what a user is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "k1/options.h"
#include "support.h"

typedef struct values {
    char *model, *host, *config;
    uint32_t n_ctx;
    uint64_t seed;
    float temperature;
    bool verbose, seeded;
} values;

enum { MAX_WORDS = 16 };

typedef struct outcome {
    k1_options_result result;
    const char *operands[2];
    size_t n_operands;
    k1_err err;
} outcome;

static values v;

static const k1_option table[] = {
    {"model", 'm', K1_OPTION_TEXT, &v.model, NULL, 0, 0, "FILE", "the model", NULL},
    {"host", 0, K1_OPTION_TEXT, &v.host, "127.0.0.1", 0, 0, "ADDRESS", "where", NULL},
    {"n_ctx", 0, K1_OPTION_U32, &v.n_ctx, "2048", 8, 65536, "N", "context", NULL},
    {"seed", 0, K1_OPTION_U64, &v.seed, NULL, 0, 0, "N", "seed", &v.seeded},
    {"temperature", 't', K1_OPTION_FLOAT, &v.temperature, "0.5", 0, 2, "X", "heat", NULL},
    {"verbose", 'v', K1_OPTION_FLAG, &v.verbose, NULL, 0, 0, "", "say more", NULL},
    {"config", 0, K1_OPTION_TEXT, &v.config, NULL, 0, 0, "FILE", "file", NULL},
};
static const k1_options options = {"prog", "[options]", "Test.", table, sizeof table / sizeof *table, &v.config};

/* words: separated by blanks */
static outcome parse(const char *words) {
    outcome o = {.err = {""}};
    char *copy = strdup(words);
    char *argv[MAX_WORDS] = {"prog"};
    int argc = 1;
    assert_non_null(copy);
    for (char *word = strtok(copy, " "); word != NULL && argc < MAX_WORDS; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    v = (values){0};
    o.result = k1_options_parse(&options, argc, argv, o.operands, 2, &o.n_operands, &o.err);
    free(copy);
    return o;
}

static void expect_error(const char *words, const char *text) {
    outcome o = parse(words);
    assert_int_equal(o.result, K1_OPTIONS_ERROR);
    assert_string_equal(o.err.text, text);
    k1_options_free(&options);
}

static void values_come_from_fallbacks_and_the_command_line(void **state) {
    (void)state;
    assert_int_equal(parse("-m x.gguf --n-ctx=64 --verbose --seed 18446744073709551615").result, K1_OPTIONS_RUN);
    assert_string_equal(v.model, "x.gguf");
    assert_string_equal(v.host, "127.0.0.1");
    assert_int_equal(v.n_ctx, 64);
    assert_true(v.seed == UINT64_MAX);
    assert_true(v.seeded);
    assert_true(v.verbose);
    assert_true(v.temperature == 0.5F);
    k1_options_free(&options);
    assert_int_equal(parse("").result, K1_OPTIONS_RUN);
    assert_null(v.model);
    assert_false(v.seeded);
    assert_false(v.verbose);
    k1_options_free(&options);
}

static void words_without_dashes_are_operands(void **state) {
    (void)state;
    char *argv[] = {"prog", "one", "--", "--two"};
    const char *operands[2];
    size_t n = 0;
    k1_err err;
    assert_int_equal(k1_options_parse(&options, 4, argv, operands, 2, &n, &err), K1_OPTIONS_RUN);
    assert_int_equal(n, 2);
    assert_string_equal(operands[0], "one");
    assert_string_equal(operands[1], "--two");
    k1_options_free(&options);
    expect_error("a b c", "do not know what to do with \"c\"; see --help");
}

static void an_unknown_option_is_answered_with_the_nearest(void **state) {
    (void)state;
    expect_error("--modle x", "unknown option \"--modle\"; did you mean --model?");
    expect_error("--n_ctxt=3", "unknown option \"--n_ctxt\"; did you mean --n_ctx?");
    expect_error("--versoin", "unknown option \"--versoin\"; did you mean --version?");
    expect_error("--qqqqqqqqqq", "unknown option \"--qqqqqqqqqq\"; --help lists them");
    expect_error("-x", "unknown option \"-x\"; --help lists them");
    expect_error("-vv", "unknown option \"-vv\"; --help lists them");
}

static void a_wrong_value_is_named_with_its_range(void **state) {
    (void)state;
    expect_error("--n_ctx 7", "--n_ctx: 7 is outside 8 to 65536");
    expect_error("--n_ctx 99999999999999999999", "--n_ctx: 99999999999999999999 is outside 8 to 65536");
    expect_error("--n_ctx -5", "--n_ctx: \"-5\" is not a whole number");
    expect_error("--n_ctx 12x", "--n_ctx: \"12x\" is not a whole number");
    expect_error("--n_ctx=", "--n_ctx: \"\" is not a whole number");
    expect_error("--temperature nan", "--temperature: \"nan\" is not a number");
    expect_error("--temperature 2.5", "--temperature: 2.5 is outside 0 to 2");
    expect_error("--verbose=maybe", "--verbose: \"maybe\" is neither true nor false");
    expect_error("--model", "--model needs a value (FILE)");
}

/* Parse with --config of a file with this text; further words come after. */
static outcome parse_file(const char *text, const char *words, char *path, size_t capacity) {
    char all[512];
    k1t_write_file(path, capacity, text, strlen(text));
    snprintf(all, sizeof all, "--config %s %s", path, words);
    outcome o = parse(all);
    unlink(path);
    return o;
}

static void the_command_line_wins_over_the_file(void **state) {
    (void)state;
    char path[256];
    outcome o = parse_file("# board\n\n model = /data/a b.gguf \nn-ctx=512\nverbose = true\nhost = ::1\n", "--n_ctx 99",
                           path, sizeof path);
    assert_int_equal(o.result, K1_OPTIONS_RUN);
    assert_string_equal(v.model, "/data/a b.gguf");
    assert_string_equal(v.host, "::1");
    assert_int_equal(v.n_ctx, 99);
    assert_true(v.verbose);
    k1_options_free(&options);
}

static void faults_in_the_file_name_file_and_line(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"n_ctx = 9\nn_ctx = 1\n", ":2: n_ctx: 1 is outside 8 to 65536"},
        {"\nhots = x\n", ":2: unknown option \"hots\"; did you mean host?"},
        {"just words\n", ":1: expected \"name = value\", found \"just words\""},
        {"config = other\n", ":1: config belongs on the command line"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        char wanted[512];
        outcome o = parse_file(cases[i][0], "", path, sizeof path);
        snprintf(wanted, sizeof wanted, "%s%s", path, cases[i][1]);
        assert_int_equal(o.result, K1_OPTIONS_ERROR);
        assert_string_equal(o.err.text, wanted);
        k1_options_free(&options);
    }
    expect_error("--config /nonexistent/x", "cannot read /nonexistent/x: No such file or directory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_from_fallbacks_and_the_command_line),
        cmocka_unit_test(words_without_dashes_are_operands),
        cmocka_unit_test(an_unknown_option_is_answered_with_the_nearest),
        cmocka_unit_test(a_wrong_value_is_named_with_its_range),
        cmocka_unit_test(the_command_line_wins_over_the_file),
        cmocka_unit_test(faults_in_the_file_name_file_and_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
