/* Any bytes on a connection of a node: before the handshake, as the answer to its own hello, and as messages of a peer
 * that holds the key. What
 * on_frame gets is whole and within its limits, no frame is lost, and the node goes on. */
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"
#include "rpc_handshake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FRAMES = 4, MOST = 1 << 16 /* bytes of an input, which the socket holds */ };

typedef struct node {
    struct event_base *base;
    k1_rpc *rpc;
    k1_frames rx;
    k1_log log;
    size_t n_refused;
} node;

static void must(bool holds) {
    if (!holds) {
        abort();
    }
}

static const char *random_name(void) { return "constant"; }
static uint32_t random_number(void) { return FUZZ_NONCE; }
static void random_bytes(void *out, const size_t n) { memset(out, FUZZ_NONCE, n); }

static bool on_frame(void *arg, k1_frame *frame) {
    node *n = arg;
    uint8_t sum = 0;
    must(frame->header.payload_size <= frame->capacity && frame->header.msg_type <= K1_MSG_BYE);
    must(frame->header.rank == 0 && frame->received_ns > 0);
    for (uint32_t i = 0; i < frame->header.payload_size; i++) {
        sum ^= k1_frame_payload(frame)[i];
    }
    if ((sum & 7) == 1 && n->n_refused++ % 2 == 0) {
        k1_rpc_resume(n->rpc);
        return false;
    }
    k1_frames_give(&n->rx, frame);
    return true;
}

static void on_change(void *arg, uint32_t rank) { (void)arg, (void)rank; }
static void on_down(void *arg, uint32_t rank, const char *reason) {
    (void)arg, (void)rank;
    must(reason[0] != '\0');
}
static void on_sent(void *arg, k1_frame *frame) { (void)arg, (void)frame; }

static node *make_node(void) {
    static randombytes_implementation constant = {
        .implementation_name = random_name, .random = random_number, .buf = random_bytes};
    static node n;
    k1_err err = {""};
    k1_rpc_config config = {.rank = FUZZ_OWN,
                            .n_ranks = FUZZ_RANKS,
                            .address = {"127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:1"},
                            .bind_host = "127.0.0.1",
                            .n_layer = 4,
                            .n_embd = 16,
                            .n_vocab = 32,
                            .timeout_scale = 1000,
                            .log = &n.log,
                            .arg = &n,
                            .on_frame = on_frame,
                            .on_up = on_change,
                            .on_down = on_down,
                            .on_sent = on_sent};
    memset(config.key, FUZZ_KEY, sizeof config.key);
    randombytes_set_implementation(&constant);
    n.log = (k1_log){.fd = open("/dev/null", O_WRONLY | O_CLOEXEC), .level = K1_LOG_DEBUG};
    n.base = event_base_new();
    must(n.base != NULL && k1_frames_init(&n.rx, FRAMES, FUZZ_PAYLOAD, &err) == 0);
    n.rpc = k1_rpc_new(n.base, &config, &n.rx, &err);
    must(n.rpc != NULL);
    return &n;
}

static void no_dials(node *n) {
    event_del(n->rpc->peers[0].dial);
    event_del(n->rpc->peers[2].dial);
}

static void turn(node *n) { must(event_base_loop(n->base, EVLOOP_NONBLOCK | EVLOOP_ONCE) >= 0); }

/* The node's own connection to rank 0 stands already, or waits for welcome. Returns its other end. */
static int give_out(node *n, bool stands) {
    int ends[2];
    k1_peer *peer = &n->rpc->peers[0];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    peer->out = k1_conn_new(n->rpc, ends[0], true, NULL);
    must(peer->out != NULL);
    peer->out->peer = peer;
    peer->out->stands = stands;
    peer->out->theirs.instance = 1;
    k1_own_hello(n->rpc, 0, &peer->out->mine);
    event_add(peer->out->read, NULL);
    return ends[1];
}

/* ---- what is sent ---- */

/* One record as a message: 8 bytes that say what it is, then its payload. Returns the record's size. */
static size_t put_record(uint8_t *out, const uint8_t *record, size_t size, const uint8_t key[32], uint64_t seq_num) {
    size_t wanted = k1_get_u16(record + 2), left = size - FUZZ_RECORD, n = wanted < left ? wanted : left;
    k1_header header = {.version = 1,
                        .msg_type = record[1],
                        .flags = record[4],
                        .slot = record[5],
                        .seq_num = seq_num + ((record[0] & FUZZ_BAD_SEQ) != 0),
                        .payload_size = (uint32_t)(record[6] == 0 ? n : record[6] * n),
                        .crc32 = k1_crc32(record + FUZZ_RECORD, n) ^ ((record[0] & FUZZ_BAD_CRC) != 0),
                        .rank = (record[0] & FUZZ_BAD_RANK) != 0};
    memcpy(out + K1_RPC_HEADER, record + FUZZ_RECORD, n);
    k1_header_encode(&header, out);
    k1_frame_tag(key, seq_num, out, out + K1_RPC_HEADER, n, out + K1_SIGNED);
    out[K1_SIGNED] ^= (record[0] & FUZZ_BAD_TAG) != 0;
    return FUZZ_RECORD + n;
}

/* A record becomes K1_RPC_HEADER - FUZZ_RECORD bytes more, so this is room enough. */
static uint8_t *make_stream(const uint8_t *data, size_t size, size_t *n) {
    uint8_t key[32], *out = malloc(FUZZ_HANDSHAKE + size + (size / FUZZ_RECORD + 1) * K1_RPC_HEADER);
    uint64_t seq_num = 2;
    must(out != NULL);
    if (size == 0 || data[0] != FUZZ_FRAMES) {
        *n = size > 0 ? size - 1 : 0;
        memcpy(out, data + (size > 0), *n);
        if (size > 0 && data[0] == FUZZ_SIGNED && *n >= FUZZ_HELLO) {
            fuzz_sign_hello(out);
        }
        return out;
    }
    fuzz_key(key);
    fuzz_handshake(out);
    *n = FUZZ_HANDSHAKE;
    for (size_t at = 1; size - at >= FUZZ_RECORD; seq_num++) {
        size_t used = put_record(out + *n, data + at, size - at, key, seq_num);
        *n += K1_RPC_HEADER + used - FUZZ_RECORD;
        at += used;
    }
    return out;
}

/* Write and run until the node has taken all, or has closed. */
static void talk(node *n, int fd, const uint8_t *bytes, size_t size) {
    size_t at = 0;
    for (int idle = 0; idle < 4; idle++) {
        ssize_t sent = at < size ? send(fd, bytes + at, size - at, MSG_NOSIGNAL) : 0;
        if (sent > 0) {
            at += (size_t)sent;
            idle = 0;
        }
        turn(n);
        no_dials(n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static node *n;
    int ends[2];
    if (size > MOST) {
        return 0;
    }
    n = n == NULL ? make_node() : n;
    no_dials(n);
    bool dialled = size > 0 && data[0] == FUZZ_DIALLED;
    int out = give_out(n, !dialled);
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    k1_listen_take(n->rpc, ends[0], "192.0.2.1");
    size_t stream_size;
    uint8_t *stream = make_stream(data, size, &stream_size);
    talk(n, dialled ? out : ends[1], stream, stream_size);
    free(stream);
    close(ends[1]);
    close(out);
    while (n->rpc->n_pending > 0 || n->rpc->peers[0].in != NULL || n->rpc->peers[0].out != NULL) {
        turn(n);
        no_dials(n);
    }
    /* Every frame is free, or kept for the next message. */
    size_t n_frames = 0;
    for (const k1_frame *frame = n->rpc->spare; frame != NULL; frame = frame->next) {
        n_frames++;
    }
    n_frames += n->rx.free.tail - n->rx.free.head;
    must(n_frames == FRAMES);
    return 0;
}
