#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_internal.h"

/* The shortest entry: a name of one byte and one dimension. */
enum { TENSOR_MIN = 8 + 1 + 4 + 8 + 4 + 8, NAME_MAX_BYTES = 64, DEFAULT_ALIGNMENT = 32 };

/* *alignment is the default, and then what the file says. */
static int read_alignment(const k1_gguf *gguf, size_t *alignment, k1_err *err) {
    uint32_t value = (uint32_t)*alignment;
    if (k1_gguf_has(gguf, "general.alignment") && !k1_gguf_u32(gguf, "general.alignment", &value)) {
        return k1_fail(err, "key general.alignment: not a 32-bit number; convert the model again");
    }
    if (value < 8 || (value & (value - 1)) != 0) {
        return k1_fail(
            err, "key general.alignment: %" PRIu32 " is not a power of two from 8 on; convert the model again", value);
    }
    *alignment = value;
    return 0;
}

/* Read the name to its place in gguf->names, which *names points to. */
static int read_name(k1_gguf_cursor *cursor, size_t index, char **names, k1_tensor *tensor, k1_err *err) {
    k1_err where;
    k1_str name;
    k1_fail(&where, "tensor number %zu", index + 1);
    if (k1_gguf_take_string(cursor, &name, where.text, err) != 0) {
        return -1;
    }
    if (name.len == 0) {
        return k1_fail(err, "%s has an empty name; the file is damaged, download it again", where.text);
    }
    if (name.len > NAME_MAX_BYTES || memchr(name.data, '\0', name.len) != NULL) {
        return k1_fail(err, "%s: %s: names have at most %d bytes and no NUL; the file is damaged, download it again",
                       where.text, k1_gguf_show("tensor", name).text, NAME_MAX_BYTES);
    }
    memcpy(*names, name.data, name.len);
    (*names)[name.len] = '\0';
    tensor->name = *names;
    *names += name.len + 1;
    return 0;
}

k1_gguf_label k1_gguf_show_tensor(const k1_tensor *tensor) {
    return k1_gguf_show("tensor", (k1_str){tensor->name, strlen(tensor->name)});
}

static int read_shape(k1_gguf_cursor *cursor, k1_tensor *tensor, const char *where, k1_err *err) {
    if (!k1_gguf_take(cursor, &tensor->n_dims, sizeof tensor->n_dims)) {
        return k1_gguf_cut(where, err);
    }
    if (tensor->n_dims < 1 || tensor->n_dims > 4) {
        return k1_fail(err, "%s: %" PRIu32 " dimensions, allowed are 1 to 4; the file is damaged, download it again",
                       where, tensor->n_dims);
    }
    for (uint32_t i = 0; i < 4; i++) {
        tensor->ne[i] = 1;
        if (i < tensor->n_dims && !k1_gguf_take(cursor, &tensor->ne[i], sizeof tensor->ne[i])) {
            return k1_gguf_cut(where, err);
        }
        if (tensor->ne[i] == 0) {
            return k1_fail(err, "%s: dimension %" PRIu32 " is zero; the file is damaged, download it again", where, i);
        }
    }
    return 0;
}

/* Check the type against the row length and compute the tensor's bytes. */
static int set_type(k1_tensor *tensor, uint32_t type, const char *where, k1_err *err) {
    tensor->type = (k1_dtype)type;
    size_t block = k1_dtype_block(tensor->type);
    if (block == 0) {
        return k1_fail(err,
                       "%s: type %" PRIu32 " (%s) cannot be used; quantize the model to Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, "
                       "Q6_K, F16, BF16 or F32",
                       where, type, k1_dtype_name(tensor->type));
    }
    if (tensor->ne[0] % block != 0) {
        return k1_fail(err,
                       "%s: rows of %" PRIu64 " values are no whole number of %s blocks of %zu; convert the model "
                       "again",
                       where, tensor->ne[0], k1_dtype_name(tensor->type), block);
    }
    uint64_t n = tensor->ne[0] / block;
    bool over = __builtin_mul_overflow(n, k1_dtype_block_bytes(tensor->type), &n);
    for (int i = 1; i < 4; i++) {
        over = over || __builtin_mul_overflow(n, tensor->ne[i], &n);
    }
    if (over || n > SIZE_MAX) {
        return k1_fail(err, "%s: its size overflows; the file is damaged, download it again", where);
    }
    tensor->bytes = (size_t)n;
    return 0;
}

/* One entry. Until the start of the data is known, *offset is what the file says and tensor->data is NULL. */
static int read_entry(k1_gguf_cursor *cursor, k1_tensor *tensor, uint64_t *offset, size_t alignment, k1_err *err) {
    k1_gguf_label where = k1_gguf_show_tensor(tensor);
    uint32_t type;
    if (read_shape(cursor, tensor, where.text, err) != 0) {
        return -1;
    }
    if (!k1_gguf_take(cursor, &type, sizeof type) || !k1_gguf_take(cursor, offset, sizeof *offset)) {
        return k1_gguf_cut(where.text, err);
    }
    if (set_type(tensor, type, where.text, err) != 0) {
        return -1;
    }
    if (*offset % alignment != 0) {
        return k1_fail(err,
                       "%s: offset %" PRIu64 " is no multiple of the file's alignment %zu; convert the model again",
                       where.text, *offset, alignment);
    }
    return 0;
}

/* Point each tensor into the data, which begins at the next multiple of alignment after the header. */
static int place(k1_gguf *gguf, const uint64_t *offsets, size_t header, size_t alignment, k1_err *err) {
    size_t padding = (alignment - header % alignment) % alignment;
    size_t left = gguf->size - header;
    left = left > padding ? left - padding : 0;
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        k1_tensor *tensor = &gguf->tensors[i];
        if (offsets[i] > left || tensor->bytes > left - offsets[i]) {
            return k1_fail(err,
                           "%s: its %zu bytes at offset %" PRIu64
                           " pass the end of the file, which has %zu bytes of data; it is cut, download it again",
                           k1_gguf_show_tensor(tensor).text, tensor->bytes, offsets[i], left);
        }
        tensor->data = gguf->data + header + padding + offsets[i];
    }
    return 0;
}

static int compare_data(const void *a, const void *b) {
    const uint8_t *x = (*(const k1_tensor *const *)a)->data, *y = (*(const k1_tensor *const *)b)->data;
    return (x > y) - (x < y);
}

static int compare_name(const void *a, const void *b) {
    return strcmp((*(const k1_tensor *const *)a)->name, (*(const k1_tensor *const *)b)->name);
}

/* No two tensors may share bytes or a name. Leaves by_name sorted. */
static int check_pairs(k1_gguf *gguf, k1_err *err) {
    const k1_tensor **sorted = gguf->by_name;
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        sorted[i] = &gguf->tensors[i];
    }
    qsort(sorted, gguf->n_tensors, sizeof(const k1_tensor *), compare_data);
    for (size_t i = 1; i < gguf->n_tensors; i++) {
        const uint8_t *start = sorted[i]->data, *end = (const uint8_t *)sorted[i - 1]->data + sorted[i - 1]->bytes;
        if (start < end) {
            return k1_fail(err, "%s and %s overlap; the file is damaged, download it again",
                           k1_gguf_show_tensor(sorted[i - 1]).text, k1_gguf_show_tensor(sorted[i]).text);
        }
    }
    qsort(sorted, gguf->n_tensors, sizeof(const k1_tensor *), compare_name);
    for (size_t i = 1; i < gguf->n_tensors; i++) {
        if (compare_name(&sorted[i - 1], &sorted[i]) == 0) {
            return k1_fail(err, "%s stands twice in the file; convert the model again",
                           k1_gguf_show_tensor(sorted[i]).text);
        }
    }
    return 0;
}

static int read_all(k1_gguf *gguf, k1_gguf_cursor *cursor, uint64_t *offsets, k1_err *err) {
    size_t alignment = DEFAULT_ALIGNMENT;
    if (read_alignment(gguf, &alignment, err) != 0) {
        return -1;
    }
    char *names = gguf->names;
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        if (read_name(cursor, i, &names, &gguf->tensors[i], err) != 0 ||
            read_entry(cursor, &gguf->tensors[i], &offsets[i], alignment, err) != 0) {
            return -1;
        }
    }
    size_t header = gguf->size - cursor->left;
    return place(gguf, offsets, header, alignment, err) != 0 ? -1 : check_pairs(gguf, err);
}

int k1_gguf_read_tensors(k1_gguf *gguf, k1_gguf_cursor *cursor, uint64_t n, k1_err *err) {
    if (n > cursor->left / TENSOR_MIN) {
        return k1_fail(
            err, "header: %" PRIu64 " tensors do not fit into the file; it is cut or damaged, download it again", n);
    }
    gguf->n_tensors = (size_t)n;
    gguf->tensors = calloc(gguf->n_tensors + 1, sizeof *gguf->tensors);
    gguf->by_name = calloc(gguf->n_tensors + 1, sizeof *gguf->by_name);
    gguf->names = malloc(gguf->n_tensors * (NAME_MAX_BYTES + 1) + 1);
    uint64_t *offsets = calloc(gguf->n_tensors + 1, sizeof *offsets);
    int result = -1;
    if (gguf->tensors == NULL || gguf->by_name == NULL || gguf->names == NULL || offsets == NULL) {
        k1_fail(err, "header: no memory for %" PRIu64 " tensors", n);
    } else {
        result = read_all(gguf, cursor, offsets, err);
    }
    free(offsets);
    return result;
}

size_t k1_gguf_n_tensors(const k1_gguf *gguf) { return gguf->n_tensors; }

const k1_tensor *k1_gguf_tensor_at(const k1_gguf *gguf, size_t index) {
    return index < gguf->n_tensors ? &gguf->tensors[index] : NULL;
}

const k1_tensor *k1_gguf_tensor(const k1_gguf *gguf, const char *name) {
    const k1_tensor wanted = {.name = name}, *key = &wanted;
    const k1_tensor *const *found =
        bsearch(&key, gguf->by_name, gguf->n_tensors, sizeof(const k1_tensor *), compare_name);
    return found != NULL ? *found : NULL;
}
