/* k1-bench engine: prefill of a prompt and decoding after an empty context, as llama-bench's pp and tg, so that the
 * figures compare. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "k1/runtime.h"

enum { MAX_THREAD_COUNTS = 16, MAX_REPEATS = 1000 };

typedef struct settings {
    char *model, *threads, *cpu_list;
    uint32_t n_prompt, n_decode, n_batch, repeats;
    bool json;
} settings;

typedef struct figures {
    uint32_t n_threads;
    double prefill, decode; /* tokens/s, medians; 0: not measured */
} figures;

/* Token ids without meaning, the same in every run. */
static int32_t some_token(uint32_t i, uint32_t n_vocab) { return (int32_t)((i * 2654435761u + 12345u) % n_vocab); }

static int by_value(const void *a, const void *b) {
    double x;
    double y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_value);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* tokens/s of one prefill of n tokens; negative: err. */
static double time_prefill(k1_runtime *runtime, const int32_t *ids, uint32_t n, k1_err *err) {
    k1_seq_truncate(runtime->seq, 0);
    int64_t begun = k1_now_ns();
    int failed = k1_forward(runtime->seq, runtime->pool, ids, NULL, n, NULL, K1_LOGITS_LAST, runtime->logits, err);
    return failed != 0 ? -1 : k1_rate(n, (double)(k1_now_ns() - begun) / 1e6);
}

/* tokens/s of n decode steps from an empty context; negative: err. */
static double time_decode(k1_runtime *runtime, const int32_t *ids, uint32_t n, k1_err *err) {
    k1_seq_truncate(runtime->seq, 0);
    int64_t begun = k1_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        if (k1_forward(runtime->seq, runtime->pool, ids + i, NULL, 1, NULL, K1_LOGITS_LAST, runtime->logits, err) !=
            0) {
            return -1;
        }
    }
    return k1_rate(n, (double)(k1_now_ns() - begun) / 1e6);
}

typedef double timed(k1_runtime *runtime, const int32_t *ids, uint32_t n, k1_err *err);

/* The median of some runs, after one that warms up. */
static int measure(k1_runtime *runtime, timed *time_one, uint32_t n, uint32_t repeats, double *result, k1_err *err) {
    uint32_t n_vocab = k1_model_hparams(runtime->model)->n_vocab;
    int32_t *ids = calloc(n, sizeof *ids);
    double *rates = calloc(repeats, sizeof *rates);
    int failed = ids == NULL || rates == NULL ? k1_fail(err, "out of memory") : 0;
    for (uint32_t i = 0; failed == 0 && i < n; i++) {
        ids[i] = some_token(i, n_vocab);
    }
    failed = failed != 0 || time_one(runtime, ids, n, err) < 0 ? -1 : 0;
    for (uint32_t i = 0; failed == 0 && i < repeats; i++) {
        rates[i] = time_one(runtime, ids, n, err);
        failed = rates[i] < 0 ? -1 : 0;
    }
    if (failed == 0) {
        *result = median(rates, repeats);
    }
    free(ids);
    free(rates);
    return failed;
}

static int measure_threads(k1_runtime *runtime, const settings *s, figures *f, k1_err *err) {
    k1_runtime_config config = {.n_threads = f->n_threads, .cpu_list = s->cpu_list};
    if (k1_runtime_place(runtime, &config, err) != 0 || k1_runtime_start(runtime, err) != 0) {
        return -1;
    }
    int failed = 0;
    if (s->n_prompt > 0) {
        failed = measure(runtime, time_prefill, s->n_prompt, s->repeats, &f->prefill, err);
    }
    if (failed == 0 && s->n_decode > 0) {
        failed = measure(runtime, time_decode, s->n_decode, s->repeats, &f->decode, err);
    }
    k1_runtime_stop(runtime);
    return failed;
}

/* "1,2,4" */
static int read_thread_counts(const char *text, figures *out, size_t *n, k1_err *err) {
    for (*n = 0; *n < MAX_THREAD_COUNTS;) {
        char *end;
        unsigned long count = strtoul(text, &end, 10);
        if (end == text || count == 0 || count > K1_MAX_THREADS || (*end != ',' && *end != '\0')) {
            break;
        }
        out[(*n)++] = (figures){.n_threads = (uint32_t)count};
        if (*end == '\0') {
            return 0;
        }
        text = end + 1;
    }
    return k1_fail(err, "--threads: must be up to %d numbers from 1 to %d, such as 1,2", MAX_THREAD_COUNTS,
                   K1_MAX_THREADS);
}

static void show_table(const settings *s, const k1_runtime *runtime, const figures *f, size_t n) {
    printf("%s, %s kernels, median of %u\n", runtime->name, runtime->kernels->name, s->repeats);
    printf("%8s %16s %16s\n", "threads", "prefill tokens/s", "decode tokens/s");
    for (size_t i = 0; i < n; i++) {
        printf("%8u %16.1f %16.1f\n", f[i].n_threads, f[i].prefill, f[i].decode);
    }
}

static void show_json(const settings *s, const k1_runtime *runtime, const figures *f, size_t n) {
    for (size_t i = 0; i < n; i++) {
        printf("%s{\"kernels\":\"%s\",\"n_prompt\":%u,\"n_decode\":%u,\"repeats\":%u,\"n_threads\":%u,"
               "\"prefill_tokens_per_s\":%.2f,\"decode_tokens_per_s\":%.2f}",
               i == 0 ? "[" : ",\n ", runtime->kernels->name, s->n_prompt, s->n_decode, s->repeats, f[i].n_threads,
               f[i].prefill, f[i].decode);
    }
    printf("]\n");
}

static int run(const void *arg, k1_err *err) {
    const settings *s = arg;
    figures f[MAX_THREAD_COUNTS];
    size_t n = 0;
    k1_runtime runtime = {0};
    uint32_t longest = s->n_prompt > s->n_decode ? s->n_prompt : s->n_decode;
    k1_runtime_config config = {.model = s->model, .n_ctx = longest < 8 ? 8 : longest, .n_batch = s->n_batch};
    int code = K1_EXIT_USER;
    if (s->model == NULL) {
        k1_fail(err, "no model: give --model FILE, a GGUF file");
    } else if (read_thread_counts(s->threads, f, &n, err) == 0 && k1_runtime_open(&runtime, &config, err) == 0) {
        code = K1_EXIT_OK;
    }
    for (size_t i = 0; code == K1_EXIT_OK && i < n; i++) {
        code = measure_threads(&runtime, s, &f[i], err) == 0 ? K1_EXIT_OK : K1_EXIT_USER;
    }
    if (code == K1_EXIT_OK) {
        (s->json ? show_json : show_table)(s, &runtime, f, n);
    }
    k1_runtime_close(&runtime);
    return code;
}

int k1_bench_engine(int argc, char **argv) {
    settings s = {0};
    const k1_option table[] = {
        {"model", 'm', K1_OPTION_TEXT, &s.model, NULL, 0, 0, "FILE", "the model, a GGUF file", NULL},
        {"n_prompt", 'p', K1_OPTION_U32, &s.n_prompt, "128", 0, 1 << 20, "N", "tokens of a prefill; 0: none", NULL},
        {"n_decode", 'n', K1_OPTION_U32, &s.n_decode, "64", 0, 1 << 20, "N", "tokens to decode; 0: none", NULL},
        {"threads", 't', K1_OPTION_TEXT, &s.threads, "1,2", 0, 0, "LIST", "numbers of threads to try", NULL},
        {"repeats", 'r', K1_OPTION_U32, &s.repeats, "3", 1, MAX_REPEATS, "N", "runs, of which the median counts", NULL},
        {"n_batch", 'b', K1_OPTION_U32, &s.n_batch, "512", 1, 1 << 16, "N", "prompt tokens taken at a time", NULL},
        {"cpu_list", 0, K1_OPTION_TEXT, &s.cpu_list, NULL, 0, 0, "LIST", "CPUs to compute on, such as 0,2-3", NULL},
        {"json", 0, K1_OPTION_FLAG, &s.json, NULL, 0, 0, "", "print JSON", NULL},
    };
    const k1_options options = {"k1-bench engine",
                                "--model FILE [options]",
                                "Measure tokens/s of prefill and decode.",
                                table,
                                sizeof table / sizeof *table,
                                NULL};
    return k1_bench_run(&options, argc, argv, run, &s);
}
