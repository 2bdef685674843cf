#include "support.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

static void need(bool condition) {
    if (!condition) {
        abort();
    }
}

void k1t_put(k1t_bytes *bytes, const void *data, size_t n) {
    if (bytes->n + n > bytes->capacity) {
        bytes->capacity = 2 * (bytes->n + n);
        bytes->data = realloc(bytes->data, bytes->capacity);
        need(bytes->data != NULL);
    }
    if (n == 0) {
        return;
    }
    if (data != NULL) {
        memcpy(bytes->data + bytes->n, data, n);
    } else {
        memset(bytes->data + bytes->n, 0, n);
    }
    bytes->n += n;
}

void k1t_put_u32(k1t_bytes *bytes, uint32_t value) { k1t_put(bytes, &value, sizeof value); }

void k1t_put_u64(k1t_bytes *bytes, uint64_t value) { k1t_put(bytes, &value, sizeof value); }

void k1t_put_strn(k1t_bytes *bytes, const char *text, size_t len) {
    k1t_put_u64(bytes, len);
    k1t_put(bytes, text, len);
}

void k1t_put_str(k1t_bytes *bytes, const char *text) { k1t_put_strn(bytes, text, strlen(text)); }

void k1t_value(k1t_gguf *file, const char *key, uint32_t type, const void *value, size_t bytes) {
    k1t_put_str(&file->kvs, key);
    k1t_put_u32(&file->kvs, type);
    k1t_put(&file->kvs, value, bytes);
    file->n_kvs++;
}

void k1t_u32(k1t_gguf *file, const char *key, uint32_t value) { k1t_value(file, key, U32, &value, sizeof value); }

void k1t_f32(k1t_gguf *file, const char *key, float value) { k1t_value(file, key, F32, &value, sizeof value); }

void k1t_bool(k1t_gguf *file, const char *key, bool value) {
    uint8_t byte = value;
    k1t_value(file, key, BOOL, &byte, 1);
}

void k1t_str(k1t_gguf *file, const char *key, const char *value) {
    k1t_value(file, key, STRING, NULL, 0);
    k1t_put_str(&file->kvs, value);
}

static void begin_array(k1t_gguf *file, const char *key, uint32_t type, size_t n) {
    k1t_value(file, key, ARRAY, NULL, 0);
    k1t_put_u32(&file->kvs, type);
    k1t_put_u64(&file->kvs, n);
}

void k1t_strs(k1t_gguf *file, const char *key, const char *const *values, size_t n) {
    begin_array(file, key, STRING, n);
    for (size_t i = 0; i < n; i++) {
        k1t_put_str(&file->kvs, values[i]);
    }
}

void k1t_f32s(k1t_gguf *file, const char *key, const float *values, size_t n) {
    begin_array(file, key, F32, n);
    k1t_put(&file->kvs, values, n * sizeof *values);
}

void k1t_i32s(k1t_gguf *file, const char *key, const int32_t *values, size_t n) {
    begin_array(file, key, I32, n);
    k1t_put(&file->kvs, values, n * sizeof *values);
}

void k1t_info(k1t_gguf *file, const char *name, uint32_t type, const uint64_t *ne, uint32_t n_dims, uint64_t offset) {
    k1t_put_str(&file->infos, name);
    k1t_put_u32(&file->infos, n_dims);
    k1t_put(&file->infos, ne, n_dims * sizeof *ne);
    k1t_put_u32(&file->infos, type);
    k1t_put_u64(&file->infos, offset);
    file->n_tensors++;
}

static size_t alignment_of(const k1t_gguf *file) { return file->alignment != 0 ? file->alignment : 32; }

static void pad(k1t_bytes *bytes, size_t alignment) {
    k1t_put(bytes, NULL, (alignment - bytes->n % alignment) % alignment);
}

void k1t_tensor(k1t_gguf *file, const char *name, k1_dtype type, const uint64_t *ne, uint32_t n_dims, const void *data,
                size_t bytes) {
    pad(&file->data, alignment_of(file));
    k1t_info(file, name, type, ne, n_dims, file->data.n);
    k1t_put(&file->data, data, bytes);
}

uint8_t *k1t_finish(k1t_gguf *file, size_t *size) {
    if (file->alignment != 0) {
        k1t_u32(file, "general.alignment", file->alignment);
    }
    k1t_bytes all = {0};
    k1t_put(&all, "GGUF", 4);
    k1t_put_u32(&all, file->version != 0 ? file->version : 3);
    k1t_put_u64(&all, file->n_tensors);
    k1t_put_u64(&all, file->n_kvs);
    k1t_put(&all, file->kvs.data, file->kvs.n);
    k1t_put(&all, file->infos.data, file->infos.n);
    pad(&all, alignment_of(file));
    k1t_put(&all, file->data.data, file->data.n);
    free(file->kvs.data);
    free(file->infos.data);
    free(file->data.data);
    *file = (k1t_gguf){0};
    uint8_t *result = k1t_aligned(all.data, all.n);
    *size = all.n;
    free(all.data);
    return result;
}

uint8_t *k1t_aligned(const void *data, size_t size) {
    void *copy = NULL;
    need(posix_memalign(&copy, 64, size > 0 ? size : 1) == 0);
    if (size > 0) {
        memcpy(copy, data, size);
    }
    return copy;
}

static void temporary_name(char *path, size_t capacity) {
    const char *folder = getenv("TMPDIR");
    int n = snprintf(path, capacity, "%s/k1-test-XXXXXX", folder != NULL ? folder : P_tmpdir);
    need(n > 0 && (size_t)n < capacity);
}

static void write_and_close(FILE *stream, const void *data, size_t size) {
    need(stream != NULL && fwrite(data, 1, size, stream) == size && fclose(stream) == 0);
}

void k1t_write_file(char *path, size_t capacity, const void *data, size_t size) {
    temporary_name(path, capacity);
    int fd = mkstemp(path);
    need(fd >= 0);
    write_and_close(fdopen(fd, "wb"), data, size);
}

int k1t_seed(const char *prefix, const char *name, const void *data, size_t size) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s%s.seed", prefix, name);
    FILE *stream = fopen(path, "wb");
    if (stream == NULL || fwrite(data, 1, size, stream) != size || fclose(stream) != 0) {
        perror(path);
        return -1;
    }
    return 0;
}

int k1t_seed_gguf(const char *prefix, const char *name, k1t_gguf *file) {
    size_t size;
    uint8_t *data = k1t_finish(file, &size);
    int result = k1t_seed(prefix, name, data, size);
    free(data);
    return result;
}

char *k1t_folder(void) {
    char *path = malloc(256);
    need(path != NULL);
    temporary_name(path, 256);
    need(mkdtemp(path) != NULL);
    return path;
}

void k1t_text(const char *root, const char *path, const char *text) {
    char full[512];
    int n = snprintf(full, sizeof full, "%s/%s", root, path);
    need(n > 0 && (size_t)n < sizeof full);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(full, 0700);
        *slash = '/';
    }
    write_and_close(fopen(full, "wb"), text, strlen(text));
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

void k1t_remove(char *root) {
    need(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
    free(root);
}
