/* --trace: one more repetition of every test with every row, after the measurements, which a trace would slow
 * down. */
#include <stdio.h>

#include "bench/bench.h"
#include "interrupt.h"
#include "trace_file.h"
#include "tsr.h"

static tsr_status trace_row(bench *b, bench_row *row, tool_trace *trace)
{
    tsr_status status = bench_engine_open(&b->engine, &b->report, row);
    for (int t = 0; t < b->report.n_tests && status == TSR_OK && !tool_interrupted; t++) {
        const bench_test *test = &b->report.tests[t];
        char name[sizeof((tool_trace_phase *)0)->name];
        double seconds;
        const uint64_t begin = tool_trace_now(trace);
        status = bench_engine_run(&b->engine, test, &seconds, NULL);
        snprintf(name, sizeof name, "%.16s %.40s", test->name,
                 *row->text ? row->text : bench_row_kind_name(row->kind));
        tool_trace_add_phase(trace, begin, name);
    }
    return status;
}

int bench_trace(bench *b)
{
    tool_trace trace = {.command = "bench", .path = b->options->trace, .processes = &b->processes};
    if (!trace.path)
        return TOOL_EXIT_OK;
    tsr_runtime_time_collectives(b->engine.rt, false);
    tsr_status status = tool_trace_begin(&trace, b->engine.rt);
    for (int r = 0; r < b->report.n_rows && status == TSR_OK && !tool_interrupted; r++)
        if (!b->report.rows[r]->left_out)
            status = trace_row(b, b->report.rows[r], &trace);
    const int code = tool_trace_end(&trace, b->options->quiet);
    return status == TSR_OK ? code : tool_fail("bench", status);
}
