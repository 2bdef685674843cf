#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "k1/threadpool.h"

enum { MAX_CPUS = 4096, TEXT = 4096 };

/* CPUs in the order named, and which they are. */
typedef struct cpu_set {
    uint32_t list[MAX_CPUS];
    size_t n;
    uint8_t has[MAX_CPUS];
} cpu_set;

/* One decimal number below MAX_CPUS; moves *text behind it. */
static bool parse_cpu(const char **text, uint32_t *cpu) {
    const char *at = *text;
    uint32_t value = 0;
    while (*at >= '0' && *at <= '9' && value < MAX_CPUS) {
        value = 10 * value + (uint32_t)(*at++ - '0');
    }
    bool found = at != *text && value < MAX_CPUS;
    *text = at;
    *cpu = value;
    return found;
}

static int add_range(cpu_set *set, uint32_t first, uint32_t last, k1_err *err) {
    for (uint32_t cpu = first; cpu <= last; cpu++) {
        if (set->has[cpu]) {
            return k1_fail(err, "CPU %" PRIu32 " is named twice", cpu);
        }
        set->has[cpu] = 1;
        set->list[set->n++] = cpu;
    }
    return 0;
}

/* A list such as "0,2-3" up to the end of the text or line. */
static int parse_list(const char *text, cpu_set *set, k1_err *err) {
    set->n = 0;
    memset(set->has, 0, sizeof set->has);
    for (const char *at = text;; at++) {
        uint32_t first, last;
        bool ok = parse_cpu(&at, &first);
        last = first;
        if (ok && *at == '-') {
            at++;
            ok = parse_cpu(&at, &last) && first <= last;
        }
        if (!ok || (*at != ',' && *at != '\0' && *at != '\n')) {
            return k1_fail(err, "\"%.60s\" is no list of CPUs below %d such as 0,2-3", text, MAX_CPUS);
        }
        if (add_range(set, first, last, err) != 0) {
            return -1;
        }
        if (*at != ',') {
            return 0;
        }
    }
}

int k1_cpu_list(const char *text, uint32_t *cpus, size_t capacity, size_t *n, k1_err *err) {
    cpu_set *set = malloc(sizeof *set);
    if (set == NULL) {
        return k1_fail(err, "no memory to read a list of CPUs");
    }
    int result = parse_list(text, set, err);
    if (result == 0 && set->n > capacity) {
        result = k1_fail(err, "\"%.60s\" names %zu CPUs, at most %zu can be used", text, set->n, capacity);
    }
    if (result == 0) {
        memcpy(cpus, set->list, set->n * sizeof *cpus);
        *n = set->n;
    }
    free(set);
    return result;
}

/* The text of root/path, NUL-terminated; false when there is none. */
static bool read_text(const char *root, const char *path, char text[TEXT]) {
    char full[512];
    int length = snprintf(full, sizeof full, "%s/%s", root != NULL ? root : "", path);
    if (length < 0 || (size_t)length >= sizeof full) {
        return false;
    }
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, text, TEXT - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* The CPUs that the process may use and that are online; all online ones where /proc does not tell. */
static bool usable_cpus(const char *root, cpu_set *usable, cpu_set *online) {
    static const char field[] = "\nCpus_allowed_list:\t";
    char text[TEXT];
    bool has_online = read_text(root, "sys/devices/system/cpu/online", text) && parse_list(text, online, NULL) == 0;
    const char *allowed = read_text(root, "proc/self/status", text) ? strstr(text, field) : NULL;
    if (allowed == NULL || parse_list(allowed + strlen(field), usable, NULL) != 0) {
        *usable = *online;
        return has_online;
    }
    size_t n = 0;
    for (size_t i = 0; i < usable->n; i++) {
        if (!has_online || online->has[usable->list[i]]) {
            usable->list[n++] = usable->list[i];
        }
    }
    usable->n = n;
    return true;
}

/* Whether a hardware thread of the same core is among the taken. A CPU of which nothing is known is its own core. */
static bool core_is_taken(const char *root, uint32_t cpu, const uint8_t taken[MAX_CPUS], cpu_set *siblings) {
    char path[96], text[TEXT];
    (void)snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%" PRIu32 "/topology/thread_siblings_list", cpu);
    if (!read_text(root, path, text) || parse_list(text, siblings, NULL) != 0) {
        return false;
    }
    for (size_t i = 0; i < siblings->n; i++) {
        if (taken[siblings->list[i]]) {
            return true;
        }
    }
    return false;
}

size_t k1_topology_cpus(const char *root, uint32_t *cpus, size_t capacity) {
    struct {
        cpu_set usable, other;
        uint8_t taken[MAX_CPUS];
    } *work = calloc(1, sizeof *work);
    size_t n = 0;
    if (work != NULL && usable_cpus(root, &work->usable, &work->other)) {
        for (size_t i = 0; i < work->usable.n; i++) {
            uint32_t cpu = work->usable.list[i];
            if (core_is_taken(root, cpu, work->taken, &work->other)) {
                continue;
            }
            work->taken[cpu] = 1;
            if (n < capacity) {
                cpus[n] = cpu;
            }
            n++;
        }
    }
    free(work);
    return n;
}
