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
    s->name = "signed";
    s->data[0] = FUZZ_SIGNED;
    failed |= save(prefix, s);
    s->data[0] = FUZZ_RAW;
    s->name = "version";
    s->data[1 + 4] = 2;
    failed |= save(prefix, s);
    s->name = "key";
    s->data[1 + 4] = 1;
    s->data[1 + K1_SIGNED] ^= 1;
    return failed | save(prefix, s);
}

/* The answer to a hello: a refusal, and one that is not. */
static int save_answers(const char *prefix, seed *s) {
    uint8_t *wire = s->data + 1;
    k1_hello hello = fuzz_hello();
    k1_header header = {.version = 1, .msg_type = K1_MSG_WELCOME, .payload_size = K1_HELLO_BYTES};
    begin(s, "welcome", FUZZ_DIALLED);
    k1_hello_encode(&hello, wire + K1_RPC_HEADER);
    header.crc32 = k1_crc32(wire + K1_RPC_HEADER, K1_HELLO_BYTES);
    k1_header_encode(&header, wire);
    s->n += FUZZ_HELLO;
    int failed = save(prefix, s);
    begin(s, "refusal", FUZZ_DIALLED);
    header = (k1_header){.version = 1, .msg_type = K1_MSG_WELCOME, .flags = K1_FLAG_ERROR, .payload_size = 4};
    memcpy(wire + K1_RPC_HEADER, "no\"\n", 4);
    header.crc32 = k1_crc32(wire + K1_RPC_HEADER, 4);
    k1_header_encode(&header, wire);
    s->n += K1_RPC_HEADER + 4;
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
    return save_handshakes(argv[1], &s) | save_answers(argv[1], &s) | save_frames(argv[1], &s);
}
