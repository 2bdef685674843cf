#include "k1/gguf.h"

/* Block sizes: ggml/src/ggml-common.h. Types without bytes are known by name only, for the error message. */
static const struct {
    const char *name;
    uint16_t block;
    uint16_t bytes;
} types[] = {
    [K1_F32] = {"F32", 1, 4},
    [K1_F16] = {"F16", 1, 2},
    [K1_Q4_0] = {"Q4_0", 32, 2 + 16},
    [K1_Q4_1] = {"Q4_1", 32, 2 + 2 + 16},
    [K1_Q5_0] = {"Q5_0", 32, 2 + 4 + 16},
    [7] = {"Q5_1", 0, 0},
    [K1_Q8_0] = {"Q8_0", 32, 2 + 32},
    [10] = {"Q2_K", 0, 0},
    [11] = {"Q3_K", 0, 0},
    [K1_Q4_K] = {"Q4_K", 256, 2 + 2 + 12 + 128},
    [13] = {"Q5_K", 0, 0},
    [K1_Q6_K] = {"Q6_K", 256, 128 + 64 + 16 + 2},
    [16] = {"IQ2_XXS", 0, 0},
    [17] = {"IQ2_XS", 0, 0},
    [18] = {"IQ3_XXS", 0, 0},
    [19] = {"IQ1_S", 0, 0},
    [20] = {"IQ4_NL", 0, 0},
    [21] = {"IQ3_S", 0, 0},
    [22] = {"IQ2_S", 0, 0},
    [23] = {"IQ4_XS", 0, 0},
    [29] = {"IQ1_M", 0, 0},
    [K1_BF16] = {"BF16", 1, 2},
};

static int is_listed(k1_dtype type) {
    return (unsigned)type < sizeof types / sizeof types[0] && types[type].name != NULL;
}

size_t k1_dtype_block(k1_dtype type) { return is_listed(type) ? types[type].block : 0; }

size_t k1_dtype_block_bytes(k1_dtype type) { return is_listed(type) ? types[type].bytes : 0; }

const char *k1_dtype_name(k1_dtype type) { return is_listed(type) ? types[type].name : "of no known name"; }
