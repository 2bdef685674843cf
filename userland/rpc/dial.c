#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "internal.h"
#include "k1/request.h"
#include "wire.h"

void k1_dial_soon(k1_peer *peer) {
    if (peer->out == NULL) {
        k1_event_after(peer->dial, 0);
    }
}

void k1_dial_again(k1_peer *peer) {
    static const double pauses_ms[] = {250, 500, 1000};
    enum { LAST = sizeof pauses_ms / sizeof *pauses_ms - 1 };
    k1_event_after(peer->dial, pauses_ms[peer->n_failed < LAST ? peer->n_failed : LAST]);
    peer->n_failed++;
}

/* ---- connecting ---- */

static int start(k1_peer *peer, k1_err *why) {
    const struct addrinfo *at = peer->at;
    peer->at = at->ai_next != NULL ? at->ai_next : peer->addresses;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return k1_fail(why, "connecting to %s: %s", peer->name, strerror(errno));
    }
    k1_conn *conn = k1_conn_new(peer->rpc, fd, true, why);
    if (conn == NULL) {
        return -1;
    }
    conn->peer = peer;
    conn->connecting = true;
    k1_address_text(at->ai_addr, at->ai_addrlen, true, conn->address, sizeof conn->address);
    if (connect(fd, at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS && errno != EINTR) {
        k1_fail(why, "connecting to %s: %s", peer->name, strerror(errno));
        k1_conn_free(conn);
        return -1;
    }
    peer->out = conn;
    event_add(conn->write, NULL);
    k1_conn_timer(conn, K1_STEP_MS);
    return 0;
}

void k1_on_dial(evutil_socket_t fd, short what, void *arg) {
    k1_peer *peer = arg;
    k1_err why;
    (void)fd, (void)what;
    if (start(peer, &why) != 0) {
        k1_peer_waiting(peer, &why);
        k1_dial_again(peer);
    }
}

int k1_dial_connected(k1_conn *conn, k1_err *err) {
    int failed = 0;
    socklen_t n = sizeof failed;
    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &failed, &n) != 0) {
        failed = errno;
    }
    if (failed != 0) {
        return k1_fail(err, "%s", strerror(failed));
    }
    uint8_t hello[K1_HELLO_BYTES];
    conn->connecting = false;
    k1_own_hello(conn->rpc, conn->peer->rank, &conn->mine);
    k1_hello_encode(&conn->mine, hello);
    event_add(conn->read, NULL);
    k1_conn_timer(conn, K1_STEP_MS);
    return k1_conn_send_hello(conn, K1_MSG_HELLO, 0, hello, sizeof hello, true, NULL, err);
}

/* ---- the answer ---- */

static int refused(k1_conn *conn) {
    conn->refused = true;
    return -1;
}

/* Words that carry no right tag are not repeated: they may be anybody's. */
static int read_refusal(k1_conn *conn, k1_err *err) {
    const k1_reader *reader = &conn->reader;
    uint8_t wire[K1_RPC_HEADER + K1_RPC_TEXT], tag[K1_TAG];
    size_t n = reader->header.payload_size;
    memcpy(wire, reader->head, K1_RPC_HEADER);
    memcpy(wire + K1_RPC_HEADER, reader->small, n);
    k1_hello_tag(conn->rpc->hello_key, conn->mine.nonce, wire, n, tag);
    if (!k1_same_tag(tag, reader->header.mac)) {
        k1_refuse_key(conn->rpc->config.rank, conn->peer->rank, err);
    } else {
        k1_clean_text(err->text, sizeof err->text, reader->small, n);
    }
    return refused(conn);
}

static int check_welcome_tag(k1_conn *conn, k1_link_keys *keys, k1_err *err) {
    const k1_reader *reader = &conn->reader;
    k1_link_ends ends = {.dialler_rank = conn->rpc->config.rank, .listener_rank = conn->their_rank};
    uint8_t tag[K1_TAG];
    memcpy(ends.dialler_nonce, conn->mine.nonce, K1_NONCE);
    memcpy(ends.listener_nonce, conn->theirs.nonce, K1_NONCE);
    k1_make_link_keys(conn->rpc->config.key, &ends, keys);
    k1_frame_tag(keys->to_dialler, 0, reader->head, reader->small, reader->header.payload_size, tag);
    return k1_same_tag(tag, reader->header.mac) ? 0 : k1_refuse_key(conn->rpc->config.rank, conn->peer->rank, err);
}

/* Tell the listener, in place of confirm, why not. */
static int refuse(k1_conn *conn, const k1_err *why) {
    k1_err ignored;
    size_t n = strlen(why->text);
    k1_conn_send_own(conn, &conn->hand, K1_MSG_BYE, 0, why->text, n < K1_RPC_TEXT ? n : K1_RPC_TEXT, &ignored);
    return refused(conn);
}

static int confirm(k1_conn *conn, k1_err *err) {
    uint32_t mine = conn->mine.max_payload, theirs = conn->theirs.max_payload;
    conn->max_payload = mine < theirs ? mine : theirs;
    if (k1_conn_send_own(conn, &conn->hand, K1_MSG_CONFIRM, 0, NULL, 0, err) != 0) {
        return -1;
    }
    conn->stands = true;
    k1_conn_timer(conn, K1_PING_MS);
    k1_peer_stands(conn->peer, conn);
    return 0;
}

int k1_dial_message(k1_conn *conn, k1_err *err) {
    const k1_reader *reader = &conn->reader;
    k1_link_keys keys;
    if ((reader->header.flags & K1_FLAG_ERROR) != 0) {
        return read_refusal(conn, err);
    }
    conn->their_rank = reader->header.rank;
    conn->their_session = reader->header.session;
    k1_hello_decode(reader->small, &conn->theirs);
    int wrong_tag = check_welcome_tag(conn, &keys, err);
    memcpy(conn->send_key, keys.to_listener, sizeof conn->send_key);
    sodium_memzero(&keys, sizeof keys);
    if (wrong_tag != 0) {
        return refused(conn);
    }
    if (k1_hello_check(&conn->mine, conn->rpc->config.rank, &conn->theirs, conn->their_rank, err) != 0 ||
        k1_peer_check_instance(conn->peer, conn->theirs.instance, conn->address, err) != 0) {
        return refuse(conn, err);
    }
    return confirm(conn, err);
}

/* ---- pings and the end ---- */

void k1_dial_ping(k1_conn *conn) {
    uint8_t clock[8];
    k1_err ignored;
    k1_put_u64(clock, (uint64_t)k1_now_ns() / 1000);
    k1_conn_send_own(conn, &conn->ping, K1_MSG_PING, 0, clock, sizeof clock, &ignored); /* one waits: that will do */
}

void k1_dial_on_timer(k1_conn *conn) {
    if (conn->stands) {
        k1_dial_ping(conn);
        k1_conn_timer(conn, K1_PING_MS);
        return;
    }
    k1_err why;
    k1_fail(&why, "no answer within %.0f ms", k1_scaled(conn->rpc, K1_STEP_MS));
    k1_dial_lost(conn, &why);
}

static void tell(k1_conn *conn, const k1_err *why) {
    k1_peer *peer = conn->peer;
    k1_err text;
    if (conn->refused) {
        k1_peer_refused(peer, peer->name, why);
    } else if (conn->reader.bad_version) {
        k1_refuse_version(peer->rpc->config.rank, peer->rank, conn->reader.header.version, &text);
        k1_peer_refused(peer, peer->name, &text);
    } else {
        k1_fail(&text, "%s %s: %s", conn->connecting ? "connecting to" : "after connecting to", peer->name, why->text);
        k1_peer_waiting(peer, &text);
    }
}

void k1_dial_lost(k1_conn *conn, const k1_err *why) {
    k1_peer *peer = conn->peer;
    if (peer->up) {
        k1_err last_words; /* may have come on the other connection */
        k1_peer_down(peer, k1_conn_read(peer->in, &last_words) != 0 ? last_words.text : why->text);
        return;
    }
    peer->out = NULL;
    tell(conn, why);
    k1_conn_free(conn);
    k1_dial_again(peer);
}
