/* Any bytes as a GGUF file: refused with a reason, or read without a step outside of them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "k1/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Read every byte that the reader hands out. */
static unsigned touch(const void *data, size_t n) {
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((const uint8_t *)data)[i];
    }
    return sum;
}

/* Ask for a key in every way there is. */
static unsigned read_key(const k1_gguf *gguf, const char *key) {
    uint32_t integer;
    float real;
    bool yes;
    k1_str text;
    const k1_str *texts;
    const float *reals;
    const int32_t *integers;
    unsigned sum = k1_gguf_u32(gguf, key, &integer) ? integer : 0;
    sum += k1_gguf_f32(gguf, key, &real) ? touch(&real, sizeof real) : 0;
    sum += k1_gguf_bool(gguf, key, &yes) ? yes : 0;
    sum += k1_gguf_str(gguf, key, &text) ? touch(text.data, text.len) : 0;
    size_t n = k1_gguf_strs(gguf, key, &texts);
    for (size_t i = 0; i < n; i++) {
        sum += touch(texts[i].data, texts[i].len);
    }
    n = k1_gguf_f32s(gguf, key, &reals);
    sum += touch(reals, n * sizeof *reals);
    n = k1_gguf_i32s(gguf, key, &integers);
    return sum + touch(integers, n * sizeof *integers);
}

static void check_tensor(const k1_gguf *gguf, const k1_tensor *tensor) {
    if (k1_gguf_tensor(gguf, tensor->name) != tensor || tensor->ne[0] % k1_dtype_block(tensor->type) != 0) {
        abort();
    }
    volatile unsigned sum = touch(tensor->data, tensor->bytes);
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const keys[] = {"general.architecture", "general.alignment", "a", "b", "c", "d", "e"};
    void *copy = NULL;
    if (posix_memalign(&copy, 64, size > 0 ? size : 1) != 0) {
        return 0;
    }
    if (size > 0) {
        memcpy(copy, data, size);
    }
    k1_err err = {""};
    k1_gguf *gguf = k1_gguf_parse(copy, size, &err);
    if ((gguf == NULL) != (err.text[0] != '\0')) {
        abort();
    }
    for (size_t i = 0; gguf != NULL && i < sizeof keys / sizeof keys[0]; i++) {
        volatile unsigned sum = read_key(gguf, keys[i]);
        (void)sum;
    }
    for (size_t i = 0; gguf != NULL && i < k1_gguf_n_tensors(gguf); i++) {
        check_tensor(gguf, k1_gguf_tensor_at(gguf, i));
    }
    k1_gguf_close(gguf);
    free(copy);
    return 0;
}
