#include <string.h>

#include "gguf_internal.h"

bool k1_str_is(k1_str str, const char *text) { return k1_str_compare(str, (k1_str){text, strlen(text)}) == 0; }

int k1_str_compare(k1_str a, k1_str b) {
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n > 0 ? memcmp(a.data, b.data, n) : 0;
    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

bool k1_gguf_take(k1_gguf_cursor *cursor, void *out, size_t n) {
    if (cursor->left < n) {
        return false;
    }
    memcpy(out, cursor->at, n);
    cursor->at += n;
    cursor->left -= n;
    return true;
}

int k1_gguf_take_string(k1_gguf_cursor *cursor, k1_str *out, const char *where, k1_err *err) {
    uint64_t len;
    if (!k1_gguf_take(cursor, &len, sizeof len)) {
        return k1_gguf_cut(where, err);
    }
    if (len > cursor->left) {
        return k1_fail(err,
                       "%s: a string of %llu bytes passes the end of the file; it is cut or damaged, download it again",
                       where, (unsigned long long)len);
    }
    *out = (k1_str){(const char *)cursor->at, (size_t)len};
    cursor->at += len;
    cursor->left -= (size_t)len;
    return 0;
}

int k1_gguf_cut(const char *where, k1_err *err) {
    return k1_fail(err, "%s: the file ends here; it is cut, download it again", where);
}

k1_gguf_label k1_gguf_show(const char *kind, k1_str name) {
    k1_gguf_label label = {{0}};
    size_t n = strlen(kind);
    memcpy(label.text, kind, n);
    label.text[n++] = ' ';
    for (size_t i = 0; i < name.len && i < K1_GGUF_SHOWN; i++) {
        unsigned char c = (unsigned char)name.data[i];
        label.text[n++] = (char)(c >= 0x20 && c < 0x7f ? c : '?');
    }
    if (name.len > K1_GGUF_SHOWN) {
        memcpy(label.text + n, "...", 3);
    }
    return label;
}
