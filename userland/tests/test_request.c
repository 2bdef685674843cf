/* One completion, fed by hand: what it asks the engine to run, what becomes visible, and when it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "k1/request.h"
#include "tiny_vocab.h"

enum { A = 3, B = 4, C = 5, BYTE_C3 = 19, BYTE_A9 = 20, END = 0, BOS = 1, N_CTX = 16 };

/* A request on the tiny BPE vocabulary, and the text it has shown. */
typedef struct fixture {
    k1t_vocab vocab;
    k1_request_params params;
    k1_request request;
    k1_text out;
} fixture;

/* Takes the file. */
static void open_file(fixture *f, k1t_gguf *file, const char *prompt, uint32_t max_tokens) {
    memset(f, 0, sizeof *f);
    k1t_put_bpe(file, "gpt-2");
    k1t_u32(file, "tokenizer.ggml.eos_token_id", END);
    f->vocab = k1t_load(file);
    f->params = (k1_request_params){.prompt = strdup(prompt), .prompt_len = strlen(prompt), .max_tokens = max_tokens};
    f->params.sampling = k1_sampling_default;
}

static void open_fixture(fixture *f, const char *prompt, uint32_t max_tokens) {
    k1t_gguf file = {0};
    open_file(f, &file, prompt, max_tokens);
}

static void open_bos_fixture(fixture *f, const char *prompt, bool adds) {
    k1t_gguf file = {0};
    k1t_u32(&file, "tokenizer.ggml.bos_token_id", BOS);
    k1t_bool(&file, "tokenizer.ggml.add_bos_token", adds);
    open_file(f, &file, prompt, 4);
}

static void begin(fixture *f) {
    k1_err err = {""};
    if (k1_request_begin(&f->request, f->vocab.tokenizer, &f->params, N_CTX, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static void expect_refused(fixture *f, const char *message) {
    k1_err err = {""};
    assert_int_equal(k1_request_begin(&f->request, f->vocab.tokenizer, &f->params, N_CTX, &err), -1);
    assert_string_equal(err.text, message);
}

static void close_fixture(fixture *f) {
    k1_request_end(&f->request);
    k1_request_params_free(&f->params);
    k1t_unload(&f->vocab);
    free(f->out.data);
}

/* Run all that is to be run, then take a token. */
static void answer(fixture *f, int32_t token) {
    const int32_t *ids;
    bool last;
    k1_err err;
    k1_request_fed(&f->request, k1_request_feed(&f->request, SIZE_MAX, &ids, &last));
    assert_true(last);
    assert_int_equal(k1_request_accept(&f->request, token, &f->out, &err), 0);
}

static void expect_text(const fixture *f, const char *text) {
    assert_int_equal(f->out.n, strlen(text));
    if (f->out.n > 0) {
        assert_memory_equal(f->out.data, text, f->out.n);
    }
}

static void a_prompt_is_run_in_batches_and_the_last_wants_logits(void **state) {
    (void)state;
    fixture f;
    const int32_t *ids;
    bool last;
    open_fixture(&f, "1a1a1", 4); /* 22 3 22 3 22 */
    begin(&f);
    assert_int_equal(f.request.n_prompt, 5);
    assert_int_equal(k1_request_feed(&f.request, 3, &ids, &last), 3);
    assert_int_equal(ids[0], 22);
    assert_false(last);
    k1_request_fed(&f.request, 3);
    assert_int_equal(k1_request_feed(&f.request, 3, &ids, &last), 2);
    assert_int_equal(ids[0], A);
    assert_true(last);
    answer(&f, B);
    assert_int_equal(k1_request_feed(&f.request, 3, &ids, &last), 1);
    assert_int_equal(ids[0], B);
    assert_true(last);
    close_fixture(&f);
}

static void the_model_s_end_stops_it(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "a", 8);
    begin(&f);
    answer(&f, B);
    assert_int_equal(f.request.finish, K1_FINISH_NONE);
    answer(&f, END);
    assert_int_equal(f.request.finish, K1_FINISH_STOP);
    expect_text(&f, "b");
    const int32_t *ids;
    bool last;
    assert_int_equal(k1_request_feed(&f.request, 8, &ids, &last), 0);
    close_fixture(&f);
}

static void max_tokens_and_the_context_end_it(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "a", 2);
    begin(&f);
    answer(&f, B);
    answer(&f, C);
    assert_int_equal(f.request.finish, K1_FINISH_LENGTH);
    assert_int_equal(k1_request_n_generated(&f.request), 2);
    close_fixture(&f);

    open_fixture(&f, "a", 1000);
    begin(&f);
    while (f.request.finish == K1_FINISH_NONE) {
        answer(&f, B);
    }
    assert_int_equal(f.request.finish, K1_FINISH_LENGTH);
    assert_int_equal(f.request.tokens.n, N_CTX);
    close_fixture(&f);
}

static void no_tokens_wanted_only_runs_the_prompt(void **state) {
    (void)state;
    fixture f;
    const int32_t *ids;
    bool last;
    open_fixture(&f, "a", 0);
    begin(&f);
    k1_request_fed(&f.request, k1_request_feed(&f.request, 8, &ids, &last));
    assert_false(last);
    assert_int_equal(f.request.finish, K1_FINISH_LENGTH);
    assert_true(k1_request_predicted_ms(&f.request) == 0.0);
    close_fixture(&f);
}

static void a_stop_string_may_span_tokens(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "a", 8);
    assert_true(k1_stops_add(&f.params.stops, "bc", 2));
    begin(&f);
    answer(&f, A);
    answer(&f, B);
    expect_text(&f, "a");
    answer(&f, C);
    assert_int_equal(f.request.finish, K1_FINISH_STOP);
    expect_text(&f, "a");
    close_fixture(&f);
}

static void what_was_held_back_comes_at_the_end(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "a", 2);
    assert_true(k1_stops_add(&f.params.stops, "bc", 2));
    begin(&f);
    answer(&f, A);
    answer(&f, B);
    assert_int_equal(f.request.finish, K1_FINISH_LENGTH);
    expect_text(&f, "ab");
    close_fixture(&f);
}

static void half_a_character_is_never_shown(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "a", 3);
    begin(&f);
    answer(&f, BYTE_C3);
    expect_text(&f, "");
    answer(&f, BYTE_A9);
    expect_text(&f, "\xc3\xa9");
    answer(&f, BYTE_C3);
    assert_int_equal(f.request.finish, K1_FINISH_LENGTH);
    expect_text(&f, "\xc3\xa9\xef\xbf\xbd");
    close_fixture(&f);
}

static void the_file_says_whether_bos_leads_and_an_empty_prompt_has_nothing_else(void **state) {
    (void)state;
    for (int adds = 0; adds <= 1; adds++) {
        for (int empty = 0; empty <= 1; empty++) {
            fixture f;
            open_bos_fixture(&f, empty ? "" : "a", adds);
            begin(&f);
            bool leads = adds || empty;
            assert_int_equal(f.request.n_prompt, leads + !empty);
            assert_int_equal(f.request.tokens.ids[0], leads ? BOS : A);
            close_fixture(&f);
        }
    }
}

static void a_prompt_that_cannot_be_run_is_refused(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "", 8);
    expect_refused(&f, "prompt: has no tokens; write at least one word");
    close_fixture(&f);

    open_fixture(&f, "1a1a1a1a1a1a1a1a", 8);
    expect_refused(&f, "prompt: has 16 tokens, but n_ctx is 16 and one must be left; shorten it, or start with a "
                       "larger --n_ctx");
    close_fixture(&f);

    open_fixture(&f, "", 8);
    f.params.ids = (k1_tokens){malloc(sizeof(int32_t)), 1, 1};
    f.params.ids.ids[0] = (int32_t)k1_tokenizer_n_vocab(f.vocab.tokenizer);
    char message[128];
    snprintf(message, sizeof message, "prompt: token id %d is outside the vocabulary of %d", f.params.ids.ids[0],
             f.params.ids.ids[0]);
    expect_refused(&f, message);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_run_in_batches_and_the_last_wants_logits),
        cmocka_unit_test(the_model_s_end_stops_it),
        cmocka_unit_test(max_tokens_and_the_context_end_it),
        cmocka_unit_test(no_tokens_wanted_only_runs_the_prompt),
        cmocka_unit_test(a_stop_string_may_span_tokens),
        cmocka_unit_test(what_was_held_back_comes_at_the_end),
        cmocka_unit_test(half_a_character_is_never_shown),
        cmocka_unit_test(the_file_says_whether_bos_leads_and_an_empty_prompt_has_nothing_else),
        cmocka_unit_test(a_prompt_that_cannot_be_run_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
