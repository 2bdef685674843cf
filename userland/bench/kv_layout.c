/* kv_layout: decodes against a KV cache in one of the engine's layouts and does nothing else, so that a cache simulator
 * can compare them (make bench-kv). The weights that stream through the cache between layers favour neither. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../engine/internal.h"
#include "bench.h"

typedef struct settings {
    char *layout;
    uint32_t n_layer, n_head, n_head_kv, head_dim, n_rows, n_past, n_tokens;
} settings;

/* What a token needs beside the cache. */
typedef struct work {
    const k1_kernels *kernels;
    k1_kv kv;
    float *q;   /* float[head_dim]; serves as the token's key and value too */
    float *out; /* float[head_dim] */
    double sum; /* of all that came out */
} work;

static int read_layout(const char *name, k1_kv_layout *layout, k1_err *err) {
    bool layer = strcmp(name, "layer") == 0;
    if (!layer && strcmp(name, "head") != 0) {
        return k1_fail(err, "layout: \"%.40s\" is neither layer nor head", name);
    }
    *layout = layer ? K1_KV_LAYER_FIRST : K1_KV_HEAD_FIRST;
    return 0;
}

static int check(const settings *s, k1_err *err) {
    if (s->n_head % s->n_head_kv != 0) {
        return k1_fail(err, "n_head: %u is no multiple of n_head_kv %u", s->n_head, s->n_head_kv);
    }
    if (s->n_tokens > s->n_rows || s->n_past > s->n_rows - s->n_tokens) {
        return k1_fail(err, "n_past: %u and %u tokens do not fit into n_rows %u", s->n_past, s->n_tokens, s->n_rows);
    }
    return 0;
}

/* A key and a value that tell layer, head and position apart. */
static void store(work *w, const settings *s, uint32_t layer, uint32_t head, uint32_t pos) {
    for (uint32_t i = 0; i < s->head_dim; i++) {
        w->q[i] = (float)((layer * 31 + head * 17 + pos * 7 + i * 3) % 64) / 64.0f - 0.5f;
    }
    size_t at = (size_t)pos * s->head_dim;
    w->kernels->to_f16(w->q, k1_kv_keys(&w->kv, layer, head) + at, s->head_dim);
    w->kernels->to_f16(w->q, k1_kv_values(&w->kv, layer, head) + at, s->head_dim);
}

static void decode(work *w, const settings *s, uint32_t pos) {
    k1_mask mask = {NULL, 0, pos};
    for (uint32_t layer = 0; layer < s->n_layer; layer++) {
        for (uint32_t head = 0; head < s->n_head_kv; head++) {
            store(w, s, layer, head, pos);
        }
        for (uint32_t h = 0; h < s->n_head; h++) {
            uint32_t head = h / (s->n_head / s->n_head_kv);
            k1_attend(w->kernels, w->q, k1_kv_keys(&w->kv, layer, head), k1_kv_values(&w->kv, layer, head), s->head_dim,
                      0.125f, &mask, 0, pos + 1, w->out);
            w->sum += (double)w->out[h % s->head_dim];
        }
    }
}

static void decode_all(work *w, const settings *s) {
    for (uint32_t pos = 0; pos < s->n_past; pos++) {
        for (uint32_t layer = 0; layer < s->n_layer; layer++) {
            for (uint32_t head = 0; head < s->n_head_kv; head++) {
                store(w, s, layer, head, pos);
            }
        }
    }
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        decode(w, s, s->n_past + i);
    }
    printf("%.9g\n", w->sum);
}

static int run(const void *arg, k1_err *err) {
    const settings *s = arg;
    k1_kv_layout layout = K1_KV_LAYER_FIRST;
    k1_hparams hp = {.n_head_kv = s->n_head_kv, .head_dim = s->head_dim};
    work w = {.kernels = k1_kernels_pick(NULL)};
    if (read_layout(s->layout, &layout, err) != 0 || check(s, err) != 0 ||
        k1_kv_init(&w.kv, &hp, s->n_rows, s->n_layer, layout, err) != 0) {
        return K1_EXIT_USER;
    }
    w.q = calloc(s->head_dim, sizeof *w.q);
    w.out = calloc(s->head_dim, sizeof *w.out);
    bool made = w.q != NULL && w.out != NULL;
    if (made) {
        decode_all(&w, s);
    }
    free(w.q);
    free(w.out);
    k1_kv_free(&w.kv);
    return made ? K1_EXIT_OK : (k1_fail(err, "out of memory"), K1_EXIT_USER);
}

int main(int argc, char **argv) {
    settings s = {0};
    const k1_option table[] = {
        {"layout", 0, K1_OPTION_TEXT, &s.layout, "layer", 0, 0, "NAME",
         "layer: [layer][kv_head][pos][dim], head: [kv_head][layer][pos][dim]", NULL},
        {"n_layer", 0, K1_OPTION_U32, &s.n_layer, "30", 1, 1 << 12, "N", "layers", NULL},
        {"n_head", 0, K1_OPTION_U32, &s.n_head, "9", 1, 1 << 12, "N", "heads", NULL},
        {"n_head_kv", 0, K1_OPTION_U32, &s.n_head_kv, "3", 1, 1 << 12, "N", "heads of keys and values", NULL},
        {"head_dim", 0, K1_OPTION_U32, &s.head_dim, "64", 32, 1 << 12, "N", "values of a head", NULL},
        {"n_rows", 0, K1_OPTION_U32, &s.n_rows, "2048", 1, 1 << 20, "N", "positions that the cache has", NULL},
        {"n_past", 0, K1_OPTION_U32, &s.n_past, "512", 0, 1 << 20, "N", "positions that are full before", NULL},
        {"n_tokens", 0, K1_OPTION_U32, &s.n_tokens, "4", 0, 1 << 20, "N", "tokens to decode", NULL},
    };
    const k1_options options = {"kv_layout",
                                "[options]",
                                "Decode against a KV cache, for a cache simulator; the defaults are SmolLM2's.",
                                table,
                                sizeof table / sizeof *table,
                                NULL};
    return k1_bench_run(&options, argc, argv, run, &s);
}
