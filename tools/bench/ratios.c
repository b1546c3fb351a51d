/* The tests to run, and the divisions of the model to run them with. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/split.h>

#include "bench/bench.h"
#include "tsr.h"

enum { SWEEP_RATIOS = 9, MOST_RATIOS = 1000, MOST_NUMBERS = 8, MOST_TOKENS = 1 << 20 };

/* -- tests -- */

typedef struct number_list {
    int n;
    int values[MOST_NUMBERS];
} number_list;

/* Parse "0,4096" into numbers of at least `least`. */
static int read_numbers(const char *option, const char *text, int least, number_list *out)
{
    out->n = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long value = strtol(at, &end, 10);
        if (end == at || errno || value < least || value > MOST_TOKENS || (*end && *end != ',') ||
            out->n == MOST_NUMBERS) {
            fprintf(stderr,
                    "tsr bench: %s takes up to %d numbers from %d to %d with commas between, not '%s'\n",
                    option, MOST_NUMBERS, least, MOST_TOKENS, text);
            return TOOL_EXIT_USAGE;
        }
        out->values[out->n++] = (int)value;
        if (!*end)
            return TOOL_GO_ON;
        at = end;
    }
}

/* Number of tokens 0: no tests of this kind. */
static int add_tests(bench_report *report, const number_list *sizes, bool prompt, int depth)
{
    for (int i = 0; i < sizes->n; i++) {
        if (sizes->values[i] == 0)
            continue;
        if (report->n_tests == BENCH_MAX_TESTS) {
            fprintf(stderr, "tsr bench: more than %d tests; give fewer numbers with -p, -n and -d\n",
                    BENCH_MAX_TESTS);
            return TOOL_EXIT_USAGE;
        }
        bench_test *test = &report->tests[report->n_tests++];
        *(prompt ? &test->n_prompt : &test->n_gen) = sizes->values[i];
        test->depth = depth;
        bench_test_name(test);
    }
    return TOOL_GO_ON;
}

static int by_size(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* -p or -n; without it, the tokens of the workload. */
static int read_sizes(const char *option, const char *text, int of_workload, number_list *out)
{
    *out = (number_list){.n = 1, .values = {of_workload}};
    return text ? read_numbers(option, text, 0, out) : TOOL_GO_ON;
}

int bench_tests_read(const bench_options *options, bench_report *report)
{
    number_list prompts, gens, depths;
    tsr_model_config config = tsr_model_config_default();
    int code = tool_workload_read("bench", options->model.workload, &config);
    if (code == TOOL_GO_ON && options->model.workload && (options->prompts || options->gens)) {
        fprintf(stderr, "tsr bench: --for and -p, -n both say how many tokens are measured; give only one\n");
        return TOOL_EXIT_USAGE;
    }
    if (code == TOOL_GO_ON &&
        (config.workload.n_prompt > MOST_TOKENS || config.workload.n_new > MOST_TOKENS)) {
        fprintf(stderr, "tsr bench: --for %s: at most %d tokens of a prompt and of its answer are measured\n",
                options->model.workload, MOST_TOKENS);
        return TOOL_EXIT_USAGE;
    }
    if (code == TOOL_GO_ON)
        code = read_sizes("-p", options->prompts, config.workload.n_prompt, &prompts);
    if (code == TOOL_GO_ON)
        code = read_sizes("-n", options->gens, config.workload.n_new, &gens);
    if (code == TOOL_GO_ON)
        code = read_numbers("-d", options->depths ? options->depths : "0", 0, &depths);
    if (code != TOOL_GO_ON)
        return code;
    /* ascending, so that every depth is reached from the previous one */
    qsort(depths.values, (size_t)depths.n, sizeof *depths.values, by_size);
    for (int d = 0; d < depths.n && code == TOOL_GO_ON; d++) {
        code = add_tests(report, &prompts, true, depths.values[d]);
        if (code == TOOL_GO_ON)
            code = add_tests(report, &gens, false, depths.values[d]);
    }
    if (code == TOOL_GO_ON && report->n_tests == 0) {
        fprintf(stderr, "tsr bench: -p 0 and -n 0 leave nothing to measure\n");
        code = TOOL_EXIT_USAGE;
    }
    return code;
}

/* -- divisions -- */

static int no_memory(void)
{
    fprintf(stderr, "tsr bench: out of memory for results\n");
    return TOOL_EXIT_FAILED;
}

/* The planner's row has no split yet. */
static int add_row(bench *b, bench_row_kind kind, const float *split)
{
    bench_row *row = bench_report_add_row(&b->report);
    if (!row)
        return no_memory();
    row->kind = kind;
    if (split) {
        memcpy(row->split, split, (size_t)b->machine.list->n_devices * sizeof *split);
        bench_split_round(row->split, b->machine.list->n_devices, row->text);
    }
    return TOOL_GO_ON;
}

static int add_even(bench *b)
{
    float split[TSR_MAX_DEVICES];
    for (int d = 0; d < b->machine.list->n_devices; d++)
        split[d] = 1;
    return add_row(b, BENCH_ROW_EVEN, split);
}

/* The default of most engines. Nothing if a device has no known capacity. */
static int add_by_memory(bench *b)
{
    float split[TSR_MAX_DEVICES];
    bool even = true;
    for (int d = 0; d < b->machine.list->n_devices; d++) {
        const tsr_device_desc *desc = &b->machine.list->devices[d];
        uint64_t bytes = desc->memory_usable_bytes ? desc->memory_usable_bytes
                         : desc->mem_cap_bytes     ? desc->mem_cap_bytes
                                                   : desc->memory_total_bytes;
        if (!bytes)
            return TOOL_GO_ON;
        split[d] = (float)bytes;
        even = even && split[d] == split[0];
    }
    return even ? TOOL_GO_ON : add_row(b, BENCH_ROW_BY_MEMORY, split);
}

/* Shares of the first device from small to large, the others equal. */
static int add_sweep(bench *b, int n_ratios)
{
    int n_devices = b->machine.list->n_devices, code = TOOL_GO_ON;
    float split[TSR_MAX_DEVICES];
    for (int i = 1; i <= n_ratios && code == TOOL_GO_ON; i++) {
        split[0] = (float)i;
        for (int d = 1; d < n_devices; d++)
            split[d] = (float)(n_ratios + 1 - i) / (float)(n_devices - 1);
        bool even = (n_ratios + 1) == i * n_devices;
        code = add_row(b, even ? BENCH_ROW_EVEN : BENCH_ROW_GIVEN, split);
    }
    return code;
}

/* One split of a list: as given, in percent if a few digits are enough. */
static int add_given(bench *b, const char *text)
{
    float split[TSR_MAX_DEVICES] = {0};
    int n_devices = b->machine.list->n_devices, n_parsed;
    double sum = 0;
    if (tsr_split_parse(text, split, n_devices, &n_parsed) != TSR_OK)
        return tool_fail("bench", TSR_ERR_INVALID);
    for (int d = 0; d < n_devices; d++)
        sum += (double)split[d];
    if (!(sum > 0)) {
        fprintf(stderr, "tsr bench: '%s' gives no device a share; at least one number must be above 0\n",
                text);
        return TOOL_EXIT_USAGE;
    }
    int code = add_row(b, BENCH_ROW_GIVEN, NULL);
    if (code != TOOL_GO_ON)
        return code;
    bench_row *row = b->report.rows[b->report.n_rows - 1];
    memcpy(row->split, split, sizeof split);
    if (!bench_split_text(split, n_devices, row->text))
        snprintf(row->text, sizeof row->text, "%s", text);
    return TOOL_GO_ON;
}

/* "1,1;3,1" */
static int add_list(bench *b, const char *list)
{
    int code = TOOL_GO_ON;
    for (const char *at = list; *at && code == TOOL_GO_ON;) {
        char text[BENCH_SPLIT_TEXT];
        size_t length = strcspn(at, ";");
        if (length >= sizeof text) {
            fprintf(stderr,
                    "tsr bench: a split of --ratios has %zu characters, more than %d; give fewer digits\n",
                    length, (int)sizeof text - 1);
            return TOOL_EXIT_USAGE;
        }
        snprintf(text, sizeof text, "%.*s", (int)length, at);
        code = add_given(b, text);
        at += length + (at[length] == ';');
    }
    return code;
}

static int sweep_size(const char *text, int *n_out)
{
    char *end;
    long n = text[5] == ':' ? strtol(text + 6, &end, 10) : SWEEP_RATIOS;
    if (text[5] == ':' && (end == text + 6 || *end || n < 1 || n > MOST_RATIOS)) {
        fprintf(stderr, "tsr bench: --ratios sweep:N takes 1 to %d, not '%s'\n", MOST_RATIOS, text + 6);
        return TOOL_EXIT_USAGE;
    }
    *n_out = (int)n;
    return TOOL_GO_ON;
}

int bench_rows_make(bench *b)
{
    const char *ratios = b->options->ratios ? b->options->ratios : "sweep";
    const bool is_sweep = strncmp(ratios, "sweep", 5) == 0 && (!ratios[5] || ratios[5] == ':');
    int n_ratios, code = add_row(b, BENCH_ROW_PLANNED, NULL);
    if (code == TOOL_GO_ON && b->options->model.tensor_split)
        return add_given(b, b->options->model.tensor_split);
    if (code != TOOL_GO_ON || (b->machine.list->n_devices == 1 && !b->options->ratios))
        return code;
    if (!is_sweep && strcmp(ratios, "auto") != 0)
        return add_list(b, ratios);
    if (b->machine.list->n_devices == 1) {
        fprintf(stderr,
                "tsr bench: --ratios %s needs two devices or more, and %s is the only one; see --devices\n",
                ratios, b->machine.list->devices[0].name);
        return TOOL_EXIT_USAGE;
    }
    if (is_sweep) {
        code = sweep_size(ratios, &n_ratios);
        return code == TOOL_GO_ON ? add_sweep(b, n_ratios) : code;
    }
    code = add_even(b);
    return code == TOOL_GO_ON ? add_by_memory(b) : code;
}
