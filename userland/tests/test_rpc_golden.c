/* Codecs: the same bytes as the golden frames that Python made, and what is impossible is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hello.h"
#include "k1/rpc.h"

enum { MOST = 2048 };

typedef struct golden {
    _Alignas(64) uint8_t bytes[MOST];
    size_t n;
    k1_header header;
} golden;

static golden load(const char *name) {
    golden g = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/k1rpc/%s.bin", getenv("K1_TEST_DATA"), name);
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) {
        fail_msg("%s cannot be read", path);
        return g;
    }
    g.n = fread(g.bytes, 1, MOST, stream);
    (void)fclose(stream);
    assert_in_range(g.n, K1_RPC_HEADER, MOST - 1);
    assert_int_equal(k1_header_decode(g.bytes, &g.header, NULL), 0);
    assert_int_equal(g.header.payload_size, g.n - K1_RPC_HEADER);
    return g;
}

static const uint8_t *payload_of(const golden *g) { return g->bytes + K1_RPC_HEADER; }

/* The keys of rank 0, who dials rank 1. */
static k1_link_keys golden_keys(uint8_t cluster[K1_RPC_KEY]) {
    k1_link_ends ends = {.dialler_rank = 0, .listener_rank = 1};
    k1_link_keys keys;
    for (uint8_t i = 0; i < K1_RPC_KEY; i++) {
        cluster[i] = i;
    }
    memset(ends.dialler_nonce, 0x11, K1_NONCE);
    memset(ends.listener_nonce, 0x22, K1_NONCE);
    k1_make_link_keys(cluster, &ends, &keys);
    return keys;
}

static void expect_tag(const golden *g, const uint8_t key[32]) {
    uint8_t tag[K1_TAG];
    k1_frame_tag(key, g->header.seq_num, g->bytes, payload_of(g), g->header.payload_size, tag);
    assert_memory_equal(tag, g->header.mac, K1_TAG);
    assert_int_equal(k1_crc32(payload_of(g), g->header.payload_size), g->header.crc32);
}

static void a_header_is_the_golden_one_again(void **state) {
    (void)state;
    static const char *const names[] = {
        "hello", "welcome", "welcome-refusal", "confirm", "forward", "backward-error", "open", "cancel", "ping",
        "plan",  "bye"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g = load(names[i]);
        uint8_t again[K1_RPC_HEADER];
        k1_header_encode(&g.header, again);
        assert_memory_equal(again, g.bytes, K1_RPC_HEADER);
    }
}

static void fields_stand_where_the_table_says(void **state) {
    (void)state;
    golden g = load("forward");
    assert_int_equal(g.header.version, 1);
    assert_int_equal(g.header.msg_type, K1_MSG_FORWARD);
    assert_int_equal(g.header.layer_id, 7);
    assert_int_equal(g.header.flags, K1_FLAG_LAST);
    assert_int_equal(g.header.seq_num, 2);
    assert_true(g.header.session == 0x1122334455667788);
    assert_int_equal(g.header.rank, 0);
    assert_int_equal(g.header.plan_epoch, 3);
    assert_true(g.header.request_id == 0x0102030405060708);
    assert_int_equal(g.header.slot, 2);
    assert_int_equal(g.header.slot_gen, 5);
    assert_int_equal(g.header.first_pos, 9);
    assert_int_equal(g.header.n_tokens, 3);
    assert_int_equal(g.header.dtype, 0);
}

static void tags_are_the_golden_ones(void **state) {
    (void)state;
    static const char *const names[] = {"confirm", "forward", "backward-error", "open",
                                        "cancel",  "ping",    "plan",           "bye"};
    uint8_t cluster[K1_RPC_KEY], hello_key[32], nonce[K1_NONCE], tag[K1_TAG];
    k1_link_keys keys = golden_keys(cluster);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g = load(names[i]);
        expect_tag(&g, keys.to_listener);
    }
    golden welcome = load("welcome"), hello = load("hello"), refusal = load("welcome-refusal");
    expect_tag(&welcome, keys.to_dialler);
    k1_make_hello_key(cluster, hello_key);
    k1_hello_tag(hello_key, NULL, hello.bytes, hello.header.payload_size, tag);
    assert_memory_equal(tag, hello.header.mac, K1_TAG);
    memset(nonce, 0x11, sizeof nonce);
    k1_hello_tag(hello_key, nonce, refusal.bytes, refusal.header.payload_size, tag);
    assert_memory_equal(tag, refusal.header.mac, K1_TAG);
    refusal.bytes[8] ^= 1;
    k1_hello_tag(hello_key, nonce, refusal.bytes, refusal.header.payload_size, tag);
    assert_false(k1_same_tag(tag, refusal.header.mac));
}

static void a_hello_is_the_golden_one_again(void **state) {
    (void)state;
    golden g = load("hello");
    k1_hello hello;
    uint8_t again[K1_HELLO_BYTES];
    assert_int_equal(g.header.payload_size, K1_HELLO_BYTES);
    k1_hello_decode(payload_of(&g), &hello);
    assert_true(hello.instance == 0xA1A2A3A4A5A6A7A8);
    assert_int_equal(hello.to_rank, 1);
    assert_int_equal(hello.n_ranks, 2);
    assert_int_equal(hello.n_layer, 4);
    assert_int_equal(hello.n_embd, 16);
    assert_int_equal(hello.n_vocab, 32);
    assert_int_equal(hello.max_payload, 4096);
    assert_string_equal(hello.software, "golden");
    k1_hello_encode(&hello, again);
    assert_memory_equal(again, payload_of(&g), K1_HELLO_BYTES);
}

static void a_forward_has_its_parts_where_the_layout_says(void **state) {
    (void)state;
    golden g = load("forward");
    k1_forward_parts parts = k1_forward_layout(3, 4);
    k1_trace trace;
    uint8_t again[K1_TRACE_BYTES];
    float activation;
    assert_int_equal(parts.size, g.header.payload_size);
    assert_int_equal(parts.trace, 64);
    assert_int_equal(parts.activations % 64, 0);
    assert_int_equal(k1_trace_decode(payload_of(&g) + parts.trace, K1_TRACE_BYTES, &trace, NULL), 0);
    assert_int_equal(trace.token, -1);
    assert_int_equal(trace.n_ranks, 2);
    assert_int_equal(trace.rank[0].wait_us, 1000);
    assert_int_equal(trace.rank[0].run_us, 2000);
    k1_trace_encode(&trace, again);
    assert_memory_equal(again, payload_of(&g) + parts.trace, K1_TRACE_BYTES);
    memcpy(&activation, payload_of(&g) + parts.activations + 11 * sizeof activation, sizeof activation);
    assert_true(activation == 1.75F);
    assert_int_equal(k1_forward_layout(16, 4).trace, 64);
    assert_int_equal(k1_forward_layout(17, 4).trace, 128);
    assert_int_equal(k1_forward_layout(0, 4).size, K1_TRACE_BYTES);
}

static void sampling_and_plan_are_the_golden_ones_again(void **state) {
    (void)state;
    golden open = load("open"), plan_frame = load("plan");
    uint8_t again[K1_PLAN_BYTES];
    k1_sampling sampling;
    k1_plan plan;
    assert_int_equal(k1_sampling_decode(payload_of(&open), open.header.payload_size, &sampling, NULL), 0);
    assert_true(sampling.temperature == 0.75F && sampling.top_p == 0.875F && sampling.min_p == 0.0625F);
    assert_true(sampling.repeat_penalty == 1.125F && sampling.seed == 0xFEDCBA9876543210);
    assert_int_equal(sampling.top_k, 40);
    assert_int_equal(sampling.repeat_last_n, 64);
    k1_sampling_encode(&sampling, again);
    assert_memory_equal(again, payload_of(&open), K1_SAMPLING_BYTES);
    assert_int_equal(k1_plan_decode(payload_of(&plan_frame), plan_frame.header.payload_size, 4, &plan, NULL), 0);
    assert_int_equal(plan.n_ctx, 2048);
    assert_int_equal(plan.n_slots, 4);
    assert_int_equal(plan.layers[1].first, 3);
    assert_int_equal(plan.layers[1].end, 4);
    k1_plan_encode(&plan, again);
    assert_memory_equal(again, payload_of(&plan_frame), K1_PLAN_BYTES);
}

static void expect_plan_error(const k1_plan *plan, uint32_t n_layer, const char *message) {
    uint8_t bytes[K1_PLAN_BYTES];
    k1_plan out;
    k1_err err = {""};
    k1_plan_encode(plan, bytes);
    assert_int_equal(k1_plan_decode(bytes, sizeof bytes, n_layer, &out, &err), -1);
    assert_string_equal(err.text, message);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    k1_plan good = {.n_ranks = 2, .n_ctx = 64, .n_batch = 8, .n_slots = 1, .layers = {{0, 2}, {2, 4}}}, plan;
    k1_sampling sampling = k1_sampling_default;
    k1_trace trace = {.token = -1, .n_ranks = 17};
    uint8_t bytes[K1_TRACE_BYTES] = {0};
    k1_err err = {""};
    k1_header header;

    assert_int_equal(k1_header_decode(bytes, &header, &err), -1);
    assert_string_equal(err.text, "these bytes are not k1rpc: they begin with 00 00 00 00");
    k1_trace_encode(&trace, bytes);
    assert_int_equal(k1_trace_decode(bytes, sizeof bytes, &trace, &err), -1);
    assert_string_equal(err.text, "trace: 17 ranks, possible are 1 to 16");
    assert_int_equal(k1_trace_decode(bytes, sizeof bytes - 1, &trace, &err), -1);
    assert_string_equal(err.text, "trace: 319 bytes, expected 320");
    sampling.top_p = 2;
    k1_sampling_encode(&sampling, bytes);
    assert_int_equal(k1_sampling_decode(bytes, K1_SAMPLING_BYTES, &sampling, &err), -1);

    expect_plan_error(&good, 5, "plan: ends after layer 4, but the model has 5");
    plan = good;
    plan.layers[1].first = 3;
    expect_plan_error(&plan, 4, "plan: rank 1 has layers 3 to 4, but 2 comes next");
    plan = good;
    plan.layers[1] = plan.layers[0];
    expect_plan_error(&plan, 4, "plan: rank 1 has layers 0 to 2, but 2 comes next");
    plan = good;
    plan.n_batch = 65;
    expect_plan_error(&plan, 4, "plan: n_ctx 64, n_batch 65 (possible are 1 to 64), n_slots 1");
    plan = good;
    plan.n_ranks = 0;
    expect_plan_error(&plan, 4, "plan: 0 ranks, possible are 1 to 16");
}

static void frames_are_aligned_and_all_come_back(void **state) {
    (void)state;
    k1_frames frames;
    k1_frame *taken[4];
    k1_err err = {""};
    assert_int_equal(k1_frames_init(&frames, 3, 100, &err), -1);
    assert_string_equal(err.text, "frames: 3 is no power of two");
    assert_int_equal(k1_frames_init(&frames, 4, 100, &err), 0);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 4; i++) {
            taken[i] = k1_frames_take(&frames);
            assert_non_null(taken[i]);
            assert_int_equal((uintptr_t)taken[i]->wire % 64, 0);
            assert_int_equal(taken[i]->header.slot, 0);
            assert_int_equal(taken[i]->capacity, 100);
            taken[i]->header.slot = 9;
        }
        assert_null(k1_frames_take(&frames));
        for (size_t i = 0; i < 4; i++) {
            k1_frames_give(&frames, taken[i]);
        }
    }
    k1_frames_free(&frames);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_is_the_golden_one_again),
        cmocka_unit_test(fields_stand_where_the_table_says),
        cmocka_unit_test(tags_are_the_golden_ones),
        cmocka_unit_test(a_hello_is_the_golden_one_again),
        cmocka_unit_test(a_forward_has_its_parts_where_the_layout_says),
        cmocka_unit_test(sampling_and_plan_are_the_golden_ones_again),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(frames_are_aligned_and_all_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
