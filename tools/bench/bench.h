/* tsr bench, in parts:
 *
 *     cmd_bench.c     options, and the order of things
 *     devices.c       how fast the devices are; kept for tsr plan and tsr run
 *     links.c         tsr bench links: what devices exchange
 *     environment.c   where and with what it is measured
 *     ratios.c        the divisions to try: given, a sweep, a search
 *     engine.c        a model opened with one division after another
 *     measure.c       rounds of tests within a budget of time
 *     synthetic.c     models of random weights, and of few layers for many
 *     report.c        what was found; every format is made of it:
 *     table.c (terminal, markdown, CSV)  json.c  plot.c (SVG)  html.c  compare.c
 */
#ifndef TSR_TOOLS_BENCH_H
#define TSR_TOOLS_BENCH_H

#include <stdbool.h>

#include <tsr/links.h>
#include <tsr/model.h>
#include <tsr/rates.h>

#include "bench/engine.h"
#include "bench/report.h"
#include "model_options.h"

typedef struct bench_options {
    tool_model_options model;
    const char *synthetic;               /* "llama-3-8b:q4_k"; model.model names what was made of it */
    int n_layers;                        /* of a synthetic model only so many; 0: all */
    const char *ratios;                  /* "sweep", "sweep:11", "auto" or "1,1;3,1" */
    const char *prompts, *gens, *depths; /* lists of numbers; NULL: the default, which the budget may cut */
    int n_rounds;
    int budget_s; /* 0: none */
    const char *output, *save, *plot, *html, *show, *compare;
    bool verbose;
} bench_options;

typedef struct bench {
    const bench_options *options;
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_links *links;
    tsr_gguf *gguf;
    tsr_device_rates rates[TSR_MAX_DEVICES];
    bench_engine engine;
    bench_report report;
} bench;

/* Measure the devices' rates in up to three rounds, of which the best count; print and keep them. */
tsr_status bench_devices(bench *b);

/* The same in parts, for tsr bench links: into best[n_devices], all zeros at first; as a table; kept, saying
 * so on `out`. */
tsr_status bench_measure_rates(tsr_runtime *rt, int n_rounds, tsr_device_rates *best);
void bench_print_rates(const tsr_device_list *list, const tsr_device_rates *rates, FILE *out);
void bench_keep_rates(const tsr_topology *topo, const tsr_device_list *list, const tsr_device_rates *rates,
                      FILE *out);

void bench_describe_environment(bench *b);

/* Fill report.tests from the lists. TOOL_GO_ON, or the exit code after saying what is wrong. */
int bench_tests_read(const bench_options *options, bench_report *report);

/* Add the rows that options->ratios names, besides the planner's. Returns an exit code, after saying why if
 * it is not TOOL_GO_ON. */
int bench_rows_make(bench *b);

/* What --synthetic asks for, in memory; model.model names it from then on, with room in path[64]. With
 * n_layers two models: one more with half of them. TOOL_GO_ON, or an exit code after saying why. */
typedef struct bench_synthetic {
    char path[64], half_path[64];
    int n_layers_whole, n_layers, n_layers_half; /* n_layers_half 0: there is one model */
} bench_synthetic;
int bench_synthetic_make(bench_options *options, bench_synthetic *synthetic_out);

/* Measure the half, too, and turn every result into what the whole would take: a layer takes what tells the
 * two apart. Noted in the report. */
tsr_status bench_extrapolate(bench *b, const bench_synthetic *synthetic);

/* Text of a split that -ts would take: percentages that sum to 100. */
void bench_split_text(const float *split, int n, char text[BENCH_TEXT]);

/* Give every row in [first, n_rows) repetitions; a row's prediction first. What the budget cuts is noted. */
tsr_status bench_measure(bench *b, int first);

/* More repetitions for some rows, taken in turn. */
tsr_status bench_measure_rows(bench *b, bench_row **rows, int n_rows, int n_repetitions);

/* Look for the best division, from the planner's and the even one on. Adds and measures rows. */
tsr_status bench_search(bench *b);

#endif
