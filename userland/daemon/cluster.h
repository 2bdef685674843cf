/* A node among others: its links, and rank 0's plan of which layers run where. It belongs to the event thread. */
#ifndef K1_CLUSTER_H
#define K1_CLUSTER_H

#include <event2/event.h>

#include "k1/log.h"
#include "k1/rpc.h"
#include "worker.h"

typedef struct k1_cluster k1_cluster;

typedef struct k1_cluster_config {
    const char *nodes;  /* addresses by rank, with commas */
    const char *master; /* rank 0's address as the user gave it; may be NULL */
    const char *key_file;
    uint32_t rank;
    uint32_t n_slots;
    double timeout_scale;
    const k1_log *log;
} k1_cluster_config;

/* Read and check the configuration and the key; opens nothing. */
k1_cluster *k1_cluster_new(const k1_cluster_config *config, k1_err *err);
uint32_t k1_cluster_n_ranks(const k1_cluster *cluster);
bool k1_cluster_is_head(const k1_cluster *cluster); /* rank 0, which answers requests */
/* Listen and dial. worker's on_frame and on_room must be k1_cluster_send and k1_cluster_resume. */
int k1_cluster_start(k1_cluster *cluster, struct event_base *base, k1_runtime *runtime, k1_worker *worker,
                     const uint8_t model_sha256[32], k1_err *err);
/* Close the links; before the worker is freed. */
void k1_cluster_stop(k1_cluster *cluster);
void k1_cluster_free(k1_cluster *cluster); /* after it */

void k1_cluster_send(void *cluster, k1_frame *frame);
void k1_cluster_resume(void *cluster);

/* Why requests cannot be served here now, for people; NULL: they can. */
const char *k1_cluster_why_not(k1_cluster *cluster);

typedef struct k1_cluster_node {
    const char *address;
    bool self, up;
    uint32_t first, end; /* layers; both 0 without a plan */
    uint32_t rtt_us;
} k1_cluster_node;
k1_cluster_node k1_cluster_node_of(const k1_cluster *cluster, uint32_t rank);

#endif
