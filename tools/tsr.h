/* What the commands of the tsr tool share. A command lives in cmd_<name>.c, has the signature below with
 * argv[0] its own name, returns an exit code (0 done, 1 failed, 2 asked wrongly), and has a line in main.c's
 * table. */
#ifndef TSR_TOOLS_TSR_H
#define TSR_TOOLS_TSR_H

#include <stdbool.h>
#include <stdio.h>

#include <tsr/log.h>
#include <tsr/status.h>

int tsr_cmd_topo(int argc, char **argv);
int tsr_cmd_plan(int argc, char **argv);
int tsr_cmd_fit(int argc, char **argv);
int tsr_cmd_run(int argc, char **argv);
int tsr_cmd_synth(int argc, char **argv);
int tsr_cmd_bench(int argc, char **argv);       /* and, by its first word: */
int tsr_cmd_bench_links(int argc, char **argv); /* argv[0] is "links" */

/* Print "tsr COMMAND: the last error" and return the exit code: 2 where the user's words were wrong, else
 * 1. */
int tool_fail(const char *command, tsr_status status);

/* Prints warnings to stderr, and with `verbose` everything else too. */
tsr_logger tool_logger(bool verbose);

/* Seconds on a clock that never jumps. */
double tool_clock(void);

/* A tsr_write_fn; `file` is a FILE *. */
void tool_write(const char *text, void *file);

#endif
