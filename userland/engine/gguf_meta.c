#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_internal.h"

/* The shortest entry: a key of one byte and a value of one. */
enum { KV_MIN = 8 + 1 + 4 + 1, KEY_MAX = 65535 };

/* Bytes of a value; 0 for strings, arrays and numbers that are no type. */
static size_t type_bytes(uint32_t type) {
    static const uint8_t bytes[GGUF_N_TYPES] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_U64] = 8, [GGUF_BOOL] = 1, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return type < GGUF_N_TYPES ? bytes[type] : 0;
}

static int compare_kv(const void *a, const void *b) {
    return k1_str_compare(((const k1_gguf_kv *)a)->key, ((const k1_gguf_kv *)b)->key);
}

static int read_key(k1_gguf_cursor *cursor, size_t index, k1_str *key, k1_err *err) {
    k1_err where;
    k1_fail(&where, "key number %zu", index + 1);
    if (k1_gguf_take_string(cursor, key, where.text, err) != 0) {
        return -1;
    }
    if (key->len == 0) {
        return k1_fail(err, "%s has an empty name; the file is damaged, download it again", where.text);
    }
    if (key->len > KEY_MAX || memchr(key->data, '\0', key->len) != NULL) {
        return k1_fail(err, "%s: %s: names have at most %d bytes and no NUL; the file is damaged, download it again",
                       where.text, k1_gguf_show("key", *key).text, KEY_MAX);
    }
    return 0;
}

static int read_strings(k1_gguf_kv *kv, k1_gguf_cursor *cursor, const char *where, k1_err *err) {
    k1_str *items = kv->items;
    for (size_t i = 0; i < kv->n; i++) {
        if (k1_gguf_take_string(cursor, &items[i], where, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static int check_bools(const uint8_t *value, size_t n, const char *where, k1_err *err) {
    for (size_t i = 0; i < n; i++) {
        if (value[i] > 1) {
            return k1_fail(err, "%s: %u is neither true (1) nor false (0); the file is damaged, download it again",
                           where, (unsigned)value[i]);
        }
    }
    return 0;
}

/* Take n values of fixed size; those that have a getter are copied, as the file does not align them. */
static int read_values(k1_gguf_kv *kv, k1_gguf_cursor *cursor, const char *where, k1_err *err) {
    size_t bytes = kv->n * type_bytes(kv->type);
    kv->value = cursor->at;
    cursor->at += bytes;
    cursor->left -= bytes;
    if (kv->items != NULL) {
        memcpy(kv->items, kv->value, bytes);
    }
    return kv->type == GGUF_BOOL ? check_bools(kv->value, kv->n, where, err) : 0;
}

static size_t item_bytes(uint32_t type) {
    switch (type) {
    case GGUF_STRING:
        return sizeof(k1_str);
    case GGUF_F32:
        return sizeof(float);
    case GGUF_I32:
        return sizeof(int32_t);
    default:
        return 0;
    }
}

static int read_array(k1_gguf_kv *kv, k1_gguf_cursor *cursor, const char *where, k1_err *err) {
    uint64_t n;
    if (!k1_gguf_take(cursor, &kv->type, sizeof kv->type) || !k1_gguf_take(cursor, &n, sizeof n)) {
        return k1_gguf_cut(where, err);
    }
    if (kv->type == GGUF_ARRAY) {
        return k1_fail(err, "%s: an array of arrays, which no known model has; convert the model again", where);
    }
    size_t smallest = kv->type == GGUF_STRING ? sizeof(uint64_t) : type_bytes(kv->type);
    if (smallest == 0) {
        return k1_fail(err, "%s: array of the unknown type %u; the file is damaged or too new", where, kv->type);
    }
    if (n > cursor->left / smallest) {
        return k1_fail(err,
                       "%s: an array of %llu values passes the end of the file; it is cut or damaged, download it "
                       "again",
                       where, (unsigned long long)n);
    }
    kv->is_array = true;
    kv->n = (size_t)n;
    size_t item = item_bytes(kv->type);
    if (item > 0 && n > 0) {
        kv->items = calloc(kv->n, item);
        if (kv->items == NULL) {
            return k1_fail(err, "%s: no memory for %zu values", where, kv->n);
        }
    }
    return kv->type == GGUF_STRING ? read_strings(kv, cursor, where, err) : read_values(kv, cursor, where, err);
}

static int read_kv(k1_gguf_kv *kv, k1_gguf_cursor *cursor, size_t index, k1_err *err) {
    if (read_key(cursor, index, &kv->key, err) != 0) {
        return -1;
    }
    k1_gguf_label where = k1_gguf_show("key", kv->key);
    if (!k1_gguf_take(cursor, &kv->type, sizeof kv->type)) {
        return k1_gguf_cut(where.text, err);
    }
    if (kv->type == GGUF_STRING) {
        return k1_gguf_take_string(cursor, &kv->string, where.text, err);
    }
    if (kv->type == GGUF_ARRAY) {
        return read_array(kv, cursor, where.text, err);
    }
    size_t bytes = type_bytes(kv->type);
    if (bytes == 0) {
        return k1_fail(err, "%s: unknown value type %u; the file is damaged or too new", where.text, kv->type);
    }
    if (cursor->left < bytes) {
        return k1_gguf_cut(where.text, err);
    }
    kv->n = 1;
    return read_values(kv, cursor, where.text, err);
}

int k1_gguf_read_meta(k1_gguf *gguf, k1_gguf_cursor *cursor, uint64_t n, k1_err *err) {
    if (n > cursor->left / KV_MIN) {
        return k1_fail(err, "header: %llu keys do not fit into the file; it is cut or damaged, download it again",
                       (unsigned long long)n);
    }
    gguf->kvs = calloc((size_t)n + 1, sizeof *gguf->kvs);
    if (gguf->kvs == NULL) {
        return k1_fail(err, "header: no memory for %llu keys", (unsigned long long)n);
    }
    gguf->n_kvs = (size_t)n;
    for (size_t i = 0; i < gguf->n_kvs; i++) {
        if (read_kv(&gguf->kvs[i], cursor, i, err) != 0) {
            return -1;
        }
    }
    qsort(gguf->kvs, gguf->n_kvs, sizeof *gguf->kvs, compare_kv);
    for (size_t i = 1; i < gguf->n_kvs; i++) {
        if (compare_kv(&gguf->kvs[i - 1], &gguf->kvs[i]) == 0) {
            return k1_fail(err, "%s stands twice in the file; convert the model again",
                           k1_gguf_show("key", gguf->kvs[i].key).text);
        }
    }
    return 0;
}

static const k1_gguf_kv *find(const k1_gguf *gguf, const char *key) {
    k1_gguf_kv wanted = {.key = {key, strlen(key)}};
    return bsearch(&wanted, gguf->kvs, gguf->n_kvs, sizeof *gguf->kvs, compare_kv);
}

static const k1_gguf_kv *find_scalar(const k1_gguf *gguf, const char *key) {
    const k1_gguf_kv *kv = find(gguf, key);
    return kv != NULL && !kv->is_array ? kv : NULL;
}

bool k1_gguf_has(const k1_gguf *gguf, const char *key) { return find(gguf, key) != NULL; }

/* A signed value of 1, 2, 4 or 8 bytes. */
static int64_t load_signed(const void *value, size_t bytes) {
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    switch (bytes) {
    case 1:
        memcpy(&i8, value, sizeof i8);
        return i8;
    case 2:
        memcpy(&i16, value, sizeof i16);
        return i16;
    case 4:
        memcpy(&i32, value, sizeof i32);
        return i32;
    default:
        memcpy(&i64, value, sizeof i64);
        return i64;
    }
}

bool k1_gguf_u32(const k1_gguf *gguf, const char *key, uint32_t *value) {
    const k1_gguf_kv *kv = find_scalar(gguf, key);
    if (kv == NULL) {
        return false;
    }
    uint64_t wide = 0;
    switch (kv->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        memcpy(&wide, kv->value, type_bytes(kv->type)); /* little endian */
        break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        wide = (uint64_t)load_signed(kv->value, type_bytes(kv->type)); /* a negative one becomes too large */
        break;
    default:
        return false;
    }
    if (wide > UINT32_MAX) {
        return false;
    }
    *value = (uint32_t)wide;
    return true;
}

bool k1_gguf_f32(const k1_gguf *gguf, const char *key, float *value) {
    const k1_gguf_kv *kv = find_scalar(gguf, key);
    if (kv == NULL) {
        return false;
    }
    if (kv->type == GGUF_F32) {
        memcpy(value, kv->value, sizeof *value);
        return true;
    }
    if (kv->type == GGUF_F64) {
        double wide;
        memcpy(&wide, kv->value, sizeof wide);
        if (isfinite(wide) && fabs(wide) > (double)FLT_MAX) {
            return false;
        }
        *value = (float)wide;
        return true;
    }
    return false;
}

bool k1_gguf_bool(const k1_gguf *gguf, const char *key, bool *value) {
    const k1_gguf_kv *kv = find_scalar(gguf, key);
    if (kv == NULL || kv->type != GGUF_BOOL) {
        return false;
    }
    *value = *(const uint8_t *)kv->value != 0;
    return true;
}

bool k1_gguf_str(const k1_gguf *gguf, const char *key, k1_str *value) {
    const k1_gguf_kv *kv = find_scalar(gguf, key);
    if (kv == NULL || kv->type != GGUF_STRING) {
        return false;
    }
    *value = kv->string;
    return true;
}

/* The items of an array with elements of one type. */
static size_t find_items(const k1_gguf *gguf, const char *key, uint32_t type, const void **items) {
    const k1_gguf_kv *kv = find(gguf, key);
    bool fits = kv != NULL && kv->is_array && kv->type == type;
    *items = fits ? kv->items : NULL;
    return fits ? kv->n : 0;
}

size_t k1_gguf_strs(const k1_gguf *gguf, const char *key, const k1_str **values) {
    const void *items;
    size_t n = find_items(gguf, key, GGUF_STRING, &items);
    *values = items;
    return n;
}

size_t k1_gguf_f32s(const k1_gguf *gguf, const char *key, const float **values) {
    const void *items;
    size_t n = find_items(gguf, key, GGUF_F32, &items);
    *values = items;
    return n;
}

size_t k1_gguf_i32s(const k1_gguf *gguf, const char *key, const int32_t **values) {
    const void *items;
    size_t n = find_items(gguf, key, GGUF_I32, &items);
    *values = items;
    return n;
}
