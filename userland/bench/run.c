#include "bench.h"

int k1_bench_run(const k1_options *options, int argc, char **argv, int (*run)(const void *settings, k1_err *err),
                 const void *settings) {
    k1_err err = {""};
    int code = K1_EXIT_USER;
    k1_options_result result = k1_options_parse(options, argc, argv, NULL, 0, NULL, &err);
    if (result == K1_OPTIONS_SHOWN) {
        code = K1_EXIT_OK;
    } else if (result == K1_OPTIONS_RUN) {
        code = run(settings, &err);
    }
    if (code != K1_EXIT_OK) {
        fprintf(stderr, "k1-bench: %s\n", err.text);
    }
    k1_options_free(options);
    return code;
}
