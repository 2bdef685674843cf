#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf_internal.h"

enum { CHUNK = 1 << 20 };

/* Read the file rather than the map: hashing shall not make the whole model resident. */
static int hash_file(const k1_gguf *gguf, crypto_hash_sha256_state *state) {
    uint8_t *chunk = malloc(CHUNK);
    size_t at = 0;
    while (chunk != NULL && at < gguf->size) {
        size_t wanted = gguf->size - at < CHUNK ? gguf->size - at : CHUNK;
        ssize_t got = pread(gguf->fd, chunk, wanted, (off_t)at);
        if (got <= 0) {
            break;
        }
        crypto_hash_sha256_update(state, chunk, (size_t)got);
        at += (size_t)got;
    }
    free(chunk);
    return at == gguf->size ? 0 : -1;
}

int k1_gguf_sha256(k1_gguf *gguf, uint8_t digest[32]) {
    if (!gguf->hashed) {
        crypto_hash_sha256_state state;
        crypto_hash_sha256_init(&state);
        if (gguf->fd < 0) {
            crypto_hash_sha256_update(&state, gguf->data, gguf->size);
        } else if (hash_file(gguf, &state) != 0) {
            return -1;
        }
        crypto_hash_sha256_final(&state, gguf->digest);
        gguf->hashed = true;
    }
    memcpy(digest, gguf->digest, sizeof gguf->digest);
    return 0;
}
