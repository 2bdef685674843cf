/* k1-cli: prompt in, text out. The text goes to stdout as it comes, one line of figures to stderr. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "generate.h"
#include "k1/options.h"

enum { MAX_PROMPT = 4 << 20 };

typedef struct settings {
    char *host, *token, *token_file, *model, *cpu_list, *stop;
    uint32_t port, n_predict, top_k, n_ctx, n_batch, n_threads;
    float temperature, top_p, min_p, repeat_penalty;
    uint64_t seed;
    bool seeded;
} settings;

/* The first word of a file. */
static int read_token_file(settings *s, k1_err *err) {
    char line[512] = "";
    FILE *file = fopen(s->token_file, "re");
    if (file == NULL) {
        return k1_fail(err, "no token in %s: %s", s->token_file, strerror(errno));
    }
    bool cut = fgets(line, sizeof line, file) == NULL && ferror(file);
    int why = errno;
    fclose(file);
    size_t n = strcspn(line, " \t\r\n");
    if (cut || n == 0) {
        return k1_fail(err, "no token in %s: %s", s->token_file, cut ? strerror(why) : "its first line is empty");
    }
    if (n == sizeof line - 1) {
        return k1_fail(err, "no token in %s: its first word is longer than %zu bytes", s->token_file, n - 1);
    }
    line[n] = '\0';
    s->token = strdup(line);
    return s->token != NULL ? 0 : k1_fail(err, "out of memory");
}

/* The token: --token, the first word of --token_file, or K1_API_TOKEN. */
static int read_token(settings *s, k1_err *err) {
    if (s->token == NULL && s->token_file != NULL) {
        return read_token_file(s, err);
    }
    const char *from_env = getenv("K1_API_TOKEN");
    if (s->token == NULL && from_env != NULL) {
        s->token = strdup(from_env);
        return s->token != NULL ? 0 : k1_fail(err, "out of memory");
    }
    return 0;
}

static int make_request(settings *s, const k1_text *prompt, k1_generate *wanted, k1_err *err) {
    if (!s->seeded && getrandom(&s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed) {
        s->seed = 0;
    }
    *wanted = (k1_generate){.prompt = prompt->data == NULL ? "" : prompt->data,
                            .prompt_len = prompt->n,
                            .host = s->host,
                            .port = s->port,
                            .n_predict = s->n_predict,
                            .seeded = s->seeded,
                            .stop = s->stop,
                            .sampling = k1_sampling_default};
    wanted->sampling.temperature = s->temperature;
    wanted->sampling.top_k = (int32_t)s->top_k;
    wanted->sampling.top_p = s->top_p;
    wanted->sampling.min_p = s->min_p;
    wanted->sampling.repeat_penalty = s->repeat_penalty;
    wanted->sampling.seed = s->seed;
    wanted->engine = (k1_runtime_config){.model = s->model,
                                         .n_ctx = s->n_ctx,
                                         .n_batch = s->n_batch,
                                         .n_threads = s->n_threads,
                                         .cpu_list = s->cpu_list};
    if (k1_sampling_check(&wanted->sampling, err) != 0 || read_token(s, err) != 0) {
        return -1;
    }
    wanted->token = s->token;
    return 0;
}

static void show_figures(const k1_generate_figures *f) {
    if (!f->ends_line) {
        putchar('\n');
        fflush(stdout);
    }
    fprintf(stderr, "prompt %llu tokens, %.1f tokens/s; generated %llu tokens, %.1f tokens/s\n",
            (unsigned long long)f->n_prompt, k1_rate(f->n_prompt, f->prompt_ms), (unsigned long long)f->n_predicted,
            k1_rate(f->n_predicted, f->predicted_ms));
}

static int run(settings *s, const char *operand, k1_err *err) {
    k1_text prompt = {0};
    k1_generate wanted;
    k1_generate_figures figures = {0};
    bool from_stdin = operand == NULL || strcmp(operand, "-") == 0;
    int code = K1_EXIT_USER;
    int failed = 0;
    if (from_stdin) {
        failed = k1_text_read(&prompt, stdin, "the prompt on stdin", MAX_PROMPT, err);
    } else if (k1_text_add(&prompt, operand, strlen(operand)) != 0) {
        failed = k1_fail(err, "out of memory");
    }
    if (failed == 0 && make_request(s, &prompt, &wanted, err) == 0) {
        code =
            s->model != NULL ? k1_generate_local(&wanted, &figures, err) : k1_generate_remote(&wanted, &figures, err);
    }
    if (code == K1_EXIT_OK) {
        show_figures(&figures);
    }
    free(prompt.data);
    return code;
}

int main(int argc, char **argv) {
    settings s = {0};
    const k1_option table[] = {
        {"host", 0, K1_OPTION_TEXT, &s.host, "127.0.0.1", 0, 0, "ADDRESS", "where k1-inferd runs", NULL},
        {"port", 0, K1_OPTION_U32, &s.port, "8080", 1, 65535, "N", "its port", NULL},
        {"n_predict", 'n', K1_OPTION_U32, &s.n_predict, "128", 0, INT32_MAX, "N", "tokens to generate at most", NULL},
        {"temperature", 0, K1_OPTION_FLOAT, &s.temperature, "0.8", 0, 0, "X", "0: always the likeliest token", NULL},
        {"top_k", 0, K1_OPTION_U32, &s.top_k, "40", 0, INT32_MAX, "N", "choose among the N likeliest; 0: all", NULL},
        {"top_p", 0, K1_OPTION_FLOAT, &s.top_p, "0.95", 0, 0, "X", "choose among those that add up to X", NULL},
        {"min_p", 0, K1_OPTION_FLOAT, &s.min_p, "0.05", 0, 0, "X", "at least X times the likeliest", NULL},
        {"repeat_penalty", 0, K1_OPTION_FLOAT, &s.repeat_penalty, "1", 0, 0, "X", "1: none", NULL},
        {"seed", 0, K1_OPTION_U64, &s.seed, NULL, 0, 9007199254740992.0, "N",
         "the same seed gives the same text (default: random)", &s.seeded},
        {"stop", 0, K1_OPTION_TEXT, &s.stop, NULL, 0, 0, "TEXT", "end before this text", NULL},
        {"token", 0, K1_OPTION_TEXT, &s.token, NULL, 0, 0, "TOKEN", "API token; others on this machine can see it",
         NULL},
        {"token_file", 0, K1_OPTION_TEXT, &s.token_file, NULL, 0, 0, "FILE",
         "API token from a file (default: $K1_API_TOKEN)", NULL},
        {"local", 0, K1_OPTION_TEXT, &s.model, NULL, 0, 0, "FILE",
         "run this GGUF model here instead of asking a server", NULL},
        {"n_ctx", 0, K1_OPTION_U32, &s.n_ctx, "2048", 8, 1 << 20, "N", "with --local: tokens of prompt and answer",
         NULL},
        {"n_batch", 0, K1_OPTION_U32, &s.n_batch, "512", 1, 1 << 16, "N", "with --local: prompt tokens at a time",
         NULL},
        {"n_threads", 0, K1_OPTION_U32, &s.n_threads, NULL, 1, K1_MAX_THREADS, "N",
         "with --local: compute threads (default: one per core)", NULL},
        {"cpu_list", 0, K1_OPTION_TEXT, &s.cpu_list, NULL, 0, 0, "LIST", "with --local: CPUs, such as 0,2-3", NULL},
    };
    const k1_options options = {
        "k1-cli", "[options] [PROMPT]",         "Complete a prompt, from the command line or from stdin.",
        table,    sizeof table / sizeof *table, NULL};
    k1_err err = {""};
    const char *prompt = NULL;
    size_t n = 0;
    int code = K1_EXIT_USER;
    k1_options_result result = k1_options_parse(&options, argc, argv, &prompt, 1, &n, &err);
    if (result == K1_OPTIONS_SHOWN) {
        code = K1_EXIT_OK;
    } else if (result == K1_OPTIONS_RUN) {
        code = run(&s, prompt, &err);
    }
    if (code != K1_EXIT_OK) {
        fprintf(stderr, "k1-cli: %s\n", err.text);
    }
    k1_options_free(&options);
    return code;
}
