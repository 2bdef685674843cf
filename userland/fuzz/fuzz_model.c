/* Any bytes as a model: refused with a reason, or run for a few tokens without a step outside of its tensors. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "k1/engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_CTX = 4, N_BATCH = 2, N_TOKENS = 3, MAX_BYTES = 8 << 20 };

static void must(bool holds) {
    if (!holds) {
        abort();
    }
}

static void run(k1_model *model) {
    const k1_hparams *hp = k1_model_hparams(model);
    const int32_t ids[N_TOKENS] = {0, (int32_t)(hp->n_vocab - 1), (int32_t)(hp->n_vocab / 2)};
    k1_err err = {""};
    if (k1_memory_needed(model, N_CTX, N_BATCH, 0, hp->n_layer) > MAX_BYTES) {
        return;
    }
    k1_seq *seq = k1_seq_new(model, N_CTX, N_BATCH, 0, hp->n_layer, &err);
    float *logits = calloc(hp->n_vocab, sizeof *logits);
    must(seq != NULL && logits != NULL);
    must(k1_forward(seq, NULL, ids, NULL, N_TOKENS, NULL, K1_LOGITS_LAST, logits, &err) == 0);
    free(logits);
    k1_seq_free(seq);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    void *copy = NULL;
    if (size == 0 || posix_memalign(&copy, 64, size) != 0) {
        return 0;
    }
    memcpy(copy, data, size);
    k1_err err = {""};
    k1_gguf *gguf = k1_gguf_parse(copy, size, &err);
    k1_model *model = gguf == NULL ? NULL : k1_model_new(gguf, &k1_kernels_scalar, &err);
    must((model == NULL) == (err.text[0] != '\0'));
    if (model != NULL) {
        run(model);
    }
    k1_model_free(model);
    k1_gguf_close(gguf);
    free(copy);
    return 0;
}
