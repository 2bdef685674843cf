/* Stop strings: no part of one is ever shown, however the text is cut into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "k1/stop.h"

/* What is shown of a text in pieces of `step` bytes. */
static char *show(const k1_stops *stops, const char *text, size_t step, bool *hit) {
    k1_stop_state stop = {0};
    k1_text out = {0};
    size_t n = strlen(text);
    for (size_t at = 0; at < n; at += step) {
        size_t piece = n - at < step ? n - at : step;
        assert_int_equal(k1_stop_next(stops, &stop, text + at, piece, &out), 0);
    }
    *hit = stop.hit;
    if (!stop.hit) {
        assert_int_equal(k1_stop_end(&stop, &out), 0);
    }
    assert_int_equal(k1_text_add(&out, "", 1), 0);
    free(stop.held.data);
    return out.data;
}

static k1_stops stops_of(const char *a, const char *b) {
    k1_stops stops = {0};
    assert_true(k1_stops_add(&stops, a, strlen(a)));
    if (b != NULL) {
        assert_true(k1_stops_add(&stops, b, strlen(b)));
    }
    return stops;
}

static void expect(const k1_stops *stops, const char *text, const char *wanted, bool wanted_hit) {
    for (size_t step = 1; step <= strlen(text); step++) {
        bool hit;
        char *shown = show(stops, text, step, &hit);
        assert_string_equal(shown, wanted);
        assert_int_equal(hit, wanted_hit);
        free(shown);
    }
}

static void text_ends_before_the_stop_string_in_any_pieces(void **state) {
    (void)state;
    k1_stops one = stops_of("\n\n", NULL);
    expect(&one, "a\nb\n\nc", "a\nb", true);
    expect(&one, "\n\n", "", true);
    k1_stops repeated = stops_of("aab", NULL);
    expect(&repeated, "xaaaabc", "xaa", true);
    expect(&repeated, "aaaa", "aaaa", false);
}

static void what_only_began_like_one_is_shown_in_the_end(void **state) {
    (void)state;
    k1_stops stops = stops_of("END", "é!");
    expect(&stops, "the EN", "the EN", false);
    expect(&stops, "the ENTRY é?", "the ENTRY é?", false);
    expect(&stops, "caf\xc3\xa9!", "caf", true);
}

static void the_one_that_is_complete_first_counts(void **state) {
    (void)state;
    k1_stops stops = stops_of("bcdef", "cd");
    for (size_t step = 1; step <= 4; step++) {
        bool hit;
        char *shown = show(&stops, "abcd", step, &hit);
        assert_string_equal(shown, "ab");
        assert_true(hit);
        free(shown);
    }
}

static void nothing_is_shown_early(void **state) {
    (void)state;
    k1_stops stops = stops_of("stop", NULL);
    k1_stop_state stop = {0};
    k1_text out = {0};
    assert_int_equal(k1_stop_next(&stops, &stop, "non-st", 6, &out), 0);
    assert_int_equal(out.n, 4);
    assert_int_equal(k1_stop_next(&stops, &stop, "op!", 3, &out), 0);
    assert_int_equal(out.n, 4);
    assert_int_equal(k1_stop_next(&stops, &stop, "more", 4, &out), 0);
    assert_int_equal(out.n, 4);
    free(stop.held.data);
    free(out.data);
}

static void empty_long_and_too_many_are_refused(void **state) {
    (void)state;
    char text[K1_STOP_BYTES + 1];
    k1_stops stops = {0};
    memset(text, 'x', sizeof text);
    assert_false(k1_stops_add(&stops, "", 0));
    assert_false(k1_stops_add(&stops, text, sizeof text));
    for (int i = 0; i < K1_STOP_MAX; i++) {
        assert_true(k1_stops_add(&stops, text, K1_STOP_BYTES));
    }
    assert_false(k1_stops_add(&stops, "y", 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_ends_before_the_stop_string_in_any_pieces),
        cmocka_unit_test(what_only_began_like_one_is_shown_in_the_end),
        cmocka_unit_test(the_one_that_is_complete_first_counts),
        cmocka_unit_test(nothing_is_shown_early),
        cmocka_unit_test(empty_long_and_too_many_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
