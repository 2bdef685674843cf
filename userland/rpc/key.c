/* The file with the cluster key. */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "k1/rpc.h"

enum { DIGITS = 2 * K1_RPC_KEY };

/* systemd hands a unit's user its credentials as files of root with an ACL, whose mask the group's bits then show. */
static bool is_private(const struct stat *info) {
    mode_t mode = info->st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
    bool of_systemd = info->st_uid == 0 && info->st_gid == 0 && mode == (S_IRUSR | S_IRGRP);
    return (mode & (S_IRWXG | S_IRWXO)) == 0 || of_systemd;
}

static int check_file(int fd, const char *path, k1_err *err) {
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return k1_fail(err, "cannot read the cluster key in %s: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return k1_fail(err, "%s: no regular file, so no cluster key is read from it", path);
    }
    if (!is_private(&info)) {
        return k1_fail(err, "%s: others may read this cluster key (mode %03o); try: chmod 600 %s", path,
                       info.st_mode & 0777, path);
    }
    return 0;
}

static size_t read_all(int fd, char *out, size_t capacity) {
    size_t n = 0;
    ssize_t got;
    while (n < capacity && ((got = read(fd, out + n, capacity - n)) > 0 || (got < 0 && errno == EINTR))) {
        n += got > 0 ? (size_t)got : 0;
    }
    return n;
}

/* Digits, then at most one end of line. */
static int parse(const char *text, size_t n, uint8_t key[K1_RPC_KEY]) {
    size_t made;
    bool tail = n == DIGITS || (n == DIGITS + 1 && text[DIGITS] == '\n') ||
                (n == DIGITS + 2 && memcmp(text + DIGITS, "\r\n", 2) == 0);
    return tail && sodium_hex2bin(key, K1_RPC_KEY, text, DIGITS, NULL, &made, NULL) == 0 && made == K1_RPC_KEY ? 0 : -1;
}

int k1_cluster_key_load(const char *path, uint8_t key[K1_RPC_KEY], k1_err *err) {
    char text[DIGITS + 3];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* opening a FIFO must not wait */
    if (fd < 0) {
        return k1_fail(err, "cannot read the cluster key in %s: %s", path, strerror(errno));
    }
    int failed = check_file(fd, path, err);
    if (failed == 0 && parse(text, read_all(fd, text, sizeof text), key) != 0) {
        failed = k1_fail(err, "%s: a cluster key is %d hex digits on one line (try: openssl rand -hex %d)", path,
                         DIGITS, K1_RPC_KEY);
    }
    sodium_memzero(text, sizeof text);
    close(fd);
    return failed;
}
