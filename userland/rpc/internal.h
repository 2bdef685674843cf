/* Inside of librpc.
 * conn.c      one TCP connection: reading, writing, its end
 * dial.c      those that this node makes: connect, back off, handshake, pings
 * listen.c    those that others make: accept, handshake, silence
 * peers.c     a rank is up when both connections stand, down when one is gone
 * address.c   texts to socket addresses and back
 * rpc.c       the interface
 * A connection is freed by what ends it (k1_conn_read's caller, a timer, k1_peer_down) and by nothing that a callback
 * of the user may call: k1_rpc_send and k1_rpc_resume only mark and queue. */
#ifndef K1_RPC_INTERNAL_H
#define K1_RPC_INTERNAL_H

#include <netdb.h>

#include "reader.h"

enum {
    K1_DEFAULT_PORT = 8090,
    K1_BATCH = 32,         /* messages in one writev */
    K1_READS = 64,         /* messages from one connection before the others have their turn */
    K1_SAMPLES = 15,       /* round trips that the median is of */
    K1_STEP_MS = 2000,     /* each step of a handshake, times the time-out scale */
    K1_SILENCE_MS = 2000,  /* loss, times the scale */
    K1_PING_MS = 500,      /* times the scale */
    K1_ADDRESS_TEXT = 300, /* a host's name and a port */
};

typedef enum k1_pause {
    K1_PAUSE_NONE,
    K1_PAUSE_NO_FRAME, /* rx is empty */
    K1_PAUSE_REFUSED,  /* on_frame said false */
} k1_pause;

/* A message of the link's own, with its memory. */
typedef struct k1_own_frame {
    k1_frame frame;
    bool busy; /* queued */
    _Alignas(64) uint8_t wire[K1_RPC_HEADER + K1_RPC_TEXT];
} k1_own_frame;

typedef struct k1_conn {
    k1_rpc *rpc;
    struct k1_peer *peer; /* NULL: of an inbound one that has not proved who it is */
    bool dialled;
    bool connecting; /* a dialled one that waits for its connect */
    bool stands;     /* the handshake is over */
    bool refused;    /* a dialled one whose end is a refusal */
    bool leaving;    /* an inbound one that was refused and has yet to read why */
    bool bad;        /* what came broke the protocol */
    int fd;
    struct event *read, *write, *timer;
    char address[K1_ADDRESS_TEXT]; /* of the other end, in numbers */
    k1_reader reader;
    k1_pause pause;
    int64_t heard_ns; /* when the last bytes came */
    k1_hello mine, theirs;
    uint32_t their_rank;
    uint64_t their_session;
    /* sending */
    uint8_t send_key[32];
    uint64_t send_seq;
    uint32_t max_payload;
    k1_frame *first, *last; /* queued */
    size_t sent;            /* bytes of the first that have left */
    bool flushing;
    k1_err broken;                 /* why nothing can be sent any more; empty: it can */
    k1_own_frame hand, ping, pong; /* hand: handshake and bye */
    struct k1_conn *next;          /* of the inbound ones that are not through */
} k1_conn;

typedef struct k1_peer {
    k1_rpc *rpc;
    uint32_t rank;
    char name[K1_ADDRESS_TEXT]; /* host:port as given */
    struct addrinfo *addresses, *at;
    struct event *dial; /* its next time */
    uint32_t n_failed;  /* dials since it was last up */
    k1_conn *out;       /* NULL: between two dials */
    k1_conn *in;        /* NULL: none that stands */
    bool up;
    bool told_waiting;
    k1_err why;      /* it is not up */
    k1_err refused;  /* logged last; empty: none since it was last up */
    k1_err stranger; /* the same of those who came in its name without proof */
    uint32_t rtt_us[K1_SAMPLES];
    uint32_t n_rtt; /* ever */
} k1_peer;

struct k1_rpc {
    struct event_base *base;
    k1_rpc_config config;
    k1_peer peers[K1_RPC_MAX_RANKS]; /* the own rank's holds nothing but the last refusal */
    k1_frames *rx;
    k1_frame *spare; /* taken from rx for messages that did not arrive whole */
    uint8_t hello_key[32];
    uint64_t session, instance;
    int listen_fd;
    uint16_t port;
    struct event *accept, *accept_again;
    k1_conn *pending; /* inbound, not through, the oldest first */
    uint32_t n_pending;
    struct event *resume;
    bool resume_refused;
    k1_log_rate strangers, no_files; /* of log lines */
};

/* ---- conn.c ---- */
k1_conn *k1_conn_new(k1_rpc *rpc, int fd, bool dialled, k1_err *err);
void k1_conn_free(k1_conn *conn);
void k1_event_after(struct event *event, double ms);
double k1_scaled(const k1_rpc *rpc, int ms);
/* ms: before the time-out scale. */
void k1_conn_timer(k1_conn *conn, int ms);
/* Seal a message with the next number and queue it, and send what the socket takes; payload_size is set. */
void k1_conn_send(k1_conn *conn, k1_frame *frame);
/* The same for one of the link's own. -1 and err: its last one has not left. */
int k1_conn_send_own(k1_conn *conn, k1_own_frame *own, k1_msg type, uint32_t flags, const void *payload, size_t size,
                     k1_err *err);
/* Hello, and a welcome that refuses: signed by the hello key, with nonce as k1_hello_tag has it; or not signed. */
int k1_conn_send_hello(k1_conn *conn, k1_msg type, uint32_t flags, const void *payload, size_t size, bool is_signed,
                       const uint8_t *nonce, k1_err *err);
/* Receive and handle what there is. -1 and err: the connection is at its end, and why. */
int k1_conn_read(k1_conn *conn, k1_err *err);
void k1_conn_resume(k1_conn *conn);

/* ---- dial.c ---- */
void k1_dial_again(k1_peer *peer); /* after a while, longer each time */
void k1_dial_soon(k1_peer *peer);  /* unless it is being dialled, or stands */
void k1_on_dial(evutil_socket_t fd, short what, void *peer);
int k1_dial_connected(k1_conn *conn, k1_err *err);
int k1_dial_message(k1_conn *conn, k1_err *err);
void k1_dial_lost(k1_conn *conn, const k1_err *why);
void k1_dial_on_timer(k1_conn *conn);
void k1_dial_ping(k1_conn *conn);

/* ---- listen.c ---- */
int k1_listen_open(k1_rpc *rpc, k1_err *err);
void k1_listen_close(k1_rpc *rpc);
/* Take an accepted socket; address: of its other end. */
void k1_listen_take(k1_rpc *rpc, int fd, const char *address);
int k1_listen_message(k1_conn *conn, k1_err *err);
/* The reader has found something wrong. 0: the connection stays, to tell it. */
int k1_listen_bad(k1_conn *conn);
void k1_listen_lost(k1_conn *conn, const k1_err *why);
void k1_listen_on_timer(k1_conn *conn);

/* ---- peers.c ---- */
/* One more connection stands. */
void k1_peer_stands(k1_peer *peer, const k1_conn *conn);
/* One of the two is gone: close the other, tell, dial again. why: what happened, without a name. */
void k1_peer_down(k1_peer *peer, const char *why);
void k1_peer_waiting(k1_peer *peer, const k1_err *why);
/* The node at a peer's address, or one that has proved to be that peer, is refused or refuses. A reason is logged once.
 */
void k1_peer_refused(k1_peer *peer, const char *address, const k1_err *why);
/* One who came and may be anybody is refused: this says nothing about the peer in whose name it came (NULL: nobody's),
 * and the log stays short however often it comes. */
void k1_stranger_refused(k1_rpc *rpc, k1_peer *peer, const char *address, const k1_err *why);
/* -1 and why: another process than this instance is connected as that rank. */
int k1_peer_check_instance(const k1_peer *peer, uint64_t instance, const char *address, k1_err *why);
void k1_peer_rtt(k1_peer *peer, uint64_t sent_us);
/* What a peer says about itself, fit for a log line. */
void k1_clean_text(char *out, size_t capacity, const uint8_t *text, size_t n);
void k1_own_hello(const k1_rpc *rpc, uint32_t to_rank, k1_hello *out);

/* ---- address.c ---- */
/* "host", "host:port" or "[v6]:port". */
int k1_address_parse(const char *text, char *host, size_t capacity, uint16_t *port, k1_err *err);
int k1_address_resolve(const char *text, struct addrinfo **out, k1_err *err);
/* host: the number alone, without a port. */
void k1_address_text(const struct sockaddr *address, socklen_t n, bool with_port, char *out, size_t capacity);

#endif
