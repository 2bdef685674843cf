/* The ring between two threads, log lines, errors, and text from files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "k1/log.h"
#include "k1/ring.h"
#include "k1/text.h"

static void a_ring_is_full_and_empty_at_its_limits(void **state) {
    (void)state;
    k1_ring ring;
    int items[5];
    assert_int_equal(k1_ring_init(&ring, 4), 0);
    assert_null(k1_ring_pop(&ring));
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < 4; i++) {
            assert_true(k1_ring_push(&ring, &items[i]));
        }
        assert_false(k1_ring_push(&ring, &items[4]));
        for (size_t i = 0; i < 4; i++) {
            assert_ptr_equal(k1_ring_pop(&ring), &items[i]);
        }
        assert_null(k1_ring_pop(&ring));
    }
    k1_ring_free(&ring);
}

enum { N_NUMBERS = 100000 };

static void *produce(void *arg) {
    k1_ring *ring = arg;
    for (size_t i = 1; i <= N_NUMBERS; i++) {
        size_t *number = malloc(sizeof *number);
        if (number == NULL) {
            abort();
        }
        *number = i;
        while (!k1_ring_push(ring, number)) {
            sched_yield();
        }
    }
    return NULL;
}

static void everything_arrives_once_and_in_order(void **state) {
    (void)state;
    k1_ring ring;
    pthread_t thread;
    assert_int_equal(k1_ring_init(&ring, 64), 0);
    assert_int_equal(pthread_create(&thread, NULL, produce, &ring), 0);
    for (size_t i = 1; i <= N_NUMBERS;) {
        size_t *number = k1_ring_pop(&ring);
        if (number == NULL) {
            sched_yield();
        } else {
            assert_int_equal(*number, i);
            free(number);
            i++;
        }
    }
    pthread_join(thread, NULL);
    k1_ring_free(&ring);
}

/* What a log call writes. */
static size_t log_text(k1_log_level level, const char *value, char *out, size_t capacity) {
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    k1_log log = {.fd = fds[1], .level = K1_LOG_INFO};
    k1_log_line(&log, level, "event", "key=%s", value);
    close(fds[1]);
    ssize_t n = read(fds[0], out, capacity - 1);
    close(fds[0]);
    assert_true(n >= 0);
    out[n] = '\0';
    return (size_t)n;
}

static void a_log_line_is_one_line_whatever_is_in_it(void **state) {
    (void)state;
    char line[2048];
    char value[2000];
    log_text(K1_LOG_WARN, "a\nb\x1b[1m", line, sizeof line);
    assert_string_equal(strchr(line, ' '), " warn event key=a?b?[1m\n");
    memset(value, 'x', sizeof value);
    value[sizeof value - 1] = '\0';
    size_t n = log_text(K1_LOG_INFO, value, line, sizeof line);
    assert_true(n <= 1024);
    assert_ptr_equal(strchr(line, '\n'), line + n - 1);
    assert_int_equal(log_text(K1_LOG_DEBUG, "x", line, sizeof line), 0);
}

static void log_levels_have_names(void **state) {
    (void)state;
    k1_log_level level;
    k1_err err;
    assert_int_equal(k1_log_level_parse("debug", &level, &err), 0);
    assert_int_equal(level, K1_LOG_DEBUG);
    assert_int_equal(k1_log_level_parse("loud", &level, &err), -1);
    assert_string_equal(err.text, "log_level: \"loud\" is none of error, warn, info, debug");
}

static void strangers_bring_about_one_line_in_ten_seconds(void **state) {
    (void)state;
    static const int64_t second = 1000000000;
    k1_log_rate rate = {0};
    assert_true(k1_log_rate_allows(&rate, 5 * second));
    assert_false(k1_log_rate_allows(&rate, 6 * second));
    assert_false(k1_log_rate_allows(&rate, 15 * second - 1));
    assert_true(k1_log_rate_allows(&rate, 15 * second));
    assert_false(k1_log_rate_allows(&rate, 24 * second));
}

static void an_error_moves_no_cursor(void **state) {
    (void)state;
    k1_err err;
    assert_int_equal(k1_fail(&err, "tensor %s: no",
                             "a\x1b[2J\nb\x7f\xc2\x9b"
                             "2J \xc3\xa9"),
                     -1);
    assert_string_equal(err.text, "tensor a?[2J?b???2J \xc3\xa9: no");
}

static FILE *file_with(const char *text, size_t n) {
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    rewind(file);
    return file;
}

static void a_file_is_text_less_its_last_line_feed(void **state) {
    (void)state;
    k1_err err;
    k1_text text = {0};
    FILE *file = file_with("a\n\0b\n\n", 6);
    assert_int_equal(k1_text_read(&text, file, "it", 1 << 20, &err), 0);
    assert_int_equal(text.n, 5);
    assert_memory_equal(text.data, "a\n\0b\n", 5);
    free(text.data);
    fclose(file);
}

static void a_file_that_is_no_text_for_us_is_named(void **state) {
    (void)state;
    k1_err err;
    k1_text text = {0};
    char *long_text = calloc(1, (1 << 20) + 1);
    assert_non_null(long_text);
    FILE *file = file_with(long_text, (1 << 20) + 1);
    assert_int_equal(k1_text_read(&text, file, "it", 1 << 20, &err), -1);
    assert_string_equal(err.text, "it: longer than 1 MiB");
    assert_true(text.n <= 1 << 20);
    free(text.data);
    free(long_text);
    fclose(file);
    text = (k1_text){0};
    file = fopen(".", "re");
    assert_non_null(file);
    assert_int_equal(k1_text_read(&text, file, "it", 1 << 20, &err), -1);
    assert_string_equal(err.text, "it: cannot be read: Is a directory");
    fclose(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_is_full_and_empty_at_its_limits),
        cmocka_unit_test(everything_arrives_once_and_in_order),
        cmocka_unit_test(a_log_line_is_one_line_whatever_is_in_it),
        cmocka_unit_test(log_levels_have_names),
        cmocka_unit_test(strangers_bring_about_one_line_in_ten_seconds),
        cmocka_unit_test(an_error_moves_no_cursor),
        cmocka_unit_test(a_file_is_text_less_its_last_line_feed),
        cmocka_unit_test(a_file_that_is_no_text_for_us_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
