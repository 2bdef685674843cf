/* Runs a fuzz target over the files named, for compilers without libFuzzer and for findings that are kept. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST = 1 << 24 };

static int run_file(const char *path, uint8_t *data) {
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) {
        perror(path);
        return 1;
    }
    size_t size = fread(data, 1, LARGEST, stream);
    int failed = ferror(stream);
    (void)fclose(stream);
    if (failed) {
        perror(path);
        return 1;
    }
    (void)LLVMFuzzerTestOneInput(data, size);
    return 0;
}

int main(int argc, char **argv) {
    uint8_t *data = malloc(LARGEST);
    int failed = data == NULL || argc < 2;
    for (int i = 1; !failed && i < argc; i++) {
        failed = run_file(argv[i], data);
    }
    free(data);
    return failed;
}
