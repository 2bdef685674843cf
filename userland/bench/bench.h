/* The subcommands of k1-bench: argv[0] is the subcommand's name; an exit code. */
#ifndef K1_BENCH_H
#define K1_BENCH_H

int k1_bench_engine(int argc, char **argv);
int k1_bench_perplexity(int argc, char **argv);

#endif
