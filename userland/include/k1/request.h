/* One completion: its tokens, where it stands, and the text that has become visible. Pure state: it says which tokens
 * to run next and takes a token back; whoever owns the engine, or a pipeline of them, does the running. */
#ifndef K1_REQUEST_H
#define K1_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "k1/error.h"
#include "k1/sampler.h"
#include "k1/stop.h"
#include "k1/tokenizer.h"

/* What is asked for. The prompt is text, or token ids when ids.n > 0. */
typedef struct k1_request_params {
    char *prompt; /* malloc'ed; may hold any bytes */
    size_t prompt_len;
    k1_tokens ids;
    uint32_t max_tokens;
    k1_sampling sampling;
    k1_stops stops;
} k1_request_params;

void k1_request_params_free(k1_request_params *params);

typedef enum k1_finish {
    K1_FINISH_NONE,   /* goes on */
    K1_FINISH_STOP,   /* the model ended it, or a stop string */
    K1_FINISH_LENGTH, /* max_tokens, or the context is full */
} k1_finish;

typedef struct k1_request {
    const k1_tokenizer *tokenizer;
    const k1_request_params *params;
    uint32_t n_ctx;
    k1_tokens tokens; /* prompt and what was generated */
    size_t n_prompt;
    size_t n_fed; /* tokens the engine has seen */
    k1_finish finish;
    k1_detok detok;
    k1_stop_state stop;
    char *piece; /* one token's text */
    size_t piece_capacity;
    int64_t begun_ns, first_ns, ended_ns; /* monotonic; first: the first token was chosen */
} k1_request;

/* Whether a prompt of n tokens leaves room for an answer. -1 and err: what the user may do about it. */
int k1_request_check_length(size_t n, uint32_t n_ctx, k1_err *err);
/* Tokenize the prompt. params, tokenizer: must outlive the request. -1 and err (the user's fault): prompt empty, longer
 * than n_ctx allows, or with an id outside the vocabulary. Call k1_request_end in any case. */
int k1_request_begin(k1_request *request, const k1_tokenizer *tokenizer, const k1_request_params *params,
                     uint32_t n_ctx, k1_err *err);
void k1_request_end(k1_request *request);

/* The next tokens to run, at most max: their number, 0 when there are none. last: whether the logits after the last of
 * them are wanted. */
size_t k1_request_feed(const k1_request *request, size_t max, const int32_t **ids, bool *last);
/* They were run. */
void k1_request_fed(k1_request *request, size_t n);
/* The token that follows, by the request's own sampling. logits: float[n_vocab]; scratch as for k1_sample. */
int32_t k1_request_sample(const k1_request *request, const float *logits, void *scratch);
/* Take the token that follows; text that becomes visible is added to out. -1 when memory runs out. */
int k1_request_accept(k1_request *request, int32_t token, k1_text *out, k1_err *err);

size_t k1_request_n_generated(const k1_request *request);
/* Milliseconds from begin to the first token, and from there to the end. */
double k1_request_prompt_ms(const k1_request *request);
double k1_request_predicted_ms(const k1_request *request);
/* 1000 n / ms; 0 when no time has passed. */
double k1_rate(size_t n, double ms);
int64_t k1_now_ns(void);

#endif
