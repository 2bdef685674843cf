#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* ---- life ---- */

static int check_config(const k1_rpc_config *config, const k1_frames *rx, k1_err *err) {
    if (config->n_ranks < 2 || config->n_ranks > K1_RPC_MAX_RANKS || config->rank >= config->n_ranks) {
        return k1_fail(err, "rank %u of %u nodes cannot be: a cluster has 2 to %d, counted from rank 0", config->rank,
                       config->n_ranks, K1_RPC_MAX_RANKS);
    }
    if (rx->n == 0 || !(config->timeout_scale > 0)) {
        return k1_fail(err, "no frames to receive into, or a time-out scale that is not above 0");
    }
    return 0;
}

static int open_peer(k1_rpc *rpc, uint32_t rank, k1_err *err) {
    k1_peer *peer = &rpc->peers[rank];
    peer->rpc = rpc;
    peer->rank = rank;
    snprintf(peer->name, sizeof peer->name, "%s", rpc->config.address[rank]);
    if (rank == rpc->config.rank) {
        return 0;
    }
    if (k1_address_resolve(peer->name, &peer->addresses, err) != 0) {
        return -1;
    }
    peer->at = peer->addresses;
    k1_fail(&peer->why, "connecting to rank %u at %s", rank, peer->name);
    peer->dial = event_new(rpc->base, -1, 0, k1_on_dial, peer);
    return peer->dial == NULL ? k1_fail(err, "out of memory") : 0;
}

static void on_resume(evutil_socket_t fd, short what, void *arg) {
    k1_rpc *rpc = arg;
    bool refused = rpc->resume_refused;
    (void)fd, (void)what;
    rpc->resume_refused = false;
    for (uint32_t r = 0; r < rpc->config.n_ranks; r++) {
        k1_conn *in = rpc->peers[r].in;
        if (in != NULL && (in->pause == K1_PAUSE_NO_FRAME || (in->pause == K1_PAUSE_REFUSED && refused))) {
            k1_conn_resume(in);
        }
    }
}

static uint64_t random_u64(void) {
    uint64_t value;
    do {
        randombytes_buf(&value, sizeof value);
    } while (value == 0);
    return value;
}

static int set_up(k1_rpc *rpc, k1_err *err) {
    rpc->resume = event_new(rpc->base, -1, 0, on_resume, rpc);
    if (rpc->resume == NULL) {
        return k1_fail(err, "out of memory");
    }
    for (uint32_t r = 0; r < rpc->config.n_ranks; r++) {
        if (open_peer(rpc, r, err) != 0) {
            return -1;
        }
    }
    if (k1_listen_open(rpc, err) != 0) {
        return -1;
    }
    for (uint32_t r = 0; r < rpc->config.n_ranks; r++) {
        if (r != rpc->config.rank) {
            k1_dial_soon(&rpc->peers[r]);
        }
    }
    return 0;
}

k1_rpc *k1_rpc_new(struct event_base *base, const k1_rpc_config *config, k1_frames *rx, k1_err *err) {
    if (check_config(config, rx, err) != 0) {
        return NULL;
    }
    k1_rpc *rpc = sodium_init() < 0 ? NULL : calloc(1, sizeof *rpc);
    if (rpc == NULL) {
        k1_fail(err, "out of memory, or libsodium does not start");
        return NULL;
    }
    rpc->base = base;
    rpc->config = *config;
    rpc->rx = rx;
    rpc->listen_fd = -1;
    rpc->instance = random_u64();
    rpc->session = config->rank == 0 ? random_u64() : 0;
    k1_make_hello_key(config->key, rpc->hello_key);
    if (set_up(rpc, err) != 0) {
        k1_rpc_free(rpc, "");
        return NULL;
    }
    return rpc;
}

static void close_peer(k1_peer *peer, const char *why) {
    k1_conn *in = peer->in, *out = peer->out;
    k1_err ignored;
    if (out != NULL && out->stands) {
        size_t n = strlen(why);
        k1_conn_send_own(out, &out->hand, K1_MSG_BYE, 0, why, n < K1_RPC_TEXT ? n : K1_RPC_TEXT, &ignored);
    }
    peer->in = peer->out = NULL;
    peer->up = false;
    if (in != NULL) {
        k1_conn_free(in);
    }
    if (out != NULL) {
        k1_conn_free(out);
    }
    if (peer->dial != NULL) {
        event_free(peer->dial);
    }
    if (peer->addresses != NULL) {
        freeaddrinfo(peer->addresses);
    }
}

void k1_rpc_free(k1_rpc *rpc, const char *why) {
    for (uint32_t r = 0; r < rpc->config.n_ranks; r++) {
        close_peer(&rpc->peers[r], why);
    }
    k1_listen_close(rpc);
    if (rpc->resume != NULL) {
        event_free(rpc->resume);
    }
    sodium_memzero(rpc, sizeof *rpc);
    free(rpc);
}

/* ---- use ---- */

void k1_rpc_send(k1_rpc *rpc, k1_frame *frame) {
    if (k1_rpc_is_up(rpc, frame->to)) {
        k1_conn_send(rpc->peers[frame->to].out, frame);
    } else {
        rpc->config.on_sent(rpc->config.arg, frame);
    }
}

void k1_rpc_resume(k1_rpc *rpc) {
    rpc->resume_refused = true;
    event_active(rpc->resume, EV_TIMEOUT, 0);
}

uint16_t k1_rpc_port(const k1_rpc *rpc) { return rpc->port; }
uint64_t k1_rpc_session(const k1_rpc *rpc) { return rpc->session; }

bool k1_rpc_is_up(const k1_rpc *rpc, uint32_t rank) { return rank < rpc->config.n_ranks && rpc->peers[rank].up; }

const char *k1_rpc_why_down(const k1_rpc *rpc, uint32_t rank) {
    return rank < rpc->config.n_ranks ? rpc->peers[rank].why.text : "no such rank";
}

uint32_t k1_rpc_rtt_us(const k1_rpc *rpc, uint32_t rank) {
    if (!k1_rpc_is_up(rpc, rank) || rpc->peers[rank].n_rtt == 0) {
        return 0;
    }
    const k1_peer *peer = &rpc->peers[rank];
    uint32_t n = peer->n_rtt < K1_SAMPLES ? peer->n_rtt : K1_SAMPLES, sorted[K1_SAMPLES];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > peer->rtt_us[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = peer->rtt_us[i];
    }
    return sorted[n / 2];
}
