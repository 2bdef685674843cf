/* For fuzz_rpc and its seeds: a dialler whose bytes are always the same, since all nonces are. */
#ifndef K1_FUZZ_RPC_HANDSHAKE_H
#define K1_FUZZ_RPC_HANDSHAKE_H

#include <stdint.h>
#include <string.h>

#include "hello.h"
#include "wire.h"

enum {
    FUZZ_NONCE = 5, /* what every random byte of the listener is */
    FUZZ_KEY = 7,
    FUZZ_RANKS = 3,
    FUZZ_OWN = 1, /* the listener's rank; rank 0 dials */
    FUZZ_PAYLOAD = 2048,
    FUZZ_HELLO = K1_RPC_HEADER + K1_HELLO_BYTES,
    FUZZ_HANDSHAKE = FUZZ_HELLO + K1_RPC_HEADER,
    FUZZ_RAW = 0, /* the first byte of an input: bytes of a new connection follow */
    FUZZ_FRAMES,  /* records follow, each a message that is signed as it should be */
    FUZZ_SIGNED,  /* a hello with any fields follows, which is then signed */
    FUZZ_DIALLED, /* bytes of a listener follow, which the node has dialled */
    FUZZ_RECORD = 8,
    FUZZ_BAD_SEQ = 1, /* in a record's first byte */
    FUZZ_BAD_CRC = 2,
    FUZZ_BAD_TAG = 4,
    FUZZ_BAD_RANK = 8,
};

static inline k1_hello fuzz_hello(void) {
    k1_hello hello = {.instance = 1,
                      .to_rank = FUZZ_OWN,
                      .n_ranks = FUZZ_RANKS,
                      .n_layer = 4,
                      .n_embd = 16,
                      .n_vocab = 32,
                      .max_payload = FUZZ_PAYLOAD,
                      .software = "fuzz"};
    memset(hello.nonce, 3, sizeof hello.nonce);
    return hello;
}

static inline void fuzz_key(uint8_t to_listener[32]) {
    uint8_t cluster[K1_RPC_KEY];
    k1_link_ends ends = {.dialler_rank = 0, .listener_rank = FUZZ_OWN};
    k1_link_keys keys;
    memset(cluster, FUZZ_KEY, sizeof cluster);
    memset(ends.dialler_nonce, 3, K1_NONCE);
    memset(ends.listener_nonce, FUZZ_NONCE, K1_NONCE);
    k1_make_link_keys(cluster, &ends, &keys);
    memcpy(to_listener, keys.to_listener, 32);
}

/* Give a hello, wherever it comes from, the right size, crc32 and tag. */
static inline void fuzz_sign_hello(uint8_t wire[FUZZ_HELLO]) {
    uint8_t cluster[K1_RPC_KEY], hello_key[32];
    memcpy(wire, "K1RP", 4);
    k1_put_u16(wire + 4, 1);
    k1_put_u16(wire + 6, K1_MSG_HELLO);
    k1_put_u64(wire + 16, 0);
    k1_put_u32(wire + 24, K1_HELLO_BYTES);
    k1_put_u32(wire + 28, k1_crc32(wire + K1_RPC_HEADER, K1_HELLO_BYTES));
    memset(cluster, FUZZ_KEY, sizeof cluster);
    k1_make_hello_key(cluster, hello_key);
    k1_hello_tag(hello_key, NULL, wire, K1_HELLO_BYTES, wire + K1_SIGNED);
}

/* Hello and confirm. */
static inline void fuzz_handshake(uint8_t out[FUZZ_HANDSHAKE]) {
    uint8_t key[32], *confirm = out + FUZZ_HELLO;
    k1_hello hello = fuzz_hello();
    uint8_t first[FUZZ_HELLO] = {0};
    k1_hello_encode(&hello, first + K1_RPC_HEADER);
    fuzz_sign_hello(first);
    memcpy(out, first, sizeof first);
    k1_header_encode(&(k1_header){.version = 1, .msg_type = K1_MSG_CONFIRM, .seq_num = 1}, confirm);
    fuzz_key(key);
    k1_frame_tag(key, 1, confirm, confirm + K1_RPC_HEADER, 0, confirm + K1_SIGNED);
}

#endif
