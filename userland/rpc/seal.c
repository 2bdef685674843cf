#include "seal.h"

#include <sodium.h>
#include <string.h>
#include <zlib.h>

#include "wire.h"

static void hash(const uint8_t key[32], const void *data, size_t n, uint8_t out[32]) {
    crypto_generichash(out, 32, data, n, key, 32);
}

void k1_make_hello_key(const uint8_t cluster[K1_RPC_KEY], uint8_t out[32]) {
    static const char label[] = "k1rpc 1 hello";
    hash(cluster, label, sizeof label - 1, out);
}

void k1_make_link_keys(const uint8_t cluster[K1_RPC_KEY], const k1_link_ends *ends, k1_link_keys *out) {
    static const char label[] = "k1rpc 1 link", to_listener[] = "to listener", to_dialler[] = "to dialler";
    enum { LABEL = sizeof label - 1 };
    uint8_t info[LABEL + 2 * K1_NONCE + 8], prk[32];
    memcpy(info, label, LABEL);
    memcpy(info + LABEL, ends->dialler_nonce, K1_NONCE);
    memcpy(info + LABEL + K1_NONCE, ends->listener_nonce, K1_NONCE);
    k1_put_u32(info + LABEL + 2 * K1_NONCE, ends->dialler_rank);
    k1_put_u32(info + LABEL + 2 * K1_NONCE + 4, ends->listener_rank);
    hash(cluster, info, sizeof info, prk);
    hash(prk, to_listener, sizeof to_listener - 1, out->to_listener);
    hash(prk, to_dialler, sizeof to_dialler - 1, out->to_dialler);
    sodium_memzero(prk, sizeof prk);
}

void k1_hello_tag(const uint8_t hello_key[32], const uint8_t *nonce, const uint8_t *wire, size_t payload_size,
                  uint8_t tag[K1_TAG]) {
    crypto_generichash_state state;
    crypto_generichash_init(&state, hello_key, 32, K1_TAG);
    if (nonce != NULL) {
        crypto_generichash_update(&state, nonce, K1_NONCE);
    }
    crypto_generichash_update(&state, wire, K1_SIGNED);
    crypto_generichash_update(&state, wire + K1_RPC_HEADER, payload_size);
    crypto_generichash_final(&state, tag, K1_TAG);
    sodium_memzero(&state, sizeof state);
}

/* RFC 8439, 2.6: the first 32 bytes of the stream are the one-time key. */
void k1_frame_tag(const uint8_t key[32], uint64_t seq_num, const uint8_t *head, const uint8_t *payload,
                  size_t payload_size, uint8_t tag[K1_TAG]) {
    uint8_t nonce[crypto_stream_chacha20_ietf_NONCEBYTES] = {0};
    uint8_t once[crypto_onetimeauth_KEYBYTES];
    crypto_onetimeauth_state state;
    k1_put_u64(nonce + 4, seq_num);
    crypto_stream_chacha20_ietf(once, sizeof once, nonce, key);
    crypto_onetimeauth_init(&state, once);
    crypto_onetimeauth_update(&state, head, K1_SIGNED);
    crypto_onetimeauth_update(&state, payload, payload_size);
    crypto_onetimeauth_final(&state, tag);
    sodium_memzero(once, sizeof once);
    sodium_memzero(&state, sizeof state);
}

bool k1_same_tag(const uint8_t a[K1_TAG], const uint8_t b[K1_TAG]) { return sodium_memcmp(a, b, K1_TAG) == 0; }

uint32_t k1_crc32(const uint8_t *data, size_t n) { return n == 0 ? 0 : (uint32_t)crc32_z(0, data, n); }
