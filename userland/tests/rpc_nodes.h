/* Nodes of a cluster in one process and on one event base, each with a log that can be read. */
#ifndef K1_TESTS_RPC_NODES_H
#define K1_TESTS_RPC_NODES_H

#include "k1/rpc.h"

enum { K1T_NODES = 3, K1T_FRAMES = 16, K1T_PAYLOAD = 4096, K1T_SEEN = 16384 };

/* A message as on_frame saw it. */
typedef struct k1t_seen {
    k1_header header;
    uint8_t first; /* byte of the payload */
} k1t_seen;

typedef struct k1t_node {
    k1_rpc_config config;
    k1_rpc *rpc;
    k1_log log;
    k1_frames rx, tx;
    bool refuse;        /* what on_frame says no to */
    size_t refuse_next; /* so many times more */
    size_t n_seen, n_sent, n_up, n_down;
    k1t_seen *seen; /* [K1T_SEEN] */
    char reason[512];
    void (*on_seen)(struct k1t_node *node, const k1_frame *frame);
} k1t_node;

typedef struct k1t_cluster {
    struct event_base *base;
    uint32_t n;
    char address[K1T_NODES][32];
    k1t_node node[K1T_NODES];
} k1t_cluster;

double k1t_scale(void);
/* n nodes that agree on everything; change node[i].config before it is started. */
void k1t_cluster_init(k1t_cluster *cluster, uint32_t n);
void k1t_start(k1t_cluster *cluster, uint32_t rank);
/* Say bye. */
void k1t_stop(k1t_cluster *cluster, uint32_t rank);
void k1t_cluster_free(k1t_cluster *cluster);

/* Run the event loop for so long, times the time-out scale. */
void k1t_run_ms(k1t_cluster *cluster, int ms);
/* Run it until done says true; false after 10 s times the scale. */
bool k1t_until(k1t_cluster *cluster, bool (*done)(k1t_cluster *cluster));
bool k1t_all_up(k1t_cluster *cluster);

/* Send a message of size bytes, each of them fill; false: no frame of tx is free. */
bool k1t_send(k1t_node *node, uint32_t to, k1_msg type, uint32_t slot, size_t size, uint8_t fill);
/* How many lines of a node's log hold both texts; the log itself, for a test's message. */
size_t k1t_lines(const k1t_node *node, const char *a, const char *b);
const char *k1t_log(const k1t_node *node);
/* A port of the loopback that was free a moment ago. */
uint16_t k1t_free_port(void);

#endif
