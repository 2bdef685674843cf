/* Writes the seeds of fuzz_api to PREFIXname.seed: bodies of completions. */
#include <stdio.h>
#include <string.h>

#include "support.h"

typedef struct seed {
    const char *name;
    const char *body;
} seed;

static const seed seeds[] = {
    {"all",
     "{\"prompt\":\"h\\u00e9\\u0000\",\"max_tokens\":7,\"temperature\":0.25,\"top_p\":0.5,\"top_k\":3,\"min_p\":0.1,"
     "\"repeat_penalty\":1.5,\"repeat_last_n\":9,\"seed\":-2,\"stop\":[\"a\",\"b\"],\"stream\":true,"
     "\"stream_options\":{\"include_usage\":true},\"model\":\"m\",\"user\":null}"},
    {"ids", "{\"prompt\":[1,2,2147483647],\"stop\":\"x\",\"n\":1,\"logprobs\":false}"},
    {"one", "{\"prompt\":[\"one\"],\"echo\":false,\"logit_bias\":{},\"suffix\":\"\",\"best_of\":1}"},
    {"nested", "{\"prompt\":[[1,2,3]],\"stream\":true}"},
    {"bad", "{\"prompt\":\"\\ud800\",\"temperature\":1e999,\"max_tokens\":1.5,\"stop\":[[]]}"},
};

int main(int argc, char **argv) {
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s PREFIX\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        if (k1t_seed(argv[1], seeds[i].name, seeds[i].body, strlen(seeds[i].body)) != 0) {
            return 1;
        }
    }
    return 0;
}
