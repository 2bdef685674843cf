/* The event stream of an answer, in any pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sse.h"

/* Events, each in brackets. */
static int collect(void *arg, const char *data, size_t n) {
    k1_text *all = arg;
    assert_int_equal(k1_text_add(all, "[", 1), 0);
    assert_int_equal(k1_text_add(all, data, n), 0);
    assert_int_equal(k1_text_add(all, "]", 1), 0);
    return n == 4 && memcmp(data, "stop", 4) == 0 ? 7 : 0;
}

static void expect(const char *stream, const char *wanted) {
    size_t n = strlen(stream);
    for (size_t step = 1; step <= n; step++) {
        k1_text all = {0};
        k1_sse sse = {.on_event = collect, .arg = &all};
        for (size_t at = 0; at < n; at += step) {
            assert_int_equal(k1_sse_feed(&sse, stream + at, n - at < step ? n - at : step), 0);
        }
        assert_int_equal(k1_text_add(&all, "", 1), 0);
        assert_string_equal(all.data, wanted);
        free(all.data);
        k1_sse_free(&sse);
    }
}

static void events_end_with_an_empty_line_of_any_kind(void **state) {
    (void)state;
    expect("data: a\n\ndata:b\n\n", "[a][b]");
    expect("data: a\r\n\r\ndata: b\r\n\r\n", "[a][b]");
    expect("data: a\r\rdata: b\r\r", "[a][b]");
    expect("data: a\n\ndata: unfinished\n", "[a]");
}

static void comments_and_other_fields_are_skipped(void **state) {
    (void)state;
    expect(": hello\nevent: x\nid: 1\ndata:  a \nretry: 5\n\n:\n\ndatabase: c\n\n", "[ a ]");
}

static void several_data_lines_make_one_event(void **state) {
    (void)state;
    expect("data: a\ndata:\ndata: b\n\ndata:\n\n", "[a\n\nb][]");
}

static void the_reader_can_stop_it(void **state) {
    (void)state;
    k1_text all = {0};
    k1_sse sse = {.on_event = collect, .arg = &all};
    assert_int_equal(k1_sse_feed(&sse, "data: stop\n\ndata: more\n\n", 24), 7);
    assert_int_equal(all.n, 6);
    free(all.data);
    k1_sse_free(&sse);
}

static void an_endless_line_is_refused(void **state) {
    (void)state;
    k1_text all = {0};
    k1_sse sse = {.on_event = collect, .arg = &all};
    char piece[4096];
    int result = 0;
    memset(piece, 'x', sizeof piece);
    for (size_t fed = 0; result == 0 && fed < 2 * K1_SSE_MAX_EVENT; fed += sizeof piece) {
        result = k1_sse_feed(&sse, piece, sizeof piece);
    }
    assert_int_equal(result, -1);
    k1_sse_free(&sse);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_end_with_an_empty_line_of_any_kind),
        cmocka_unit_test(comments_and_other_fields_are_skipped),
        cmocka_unit_test(several_data_lines_make_one_event),
        cmocka_unit_test(the_reader_can_stop_it),
        cmocka_unit_test(an_endless_line_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
