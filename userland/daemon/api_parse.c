#include "api.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    DEFAULT_MAX_TOKENS = 16, /* OpenAI's */
    BYTES_PER_TOKEN = 64,
    BYTES_OF_FIELDS = 64 << 10,
    MAX_BODY = 4 << 20,
};

__attribute__((format(printf, 3, 4))) static int refuse(k1_api_error *error, const char *field, const char *format,
                                                        ...) {
    *error = (k1_api_error){.status = 400};
    snprintf(error->field, sizeof error->field, "%s", field);
    int n = field[0] == '\0' ? 0 : snprintf(error->message, sizeof error->message, "%s: ", field);
    va_list args;
    va_start(args, format);
    vsnprintf(error->message + n, sizeof error->message - (size_t)n, format, args);
    va_end(args);
    return -1;
}

static int refuse_as(k1_api_error *error, const char *field, const k1_err *err) {
    *error = (k1_api_error){.status = 400};
    snprintf(error->field, sizeof error->field, "%s", field);
    snprintf(error->message, sizeof error->message, "%.390s", err->text);
    return -1;
}

/* The field, or NULL when it is absent or null, which means the same. */
static json_t *get(const json_t *root, const char *field) {
    json_t *value = json_object_get(root, field);
    return json_is_null(value) ? NULL : value;
}

/* ---- single values ---- */

static int read_bool(const json_t *root, const char *field, bool *out, k1_api_error *error) {
    const json_t *value = get(root, field);
    if (value == NULL) {
        return 0;
    }
    if (!json_is_boolean(value)) {
        return refuse(error, field, "must be true or false");
    }
    *out = json_is_true(value);
    return 0;
}

static int read_integer(const json_t *root, const char *field, json_int_t low, json_int_t high, json_int_t *out,
                        k1_api_error *error) {
    const json_t *value = get(root, field);
    if (value == NULL) {
        return 0;
    }
    if (!json_is_integer(value)) {
        return refuse(error, field, "must be a whole number");
    }
    json_int_t number = json_integer_value(value);
    if (number < low || number > high) {
        return refuse(error, field,
                      "%" JSON_INTEGER_FORMAT " is outside %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT, number,
                      low, high);
    }
    *out = number;
    return 0;
}

/* One number of the sampling; the sampler says which values it takes. */
static int read_float(const json_t *root, const char *field, float *out, const k1_sampling *sampling,
                      k1_api_error *error) {
    const json_t *value = get(root, field);
    if (value == NULL) {
        return 0;
    }
    if (!json_is_number(value)) {
        return refuse(error, field, "must be a number");
    }
    double number = json_number_value(value);
    if (fabs(number) > 1e6) {
        return refuse(error, field, "%g is out of range", number);
    }
    *out = (float)number;
    k1_err err;
    return k1_sampling_check(sampling, &err) == 0 ? 0 : refuse_as(error, field, &err);
}

static int read_sampling(const json_t *root, k1_sampling *sampling, k1_api_error *error) {
    *sampling = k1_sampling_default;
    json_int_t top_k = sampling->top_k;
    json_int_t last_n = sampling->repeat_last_n;
    json_int_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        seed = 0;
    }
    if (read_float(root, "temperature", &sampling->temperature, sampling, error) != 0 ||
        read_float(root, "top_p", &sampling->top_p, sampling, error) != 0 ||
        read_float(root, "min_p", &sampling->min_p, sampling, error) != 0 ||
        read_float(root, "repeat_penalty", &sampling->repeat_penalty, sampling, error) != 0 ||
        read_integer(root, "top_k", 0, INT32_MAX, &top_k, error) != 0 ||
        read_integer(root, "repeat_last_n", 0, INT32_MAX, &last_n, error) != 0 ||
        read_integer(root, "seed", LLONG_MIN, LLONG_MAX, &seed, error) != 0) {
        return -1;
    }
    sampling->top_k = (int32_t)top_k;
    sampling->repeat_last_n = (uint32_t)last_n;
    sampling->seed = (uint64_t)seed;
    return 0;
}

/* ---- prompt ---- */

static int take_text(const json_t *value, k1_request_params *params, k1_api_error *error) {
    size_t n = json_string_length(value);
    params->prompt = malloc(n + 1);
    if (params->prompt == NULL) {
        return refuse(error, "prompt", "out of memory");
    }
    memcpy(params->prompt, json_string_value(value), n);
    params->prompt[n] = '\0';
    params->prompt_len = n;
    return 0;
}

static int take_ids(const json_t *array, uint32_t n_ctx, k1_request_params *params, k1_api_error *error) {
    size_t n = json_array_size(array);
    k1_err err;
    if (k1_request_check_length(n, n_ctx, &err) != 0) {
        return refuse_as(error, "prompt", &err);
    }
    params->ids.ids = calloc(n, sizeof *params->ids.ids);
    if (params->ids.ids == NULL) {
        return refuse(error, "prompt", "out of memory");
    }
    params->ids.capacity = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id > INT32_MAX) {
            return refuse(error, "prompt", "element %zu is no token id", i);
        }
        params->ids.ids[params->ids.n++] = (int32_t)id;
    }
    return 0;
}

/* OpenAI takes an array of prompts too, which we take when it holds one. */
static int read_prompt(const json_t *root, uint32_t n_ctx, k1_request_params *params, k1_api_error *error) {
    const json_t *value = get(root, "prompt");
    if (value == NULL) {
        return refuse(error, "prompt", "is missing");
    }
    const json_t *first = json_array_get(value, 0);
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(value) > 1) {
            return refuse(error, "prompt", "only one prompt in a request; send one request for each");
        }
        value = first;
    }
    if (json_is_string(value)) {
        return take_text(value, params, error);
    }
    if (json_array_size(value) == 0) { /* 0 too when it is no array */
        return refuse(error, "prompt", "must be a string, an array of token ids, or an array of one of these");
    }
    return take_ids(value, n_ctx, params, error);
}

/* ---- stop ---- */

static int add_stop(const json_t *value, k1_stops *stops, k1_api_error *error) {
    if (!json_is_string(value)) {
        return refuse(error, "stop", "must be a string or an array of up to %d strings", K1_STOP_MAX);
    }
    if (!k1_stops_add(stops, json_string_value(value), json_string_length(value))) {
        return refuse(error, "stop", "each of up to %d strings must have 1 to %d bytes", K1_STOP_MAX, K1_STOP_BYTES);
    }
    return 0;
}

static int read_stop(const json_t *root, k1_stops *stops, k1_api_error *error) {
    const json_t *value = get(root, "stop");
    if (value == NULL) {
        return 0;
    }
    if (!json_is_array(value)) {
        return add_stop(value, stops, error);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (add_stop(json_array_get(value, i), stops, error) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- what we do not do ---- */

/* Whether a value asks for nothing: false, 0, "", [], {}. */
static bool asks_nothing(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return json_object_size(value) == 0;
    case JSON_ARRAY:
        return json_array_size(value) == 0;
    case JSON_STRING:
        return json_string_length(value) == 0;
    case JSON_INTEGER:
    case JSON_REAL:
        return json_number_value(value) == 0.0;
    case JSON_TRUE:
        return false;
    case JSON_FALSE:
    case JSON_NULL:
        return true;
    }
    return false;
}

static int refuse_unsupported(const json_t *root, k1_api_error *error) {
    static const char *const never[] = {"suffix", "echo", "logit_bias", "presence_penalty", "frequency_penalty"};
    static const char *const only_one[] = {"n", "best_of"};
    if (get(root, "logprobs") != NULL && !json_is_false(get(root, "logprobs"))) {
        return refuse(error, "logprobs", "is not supported; leave it out");
    }
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        const json_t *value = get(root, never[i]);
        if (value != NULL && !asks_nothing(value)) {
            return refuse(error, never[i], "is not supported; leave it out");
        }
    }
    for (size_t i = 0; i < sizeof only_one / sizeof *only_one; i++) {
        const json_t *value = get(root, only_one[i]);
        if (value != NULL && !(json_is_integer(value) && json_integer_value(value) == 1)) {
            return refuse(error, only_one[i], "only 1 is supported; leave it out");
        }
    }
    return 0;
}

/* ---- the body ---- */

static int read_stream(const json_t *root, k1_completion *out, k1_api_error *error) {
    const json_t *options = get(root, "stream_options");
    if (read_bool(root, "stream", &out->stream, error) != 0) {
        return -1;
    }
    if (options == NULL) {
        return 0;
    }
    if (!json_is_object(options)) {
        return refuse(error, "stream_options", "must be an object");
    }
    return read_bool(options, "include_usage", &out->include_usage, error);
}

static int read_model(const json_t *root, k1_completion *out, k1_api_error *error) {
    const json_t *value = get(root, "model");
    if (value == NULL) {
        return 0;
    }
    if (!json_is_string(value)) {
        return refuse(error, "model", "must be a string");
    }
    if (json_string_length(value) >= sizeof out->model) {
        return refuse(error, "model", "is longer than %zu bytes", sizeof out->model - 1);
    }
    memcpy(out->model, json_string_value(value), json_string_length(value));
    return 0;
}

static int read_fields(const json_t *root, uint32_t n_ctx, k1_completion *out, k1_api_error *error) {
    json_int_t max_tokens = DEFAULT_MAX_TOKENS;
    if (!json_is_object(root)) {
        return refuse(error, "", "the body must be a JSON object");
    }
    if (read_prompt(root, n_ctx, &out->params, error) != 0 ||
        read_integer(root, "max_tokens", 0, INT32_MAX, &max_tokens, error) != 0 ||
        read_sampling(root, &out->params.sampling, error) != 0 || read_stop(root, &out->params.stops, error) != 0 ||
        read_stream(root, out, error) != 0 || read_model(root, out, error) != 0) {
        return -1;
    }
    out->params.max_tokens = (uint32_t)max_tokens;
    return refuse_unsupported(root, error);
}

/* jansson quotes the place in the input, which may hold anything: keep what stands before. */
static int refuse_json(const json_error_t *json, k1_api_error *error) {
    const char *quote = strstr(json->text, " near ");
    int n = quote == NULL ? (int)strlen(json->text) : (int)(quote - json->text);
    char plain[JSON_ERROR_TEXT_LENGTH];
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (json->text[i] >= 0x20 && json->text[i] < 0x7f) {
            plain[kept++] = json->text[i];
        }
    }
    plain[kept] = '\0';
    return refuse(error, "", "the body is not valid JSON: line %d, column %d: %s", json->line, json->column, plain);
}

size_t k1_api_max_body(uint32_t n_ctx) {
    size_t n = (size_t)n_ctx * BYTES_PER_TOKEN + BYTES_OF_FIELDS;
    return n < MAX_BODY ? n : MAX_BODY;
}

static int refuse_length(size_t len, uint32_t n_ctx, k1_api_error *error) {
    refuse(error, "", "the body has %zu bytes, and at most %zu are read for n_ctx %u: shorten the prompt", len,
           k1_api_max_body(n_ctx), n_ctx);
    error->status = 413;
    return -1;
}

int k1_api_completion(const char *body, size_t len, uint32_t n_ctx, k1_completion *out, k1_api_error *error) {
    memset(out, 0, sizeof *out);
    if (len > k1_api_max_body(n_ctx)) {
        return refuse_length(len, n_ctx, error);
    }
    json_error_t json;
    json_t *root = json_loadb(body, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &json);
    if (root == NULL) {
        return refuse_json(&json, error);
    }
    int failed = read_fields(root, n_ctx, out, error);
    json_decref(root);
    return failed;
}
