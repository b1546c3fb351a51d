/* tsr bench: how fast the devices are, and how fast a model is at different splits. A split is a view of the
 * file, so on host devices trying another one costs milliseconds. */
#include "tsr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tsr/gguf.h>
#include <tsr/session.h>

#include "format.h"
#include "model_options.h"
#include "options.h"
#include "rates_file.h"

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
    tool_table table;
    double best_decode; /* tokens/s */
    char best_text[96];
} bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- rates ----------------------------------------------------------------------------------- */

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

static tsr_status measure_rates(bench *b)
{
    char path[TOOL_PATH];
    tsr_status status = tsr_runtime_measure(b->rt, NULL, 0, b->rates);
    if (status != TSR_OK)
        return status;
    print_rates(b);
    if (tool_rates_save(b->topo, b->list, b->rates) && tool_rates_path(path))
        printf("kept in %s for tsr plan and tsr run\n", path);
    else
        fprintf(stderr, "tsr: warning: the rates cannot be kept: %s\n", strerror(errno));
    return TSR_OK;
}

/* ---- one split ------------------------------------------------------------------------------- */

typedef struct speeds {
    double prompt, decode; /* seconds per prompt, per token */
} speeds;

/* The best of n_rounds; tokens are any, as no kernel's time depends on them. */
static tsr_status time_session(const bench *b, tsr_session *session, float *logits, speeds *out)
{
    const bench_options *o = b->options;
    tsr_status status = TSR_OK;
    int32_t *tokens = calloc((size_t)o->n_prompt, sizeof *tokens);
    tsr_batch prompt = {.n_tokens = o->n_prompt, .tokens = tokens}, one = {.n_tokens = 1, .tokens = tokens};
    *out = (speeds){1e30, 1e30};
    if (!tokens)
        return TSR_ERR_MEMORY;
    for (int round = 0; round < o->n_rounds && status == TSR_OK; round++) {
        status = tsr_session_trim(session, 0, 0);
        double start = now();
        if (status == TSR_OK)
            status = tsr_session_decode(session, &prompt, logits);
        double between = now();
        for (int i = 0; i < o->n_decode && status == TSR_OK; i++)
            status = tsr_session_decode(session, &one, logits);
        double end = now();
        out->prompt = out->prompt < between - start ? out->prompt : between - start;
        out->decode =
            out->decode < (end - between) / o->n_decode ? out->decode : (end - between) / o->n_decode;
    }
    free(tokens);
    return status;
}

/* "-" where the planner knows no rates. */
static void add_predicted(bench *b, const tsr_plan_phase *phase)
{
    if (phase->total_ns > 0)
        tool_table_cell(&b->table, "%.1f", (double)phase->n_tokens * 1e9 / phase->total_ns);
    else
        tool_table_cell(&b->table, "-");
}

static void add_row(bench *b, const char *text, const tsr_plan *plan, const speeds *measured)
{
    tsr_plan_times times;
    double decode = 1 / measured->decode, prompt = b->options->n_prompt / measured->prompt;
    tsr_plan_predict(plan, &times);
    tool_table_cell(&b->table, "%s", text);
    tool_table_cell(&b->table, "%.1f", decode);
    add_predicted(b, &times.decode);
    tool_table_cell(&b->table, "%.1f", prompt);
    add_predicted(b, &times.prompt);
    if (decode > b->best_decode) {
        b->best_decode = decode;
        snprintf(b->best_text, sizeof b->best_text, "%s", text);
    }
}

/* `split` NULL: the planner's. */
static tsr_status try_split(bench *b, const char *text, const float *split)
{
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    tsr_model_info info;
    speeds measured;
    float *logits = NULL;
    tsr_model_config config = b->config;
    config.tensor_split = split;
    config.n_tensor_split = split ? b->list->n_devices : 0;
    tsr_status status = tsr_model_open(b->rt, b->options->model.model, &config, &model);
    if (status == TSR_OK)
        status = tsr_session_create(model, &session);
    if (status == TSR_OK) {
        tsr_model_describe(model, &info);
        logits = calloc((size_t)info.n_vocab, sizeof *logits);
        status = logits ? time_session(b, session, logits, &measured) : TSR_ERR_MEMORY;
    }
    if (status == TSR_OK)
        add_row(b, text, tsr_model_plan(model), &measured);
    free(logits);
    tsr_session_destroy(session);
    tsr_model_close(model);
    return status;
}

/* ---- all splits ------------------------------------------------------------------------------ */

static tsr_status try_listed(bench *b)
{
    tsr_status status = TSR_OK;
    for (const char *at = b->options->splits; *at && status == TSR_OK;) {
        char text[96];
        float split[TSR_MAX_DEVICES] = {0};
        int n;
        size_t length = strcspn(at, ";");
        snprintf(text, sizeof text, "%.*s", (int)length, at);
        status = tsr_split_parse(text, split, b->list->n_devices, &n);
        if (status == TSR_OK)
            status = try_split(b, text, split);
        at += length + (at[length] == ';');
    }
    return status;
}

/* Shares of the first device from little to much, the others alike. */
static tsr_status try_sweep(bench *b)
{
    tsr_status status = TSR_OK;
    int n_devices = b->list->n_devices, n = b->options->n_ratios;
    for (int i = 1; i <= n && n_devices > 1 && status == TSR_OK; i++) {
        char text[96];
        float split[TSR_MAX_DEVICES];
        split[0] = (float)i / (float)(n + 1);
        for (int d = 1; d < n_devices; d++)
            split[d] = (1 - split[0]) / (float)(n_devices - 1);
        snprintf(text, sizeof text, "%.1f %% on %s", 100 * (double)split[0], b->list->devices[0].name);
        status = try_split(b, text, split);
    }
    return status;
}

static tsr_status try_splits(bench *b)
{
    tsr_status status;
    tool_table_header(
        &b->table, 5,
        (const char *[]){"split", "decode tokens/s", "predicted", "prompt tokens/s", "predicted"});
    status = try_split(b, b->list->n_devices > 1 ? "the planner's" : "one device", NULL);
    if (status == TSR_OK)
        status = b->options->splits ? try_listed(b) : try_sweep(b);
    printf("\n");
    tool_table_print(&b->table, stdout);
    if (status == TSR_OK && b->list->n_devices > 1)
        printf("\nfastest measured: %s, %.1f tokens/s\n", b->best_text, b->best_decode);
    return status;
}

static tsr_status run(bench *b)
{
    const bench_options *o = b->options;
    tsr_runtime_config config = TSR_RUNTIME_CONFIG_INIT;
    tsr_topology_config topo_config = TSR_TOPOLOGY_CONFIG_INIT;
    tsr_logger logger = tool_logger(o->verbose);
    topo_config.logger = logger;
    tsr_status status = tsr_topology_discover(&topo_config, &b->topo);
    if (status == TSR_OK)
        status = tsr_device_list_create(b->topo, o->model.devices, NULL, &b->list);
    config.devices = o->model.devices;
    config.topology = b->topo;
    config.logger = logger;
    if (status == TSR_OK)
        status = tsr_runtime_open(&config, &b->rt);
    if (status == TSR_OK)
        status = measure_rates(b);
    b->config.rates = b->rates;
    if (status == TSR_OK && o->model.model)
        status = try_splits(b);
    tsr_runtime_close(b->rt);
    tsr_device_list_destroy(b->list);
    tsr_topology_destroy(b->topo);
    tool_table_free(&b->table);
    return status;
}

int tsr_cmd_bench(int argc, char **argv)
{
    bench_options o = {
        .model = TOOL_MODEL_OPTIONS_INIT, .n_ratios = 9, .n_prompt = 64, .n_decode = 16, .n_rounds = 3};
    const tool_option options[] = {
        TOOL_MODEL_OPTION_ROWS(o.model),
        {NULL, "--splits", TOOL_STRING, &o.splits, "LIST",
         "tensor_splits to try, e.g. '1,1;3,1' (default: a sweep)", 0, 0},
        {NULL, "--ratios", TOOL_INT, &o.n_ratios, "N", "splits in the sweep (default 9)", 1, 1000},
        {"-p", "--n-prompt", TOOL_INT, &o.n_prompt, "N", "tokens of the prompt (default 64)", 1, 1 << 20},
        {"-n", "--n-gen", TOOL_INT, &o.n_decode, "N", "tokens decoded after it (default 16)", 1, 1 << 20},
        {"-r", "--repetitions", TOOL_INT, &o.n_rounds, "N", "rounds, of which the best counts (default 3)", 1,
         1000},
        {"-v", "--verbose", TOOL_FLAG, &o.verbose, NULL, "log what the library does", 0, 0},
    };
    const tool_command command = {
        "bench", "measure the devices, and a model at different splits", options, TOOL_COUNT(options),
        "Without -m only the devices are measured.\n\nexamples:\n"
        "  tsr bench --devices host:2\n"
        "  tsr bench -m model.gguf --devices cuda:0,cuda:1 --splits '1,1;3,2;2,1'\n"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code != TOOL_GO_ON)
        return code;
    float split[TSR_MAX_DEVICES];
    bench b = {.options = &o, .config = TSR_MODEL_CONFIG_INIT};
    if (o.model.tensor_split) {
        fprintf(stderr, "tsr bench: splits are given with --splits, not -ts\n");
        return TOOL_EXIT_USAGE;
    }
    if (o.model.n_ctx > 0 && o.model.n_ctx < o.n_prompt + o.n_decode) {
        fprintf(stderr, "tsr bench: a prompt of %d tokens and %d after it need a larger context than -c %d\n",
                o.n_prompt, o.n_decode, o.model.n_ctx);
        return TOOL_EXIT_USAGE;
    }
    if (o.model.model) {
        code = tool_model_options_read("bench", &o.model, split, &b.config);
        if (o.n_prompt < b.config.n_batch)
            b.config.n_batch = o.n_prompt; /* what is predicted is what is measured */
        if (code != TOOL_GO_ON)
            return code;
    }
    tsr_status status = run(&b);
    return status == TSR_OK ? TOOL_EXIT_OK : tool_fail("bench", status);
}
