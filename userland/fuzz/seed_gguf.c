/* Writes the seeds of fuzz_gguf to PREFIXname.seed: small good files, and one of each neighbouring format. */
#include <stdio.h>

#include "support.h"

static void add_scalars(k1t_gguf *file) {
    for (uint32_t type = 0; type <= 12; type++) {
        static const uint8_t bytes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
        const char key[] = {(char)('a' + type), '\0'};
        if (bytes[type] > 0) {
            k1t_value(file, key, type, NULL, bytes[type]);
        }
    }
}

static void add_arrays(k1t_gguf *file) {
    static const char *const words[] = {"<s>", "", "hello"};
    static const float reals[] = {1, 2};
    static const int32_t integers[] = {1, 2, 3};
    k1t_str(file, "general.architecture", "llama");
    k1t_strs(file, "a", words, 3);
    k1t_f32s(file, "b", reals, 2);
    k1t_i32s(file, "c", integers, 3);
}

static void add_tensors(k1t_gguf *file) {
    static const struct {
        const char *name;
        k1_dtype type;
        uint64_t ne[2];
    } tensors[] = {
        {"f32", K1_F32, {3, 2}},    {"f16", K1_F16, {5, 1}},    {"q4_0", K1_Q4_0, {32, 2}},
        {"q4_1", K1_Q4_1, {32, 1}}, {"q8_0", K1_Q8_0, {64, 1}}, {"q6_k", K1_Q6_K, {256, 1}},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        size_t blocks = (size_t)(tensors[i].ne[0] * tensors[i].ne[1]) / k1_dtype_block(tensors[i].type);
        k1t_tensor(file, tensors[i].name, tensors[i].type, tensors[i].ne, 2, NULL,
                   blocks * k1_dtype_block_bytes(tensors[i].type));
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s PREFIX\n", argv[0]);
        return 2;
    }
    k1t_gguf scalars = {0}, arrays = {.version = 2}, tensors = {.alignment = 8}, all = {0}, none = {0};
    add_scalars(&scalars);
    add_arrays(&arrays);
    add_tensors(&tensors);
    add_arrays(&all);
    add_tensors(&all);
    int result = k1t_seed_gguf(argv[1], "scalars", &scalars);
    result |= k1t_seed_gguf(argv[1], "arrays", &arrays);
    result |= k1t_seed_gguf(argv[1], "tensors", &tensors);
    result |= k1t_seed_gguf(argv[1], "all", &all);
    result |= k1t_seed_gguf(argv[1], "none", &none);
    result |= k1t_seed(argv[1], "pickle", "\x80\x02}q", 4);
    result |= k1t_seed(argv[1], "html", "<!DOCTYPE html>", 15);
    result |= k1t_seed(argv[1], "safetensors", "\x02\0\0\0\0\0\0\0{}", 10);
    return result == 0 ? 0 : 1;
}
