/* The OpenAI-compatible bodies: requests in, answers out. Nothing here knows about sockets. */
#ifndef K1_API_H
#define K1_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cluster.h"
#include "worker.h"

/* status: the HTTP status; field: the one at fault, or "". */
typedef struct k1_api_error {
    int status;
    char field[32];
    char message[400];
} k1_api_error;

typedef struct k1_completion {
    k1_request_params params;
    bool stream;
    bool include_usage; /* stream_options.include_usage */
    char model[128];    /* as the client wrote it, else "" */
} k1_completion;

/* The longest body that is read: 64 bytes for each token that fits into the context and 64 KiB for the other fields,
 * but at most 4 MiB. */
size_t k1_api_max_body(uint32_t n_ctx);
/* Read the body of POST /v1/completions. Unknown fields are ignored; fields that would change the answer and are not
 * supported are refused. -1 and error: 413 for a body that is too long, else 400, and what to change. Free out->params
 * in any case. */
int k1_api_completion(const char *body, size_t len, uint32_t n_ctx, k1_completion *out, k1_api_error *error);

/* Answers as JSON text, malloc'ed; NULL when memory runs out. */
typedef struct k1_api_answer {
    const char *id;
    const char *model;
    int64_t created;
    bool include_usage; /* stream_options.include_usage: every part has the field */
} k1_api_answer;

char *k1_api_error_body(const k1_api_error *error);
/* The whole answer. text: UTF-8. */
char *k1_api_result(const k1_api_answer *answer, const k1_job *job, const char *text, size_t n);
/* One part of a stream. */
char *k1_api_part(const k1_api_answer *answer, const char *text, size_t n);
/* Its last part with a choice: why it ended, and timings. */
char *k1_api_last_part(const k1_api_answer *answer, const k1_job *job);
/* The part without choices that follows when include_usage is set: usage. */
char *k1_api_usage_part(const k1_api_answer *answer, const k1_job *job);
char *k1_api_models(const char *model, int64_t created);

typedef struct k1_api_health {
    const char *model;
    const char *kernels;
    uint32_t n_ctx, n_threads;
    size_t n_running, n_waiting;
    const char *why_not;       /* NULL: requests are served */
    const k1_cluster *cluster; /* NULL: a node of its own */
    k1_batches batches;
    bool in_full; /* with the other nodes, this one's batches, and why requests are not served */
} k1_api_health;

char *k1_api_health_body(const k1_api_health *health);

#endif
