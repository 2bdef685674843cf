#include "rpc_nodes.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "k1/request.h"

static void need(bool condition) {
    if (!condition) {
        abort();
    }
}

double k1t_scale(void) {
    const char *text = getenv("K1_TIMEOUT_SCALE");
    double scale = text != NULL ? strtod(text, NULL) : 1.0;
    return scale > 0 ? scale : 1.0;
}

uint16_t k1t_free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    need(fd >= 0 && bind(fd, (const struct sockaddr *)&address, n) == 0);
    need(getsockname(fd, (struct sockaddr *)&address, &n) == 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* ---- callbacks ---- */

static bool on_frame(void *arg, k1_frame *frame) {
    k1t_node *node = arg;
    if (node->refuse || node->refuse_next > 0) {
        node->refuse_next -= node->refuse_next > 0;
        return false;
    }
    need(node->n_seen < K1T_SEEN);
    node->seen[node->n_seen].header = frame->header;
    node->seen[node->n_seen++].first = frame->header.payload_size > 0 ? k1_frame_payload(frame)[0] : 0;
    if (node->on_seen != NULL) {
        node->on_seen(node, frame);
    }
    k1_frames_give(&node->rx, frame);
    return true;
}

static void on_up(void *arg, uint32_t rank) {
    (void)rank;
    ((k1t_node *)arg)->n_up++;
}

static void on_down(void *arg, uint32_t rank, const char *reason) {
    k1t_node *node = arg;
    (void)rank;
    node->n_down++;
    snprintf(node->reason, sizeof node->reason, "%s", reason);
}

static void on_sent(void *arg, k1_frame *frame) {
    k1t_node *node = arg;
    node->n_sent++;
    k1_frames_give(&node->tx, frame);
}

/* ---- life ---- */

static void init_node(k1t_cluster *cluster, uint32_t rank) {
    k1t_node *node = &cluster->node[rank];
    node->log = (k1_log){.fd = memfd_create("log", MFD_CLOEXEC), .level = K1_LOG_INFO};
    node->seen = calloc(K1T_SEEN, sizeof *node->seen);
    need(node->log.fd >= 0 && node->seen != NULL);
    node->config = (k1_rpc_config){
        .rank = rank,
        .n_ranks = cluster->n,
        .bind_host = "127.0.0.1",
        .n_layer = 4,
        .n_embd = 16,
        .n_vocab = 32,
        .timeout_scale = k1t_scale(),
        .log = &node->log,
        .arg = node,
        .on_frame = on_frame,
        .on_up = on_up,
        .on_down = on_down,
        .on_sent = on_sent,
    };
    memset(node->config.key, 7, sizeof node->config.key);
    memset(node->config.model_sha256, 9, sizeof node->config.model_sha256);
    for (uint32_t r = 0; r < cluster->n; r++) {
        node->config.address[r] = cluster->address[r];
    }
}

void k1t_cluster_init(k1t_cluster *cluster, uint32_t n) {
    memset(cluster, 0, sizeof *cluster);
    cluster->base = event_base_new();
    cluster->n = n;
    need(cluster->base != NULL && n <= K1T_NODES);
    for (uint32_t r = 0; r < n; r++) {
        snprintf(cluster->address[r], sizeof cluster->address[r], "127.0.0.1:%u", k1t_free_port());
    }
    for (uint32_t r = 0; r < n; r++) {
        init_node(cluster, r);
    }
}

void k1t_start(k1t_cluster *cluster, uint32_t rank) {
    k1t_node *node = &cluster->node[rank];
    k1_err err = {""};
    need(k1_frames_init(&node->rx, K1T_FRAMES, K1T_PAYLOAD, &err) == 0);
    need(k1_frames_init(&node->tx, K1T_FRAMES, 4 * K1T_PAYLOAD, &err) == 0);
    node->rpc = k1_rpc_new(cluster->base, &node->config, &node->rx, &err);
    if (node->rpc == NULL) {
        (void)fprintf(stderr, "rank %u: %s\n", rank, err.text);
        abort();
    }
}

void k1t_stop(k1t_cluster *cluster, uint32_t rank) {
    k1t_node *node = &cluster->node[rank];
    if (node->rpc != NULL) {
        k1_rpc_free(node->rpc, "the test is over");
        k1_frames_free(&node->rx);
        k1_frames_free(&node->tx);
        node->rpc = NULL;
    }
}

void k1t_cluster_free(k1t_cluster *cluster) {
    for (uint32_t r = 0; r < cluster->n; r++) {
        k1t_stop(cluster, r);
        close(cluster->node[r].log.fd);
        free(cluster->node[r].seen);
    }
    event_base_free(cluster->base);
}

/* ---- running ---- */

static void nothing(evutil_socket_t fd, short what, void *arg) { (void)fd, (void)what, (void)arg; }

/* One round of the loop, of at most 2 ms. */
static void turn(k1t_cluster *cluster) {
    static const struct timeval moment = {.tv_usec = 2000};
    need(event_base_once(cluster->base, -1, EV_TIMEOUT, nothing, NULL, &moment) == 0);
    need(event_base_loop(cluster->base, EVLOOP_ONCE) >= 0);
}

void k1t_run_ms(k1t_cluster *cluster, int ms) {
    int64_t end = k1_now_ns() + (int64_t)(ms * k1t_scale() * 1e6);
    while (k1_now_ns() < end) {
        turn(cluster);
    }
}

bool k1t_until(k1t_cluster *cluster, bool (*done)(k1t_cluster *cluster)) {
    int64_t end = k1_now_ns() + (int64_t)(k1t_scale() * 10e9);
    while (!done(cluster)) {
        if (k1_now_ns() > end) {
            for (uint32_t r = 0; r < cluster->n; r++) {
                (void)fprintf(stderr, "log of rank %u:\n%s", r, k1t_log(&cluster->node[r]));
            }
            return false;
        }
        turn(cluster);
    }
    return true;
}

bool k1t_all_up(k1t_cluster *cluster) {
    for (uint32_t a = 0; a < cluster->n; a++) {
        for (uint32_t b = 0; b < cluster->n; b++) {
            if (a != b && !k1_rpc_is_up(cluster->node[a].rpc, b)) {
                return false;
            }
        }
    }
    return true;
}

bool k1t_send(k1t_node *node, uint32_t to, k1_msg type, uint32_t slot, size_t size, uint8_t fill) {
    k1_frame *frame = k1_frames_take(&node->tx);
    if (frame == NULL) {
        return false;
    }
    frame->to = to;
    frame->header.msg_type = (uint16_t)type;
    frame->header.slot = slot;
    frame->header.payload_size = (uint32_t)size;
    memset(k1_frame_payload(frame), fill, size <= frame->capacity ? size : 0);
    k1_rpc_send(node->rpc, frame);
    return true;
}

/* ---- logs ---- */

const char *k1t_log(const k1t_node *node) {
    static char text[1 << 16];
    ssize_t n = pread(node->log.fd, text, sizeof text - 1, 0);
    need(n >= 0);
    text[n] = '\0';
    return text;
}

size_t k1t_lines(const k1t_node *node, const char *a, const char *b) {
    char *text = strdup(k1t_log(node)), *rest = text, *line;
    size_t n = 0;
    need(text != NULL);
    while ((line = strsep(&rest, "\n")) != NULL) {
        n += strstr(line, a) != NULL && strstr(line, b) != NULL;
    }
    free(text);
    return n;
}
