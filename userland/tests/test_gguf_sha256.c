/* The hash by which nodes agree on a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sodium.h>

#include "support.h"

static void a_file_and_its_bytes_have_the_same_hash(void **state) {
    (void)state;
    static const uint64_t ne[] = {1 << 19};
    k1t_gguf file = {0};
    k1t_tensor(&file, "large", K1_F32, ne, 1, NULL, 4 << 19); /* two chunks and a part */
    size_t size;
    uint8_t *data = k1t_finish(&file, &size), expected[32], digest[32];
    crypto_hash_sha256(expected, data, size);

    k1_gguf *bytes = k1_gguf_parse(data, size, NULL);
    assert_non_null(bytes);
    assert_int_equal(k1_gguf_sha256(bytes, digest), 0);
    assert_memory_equal(digest, expected, 32);
    k1_gguf_close(bytes);

    char path[256];
    k1t_write_file(path, sizeof path, data, size);
    k1_gguf *mapped = k1_gguf_open(path, NULL);
    assert_non_null(mapped);
    assert_int_equal(k1_gguf_sha256(mapped, digest), 0);
    assert_memory_equal(digest, expected, 32);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(k1_gguf_sha256(mapped, digest), 0); /* known since the first call */
    k1_gguf_close(mapped);
    assert_int_equal(unlink(path), 0);
    free(data);
}

static void a_file_that_shrinks_is_told(void **state) {
    (void)state;
    k1t_gguf file = {0};
    k1t_str(&file, "general.architecture", "llama");
    char path[256];
    size_t size;
    uint8_t *data = k1t_finish(&file, &size), digest[32];
    k1t_write_file(path, sizeof path, data, size);
    k1_gguf *mapped = k1_gguf_open(path, NULL);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(k1_gguf_sha256(mapped, digest), -1);
    k1_gguf_close(mapped);
    assert_int_equal(unlink(path), 0);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_and_its_bytes_have_the_same_hash),
        cmocka_unit_test(a_file_that_shrinks_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
