#include "k1/runtime.h"

#include <stdlib.h>
#include <string.h>

const char k1_no_logits[] = "the model gives no usable logits; its file may be damaged, fetch it again";

#include "k1/utf8.h"

int k1_runtime_place(k1_runtime *runtime, const k1_runtime_config *config, k1_err *err) {
    size_t n = 0;
    k1_err why;
    if (config->cpu_list != NULL) {
        if (k1_cpu_list(config->cpu_list, runtime->cpus, K1_MAX_THREADS, &n, &why) != 0) {
            return k1_fail(err, "cpu_list: %.480s", why.text);
        }
        if (config->n_threads > n) {
            return k1_fail(err, "n_threads: %u threads do not fit the %zu CPUs of cpu_list \"%s\"; leave n_threads out",
                           config->n_threads, n, config->cpu_list);
        }
    } else {
        n = k1_topology_cpus("", runtime->cpus, K1_MAX_THREADS);
        n = n < K1_MAX_THREADS ? n : K1_MAX_THREADS;
    }
    runtime->n_threads = config->n_threads > 0 ? config->n_threads : n > 0 ? (uint32_t)n : 1;
    /* More threads than cores: the kernel places them better than we could. */
    runtime->pinned = runtime->n_threads <= n;
    return 0;
}

/* UTF-8, as it goes into JSON: '?' for what is none, and no half character at the end. */
static void copy_plain(char *out, size_t capacity, const char *text, size_t len) {
    size_t used = 0;
    for (size_t at = 0; at < len;) {
        int n = k1_utf8_next((const uint8_t *)text + at, len - at, NULL);
        size_t taken = n > 0 ? (size_t)n : 1;
        if (used + taken >= capacity) {
            break;
        }
        memcpy(out + used, n > 0 ? text + at : "?", taken);
        used += taken;
        at += taken;
    }
    out[used] = '\0';
}

static void set_name(k1_runtime *runtime, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    size_t len = strlen(name);
    if (len > 5 && strcmp(name + len - 5, ".gguf") == 0) {
        len -= 5;
    }
    copy_plain(runtime->name, sizeof runtime->name, name, len);
}

static int pick_kernels(k1_runtime *runtime, k1_err *err) {
    const char *wanted = getenv("K1_KERNELS");
    runtime->kernels = k1_kernels_pick(wanted);
    if (runtime->kernels == NULL) {
        return k1_fail(err, "K1_KERNELS: no kernels \"%.40s\" for this processor; unset it", wanted ? wanted : "");
    }
    return 0;
}

static int open_model(k1_runtime *runtime, const k1_runtime_config *config, k1_err *err) {
    runtime->gguf = k1_gguf_open(config->model, err);
    if (runtime->gguf == NULL) {
        return -1;
    }
    runtime->tokenizer = k1_tokenizer_new(runtime->gguf, err);
    if (runtime->tokenizer == NULL) {
        return -1;
    }
    runtime->model = k1_model_new(runtime->gguf, runtime->kernels, err);
    if (runtime->model == NULL) {
        return -1;
    }
    const k1_hparams *hp = k1_model_hparams(runtime->model);
    if (hp->n_vocab != k1_tokenizer_n_vocab(runtime->tokenizer)) {
        return k1_fail(err, "%s: %u tokens in the vocabulary, but %u rows in the output matrix; convert the model anew",
                       config->model, k1_tokenizer_n_vocab(runtime->tokenizer), hp->n_vocab);
    }
    if (config->no_seq) {
        return 0;
    }
    runtime->seq = k1_seq_new(runtime->model, runtime->n_ctx, runtime->n_batch, 0, hp->n_layer, err);
    return runtime->seq == NULL ? -1 : 0;
}

int k1_runtime_open(k1_runtime *runtime, const k1_runtime_config *config, k1_err *err) {
    *runtime = (k1_runtime){.n_ctx = config->n_ctx};
    runtime->n_batch = config->n_batch < config->n_ctx ? config->n_batch : config->n_ctx;
    set_name(runtime, config->model);
    if (k1_runtime_place(runtime, config, err) != 0 || pick_kernels(runtime, err) != 0 ||
        open_model(runtime, config, err) != 0) {
        return -1;
    }
    uint32_t n_vocab = k1_model_hparams(runtime->model)->n_vocab;
    runtime->logits = calloc(n_vocab, sizeof *runtime->logits);
    runtime->scratch = malloc(k1_sample_scratch(n_vocab));
    if (runtime->logits == NULL || runtime->scratch == NULL) {
        return k1_fail(err, "%s: out of memory", config->model);
    }
    return 0;
}

int k1_runtime_start(k1_runtime *runtime, k1_err *err) {
    runtime->pool = k1_threadpool_new(runtime->n_threads, runtime->pinned ? runtime->cpus : NULL, err);
    return runtime->pool == NULL ? -1 : 0;
}

void k1_runtime_stop(k1_runtime *runtime) {
    if (runtime->pool != NULL) {
        k1_threadpool_free(runtime->pool);
        runtime->pool = NULL;
    }
}

void k1_runtime_close(k1_runtime *runtime) {
    k1_runtime_stop(runtime);
    free(runtime->logits);
    free(runtime->scratch);
    if (runtime->seq != NULL) {
        k1_seq_free(runtime->seq);
    }
    if (runtime->model != NULL) {
        k1_model_free(runtime->model);
    }
    if (runtime->tokenizer != NULL) {
        k1_tokenizer_free(runtime->tokenizer);
    }
    if (runtime->gguf != NULL) {
        k1_gguf_close(runtime->gguf);
    }
    *runtime = (k1_runtime){0};
}

int k1_runtime_step(k1_runtime *runtime, k1_seq *seq, k1_request *request, k1_text *out, k1_err *err) {
    if (request->n_fed == 0) {
        k1_seq_truncate(seq, 0);
    }
    const int32_t *ids;
    bool last;
    size_t n = k1_request_feed(request, runtime->n_batch, &ids, &last);
    if (n == 0) {
        return 0;
    }
    if (k1_forward(seq, runtime->pool, ids, NULL, (uint32_t)n, NULL, last ? K1_LOGITS_LAST : K1_LOGITS_NONE,
                   runtime->logits, err) != 0) {
        return -1;
    }
    k1_request_fed(request, n);
    if (!last) {
        return 0;
    }
    int32_t token = k1_request_sample(request, runtime->logits, runtime->scratch);
    if (token < 0) {
        return k1_fail(err, "%s", k1_no_logits);
    }
    return k1_request_accept(request, token, out, err);
}
