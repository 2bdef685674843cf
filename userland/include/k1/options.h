/* Options of a program, from one table: command line, configuration file (`name = value` lines) and --help. */
#ifndef K1_OPTIONS_H
#define K1_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "k1/error.h"

#ifndef K1_VERSION
#define K1_VERSION "0"
#endif

/* Exit codes of all programs. */
enum { K1_EXIT_OK = 0, K1_EXIT_BUG = 1, K1_EXIT_USER = 2, K1_EXIT_WARNINGS = 3, K1_EXIT_FAILURES = 4 };

typedef enum k1_option_kind {
    K1_OPTION_FLAG,  /* bool */
    K1_OPTION_TEXT,  /* char *, owned by the option; NULL when not given and without fallback */
    K1_OPTION_U32,   /* uint32_t */
    K1_OPTION_U64,   /* uint64_t */
    K1_OPTION_FLOAT, /* float */
} k1_option_kind;

typedef struct k1_option {
    const char *name; /* without the dashes; '-' may be written for '_' */
    char letter;      /* 0: none */
    k1_option_kind kind;
    void *value;
    const char *fallback; /* as text; NULL: value stays as it is */
    double min, max;      /* of numbers; both 0: whatever the type holds */
    const char *metavar;  /* in --help */
    const char *help;
    bool *given; /* may be NULL: set when the user gave it */
} k1_option;

typedef struct k1_options {
    const char *program;
    const char *synopsis; /* what follows the name in the usage line */
    const char *about;
    const k1_option *table;
    size_t n;
    char **config_path; /* may be NULL: the value of the option that names the configuration file */
} k1_options;

typedef enum k1_options_result {
    K1_OPTIONS_ERROR = -1,
    K1_OPTIONS_RUN = 0,
    K1_OPTIONS_SHOWN = 1, /* --help or --version was answered on stdout: exit with 0 */
} k1_options_result;

/* Fallbacks, then the configuration file, then the command line: the last wins. Up to capacity operands (words without
 * dashes, or after --) are stored in operands. An unknown name is answered with the nearest known one. */
k1_options_result k1_options_parse(const k1_options *options, int argc, char **argv, const char **operands,
                                   size_t capacity, size_t *n_operands, k1_err *err);
/* Read one file of `name = value` lines; # begins a comment. Errors name file and line. */
int k1_options_file(const k1_options *options, const char *path, k1_err *err);
/* Free the texts. */
void k1_options_free(const k1_options *options);

#endif
