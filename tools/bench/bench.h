/* tsr bench, in parts:
 *
 *     cmd_bench.c     options, and the sequence of steps
 *     devices.c       rates of the devices; stored for tsr plan and tsr run
 *     together.c      what several processes (--mpi) know together
 *     links.c         tsr bench links: transfers and all-reduces
 *     environment.c   machine, model and settings
 *     ratios.c        the divisions to try: given, a sweep, a search
 *     split_text.c    a division as text for -ts
 *     engine.c        a model opened with one division after another
 *     measure.c       rounds of tests within a budget of time
 *     trace.c         one more round, with a trace
 *     synthetic.c     models of random weights, and extrapolation of layers
 *     report.c        the results; all formats are derived from them:
 *     table.c (terminal, markdown, CSV)  json.c  plot.c (SVG)  html.c  compare.c  advice.c
 *     chart.c, svg.c  what plot.c and html.c draw with; groups.c: equal devices, shown together */
#ifndef TSR_TOOLS_BENCH_H
#define TSR_TOOLS_BENCH_H

#include <stdbool.h>

#include <tsr/links.h>
#include <tsr/model.h>
#include <tsr/rates.h>

#include "bench/engine.h"
#include "bench/report.h"
#include "synth/synth.h"
#include "load.h"
#include "model_options.h"
#include "progress.h"

typedef struct bench_options {
    tool_model_options model;
    const char *collectives, *network;   /* as in tsr_runtime_config */
    int library_tokens;                  /* as in tsr_runtime_config */
    int n_layers;                        /* layers of a synthetic model; 0: all */
    const char *ratios;                  /* "sweep", "sweep:11", "auto" or "1,1;3,1"; NULL: "sweep" */
    const char *prompts, *gens, *depths; /* lists of numbers; NULL: the default, which may be cut to the
                                          * budget */
    int n_rounds;
    int budget_s; /* 0: none */
    const char *output, *save, *plot, *html, *show, *compare, *trace;
    bool verbose, quiet, keep_rates, stored_rates, mpi;
} bench_options;

/* The devices of this process, and of all. */
typedef struct bench_machine {
    tsr_topology *topo;          /* of this process's machine */
    tsr_device_list *own;        /* this process's devices */
    const tsr_device_list *list; /* those of all processes */
    tsr_device_list together;    /* of several */
} bench_machine;

typedef struct bench {
    const bench_options *options;
    tool_processes processes;
    bench_machine machine;
    tsr_links *links; /* NULL between several */
    tsr_device_rates rates[TSR_MAX_DEVICES];
    bench_engine engine;
    tool_progress loading;
    bench_report report;
} bench;

/* Measure the devices' rates in up to three rounds, keeping the best values; print and store them. */
tsr_status bench_devices(bench *b);

/* The parts of bench_devices(), for tsr bench links: measure into best[n_devices], initially all zeros;
 * print as a table; store, with a line on `out`. */
tsr_status bench_measure_rates(tsr_runtime *rt, const tool_processes *processes, int n_rounds,
                               tsr_device_rates *best);
void bench_print_rates(const tsr_device_list *list, const tsr_device_rates *rates, FILE *out);
void bench_keep_rates(const tool_processes *processes, const tsr_topology *topo, const tsr_device_list *own,
                      const tsr_device_list *list, const tsr_device_rates *rates, FILE *out);

/* Whether values measured under this load may be stored: it does not disturb, or `anyway`. Otherwise a line
 * on stderr says why not. */
bool bench_may_keep(const tool_processes *processes, double load, bool anyway);

/* -- several processes: all call these functions; no effect in a single one -- */

/* Discover the machine, before processes join. TOOL_GO_ON, or an exit code after an error message. */
int bench_machine_find(const char *command, bool verbose, bench_machine *machine_out);

/* List the devices, `devices` in this process, once the runtime is open: until then processes do not know of
 * each other's failures. */
tsr_status bench_machine_list(bench_machine *machine, tsr_runtime *rt, const tool_processes *processes,
                              const char *devices);

void bench_machine_free(bench_machine *machine); /* of zeros, too */

/* Index of this process's first device. */
int bench_first_device(const tsr_runtime *rt, const tool_processes *processes);

/* items[n_devices], each of `bytes`: those of other processes' devices are replaced by theirs. False after an
 * error message. */
bool bench_share_devices(const bench_engine *engine, void *items, size_t bytes);

/* All take the time of the first, and whether Ctrl-C was pressed there. */
tsr_status bench_share_times(bench_engine *engine, double *seconds);

/* Set tool_interrupted in all if Ctrl-C was pressed in the first. False after an error message. */
bool bench_share_interrupt(const tool_processes *processes);

tsr_status bench_describe_environment(bench *b);

/* Fill report.tests from the lists. TOOL_GO_ON, or the exit code after an error message. */
int bench_tests_read(const bench_options *options, bench_report *report);

/* Add the rows of options->ratios, besides the planner's. Returns an exit code, after an error message if
 * it is not TOOL_GO_ON. */
int bench_rows_make(bench *b);

/* The model of --synthetic; with n_layers a second model has half of the layers. */
typedef struct bench_synthetic {
    synth_model model;
    char path[64], half_path[64];
    int n_layers_whole, n_layers, n_layers_half; /* n_layers_half 0: one model */
} bench_synthetic;

/* Read the shape and set model.model to the path, by which bench_synthetic_make() names the file.
 * TOOL_GO_ON, or an exit code after an error message. */
int bench_synthetic_read(bench_options *options, bench_synthetic *synthetic_out);

/* Create the models in memory: seconds, and gigabytes. TOOL_GO_ON, or an exit code after an error message. */
int bench_synthetic_make(bench_synthetic *synthetic);

/* Measure the half model, too, and extrapolate every result to the whole model: the difference gives the
 * time per layer. Noted in the report. */
tsr_status bench_extrapolate(bench *b, const bench_synthetic *synthetic);

/* A split in percent for -ts, with up to `digits` digits after the point: "62.5,37.5". */
void bench_split_percent(const float *split, int n, int digits, char text[BENCH_SPLIT_TEXT]);

/* The same with as few digits as give the same shares. False if BENCH_SPLIT_DIGITS digits do not: then the
 * text has that many digits and other shares. */
enum { BENCH_SPLIT_DIGITS = 2 };
bool bench_split_text(const float *split, int n, char text[BENCH_SPLIT_TEXT]);

/* The same; a split whose shares are not those of the text becomes that of the text. */
void bench_split_round(float *split, int n, char text[BENCH_SPLIT_TEXT]);

/* Give every row in [first, n_rows) repetitions, after its prediction. Cuts for the budget are noted. */
tsr_status bench_measure(bench *b, int first);

/* Further repetitions for some rows, in turn. */
tsr_status bench_measure_rows(bench *b, bench_row **rows, int n_rows, int n_repetitions);

/* Record a trace of one more repetition of every test with every row, as one file. TOOL_EXIT_OK, or an exit
 * code after an error message. */
int bench_trace(bench *b);

/* Search the best division, starting with the planner's and the even one. Adds and measures rows. */
tsr_status bench_search(bench *b);

#endif
