/* GGUF files, versions 2 and 3, read through a memory map.
 * Format: ggml/docs/gguf.md. Every count, length, offset, dimension and type is checked against the file. */
#ifndef K1_GGUF_H
#define K1_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "k1/error.h"

/* Tensor types by their GGUF numbers; those not listed are refused when the file is opened. */
typedef enum k1_dtype {
    K1_F32 = 0,
    K1_F16 = 1,
    K1_Q4_0 = 2,
    K1_Q4_1 = 3,
    K1_Q5_0 = 6,
    K1_Q8_0 = 8,
    K1_Q4_K = 12,
    K1_Q6_K = 14,
    K1_BF16 = 30,
} k1_dtype;

/* Values in a block, and bytes of a block; 0 for a type that is not known. */
size_t k1_dtype_block(k1_dtype type);
size_t k1_dtype_block_bytes(k1_dtype type);
const char *k1_dtype_name(k1_dtype type);

/* One tensor. ne[0] is the innermost dimension (a row's length); unused dimensions are 1.
 * data points into the map, aligned as the file says (general.alignment, 32 by default). */
typedef struct k1_tensor {
    const char *name; /* NUL-terminated, owned by the k1_gguf */
    k1_dtype type;
    uint32_t n_dims;
    uint64_t ne[4];
    const void *data;
    size_t bytes;
} k1_tensor;

/* A string of the file: not NUL-terminated, may hold any bytes. */
typedef struct k1_str {
    const char *data;
    size_t len;
} k1_str;

bool k1_str_is(k1_str str, const char *text);
/* By bytes; of two that begin alike the shorter goes first. */
int k1_str_compare(k1_str a, k1_str b);

typedef struct k1_gguf k1_gguf;

/* Map and check a file. NULL and err on any fault; the error names the key or tensor. */
k1_gguf *k1_gguf_open(const char *path, k1_err *err);
/* The same for bytes that the caller keeps alive (tests, fuzzing). data must be aligned to 64 bytes. */
k1_gguf *k1_gguf_parse(const void *data, size_t size, k1_err *err);
void k1_gguf_close(k1_gguf *gguf);

/* Metadata. Each returns false when the key is absent or of another type; integers of any width and sign are
 * accepted where the value fits. */
bool k1_gguf_has(const k1_gguf *gguf, const char *key);
bool k1_gguf_u32(const k1_gguf *gguf, const char *key, uint32_t *value);
bool k1_gguf_f32(const k1_gguf *gguf, const char *key, float *value);
bool k1_gguf_bool(const k1_gguf *gguf, const char *key, bool *value);
bool k1_gguf_str(const k1_gguf *gguf, const char *key, k1_str *value);
/* Arrays: the number of elements, 0 when absent or of another element type. Index must be below it. */
size_t k1_gguf_strs(const k1_gguf *gguf, const char *key, const k1_str **values);
size_t k1_gguf_f32s(const k1_gguf *gguf, const char *key, const float **values);
size_t k1_gguf_i32s(const k1_gguf *gguf, const char *key, const int32_t **values);

size_t k1_gguf_n_tensors(const k1_gguf *gguf);
const k1_tensor *k1_gguf_tensor_at(const k1_gguf *gguf, size_t index);
const k1_tensor *k1_gguf_tensor(const k1_gguf *gguf, const char *name); /* NULL when absent */
/* SHA-256 of the whole file, computed at the first call. 0, or -1 when it cannot be read. */
int k1_gguf_sha256(k1_gguf *gguf, uint8_t digest[32]);

#endif
