#include <errno.h>
#include <netinet/in.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"
#include "k1/request.h"
#include "wire.h"

enum { BACKLOG = 64 };

/* ---- connections that are not through the handshake ---- */

static void add_pending(k1_rpc *rpc, k1_conn *conn) {
    k1_conn **end = &rpc->pending;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = conn;
    rpc->n_pending++;
}

static void remove_pending(k1_conn *conn) {
    k1_conn **at = &conn->rpc->pending;
    while (*at != conn) {
        at = &(*at)->next;
    }
    *at = conn->next;
    conn->next = NULL;
    conn->rpc->n_pending--;
}

void k1_listen_take(k1_rpc *rpc, int fd, const char *address) {
    k1_conn *conn = k1_conn_new(rpc, fd, false, NULL);
    if (conn == NULL) {
        return;
    }
    k1_err oldest;
    memcpy(conn->address, address, strlen(address) + 1);
    add_pending(rpc, conn);
    if (rpc->n_pending > 2 * rpc->config.n_ranks + 8) {
        k1_fail(&oldest, "too many connections wait for their handshake");
        k1_listen_lost(rpc->pending, &oldest);
    }
    event_add(conn->read, NULL);
    k1_conn_timer(conn, K1_STEP_MS);
}

/* ---- the handshake ---- */

/* Whose a rank's refusals are; NULL: nobody's. */
static k1_peer *slot_of(k1_conn *conn) {
    k1_rpc *rpc = conn->rpc;
    return conn->their_rank < rpc->config.n_ranks ? &rpc->peers[conn->their_rank] : NULL;
}

/* Answer why not, and stay until that is read. */
static int refuse(k1_conn *conn, const k1_err *why, bool is_signed) {
    size_t n = strlen(why->text);
    k1_err err;
    k1_stranger_refused(conn->rpc, slot_of(conn), conn->address, why); /* a hello may be an old one, sent again */
    if (k1_conn_send_hello(conn, K1_MSG_WELCOME, K1_FLAG_ERROR, why->text, n < K1_RPC_TEXT ? n : K1_RPC_TEXT, is_signed,
                           conn->theirs.nonce, &err) != 0 ||
        shutdown(conn->fd, SHUT_WR) != 0) {
        return -1;
    }
    conn->leaving = true;
    k1_conn_timer(conn, K1_STEP_MS);
    return 0;
}

static int send_welcome(k1_conn *conn, k1_err *err) {
    uint8_t welcome[K1_HELLO_BYTES];
    k1_link_ends ends = {.dialler_rank = conn->their_rank, .listener_rank = conn->rpc->config.rank};
    k1_link_keys keys;
    memcpy(ends.dialler_nonce, conn->theirs.nonce, K1_NONCE);
    memcpy(ends.listener_nonce, conn->mine.nonce, K1_NONCE);
    k1_make_link_keys(conn->rpc->config.key, &ends, &keys);
    memcpy(conn->send_key, keys.to_dialler, sizeof conn->send_key);
    memcpy(conn->reader.key, keys.to_listener, sizeof conn->reader.key);
    sodium_memzero(&keys, sizeof keys);
    conn->reader.stage = K1_STAGE_CONFIRM;
    conn->reader.rank = conn->their_rank;
    k1_hello_encode(&conn->mine, welcome);
    k1_conn_timer(conn, K1_STEP_MS);
    return k1_conn_send_own(conn, &conn->hand, K1_MSG_WELCOME, 0, welcome, sizeof welcome, err);
}

static int on_hello(k1_conn *conn, k1_err *err) {
    k1_rpc *rpc = conn->rpc;
    k1_reader *reader = &conn->reader;
    uint8_t wire[K1_RPC_HEADER + K1_HELLO_BYTES], tag[K1_TAG];
    k1_err why;
    conn->their_rank = reader->header.rank;
    conn->their_session = reader->header.session;
    memcpy(wire, reader->head, K1_RPC_HEADER);
    memcpy(wire + K1_RPC_HEADER, reader->small, K1_HELLO_BYTES);
    k1_hello_tag(rpc->hello_key, NULL, wire, K1_HELLO_BYTES, tag);
    if (!k1_same_tag(tag, reader->header.mac)) {
        k1_refuse_key(rpc->config.rank, conn->their_rank, &why);
        return refuse(conn, &why, false);
    }
    k1_hello_decode(reader->small, &conn->theirs);
    k1_own_hello(rpc, conn->their_rank, &conn->mine);
    if (k1_hello_check(&conn->theirs, conn->their_rank, &conn->mine, rpc->config.rank, &why) != 0 ||
        k1_peer_check_instance(&rpc->peers[conn->their_rank], conn->theirs.instance, conn->address, &why) != 0) {
        return refuse(conn, &why, true);
    }
    return send_welcome(conn, err);
}

/* The dialler has shown that it holds the key, and that it is alive. */
static int on_confirm(k1_conn *conn, k1_err *err) {
    k1_peer *peer = &conn->rpc->peers[conn->their_rank];
    uint32_t mine = conn->mine.max_payload, theirs = conn->theirs.max_payload;
    if (k1_peer_check_instance(peer, conn->theirs.instance, conn->address, err) != 0) {
        return -1; /* the other came first; the next hello will be told so */
    }
    if (peer->up) {
        k1_peer_down(peer, "it connected anew");
    } else if (peer->in != NULL) {
        k1_conn_free(peer->in);
    }
    remove_pending(conn);
    conn->peer = peer;
    conn->stands = true;
    conn->reader.stage = K1_STAGE_FRAMES;
    conn->reader.max_payload = mine < theirs ? mine : theirs;
    peer->in = conn;
    k1_conn_timer(conn, K1_SILENCE_MS);
    k1_peer_stands(peer, conn);
    k1_dial_soon(peer); /* it is there: no need to wait for the next time */
    return 0;
}

/* In place of confirm: the dialler refuses. Its tag proves that it holds the key and is alive. */
static int on_refusal(k1_conn *conn, k1_err *err) {
    k1_clean_text(err->text, sizeof err->text, conn->reader.small, conn->reader.header.payload_size);
    k1_peer_refused(&conn->rpc->peers[conn->their_rank], conn->address, err);
    return -1;
}

int k1_listen_bad(k1_conn *conn) {
    k1_err why;
    if (conn->reader.stage != K1_STAGE_HELLO || !conn->reader.bad_version) {
        return -1;
    }
    conn->their_rank = conn->reader.header.rank;
    k1_refuse_version(conn->rpc->config.rank, conn->their_rank, conn->reader.header.version, &why);
    return refuse(conn, &why, false);
}

/* ---- messages ---- */

static int on_ping(k1_conn *conn) {
    const k1_reader *reader = &conn->reader;
    k1_conn *out = conn->peer->out;
    k1_err ignored;
    if ((reader->header.flags & K1_FLAG_REPLY) != 0) {
        k1_peer_rtt(conn->peer, k1_get_u64(reader->small));
    } else if (out != NULL && out->stands) {
        k1_conn_send_own(out, &out->pong, K1_MSG_PING, K1_FLAG_REPLY, reader->small, sizeof(uint64_t), &ignored);
    }
    return 0;
}

static int on_bye(const k1_conn *conn, k1_err *err) {
    char text[K1_RPC_TEXT + 1];
    k1_clean_text(text, sizeof text, conn->reader.small, conn->reader.header.payload_size);
    return k1_fail(err, "it left: %s", text);
}

int k1_listen_message(k1_conn *conn, k1_err *err) {
    uint16_t type = conn->reader.header.msg_type;
    switch (conn->reader.stage) {
    case K1_STAGE_HELLO:
        return on_hello(conn, err);
    case K1_STAGE_CONFIRM:
        return type == K1_MSG_CONFIRM ? on_confirm(conn, err) : on_refusal(conn, err);
    default:
        break;
    }
    if (type == K1_MSG_PING) {
        return on_ping(conn);
    }
    if (type == K1_MSG_BYE) {
        return on_bye(conn, err);
    }
    return conn->peer->up ? 0 : k1_fail(err, "it sent a message before both connections stood");
}

void k1_listen_on_timer(k1_conn *conn) {
    k1_err why;
    double limit = k1_scaled(conn->rpc, conn->stands ? K1_SILENCE_MS : K1_STEP_MS);
    double left = limit - (double)(k1_now_ns() - conn->heard_ns) / 1e6;
    if (conn->stands && (left > 0 || conn->pause != K1_PAUSE_NONE)) {
        k1_event_after(conn->timer, left > 0 ? left : limit);
        return;
    }
    k1_fail(&why, "%s for %.0f ms", conn->stands ? "nothing came from it" : "the handshake has stood still", limit);
    k1_listen_lost(conn, &why);
}

void k1_listen_lost(k1_conn *conn, const k1_err *why) {
    if (!conn->stands) {
        if (conn->bad && !conn->leaving) {
            k1_stranger_refused(conn->rpc, NULL, conn->address, why);
        }
        remove_pending(conn);
        k1_conn_free(conn);
    } else if (conn->peer->up) {
        k1_peer_down(conn->peer, why->text);
    } else {
        conn->peer->in = NULL;
        k1_conn_free(conn);
    }
}

/* ---- accepting ---- */

static void on_accept(evutil_socket_t fd, short what, void *arg) {
    static const struct timeval pause = {.tv_usec = 200000};
    k1_rpc *rpc = arg;
    struct sockaddr_storage from;
    socklen_t n = sizeof from;
    char address[K1_ADDRESS_TEXT];
    (void)what;
    int accepted = accept4(fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted >= 0) {
        k1_address_text((const struct sockaddr *)&from, n, false, address, sizeof address);
        k1_listen_take(rpc, accepted, address);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        /* The one that waits would be reported again and again. */
        int why = errno;
        if (k1_log_rate_allows(&rpc->no_files, k1_now_ns())) {
            k1_log_line(rpc->config.log, K1_LOG_WARN, "accept", "error=\"%s\"", strerror(why));
        }
        event_del(rpc->accept);
        event_add(rpc->accept_again, &pause);
    }
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    event_add(((k1_rpc *)arg)->accept, NULL);
}

static int bind_to(k1_rpc *rpc, const struct sockaddr *address, socklen_t n) {
    int on = 1, off = 0;
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, address, n) != 0 || listen(fd, BACKLOG) != 0) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    rpc->listen_fd = fd;
    return 0;
}

/* All addresses, of both kinds where the kernel has IPv6. */
static int bind_to_all(k1_rpc *rpc, uint16_t port) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (bind_to(rpc, (const struct sockaddr *)&v6, sizeof v6) == 0) {
        return 0;
    }
    return errno == EADDRINUSE ? -1 : bind_to(rpc, (const struct sockaddr *)&v4, sizeof v4);
}

static int bind_to_host(k1_rpc *rpc, const char *host, uint16_t port, k1_err *err) {
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    int failed = getaddrinfo(host, NULL, &hints, &found);
    if (failed != 0) {
        return k1_fail(err, "cannot listen for other nodes on %s: %s", host, gai_strerror(failed));
    }
    if (found->ai_family == AF_INET6) {
        ((struct sockaddr_in6 *)(void *)found->ai_addr)->sin6_port = htons(port);
    } else {
        ((struct sockaddr_in *)(void *)found->ai_addr)->sin_port = htons(port);
    }
    failed = bind_to(rpc, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return failed != 0 ? k1_fail(err, "cannot listen for other nodes on %s port %u: %s", host, port, strerror(errno))
                       : 0;
}

static uint16_t bound_port(int fd) {
    struct sockaddr_storage address = {0};
    socklen_t n = sizeof address;
    struct sockaddr_in6 v6;
    if (getsockname(fd, (struct sockaddr *)&address, &n) != 0) {
        return 0;
    }
    memcpy(&v6, &address, sizeof v6);
    return ntohs(v6.sin6_port); /* sin_port is in the same place */
}

int k1_listen_open(k1_rpc *rpc, k1_err *err) {
    const k1_rpc_config *config = &rpc->config;
    char host[K1_ADDRESS_TEXT];
    uint16_t port;
    if (k1_address_parse(config->address[config->rank], host, sizeof host, &port, err) != 0) {
        return -1;
    }
    if (config->bind_host != NULL) {
        if (bind_to_host(rpc, config->bind_host, port, err) != 0) {
            return -1;
        }
    } else if (bind_to_all(rpc, port) != 0) {
        return k1_fail(err, "cannot listen for other nodes on port %u: %s", port, strerror(errno));
    }
    rpc->port = bound_port(rpc->listen_fd);
    rpc->accept = event_new(rpc->base, rpc->listen_fd, EV_READ | EV_PERSIST, on_accept, rpc);
    rpc->accept_again = event_new(rpc->base, -1, 0, on_accept_again, rpc);
    if (rpc->accept == NULL || rpc->accept_again == NULL) {
        return k1_fail(err, "out of memory");
    }
    event_add(rpc->accept, NULL);
    return 0;
}

void k1_listen_close(k1_rpc *rpc) {
    if (rpc->accept != NULL) {
        event_free(rpc->accept);
    }
    if (rpc->accept_again != NULL) {
        event_free(rpc->accept_again);
    }
    if (rpc->listen_fd >= 0) {
        close(rpc->listen_fd);
    }
    while (rpc->pending != NULL) {
        k1_conn *conn = rpc->pending;
        remove_pending(conn);
        k1_conn_free(conn);
    }
}
