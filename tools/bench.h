/* tsr bench, in parts: the devices (cmd_bench.c), a model at different splits (bench_splits.c), what devices
 * exchange (cmd_bench_links.c). */
#ifndef TSR_TOOLS_BENCH_H
#define TSR_TOOLS_BENCH_H

#include <stdbool.h>

#include <tsr/model.h>
#include <tsr/rates.h>

#include "model_options.h"

typedef struct bench_options {
    tool_model_options model;
    const char *splits; /* "1,1;3,1"; NULL: a sweep */
    int n_ratios, n_prompt, n_decode, n_rounds;
    bool verbose;
} bench_options;

typedef struct bench {
    const bench_options *options;
    tsr_model_config config;
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_runtime *rt;
    tsr_device_rates rates[TSR_MAX_DEVICES];
    tsr_links *links;
} bench;

/* Time the model at the planner's split and the others that were asked for, and print a table. Returns an
 * exit code, after saying why if it is not 0. */
int bench_splits(const bench *b);

#endif
