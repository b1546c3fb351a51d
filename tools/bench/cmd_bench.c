/* tsr bench: the rates of the devices, and a model at different splits. */
#include "tsr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/output.h"
#include "interrupt.h"
#include "json.h"
#include "machine_options.h"
#include "measured.h"
#include "replace_file.h"
#include "trace_file.h"

/* -- opening -- */

static tsr_status open_devices(bench *b)
{
    const bench_options *o = b->options;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = tool_model_devices(&o->model, b->machine.topo);
    config.topology = b->machine.topo;
    config.logger = tool_logger(o->verbose);
    config.collectives = o->collectives;
    config.library_tokens = o->library_tokens;
    config.transport = b->processes.transport;
    config.network = o->network;
    tsr_status status = tsr_runtime_open(&config, &b->engine.rt);
    if (status == TSR_OK)
        status = bench_machine_list(&b->machine, b->engine.rt, &b->processes, config.devices);
    if (status == TSR_OK && !b->processes.transport)
        status = tool_measured_links(b->machine.topo, b->machine.own, &b->links);
    b->engine.list = b->machine.list;
    b->engine.processes = &b->processes;
    return status;
}

static void close_all(bench *b)
{
    tsr_runtime *rt = b->engine.rt;
    bench_engine_close(&b->engine);
    tsr_runtime_close(rt);
    tsr_links_destroy(b->links);
    bench_report_free(&b->report);
}

/* -- results -- */

typedef bool print_fn(const bench_report *report, FILE *out);

static bool print_json(const bench_report *report, FILE *out)
{
    json_t *root = bench_report_json(report);
    errno = ENOMEM;
    bool good =
        root && json_dumpf(root, out, JSON_INDENT(2) | JSON_PRESERVE_ORDER) == 0 && fputc('\n', out) != EOF;
    json_decref(root);
    return good;
}

static print_fn *printer(const char *name)
{
    static const struct {
        const char *name;
        print_fn *print;
    } printers[] = {{"table", bench_print_table},
                    {"md", bench_print_markdown},
                    {"csv", bench_print_csv},
                    {"json", print_json}};
    for (int i = 0; i < TOOL_COUNT(printers); i++)
        if (strcmp(printers[i].name, name) == 0)
            return printers[i].print;
    return NULL;
}

static int fail_file(const char *path)
{
    fprintf(stderr, "tsr bench: %s cannot be written: %s\n", path, strerror(errno));
    return TOOL_EXIT_FAILED;
}

/* The files to write; NULL as a path: not requested. */
typedef struct output_file {
    const char *path;
    print_fn *print;
    const bench_report *report;
} output_file;

enum { N_FILES = 3 };

static void list_files(const bench_options *o, const bench_report *report, output_file files[N_FILES])
{
    files[0] = (output_file){o->save, print_json, report};
    files[1] = (output_file){o->plot, bench_print_svg, report};
    files[2] = (output_file){o->html, bench_print_html, report};
}

static bool write_file(FILE *out, const void *user)
{
    const output_file *file = user;
    return file->print(file->report, out);
}

/* Measuring takes minutes, so paths are tried before. TOOL_GO_ON or an exit code. */
static int try_files(const bench_options *o)
{
    output_file files[N_FILES];
    list_files(o, NULL, files);
    for (int i = 0; i < N_FILES; i++)
        if (files[i].path && !tool_file_can_replace(files[i].path))
            return fail_file(files[i].path);
    return tool_trace_check(&(tool_trace){.command = "bench", .path = o->trace});
}

/* One output that fails does not keep the others from being written. */
static int write_results(const bench_options *o, const bench_report *report, const bench_report *before)
{
    output_file files[N_FILES];
    int code = report->interrupted ? TOOL_EXIT_INTERRUPTED : TOOL_EXIT_OK;
    if (!printer(o->output)(report, stdout))
        code = fail_file("standard output");
    if (o->compare)
        bench_print_comparison(report, before, o->compare, strcmp(o->output, "table") ? stderr : stdout);
    list_files(o, report, files);
    for (int i = 0; i < N_FILES; i++)
        if (files[i].path && !tool_file_replace(files[i].path, write_file, &files[i]))
            code = fail_file(files[i].path);
    return code;
}

/* -- a model -- */

/* Context for the longest test, unless the user sets it. */
static void set_context(bench *b)
{
    int longest = 0, prompt = 0;
    for (int t = 0; t < b->report.n_tests; t++) {
        const bench_test *test = &b->report.tests[t];
        int tokens = test->depth + bench_test_tokens(test) + 1;
        longest = tokens > longest ? tokens : longest;
        prompt = test->n_prompt > prompt ? test->n_prompt : prompt;
    }
    if (b->engine.config.session.n_ctx == 0) {
        b->engine.config.session.n_ctx = longest;
        fprintf(stderr, "context: %d tokens, for the longest test; -c N sets another\n", longest);
    }
    if (prompt && prompt < b->engine.config.session.n_batch)
        b->engine.config.session.n_batch = prompt;
}

/* Check the request before anything is measured, since measuring takes long. */
static int open_model(bench *b)
{
    tsr_gguf_config header = tsr_gguf_config_default();
    header.header_only = true;
    b->engine.path = b->options->model.model;
    tsr_status status = tsr_gguf_open(b->engine.path, &header, &b->engine.gguf);
    return status == TSR_OK ? bench_rows_make(b) : tool_fail("bench", status);
}

static int bench_model(bench *b, const bench_synthetic *synthetic, const bench_report *before)
{
    const bench_options *o = b->options;
    b->engine.config.plan.rates = b->rates;
    b->engine.config.plan.links = b->links;
    set_context(b);
    tsr_status status = bench_describe_environment(b);
    if (status == TSR_OK)
        status = bench_measure(b, 0);
    if (status == TSR_OK && o->ratios && strcmp(o->ratios, "auto") == 0 && b->machine.list->n_devices > 1)
        status = bench_search(b);
    const int of_trace = status == TSR_OK ? bench_trace(b) : TOOL_EXIT_OK; /* of the whole model */
    if (status == TSR_OK && synthetic->n_layers_half)
        status = bench_extrapolate(b, synthetic);
    tool_progress_end(&b->loading);
    if (status != TSR_OK)
        return tool_fail("bench", status);
    bench_report_judge(&b->report);
    const bool writes = tool_processes_is_first(&b->processes);
    const int code = writes ? write_results(o, &b->report, before) : TOOL_EXIT_OK;
    return code == TOOL_EXIT_OK ? of_trace : code;
}

/* Devices are opened before a synthetic model is made, since that takes seconds. */
static int measure(bench *b, bench_synthetic *synthetic, const bench_report *before)
{
    bool has_model = b->options->model.model != NULL;
    tsr_status status = open_devices(b);
    int code = status == TSR_OK ? TOOL_GO_ON : tool_fail("bench", status);
    if (code == TOOL_GO_ON && b->options->model.synthetic)
        code = bench_synthetic_make(synthetic);
    if (code == TOOL_GO_ON && has_model)
        code = open_model(b);
    if (code == TOOL_GO_ON && (status = bench_devices(b)) != TSR_OK)
        code = tool_fail("bench", status);
    if (code == TOOL_GO_ON)
        code = has_model ? bench_model(b, synthetic, before) : TOOL_EXIT_OK;
    close_all(b);
    return code;
}

/* Show a saved report in another format. */
static int show(const bench_options *o, const bench_report *before)
{
    bench_report report = {0};
    int code = TOOL_EXIT_FAILED;
    if (bench_report_load(o->show, &report))
        code = write_results(o, &report, before);
    bench_report_free(&report);
    return code;
}

/* What the first process does before any measures. TOOL_GO_ON or an exit code, in all. */
static int prepare(const bench *b, bench_report *before)
{
    const bench_options *o = b->options;
    int32_t code = TOOL_GO_ON;
    if (tool_processes_is_first(&b->processes)) {
        code = try_files(o);
        if (code == TOOL_GO_ON && o->compare && !bench_report_load(o->compare, before))
            code = TOOL_EXIT_FAILED;
    }
    return tool_processes_share(&b->processes, 0, &code, sizeof code) ? code : TOOL_EXIT_FAILED;
}

static int run(bench *b, bench_synthetic *synthetic)
{
    const bench_options *o = b->options;
    bench_report before = {0};
    int code = o->show ? TOOL_GO_ON : bench_machine_find("bench", o->verbose, &b->machine);
    if (code == TOOL_GO_ON)
        code = tool_processes_join("bench", o->mpi, &b->processes);
    if (code == TOOL_GO_ON)
        code = prepare(b, &before);
    if (code == TOOL_GO_ON && o->mpi)
        tool_hear_interrupts_together(tool_processes_is_first(&b->processes), true, NULL);
    else if (code == TOOL_GO_ON)
        tool_hear_interrupts(true, true, NULL);
    if (code == TOOL_GO_ON)
        code = o->show ? show(o, &before) : measure(b, synthetic, &before);
    bench_report_free(&before);
    bench_machine_free(&b->machine);
    return code;
}

/* -- the request -- */

static int refuse(const char *sentence)
{
    fprintf(stderr, "tsr bench: %s\n", sentence);
    return TOOL_EXIT_USAGE;
}

/* Checks after parsing the options. Returns TOOL_GO_ON or an exit code, after an error message. */
static int check(const bench_options *o, const bench_report *report)
{
    if (o->model.tensor_split && o->ratios)
        return refuse("-ts is one split and --ratios are several; give only one of the two");
    if (!printer(o->output))
        return refuse("-o takes table, md, csv or json");
    if (o->trace && o->show)
        return refuse("--show measures nothing: leave out --trace");
    if (o->mpi && o->show)
        return refuse("--show measures nothing: leave out --mpi");
    if (o->network && !o->mpi)
        return refuse(TOOL_NETWORK_ALONE);
    if (o->model.model && o->show)
        return refuse("--show measures nothing: leave out -m");
    if (o->model.model && o->model.synthetic)
        return refuse("-m and --synthetic each name a model; give only one");
    if (o->stored_rates && !o->model.model && !o->model.synthetic)
        return refuse("--stored-rates measures no device: add -m or --synthetic");
    if (o->n_layers && !o->model.synthetic)
        return refuse("--layers needs --synthetic");
    if (!o->model.model && !o->model.synthetic && !o->show &&
        (o->plot || o->html || o->save || o->compare || o->trace || strcmp(o->output, "table") != 0))
        return refuse("a report needs a model: add -m or --synthetic, or show a saved report with --show");
    for (int t = 0; t < report->n_tests; t++) {
        int tokens = report->tests[t].depth + bench_test_tokens(&report->tests[t]) + 1;
        if (o->model.n_ctx > 0 && o->model.n_ctx < tokens) {
            fprintf(stderr, "tsr bench: %s needs a context of %d tokens, more than -c %d\n",
                    report->tests[t].name, tokens, o->model.n_ctx);
            return TOOL_EXIT_USAGE;
        }
    }
    return TOOL_GO_ON;
}

/* The planner's split is for what is measured. */
static void set_workload(const bench_report *report, tsr_model_config *config)
{
    config->workload.n_prompt = config->workload.n_new = 0;
    for (int t = 0; t < report->n_tests; t++) {
        config->workload.n_prompt += report->tests[t].n_prompt;
        config->workload.n_new += report->tests[t].n_gen;
    }
}

/* After parsing the options: check them, and fill *b and, for a synthetic model, *synthetic. The config in *b
 * borrows split[]. Returns TOOL_GO_ON or an exit code, after an error message. */
static int read_request(bench_options *o, float split[TSR_MAX_DEVICES], bench *b, bench_synthetic *synthetic)
{
    int code = bench_tests_read(o, &b->report);
    if (code == TOOL_GO_ON)
        code = check(o, &b->report);
    if (code == TOOL_GO_ON && o->model.synthetic)
        code = bench_synthetic_read(o, synthetic);
    if (code == TOOL_GO_ON && o->model.model)
        code = tool_model_options_read("bench", &o->model, split, &b->engine.config);
    set_workload(&b->report, &b->engine.config);
    b->loading = (tool_progress){.what = "loading", .quiet = o->quiet};
    b->engine.config.load.progress = tool_progress_show;
    b->engine.config.load.progress_user = &b->loading;
    return code;
}

int tsr_cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "links") == 0)
        return tsr_cmd_bench_links(argc - 1, argv + 1);
    bench_options o = {.model = TOOL_MODEL_OPTIONS_INIT, .n_rounds = 5, .budget_s = 120, .output = "table"};
    const tool_option options[] = {
        TOOL_MODEL_ROW(o.model),
        TOOL_SYNTHETIC_ROW(o.model),
        TOOL_MODEL_OPTION_ROWS(o.model),
        TOOL_HEADING_ROW("kernels, collectives and processes"),
        {NULL, "--collectives", TOOL_STRING, &o.collectives, "KIND",
         "between GPUs: peer, pinned, nccl, staged (default auto: the fastest measured)", 0, 0,
         TOOL_COLLECTIVES},
        {NULL, "--library-tokens", TOOL_INT, &o.library_tokens, "N",
         "fewest tokens that cuBLASLt multiplies, -1 = never (default 32)", -1, INT32_MAX},
        TOOL_PROCESS_ROWS(o),
        TOOL_HEADING_ROW("what is measured"),
        {NULL, "--layers", TOOL_INT, &o.n_layers, "N",
         "use N layers of the synthetic model and extrapolate to all", 2, 10000},
        {NULL, "--ratios", TOOL_STRING, &o.ratios, "WHICH",
         "sweep (default; sweep:N), auto (search the best), or a list like '1,1;3,1'", 0, 0, "sweep auto"},
        {"-p", "--n-prompt", TOOL_STRING, &o.prompts, "N,...",
         "tokens of prompts (default 512); 0: no prompts", 0, 0},
        {"-n", "--n-gen", TOOL_STRING, &o.gens, "N,...", "tokens generated (default 128); 0: no generation",
         0, 0},
        {"-d", "--n-depth", TOOL_STRING, &o.depths, "N,...",
         "tokens before the prompt or the generation (default 0)", 0, 0},
        {"-r", "--repetitions", TOOL_INT, &o.n_rounds, "N", "of every test (default 5)", 1,
         BENCH_MAX_REPETITIONS},
        {NULL, "--budget", TOOL_INT, &o.budget_s, "SECONDS",
         "reduce -r, and -p and -n where not given, to this (default 120; 0: no limit)", 0, 1 << 20},
        {NULL, "--keep-rates", TOOL_FLAG, &o.keep_rates, NULL,
         "store measured rates even if other processes kept the machine busy", 0, 0},
        {NULL, "--stored-rates", TOOL_FLAG, &o.stored_rates, NULL,
         "predict by rates stored earlier, or guessed, and measure none: for profilers", 0, 0},
        TOOL_HEADING_ROW("reports"),
        {"-o", "--output", TOOL_STRING, &o.output, "FORMAT", "table (default), md, csv or json", 0, 0,
         "table md csv json"},
        {NULL, "--save", TOOL_STRING, &o.save, "FILE", "write the JSON to a file, too", 0, 0},
        {NULL, "--plot", TOOL_STRING, &o.plot, "FILE", "draw speed against ratio (SVG)", 0, 0},
        {NULL, "--html", TOOL_STRING, &o.html, "FILE", "write a page with tables and pictures", 0, 0},
        {NULL, "--show", TOOL_STRING, &o.show, "FILE", "measure nothing, show the JSON of an earlier run", 0,
         0},
        {NULL, "--compare", TOOL_STRING, &o.compare, "FILE", "compare with the JSON of an earlier run", 0, 0},
        {NULL, "--trace", TOOL_STRING, &o.trace, "FILE",
         "trace each test and split once more: JSON for ui.perfetto.dev, chrome://tracing", 0, 0},
        {"-v", "--verbose", TOOL_FLAG, &o.verbose, NULL, "log what the library does", 0, 0},
        {"-q", "--quiet", TOOL_FLAG, &o.quiet, NULL, "show no progress", 0, 0},
    };
    const tool_command command = {
        .name = "bench",
        .summary = TOOL_BENCH_SUMMARY,
        .options = options,
        .n_options = TOOL_COUNT(options),
        .description =
            "Without `-m` only the devices are measured. `tsr bench links` measures transfers between them. "
            "Ctrl-C stops and reports what has been measured.",
        .examples = "tsr bench --devices host:2\n"
                    "tsr bench -m model.gguf --devices cuda:0,cuda:1 --ratios '1,1;3,2;2,1'\n"
                    "tsr bench -m model.gguf --devices cuda --ratios auto -d 0,4096 --html r.html",
        .pages = "benchmarking devices splitting offload precision processes"};
    float split[TSR_MAX_DEVICES];
    bench_synthetic synthetic = {0};
    bench b = {.options = &o, .engine.config = tsr_model_config_default()};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code == TOOL_GO_ON)
        code = read_request(&o, split, &b, &synthetic);
    return code == TOOL_GO_ON ? run(&b, &synthetic) : code;
}
