#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "generate.h"
#include "k1/options.h"
#include "sse.h"

enum { MAX_ERROR_BODY = 64 << 10, STOPPED = 1 };

typedef struct answer {
    k1_generate_figures *figures;
    k1_sse sse;
    k1_text error_body; /* of an answer that is not 200 */
    int code;           /* of what went wrong after the headers */
    bool done;          /* [DONE] came */
    k1_err *err;
} answer;

static int stop(answer *a, int code) {
    a->code = code;
    return STOPPED;
}

static double number(const json_t *object, const char *field) {
    return json_number_value(json_object_get(object, field));
}

static void take_timings(k1_generate_figures *figures, const json_t *timings) {
    if (json_is_object(timings)) {
        figures->n_prompt = (uint64_t)json_integer_value(json_object_get(timings, "prompt_n"));
        figures->n_predicted = (uint64_t)json_integer_value(json_object_get(timings, "predicted_n"));
        figures->prompt_ms = number(timings, "prompt_ms");
        figures->predicted_ms = number(timings, "predicted_ms");
    }
}

/* Fill err from {"error":{"message":…}}. */
static void take_error(const json_t *root, int status, k1_err *err) {
    const char *message = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    if (status == 0) {
        k1_fail(err, "the server gave up: %s", message == NULL ? "no reason given" : message);
    } else if (message == NULL) {
        k1_fail(err, "the server answered HTTP %d%s", status, status == 413 ? ": the prompt is too long for it" : "");
    } else {
        k1_fail(err, "the server answered HTTP %d: %s%s", status, message,
                status == 401 ? "; give --token_file FILE, or set K1_API_TOKEN" : "");
    }
}

static int take_part(answer *a, const json_t *root) {
    if (json_object_get(root, "error") != NULL) {
        take_error(root, 0, a->err);
        return stop(a, K1_EXIT_FAILURES);
    }
    const json_t *text = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "text");
    take_timings(a->figures, json_object_get(root, "timings"));
    if (json_is_string(text) &&
        k1_generate_write(a->figures, json_string_value(text), json_string_length(text), a->err) != 0) {
        return stop(a, K1_EXIT_USER);
    }
    return 0;
}

static int on_event(void *arg, const char *data, size_t n) {
    answer *a = arg;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        a->done = true;
        return 0;
    }
    json_t *root = json_loadb(data, n, JSON_ALLOW_NUL, NULL);
    if (root == NULL) {
        k1_fail(a->err, "the server sent an event that is not JSON");
        return stop(a, K1_EXIT_FAILURES);
    }
    int result = take_part(a, root);
    json_decref(root);
    return result;
}

static int on_body(void *arg, int status, const char *bytes, size_t n) {
    answer *a = arg;
    if (status != 200) {
        if (a->error_body.n + n <= MAX_ERROR_BODY && k1_text_add(&a->error_body, bytes, n) == 0) {
            return 0;
        }
        k1_fail(a->err, "the server answered HTTP %d, and more than we can take; is that k1-inferd?", status);
        return stop(a, K1_EXIT_FAILURES);
    }
    int result = k1_sse_feed(&a->sse, bytes, n);
    if (result < 0) {
        k1_fail(a->err, "the server sent an event of more than %d bytes", K1_SSE_MAX_EVENT);
        return stop(a, K1_EXIT_FAILURES);
    }
    return result;
}

static char *make_body(const k1_generate *w, k1_err *err) {
    const k1_sampling *s = &w->sampling;
    json_t *root =
        json_pack("{s:s%,s:I,s:b,s:f,s:i,s:f,s:f,s:f}", "prompt", w->prompt, w->prompt_len, "max_tokens",
                  (json_int_t)w->n_predict, "stream", 1, "temperature", (double)s->temperature, "top_k", (int)s->top_k,
                  "top_p", (double)s->top_p, "min_p", (double)s->min_p, "repeat_penalty", (double)s->repeat_penalty);
    if (root == NULL) {
        k1_fail(err, "the prompt is not UTF-8");
        return NULL;
    }
    if (w->seeded) {
        json_object_set_new(root, "seed", json_integer((json_int_t)s->seed));
    }
    if (w->stop != NULL) {
        json_object_set_new(root, "stop", json_string(w->stop));
    }
    char *body = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (body == NULL) {
        k1_fail(err, "out of memory");
    }
    return body;
}

/* status: of the answer, STOPPED, or -1. */
static int judge(answer *a, int status, k1_err *err) {
    if (status == STOPPED) {
        return a->code;
    }
    if (status < 0) {
        return K1_EXIT_USER;
    }
    if (status != 200) {
        json_t *root = json_loadb(a->error_body.n > 0 ? a->error_body.data : "", a->error_body.n, 0, NULL);
        take_error(root, status, err);
        json_decref(root);
        return status < 500 ? K1_EXIT_USER : K1_EXIT_FAILURES;
    }
    if (!a->done) {
        k1_fail(err, "the server closed the connection before the text was complete; see its log");
        return K1_EXIT_FAILURES;
    }
    return K1_EXIT_OK;
}

int k1_generate_remote(const k1_generate *wanted, k1_generate_figures *figures, k1_err *err) {
    char *body = make_body(wanted, err);
    if (body == NULL) {
        return K1_EXIT_USER;
    }
    k1_client_request request = {.host = wanted->host,
                                 .port = wanted->port,
                                 .path = "/v1/completions",
                                 .token = wanted->token,
                                 .body = body,
                                 .body_len = strlen(body)};
    answer a = {.figures = figures, .err = err};
    a.sse = (k1_sse){.on_event = on_event, .arg = &a};
    int code = judge(&a, k1_client_post(&request, on_body, &a, err), err);
    k1_sse_free(&a.sse);
    free(a.error_body.data);
    free(body);
    return code;
}
