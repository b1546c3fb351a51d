/* The closing tables of tsr run: the speed of each phase, the memory of each device, and their exchanges. */
#include "run.h"

#include <string.h>

#include <tsr/bytes.h>

#include "format.h"
#include "tsr.h"

static void add_phase(tool_table *table, const char *name, double seconds, int64_t n_tokens)
{
    tool_table_cell(table, "%s", name);
    tool_table_cell(table, seconds < 10 ? "%.1f ms" : "%.0f ms", 1e3 * seconds);
    if (n_tokens) {
        tool_table_cell(table, "%lld", (long long)n_tokens);
        tool_table_cell(table, "%.1f", seconds > 0 ? (double)n_tokens / seconds : 0.0);
    } else {
        tool_table_cell(table, "-");
        tool_table_cell(table, "-");
    }
}

static void print_phases(const run_result *result)
{
    tool_table table = {0};
    tool_table_header(&table, 4, (const char *[]){"phase", "time", "tokens", "tokens/s"});
    add_phase(&table, "load", result->load_s, 0);
    add_phase(&table, "prompt", result->prompt_s, result->n_prompt);
    add_phase(&table, "decode", result->decode_s, result->n_decoded);
    tool_table_print(&table, stderr);
    tool_table_free(&table);
}

static void add_bytes(tool_table *table, size_t bytes)
{
    char text[TSR_BYTES_TEXT];
    tool_table_cell(table, "%s", bytes ? tsr_bytes_text(bytes, text) : "-");
}

/* Only GPUs have scratch. */
static bool has_scratch(const tsr_runtime *rt)
{
    tsr_device_info info;
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++)
        if (tsr_runtime_device(rt, d, &info) == TSR_OK && info.used[TSR_MEMORY_SCRATCH] > 0)
            return true;
    return false;
}

static void print_devices(const tsr_runtime *rt)
{
    tool_table table = {0};
    bool scratch = has_scratch(rt);
    tool_table_header(&table, scratch ? 9 : 8,
                      scratch ? (const char *[]){"device", "threads", "kernels", "weights", "KV", "arena",
                                                 "reduce", "scratch", "total"}
                              : (const char *[]){"device", "threads", "kernels", "weights", "KV", "arena",
                                                 "reduce", "total"});
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_info info;
        size_t total = 0;
        if (tsr_runtime_device(rt, d, &info) != TSR_OK)
            continue;
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            total += info.used[o];
        tool_table_cell(&table, "%s", info.name);
        tool_table_cell(&table, "%d", info.n_threads);
        tool_table_cell(&table, "%s", info.isa);
        add_bytes(&table, info.used[TSR_MEMORY_WEIGHTS]);
        add_bytes(&table, info.used[TSR_MEMORY_KV]);
        add_bytes(&table, info.used[TSR_MEMORY_ARENA]);
        add_bytes(&table, info.used[TSR_MEMORY_COMM]);
        if (scratch)
            add_bytes(&table, info.used[TSR_MEMORY_SCRATCH]);
        add_bytes(&table, total);
    }
    tool_table_print(&table, stderr);
    tool_table_free(&table);
}

/* Memory beyond the plan: peaks, committed bytes of the KV region, and the devices' own numbers. */
static void print_memory(const tsr_runtime *rt)
{
    tool_table table = {0};
    tool_table_header(&table, 8,
                      (const char *[]){"memory", "most used", "KV in use", "viewed", "cap", "free now",
                                       "other use", "pinned"});
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_memory m;
        if (tsr_runtime_memory(rt, d, &m) != TSR_OK)
            continue;
        tool_table_cell(&table, "%s", m.name);
        add_bytes(&table, m.peak_total);
        add_bytes(&table, m.kv_committed);
        add_bytes(&table, m.viewed);
        add_bytes(&table, m.cap == SIZE_MAX ? 0 : m.cap);
        add_bytes(&table, m.device_free);
        add_bytes(&table, m.elsewhere);
        add_bytes(&table, m.pinned);
    }
    tool_table_print(&table, stderr);
    tool_table_free(&table);
}

/* "collectives: peer up to 64 KiB (8.1 us for 4 KiB), peer two-shot above (19.5 us for 256 KiB), nccl between
 * processes" */
static void print_collectives(const tsr_runtime *rt)
{
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    char bytes[TSR_BYTES_TEXT];
    int n = tsr_runtime_collectives(rt, rows);
    if (n == 0)
        return;
    const tsr_collectives_row *between = rows[n - 1].bytes == 0 ? &rows[--n] : NULL;
    fprintf(stderr, "collectives:");
    for (int r = 0, next; r < n; r = next) {
        for (next = r + 1; next < n; next++)
            if (strcmp(rows[next].implementation, rows[r].implementation) != 0)
                break;
        fprintf(stderr, "%s %s", r ? "," : "", rows[r].implementation);
        if (next < n)
            fprintf(stderr, " up to %s", tsr_bytes_text(rows[next - 1].bytes, bytes));
        else if (r > 0)
            fprintf(stderr, " above");
        if (rows[r].latency_ns)
            fprintf(stderr, " (%.1f us for %s)", (double)rows[r].latency_ns / 1e3,
                    tsr_bytes_text(rows[r].bytes, bytes));
    }
    if (between)
        fprintf(stderr, "%s %s between processes", n > 0 ? "," : "", between->implementation);
    fprintf(stderr, "\n");
}

static void print_work(const run_engine *engine, const run_options *options, const run_result *result)
{
    tsr_session_stats stats;
    tsr_plan_info plan;
    tsr_session_get_stats(engine->session, &stats);
    tsr_plan_get_info(tsr_model_plan(engine->model), &plan);
    const char *kind = options->engine.model.reduction ? options->engine.model.reduction : "exact";
    fprintf(stderr,
            "%lld step%s, %lld reduction%s (%s, %d per step), %d transfer%s per step, %lld shape program%s\n",
            (long long)stats.n_steps, tool_plural(stats.n_steps), (long long)stats.n_all_reduces,
            tool_plural(stats.n_all_reduces), kind, plan.n_all_reduces, plan.n_transfers,
            tool_plural(plan.n_transfers), (long long)stats.n_programs, tool_plural(stats.n_programs));
    fprintf(stderr, "ended: %s; %lld of %lld tokens of context in use\n", result->end,
            (long long)tsr_session_length(engine->session, 0), (long long)plan.n_ctx);
    if (options->sampler.seed == options->drawn_seed && options->sampler.temperature > 0)
        fprintf(stderr, "seed: %llu; --seed %llu makes the same text again\n",
                (unsigned long long)options->drawn_seed, (unsigned long long)options->drawn_seed);
}

void run_report(const tsr_runtime *rt, const run_engine *engine, const run_options *options,
                const run_result *result)
{
    fprintf(stderr, "\n");
    print_phases(result);
    fprintf(stderr, "\n");
    print_devices(rt);
    fprintf(stderr, "\n");
    print_memory(rt);
    fprintf(stderr, "\n");
    print_collectives(rt);
    print_work(engine, options, result);
}
