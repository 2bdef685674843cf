/* Log lines for people and programs: `2026-01-31T12:00:00.123Z info listening host=127.0.0.1 port=8080`. */
#ifndef K1_LOG_H
#define K1_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "k1/error.h"

typedef enum k1_log_level { K1_LOG_ERROR, K1_LOG_WARN, K1_LOG_INFO, K1_LOG_DEBUG } k1_log_level;

typedef struct k1_log {
    int fd;
    k1_log_level level; /* lines above it are left out */
    char who[16];       /* stands before the pairs of each line, such as "rank=1 " */
} k1_log;

/* error, warn, info or debug; -1 and err names them. */
int k1_log_level_parse(const char *name, k1_log_level *level, k1_err *err);

/* One line, written by one write(): event is a word, format gives `key=value` pairs. Control characters become '?', so
 * that nothing a client sends can forge a line. Any thread may call it. */
void k1_log_line(const k1_log *log, k1_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* For lines that strangers can bring about as often as they like: one in ten seconds. Zero-initialise. */
typedef struct k1_log_rate {
    int64_t last_ns;
} k1_log_rate;

bool k1_log_rate_allows(k1_log_rate *rate, int64_t now_ns); /* now_ns: monotonic, not 0 */

#endif
