/* Nodes in one process: they find each other, carry messages both ways, and say why when they cannot. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_find_each_other),
        cmocka_unit_test(the_round_trip_is_measured),
        cmocka_unit_test(messages_arrive_whole_and_in_order_both_ways),
        cmocka_unit_test(ten_thousand_messages_pass_a_reader_that_often_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
