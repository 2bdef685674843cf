/* Nodes in one process: they find each other, carry messages both ways, and say why when they cannot. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "hello.h"
#include "k1/request.h"
#include "rpc_nodes.h"

static void start_all(k1t_cluster *cluster) {
    for (uint32_t r = 0; r < cluster->n; r++) {
        k1t_start(cluster, r);
    }
}

static void open_pair(k1t_cluster *cluster) {
    k1t_cluster_init(cluster, 2);
    start_all(cluster);
    assert_true(k1t_until(cluster, k1t_all_up));
}

/* ---- up, and messages ---- */

static void all_ranks_find_each_other(void **state) {
    (void)state;
    k1t_cluster c;
    k1t_cluster_init(&c, 3);
    c.node[2].config.bind_host = NULL; /* all addresses */
    start_all(&c);
    assert_true(k1t_until(&c, k1t_all_up));
    for (uint32_t r = 0; r < c.n; r++) {
        assert_int_equal(c.node[r].n_up, 2);
        assert_int_equal(c.node[r].n_down, 0);
        assert_int_equal(k1t_lines(&c.node[r], " info peer_up ", ""), 2);
        assert_int_equal(k1t_lines(&c.node[r], "peer_refused", ""), 0);
        assert_int_equal(k1_rpc_session(c.node[r].rpc), k1_rpc_session(c.node[0].rpc));
    }
    assert_true(k1_rpc_session(c.node[0].rpc) != 0);
    k1t_cluster_free(&c);
}

static bool has_rtt(k1t_cluster *cluster) {
    return k1_rpc_rtt_us(cluster->node[0].rpc, 1) > 0 && k1_rpc_rtt_us(cluster->node[1].rpc, 0) > 0;
}

static void the_round_trip_is_measured(void **state) {
    (void)state;
    k1t_cluster c;
    open_pair(&c);
    assert_true(k1t_until(&c, has_rtt));
    k1t_cluster_free(&c);
}

static bool has_three(k1t_cluster *cluster) { return cluster->node[0].n_seen == 3 && cluster->node[1].n_seen == 3; }

static void messages_arrive_whole_and_in_order_both_ways(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, K1T_PAYLOAD};
    k1t_cluster c;
    open_pair(&c);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(k1t_send(&c.node[0], 1, K1_MSG_FORWARD, i, sizes[i], (uint8_t)(10 + i)));
        assert_true(k1t_send(&c.node[1], 0, K1_MSG_BACKWARD, i, sizes[i], (uint8_t)(20 + i)));
    }
    assert_true(k1t_until(&c, has_three));
    for (uint32_t i = 0; i < 3; i++) {
        const k1t_seen *at_1 = &c.node[1].seen[i], *at_0 = &c.node[0].seen[i];
        assert_int_equal(at_1->header.msg_type, K1_MSG_FORWARD);
        assert_int_equal(at_0->header.msg_type, K1_MSG_BACKWARD);
        assert_int_equal(at_1->header.rank, 0);
        assert_int_equal(at_0->header.rank, 1);
        assert_int_equal(at_1->header.slot, i);
        assert_int_equal(at_1->header.payload_size, sizes[i]);
        assert_int_equal(at_1->first, i == 0 ? 0 : 10 + i);
        assert_int_equal(at_0->first, i == 0 ? 0 : 20 + i);
        assert_int_equal(at_1->header.session, k1_rpc_session(c.node[0].rpc));
    }
    assert_int_equal(c.node[0].n_sent, 3);
    k1t_cluster_free(&c);
}

enum { MANY = 10000 };

/* Send as long as frames are free; the reader has refused some and is asked again. */
static bool has_many(k1t_cluster *cluster) {
    static uint32_t next;
    k1t_node *from = &cluster->node[0], *to = &cluster->node[1];
    next = from->n_sent == 0 && to->n_seen == 0 ? 0 : next;
    while (next < MANY && k1t_send(from, 1, K1_MSG_FORWARD, next, next % K1T_PAYLOAD, (uint8_t)next)) {
        next++;
    }
    k1_rpc_resume(to->rpc);
    return to->n_seen == MANY;
}

static void refuse_each_hundredth(k1t_node *node, const k1_frame *frame) {
    node->refuse_next = frame->header.slot % 100 == 0;
}

static void ten_thousand_messages_pass_a_reader_that_often_refuses(void **state) {
    (void)state;
    k1t_cluster c;
    open_pair(&c);
    c.node[1].on_seen = refuse_each_hundredth;
    assert_true(k1t_until(&c, has_many));
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(c.node[1].seen[i].header.slot, i);
        assert_int_equal(c.node[1].seen[i].first, i % K1T_PAYLOAD == 0 ? 0 : (uint8_t)i);
    }
    assert_int_equal(c.node[0].n_sent, MANY);
    assert_int_equal(c.node[0].n_down + c.node[1].n_down, 0);
    k1t_cluster_free(&c);
}

/* ---- back-pressure ---- */

static void what_a_full_reader_leaves_waits_for_it(void **state) {
    (void)state;
    k1t_cluster c;
    open_pair(&c);
    c.node[1].refuse = true;
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(k1t_send(&c.node[0], 1, K1_MSG_FORWARD, i, 100, (uint8_t)i));
    }
    k1t_run_ms(&c, 3000); /* longer than silence would be allowed */
    assert_int_equal(c.node[1].n_seen, 0);
    assert_int_equal(c.node[0].n_down + c.node[1].n_down, 0);
    c.node[1].refuse = false;
    k1_rpc_resume(c.node[1].rpc);
    k1t_run_ms(&c, 100);
    assert_int_equal(c.node[1].n_seen, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(c.node[1].seen[i].header.slot, i);
    }
    k1t_cluster_free(&c);
}

static void reading_goes_on_by_itself_once_a_frame_is_free(void **state) {
    (void)state;
    k1t_cluster c;
    k1_frame *taken[K1T_FRAMES];
    open_pair(&c);
    for (size_t i = 0; i < K1T_FRAMES; i++) {
        taken[i] = k1_frames_take(&c.node[1].rx);
    }
    assert_true(k1t_send(&c.node[0], 1, K1_MSG_FORWARD, 3, 100, 1));
    k1t_run_ms(&c, 50);
    assert_int_equal(c.node[1].n_seen, 0);
    for (size_t i = 0; i < K1T_FRAMES; i++) {
        k1_frames_give(&c.node[1].rx, taken[i]);
    }
    k1t_run_ms(&c, 50);
    assert_int_equal(c.node[1].n_seen, 1);
    k1t_cluster_free(&c);
}

/* ---- loss ---- */

static void a_node_that_leaves_is_told_of_by_its_own_words(void **state) {
    (void)state;
    k1t_cluster c;
    open_pair(&c);
    char expected[256];
    snprintf(expected, sizeof expected, "rank 1 at %s is lost: it left: the test is over", c.address[1]);
    k1t_stop(&c, 1);
    k1t_run_ms(&c, 100);
    assert_int_equal(c.node[0].n_down, 1);
    assert_string_equal(c.node[0].reason, expected);
    assert_int_equal(k1t_lines(&c.node[0], " warn peer_down peer_rank=1 ", expected), 1);
    k1t_run_ms(&c, 1500); /* several dials: one line */
    assert_int_equal(k1t_lines(&c.node[0], "peer_waiting peer_rank=1", "Connection refused"), 1);
    assert_non_null(strstr(k1_rpc_why_down(c.node[0].rpc, 1), "Connection refused"));
    k1t_start(&c, 1);
    assert_true(k1t_until(&c, k1t_all_up));
    assert_int_equal(c.node[0].n_up, 2);
    k1t_cluster_free(&c);
}

static void a_message_to_a_rank_that_is_down_comes_back(void **state) {
    (void)state;
    k1t_cluster c;
    k1t_cluster_init(&c, 2);
    k1t_start(&c, 0);
    assert_true(k1t_send(&c.node[0], 1, K1_MSG_FORWARD, 0, 10, 0));
    assert_int_equal(c.node[0].n_sent, 1);
    assert_false(k1_rpc_is_up(c.node[0].rpc, 1));
    assert_non_null(strstr(k1_rpc_why_down(c.node[0].rpc, 1), c.address[1]));
    k1t_cluster_free(&c);
}

static void messages_that_wait_come_back_when_their_rank_is_lost(void **state) {
    (void)state;
    k1t_cluster c;
    open_pair(&c);
    c.node[1].refuse = true;
    size_t given = 0;
    /* More than the sockets hold. */
    for (int round = 0; round < 4000 && given < c.node[0].n_sent + K1T_FRAMES; round++) {
        while (k1t_send(&c.node[0], 1, K1_MSG_FORWARD, 0, K1T_PAYLOAD, 0)) {
            given++;
        }
        k1t_run_ms(&c, 1);
    }
    assert_true(c.node[0].n_sent < given);
    k1t_stop(&c, 1);
    k1t_run_ms(&c, 200);
    assert_int_equal(c.node[0].n_down, 1);
    assert_int_equal(c.node[0].n_sent, given);
    k1t_cluster_free(&c);
}

static void a_message_the_other_cannot_take_ends_the_connection(void **state) {
    (void)state;
    k1t_cluster c;
    open_pair(&c);
    assert_true(k1t_send(&c.node[0], 1, K1_MSG_FORWARD, 0, K1T_PAYLOAD + 1, 0));
    k1t_run_ms(&c, 100);
    assert_int_equal(c.node[0].n_sent, 1);
    assert_non_null(strstr(c.node[0].reason, "a message of 4097 bytes is more than the 4096 it takes"));
    k1t_cluster_free(&c);
}

/* ---- refusals: one line on each side, however often they dial ---- */

static void expect_refused(k1t_cluster *c, const char *reason) {
    k1t_run_ms(c, 1800);
    for (uint32_t r = 0; r < c->n; r++) {
        assert_int_equal(c->node[r].n_up, 0);
        if (k1t_lines(&c->node[r], "peer_refused", reason) != 1 || k1t_lines(&c->node[r], "peer_refused", "") != 1) {
            fail_msg("rank %u, expected once: %s\n%s", r, reason, k1t_log(&c->node[r]));
        }
        assert_string_equal(k1_rpc_why_down(c->node[r].rpc, 1 - r), reason);
    }
}

static void another_key_is_refused(void **state) {
    (void)state;
    k1t_cluster c;
    k1t_cluster_init(&c, 2);
    c.node[1].config.key[31] ^= 1;
    start_all(&c);
    expect_refused(&c, "rank 0 and rank 1 hold different cluster keys; copy one key file to both");
    k1t_cluster_free(&c);
}

static void another_model_is_refused(void **state) {
    (void)state;
    k1t_cluster c;
    k1t_cluster_init(&c, 2);
    c.node[1].config.model_sha256[0] = 0xab;
    start_all(&c);
    expect_refused(&c,
                   "rank 0 and rank 1 have different models, sha256 090909090909 and ab0909090909; copy one file to "
                   "both");
    k1t_cluster_free(&c);
}

static void another_number_of_nodes_is_refused(void **state) {
    (void)state;
    k1t_cluster c;
    k1t_cluster_init(&c, 2);
    c.node[1].config.n_ranks = 3;
    c.node[1].config.address[2] = "127.0.0.1:1";
    start_all(&c);
    expect_refused(&c, "rank 0 and rank 1 belong to clusters of different size, 2 and 3 nodes; make the lists of nodes "
                       "agree");
    k1t_cluster_free(&c);
}

static void a_wrong_list_of_nodes_is_refused(void **state) {
    (void)state;
    k1t_cluster c;
    k1t_cluster_init(&c, 3);
    /* Rank 0 takes the two others for each other. */
    c.node[0].config.address[1] = c.address[2];
    c.node[0].config.address[2] = c.address[1];
    start_all(&c);
    k1t_run_ms(&c, 1800);
    const char *reason = "rank 0 looked for rank 1 and found rank 2; make the lists of nodes agree";
    assert_int_equal(k1t_lines(&c.node[0], "peer_refused peer_rank=1", reason), 1);
    assert_int_equal(k1t_lines(&c.node[2], "peer_refused peer_rank=0", reason), 1);
    assert_false(k1_rpc_is_up(c.node[0].rpc, 1));
    assert_true(k1_rpc_is_up(c.node[1].rpc, 2));
    k1t_cluster_free(&c);
}

static void a_second_node_of_one_rank_is_refused(void **state) {
    (void)state;
    k1t_cluster c;
    k1t_cluster_init(&c, 3);
    /* The third process takes itself for rank 1. */
    for (uint32_t r = 0; r < 3; r++) {
        c.node[r].config.n_ranks = 2;
    }
    c.node[2].config.rank = 1;
    c.node[2].config.address[1] = c.address[2];
    k1t_start(&c, 0);
    k1t_start(&c, 1);
    k1t_run_ms(&c, 500);
    assert_true(k1_rpc_is_up(c.node[0].rpc, 1));
    k1t_start(&c, 2);
    k1t_run_ms(&c, 1800);
    const char *reason = "two nodes are rank 1 for rank 0: one at 127.0.0.1 is connected, one at 127.0.0.1 wants to";
    assert_int_equal(k1t_lines(&c.node[0], "peer_refused peer_rank=1", reason), 1);
    assert_int_equal(k1t_lines(&c.node[2], "peer_refused peer_rank=0", reason), 1);
    assert_true(k1_rpc_is_up(c.node[0].rpc, 1));
    assert_int_equal(c.node[0].n_down, 0);
    k1t_cluster_free(&c);
}

/* ---- strangers ---- */

/* Somebody says hello to rank 0 in the name of rank 1, in some version, without the key. */
static void say_hello(k1t_cluster *c, uint16_t version) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(k1_rpc_port(c->node[0].rpc))};
    uint8_t wire[K1_RPC_HEADER + K1_HELLO_BYTES] = {0};
    k1_header header = {.version = version, .msg_type = K1_MSG_HELLO, .payload_size = K1_HELLO_BYTES, .rank = 1};
    header.crc32 = k1_crc32(wire + K1_RPC_HEADER, K1_HELLO_BYTES);
    k1_header_encode(&header, wire);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, wire, sizeof wire, 0), sizeof wire);
    ssize_t got = -1;
    for (int i = 0; got < 0 && i < 100; i++) {
        k1t_run_ms(c, 10);
        got = recv(fd, wire, sizeof wire, MSG_DONTWAIT);
    }
    assert_true(got > K1_RPC_HEADER); /* it is told why it is refused */
    close(fd);
}

/* Log lines about strangers: one in ten seconds. */
static void expect_few(size_t n_of_strangers, int64_t since_ns) {
    assert_in_range(n_of_strangers, 1, 1 + (k1_now_ns() - since_ns) / 10000000000);
}

static void strangers_do_not_hide_why_a_rank_is_missing(void **state) {
    (void)state;
    k1t_cluster c;
    char why[512];
    int64_t begun = k1_now_ns();
    k1t_cluster_init(&c, 2);
    k1t_start(&c, 0);
    k1t_run_ms(&c, 100);
    snprintf(why, sizeof why, "%s", k1_rpc_why_down(c.node[0].rpc, 1));
    assert_non_null(strstr(why, "Connection refused"));
    for (uint16_t version = 1; version < 40; version++) { /* the first has no valid tag, the others differ */
        say_hello(&c, version);
        assert_string_equal(k1_rpc_why_down(c.node[0].rpc, 1), why);
    }
    expect_few(k1t_lines(&c.node[0], "peer_refused", ""), begun);
    k1t_cluster_free(&c);
}

/* Rank 1 holds another key; strangers came before and come in between. */
static void strangers_do_not_hide_why_a_rank_is_refused(void **state) {
    (void)state;
    k1t_cluster c;
    const char *reason = "rank 0 and rank 1 hold different cluster keys; copy one key file to both";
    int64_t begun = k1_now_ns();
    k1t_cluster_init(&c, 2);
    c.node[1].config.key[31] ^= 1;
    k1t_start(&c, 0);
    say_hello(&c, 7);
    k1t_start(&c, 1);
    for (int i = 0; i < 20; i++) {
        say_hello(&c, (uint16_t)(8 + i));
        k1t_run_ms(&c, 80);
    }
    assert_string_equal(k1_rpc_why_down(c.node[0].rpc, 1), reason);
    assert_int_equal(k1t_lines(&c.node[0], "peer_refused", reason), 1);
    expect_few(k1t_lines(&c.node[0], "peer_refused", "") - 1, begun);
    k1t_cluster_free(&c);
}

static void what_cannot_be_started_says_why(void **state) {
    (void)state;
    k1t_cluster c;
    k1_err err = {""};
    open_pair(&c);
    k1_rpc_config config = c.node[0].config;
    assert_null(k1_rpc_new(c.base, &config, &c.node[0].rx, &err));
    assert_non_null(strstr(err.text, "cannot listen for other nodes on 127.0.0.1 port "));
    assert_non_null(strstr(err.text, "Address already in use"));
    config.address[1] = "no-such-node.invalid:1";
    assert_null(k1_rpc_new(c.base, &config, &c.node[0].rx, &err));
    assert_non_null(strstr(err.text, "cannot find the node no-such-node.invalid:1: "));
    config.address[1] = "fe80::1";
    assert_null(k1_rpc_new(c.base, &config, &c.node[0].rx, &err));
    assert_string_equal(err.text, "the address \"fe80::1\" is none: write host, host:port, [IPv6] or [IPv6]:port");
    config.rank = 2;
    assert_null(k1_rpc_new(c.base, &config, &c.node[0].rx, &err));
    assert_string_equal(err.text, "rank 2 of 2 nodes cannot be: a cluster has 2 to 16, counted from rank 0");
    k1t_cluster_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_find_each_other),
        cmocka_unit_test(the_round_trip_is_measured),
        cmocka_unit_test(messages_arrive_whole_and_in_order_both_ways),
        cmocka_unit_test(ten_thousand_messages_pass_a_reader_that_often_refuses),
        cmocka_unit_test(what_a_full_reader_leaves_waits_for_it),
        cmocka_unit_test(reading_goes_on_by_itself_once_a_frame_is_free),
        cmocka_unit_test(a_node_that_leaves_is_told_of_by_its_own_words),
        cmocka_unit_test(a_message_to_a_rank_that_is_down_comes_back),
        cmocka_unit_test(messages_that_wait_come_back_when_their_rank_is_lost),
        cmocka_unit_test(a_message_the_other_cannot_take_ends_the_connection),
        cmocka_unit_test(another_key_is_refused),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(another_number_of_nodes_is_refused),
        cmocka_unit_test(a_wrong_list_of_nodes_is_refused),
        cmocka_unit_test(a_second_node_of_one_rank_is_refused),
        cmocka_unit_test(strangers_do_not_hide_why_a_rank_is_missing),
        cmocka_unit_test(strangers_do_not_hide_why_a_rank_is_refused),
        cmocka_unit_test(what_cannot_be_started_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
