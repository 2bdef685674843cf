/* The GGUF reader: what a good file gives, and which error each kind of damage gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support.h"

enum { U8 = 0, I8 = 1, I16 = 3, U32 = 4, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, U64 = 10, I64 = 11, F64 = 12 };

/* A small good file; tests of damage add one fault to it. */
static k1t_gguf small(void) {
    static const uint64_t ne[] = {4, 2}, q[] = {64};
    static const float values[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    k1t_gguf file = {0};
    k1t_str(&file, "general.architecture", "llama");
    k1t_tensor(&file, "a.weight", K1_F32, ne, 2, values, sizeof values);
    k1t_tensor(&file, "b.weight", K1_Q4_0, q, 1, NULL, 36);
    return file;
}

/* The bytes must be refused with an error that has all of the given parts. */
static void refuse_bytes(const void *data, size_t size, const char *part, const char *other) {
    k1_err err = {""};
    uint8_t *copy = k1t_aligned(data, size);
    k1_gguf *gguf = k1_gguf_parse(copy, size, &err);
    free(copy);
    assert_null(gguf);
    if (strstr(err.text, part) == NULL || strstr(err.text, other) == NULL) {
        fail_msg("error has not \"%s\" and \"%s\": %s", part, other, err.text);
    }
}

static void refuse(k1t_gguf *file, const char *part, const char *other) {
    size_t size;
    uint8_t *data = k1t_finish(file, &size);
    refuse_bytes(data, size, part, other);
    free(data);
}

typedef struct opened {
    uint8_t *data;
    k1_gguf *gguf;
} opened;

static opened accept_file(k1t_gguf *file) {
    size_t size;
    k1_err err = {""};
    opened result = {.data = k1t_finish(file, &size)};
    result.gguf = k1_gguf_parse(result.data, size, &err);
    if (result.gguf == NULL) {
        fail_msg("refused: %s", err.text);
    }
    return result;
}

static void close_file(opened file) {
    k1_gguf_close(file.gguf);
    free(file.data);
}

static void tensors_are_found_by_name_with_shape_and_data(void **state) {
    (void)state;
    k1t_gguf file = small();
    opened found = accept_file(&file);
    assert_int_equal(k1_gguf_n_tensors(found.gguf), 2);
    const k1_tensor *a = k1_gguf_tensor(found.gguf, "a.weight");
    assert_ptr_equal(a, k1_gguf_tensor_at(found.gguf, 0));
    assert_string_equal(a->name, "a.weight");
    assert_int_equal(a->type, K1_F32);
    assert_int_equal(a->n_dims, 2);
    assert_int_equal(a->ne[0], 4);
    assert_int_equal(a->ne[1], 2);
    assert_int_equal(a->ne[2], 1);
    assert_int_equal(a->ne[3], 1);
    assert_int_equal(a->bytes, 32);
    assert_true(((const float *)a->data)[7] == 7.0f);
    assert_int_equal(k1_gguf_tensor(found.gguf, "b.weight")->bytes, 36);
    assert_null(k1_gguf_tensor(found.gguf, "c.weight"));
    assert_null(k1_gguf_tensor_at(found.gguf, 2));
    close_file(found);
}

static void version_2_and_other_alignments_are_read(void **state) {
    (void)state;
    static const uint32_t alignments[] = {8, 32, 64, 4096};
    for (size_t i = 0; i < 4; i++) {
        k1t_gguf file = {.version = 2, .alignment = alignments[i]};
        static const uint64_t ne[] = {2};
        static const float values[] = {1, 2};
        k1t_tensor(&file, "a", K1_F32, ne, 1, values, sizeof values);
        k1t_tensor(&file, "b", K1_F32, ne, 1, values, sizeof values);
        opened found = accept_file(&file);
        const k1_tensor *b = k1_gguf_tensor(found.gguf, "b");
        assert_int_equal((uintptr_t)((const uint8_t *)b->data - found.data) % alignments[i], 0);
        assert_true(((const float *)b->data)[1] == 2.0f);
        close_file(found);
    }
}

static void a_file_without_tensors_may_end_after_its_keys(void **state) {
    (void)state;
    k1t_gguf file = {0};
    k1t_str(&file, "general.architecture", "llama");
    size_t size;
    uint8_t *data = k1t_finish(&file, &size);
    k1_gguf *gguf = k1_gguf_parse(data, 24 + (8 + 20) + 4 + (8 + 5), NULL);
    assert_non_null(gguf);
    k1_gguf_close(gguf);
    free(data);
}

static void integers_of_any_width_are_read_where_they_fit(void **state) {
    (void)state;
    k1t_gguf file = {0};
    k1t_value(&file, "u8", U8, &(uint8_t){200}, 1);
    k1t_value(&file, "i16", I16, &(int16_t){300}, 2);
    k1t_value(&file, "u64", U64, &(uint64_t){UINT32_MAX}, 8);
    k1t_value(&file, "i64", I64, &(int64_t){7}, 8);
    k1t_value(&file, "negative", I8, &(int8_t){-1}, 1);
    k1t_value(&file, "large", U64, &(uint64_t){1ULL << 32}, 8);
    k1t_f32(&file, "float", 1.0f);
    opened found = accept_file(&file);
    uint32_t value = 0;
    assert_true(k1_gguf_u32(found.gguf, "u8", &value) && value == 200);
    assert_true(k1_gguf_u32(found.gguf, "i16", &value) && value == 300);
    assert_true(k1_gguf_u32(found.gguf, "u64", &value) && value == UINT32_MAX);
    assert_true(k1_gguf_u32(found.gguf, "i64", &value) && value == 7);
    assert_false(k1_gguf_u32(found.gguf, "negative", &value));
    assert_false(k1_gguf_u32(found.gguf, "large", &value));
    assert_false(k1_gguf_u32(found.gguf, "float", &value));
    assert_false(k1_gguf_u32(found.gguf, "absent", &value));
    assert_false(k1_gguf_has(found.gguf, "absent"));
    close_file(found);
}

static void other_scalars_keep_their_type(void **state) {
    (void)state;
    k1t_gguf file = {0};
    k1t_bool(&file, "yes", true);
    k1t_f32(&file, "f32", 0.5f);
    k1t_value(&file, "f64", F64, &(double){0.25}, 8);
    k1t_value(&file, "huge", F64, &(double){1e300}, 8);
    k1t_str(&file, "name", "SmolLM");
    opened found = accept_file(&file);
    bool yes = false;
    float real = 0;
    k1_str name;
    assert_true(k1_gguf_bool(found.gguf, "yes", &yes) && yes);
    assert_true(k1_gguf_f32(found.gguf, "f32", &real) && real == 0.5f);
    assert_true(k1_gguf_f32(found.gguf, "f64", &real) && real == 0.25f);
    assert_false(k1_gguf_f32(found.gguf, "huge", &real));
    assert_true(k1_gguf_str(found.gguf, "name", &name));
    assert_int_equal(name.len, 6);
    assert_memory_equal(name.data, "SmolLM", 6);
    assert_false(k1_gguf_bool(found.gguf, "f32", &yes));
    assert_false(k1_gguf_f32(found.gguf, "yes", &real));
    assert_false(k1_gguf_str(found.gguf, "f32", &name));
    close_file(found);
}

static void arrays_are_aligned_wherever_they_stand(void **state) {
    (void)state;
    static const char *const words[] = {"a", "", "ccc"};
    static const float scores[] = {0.5f, -1};
    static const int32_t types[] = {1, -2, 3};
    k1t_gguf file = {0};
    k1t_strs(&file, "words", words, 3);
    k1t_f32s(&file, "x", scores, 2);
    k1t_i32s(&file, "yy", types, 3);
    k1t_strs(&file, "none", NULL, 0);
    opened found = accept_file(&file);
    const k1_str *strings;
    const float *reals;
    const int32_t *integers;
    assert_int_equal(k1_gguf_strs(found.gguf, "words", &strings), 3);
    assert_int_equal(strings[1].len, 0);
    assert_memory_equal(strings[2].data, "ccc", 3);
    assert_int_equal(k1_gguf_f32s(found.gguf, "x", &reals), 2);
    assert_int_equal((uintptr_t)reals % sizeof *reals, 0);
    assert_true(reals[1] == -1.0f);
    assert_int_equal(k1_gguf_i32s(found.gguf, "yy", &integers), 3);
    assert_int_equal((uintptr_t)integers % sizeof *integers, 0);
    assert_int_equal(integers[2], 3);
    assert_int_equal(k1_gguf_strs(found.gguf, "none", &strings), 0);
    assert_int_equal(k1_gguf_i32s(found.gguf, "x", &integers), 0);
    assert_int_equal(k1_gguf_strs(found.gguf, "absent", &strings), 0);
    close_file(found);
}

static void a_file_is_opened_by_path_and_errors_name_it(void **state) {
    (void)state;
    char path[256];
    k1_err err = {""};
    k1t_gguf file = small();
    size_t size;
    uint8_t *data = k1t_finish(&file, &size);
    k1t_write_file(path, sizeof path, data, size);
    k1_gguf *gguf = k1_gguf_open(path, &err);
    assert_non_null(gguf);
    assert_non_null(k1_gguf_tensor(gguf, "b.weight"));
    k1_gguf_close(gguf);
    assert_int_equal(truncate(path, (off_t)size - 1), 0);
    assert_null(k1_gguf_open(path, &err));
    assert_memory_equal(err.text, path, strlen(path));
    assert_non_null(strstr(err.text, "tensor b.weight"));
    assert_int_equal(truncate(path, 0), 0);
    assert_null(k1_gguf_open(path, &err));
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(unlink(path), 0);
    assert_null(k1_gguf_open(path, &err));
    assert_non_null(strstr(err.text, "No such file"));
    assert_null(k1_gguf_open("/", &err));
    assert_non_null(strstr(err.text, "a folder"));
    free(data);
}

static void a_zero_dimension_is_refused(void **state) {
    (void)state;
    k1t_gguf file = small();
    static const uint64_t ne[] = {4, 0};
    k1t_info(&file, "z.weight", K1_F32, ne, 2, 96);
    refuse(&file, "tensor z.weight", "dimension 1 is zero");
}

static void a_wrong_number_of_dimensions_is_refused(void **state) {
    (void)state;
    static const uint64_t ne[] = {1, 1, 1, 1, 1};
    static const uint32_t wrong[] = {0, 5};
    for (size_t i = 0; i < 2; i++) {
        k1t_gguf file = small();
        k1t_info(&file, "z.weight", K1_F32, ne, wrong[i], 96);
        refuse(&file, "tensor z.weight", "allowed are 1 to 4");
    }
}

static void empty_names_are_refused(void **state) {
    (void)state;
    static const uint64_t ne[] = {1};
    k1t_gguf key = small();
    k1t_u32(&key, "", 1);
    refuse(&key, "key number 2", "empty");
    k1t_gguf tensor = small();
    k1t_info(&tensor, "", K1_F32, ne, 1, 96);
    refuse(&tensor, "tensor number 3", "empty");
}

static void a_name_with_nul_or_too_many_bytes_is_refused(void **state) {
    (void)state;
    char name[66];
    memset(name, 'n', 65);
    name[65] = '\0';
    static const uint64_t ne[] = {1};
    k1t_gguf tensor = small();
    k1t_info(&tensor, name, K1_F32, ne, 1, 96);
    refuse(&tensor, "tensor number 3", "at most 64 bytes");
    k1t_gguf key = small();
    k1t_put_strn(&key.kvs, "a\0b", 3);
    key.n_kvs++;
    refuse(&key, "key number 2: key a?b", "no NUL");
}

static void control_characters_of_a_name_stay_out_of_the_error(void **state) {
    (void)state;
    k1t_gguf file = small();
    k1t_value(&file, "a\033[31m\n", 13, NULL, 0);
    refuse(&file, "key a?[31m?:", "unknown value type 13");
}

static void dimensions_beyond_the_file_are_refused(void **state) {
    (void)state;
    static const uint64_t over[] = {(1ULL << 42) + 1, (1ULL << 42) + 1}, large[] = {(1ULL << 42) + 1},
                          whole[] = {1ULL << 63};
    k1t_gguf file = small();
    k1t_info(&file, "z.weight", K1_F32, large, 1, 96);
    refuse(&file, "tensor z.weight", "pass the end of the file");
    file = small();
    k1t_info(&file, "z.weight", K1_F32, over, 2, 96);
    refuse(&file, "tensor z.weight", "overflows");
    file = small();
    k1t_info(&file, "z.weight", K1_Q4_0, large, 1, 96);
    refuse(&file, "tensor z.weight", "no whole number of Q4_0 blocks");
    file = small();
    k1t_info(&file, "z.weight", K1_F32, whole, 1, 96);
    refuse(&file, "tensor z.weight", "overflows");
}

static void lengths_beyond_the_file_are_refused(void **state) {
    (void)state;
    k1t_gguf file = small();
    k1t_value(&file, "long", STRING, &(uint64_t){1ULL << 63}, 8);
    refuse(&file, "key long", "9223372036854775808 bytes passes the end");
    file = small();
    k1t_value(&file, "many", ARRAY, NULL, 0);
    k1t_put_u32(&file.kvs, F64);
    k1t_put_u64(&file.kvs, 1ULL << 61);
    refuse(&file, "key many", "2305843009213693952 values passes the end");
    file = small();
    file.n_kvs = 1ULL << 62;
    refuse(&file, "header", "4611686018427387904 keys");
    file = small();
    file.n_tensors = UINT64_MAX;
    refuse(&file, "header", "18446744073709551615 tensors");
}

static void a_tensor_past_the_end_is_refused(void **state) {
    (void)state;
    static const uint64_t ne[] = {32};
    k1t_gguf file = small();
    k1t_info(&file, "z.weight", K1_F32, ne, 1, 64);
    refuse(&file, "tensor z.weight", "pass the end of the file");
    file = small();
    k1t_info(&file, "z.weight", K1_F32, ne, 1, UINT64_MAX - 31);
    refuse(&file, "tensor z.weight", "pass the end of the file");
}

static void overlapping_tensors_are_refused(void **state) {
    (void)state;
    static const uint64_t ne[] = {1};
    k1t_gguf file = small();
    k1t_info(&file, "z.weight", K1_F32, ne, 1, 32);
    refuse(&file, "tensor b.weight", "tensor z.weight overlap");
    file = small();
    k1t_info(&file, "\x1b[2J\xff", K1_F32, ne, 1, 32);
    refuse(&file, "tensor b.weight", "tensor ?[2J? overlap");
}

static void names_that_stand_twice_are_refused(void **state) {
    (void)state;
    static const uint64_t ne[] = {4};
    k1t_gguf file = small();
    k1t_tensor(&file, "a.weight", K1_F32, ne, 1, NULL, 16);
    refuse(&file, "tensor a.weight", "twice");
    file = small();
    k1t_tensor(&file, "\xff\n", K1_F32, ne, 1, NULL, 16);
    k1t_tensor(&file, "\xff\n", K1_F32, ne, 1, NULL, 16);
    refuse(&file, "tensor ??", "twice");
    file = small();
    k1t_u32(&file, "general.architecture", 1);
    refuse(&file, "key general.architecture", "twice");
}

static void bad_alignment_is_refused(void **state) {
    (void)state;
    static const uint32_t wrong[] = {0, 1, 4, 24, 33, 0xffffffff};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        k1t_gguf file = small();
        k1t_u32(&file, "general.alignment", wrong[i]);
        refuse(&file, "general.alignment", "power of two");
    }
    k1t_gguf text = small();
    k1t_str(&text, "general.alignment", "32");
    refuse(&text, "general.alignment", "number");
    static const uint64_t ne[] = {1};
    k1t_gguf offset = small();
    k1t_info(&offset, "z.weight", K1_F32, ne, 1, 4);
    refuse(&offset, "tensor z.weight", "offset 4 is no multiple of the file's alignment 32");
}

static void types_that_cannot_be_used_are_named(void **state) {
    (void)state;
    static const uint64_t ne[] = {256};
    k1t_gguf file = small();
    k1t_info(&file, "z.weight", 13, ne, 1, 96);
    refuse(&file, "tensor z.weight: type 13 (Q5_K)", "Q4_0");
    file = small();
    k1t_info(&file, "z.weight", 0xfffffff0, ne, 1, 96);
    refuse(&file, "tensor z.weight: type 4294967280", "Q4_0");
}

static void nested_arrays_and_odd_values_are_refused(void **state) {
    (void)state;
    k1t_gguf nested = small();
    k1t_value(&nested, "deep", ARRAY, NULL, 0);
    k1t_put_u32(&nested.kvs, ARRAY);
    k1t_put_u64(&nested.kvs, 1);
    refuse(&nested, "key deep", "array of arrays");
    k1t_gguf boolean = small();
    k1t_value(&boolean, "flag", BOOL, &(uint8_t){2}, 1);
    refuse(&boolean, "key flag", "neither true");
    k1t_gguf unknown = small();
    k1t_value(&unknown, "deep", ARRAY, NULL, 0);
    k1t_put_u32(&unknown.kvs, 77);
    k1t_put_u64(&unknown.kvs, 1);
    refuse(&unknown, "key deep", "unknown type 77");
}

static void other_versions_are_refused(void **state) {
    (void)state;
    k1t_gguf first = {.version = 1}, future = {.version = 4}, swapped = {.version = 0x03000000};
    refuse(&first, "version 1", "only 2 and 3");
    refuse(&future, "version 4", "only 2 and 3");
    refuse(&swapped, "big-endian", "little-endian");
}

/* Several strings, arrays and tensors, so that cuts fall into each kind of entry. */
static k1t_gguf varied(void) {
    static const char *const words[] = {"<s>", "</s>", "hello", "world"};
    static const float scores[] = {0, 1, 2, 3};
    static const uint64_t ne[] = {32, 2};
    k1t_gguf file = small();
    k1t_strs(&file, "tokenizer.ggml.tokens", words, 4);
    k1t_f32s(&file, "tokenizer.ggml.scores", scores, 4);
    k1t_u32(&file, "llama.block_count", 2);
    k1t_bool(&file, "tokenizer.ggml.add_bos_token", true);
    k1t_tensor(&file, "c.weight", K1_Q8_0, ne, 2, NULL, 68);
    return file;
}

static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    k1t_gguf file = varied();
    size_t size;
    uint8_t *data = k1t_finish(&file, &size);
    for (size_t cut = 4; cut < size; cut++) {
        refuse_bytes(data, cut, "", cut % 64 == 0 ? "download it again" : "");
    }
    free(data);
}

static void any_flipped_byte_is_refused_or_harmless(void **state) {
    (void)state;
    k1t_gguf file = varied();
    size_t size;
    uint8_t *data = k1t_finish(&file, &size);
    for (size_t i = 0; i < size; i++) {
        data[i] ^= 0xff;
        k1_gguf *gguf = k1_gguf_parse(data, size, NULL);
        for (size_t t = 0; gguf != NULL && t < k1_gguf_n_tensors(gguf); t++) {
            const k1_tensor *tensor = k1_gguf_tensor_at(gguf, t);
            assert_true((const uint8_t *)tensor->data + tensor->bytes <= data + size);
        }
        k1_gguf_close(gguf);
        data[i] ^= 0xff;
    }
    free(data);
}

static void other_formats_are_told_as_what_they_are(void **state) {
    (void)state;
    static const struct {
        const char *data;
        size_t size;
        const char *part, *hint;
    } files[] = {
        {"", 0, "empty", "download"},
        {"\x80\x02}q\x00X\x05", 8, "pickle", "convert_hf_to_gguf.py"},
        {"PK\x03\x04\x00\x00\x08\x08", 8, "PyTorch checkpoint", "convert_hf_to_gguf.py"},
        {"\n <!DOCTYPE html><html>", 22, "a web page", "link to the raw file"},
        {"<html><body>", 12, "a web page", "link to the raw file"},
        {"\x0c\0\0\0\0\0\0\0{\"a\":  null}", 20, "safetensors", "convert_hf_to_gguf.py"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "Git LFS pointer", "git lfs pull"},
        {"tjgg\x03\0\0\0", 8, "before GGUF", "convert"},
        {"\x1f\x8b\x08\x00", 4, "gzip", "gunzip"},
        {"\x7f"
         "ELF",
         4, "7f 45 4c 46", "not a GGUF file"},
        {"GGU", 3, "47 47 55", "not a GGUF file"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        refuse_bytes(files[i].data, files[i].size, files[i].part, files[i].hint);
    }
}

static void many_names_are_looked_up_fast(void **state) {
    (void)state;
    enum { N = 20000 };
    static const uint64_t ne[] = {1};
    k1t_gguf file = {0};
    char name[32];
    for (unsigned i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "blk.%u.weight", i);
        k1t_tensor(&file, name, K1_F32, ne, 1, NULL, 4);
        k1t_u32(&file, name, i);
    }
    opened found = accept_file(&file);
    for (unsigned i = 0; i < N; i++) {
        uint32_t value = 0;
        (void)snprintf(name, sizeof name, "blk.%u.weight", i);
        assert_ptr_equal(k1_gguf_tensor(found.gguf, name), k1_gguf_tensor_at(found.gguf, i));
        assert_true(k1_gguf_u32(found.gguf, name, &value) && value == i);
    }
    close_file(found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name_with_shape_and_data),
        cmocka_unit_test(version_2_and_other_alignments_are_read),
        cmocka_unit_test(a_file_without_tensors_may_end_after_its_keys),
        cmocka_unit_test(integers_of_any_width_are_read_where_they_fit),
        cmocka_unit_test(other_scalars_keep_their_type),
        cmocka_unit_test(arrays_are_aligned_wherever_they_stand),
        cmocka_unit_test(a_file_is_opened_by_path_and_errors_name_it),
        cmocka_unit_test(a_zero_dimension_is_refused),
        cmocka_unit_test(a_wrong_number_of_dimensions_is_refused),
        cmocka_unit_test(empty_names_are_refused),
        cmocka_unit_test(a_name_with_nul_or_too_many_bytes_is_refused),
        cmocka_unit_test(control_characters_of_a_name_stay_out_of_the_error),
        cmocka_unit_test(dimensions_beyond_the_file_are_refused),
        cmocka_unit_test(lengths_beyond_the_file_are_refused),
        cmocka_unit_test(a_tensor_past_the_end_is_refused),
        cmocka_unit_test(overlapping_tensors_are_refused),
        cmocka_unit_test(names_that_stand_twice_are_refused),
        cmocka_unit_test(bad_alignment_is_refused),
        cmocka_unit_test(types_that_cannot_be_used_are_named),
        cmocka_unit_test(nested_arrays_and_odd_values_are_refused),
        cmocka_unit_test(other_versions_are_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(any_flipped_byte_is_refused_or_harmless),
        cmocka_unit_test(other_formats_are_told_as_what_they_are),
        cmocka_unit_test(many_names_are_looked_up_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
