#include "k1/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read in place, which needs a little-endian machine");

static int check_version(uint32_t version, k1_err *err) {
    if ((version & 0xffff) == 0 && version != 0) {
        return k1_fail(err, "a big-endian GGUF file; convert the model again for little-endian machines");
    }
    if (version != 2 && version != 3) {
        return k1_fail(err, "GGUF version %u cannot be read, only 2 and 3; convert the model again", version);
    }
    return 0;
}

static int parse(k1_gguf *gguf, k1_err *err) {
    k1_gguf_cursor cursor = {gguf->data, gguf->size};
    struct {
        uint8_t magic[4];
        uint32_t version;
        uint64_t n_tensors;
        uint64_t n_kvs;
    } header;
    if (gguf->size < sizeof header.magic || memcmp(gguf->data, "GGUF", sizeof header.magic) != 0) {
        return k1_gguf_not_one(gguf->data, gguf->size, err);
    }
    if (!k1_gguf_take(&cursor, &header, sizeof header)) {
        return k1_gguf_cut("header", err);
    }
    if (check_version(header.version, err) != 0 || k1_gguf_read_meta(gguf, &cursor, header.n_kvs, err) != 0) {
        return -1;
    }
    return k1_gguf_read_tensors(gguf, &cursor, header.n_tensors, err);
}

static k1_gguf *parse_or_free(const void *data, size_t size, k1_err *err) {
    k1_gguf *gguf = calloc(1, sizeof *gguf);
    if (gguf == NULL) {
        k1_fail(err, "no memory to read the file");
        return NULL;
    }
    gguf->data = data;
    gguf->size = size;
    gguf->fd = -1;
    if (parse(gguf, err) != 0) {
        k1_gguf_close(gguf);
        return NULL;
    }
    return gguf;
}

k1_gguf *k1_gguf_parse(const void *data, size_t size, k1_err *err) { return parse_or_free(data, size, err); }

static k1_gguf *map(int fd, k1_err *err) {
    struct stat info;
    if (fstat(fd, &info) != 0) {
        k1_fail(err, "%s", strerror(errno));
        return NULL;
    }
    if (!S_ISREG(info.st_mode)) {
        k1_fail(err, "not a file%s; name the .gguf file", S_ISDIR(info.st_mode) ? " but a folder" : "");
        return NULL;
    }
    size_t size = (size_t)info.st_size;
    if (size == 0) {
        k1_gguf_not_one(NULL, 0, err);
        return NULL;
    }
    void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        k1_fail(err, "cannot map %zu bytes: %s", size, strerror(errno));
        return NULL;
    }
    k1_gguf *gguf = parse_or_free(data, size, err);
    if (gguf == NULL) {
        munmap(data, size);
        return NULL;
    }
    gguf->fd = fd;
    return gguf;
}

k1_gguf *k1_gguf_open(const char *path, k1_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        k1_fail(err, "%s: %s", path, strerror(errno));
        return NULL;
    }
    k1_err reason;
    k1_gguf *gguf = map(fd, &reason);
    if (gguf == NULL) {
        close(fd);
        k1_fail(err, "%s: %s", path, reason.text);
    }
    return gguf;
}

void k1_gguf_close(k1_gguf *gguf) {
    if (gguf == NULL) {
        return;
    }
    for (size_t i = 0; i < gguf->n_kvs; i++) {
        free(gguf->kvs[i].items);
    }
    free(gguf->kvs);
    free(gguf->tensors);
    free(gguf->by_name);
    free(gguf->names);
    if (gguf->fd >= 0) {
        munmap((void *)gguf->data, gguf->size);
        close(gguf->fd);
    }
    free(gguf);
}
