/* A model opened with one division after another, and the timing of its steps. */
#ifndef TSR_TOOLS_BENCH_ENGINE_H
#define TSR_TOOLS_BENCH_ENGINE_H

#include <tsr/session.h>

#include "bench/report.h"
#include "processes.h"

typedef struct bench_engine {
    /* Supplied by the caller: all borrowed. */
    tsr_runtime *rt;
    const tsr_device_list *list;     /* of all processes */
    const tool_processes *processes; /* each makes the same calls; times are those of the first */
    const char *path;
    tsr_model_config config; /* its tensor_split is that of the open row */

    /* Owned by the engine. */
    tsr_gguf *gguf; /* the model's header, opened by the caller */
    tsr_model *model;
    tsr_session *session;
    const bench_row *row; /* the model has its split; NULL: none */
    int32_t *tokens;      /* [longest step], arbitrary, as no kernel's time depends on them */
    int64_t n_tokens;
    float *logits;   /* [n_vocab] */
    double finish_s; /* tool_clock() of the first process at the end of the latest run */
} bench_engine;

/* Divide the model by `row`, and note the granules and bytes of each device in the row. No effect if the
 * row is open. */
tsr_status bench_engine_open(bench_engine *engine, const bench_report *report, bench_row *row);

/* Run a test once: `seconds` of its own tokens, without those before them. Programs of new shapes are
 * compiled in it, so a test's first run after a row was opened is not a measurement. shares[n_devices]:
 * the devices' shares of the time; NULL: not measured. */
tsr_status bench_engine_run(bench_engine *engine, const bench_test *test, double *seconds_out,
                            bench_shares *shares);

/* One token after `depth` others: the part of a first run that is not the prompt's. */
tsr_status bench_engine_touch(bench_engine *engine, int depth);

/* The planner's prediction of every test of the row, if rates are known, and the granules and bytes of each
 * device, as bench_engine_open() will have them. */
tsr_status bench_engine_predict(const bench_engine *engine, const bench_report *report, bench_row *row);

/* Close the model and zero the engine. All zeros is fine. */
void bench_engine_close(bench_engine *engine);

#endif
