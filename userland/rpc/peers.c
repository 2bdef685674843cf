#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"
#include "k1/request.h"

enum { RTT_LIMIT_US = 60000000 };

void k1_clean_text(char *out, size_t capacity, const uint8_t *text, size_t n) {
    if (n > capacity - 1) {
        n = capacity - 1;
    }
    for (size_t i = 0; i < n; i++) {
        bool control = text[i] < 0x20 || text[i] == 0x7f;
        out[i] = control ? '?' : text[i] == '"' ? '\'' : (char)text[i]; /* a log line quotes it */
    }
    out[n] = '\0';
}

void k1_own_hello(const k1_rpc *rpc, uint32_t to_rank, k1_hello *out) {
    const k1_rpc_config *config = &rpc->config;
    *out = (k1_hello){
        .instance = rpc->instance,
        .to_rank = to_rank,
        .n_ranks = config->n_ranks,
        .n_layer = config->n_layer,
        .n_embd = config->n_embd,
        .n_vocab = config->n_vocab,
        .max_payload = (uint32_t)rpc->rx->all[0].capacity,
        .software = "k1-inferd " K1_VERSION,
    };
    randombytes_buf(out->nonce, sizeof out->nonce);
    memcpy(out->model_sha256, config->model_sha256, sizeof out->model_sha256);
}

/* ---- up and down ---- */

static void up(k1_peer *peer) {
    const k1_rpc_config *config = &peer->rpc->config;
    peer->up = true;
    peer->told_waiting = false;
    peer->refused.text[0] = peer->stranger.text[0] = '\0';
    peer->n_failed = 0;
    peer->n_rtt = 0;
    k1_log_line(config->log, K1_LOG_INFO, "peer_up", "peer_rank=%u peer=%s", peer->rank, peer->name);
    k1_dial_ping(peer->out);
    config->on_up(config->arg, peer->rank);
}

void k1_peer_stands(k1_peer *peer, const k1_conn *conn) {
    if (peer->rank == 0 && conn->their_session != 0) {
        peer->rpc->session = conn->their_session;
    }
    if (peer->out == NULL || !peer->out->stands) {
        return;
    }
    if (peer->in != NULL) {
        up(peer);
    } else {
        k1_fail(&peer->why, "connected to rank %u at %s, which has not connected back yet", peer->rank, peer->name);
    }
}

void k1_peer_down(k1_peer *peer, const char *why) {
    const k1_rpc_config *config = &peer->rpc->config;
    k1_conn *in = peer->in, *out = peer->out;
    k1_err reason;
    k1_fail(&reason, "rank %u at %s is lost: %s", peer->rank, peer->name, why);
    peer->in = peer->out = NULL;
    peer->up = false;
    peer->why = reason;
    k1_log_line(config->log, K1_LOG_WARN, "peer_down", "peer_rank=%u peer=%s reason=\"%s\"", peer->rank, peer->name,
                reason.text);
    k1_conn_free(in);
    k1_conn_free(out);
    k1_dial_again(peer);
    config->on_down(config->arg, peer->rank, reason.text);
}

void k1_peer_waiting(k1_peer *peer, const k1_err *why) {
    peer->why = *why;
    k1_log_line(peer->rpc->config.log, peer->told_waiting ? K1_LOG_DEBUG : K1_LOG_INFO, "peer_waiting",
                "peer_rank=%u peer=%s reason=\"%s\"", peer->rank, peer->name, why->text);
    peer->told_waiting = true;
}

/* ---- refusals ---- */

static bool is_told(const k1_peer *peer, const k1_err *why) {
    return strcmp(peer->refused.text, why->text) == 0 || strcmp(peer->stranger.text, why->text) == 0;
}

static void log_refusal(const k1_peer *peer, const char *address, const k1_err *why) {
    k1_log_line(peer->rpc->config.log, K1_LOG_WARN, "peer_refused", "peer_rank=%u peer=%s reason=\"%s\"", peer->rank,
                address, why->text);
}

void k1_peer_refused(k1_peer *peer, const char *address, const k1_err *why) {
    if (!peer->up) {
        peer->why = *why;
    }
    if (!is_told(peer, why)) {
        log_refusal(peer, address, why);
    }
    peer->refused = *why;
}

void k1_stranger_refused(k1_rpc *rpc, k1_peer *peer, const char *address, const k1_err *why) {
    if ((peer != NULL && is_told(peer, why)) || !k1_log_rate_allows(&rpc->strangers, k1_now_ns())) {
        return;
    }
    if (peer == NULL) {
        k1_log_line(rpc->config.log, K1_LOG_WARN, "peer_refused", "peer=%s reason=\"%s\"", address, why->text);
    } else {
        log_refusal(peer, address, why);
        peer->stranger = *why;
    }
}

int k1_peer_check_instance(const k1_peer *peer, uint64_t instance, const char *address, k1_err *why) {
    const k1_conn *other = NULL;
    if (peer->in != NULL && peer->in->theirs.instance != instance) {
        other = peer->in;
    } else if (peer->out != NULL && peer->out->stands && peer->out->theirs.instance != instance) {
        other = peer->out;
    }
    return other == NULL ? 0
                         : k1_fail(why,
                                   "two nodes are rank %u for rank %u: one at %s is connected, one at %s wants to; "
                                   "give each its own rank",
                                   peer->rank, peer->rpc->config.rank, other->address, address);
}

/* ---- round trips ---- */

void k1_peer_rtt(k1_peer *peer, uint64_t sent_us) {
    uint64_t now = (uint64_t)k1_now_ns() / 1000;
    if (sent_us <= now && now - sent_us < RTT_LIMIT_US) {
        peer->rtt_us[peer->n_rtt % K1_SAMPLES] = (uint32_t)(now - sent_us);
        peer->n_rtt++;
    }
}
