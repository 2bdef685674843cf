/* Any bytes as the body of a completion: read within its limits, or refused with a reason that can be sent as JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

enum { N_CTX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check_accepted(const k1_completion *c) {
    k1_err err;
    must((c->params.prompt != NULL) != (c->params.ids.n > 0));
    must(c->params.prompt == NULL || c->params.prompt[c->params.prompt_len] == '\0');
    must(c->params.stops.n <= K1_STOP_MAX && memchr(c->model, '\0', sizeof c->model) != NULL);
    must(c->params.ids.n < N_CTX);
    must(k1_sampling_check(&c->params.sampling, &err) == 0);
    for (size_t i = 0; i < c->params.ids.n; i++) {
        must(c->params.ids.ids[i] >= 0);
    }
}

static void check_refused(const k1_api_error *error) {
    must((error->status == 400 || error->status == 413) && error->message[0] != '\0');
    char *body = k1_api_error_body(error);
    must(body != NULL);
    free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    k1_completion c;
    k1_api_error error;
    if (k1_api_completion((const char *)data, size, N_CTX, &c, &error) == 0) {
        check_accepted(&c);
    } else {
        check_refused(&error);
    }
    k1_request_params_free(&c.params);
    return 0;
}
