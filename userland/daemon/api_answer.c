#include "api.h"

#include <jansson.h>
#include <string.h>

#include "k1/options.h"

/* Takes the object; six digits, as times are not known better. */
static char *dump(json_t *object) {
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(object);
    return text;
}

static const char *error_type(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

char *k1_api_error_body(const k1_api_error *error) {
    /* A message may quote the client, cut in the middle of a character. */
    json_t *message = json_string(error->message);
    if (message == NULL) {
        message = json_string("the request cannot be handled");
    }
    const char *field = error->field[0] == '\0' ? NULL : error->field;
    return dump(json_pack("{s:{s:o,s:s,s:s?,s:s?}}", "error", "message", message, "type", error_type(error->status),
                          "param", field, "code", error->status == 401 ? "invalid_api_key" : NULL));
}

static json_t *usage(const k1_request *request) {
    size_t prompt = request->n_prompt;
    size_t generated = k1_request_n_generated(request);
    return json_pack("{s:I,s:I,s:I}", "prompt_tokens", (json_int_t)prompt, "completion_tokens", (json_int_t)generated,
                     "total_tokens", (json_int_t)(prompt + generated));
}

static double per_token(double ms, size_t n) { return n == 0 ? 0 : ms / (double)n; }

/* The names and meanings of llama.cpp's server. */
static json_t *timings(const k1_request *request) {
    size_t n_prompt = request->n_prompt;
    size_t n = k1_request_n_generated(request);
    double prompt_ms = k1_request_prompt_ms(request);
    double predicted_ms = k1_request_predicted_ms(request);
    return json_pack("{s:I,s:f,s:f,s:f,s:I,s:f,s:f,s:f}", "prompt_n", (json_int_t)n_prompt, "prompt_ms", prompt_ms,
                     "prompt_per_token_ms", per_token(prompt_ms, n_prompt), "prompt_per_second",
                     k1_rate(n_prompt, prompt_ms), "predicted_n", (json_int_t)n, "predicted_ms", predicted_ms,
                     "predicted_per_token_ms", per_token(predicted_ms, n), "predicted_per_second",
                     k1_rate(n, predicted_ms));
}

static json_t *choice(const char *text, size_t n, const char *finish) {
    return json_pack("{s:i,s:s%,s:n,s:s?}", "index", 0, "text", text, n, "logprobs", "finish_reason", finish);
}

static const char *finish_reason(const k1_request *request) {
    return request->finish == K1_FINISH_STOP ? "stop" : "length";
}

/* choices: an array, taken. */
static json_t *envelope(const k1_api_answer *answer, json_t *choices) {
    return json_pack("{s:s,s:s,s:I,s:s,s:o}", "id", answer->id, "object", "text_completion", "created",
                     (json_int_t)answer->created, "model", answer->model, "choices", choices);
}

/* One part of a stream: usage comes in a part of its own, and where that is wanted all others say null (OpenAI). */
static json_t *part(const k1_api_answer *answer, json_t *choices) {
    json_t *object = envelope(answer, choices);
    if (answer->include_usage) {
        json_object_set_new(object, "usage", json_null());
    }
    return object;
}

/* Per generated token, where it went: what each rank took, and the way between them. */
static json_t *stages(const k1_stage_times *times) {
    json_t *list = json_array();
    for (uint32_t r = 0; r < times->n_ranks; r++) {
        json_array_append_new(list, json_pack("{s:i,s:f,s:f}", "rank", (int)r, "run_ms",
                                              per_token((double)times->run_us[r] / 1e3, times->n_tokens), "wait_ms",
                                              per_token((double)times->wait_us[r] / 1e3, times->n_tokens)));
    }
    return list;
}

static json_t *all_timings(const k1_job *job) {
    json_t *object = timings(&job->request);
    if (job->times.n_ranks > 1) {
        json_object_set_new(object, "stages", stages(&job->times));
        json_object_set_new(
            object, "hop_ms",
            json_real(per_token((double)job->times.hops_us / 1e3, job->times.n_tokens * job->times.n_ranks)));
    }
    return object;
}

char *k1_api_result(const k1_api_answer *answer, const k1_job *job, const char *text, size_t n) {
    json_t *object = envelope(answer, json_pack("[o]", choice(text, n, finish_reason(&job->request))));
    json_object_set_new(object, "usage", usage(&job->request));
    json_object_set_new(object, "timings", all_timings(job));
    return dump(object);
}

char *k1_api_part(const k1_api_answer *answer, const char *text, size_t n) {
    return dump(part(answer, json_pack("[o]", choice(text, n, NULL))));
}

char *k1_api_last_part(const k1_api_answer *answer, const k1_job *job) {
    json_t *object = part(answer, json_pack("[o]", choice("", 0, finish_reason(&job->request))));
    json_object_set_new(object, "timings", all_timings(job));
    return dump(object);
}

char *k1_api_usage_part(const k1_api_answer *answer, const k1_job *job) {
    json_t *object = envelope(answer, json_array());
    json_object_set_new(object, "usage", usage(&job->request));
    return dump(object);
}

char *k1_api_models(const char *model, int64_t created) {
    return dump(json_pack("{s:s,s:[{s:s,s:s,s:I,s:s}]}", "object", "list", "data", "id", model, "object", "model",
                          "created", (json_int_t)created, "owned_by", "k1"));
}

static json_t *ranks(const k1_cluster *cluster) {
    json_t *list = json_array();
    for (uint32_t r = 0; r < k1_cluster_n_ranks(cluster); r++) {
        k1_cluster_node node = k1_cluster_node_of(cluster, r);
        json_t *layers = node.end > 0 ? json_pack("[i,i]", (int)node.first, (int)node.end - 1) : json_null();
        json_array_append_new(list, json_pack("{s:i,s:s,s:b,s:o,s:i}", "rank", (int)r, "address", node.address, "up",
                                              node.up, "layers", layers, "rtt_us", (int)node.rtt_us));
    }
    return list;
}

static const char *status_of(const k1_api_health *health) {
    bool worker = health->cluster != NULL && !k1_cluster_is_head(health->cluster);
    return health->why_not != NULL ? "waiting" : worker ? "worker" : "ok";
}

char *k1_api_health_body(const k1_api_health *health) {
    json_t *object = json_pack("{s:s,s:s,s:s,s:I,s:I,s:s,s:I,s:I}", "status", status_of(health), "version", K1_VERSION,
                               "model", health->model, "n_ctx", (json_int_t)health->n_ctx, "n_threads",
                               (json_int_t)health->n_threads, "kernels", health->kernels, "running",
                               (json_int_t)health->n_running, "waiting", (json_int_t)health->n_waiting);
    if (health->why_not != NULL && health->in_full) {
        json_object_set_new(object, "reason", json_string(health->why_not));
    }
    if (health->cluster != NULL && health->in_full) {
        json_object_set_new(object, "ranks", ranks(health->cluster));
        json_object_set_new(object, "batches",
                            json_pack("{s:I,s:I}", "computed", (json_int_t)health->batches.computed, "dropped",
                                      (json_int_t)health->batches.dropped));
    }
    return dump(object);
}
