/* What tests share: bytes that grow, and a writer of small GGUF files. No memory: abort, this is a test. */
#ifndef K1_TESTS_SUPPORT_H
#define K1_TESTS_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "k1/gguf.h"

/* Bytes that grow; zero-initialise, free data with free(). */
typedef struct k1t_bytes {
    uint8_t *data;
    size_t n;
    size_t capacity;
} k1t_bytes;

void k1t_put(k1t_bytes *bytes, const void *data, size_t n);
void k1t_put_u32(k1t_bytes *bytes, uint32_t value);
void k1t_put_u64(k1t_bytes *bytes, uint64_t value);
/* A string as GGUF has it: the length in 8 bytes, then the bytes. */
void k1t_put_str(k1t_bytes *bytes, const char *text);
void k1t_put_strn(k1t_bytes *bytes, const char *text, size_t len);

/* A GGUF file in the making: zero-initialise, add keys and tensors in any order, then finish once. */
typedef struct k1t_gguf {
    k1t_bytes kvs;
    k1t_bytes infos;
    k1t_bytes data;
    uint64_t n_kvs;
    uint64_t n_tensors;
    uint32_t version;   /* 0 means 3 */
    uint32_t alignment; /* 0 means 32; another one is also written as general.alignment */
} k1t_gguf;

void k1t_u32(k1t_gguf *file, const char *key, uint32_t value);
void k1t_f32(k1t_gguf *file, const char *key, float value);
void k1t_bool(k1t_gguf *file, const char *key, bool value);
void k1t_str(k1t_gguf *file, const char *key, const char *value);
void k1t_strs(k1t_gguf *file, const char *key, const char *const *values, size_t n);
void k1t_f32s(k1t_gguf *file, const char *key, const float *values, size_t n);
void k1t_i32s(k1t_gguf *file, const char *key, const int32_t *values, size_t n);
/* Any other value: its type number, then its bytes as they stand in the file. */
void k1t_value(k1t_gguf *file, const char *key, uint32_t type, const void *value, size_t bytes);
/* A tensor of n_dims dimensions, innermost first; data NULL means zeros. */
void k1t_tensor(k1t_gguf *file, const char *name, k1_dtype type, const uint64_t *ne, uint32_t n_dims, const void *data,
                size_t bytes);
/* A tensor's description alone, with whatever it says. */
void k1t_info(k1t_gguf *file, const char *name, uint32_t type, const uint64_t *ne, uint32_t n_dims, uint64_t offset);

/* The whole file, aligned to 64 bytes, and free what the writer holds. Free the result with free(). */
uint8_t *k1t_finish(k1t_gguf *file, size_t *size);
/* An aligned copy of any bytes, to be parsed and freed. */
uint8_t *k1t_aligned(const void *data, size_t size);
/* Write bytes to a new file below TMPDIR (else the system's own) and put its path into path. */
void k1t_write_file(char *path, size_t capacity, const void *data, size_t size);

/* Write a fuzzer's seed to PREFIXname.seed. 0, or -1 after the reason was told on stderr. */
int k1t_seed(const char *prefix, const char *name, const void *data, size_t size);
int k1t_seed_gguf(const char *prefix, const char *name, k1t_gguf *file); /* finishes the file */

/* A new folder in the same place, for files that stand in for /proc and /sys; free the path by k1t_remove. */
char *k1t_folder(void);
/* Write root/path, making its folders. */
void k1t_text(const char *root, const char *path, const char *text);
/* Remove the folder with all in it. */
void k1t_remove(char *root);

#endif
