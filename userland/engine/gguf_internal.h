/* What the files of the GGUF reader share. Users include k1/gguf.h. */
#ifndef K1_GGUF_INTERNAL_H
#define K1_GGUF_INTERNAL_H

#include "k1/gguf.h"

/* Value types of metadata, by their numbers in the file. */
enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES,
};

typedef struct k1_gguf_kv {
    k1_str key;
    uint32_t type; /* of the value, or of an array's elements */
    bool is_array;
    size_t n;          /* elements of an array */
    k1_str string;     /* a scalar string */
    const void *value; /* any other value in the file, at any alignment */
    void *items;       /* owned: k1_str[n], float[n] or int32_t[n] of such arrays */
} k1_gguf_kv;

struct k1_gguf {
    const uint8_t *data;
    size_t size;
    int fd; /* of a mapped file; -1 for bytes of the caller */

    k1_gguf_kv *kvs; /* sorted by key */
    size_t n_kvs;

    k1_tensor *tensors; /* in the file's order */
    size_t n_tensors;
    const k1_tensor **by_name;
    char *names;

    bool hashed;
    uint8_t digest[32];
};

/* What is still unread of the file's header. */
typedef struct k1_gguf_cursor {
    const uint8_t *at;
    size_t left;
} k1_gguf_cursor;

/* The next n bytes into out; false when the file ends before. */
bool k1_gguf_take(k1_gguf_cursor *cursor, void *out, size_t n);
/* The next string. -1 and err, which begins with `where`, when it passes the end of the file. */
int k1_gguf_take_string(k1_gguf_cursor *cursor, k1_str *out, const char *where, k1_err *err);
/* Tell that the file ends inside `where`. */
int k1_gguf_cut(const char *where, k1_err *err);

enum { K1_GGUF_SHOWN = 64 };
/* A name out of a file made fit for an error message: cut, and '?' for what is not printable ASCII. */
typedef struct k1_gguf_label {
    char text[K1_GGUF_SHOWN + 24];
} k1_gguf_label;
k1_gguf_label k1_gguf_show(const char *kind, k1_str name);
k1_gguf_label k1_gguf_show_tensor(const k1_tensor *tensor);

int k1_gguf_read_meta(k1_gguf *gguf, k1_gguf_cursor *cursor, uint64_t n, k1_err *err);
int k1_gguf_read_tensors(k1_gguf *gguf, k1_gguf_cursor *cursor, uint64_t n, k1_err *err);
/* Tell what a file that does not begin as GGUF seems to be, and what to do about it. */
int k1_gguf_not_one(const uint8_t *data, size_t size, k1_err *err);

#endif
