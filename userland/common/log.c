#include "k1/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "k1/text.h"

#define RATE_NS 10000000000

static const char *const level_names[] = {"error", "warn", "info", "debug"};

int k1_log_level_parse(const char *name, k1_log_level *level, k1_err *err) {
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level = (k1_log_level)i;
            return 0;
        }
    }
    return k1_fail(err, "log_level: \"%.40s\" is none of error, warn, info, debug", name);
}

static size_t put_time(char *out, size_t capacity) {
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(out, capacity, "%Y-%m-%dT%H:%M:%S", &utc);
    return n + (size_t)snprintf(out + n, capacity - n, ".%03ldZ ", now.tv_nsec / 1000000);
}

void k1_log_line(const k1_log *log, k1_log_level level, const char *event, const char *format, ...) {
    if (level > log->level) {
        return;
    }
    char line[1024];
    size_t room = sizeof line - 1; /* for the newline */
    size_t n = put_time(line, room);
    n += (size_t)snprintf(line + n, room - n, "%s %s %s", level_names[level], event, log->who);
    size_t body = n;
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(line + n, room - n, format, args);
    va_end(args);
    if (wanted > 0) {
        n += (size_t)wanted < room - n ? (size_t)wanted : room - n - 1;
    }
    k1_text_plain(line + body, n - body);
    line[n++] = '\n';
    ssize_t written = write(log->fd, line, n);
    (void)written; /* nothing to do about a log that cannot be written */
}

bool k1_log_rate_allows(k1_log_rate *rate, int64_t now_ns) {
    if (rate->last_ns != 0 && now_ns - rate->last_ns < RATE_NS) {
        return false;
    }
    rate->last_ns = now_ns;
    return true;
}
