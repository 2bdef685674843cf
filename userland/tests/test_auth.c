/* Who is let in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "auth.h"
#include "support.h"

static int load(k1_auth *auth, const char *text, k1_err *err) {
    char path[256];
    k1t_write_file(path, sizeof path, text, strlen(text));
    int failed = k1_auth_load(auth, path, err);
    unlink(path);
    return failed;
}

static void any_token_of_the_file_is_accepted(void **state) {
    (void)state;
    k1_auth auth;
    k1_err err;
    assert_int_equal(load(&auth, "# clients\n\n0123456789abcdef  alice\n  fedcba9876543210\r\n", &err), 0);
    assert_true(k1_auth_allows(&auth, "Bearer 0123456789abcdef"));
    assert_true(k1_auth_allows(&auth, "bearer fedcba9876543210"));
    assert_false(k1_auth_allows(&auth, "Bearer 0123456789abcdef "));
    assert_false(k1_auth_allows(&auth, "Bearer 0123456789abcde"));
    assert_false(k1_auth_allows(&auth, "Basic 0123456789abcdef"));
    assert_false(k1_auth_allows(&auth, "Bearer "));
    assert_false(k1_auth_allows(&auth, ""));
    assert_false(k1_auth_allows(&auth, NULL));
}

static void without_tokens_everybody_is_accepted(void **state) {
    (void)state;
    k1_auth auth = {0};
    assert_true(k1_auth_allows(&auth, NULL));
}

static void a_file_without_good_tokens_is_refused(void **state) {
    (void)state;
    k1_auth auth;
    k1_err err;
    assert_int_equal(load(&auth, "# none\n", &err), -1);
    assert_non_null(strstr(err.text, "holds no token"));
    assert_int_equal(load(&auth, "short\n", &err), -1);
    assert_non_null(strstr(err.text, "a token of 5 characters"));
    assert_int_equal(k1_auth_load(&auth, "/nonexistent/tokens", &err), -1);
    assert_non_null(strstr(err.text, "/nonexistent/tokens: No such file"));
}

static void loopback_is_told_from_the_rest(void **state) {
    (void)state;
    assert_true(k1_is_loopback("127.0.0.1"));
    assert_true(k1_is_loopback("127.9.9.9"));
    assert_true(k1_is_loopback("::1"));
    assert_true(k1_is_loopback("localhost"));
    assert_false(k1_is_loopback("0.0.0.0"));
    assert_false(k1_is_loopback("::"));
    assert_false(k1_is_loopback("192.168.1.100"));
    assert_false(k1_is_loopback("127.0.0.1.example.org"));
    assert_false(k1_is_loopback(""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_token_of_the_file_is_accepted),
        cmocka_unit_test(without_tokens_everybody_is_accepted),
        cmocka_unit_test(a_file_without_good_tokens_is_refused),
        cmocka_unit_test(loopback_is_told_from_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
