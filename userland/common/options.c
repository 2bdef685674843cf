#include "k1/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = 48, LINE_MAX_LEN = 4096 };

/* ---- names ---- */

/* Copy a name with '_' for '-'; false when it is too long to be one of ours. */
static bool canonical(const char *name, size_t len, char out[NAME_MAX_LEN]) {
    if (len >= NAME_MAX_LEN) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        out[i] = name[i] == '-' ? '_' : name[i];
    }
    out[len] = '\0';
    return true;
}

static const k1_option *find(const k1_options *options, const char *name) {
    for (size_t i = 0; i < options->n; i++) {
        if (strcmp(options->table[i].name, name) == 0) {
            return &options->table[i];
        }
    }
    return NULL;
}

static const k1_option *find_letter(const k1_options *options, char letter) {
    for (size_t i = 0; i < options->n; i++) {
        if (options->table[i].letter == letter) {
            return &options->table[i];
        }
    }
    return NULL;
}

static size_t min3(size_t a, size_t b, size_t c) {
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

/* Levenshtein distance of two names, one row at a time. */
static size_t distance(const char *a, const char *b) {
    size_t row[NAME_MAX_LEN];
    size_t n_b = strlen(b);
    for (size_t j = 0; j <= n_b; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n_b; j++) {
            size_t above = row[j + 1];
            row[j + 1] = min3(above + 1, row[j] + 1, diagonal + (a[i] != b[j]));
            diagonal = above;
        }
    }
    return row[n_b];
}

static const char *nearest_name(const k1_options *options, const char *name) {
    static const char *const always[] = {"help", "version"};
    char plain[NAME_MAX_LEN];
    const char *nearest = NULL;
    if (!canonical(name, strlen(name), plain)) {
        return NULL;
    }
    size_t best = strlen(plain) / 2 + 1;
    for (size_t i = 0; i < options->n + 2; i++) {
        const char *known = i < options->n ? options->table[i].name : always[i - options->n];
        size_t d = distance(plain, known);
        if (d < best) {
            best = d;
            nearest = known;
        }
    }
    return nearest;
}

/* where: "file:line: ", or "" for the command line. */
static int unknown(const k1_options *options, const char *where, const char *name, k1_err *err) {
    const char *dashes = where[0] == '\0' ? "--" : "";
    const char *nearest = nearest_name(options, name);
    if (nearest != NULL) {
        return k1_fail(err, "%sunknown option \"%s%.60s\"; did you mean %s%s?", where, dashes, name, dashes, nearest);
    }
    return k1_fail(err, "%sunknown option \"%s%.60s\"; --help lists them", where, dashes, name);
}

/* ---- values ---- */

static int set_text(const k1_option *option, const char *text, k1_err *err) {
    char *copy = strdup(text);
    if (copy == NULL) {
        return k1_fail(err, "out of memory");
    }
    char **value = option->value;
    free(*value);
    *value = copy;
    return 0;
}

static int set_integer(const k1_option *option, const char *where, const char *text, k1_err *err) {
    double low = option->min;
    double high = option->max;
    if (low == 0 && high == 0) {
        high = option->kind == K1_OPTION_U32 ? (double)UINT32_MAX : (double)UINT64_MAX;
    }
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0') {
        return k1_fail(err, "%s%s: \"%.60s\" is not a whole number", where, option->name, text);
    }
    if (errno != 0 || (double)value < low || (double)value > high) {
        return k1_fail(err, "%s%s: %.60s is outside %.0f to %.0f", where, option->name, text, low, high);
    }
    if (option->kind == K1_OPTION_U32) {
        *(uint32_t *)option->value = (uint32_t)value;
    } else {
        *(uint64_t *)option->value = value;
    }
    return 0;
}

static int set_float(const k1_option *option, const char *where, const char *text, k1_err *err) {
    char *end = NULL;
    float value = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(value)) {
        return k1_fail(err, "%s%s: \"%.60s\" is not a number", where, option->name, text);
    }
    if ((option->min != 0 || option->max != 0) && ((double)value < option->min || (double)value > option->max)) {
        return k1_fail(err, "%s%s: %.60s is outside %g to %g", where, option->name, text, option->min, option->max);
    }
    *(float *)option->value = value;
    return 0;
}

static int set_flag(const k1_option *option, const char *where, const char *text, k1_err *err) {
    bool on = strcmp(text, "true") == 0;
    if (!on && strcmp(text, "false") != 0) {
        return k1_fail(err, "%s%s: \"%.60s\" is neither true nor false", where, option->name, text);
    }
    *(bool *)option->value = on;
    return 0;
}

/* where: "file:line: " or "--". */
static int set(const k1_option *option, const char *where, const char *text, k1_err *err) {
    switch (option->kind) {
    case K1_OPTION_FLAG:
        return set_flag(option, where, text, err);
    case K1_OPTION_TEXT:
        return set_text(option, text, err);
    case K1_OPTION_FLOAT:
        return set_float(option, where, text, err);
    case K1_OPTION_U32:
    case K1_OPTION_U64:
        return set_integer(option, where, text, err);
    }
    return -1;
}

static int set_given(const k1_option *option, const char *where, const char *text, k1_err *err) {
    if (set(option, where, text, err) != 0) {
        return -1;
    }
    if (option->given != NULL) {
        *option->given = true;
    }
    return 0;
}

/* ---- configuration file ---- */

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) {
        text++;
    }
    size_t n = strlen(text);
    while (n > 0 && isspace((unsigned char)text[n - 1])) {
        n--;
    }
    text[n] = '\0';
    return text;
}

static int set_line(const k1_options *options, const char *where, char *line, k1_err *err) {
    char *text = trim(line);
    if (*text == '\0' || *text == '#') {
        return 0;
    }
    char *equals = strchr(text, '=');
    if (equals == NULL) {
        return k1_fail(err, "%sexpected \"name = value\", found \"%.60s\"", where, text);
    }
    *equals = '\0';
    char *name = trim(text);
    char *value = trim(equals + 1);
    char plain[NAME_MAX_LEN];
    const k1_option *option = canonical(name, strlen(name), plain) ? find(options, plain) : NULL;
    if (option == NULL) {
        return unknown(options, where, name, err);
    }
    if (option->value == (void *)options->config_path) {
        return k1_fail(err, "%s%s belongs on the command line", where, name);
    }
    return set_given(option, where, value, err);
}

int k1_options_file(const k1_options *options, const char *path, k1_err *err) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return k1_fail(err, "cannot read %s: %s", path, strerror(errno));
    }
    char line[LINE_MAX_LEN];
    char where[256];
    int failed = 0;
    for (size_t number = 1; failed == 0 && fgets(line, sizeof line, file) != NULL; number++) {
        snprintf(where, sizeof where, "%.200s:%zu: ", path, number);
        if (strlen(line) == sizeof line - 1) {
            failed = k1_fail(err, "%sline longer than %d bytes", where, LINE_MAX_LEN - 2);
        } else {
            failed = set_line(options, where, line, err);
        }
    }
    if (failed == 0 && ferror(file)) {
        failed = k1_fail(err, "cannot read %s: %s", path, strerror(errno));
    }
    fclose(file);
    return failed;
}

/* ---- command line ---- */

typedef struct scan {
    const k1_options *options;
    int argc;
    char **argv;
    int next;
    bool only_config; /* first pass: only the option that names the file */
} scan;

static int apply(scan *s, const k1_option *option, const char *word, const char *value, k1_err *err) {
    if (option->kind == K1_OPTION_FLAG && value == NULL) {
        value = "true";
    } else if (value == NULL) {
        if (s->next >= s->argc) {
            return k1_fail(err, "%.60s needs a value (%s)", word, option->metavar);
        }
        value = s->argv[s->next++];
    }
    if (s->only_config && option->value != (void *)s->options->config_path) {
        return 0;
    }
    return set_given(option, "--", value, err);
}

static int long_option(scan *s, const char *word, k1_err *err) {
    const char *name = word + 2;
    const char *equals = strchr(name, '=');
    size_t len = equals == NULL ? strlen(name) : (size_t)(equals - name);
    char plain[NAME_MAX_LEN];
    const k1_option *option = canonical(name, len, plain) ? find(s->options, plain) : NULL;
    if (option == NULL) {
        char shown[64];
        snprintf(shown, sizeof shown, "%.*s", (int)(len < 60 ? len : 60), name);
        return unknown(s->options, "", shown, err);
    }
    return apply(s, option, word, equals == NULL ? NULL : equals + 1, err);
}

static int short_option(scan *s, const char *word, k1_err *err) {
    const k1_option *option = word[2] == '\0' ? find_letter(s->options, word[1]) : NULL;
    if (option == NULL) {
        return k1_fail(err, "unknown option \"%.60s\"; --help lists them", word);
    }
    return apply(s, option, word, NULL, err);
}

static int operand(scan *s, const char *word, const char **operands, size_t capacity, size_t *n, k1_err *err) {
    if (*n >= capacity) {
        return s->only_config ? 0 : k1_fail(err, "do not know what to do with \"%.60s\"; see --help", word);
    }
    operands[(*n)++] = word;
    return 0;
}

static int walk(scan *s, const char **operands, size_t capacity, size_t *n, k1_err *err) {
    bool words_only = false;
    *n = 0;
    for (s->next = 1; s->next < s->argc;) {
        const char *word = s->argv[s->next++];
        int failed = 0;
        if (words_only || word[0] != '-' || word[1] == '\0') {
            failed = operand(s, word, operands, capacity, n, err);
        } else if (strcmp(word, "--") == 0) {
            words_only = true;
        } else if (word[1] == '-') {
            failed = long_option(s, word, err);
        } else {
            failed = short_option(s, word, err);
        }
        if (failed != 0) {
            return -1;
        }
    }
    return 0;
}

static void show_help(const k1_options *options) {
    printf("Usage: %s %s\n%s\n\n", options->program, options->synopsis, options->about);
    for (size_t i = 0; i < options->n; i++) {
        const k1_option *option = &options->table[i];
        char left[64];
        char letter[8] = "";
        if (option->letter != 0) {
            snprintf(letter, sizeof letter, "-%c, ", option->letter);
        }
        snprintf(left, sizeof left, "%s--%s %s", letter, option->name,
                 option->kind == K1_OPTION_FLAG ? "" : option->metavar);
        printf("  %-26s %s", left, option->help);
        if (option->fallback != NULL && option->kind != K1_OPTION_FLAG) {
            printf(" (default: %s)", option->fallback);
        }
        printf("\n");
    }
    printf("  %-26s %s\n  %-26s %s\n", "--help", "show this text", "--version", "show the version");
}

static bool answered(const k1_options *options, int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            show_help(options);
            return true;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("%s %s\n", options->program, K1_VERSION);
            return true;
        }
    }
    return false;
}

static int set_fallbacks(const k1_options *options, k1_err *err) {
    for (size_t i = 0; i < options->n; i++) {
        const k1_option *option = &options->table[i];
        if (option->fallback != NULL && set(option, "", option->fallback, err) != 0) {
            return -1;
        }
    }
    return 0;
}

k1_options_result k1_options_parse(const k1_options *options, int argc, char **argv, const char **operands,
                                   size_t capacity, size_t *n_operands, k1_err *err) {
    size_t ignored = 0;
    size_t *n = n_operands == NULL ? &ignored : n_operands;
    if (answered(options, argc, argv)) {
        return K1_OPTIONS_SHOWN;
    }
    if (set_fallbacks(options, err) != 0) {
        return K1_OPTIONS_ERROR;
    }
    scan s = {.options = options, .argc = argc, .argv = argv, .only_config = true};
    if (options->config_path != NULL) {
        if (walk(&s, operands, capacity, n, err) != 0 ||
            (*options->config_path != NULL && k1_options_file(options, *options->config_path, err) != 0)) {
            return K1_OPTIONS_ERROR;
        }
    }
    s.only_config = false;
    return walk(&s, operands, capacity, n, err) == 0 ? K1_OPTIONS_RUN : K1_OPTIONS_ERROR;
}

void k1_options_free(const k1_options *options) {
    for (size_t i = 0; i < options->n; i++) {
        if (options->table[i].kind == K1_OPTION_TEXT) {
            char **value = options->table[i].value;
            free(*value);
            *value = NULL;
        }
    }
}
