#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "k1/options.h"

int k1_generate_write(k1_generate_figures *figures, const char *text, size_t n, k1_err *err) {
    if (n == 0) {
        return 0;
    }
    if (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0) {
        return k1_fail(err, "cannot write to stdout: %s", strerror(errno));
    }
    figures->ends_line = text[n - 1] == '\n';
    return 0;
}

static int steps(k1_runtime *runtime, k1_request *request, k1_generate_figures *figures, k1_text *out, k1_err *err) {
    while (request->finish == K1_FINISH_NONE) {
        out->n = 0;
        if (k1_runtime_step(runtime, runtime->seq, request, out, err) != 0) {
            return K1_EXIT_FAILURES;
        }
        if (k1_generate_write(figures, out->data, out->n, err) != 0) {
            return K1_EXIT_USER;
        }
    }
    figures->n_prompt = request->n_prompt;
    figures->n_predicted = k1_request_n_generated(request);
    figures->prompt_ms = k1_request_prompt_ms(request);
    figures->predicted_ms = k1_request_predicted_ms(request);
    return K1_EXIT_OK;
}

static int run_request(k1_runtime *runtime, const k1_generate *wanted, k1_generate_figures *figures, k1_err *err) {
    k1_request_params params = {.prompt = malloc(wanted->prompt_len + 1),
                                .prompt_len = wanted->prompt_len,
                                .max_tokens = wanted->n_predict,
                                .sampling = wanted->sampling};
    if (params.prompt == NULL) {
        k1_fail(err, "out of memory");
        return K1_EXIT_FAILURES;
    }
    memcpy(params.prompt, wanted->prompt, wanted->prompt_len);
    k1_request request = {0};
    k1_text out = {0};
    int code = K1_EXIT_USER;
    if (wanted->stop != NULL && !k1_stops_add(&params.stops, wanted->stop, strlen(wanted->stop))) {
        k1_fail(err, "--stop: must have 1 to %d bytes", K1_STOP_BYTES);
    } else if (k1_request_begin(&request, runtime->tokenizer, &params, runtime->n_ctx, err) == 0) {
        code = steps(runtime, &request, figures, &out, err);
    }
    k1_request_end(&request);
    k1_request_params_free(&params);
    free(out.data);
    return code;
}

static void warn_of_long_context(const k1_runtime *runtime) {
    uint32_t trained = k1_model_hparams(runtime->model)->n_ctx_train;
    if (runtime->n_ctx > trained) {
        fprintf(stderr,
                "k1-cli: n_ctx %u is more than the %u tokens that the model was trained for: answers get worse "
                "beyond\n",
                runtime->n_ctx, trained);
    }
}

int k1_generate_local(const k1_generate *wanted, k1_generate_figures *figures, k1_err *err) {
    k1_runtime runtime = {0};
    int code = K1_EXIT_USER;
    if (k1_runtime_open(&runtime, &wanted->engine, err) == 0 && k1_runtime_start(&runtime, err) == 0) {
        warn_of_long_context(&runtime);
        code = run_request(&runtime, wanted, figures, err);
    }
    k1_runtime_close(&runtime);
    return code;
}
