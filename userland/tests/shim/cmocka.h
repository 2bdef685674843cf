/* As much of cmocka as the tests use, for C libraries without a cmocka package (musl) and for static builds.
 * A failed check ends its test by longjmp, as cmocka's does. */
#ifndef K1_SHIM_CMOCKA_H
#define K1_SHIM_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    CMFixtureFunction setup_func;
    CMFixtureFunction teardown_func;
    void *initial_state;
};

#define cmocka_unit_test(f) {#f, f, NULL, NULL, NULL}
#define cmocka_unit_test_setup(f, setup) {#f, f, setup, NULL, NULL}
#define cmocka_unit_test_teardown(f, teardown) {#f, f, NULL, teardown, NULL}
#define cmocka_unit_test_setup_teardown(f, setup, teardown) {#f, f, setup, teardown, NULL}
#define cmocka_unit_test_prestate(f, state) {#f, f, NULL, NULL, state}

enum { K1_SHIM_FAILED = 1, K1_SHIM_SKIPPED = 2 };
static jmp_buf k1_shim_return;

__attribute__((noreturn, unused, format(printf, 3, 4))) static void k1_shim_fail(const char *file, int line,
                                                                                 const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "%s:%d: ", file, line);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    longjmp(k1_shim_return, K1_SHIM_FAILED);
}

#define K1_SHIM_CHECK static __attribute__((unused)) void

K1_SHIM_CHECK k1_shim_true(bool ok, const char *what, const char *file, int line) {
    if (!ok) {
        k1_shim_fail(file, line, "%s", what);
    }
}

K1_SHIM_CHECK k1_shim_ints(uintmax_t a, uintmax_t b, bool equal, const char *what, const char *file, int line) {
    if ((a == b) != equal) {
        k1_shim_fail(file, line, "%s: %#jx, %#jx", what, a, b);
    }
}

K1_SHIM_CHECK k1_shim_range(uintmax_t v, uintmax_t low, uintmax_t high, const char *what, const char *file, int line) {
    if (v < low || v > high) {
        k1_shim_fail(file, line, "%s: %ju is not in %ju to %ju", what, v, low, high);
    }
}

K1_SHIM_CHECK k1_shim_floats(double a, double b, double epsilon, const char *what, const char *file, int line) {
    if (!(a - b <= epsilon && b - a <= epsilon)) {
        k1_shim_fail(file, line, "%s: %g, %g", what, a, b);
    }
}

K1_SHIM_CHECK k1_shim_strings(const char *a, const char *b, bool equal, const char *file, int line) {
    if ((strcmp(a, b) == 0) != equal) {
        k1_shim_fail(file, line, "\"%s\", \"%s\"", a, b);
    }
}

#define K1_SHIM_HERE __FILE__, __LINE__
#define assert_true(c) k1_shim_true((c) ? true : false, #c, K1_SHIM_HERE)
#define assert_false(c) k1_shim_true((c) ? false : true, "not: " #c, K1_SHIM_HERE)
#define assert_non_null(p) k1_shim_true((p) != NULL, #p " is NULL", K1_SHIM_HERE)
#define assert_null(p) k1_shim_true((p) == NULL, #p " is not NULL", K1_SHIM_HERE)
#define assert_ptr_equal(a, b) k1_shim_ints((uintptr_t)(a), (uintptr_t)(b), true, #a " == " #b, K1_SHIM_HERE)
#define assert_ptr_not_equal(a, b) k1_shim_ints((uintptr_t)(a), (uintptr_t)(b), false, #a " != " #b, K1_SHIM_HERE)
#define assert_int_equal(a, b) k1_shim_ints((uintmax_t)(a), (uintmax_t)(b), true, #a " == " #b, K1_SHIM_HERE)
#define assert_int_not_equal(a, b) k1_shim_ints((uintmax_t)(a), (uintmax_t)(b), false, #a " != " #b, K1_SHIM_HERE)
#define assert_in_range(v, low, high)                                                                                  \
    k1_shim_range((uintmax_t)(v), (uintmax_t)(low), (uintmax_t)(high), #v, K1_SHIM_HERE)
#define assert_float_equal(a, b, epsilon)                                                                              \
    k1_shim_floats((double)(a), (double)(b), (double)(epsilon), #a " near " #b, K1_SHIM_HERE)
#define assert_string_equal(a, b) k1_shim_strings(a, b, true, K1_SHIM_HERE)
#define assert_string_not_equal(a, b) k1_shim_strings(a, b, false, K1_SHIM_HERE)
#define assert_memory_equal(a, b, n) k1_shim_true(memcmp(a, b, n) == 0, #a " has the bytes of " #b, K1_SHIM_HERE)
#define assert_memory_not_equal(a, b, n) k1_shim_true(memcmp(a, b, n) != 0, #a " differs from " #b, K1_SHIM_HERE)
#define fail() k1_shim_fail(K1_SHIM_HERE, "failed")
#define fail_msg(...) k1_shim_fail(K1_SHIM_HERE, __VA_ARGS__)
#define skip() longjmp(k1_shim_return, K1_SHIM_SKIPPED)
#define print_message(...) ((void)fprintf(stdout, __VA_ARGS__))

/* One test; how it ended. */
__attribute__((unused)) static int k1_shim_run(const struct CMUnitTest *test, void *group_state) {
    void *state = test->initial_state != NULL ? test->initial_state : group_state;
    if (test->setup_func != NULL && test->setup_func(&state) != 0) {
        return K1_SHIM_FAILED;
    }
    volatile int end = 0;
    switch (setjmp(k1_shim_return)) {
    case 0:
        test->test_func(&state);
        break;
    case K1_SHIM_SKIPPED:
        end = K1_SHIM_SKIPPED;
        break;
    default:
        end = K1_SHIM_FAILED;
    }
    if (test->teardown_func != NULL && test->teardown_func(&state) != 0) {
        return K1_SHIM_FAILED;
    }
    return end;
}

__attribute__((unused)) static int k1_shim_group(const struct CMUnitTest *tests, size_t n, CMFixtureFunction setup,
                                                 CMFixtureFunction teardown) {
    static const char *const words[] = {"OK", "FAILED", "SKIPPED"};
    void *state = NULL;
    int failed = 0;
    if (setup != NULL && setup(&state) != 0) {
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        int end = k1_shim_run(&tests[i], state);
        failed += end == K1_SHIM_FAILED;
        (void)fprintf(stderr, "[ %s ] %s\n", words[end], tests[i].name);
    }
    if (teardown != NULL && teardown(&state) != 0) {
        failed++;
    }
    return failed;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                                                 \
    k1_shim_group(tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

#endif
