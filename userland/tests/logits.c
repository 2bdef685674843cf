/* For tests/integration/test_engine.py: token ids on stdin, raw float logits of every token on stdout.
 * logits MODEL [threads=N] [chunk=N] [batch=N] [ctx=N] [split=LAYER] [kernels=NAME]
 * chunk: tokens per call (0: all); batch: tokens per pass; split: two pipeline stages that meet at this layer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "k1/engine.h"

typedef struct options {
    uint32_t threads;
    uint32_t chunk;
    uint32_t batch;
    uint32_t ctx;
    uint32_t split;
    const char *kernels;
} options;

typedef struct run {
    k1_gguf *gguf;
    k1_model *model;
    k1_seq *head;
    k1_seq *tail; /* NULL without a split */
    k1_threadpool *pool;
    int32_t *ids;
    uint32_t n_ids;
    float *hidden;
    float *logits;
} run;

static int parse_options(int argc, char **argv, options *o) {
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value == NULL) {
            return -1;
        }
        *value++ = '\0';
        if (strcmp(argv[i], "kernels") == 0) {
            o->kernels = value;
            continue;
        }
        uint32_t n = (uint32_t)strtoul(value, NULL, 10);
        const char *names[] = {"threads", "chunk", "batch", "ctx", "split"};
        uint32_t *fields[] = {&o->threads, &o->chunk, &o->batch, &o->ctx, &o->split};
        for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
            if (strcmp(argv[i], names[f]) == 0) {
                *fields[f] = n;
            }
        }
    }
    return 0;
}

static int read_ids(run *r) {
    size_t capacity = 0;
    for (int32_t id; scanf("%" SCNd32, &id) == 1; r->n_ids++) {
        if (r->n_ids == capacity) {
            capacity = capacity * 2 + 64;
            int32_t *grown = realloc(r->ids, capacity * sizeof *grown);
            if (grown == NULL) {
                return -1;
            }
            r->ids = grown;
        }
        r->ids[r->n_ids] = id;
    }
    return 0;
}

static int set_up(run *r, const char *path, options *o, k1_err *err) {
    const k1_kernels *kernels = k1_kernels_pick(o->kernels);
    if (kernels == NULL || read_ids(r) != 0) {
        return k1_fail(err, "no such kernels, or no memory");
    }
    r->gguf = k1_gguf_open(path, err);
    r->model = r->gguf != NULL ? k1_model_new(r->gguf, kernels, err) : NULL;
    if (r->model == NULL) {
        return -1;
    }
    const k1_hparams *hp = k1_model_hparams(r->model);
    uint32_t middle = o->split != 0 ? o->split : hp->n_layer;
    r->head = k1_seq_new(r->model, o->ctx, o->batch, 0, middle, err);
    if (r->head == NULL) {
        return -1;
    }
    if (o->split != 0) {
        r->tail = k1_seq_new(r->model, o->ctx, o->batch, middle, hp->n_layer, err);
        if (r->tail == NULL) {
            return -1;
        }
    }
    r->pool = o->threads > 1 ? k1_threadpool_new(o->threads, NULL, err) : NULL;
    if (o->threads > 1 && r->pool == NULL) {
        return -1;
    }
    o->chunk = o->chunk != 0 && o->chunk < r->n_ids ? o->chunk : r->n_ids;
    r->hidden = calloc((size_t)o->chunk * hp->n_embd + 1, sizeof(float));
    r->logits = calloc((size_t)o->chunk * hp->n_vocab + 1, sizeof(float));
    return r->hidden != NULL && r->logits != NULL ? 0 : k1_fail(err, "no memory");
}

static int step(run *r, const int32_t *ids, uint32_t n, k1_err *err) {
    if (k1_forward(r->head, r->pool, ids, NULL, n, r->hidden, K1_LOGITS_ALL, r->logits, err) != 0) {
        return -1;
    }
    return r->tail == NULL ? 0 : k1_forward(r->tail, r->pool, NULL, r->hidden, n, NULL, K1_LOGITS_ALL, r->logits, err);
}

static int print_all(run *r, const options *o, k1_err *err) {
    size_t n_vocab = k1_model_hparams(r->model)->n_vocab;
    for (uint32_t done = 0; done < r->n_ids;) {
        uint32_t n = r->n_ids - done < o->chunk ? r->n_ids - done : o->chunk;
        if (step(r, r->ids + done, n, err) != 0) {
            return -1;
        }
        if (fwrite(r->logits, n_vocab * sizeof(float), n, stdout) != n) {
            return k1_fail(err, "cannot write to stdout");
        }
        done += n;
    }
    return fflush(stdout) == 0 ? 0 : k1_fail(err, "cannot write to stdout");
}

static void tear_down(run *r) {
    free(r->logits);
    free(r->hidden);
    free(r->ids);
    k1_threadpool_free(r->pool);
    k1_seq_free(r->tail);
    k1_seq_free(r->head);
    k1_model_free(r->model);
    k1_gguf_close(r->gguf);
}

int main(int argc, char **argv) {
    options o = {.threads = 1, .batch = 512, .ctx = 2048};
    run r = {0};
    k1_err err = {{0}};
    if (argc < 2 || parse_options(argc, argv, &o) != 0) {
        (void)fputs("usage: logits MODEL [threads=N] [chunk=N] [batch=N] [ctx=N] [split=LAYER] [kernels=NAME]\n",
                    stderr);
        return 2;
    }
    int status = set_up(&r, argv[1], &o, &err) == 0 && print_all(&r, &o, &err) == 0 ? 0 : 2;
    if (status != 0) {
        (void)fprintf(stderr, "%s\n", err.text);
    }
    tear_down(&r);
    return status;
}
