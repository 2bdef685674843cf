#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "gguf_internal.h"

static bool starts(const uint8_t *data, size_t size, const char *with) {
    size_t n = strlen(with);
    return size >= n && memcmp(data, with, n) == 0;
}

/* Whether the first thing after white space is one of HTML's usual beginnings, in any case. */
static bool is_html(const uint8_t *data, size_t size) {
    static const char *const tags[] = {"<!doctype", "<html", "<head", "<?xml"};
    size_t at = 0;
    while (at < size && isspace(data[at])) {
        at++;
    }
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        size_t n = strlen(tags[i]);
        if (size - at >= n && strncasecmp((const char *)data + at, tags[i], n) == 0) {
            return true;
        }
    }
    return false;
}

/* safetensors: the length of a JSON header in 8 bytes, then the header. */
static bool is_safetensors(const uint8_t *data, size_t size) {
    uint64_t len;
    if (size < 10) {
        return false;
    }
    memcpy(&len, data, sizeof len);
    return len >= 2 && len <= size - 8 && data[8] == '{';
}

/* Pickle: opcode PROTO with a version from 2 to 5. */
static bool is_pickle(const uint8_t *data, size_t size) {
    return size >= 2 && data[0] == 0x80 && data[1] >= 2 && data[1] <= 5;
}

int k1_gguf_not_one(const uint8_t *data, size_t size, k1_err *err) {
    const char *convert = "convert the model to GGUF with llama.cpp's convert_hf_to_gguf.py, or download a .gguf file";
    if (size == 0) {
        return k1_fail(err, "the file is empty; download it again");
    }
    if (is_html(data, size)) {
        return k1_fail(err, "a web page, not a GGUF file; the download went to a log-in or preview page, take the link "
                            "to the raw file");
    }
    if (starts(data, size, "version https://git-lfs")) {
        return k1_fail(err, "a Git LFS pointer, not the GGUF file itself; run git lfs pull");
    }
    if (starts(data, size, "PK\003\004")) {
        return k1_fail(err, "a zip archive or PyTorch checkpoint, not a GGUF file; unpack it, or %s", convert);
    }
    if (is_pickle(data, size)) {
        return k1_fail(err, "a Python pickle (an old PyTorch checkpoint), not a GGUF file; %s", convert);
    }
    if (is_safetensors(data, size)) {
        return k1_fail(err, "a safetensors file, not a GGUF file; %s", convert);
    }
    if (starts(data, size, "lmgg") || starts(data, size, "tjgg") || starts(data, size, "fmgg")) {
        return k1_fail(err, "a GGML file from before GGUF; %s", convert);
    }
    if (starts(data, size, "\x1f\x8b")) {
        return k1_fail(err, "compressed with gzip; unpack it first (gunzip)");
    }
    char hex[3 * 8 + 1] = "";
    for (size_t i = 0; i < size && i < 8; i++) {
        (void)snprintf(hex + 3 * i, sizeof hex - 3 * i, " %02x", data[i]);
    }
    return k1_fail(err, "not a GGUF file: it begins with the bytes%s; %s", hex, convert);
}
