/* tsr bench: how fast the devices are, kept for tsr plan and tsr run; with a model also how fast that is at
 * different splits. */
#include "tsr.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "bench.h"
#include "cache_file.h"
#include "format.h"
#include "machine_options.h"
#include "measured.h"
#include "options.h"
#include "rates_file.h"

static void print_rates(const bench *b)
{
    tool_table table = {0};
    tool_table_header(&table, 7,
                      (const char *[]){"device", "F16 GB/s", "Q8_0 GB/s", "Q4_K GB/s", "F16 GFLOP/s", "op us",
                                       "all-reduce us"});
    for (int d = 0; d < b->list->n_devices; d++) {
        const tsr_device_rates *r = &b->rates[d];
        tool_table_cell(&table, "%s", b->list->devices[d].name);
        tool_table_cell(&table, "%.1f", r->read_bytes_per_s[tsr_rate_index(TSR_TYPE_F16)] * 1e-9);
        tool_table_cell(&table, "%.1f", r->read_bytes_per_s[tsr_rate_index(TSR_TYPE_Q8_0)] * 1e-9);
        tool_table_cell(&table, "%.1f", r->read_bytes_per_s[tsr_rate_index(TSR_TYPE_Q4_K)] * 1e-9);
        tool_table_cell(&table, "%.0f", r->flops_per_s[tsr_rate_index(TSR_TYPE_F16)] * 1e-9);
        tool_table_cell(&table, "%.1f", r->op_ns * 1e-3);
        tool_table_cell(&table, "%.1f", r->sync_ns * 1e-3);
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

static double small_sync_ns(const tsr_device_rates *rates)
{
    return rates->sync_bytes_per_s > 0 ? rates->sync_ns + 32768e9 / rates->sync_bytes_per_s : 0;
}

/* Other processes make devices slower, never faster. */
static void keep_best(tsr_device_rates *best, const tsr_device_rates *rates)
{
    if (!best->measured) {
        *best = *rates;
        return;
    }
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        best->read_bytes_per_s[i] = fmax(best->read_bytes_per_s[i], rates->read_bytes_per_s[i]);
        best->flops_per_s[i] = fmax(best->flops_per_s[i], rates->flops_per_s[i]);
    }
    best->op_ns = fmin(best->op_ns, rates->op_ns);
    if (small_sync_ns(rates) < small_sync_ns(best)) { /* one line's two numbers */
        best->sync_ns = rates->sync_ns;
        best->sync_bytes_per_s = rates->sync_bytes_per_s;
    }
}

static tsr_status measure_rates(bench *b)
{
    char path[TOOL_PATH];
    for (int round = 0; round < b->options->n_rounds; round++) {
        tsr_device_rates rates[TSR_MAX_DEVICES];
        tsr_status status = tsr_runtime_measure(b->rt, NULL, 0, rates);
        if (status != TSR_OK)
            return status;
        for (int d = 0; d < b->list->n_devices; d++)
            keep_best(&b->rates[d], &rates[d]);
    }
    print_rates(b);
    if (tool_rates_save(b->topo, b->list, b->rates) && tool_cache_path(TOOL_RATES_FILE, path))
        printf("kept in %s for tsr plan and tsr run\n", path);
    else
        fprintf(stderr, "tsr: warning: the rates cannot be kept: %s\n", strerror(errno));
    return TSR_OK;
}

/* The machine, its devices, and what is known of the links between them. */
static tsr_status open_devices(bench *b)
{
    const bench_options *o = b->options;
    const tool_machine_options here = {0};
    tsr_runtime_config config = TSR_RUNTIME_CONFIG_INIT;
    tsr_logger logger = tool_logger(o->verbose);
    tsr_status status = tool_machine_topology(&here, &logger, &b->topo);
    if (status == TSR_OK)
        config.devices = tool_model_devices(&o->model, b->topo);
    if (status == TSR_OK)
        status = tsr_device_list_create(b->topo, config.devices, NULL, &b->list);
    if (status == TSR_OK)
        status = tool_measured_links(b->topo, b->list, &b->links);
    config.topology = b->topo;
    config.logger = logger;
    if (status == TSR_OK)
        status = tsr_runtime_open(&config, &b->rt);
    return status;
}

static int run(bench *b)
{
    tsr_status status = open_devices(b);
    if (status == TSR_OK)
        status = measure_rates(b);
    b->config.rates = b->rates;
    b->config.links = b->links;
    int code = status == TSR_OK ? TOOL_EXIT_OK : tool_fail("bench", status);
    if (code == TOOL_EXIT_OK && b->options->model.model)
        code = bench_splits(b);
    tsr_runtime_close(b->rt);
    tsr_links_destroy(b->links);
    tsr_device_list_destroy(b->list);
    tsr_topology_destroy(b->topo);
    return code;
}

/* After the options were read. Returns TOOL_GO_ON or an exit code, after saying why. */
static int check(const bench_options *o)
{
    if (o->model.tensor_split) {
        fprintf(stderr, "tsr bench: splits are given with --splits, not -ts\n");
        return TOOL_EXIT_USAGE;
    }
    if (o->model.n_ctx > 0 && o->model.n_ctx < o->n_prompt + o->n_decode) {
        fprintf(stderr, "tsr bench: a prompt of %d tokens and %d after it need a larger context than -c %d\n",
                o->n_prompt, o->n_decode, o->model.n_ctx);
        return TOOL_EXIT_USAGE;
    }
    return TOOL_GO_ON;
}

int tsr_cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "links") == 0)
        return tsr_cmd_bench_links(argc - 1, argv + 1);
    bench_options o = {
        .model = TOOL_MODEL_OPTIONS_INIT, .n_ratios = 11, .n_prompt = 64, .n_decode = 16, .n_rounds = 3};
    const tool_option options[] = {
        TOOL_MODEL_OPTION_ROWS(o.model),
        {NULL, "--splits", TOOL_STRING, &o.splits, "LIST",
         "tensor_splits to try, e.g. '1,1;3,1' (default: a sweep)", 0, 0},
        {NULL, "--sweep", TOOL_INT, &o.n_ratios, "N", "splits in the sweep (default 11)", 1, 1000},
        {"-p", "--n-prompt", TOOL_INT, &o.n_prompt, "N", "tokens of the prompt (default 64)", 1, 1 << 20},
        {"-n", "--n-gen", TOOL_INT, &o.n_decode, "N", "tokens decoded after it (default 16)", 1, 1 << 20},
        {"-r", "--repetitions", TOOL_INT, &o.n_rounds, "N", "rounds, of which the best counts (default 3)", 1,
         1000},
        {"-v", "--verbose", TOOL_FLAG, &o.verbose, NULL, "log what the library does", 0, 0},
    };
    const tool_command command = {
        "bench", "measure the devices, and a model at different splits", options, TOOL_COUNT(options),
        "Without -m only the devices are measured. `tsr bench links` measures what they "
        "exchange.\n\nexamples:\n"
        "  tsr bench --devices host:2\n"
        "  tsr bench -m model.gguf --devices cuda:0,cuda:1 --splits '1,1;3,2;2,1'\n"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code == TOOL_GO_ON)
        code = check(&o);
    if (code != TOOL_GO_ON)
        return code;
    float split[TSR_MAX_DEVICES];
    bench b = {.options = &o, .config = TSR_MODEL_CONFIG_INIT};
    if (o.model.model) {
        code = tool_model_options_read("bench", &o.model, split, &b.config);
        /* What is predicted is what is measured: prompts of that length, and decoding after them. */
        if (o.n_prompt < b.config.n_batch)
            b.config.n_batch = o.n_prompt;
        if (o.model.n_ctx == 0)
            b.config.n_ctx = 2 * (int64_t)o.n_prompt + o.n_decode;
        if (code != TOOL_GO_ON)
            return code;
    }
    return run(&b);
}
