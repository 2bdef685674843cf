/* The subcommands of k1-bench: argv[0] is the subcommand's name; an exit code. */
#ifndef K1_BENCH_H
#define K1_BENCH_H

#include "k1/error.h"
#include "k1/options.h"

int k1_bench_engine(int argc, char **argv);
int k1_bench_perplexity(int argc, char **argv);

/* What they share: read the options into settings, run, say on standard error what is wrong. run and the whole: an exit
 * code. */
int k1_bench_run(const k1_options *options, int argc, char **argv, int (*run)(const void *settings, k1_err *err),
                 const void *settings);

#endif
