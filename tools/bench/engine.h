/* A model opened with one division after another, and the clock around its steps. */
#ifndef TSR_TOOLS_BENCH_ENGINE_H
#define TSR_TOOLS_BENCH_ENGINE_H

#include <tsr/session.h>

#include "bench/report.h"

typedef struct bench_engine {
    /* What the caller supplies: all borrowed. */
    tsr_runtime *rt;
    const tsr_device_list *list;
    const char *path;
    tsr_model_config config; /* its tensor_split is that of the row that is open */

    /* The rest is the engine's own. */
    tsr_model *model;
    tsr_session *session;
    const bench_row *row; /* whose split the model has; NULL: none */
    int32_t *tokens;      /* [longest step], any, as no kernel's time depends on them */
    int64_t n_tokens;
    float *logits; /* [n_vocab] */
} bench_engine;

/* Divide the model as `row` says, and note in the row what lies where. Nothing happens where it is open. */
tsr_status bench_engine_open(bench_engine *engine, const bench_report *report, bench_row *row);

/* Run a test once: `seconds` of its own tokens, not of those before them. Programs of new shapes are compiled
 * in it, so a test's first run after a row was opened is no measurement. shares[n_devices]: how the devices
 * spent the time; NULL: nobody asks. */
tsr_status bench_engine_run(bench_engine *engine, const bench_test *test, double *seconds_out,
                            bench_shares *shares);

/* One token behind `depth` others: what a first run costs beside a prompt. */
tsr_status bench_engine_touch(bench_engine *engine, int depth);

/* What the planner expects every test of the row to take, as far as it knows rates, and what would lie
 * where. */
tsr_status bench_engine_predict(const bench_engine *engine, const tsr_gguf *gguf, const bench_report *report,
                                bench_row *row);

/* Close the model; the engine is all zeros then. All zeros is fine. */
void bench_engine_close(bench_engine *engine);

#endif
