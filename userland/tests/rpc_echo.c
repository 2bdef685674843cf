/* One node that sends every message back to its sender, for tests/integration/test_k1rpc.py.
 * usage: rpc_echo RANK KEY_FILE ADDRESS... (one a rank). It logs on standard error, says `port N`, `up R` and `down R
 * WHY` on standard output, and ends with standard input. */
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "k1/rpc.h"

enum { FRAMES = 16, PAYLOAD = 4096 };

typedef struct echo {
    struct event_base *base;
    k1_rpc *rpc;
    k1_frames rx, tx;
    k1_log log;
} echo;

static bool on_frame(void *arg, k1_frame *frame) {
    echo *e = arg;
    k1_frame *answer = k1_frames_take(&e->tx);
    if (answer == NULL) {
        return false;
    }
    answer->header = frame->header;
    answer->to = frame->header.rank;
    memcpy(k1_frame_payload(answer), k1_frame_payload(frame), frame->header.payload_size);
    k1_frames_give(&e->rx, frame);
    k1_rpc_send(e->rpc, answer);
    return true;
}

static void on_sent(void *arg, k1_frame *frame) {
    echo *e = arg;
    k1_frames_give(&e->tx, frame);
    k1_rpc_resume(e->rpc);
}

static void on_up(void *arg, uint32_t rank) {
    (void)arg;
    printf("up %u\n", rank);
}

static void on_down(void *arg, uint32_t rank, const char *reason) {
    (void)arg;
    printf("down %u %s\n", rank, reason);
}

static void on_input(evutil_socket_t fd, short what, void *arg) {
    char text[64];
    (void)what;
    if (read(fd, text, sizeof text) <= 0) {
        event_base_loopbreak(arg);
    }
}

static int run(echo *e, const k1_rpc_config *config) {
    k1_err err = {""};
    struct event *input = event_new(e->base, STDIN_FILENO, EV_READ | EV_PERSIST, on_input, e->base);
    if (k1_frames_init(&e->rx, FRAMES, PAYLOAD, &err) != 0 || k1_frames_init(&e->tx, FRAMES, PAYLOAD, &err) != 0 ||
        (e->rpc = k1_rpc_new(e->base, config, &e->rx, &err)) == NULL) {
        (void)fprintf(stderr, "rpc_echo: %s\n", err.text);
        return 1;
    }
    printf("port %u\n", k1_rpc_port(e->rpc));
    event_add(input, NULL);
    event_base_dispatch(e->base);
    k1_rpc_free(e->rpc, "rpc_echo ends");
    k1_frames_free(&e->rx);
    k1_frames_free(&e->tx);
    event_free(input);
    event_base_free(e->base);
    return 0;
}

int main(int argc, char **argv) {
    echo e = {.log = {.fd = STDERR_FILENO, .level = K1_LOG_INFO}};
    const char *scale = getenv("K1_TIMEOUT_SCALE");
    k1_err err;
    k1_rpc_config config = {.bind_host = "127.0.0.1",
                            .n_layer = 4,
                            .n_embd = 16,
                            .n_vocab = 32,
                            .timeout_scale = scale != NULL ? strtod(scale, NULL) : 1.0,
                            .log = &e.log,
                            .arg = &e,
                            .on_frame = on_frame,
                            .on_up = on_up,
                            .on_down = on_down,
                            .on_sent = on_sent};
    if (argc < 5 || argc > 3 + K1_RPC_MAX_RANKS) {
        (void)fprintf(stderr, "usage: %s RANK KEY_FILE ADDRESS...\n", argv[0]);
        return 2;
    }
    config.rank = (uint32_t)strtoul(argv[1], NULL, 10);
    config.n_ranks = (uint32_t)argc - 3;
    for (uint32_t r = 0; r < config.n_ranks; r++) {
        config.address[r] = argv[3 + r];
    }
    memset(config.model_sha256, 9, sizeof config.model_sha256);
    if (k1_cluster_key_load(argv[2], config.key, &err) != 0) {
        (void)fprintf(stderr, "rpc_echo: %s\n", err.text);
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    e.base = event_base_new();
    return e.base == NULL ? 1 : run(&e, &config);
}
