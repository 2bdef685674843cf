/* The payload of hello and welcome, and whether two nodes can work together. */
#ifndef K1_RPC_HELLO_H
#define K1_RPC_HELLO_H

#include "seal.h"

enum { K1_HELLO_BYTES = 192, K1_RPC_VERSION = 1 };

typedef struct k1_hello {
    uint8_t nonce[K1_NONCE];
    uint8_t model_sha256[32];
    uint64_t instance; /* random per process */
    uint32_t to_rank;  /* whom the sender means to talk to */
    uint32_t n_ranks;
    uint32_t n_layer, n_embd, n_vocab;
    uint32_t max_payload;
    char software[33];
} k1_hello;

void k1_hello_encode(const k1_hello *hello, uint8_t out[K1_HELLO_BYTES]);
void k1_hello_decode(const uint8_t in[K1_HELLO_BYTES], k1_hello *hello);

/* Reasons for a refusal. Where both sides find it, each writes the same words: the lower rank comes first. */
int k1_refuse_version(uint32_t own_rank, uint32_t rank, uint32_t version, k1_err *why);
int k1_refuse_key(uint32_t own_rank, uint32_t rank, k1_err *why);
/* -1 and why: `dialler` cannot work with `listener`. */
int k1_hello_check(const k1_hello *dialler, uint32_t dialler_rank, const k1_hello *listener, uint32_t listener_rank,
                   k1_err *why);

#endif
