/* Writes the seeds of fuzz_rpc to PREFIXname.seed. */
#include <stdio.h>

#include "rpc_handshake.h"

enum { MOST = 4096 };

typedef struct seed {
    const char *name;
    uint8_t data[MOST];
    size_t n;
} seed;

static void begin(seed *s, const char *name, uint8_t mode) { *s = (seed){.name = name, .data = {mode}, .n = 1}; }

static void add_record(seed *s, uint8_t bad, k1_msg type, uint16_t size, uint8_t flags) {
    uint8_t *record = s->data + s->n;
    record[0] = bad;
    record[1] = (uint8_t)type;
    k1_put_u16(record + 2, size);
    record[4] = flags;
    memset(record + FUZZ_RECORD, (int)type, size);
    s->n += FUZZ_RECORD + (size_t)size;
}

static int save(const char *prefix, const seed *s) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s%s.seed", prefix, s->name);
    FILE *stream = fopen(path, "wb");
    int result = stream != NULL && fwrite(s->data, 1, s->n, stream) == s->n && fclose(stream) == 0 ? 0 : -1;
    if (result != 0) {
        perror(path);
    }
    return result;
}

static int save_handshakes(const char *prefix, seed *s) {
    begin(s, "handshake", FUZZ_RAW);
    fuzz_handshake(s->data + 1);
    s->n += FUZZ_HANDSHAKE;
    int failed = save(prefix, s);
    s->name = "version";
    s->data[1 + 4] = 2;
    failed |= save(prefix, s);
    s->name = "key";
    s->data[1 + 4] = 1;
    s->data[1 + K1_SIGNED] ^= 1;
    return failed | save(prefix, s);
}

static int save_frames(const char *prefix, seed *s) {
    begin(s, "frames", FUZZ_FRAMES);
    add_record(s, 0, K1_MSG_FORWARD, 900, K1_FLAG_LAST);
    add_record(s, 0, K1_MSG_CANCEL, 0, 0);
    add_record(s, 0, K1_MSG_PING, 8, 0);
    add_record(s, 0, K1_MSG_BACKWARD, 40, K1_FLAG_ERROR);
    add_record(s, 0, K1_MSG_BYE, 3, 0);
    int failed = save(prefix, s);
    begin(s, "bad", FUZZ_FRAMES);
    add_record(s, 0, K1_MSG_OPEN, 64, 0);
    add_record(s, FUZZ_BAD_CRC, K1_MSG_OPEN, 64, 0);
    return failed | save(prefix, s);
}

int main(int argc, char **argv) {
    static seed s;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s PREFIX\n", argv[0]);
        return 2;
    }
    return save_handshakes(argv[1], &s) | save_frames(argv[1], &s);
}
