/* Which CPUs compute: one per physical core, on machines described by small /proc and /sys trees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "k1/threadpool.h"
#include "support.h"

/* A machine: siblings[i] is CPU i's thread_siblings_list, NULL for one that is offline. */
static char *machine(const char *const *siblings, size_t n, const char *online, const char *allowed) {
    char *root = k1t_folder();
    char text[128];
    for (size_t i = 0; i < n; i++) {
        if (siblings[i] != NULL) {
            char path[96];
            (void)snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", i);
            (void)snprintf(text, sizeof text, "%s\n", siblings[i]);
            k1t_text(root, path, text);
        }
    }
    if (online != NULL) {
        (void)snprintf(text, sizeof text, "%s\n", online);
        k1t_text(root, "sys/devices/system/cpu/online", text);
    }
    if (allowed != NULL) {
        (void)snprintf(text, sizeof text, "Name:\tk1\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\nMems_allowed:\t1\n",
                       allowed);
        k1t_text(root, "proc/self/status", text);
    }
    return root;
}

/* The machine's cores as text, "0 2"; removes the machine. */
static const char *cores(char *root) {
    static char text[128];
    uint32_t cpus[16];
    size_t n = k1_topology_cpus(root, cpus, 16);
    assert_in_range(n, 0, 16);
    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(text);
        (void)snprintf(text + length, sizeof text - length, "%s%u", i > 0 ? " " : "", cpus[i]);
    }
    k1t_remove(root);
    return text;
}

static const char *const k1_board[] = {"0-1", "0-1", "2-3", "2-3"};

static void one_worker_per_core_of_the_k1(void **state) {
    (void)state;
    assert_string_equal(cores(machine(k1_board, 4, "0-3", "0-3")), "0 2");
}

static void siblings_far_apart_share_a_core(void **state) {
    (void)state;
    static const char *const x86[] = {"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"};
    assert_string_equal(cores(machine(x86, 8, "0-7", "0-7")), "0 1 2 3");
}

static void every_cpu_of_a_flat_machine_computes(void **state) {
    (void)state;
    static const char *const flat[] = {"0", "1", "2"};
    assert_string_equal(cores(machine(flat, 3, "0-2", "0-2")), "0 1 2");
}

static void an_offline_cpu_is_left_out(void **state) {
    (void)state;
    static const char *const first_off[] = {NULL, "1", "2-3", "2-3"};
    assert_string_equal(cores(machine(first_off, 4, "1-3", "0-3")), "1 2");
}

static void only_cpus_of_the_affinity_mask_are_used(void **state) {
    (void)state;
    assert_string_equal(cores(machine(k1_board, 4, "0-3", "1,3")), "1 3");
    assert_string_equal(cores(machine(k1_board, 4, "0-3", "2-3")), "2");
    assert_string_equal(cores(machine(k1_board, 4, "0-3", "0-255")), "0 2");
}

static void parts_that_are_missing_are_made_up_for(void **state) {
    (void)state;
    static const char *const unknown[] = {NULL, NULL};
    assert_string_equal(cores(machine(unknown, 2, NULL, "0-1")), "0 1");
    assert_string_equal(cores(machine(k1_board, 4, "0-3", NULL)), "0 2");
    assert_string_equal(cores(machine(k1_board, 4, NULL, NULL)), "");
}

static void the_count_may_exceed_the_room(void **state) {
    (void)state;
    uint32_t cpus[2] = {9, 9};
    char *root = machine(k1_board, 4, "0-3", "0-3");
    assert_int_equal(k1_topology_cpus(root, cpus, 1), 2);
    assert_int_equal(cpus[0], 0);
    assert_int_equal(cpus[1], 9);
    k1t_remove(root);
}

static void this_machine_has_a_core(void **state) {
    (void)state;
    uint32_t cpus[256];
    assert_in_range(k1_topology_cpus(NULL, cpus, 256), 1, 4096);
}

static void a_cpu_list_keeps_its_order(void **state) {
    (void)state;
    uint32_t cpus[8];
    size_t n = 0;
    assert_int_equal(k1_cpu_list("6,0,2-4", cpus, 8, &n, NULL), 0);
    assert_int_equal(n, 5);
    static const uint32_t expected[] = {6, 0, 2, 3, 4};
    assert_memory_equal(cpus, expected, sizeof expected);
}

static void a_malformed_cpu_list_is_quoted(void **state) {
    (void)state;
    static const char *const wrong[] = {"",    ",",   "0,",   "a",    "0-",          "-1",
                                        "3-1", "0 1", "0,,1", "4096", "99999999999", "1x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint32_t cpus[8];
        size_t n = 0;
        k1_err err = {""};
        char quoted[32];
        (void)snprintf(quoted, sizeof quoted, "\"%s\" is no list", wrong[i]);
        assert_int_equal(k1_cpu_list(wrong[i], cpus, 8, &n, &err), -1);
        assert_non_null(strstr(err.text, quoted));
    }
}

static void a_cpu_named_twice_or_too_many_are_refused(void **state) {
    (void)state;
    uint32_t cpus[2];
    size_t n = 0;
    k1_err err = {""};
    assert_int_equal(k1_cpu_list("1,0-1", cpus, 2, &n, &err), -1);
    assert_non_null(strstr(err.text, "CPU 1 is named twice"));
    assert_int_equal(k1_cpu_list("0-2", cpus, 2, &n, &err), -1);
    assert_non_null(strstr(err.text, "names 3 CPUs, at most 2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_per_core_of_the_k1),
        cmocka_unit_test(siblings_far_apart_share_a_core),
        cmocka_unit_test(every_cpu_of_a_flat_machine_computes),
        cmocka_unit_test(an_offline_cpu_is_left_out),
        cmocka_unit_test(only_cpus_of_the_affinity_mask_are_used),
        cmocka_unit_test(parts_that_are_missing_are_made_up_for),
        cmocka_unit_test(the_count_may_exceed_the_room),
        cmocka_unit_test(this_machine_has_a_core),
        cmocka_unit_test(a_cpu_list_keeps_its_order),
        cmocka_unit_test(a_malformed_cpu_list_is_quoted),
        cmocka_unit_test(a_cpu_named_twice_or_too_many_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
