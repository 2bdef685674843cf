/* k1-bench perplexity, with the definition of llama.cpp's llama-perplexity, so that figures compare: the text is cut
 * into chunks of n_ctx tokens, each run from an empty context; only the second half of a chunk is scored; the first
 * token of each chunk becomes BOS where the model asks for one. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "k1/runtime.h"

enum { MAX_TEXT = 256 << 20, SCORED_AT_ONCE = 32 }; /* bounds the logits in memory */

typedef struct settings {
    char *model, *file, *cpu_list;
    uint32_t n_ctx, n_batch, n_threads, chunks;
} settings;

/* Sums over the scored tokens of the negative log-likelihood and its square. */
typedef struct score {
    double nll, nll2;
    size_t n;
} score;

static int read_text(const char *path, k1_text *text, k1_err *err) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return k1_fail(err, "cannot read %s: %s", path, strerror(errno));
    }
    int failed = k1_text_read(text, file, path, MAX_TEXT, err); /* llama.cpp's tools drop a last line feed too */
    fclose(file);
    return failed;
}

/* logits: float[n_vocab] */
static void add_token_score(score *total, const float *logits, uint32_t n_vocab, int32_t token) {
    float max = logits[0];
    for (uint32_t i = 1; i < n_vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    double sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += (double)expf(logits[i] - max);
    }
    double nll = log(sum) - (double)(logits[token] - max);
    total->nll += nll;
    total->nll2 += nll * nll;
    total->n++;
}

/* ids: int32[n_ctx]. logits: float[SCORED_AT_ONCE][n_vocab]. */
static int score_chunk(k1_runtime *runtime, const int32_t *ids, uint32_t n_ctx, float *logits, score *total,
                       k1_err *err) {
    uint32_t n_vocab = k1_model_hparams(runtime->model)->n_vocab;
    uint32_t first = n_ctx / 2;
    k1_seq_truncate(runtime->seq, 0);
    if (k1_forward(runtime->seq, runtime->pool, ids, NULL, first, NULL, K1_LOGITS_NONE, NULL, err) != 0) {
        return -1;
    }
    for (uint32_t at = first; at < n_ctx - 1;) {
        uint32_t n = n_ctx - 1 - at < SCORED_AT_ONCE ? n_ctx - 1 - at : SCORED_AT_ONCE;
        if (k1_forward(runtime->seq, runtime->pool, ids + at, NULL, n, NULL, K1_LOGITS_ALL, logits, err) != 0) {
            return -1;
        }
        for (uint32_t i = 0; i < n; i++) {
            add_token_score(total, logits + (size_t)i * n_vocab, n_vocab, ids[at + i + 1]);
        }
        at += n;
    }
    return 0;
}

static void show_progress(size_t chunk, size_t n_chunks, const score *total, int64_t begun) {
    double seconds = (double)(k1_now_ns() - begun) / 1e9;
    fprintf(stderr, "[%zu/%zu] PPL %.4f, %.0f s left\n", chunk, n_chunks, exp(total->nll / (double)total->n),
            seconds / (double)chunk * (double)(n_chunks - chunk));
}

static void show_result(const score *total) {
    double n = (double)total->n;
    double mean = total->nll / n;
    double variance = total->nll2 / n - mean * mean;
    double ppl = exp(mean);
    double error = variance > 0 && total->n > 1 ? sqrt(variance / (n - 1)) * ppl : 0;
    printf("PPL = %.4f +/- %.5f\n", ppl, error);
}

static int score_all(k1_runtime *runtime, const settings *s, k1_tokens *tokens, float *logits, k1_err *err) {
    size_t n_chunks = tokens->n / s->n_ctx;
    if (s->chunks > 0 && s->chunks < n_chunks) {
        n_chunks = s->chunks;
    }
    int32_t bos = k1_tokenizer_bos(runtime->tokenizer);
    bool leads = k1_tokenizer_adds_bos(runtime->tokenizer);
    score total = {0};
    int64_t begun = k1_now_ns();
    for (size_t i = 0; i < n_chunks; i++) {
        int32_t *ids = tokens->ids + i * s->n_ctx;
        if (leads) {
            ids[0] = bos;
        }
        if (score_chunk(runtime, ids, s->n_ctx, logits, &total, err) != 0) {
            return -1;
        }
        show_progress(i + 1, n_chunks, &total, begun);
    }
    show_result(&total);
    return 0;
}

static int measure(k1_runtime *runtime, const settings *s, const k1_text *text, k1_err *err) {
    k1_tokens tokens = {0};
    size_t n_vocab = k1_model_hparams(runtime->model)->n_vocab;
    float *logits = calloc(n_vocab * SCORED_AT_ONCE, sizeof *logits);
    int failed = logits == NULL
                     ? k1_fail(err, "out of memory")
                     : k1_tokenizer_encode_first(runtime->tokenizer, text->data, text->n, false, &tokens, err);
    if (failed == 0 && tokens.n < 2 * (size_t)s->n_ctx) {
        failed = k1_fail(err, "%s: has %zu tokens, and two chunks of n_ctx %u need %zu; take a longer text", s->file,
                         tokens.n, s->n_ctx, 2 * (size_t)s->n_ctx);
    }
    if (failed == 0) {
        failed = score_all(runtime, s, &tokens, logits, err);
    }
    free(tokens.ids);
    free(logits);
    return failed;
}

static int run(const void *arg, k1_err *err) {
    const settings *s = arg;
    k1_runtime runtime = {0};
    k1_text text = {0};
    k1_runtime_config config = {.model = s->model,
                                .n_ctx = s->n_ctx,
                                .n_batch = s->n_batch,
                                .n_threads = s->n_threads,
                                .cpu_list = s->cpu_list};
    int failed = 0;
    if (s->model == NULL || s->file == NULL) {
        failed = k1_fail(err, "give both --model FILE, a GGUF file, and --file TEXT");
    } else {
        failed = read_text(s->file, &text, err) != 0 || k1_runtime_open(&runtime, &config, err) != 0 ||
                 k1_runtime_start(&runtime, err) != 0 || measure(&runtime, s, &text, err) != 0;
    }
    k1_runtime_close(&runtime);
    free(text.data);
    return failed ? K1_EXIT_USER : K1_EXIT_OK;
}

int k1_bench_perplexity(int argc, char **argv) {
    settings s = {0};
    const k1_option table[] = {
        {"model", 'm', K1_OPTION_TEXT, &s.model, NULL, 0, 0, "FILE", "the model, a GGUF file", NULL},
        {"file", 'f', K1_OPTION_TEXT, &s.file, NULL, 0, 0, "TEXT", "the text to predict", NULL},
        {"n_ctx", 'c', K1_OPTION_U32, &s.n_ctx, "512", 8, 1 << 20, "N", "tokens of a chunk", NULL},
        {"n_batch", 'b', K1_OPTION_U32, &s.n_batch, "512", 1, 1 << 16, "N", "tokens taken at a time", NULL},
        {"chunks", 0, K1_OPTION_U32, &s.chunks, "0", 0, 0, "N", "stop after N chunks; 0: all", NULL},
        {"n_threads", 't', K1_OPTION_U32, &s.n_threads, NULL, 1, K1_MAX_THREADS, "N",
         "compute threads (default: one per physical core)", NULL},
        {"cpu_list", 0, K1_OPTION_TEXT, &s.cpu_list, NULL, 0, 0, "LIST", "CPUs to compute on, such as 0,2-3", NULL},
    };
    const k1_options options = {"k1-bench perplexity",
                                "--model FILE --file TEXT [options]",
                                "Measure how well a model predicts a text.",
                                table,
                                sizeof table / sizeof *table,
                                NULL};
    return k1_bench_run(&options, argc, argv, run, &s);
}
