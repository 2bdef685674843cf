/* Writes the seeds of fuzz_tokenizer to PREFIXname.seed: the tests' small vocabularies, each with a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny_vocab.h"

static const char bpe_text[] = "abc  aab<tool_call>ZZZ é\xC3 1a\n\n<|end|>'ll aaaa\xFF";
static const char spm_text[] = "abc  a<tool>A\n\xF0\x9F\x98\x80 é</s>aaaa\xF0\x9F? [PAD]";

/* 0, or -1 after the reason was told. */
static int save(const char *prefix, const char *name, k1t_gguf *file, const char *text) {
    size_t size;
    uint8_t *gguf = k1t_finish(file, &size);
    k1t_bytes bytes = {0};
    k1t_put_u32(&bytes, (uint32_t)size);
    k1t_put(&bytes, gguf, size);
    k1t_put(&bytes, text, strlen(text));
    int result = k1t_seed(prefix, name, bytes.data, bytes.n);
    free(gguf);
    free(bytes.data);
    return result;
}

int main(int argc, char **argv) {
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s PREFIX\n", argv[0]);
        return 2;
    }
    k1t_gguf spm = {0};
    k1t_put_spm(&spm);
    int result = save(argv[1], "spm", &spm, spm_text);
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
        k1t_gguf bpe = {0};
        k1t_put_bpe(&bpe, pres[i]);
        result |= save(argv[1], pres[i], &bpe, bpe_text);
    }
    return result == 0 ? 0 : 1;
}
