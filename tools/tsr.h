/* Functions common to the commands of the tsr tool. A command is in cmd_<name>.c, has the signature below
 * with its own name as argv[0], returns an exit code (0 done, 1 failed, 2 wrong command line, 3 not enough
 * memory), and has a line in main.c's table. */
#ifndef TSR_TOOLS_TSR_H
#define TSR_TOOLS_TSR_H

#include <stdbool.h>
#include <stdio.h>

#include <tsr/log.h>
#include <tsr/status.h>

/* One line on each command, for its own help and for that of the tool. */
#define TOOL_TOPO_SUMMARY       "show a machine and the devices made from it"
#define TOOL_PLAN_SUMMARY       "show what a model takes on every device, without loading it"
#define TOOL_SHOW_SUMMARY       "show what a GGUF file has: keys, tensors, parameters and sizes"
#define TOOL_FIT_SUMMARY        "show how a model can be made to fit, without loading it"
#define TOOL_RUN_SUMMARY        "generate text, or hold a conversation"
#define TOOL_EMBED_SUMMARY      "print the embedding of a text"
#define TOOL_PERPLEXITY_SUMMARY "measure how well a model predicts a text"
#define TOOL_BENCH_SUMMARY      "measure the devices, and a model at different splits"
#define TOOL_LINKS_SUMMARY      "measure transfers and all-reduces between the devices"
#define TOOL_DOCTOR_SUMMARY     "print what a report of a problem needs: build, machine, tests"
#define TOOL_SYNTH_SUMMARY      "write a model of random weights, to compare machines with"
#define TOOL_COMPLETION_SUMMARY "print completions for a shell: bash or zsh"
#define TOOL_VERSION_SUMMARY    "print the version and how the library was built"
#define TOOL_HELP_SUMMARY       "print this text, or the options of a command"

int tsr_cmd_doctor(int argc, char **argv);
int tsr_cmd_topo(int argc, char **argv);
int tsr_cmd_plan(int argc, char **argv);
int tsr_cmd_show(int argc, char **argv);
int tsr_cmd_fit(int argc, char **argv);
int tsr_cmd_run(int argc, char **argv);
int tsr_cmd_embed(int argc, char **argv);
int tsr_cmd_perplexity(int argc, char **argv);
int tsr_cmd_synth(int argc, char **argv);
int tsr_cmd_bench(int argc, char **argv);       /* and, by the first argument: */
int tsr_cmd_bench_links(int argc, char **argv); /* argv[0] is "links" */

/* Print "tsr COMMAND: the last error" and return the exit code: 2 for a wrong command line, 3 for a lack of
 * memory, 1 otherwise. */
int tool_fail(const char *command, tsr_status status);

/* Prints warnings to stderr, and all other levels with `verbose`. */
tsr_logger tool_logger(bool verbose);

/* "s" unless n is 1. */
static inline const char *tool_plural(long long n)
{
    return n == 1 ? "" : "s";
}

/* Seconds of a monotonic clock. */
double tool_clock(void);

/* A tsr_write_fn; `file` is a FILE *. */
void tool_write(const char *text, void *file);

#endif
