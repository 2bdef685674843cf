/* Request bodies: what is taken from them, and what a client is told about a bad one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "api.h"

enum { N_CTX = 8 };

static k1_completion accept_body(const char *body) {
    k1_completion c;
    k1_api_error error = {.message = ""};
    if (k1_api_completion(body, strlen(body), N_CTX, &c, &error) != 0) {
        fail_msg("%s: %s", body, error.message);
    }
    return c;
}

static void refuse_bytes(const char *body, size_t n, const char *field, const char *message) {
    k1_completion c;
    k1_api_error error;
    assert_int_equal(k1_api_completion(body, n, N_CTX, &c, &error), -1);
    assert_int_equal(error.status, 400);
    assert_string_equal(error.field, field);
    if (message != NULL) {
        assert_string_equal(error.message, message);
    }
    k1_request_params_free(&c.params);
}

static void refuse(const char *body, const char *field, const char *message) {
    refuse_bytes(body, strlen(body), field, message);
}

static void all_fields_are_read(void **state) {
    (void)state;
    k1_completion c =
        accept_body("{\"prompt\":\"h\\u00e9\\u0000x\",\"max_tokens\":7,\"temperature\":0.25,\"top_p\":0.5,"
                    "\"top_k\":3,\"min_p\":0.125,\"repeat_penalty\":1.5,\"seed\":-2,\"stop\":[\"a\",\"b\"],"
                    "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"model\":\"m\",\"user\":1}");
    assert_int_equal(c.params.prompt_len, 5);
    assert_memory_equal(c.params.prompt, "h\xc3\xa9\0x", 5);
    assert_int_equal(c.params.ids.n, 0);
    assert_int_equal(c.params.max_tokens, 7);
    assert_true(c.params.sampling.temperature == 0.25F && c.params.sampling.top_p == 0.5F);
    assert_true(c.params.sampling.min_p == 0.125F && c.params.sampling.repeat_penalty == 1.5F);
    assert_int_equal(c.params.sampling.top_k, 3);
    assert_true(c.params.sampling.seed == UINT64_MAX - 1);
    assert_int_equal(c.params.stops.n, 2);
    assert_true(c.stream && c.include_usage);
    assert_string_equal(c.model, "m");
    k1_request_params_free(&c.params);
}

static void what_is_left_out_or_null_has_its_usual_value(void **state) {
    (void)state;
    k1_completion c = accept_body("{\"prompt\":[\"p\"],\"max_tokens\":null,\"stop\":null,\"n\":1,\"logprobs\":null,"
                                  "\"echo\":false,\"logit_bias\":{},\"presence_penalty\":0.0}");
    assert_string_equal(c.params.prompt, "p");
    assert_int_equal(c.params.max_tokens, 16);
    assert_true(c.params.sampling.temperature == k1_sampling_default.temperature);
    assert_false(c.stream);
    k1_request_params_free(&c.params);
}

static void without_a_seed_each_request_gets_its_own(void **state) {
    (void)state;
    k1_completion a = accept_body("{\"prompt\":\"p\"}");
    k1_completion b = accept_body("{\"prompt\":\"p\"}");
    assert_true(a.params.sampling.seed != b.params.sampling.seed);
    k1_request_params_free(&a.params);
    k1_request_params_free(&b.params);
}

static void token_ids_are_a_prompt_too(void **state) {
    (void)state;
    k1_completion c = accept_body("{\"prompt\":[5,0,2147483647]}");
    assert_int_equal(c.params.ids.n, 3);
    assert_int_equal(c.params.ids.ids[2], 2147483647);
    k1_request_params_free(&c.params);
}

static void an_array_of_one_prompt_is_that_prompt(void **state) {
    (void)state;
    k1_completion c = accept_body("{\"prompt\":[[1,2,3]]}");
    assert_int_equal(c.params.ids.n, 3);
    assert_int_equal(c.params.ids.ids[2], 3);
    k1_request_params_free(&c.params);
    c = accept_body("{\"prompt\":[\"text\"]}");
    assert_string_equal(c.params.prompt, "text");
    k1_request_params_free(&c.params);
    refuse("{\"prompt\":[[1],[2]]}", "prompt", "prompt: only one prompt in a request; send one request for each");
    refuse("{\"prompt\":[[1],\"a\"]}", "prompt", "prompt: only one prompt in a request; send one request for each");
    refuse("{\"prompt\":[[]]}", "prompt",
           "prompt: must be a string, an array of token ids, or an array of one of these");
    refuse("{\"prompt\":[[[1]]]}", "prompt", "prompt: element 0 is no token id");
    refuse("{\"prompt\":[[\"a\"]]}", "prompt", "prompt: element 0 is no token id");
}

static void more_ids_than_the_context_takes_are_refused(void **state) {
    (void)state;
    k1_completion c = accept_body("{\"prompt\":[1,2,3,4,5,6,7]}");
    assert_int_equal(c.params.ids.n, N_CTX - 1);
    k1_request_params_free(&c.params);
    refuse("{\"prompt\":[1,2,3,4,5,6,7,8]}", "prompt",
           "prompt: has 8 tokens, but n_ctx is 8 and one must be left; shorten it, or start with a larger --n_ctx");
}

static void a_body_may_be_as_long_as_the_context_needs(void **state) {
    (void)state;
    k1_completion c;
    k1_api_error error;
    size_t max = k1_api_max_body(N_CTX);
    assert_int_equal(max, 64 * N_CTX + 65536);
    assert_int_equal(k1_api_max_body(1 << 20), 4 << 20);
    char *body = malloc(max + 1);
    assert_non_null(body);
    memset(body, ' ', max + 1);
    memcpy(body, "{\"prompt\":\"p\"}", 14);
    assert_int_equal(k1_api_completion(body, max, N_CTX, &c, &error), 0);
    k1_request_params_free(&c.params);
    assert_int_equal(k1_api_completion(body, max + 1, N_CTX, &c, &error), -1);
    assert_int_equal(error.status, 413);
    assert_string_equal(error.message,
                        "the body has 66049 bytes, and at most 66048 are read for n_ctx 8: shorten the prompt");
    k1_request_params_free(&c.params);
    free(body);
}

static void a_bad_field_is_named(void **state) {
    (void)state;
    refuse("{}", "prompt", "prompt: is missing");
    refuse("{\"prompt\":5}", "prompt", NULL);
    refuse("{\"prompt\":[]}", "prompt", NULL);
    refuse("{\"prompt\":[1,-1]}", "prompt", "prompt: element 1 is no token id");
    refuse("{\"prompt\":[1,\"a\"]}", "prompt", "prompt: element 1 is no token id");
    refuse("{\"prompt\":[\"a\",\"b\"]}", "prompt", "prompt: only one prompt in a request; send one request for each");
    refuse("{\"prompt\":\"p\",\"max_tokens\":-1}", "max_tokens", "max_tokens: -1 is outside 0 to 2147483647");
    refuse("{\"prompt\":\"p\",\"max_tokens\":1.5}", "max_tokens", "max_tokens: must be a whole number");
    refuse("{\"prompt\":\"p\",\"temperature\":\"hot\"}", "temperature", "temperature: must be a number");
    refuse("{\"prompt\":\"p\",\"temperature\":-1}", "temperature", NULL);
    refuse("{\"prompt\":\"p\",\"temperature\":1e300}", "temperature", NULL);
    refuse("{\"prompt\":\"p\",\"top_p\":1.5}", "top_p", NULL);
    refuse("{\"prompt\":\"p\",\"top_k\":-1}", "top_k", NULL);
    refuse("{\"prompt\":\"p\",\"seed\":\"x\"}", "seed", NULL);
    refuse("{\"prompt\":\"p\",\"stream\":1}", "stream", "stream: must be true or false");
    refuse("{\"prompt\":\"p\",\"stream_options\":1}", "stream_options", NULL);
    refuse("{\"prompt\":\"p\",\"stop\":\"\"}", "stop", NULL);
    refuse("{\"prompt\":\"p\",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\"]}", "stop", NULL);
    refuse("{\"prompt\":\"p\",\"stop\":[1]}", "stop", NULL);
    refuse("{\"prompt\":\"p\",\"model\":3}", "model", NULL);
}

static void what_we_do_not_do_is_refused_not_ignored(void **state) {
    (void)state;
    refuse("{\"prompt\":\"p\",\"logprobs\":0}", "logprobs", "logprobs: is not supported; leave it out");
    refuse("{\"prompt\":\"p\",\"echo\":true}", "echo", NULL);
    refuse("{\"prompt\":\"p\",\"suffix\":\"x\"}", "suffix", NULL);
    refuse("{\"prompt\":\"p\",\"n\":2}", "n", "n: only 1 is supported; leave it out");
    refuse("{\"prompt\":\"p\",\"best_of\":3}", "best_of", NULL);
    refuse("{\"prompt\":\"p\",\"logit_bias\":{\"5\":1}}", "logit_bias", NULL);
    refuse("{\"prompt\":\"p\",\"frequency_penalty\":0.5}", "frequency_penalty", NULL);
}

static void what_is_not_json_is_refused_with_its_place(void **state) {
    (void)state;
    refuse("", "", NULL);
    refuse("{\"prompt\":\"p\",}", "", NULL);
    refuse("{\"prompt\": tru", "", "the body is not valid JSON: line 1, column 14: invalid token");
    refuse("[1]", "", "the body must be a JSON object");
    refuse("{\"prompt\":\"\xff\"}", "", NULL);
    refuse("{\"prompt\":\"\\ud800\"}", "", NULL);
    refuse("{\"prompt\":\"p\",\"seed\":99999999999999999999999}", "", NULL);
    refuse_bytes("{\"prompt\":\"p\"}\0", 15, "", NULL);
}

static void endless_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 60000 };
    char *body = malloc(DEPTH);
    assert_non_null(body);
    memset(body, '[', DEPTH);
    refuse_bytes(body, DEPTH, "", NULL);
    free(body);
}

static json_t *parse(char *text) {
    assert_non_null(text);
    json_t *root = json_loads(text, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    free(text);
    return root;
}

static void errors_have_openai_s_form(void **state) {
    (void)state;
    k1_api_error error = {.status = 400, .field = "top_p", .message = "cut \xc3"};
    json_t *root = parse(k1_api_error_body(&error));
    json_t *inner = json_object_get(root, "error");
    assert_string_equal(json_string_value(json_object_get(inner, "type")), "invalid_request_error");
    assert_string_equal(json_string_value(json_object_get(inner, "param")), "top_p");
    assert_non_null(json_string_value(json_object_get(inner, "message")));
    assert_true(json_is_null(json_object_get(inner, "code")));
    json_decref(root);
}

static void answers_count_tokens_and_time(void **state) {
    (void)state;
    k1_job job = {.request = {.n_prompt = 4, .finish = K1_FINISH_LENGTH, .first_ns = 2000000, .ended_ns = 12000000}};
    k1_api_answer answer = {.id = "cmpl-1", .model = "m", .created = 5};
    job.request.tokens.n = 14;
    json_t *root = parse(k1_api_result(&answer, &job, "hi\0\n", 4));
    json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    assert_int_equal(json_string_length(json_object_get(choice, "text")), 4);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "length");
    json_t *usage = json_object_get(root, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 14);
    json_t *timings = json_object_get(root, "timings");
    assert_true(json_real_value(json_object_get(timings, "prompt_per_second")) == 2000.0);
    assert_true(json_real_value(json_object_get(timings, "predicted_per_second")) == 1000.0);
    assert_null(json_object_get(timings, "stages"));
    json_decref(root);
}

static void a_pipelines_answer_says_what_each_rank_took(void **state) {
    (void)state;
    k1_job job = {.request = {.n_prompt = 4, .finish = K1_FINISH_LENGTH}};
    k1_api_answer answer = {.id = "cmpl-1", .model = "m", .created = 5};
    job.times =
        (k1_stage_times){.n_ranks = 2, .n_tokens = 4, .run_us = {8000, 4000}, .wait_us = {0, 400}, .hops_us = 1600};
    json_t *root = parse(k1_api_result(&answer, &job, "", 0));
    json_t *timings = json_object_get(root, "timings");
    json_t *second = json_array_get(json_object_get(timings, "stages"), 1);
    assert_int_equal(json_integer_value(json_object_get(second, "rank")), 1);
    assert_true(json_real_value(json_object_get(second, "run_ms")) == 1.0);
    assert_true(json_real_value(json_object_get(second, "wait_ms")) == 0.1);
    assert_true(json_real_value(json_object_get(timings, "hop_ms")) == 0.2);
    json_decref(root);
}

/* The usage of one part: "none", "null" or "figures". */
static const char *usage_of(char *text) {
    json_t *root = parse(text);
    const json_t *usage = json_object_get(root, "usage");
    const char *kind = usage == NULL ? "none" : json_is_null(usage) ? "null" : "figures";
    json_decref(root);
    return kind;
}

static void usage_comes_once_in_a_stream_and_only_when_wanted(void **state) {
    (void)state;
    k1_job job = {.request = {.n_prompt = 4, .finish = K1_FINISH_LENGTH}};
    k1_api_answer answer = {.id = "cmpl-1", .model = "m", .created = 5};
    assert_string_equal(usage_of(k1_api_part(&answer, "x", 1)), "none");
    assert_string_equal(usage_of(k1_api_last_part(&answer, &job)), "none");
    answer.include_usage = true;
    assert_string_equal(usage_of(k1_api_part(&answer, "x", 1)), "null");
    assert_string_equal(usage_of(k1_api_last_part(&answer, &job)), "null");
    assert_string_equal(usage_of(k1_api_usage_part(&answer, &job)), "figures");
}

static void only_the_last_part_says_why_it_ended(void **state) {
    (void)state;
    k1_job job = {.request = {.n_prompt = 4, .finish = K1_FINISH_STOP}};
    k1_api_answer answer = {.id = "cmpl-1", .model = "m", .created = 5};
    json_t *root = parse(k1_api_part(&answer, "x", 1));
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    assert_true(json_is_null(json_object_get(choice, "finish_reason")));
    json_decref(root);
    root = parse(k1_api_last_part(&answer, &job));
    choice = json_array_get(json_object_get(root, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "stop");
    assert_true(json_is_object(json_object_get(root, "timings")));
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fields_are_read),
        cmocka_unit_test(what_is_left_out_or_null_has_its_usual_value),
        cmocka_unit_test(without_a_seed_each_request_gets_its_own),
        cmocka_unit_test(token_ids_are_a_prompt_too),
        cmocka_unit_test(an_array_of_one_prompt_is_that_prompt),
        cmocka_unit_test(more_ids_than_the_context_takes_are_refused),
        cmocka_unit_test(a_body_may_be_as_long_as_the_context_needs),
        cmocka_unit_test(a_bad_field_is_named),
        cmocka_unit_test(what_we_do_not_do_is_refused_not_ignored),
        cmocka_unit_test(what_is_not_json_is_refused_with_its_place),
        cmocka_unit_test(endless_nesting_is_refused),
        cmocka_unit_test(errors_have_openai_s_form),
        cmocka_unit_test(answers_count_tokens_and_time),
        cmocka_unit_test(a_pipelines_answer_says_what_each_rank_took),
        cmocka_unit_test(usage_comes_once_in_a_stream_and_only_when_wanted),
        cmocka_unit_test(only_the_last_part_says_why_it_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
