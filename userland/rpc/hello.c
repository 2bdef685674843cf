#include "hello.h"

#include <sodium.h>
#include <string.h>

#include "wire.h"

enum { SOFTWARE = 32, HASH_BYTES = 6 /* shown: 12 hex digits */ };

void k1_hello_encode(const k1_hello *hello, uint8_t out[K1_HELLO_BYTES]) {
    memset(out, 0, K1_HELLO_BYTES);
    memcpy(out, hello->nonce, K1_NONCE);
    memcpy(out + 32, hello->model_sha256, sizeof hello->model_sha256);
    k1_put_u64(out + 64, hello->instance);
    k1_put_u32(out + 72, hello->to_rank);
    k1_put_u32(out + 76, hello->n_ranks);
    k1_put_u32(out + 80, hello->n_layer);
    k1_put_u32(out + 84, hello->n_embd);
    k1_put_u32(out + 88, hello->n_vocab);
    k1_put_u32(out + 92, hello->max_payload);
    memcpy(out + 96, hello->software, strnlen(hello->software, SOFTWARE));
}

void k1_hello_decode(const uint8_t in[K1_HELLO_BYTES], k1_hello *hello) {
    memset(hello, 0, sizeof *hello);
    memcpy(hello->nonce, in, K1_NONCE);
    memcpy(hello->model_sha256, in + 32, sizeof hello->model_sha256);
    hello->instance = k1_get_u64(in + 64);
    hello->to_rank = k1_get_u32(in + 72);
    hello->n_ranks = k1_get_u32(in + 76);
    hello->n_layer = k1_get_u32(in + 80);
    hello->n_embd = k1_get_u32(in + 84);
    hello->n_vocab = k1_get_u32(in + 88);
    hello->max_payload = k1_get_u32(in + 92);
    memcpy(hello->software, in + 96, SOFTWARE);
}

int k1_refuse_version(uint32_t own_rank, uint32_t rank, uint32_t version, k1_err *why) {
    bool first = own_rank < rank;
    return k1_fail(why, "rank %u and rank %u speak different versions of k1rpc, %u and %u; install one release on both",
                   first ? own_rank : rank, first ? rank : own_rank, first ? K1_RPC_VERSION : version,
                   first ? version : K1_RPC_VERSION);
}

int k1_refuse_key(uint32_t own_rank, uint32_t rank, k1_err *why) {
    return k1_fail(why, "rank %u and rank %u hold different cluster keys; copy one key file to both",
                   own_rank < rank ? own_rank : rank, own_rank < rank ? rank : own_rank);
}

/* One node of the two, as its hello tells of it. */
typedef struct party {
    const k1_hello *hello;
    uint32_t rank;
} party;

static int check_models(const party *a, const party *b, k1_err *why) {
    const k1_hello *x = a->hello, *y = b->hello;
    if (memcmp(x->model_sha256, y->model_sha256, sizeof x->model_sha256) != 0) {
        char of_a[2 * HASH_BYTES + 1], of_b[2 * HASH_BYTES + 1];
        sodium_bin2hex(of_a, sizeof of_a, x->model_sha256, HASH_BYTES);
        sodium_bin2hex(of_b, sizeof of_b, y->model_sha256, HASH_BYTES);
        return k1_fail(why, "rank %u and rank %u have different models, sha256 %s and %s; copy one file to both",
                       a->rank, b->rank, of_a, of_b);
    }
    if (x->n_layer != y->n_layer || x->n_embd != y->n_embd || x->n_vocab != y->n_vocab) {
        return k1_fail(why,
                       "rank %u and rank %u read the same model differently: layers %u and %u, width %u and %u, "
                       "vocabulary %u and %u; install one release on both",
                       a->rank, b->rank, x->n_layer, y->n_layer, x->n_embd, y->n_embd, x->n_vocab, y->n_vocab);
    }
    return 0;
}

static int check_ranks(const party *dialler, const party *listener, k1_err *why) {
    if (dialler->hello->instance == listener->hello->instance) {
        return k1_fail(why, "rank %u found itself where it looked for rank %u; mend its list of nodes", dialler->rank,
                       dialler->hello->to_rank);
    }
    if (dialler->rank == listener->rank) {
        return k1_fail(why, "a node that is rank %u dialled another that is rank %u too; give each its own rank",
                       dialler->rank, listener->rank);
    }
    if (dialler->rank >= listener->hello->n_ranks) {
        return k1_fail(why, "rank %u dialled rank %u of a cluster of %u; give it a rank of this cluster", dialler->rank,
                       listener->rank, listener->hello->n_ranks);
    }
    if (dialler->hello->to_rank != listener->rank) {
        return k1_fail(why, "rank %u looked for rank %u and found rank %u; make the lists of nodes agree",
                       dialler->rank, dialler->hello->to_rank, listener->rank);
    }
    return 0;
}

int k1_hello_check(const k1_hello *dialler, uint32_t dialler_rank, const k1_hello *listener, uint32_t listener_rank,
                   k1_err *why) {
    party d = {dialler, dialler_rank}, l = {listener, listener_rank};
    const party *a = dialler_rank < listener_rank ? &d : &l, *b = a == &d ? &l : &d;
    if (a->hello->n_ranks != b->hello->n_ranks) {
        return k1_fail(why,
                       "rank %u and rank %u belong to clusters of different size, %u and %u nodes; make the lists "
                       "of nodes agree",
                       a->rank, b->rank, a->hello->n_ranks, b->hello->n_ranks);
    }
    return check_ranks(&d, &l, why) != 0 || check_models(a, b, why) != 0 ? -1 : 0;
}
