#include "k1/request.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t k1_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double k1_rate(size_t n, double ms) { return ms > 0 ? 1000.0 * (double)n / ms : 0; }

void k1_request_params_free(k1_request_params *params) {
    free(params->prompt);
    free(params->ids.ids);
    memset(params, 0, sizeof *params);
}

static int copy_ids(k1_request *request, k1_err *err) {
    const k1_tokens *ids = &request->params->ids;
    uint32_t n_vocab = k1_tokenizer_n_vocab(request->tokenizer);
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->ids[i] < 0 || (uint32_t)ids->ids[i] >= n_vocab) {
            return k1_fail(err, "prompt: token id %d is outside the vocabulary of %u", ids->ids[i], n_vocab);
        }
        if (k1_tokens_add(&request->tokens, ids->ids[i]) != 0) {
            return k1_fail(err, "prompt: out of memory");
        }
    }
    return 0;
}

int k1_request_check_length(size_t n, uint32_t n_ctx, k1_err *err) {
    if (n < n_ctx) {
        return 0;
    }
    return k1_fail(err,
                   "prompt: has %zu tokens, but n_ctx is %u and one must be left; shorten it, or start with a larger "
                   "--n_ctx",
                   n, n_ctx);
}

int k1_request_begin(k1_request *request, const k1_tokenizer *tokenizer, const k1_request_params *params,
                     uint32_t n_ctx, k1_err *err) {
    *request = (k1_request){.tokenizer = tokenizer, .params = params, .n_ctx = n_ctx, .begun_ns = k1_now_ns()};
    request->piece_capacity = k1_detok_capacity(tokenizer);
    request->piece = malloc(request->piece_capacity);
    if (request->piece == NULL) {
        return k1_fail(err, "prompt: out of memory");
    }
    int failed = params->ids.n > 0 ? copy_ids(request, err)
                                   : k1_tokenizer_encode_first(tokenizer, params->prompt, params->prompt_len, true,
                                                               &request->tokens, err);
    if (failed != 0) {
        return -1;
    }
    request->n_prompt = request->tokens.n;
    if (request->n_prompt == 0) {
        return k1_fail(err, "prompt: has no tokens; write at least one word");
    }
    return k1_request_check_length(request->n_prompt, n_ctx, err);
}

void k1_request_end(k1_request *request) {
    free(request->tokens.ids);
    free(request->stop.held.data);
    free(request->piece);
    request->tokens = (k1_tokens){0};
    request->stop = (k1_stop_state){0};
    request->piece = NULL;
}

size_t k1_request_feed(const k1_request *request, size_t max, const int32_t **ids, bool *last) {
    size_t n = request->finish == K1_FINISH_NONE ? request->tokens.n - request->n_fed : 0;
    n = n < max ? n : max;
    *ids = request->tokens.ids + request->n_fed;
    *last = n > 0 && request->n_fed + n == request->tokens.n && request->params->max_tokens > 0;
    return n;
}

static void finish(k1_request *request, k1_finish how) {
    request->finish = how;
    request->ended_ns = k1_now_ns();
}

void k1_request_fed(k1_request *request, size_t n) {
    request->n_fed += n;
    if (request->n_fed == request->tokens.n && request->params->max_tokens == 0) {
        finish(request, K1_FINISH_LENGTH);
        request->first_ns = request->ended_ns;
    }
}

int32_t k1_request_sample(const k1_request *request, const float *logits, void *scratch) {
    return k1_sample(&request->params->sampling, logits, k1_tokenizer_n_vocab(request->tokenizer), request->tokens.ids,
                     request->tokens.n, request->tokens.n, scratch);
}

/* What the token makes visible goes through the stop strings. */
static int show_token(k1_request *request, int32_t token, k1_text *out) {
    ptrdiff_t n =
        k1_detok_next(request->tokenizer, &request->detok, token, false, request->piece, request->piece_capacity);
    return n < 0 ? -1 : k1_stop_next(&request->params->stops, &request->stop, request->piece, (size_t)n, out);
}

/* The rest of an unfinished UTF-8 sequence, and what was held back. */
static int show_rest(k1_request *request, k1_text *out) {
    ptrdiff_t n = k1_detok_end(&request->detok, request->piece, request->piece_capacity);
    if (n < 0 || k1_stop_next(&request->params->stops, &request->stop, request->piece, (size_t)n, out) != 0) {
        return -1;
    }
    return request->stop.hit ? 0 : k1_stop_end(&request->stop, out);
}

static k1_finish finish_after(const k1_request *request, int32_t token) {
    if (k1_tokenizer_is_end(request->tokenizer, token) || request->stop.hit) {
        return K1_FINISH_STOP;
    }
    bool full = k1_request_n_generated(request) >= request->params->max_tokens || request->tokens.n >= request->n_ctx;
    return full ? K1_FINISH_LENGTH : K1_FINISH_NONE;
}

int k1_request_accept(k1_request *request, int32_t token, k1_text *out, k1_err *err) {
    if (request->tokens.n == request->n_prompt) {
        request->first_ns = k1_now_ns();
    }
    bool ends = k1_tokenizer_is_end(request->tokenizer, token);
    if (k1_tokens_add(&request->tokens, token) != 0 || (!ends && show_token(request, token, out) != 0)) {
        return k1_fail(err, "out of memory");
    }
    k1_finish how = finish_after(request, token);
    if (how == K1_FINISH_NONE) {
        return 0;
    }
    if (!request->stop.hit && show_rest(request, out) != 0) {
        return k1_fail(err, "out of memory");
    }
    finish(request, request->stop.hit ? K1_FINISH_STOP : how);
    return 0;
}

size_t k1_request_n_generated(const k1_request *request) { return request->tokens.n - request->n_prompt; }

double k1_request_prompt_ms(const k1_request *request) { return (double)(request->first_ns - request->begun_ns) / 1e6; }

double k1_request_predicted_ms(const k1_request *request) {
    return (double)(request->ended_ns - request->first_ns) / 1e6;
}
