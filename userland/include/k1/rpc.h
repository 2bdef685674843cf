/* k1rpc: messages between the nodes of a cluster (docs/protocol.md has every byte). Everything here but k1_frames
 * belongs to one event thread, that of the event_base. */
#ifndef K1_RPC_H
#define K1_RPC_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "k1/error.h"
#include "k1/log.h"
#include "k1/ring.h"
#include "k1/sampler.h"

#define K1_RPC_HEADER 128
#define K1_RPC_MAX_RANKS 16
#define K1_RPC_MAX_TOKENS 64 /* of a forward */
#define K1_RPC_TEXT 400      /* bytes of an error's or bye's text */
#define K1_RPC_KEY 32

typedef enum k1_msg {
    K1_MSG_FORWARD = 0,
    K1_MSG_BACKWARD = 1,
    K1_MSG_SYNC = 2,
    K1_MSG_OPEN = 3,
    K1_MSG_TRUNCATE = 4,
    K1_MSG_CANCEL = 5,
    K1_MSG_PING = 6,
    K1_MSG_PLAN = 7,
    K1_MSG_BYE = 8,
    K1_MSG_HELLO = 16,
    K1_MSG_WELCOME = 17,
    K1_MSG_CONFIRM = 18,
} k1_msg;

enum { K1_FLAG_LAST = 1, K1_FLAG_ERROR = 2, K1_FLAG_REPLY = 4 };

/* A header, decoded. seq_num, crc32 and mac are the link's business. */
typedef struct k1_header {
    uint16_t version;
    uint16_t msg_type;
    uint32_t layer_id;
    uint32_t flags;
    uint64_t seq_num;
    uint32_t payload_size;
    uint32_t crc32;
    uint64_t session;
    uint32_t rank;
    uint32_t plan_epoch;
    uint64_t request_id;
    uint32_t slot;
    uint32_t slot_gen;
    uint32_t first_pos;
    uint32_t n_tokens;
    uint16_t dtype;
    uint8_t mac[16];
} k1_header;

void k1_header_encode(const k1_header *header, uint8_t out[K1_RPC_HEADER]);
/* -1 and err: bad magic. The version is the caller's to judge. */
int k1_header_decode(const uint8_t in[K1_RPC_HEADER], k1_header *header, k1_err *err);

/* ---- payloads ---- */

typedef struct k1_trace {
    int32_t token; /* -1: not chosen yet */
    uint32_t n_ranks;
    struct {
        uint32_t wait_us, run_us;
    } rank[K1_RPC_MAX_RANKS];
} k1_trace;

typedef struct k1_plan {
    uint32_t n_ranks;
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_slots;
    struct {
        uint32_t first, end;
    } layers[K1_RPC_MAX_RANKS];
} k1_plan;

enum { K1_TRACE_BYTES = 320, K1_SAMPLING_BYTES = 64, K1_PLAN_BYTES = 192 };

void k1_trace_encode(const k1_trace *trace, uint8_t out[K1_TRACE_BYTES]);
/* Each of the decoders: -1 and err when size or a value is impossible. */
int k1_trace_decode(const uint8_t *in, size_t size, k1_trace *trace, k1_err *err);
void k1_sampling_encode(const k1_sampling *sampling, uint8_t out[K1_SAMPLING_BYTES]);
int k1_sampling_decode(const uint8_t *in, size_t size, k1_sampling *sampling, k1_err *err);
void k1_plan_encode(const k1_plan *plan, uint8_t out[K1_PLAN_BYTES]);
/* Ranges must follow each other from layer 0 to n_layer, none empty. */
int k1_plan_decode(const uint8_t *in, size_t size, uint32_t n_layer, k1_plan *plan, k1_err *err);

/* Where the parts of a forward's payload begin. n_tokens <= K1_RPC_MAX_TOKENS. */
typedef struct k1_forward_parts {
    size_t trace;
    size_t activations; /* 64-byte aligned */
    size_t size;        /* of the payload */
} k1_forward_parts;
k1_forward_parts k1_forward_layout(uint32_t n_tokens, uint32_t n_embd);

/* ---- frames ---- */

/* A message in one piece of memory: header, payload. wire is 64-byte aligned, payload = wire + K1_RPC_HEADER. */
typedef struct k1_frame {
    k1_header header;
    uint8_t *wire;
    size_t capacity;       /* of the payload */
    int64_t received_ns;   /* monotonic */
    uint32_t to;           /* rank */
    struct k1_frame *next; /* the link's */
} k1_frame;

static inline uint8_t *k1_frame_payload(const k1_frame *frame) { return frame->wire + K1_RPC_HEADER; }

/* Frames made beforehand, taken by exactly one thread and given back by exactly one (which may be the same). */
typedef struct k1_frames {
    k1_frame *all;
    size_t n;
    k1_ring free;
} k1_frames;

int k1_frames_init(k1_frames *frames, size_t n, size_t payload, k1_err *err); /* n: a power of two */
void k1_frames_free(k1_frames *frames);
k1_frame *k1_frames_take(k1_frames *frames); /* header zeroed; NULL: none is free */
void k1_frames_give(k1_frames *frames, k1_frame *frame);

/* ---- the cluster's links ---- */

/* The cluster key: 64 hex digits in a file that others cannot read. -1 and err: names the file and what is wrong. */
int k1_cluster_key_load(const char *path, uint8_t key[K1_RPC_KEY], k1_err *err);

/* Callbacks may call k1_rpc_send and k1_rpc_resume. Texts are copied; what log points to must outlive the links. */
typedef struct k1_rpc_config {
    uint32_t rank;
    uint32_t n_ranks;
    const char *address[K1_RPC_MAX_RANKS]; /* "host" or "host:port" (IPv6 in brackets), by rank; port 8090 by default */
    const char *bind_host;                 /* NULL: all addresses */
    uint8_t key[K1_RPC_KEY];
    uint8_t model_sha256[32];
    uint32_t n_layer, n_embd, n_vocab;
    double timeout_scale;
    const k1_log *log;
    void *arg;
    /* A message from a peer after the handshake, ping and bye excepted. The callee gives the frame back to rx. false:
     * it cannot take it now; the frame stays with the link, which stops reading until k1_rpc_resume. */
    bool (*on_frame)(void *arg, k1_frame *frame);
    /* Both connections to a rank stand; one of them is gone, and why (one sentence that names the peer). */
    void (*on_up)(void *arg, uint32_t rank);
    void (*on_down)(void *arg, uint32_t rank, const char *reason);
    /* A frame given to k1_rpc_send has left or was dropped: give it back to the pool it came from. */
    void (*on_sent)(void *arg, k1_frame *frame);
} k1_rpc_config;

typedef struct k1_rpc k1_rpc;

/* Listen, and dial all peers for as long as it lives. rx: frames for what arrives, taken here and given back by
 * on_frame's side; their capacity bounds every payload. -1 … NULL and err: address in use, an address that cannot be
 * resolved. */
k1_rpc *k1_rpc_new(struct event_base *base, const k1_rpc_config *config, k1_frames *rx, k1_err *err);
/* Say bye to all, close; not from a callback. Frames that wait to be sent come back by on_sent. Those of rx in which a
 * message was still arriving do not: rx is of no use to another k1_rpc. */
void k1_rpc_free(k1_rpc *rpc, const char *why);
uint16_t k1_rpc_port(const k1_rpc *rpc);

/* Queue a frame to frame->to; fills version, seq_num, rank, crc32 and mac, and the session when it is not 0.
 * payload_size must be set. A frame to a peer that is down is dropped. One that is larger than the peer takes is
 * dropped and takes the connection down. on_sent may be called before this returns. */
void k1_rpc_send(k1_rpc *rpc, k1_frame *frame);
/* The session that rank 0 announced (0: none yet); rank 0 makes it in k1_rpc_new. */
uint64_t k1_rpc_session(const k1_rpc *rpc);
/* Read again after on_frame said false. */
void k1_rpc_resume(k1_rpc *rpc);
bool k1_rpc_is_up(const k1_rpc *rpc, uint32_t rank);
/* Why a rank is not up (never NULL), for people: "connecting to 10.0.0.3:8090: connection refused". */
const char *k1_rpc_why_down(const k1_rpc *rpc, uint32_t rank);
/* Median of the last round trips to a rank in microseconds; 0 when unknown. */
uint32_t k1_rpc_rtt_us(const k1_rpc *rpc, uint32_t rank);

#endif
