/* The two ways k1-cli gets its text: from a server, or from a model in this process. */
#ifndef K1_GENERATE_H
#define K1_GENERATE_H

#include "k1/error.h"
#include "k1/runtime.h"

typedef struct k1_generate {
    const char *prompt;
    size_t prompt_len;
    const char *host;
    uint32_t port;
    const char *token; /* may be NULL */
    uint32_t n_predict;
    k1_sampling sampling;
    bool seeded;              /* the user gave a seed */
    const char *stop;         /* may be NULL */
    k1_runtime_config engine; /* engine.model NULL: by way of the server */
} k1_generate;

typedef struct k1_generate_figures {
    uint64_t n_prompt, n_predicted;
    double prompt_ms, predicted_ms;
    bool ends_line; /* the last byte written was a line feed */
} k1_generate_figures;

/* Write the text to stdout as it comes. An exit code, and err unless it is 0. */
int k1_generate_remote(const k1_generate *wanted, k1_generate_figures *figures, k1_err *err);
int k1_generate_local(const k1_generate *wanted, k1_generate_figures *figures, k1_err *err);

/* Write a piece at once. -1 and err: stdout is closed or full. */
int k1_generate_write(k1_generate_figures *figures, const char *text, size_t n, k1_err *err);

#endif
