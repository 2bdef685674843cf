#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"
#include "k1/request.h"

/* ---- sending ---- */

/* A frame has left, or never will. */
static void let_go(k1_conn *conn, k1_frame *frame) {
    if (frame == &conn->hand.frame) {
        conn->hand.busy = false;
    } else if (frame == &conn->ping.frame) {
        conn->ping.busy = false;
    } else if (frame == &conn->pong.frame) {
        conn->pong.busy = false;
    } else {
        conn->rpc->config.on_sent(conn->rpc->config.arg, frame);
    }
}

static k1_frame *pop(k1_conn *conn) {
    k1_frame *frame = conn->first;
    conn->first = frame->next;
    if (conn->first == NULL) {
        conn->last = NULL;
    }
    frame->next = NULL;
    return frame;
}

static size_t wire_size(const k1_frame *frame) { return K1_RPC_HEADER + (size_t)frame->header.payload_size; }

/* n more bytes have left. */
static void advance(k1_conn *conn, size_t n) {
    conn->sent += n;
    while (conn->first != NULL && conn->sent >= wire_size(conn->first)) {
        conn->sent -= wire_size(conn->first);
        let_go(conn, pop(conn));
    }
}

static ssize_t write_batch(const k1_conn *conn) {
    struct iovec pieces[K1_BATCH];
    size_t n = 0, skip = conn->sent;
    for (const k1_frame *frame = conn->first; frame != NULL && n < K1_BATCH; frame = frame->next) {
        pieces[n++] = (struct iovec){frame->wire + skip, wire_size(frame) - skip};
        skip = 0;
    }
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = n};
    return sendmsg(conn->fd, &message, MSG_NOSIGNAL); /* writev that raises no SIGPIPE */
}

/* The connection ends from its read event, never below k1_rpc_send. */
static void set_broken(k1_conn *conn, const k1_err *why) {
    if (conn->broken.text[0] == '\0') {
        conn->broken = *why;
        event_active(conn->read, EV_READ, 0);
    }
}

/* on_sent may send more while this runs: that is only queued, and leaves in this loop. */
void k1_conn_flush(k1_conn *conn) {
    if (conn->flushing || conn->connecting) {
        return;
    }
    conn->flushing = true;
    while (conn->first != NULL && conn->broken.text[0] == '\0') {
        ssize_t n = write_batch(conn);
        if (n >= 0) {
            advance(conn, (size_t)n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            event_add(conn->write, NULL);
            break;
        } else if (errno != EINTR) {
            k1_err why;
            k1_fail(&why, "cannot send: %s", strerror(errno));
            set_broken(conn, &why);
        }
    }
    conn->flushing = false;
}

static void queue(k1_conn *conn, k1_frame *frame) {
    frame->next = NULL;
    if (conn->last != NULL) {
        conn->last->next = frame;
    } else {
        conn->first = frame;
    }
    conn->last = frame;
}

/* All but the tag. */
static void encode(k1_conn *conn, k1_frame *frame) {
    k1_header *header = &frame->header;
    header->version = K1_RPC_VERSION;
    header->seq_num = conn->send_seq++;
    header->session = conn->rpc->session;
    header->rank = conn->rpc->config.rank;
    header->crc32 = k1_crc32(k1_frame_payload(frame), header->payload_size);
    memset(header->mac, 0, sizeof header->mac);
    k1_header_encode(header, frame->wire);
}

static void seal(k1_conn *conn, k1_frame *frame) {
    encode(conn, frame);
    k1_frame_tag(conn->send_key, frame->header.seq_num, frame->wire, k1_frame_payload(frame),
                 frame->header.payload_size, frame->wire + K1_SIGNED);
    queue(conn, frame);
    k1_conn_flush(conn);
}

void k1_conn_send(k1_conn *conn, k1_frame *frame) {
    uint32_t size = frame->header.payload_size;
    if (size <= conn->max_payload && size <= frame->capacity) {
        seal(conn, frame);
        return;
    }
    k1_err why;
    k1_fail(&why, "a message of %u bytes is more than the %u it takes", size, conn->max_payload);
    set_broken(conn, &why);
    let_go(conn, frame);
}

static int fill(k1_own_frame *own, k1_msg type, uint32_t flags, const void *payload, size_t size, k1_err *err) {
    if (own->busy || size > K1_RPC_TEXT) {
        return k1_fail(err, "it does not read what is sent to it");
    }
    own->busy = true;
    own->frame.header = (k1_header){.msg_type = (uint16_t)type, .flags = flags, .payload_size = (uint32_t)size};
    if (size > 0) {
        memcpy(k1_frame_payload(&own->frame), payload, size);
    }
    return 0;
}

int k1_conn_send_own(k1_conn *conn, k1_own_frame *own, k1_msg type, uint32_t flags, const void *payload, size_t size,
                     k1_err *err) {
    if (fill(own, type, flags, payload, size, err) != 0) {
        return -1;
    }
    seal(conn, &own->frame);
    return 0;
}

int k1_conn_send_hello(k1_conn *conn, k1_msg type, uint32_t flags, const void *payload, size_t size, bool is_signed,
                       const uint8_t *nonce, k1_err *err) {
    k1_frame *frame = &conn->hand.frame;
    if (fill(&conn->hand, type, flags, payload, size, err) != 0) {
        return -1;
    }
    encode(conn, frame);
    if (is_signed) {
        k1_hello_tag(conn->rpc->hello_key, nonce, frame->wire, size, frame->wire + K1_SIGNED);
    }
    queue(conn, frame);
    k1_conn_flush(conn);
    return 0;
}

/* ---- receiving ---- */

/* 1: bytes came; 0: none are there now; -1 and err: the end. */
static int receive(k1_conn *conn, void *at, size_t room, size_t *n, k1_err *err) {
    ssize_t got;
    while ((got = recv(conn->fd, at, room, 0)) < 0 && errno == EINTR) {
    }
    if (got > 0) {
        *n = (size_t)got;
        conn->heard_ns = k1_now_ns();
        return 1;
    }
    if (got == 0) {
        return k1_fail(err, "it closed the connection");
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : k1_fail(err, "the connection broke: %s", strerror(errno));
}

static int receive_message(k1_conn *conn, k1_err *err) {
    k1_reader *reader = &conn->reader;
    uint8_t *at;
    size_t n, room = k1_reader_room(reader, &at);
    int got = receive(conn, at, room, &n, err);
    if (got == 1) {
        reader->n += n;
        if (reader->frame != NULL) {
            reader->frame->received_ns = conn->heard_ns;
        }
    }
    return got;
}

/* Nothing may come; its end does. */
static int receive_end(k1_conn *conn, k1_err *err) {
    uint8_t byte;
    size_t n;
    int got = receive(conn, &byte, sizeof byte, &n, err);
    return got == 1 ? k1_fail(err, "it sent something on a connection that is not its to send on") : got;
}

/* Closing with unread bytes would destroy the refusal on its way. */
static int drain(k1_conn *conn, k1_err *err) {
    uint8_t bytes[1024];
    size_t n;
    int got = 1;
    for (int i = 0; i < K1_READS && got == 1; i++) {
        got = receive(conn, bytes, sizeof bytes, &n, err);
    }
    return got < 0 ? -1 : 0;
}

static void pause_reading(k1_conn *conn, k1_pause why) {
    static const struct timeval soon = {.tv_usec = 2000};
    conn->pause = why;
    event_del(conn->read);
    if (why == K1_PAUSE_NO_FRAME) {
        event_add(conn->rpc->resume, &soon); /* nobody tells when a frame is free */
    }
}

static void take_frame(k1_conn *conn) {
    k1_rpc *rpc = conn->rpc;
    k1_frame *frame = rpc->spare;
    if (frame != NULL) {
        rpc->spare = frame->next;
    } else {
        frame = k1_frames_take(rpc->rx);
    }
    if (frame == NULL) {
        pause_reading(conn, K1_PAUSE_NO_FRAME);
        return;
    }
    frame->next = NULL;
    frame->received_ns = conn->heard_ns;
    conn->reader.frame = frame;
}

static int handle(k1_conn *conn, k1_err *err) {
    if ((conn->dialled ? k1_dial_message : k1_listen_message)(conn, err) != 0) {
        return -1;
    }
    if (conn->reader.frame != NULL && !conn->rpc->config.on_frame(conn->rpc->config.arg, conn->reader.frame)) {
        pause_reading(conn, K1_PAUSE_REFUSED);
        return 0;
    }
    k1_reader_next(&conn->reader);
    return 0;
}

/* 1: go on; 0: nothing more now; -1 and err: the end. */
static int read_step(k1_conn *conn, k1_err *err) {
    switch (k1_reader_step(&conn->reader, err)) {
    case K1_READ_MORE:
        return receive_message(conn, err);
    case K1_READ_FRAME:
        take_frame(conn);
        return 1;
    case K1_READ_MESSAGE:
        return handle(conn, err) == 0 ? 1 : -1;
    default:
        conn->bad = true;
        return conn->dialled ? -1 : k1_listen_bad(conn);
    }
}

static bool may_read(const k1_conn *conn) {
    return !conn->leaving && conn->pause == K1_PAUSE_NONE && !(conn->dialled && conn->stands);
}

int k1_conn_read(k1_conn *conn, k1_err *err) {
    if (conn->broken.text[0] != '\0') {
        *err = conn->broken;
        return -1;
    }
    if (conn->dialled && conn->stands) {
        return receive_end(conn, err);
    }
    int step = 1;
    for (int handled = 0; step == 1 && handled < K1_READS && may_read(conn);) {
        step = read_step(conn, err);
        handled += conn->reader.n == 0; /* stopping in the middle could leave a message that no byte will follow */
    }
    if (step < 0) {
        return -1;
    }
    return conn->leaving ? drain(conn, err) : 0;
}

/* ---- events ---- */

static void lost(k1_conn *conn, const k1_err *why) { (conn->dialled ? k1_dial_lost : k1_listen_lost)(conn, why); }

static void on_readable(evutil_socket_t fd, short what, void *arg) {
    k1_conn *conn = arg;
    k1_err why;
    (void)fd, (void)what;
    if (k1_conn_read(conn, &why) != 0) {
        lost(conn, &why);
    }
}

static void on_writable(evutil_socket_t fd, short what, void *arg) {
    k1_conn *conn = arg;
    k1_err why;
    (void)fd, (void)what;
    if (!conn->connecting) {
        k1_conn_flush(conn);
    } else if (k1_dial_connected(conn, &why) != 0) {
        lost(conn, &why);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    k1_conn *conn = arg;
    (void)fd, (void)what;
    (conn->dialled ? k1_dial_on_timer : k1_listen_on_timer)(conn);
}

void k1_event_after(struct event *event, double ms) {
    int64_t us = (int64_t)(ms * 1000.0);
    event_add(event, &(struct timeval){.tv_sec = us / 1000000, .tv_usec = us % 1000000});
}

double k1_scaled(const k1_rpc *rpc, int ms) { return ms * rpc->config.timeout_scale; }

void k1_conn_timer(k1_conn *conn, int ms) { k1_event_after(conn->timer, k1_scaled(conn->rpc, ms)); }

void k1_conn_resume(k1_conn *conn) {
    conn->pause = K1_PAUSE_NONE;
    conn->heard_ns = k1_now_ns(); /* it was us who did not listen */
    event_add(conn->read, NULL);
    event_active(conn->read, EV_READ, 0); /* even when no byte comes, a message may wait here */
}

/* ---- life ---- */

static void set_own(k1_own_frame *own) {
    own->frame.wire = own->wire;
    own->frame.capacity = K1_RPC_TEXT;
}

k1_conn *k1_conn_new(k1_rpc *rpc, int fd, bool dialled, k1_err *err) {
    int on = 1;
    k1_conn *conn = aligned_alloc(_Alignof(k1_conn), sizeof *conn);
    if (conn == NULL) {
        close(fd);
        k1_fail(err, "out of memory");
        return NULL;
    }
    memset(conn, 0, sizeof *conn);
    conn->rpc = rpc;
    conn->fd = fd;
    conn->dialled = dialled;
    conn->max_payload = K1_RPC_TEXT;
    conn->reader.max_payload = K1_RPC_TEXT;
    conn->reader.stage = dialled ? K1_STAGE_WELCOME : K1_STAGE_HELLO;
    set_own(&conn->hand);
    set_own(&conn->ping);
    set_own(&conn->pong);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    conn->read = event_new(rpc->base, fd, EV_READ | EV_PERSIST, on_readable, conn);
    conn->write = event_new(rpc->base, fd, EV_WRITE, on_writable, conn);
    conn->timer = event_new(rpc->base, -1, 0, on_timer, conn);
    if (conn->read == NULL || conn->write == NULL || conn->timer == NULL) {
        k1_conn_free(conn);
        k1_fail(err, "out of memory");
        return NULL;
    }
    return conn;
}

static void free_event(struct event *event) {
    if (event != NULL) {
        event_free(event);
    }
}

void k1_conn_free(k1_conn *conn) {
    k1_frame *half = conn->reader.frame;
    if (half != NULL) {
        half->next = conn->rpc->spare;
        conn->rpc->spare = half;
    }
    free_event(conn->read);
    free_event(conn->write);
    free_event(conn->timer);
    close(conn->fd);
    while (conn->first != NULL) {
        let_go(conn, pop(conn));
    }
    sodium_memzero(conn, sizeof *conn);
    free(conn);
}
