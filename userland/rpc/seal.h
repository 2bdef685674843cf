/* Keys and tags: docs/protocol.md, Keys. */
#ifndef K1_RPC_SEAL_H
#define K1_RPC_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "k1/rpc.h"

enum { K1_TAG = 16, K1_SIGNED = K1_RPC_HEADER - K1_TAG /* bytes of a header that a tag covers */, K1_NONCE = 32 };

typedef struct k1_link_keys {
    uint8_t to_listener[32];
    uint8_t to_dialler[32];
} k1_link_keys;

/* Who made a connection, and with which nonces. */
typedef struct k1_link_ends {
    uint8_t dialler_nonce[K1_NONCE];
    uint8_t listener_nonce[K1_NONCE];
    uint32_t dialler_rank;
    uint32_t listener_rank;
} k1_link_ends;

void k1_make_hello_key(const uint8_t cluster[K1_RPC_KEY], uint8_t out[32]);
void k1_make_link_keys(const uint8_t cluster[K1_RPC_KEY], const k1_link_ends *ends, k1_link_keys *out);

/* The tag of a hello (nonce NULL), or of a refusal of the hello that had this nonce. wire: header and payload. */
void k1_hello_tag(const uint8_t hello_key[32], const uint8_t *nonce, const uint8_t *wire, size_t payload_size,
                  uint8_t tag[K1_TAG]);
/* The tag of any other message. */
void k1_frame_tag(const uint8_t key[32], uint64_t seq_num, const uint8_t *head, const uint8_t *payload,
                  size_t payload_size, uint8_t tag[K1_TAG]);
/* In constant time. */
bool k1_same_tag(const uint8_t a[K1_TAG], const uint8_t b[K1_TAG]);
/* zlib's; 0 of nothing. */
uint32_t k1_crc32(const uint8_t *data, size_t n);

#endif
