/* k1-bench: speed and perplexity of models on this machine. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} command;

static const command commands[] = {
    {"engine", k1_bench_engine, "tokens/s of prefill and decode"},
    {"perplexity", k1_bench_perplexity, "perplexity of a model on a text"},
};

static void show_commands(FILE *to) {
    fprintf(to, "Usage: k1-bench COMMAND [options]; COMMAND --help lists them\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].help);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        show_commands(stderr);
        return K1_EXIT_USER;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        show_commands(stdout);
        return K1_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("k1-bench %s\n", K1_VERSION);
        return K1_EXIT_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "k1-bench: no command \"%.60s\"; there are engine and perplexity\n", argv[1]);
    return K1_EXIT_USER;
}
