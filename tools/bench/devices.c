/* The rates of the devices, measured and stored for tsr plan and tsr run. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "cache_file.h"
#include "format.h"
#include "interrupt.h"
#include "rates_file.h"
#include "tsr.h"

enum { MOST_ROUNDS = 3 };

void bench_print_rates(const tsr_device_list *list, const tsr_device_rates *rates, FILE *out)
{
    tool_table table = {0};
    tool_table_header(&table, 7,
                      (const char *[]){"device", "F16 GB/s", "Q8_0 GB/s", "Q4_K GB/s", "F16 GFLOP/s", "op us",
                                       "all-reduce us"});
    for (int d = 0; d < list->n_devices; d++) {
        const tsr_device_rates *r = &rates[d];
        tool_table_cell(&table, "%s", list->devices[d].name);
        tool_table_cell(&table, "%.1f", r->read_bytes_per_s[tsr_rate_index(TSR_TYPE_F16)] * 1e-9);
        tool_table_cell(&table, "%.1f", r->read_bytes_per_s[tsr_rate_index(TSR_TYPE_Q8_0)] * 1e-9);
        tool_table_cell(&table, "%.1f", r->read_bytes_per_s[tsr_rate_index(TSR_TYPE_Q4_K)] * 1e-9);
        tool_table_cell(&table, "%.0f", r->flops_per_s[tsr_rate_index(TSR_TYPE_F16)] * 1e-9);
        tool_table_cell(&table, "%.1f", r->op_ns * 1e-3);
        tool_table_cell(&table, "%.1f", r->sync_ns * 1e-3);
    }
    tool_table_print(&table, out);
    tool_table_free(&table);
    fprintf(out, "load meanwhile: other processes took %.0f %% of the processors' time\n", 100 * rates->load);
}

static double small_sync_ns(const tsr_device_rates *rates)
{
    return rates->sync_bytes_per_s > 0 ? rates->sync_ns + 32768e9 / rates->sync_bytes_per_s : 0;
}

/* Other processes can only slow devices down. */
static void keep_best(tsr_device_rates *best, const tsr_device_rates *rates)
{
    if (!best->measured) {
        *best = *rates;
        return;
    }
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        best->read_bytes_per_s[i] = fmax(best->read_bytes_per_s[i], rates->read_bytes_per_s[i]);
        best->flops_per_s[i] = fmax(best->flops_per_s[i], rates->flops_per_s[i]);
        best->product_ns[i] = fmin(best->product_ns[i], rates->product_ns[i]);
        best->partial_flops_per_s[i] = fmax(best->partial_flops_per_s[i], rates->partial_flops_per_s[i]);
        best->expert_bytes_per_s[i] = fmax(best->expert_bytes_per_s[i], rates->expert_bytes_per_s[i]);
        best->expert_flops_per_s[i] = fmax(best->expert_flops_per_s[i], rates->expert_flops_per_s[i]);
        best->byte_flops_per_s[i] = fmax(best->byte_flops_per_s[i], rates->byte_flops_per_s[i]);
    }
    best->op_ns = fmin(best->op_ns, rates->op_ns);
    if (small_sync_ns(rates) < small_sync_ns(best)) { /* both numbers are from the same line */
        best->sync_ns = rates->sync_ns;
        best->sync_bytes_per_s = rates->sync_bytes_per_s;
    }
}

tsr_status bench_measure_rates(tsr_runtime *rt, const tool_processes *processes, int n_rounds,
                               tsr_device_rates *best)
{
    const tool_load start = tool_load_now();
    for (int round = 0; round < n_rounds && round < MOST_ROUNDS && !tool_interrupted; round++) {
        tsr_device_rates rates[TSR_MAX_DEVICES];
        tsr_status status = tsr_runtime_measure(rt, NULL, 0, rates);
        if (status == TSR_OK && !bench_share_interrupt(processes))
            status = TSR_ERR_DEVICE_LOST;
        if (status != TSR_OK)
            return status;
        for (int d = 0; d < tsr_runtime_n_devices(rt); d++)
            keep_best(&best[d], &rates[d]);
    }
    const double load = tool_load_of_others(processes, &start);
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++)
        best[d].load = load;
    return TSR_OK;
}

static const char *user_of_rates(const tool_processes *processes)
{
    return processes->transport ? "tsr run --mpi with the same devices" : "tsr plan and tsr run";
}

void bench_keep_rates(const tool_processes *processes, const tsr_topology *topo, const tsr_device_list *own,
                      const tsr_device_list *list, const tsr_device_rates *rates, FILE *out)
{
    char path[TOOL_PATH];
    if (tool_rates_save(processes, topo, own, list, rates) && tool_cache_path(TOOL_RATES_FILE, path))
        fprintf(out, "stored in %s for %s\n", path, user_of_rates(processes));
    else
        fprintf(stderr, "tsr: warning: cannot store the rates: %s\n", strerror(errno));
}

bool bench_may_keep(const tool_processes *processes, double load, bool anyway)
{
    if (anyway || !tool_load_disturbs(load))
        return true;
    fprintf(stderr,
            "tsr bench: not stored for %s: other processes took %.0f %% of the processors' time meanwhile; "
            "repeat it when the machine is idle, or add --keep-rates\n",
            user_of_rates(processes), 100 * load);
    return false;
}

/* The rates that tsr plan would use. */
static void use_stored(bench *b)
{
    if (!tool_rates_load(&b->processes, b->machine.topo, b->machine.own, b->machine.list->n_devices,
                         b->rates))
        tsr_device_rates_guess(b->machine.list->devices, b->machine.list->n_devices, b->rates);
}

tsr_status bench_devices(bench *b)
{
    if (b->options->stored_rates) {
        use_stored(b);
        return TSR_OK;
    }
    FILE *out = b->options->model.model ? stderr : stdout; /* with a model, stdout has the report */
    tsr_status status = bench_measure_rates(b->engine.rt, &b->processes, b->options->n_rounds, b->rates);
    if (status != TSR_OK)
        return status;
    bench_print_rates(b->machine.list, b->rates, out);
    if (bench_may_keep(&b->processes, b->rates->load, b->options->keep_rates))
        bench_keep_rates(&b->processes, b->machine.topo, b->machine.own, b->machine.list, b->rates, out);
    return TSR_OK;
}
