/* tsr bench links: measured times of transfers and all-reduces between devices, with the predictions of
 * the link model from the description of the machine. */
#include "tsr.h"

#include <errno.h>
#include <string.h>

#include <tsr/bytes.h>
#include <tsr/memory.h>
#include <tsr/rates.h>

#include "bench/bench.h"
#include "cache_file.h"
#include "format.h"
#include "json.h"
#include "links_file.h"
#include "machine_options.h"
#include "options.h"
#include "text.h"

typedef struct links_options {
    const char *devices, *collectives;
    bool as_json, verbose, keep_rates;
} links_options;

/* Two models of the same links: from the description, and with measured values. */
typedef struct links_bench {
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_links *predicted, *measured;
    tsr_device_rates rates[TSR_MAX_DEVICES];
    int n_collectives;
    tsr_collectives_row collectives[TSR_COLLECTIVES_MAX_ROWS];
    bool may_keep, kept;
} links_bench;

static const tool_processes alone = {.command = "bench links"};
static const uint64_t small_bytes = 4096; /* the smallest measured size */

/* -- tables -- */

/* Both numbers are devices of the list, so the call cannot fail. */
static tsr_link link_of(const tsr_links *links, int from, int to)
{
    tsr_link link = {0};
    (void)!tsr_links_pair(links, from, to, &link);
    return link;
}

/* Transfers are measured in alternating directions, so both have the same value. */
static void print_pairs(const links_bench *b)
{
    tool_table table = {0};
    tool_table_header(&table, 9,
                      (const char *[]){"from", "to", "by", "GB/s", "pred.", "transfer us", "pred.",
                                       "all-reduce us", "pred."});
    for (int x = 0; x < b->list->n_devices; x++) {
        for (int y = x + 1; y < b->list->n_devices; y++) {
            tsr_link is = link_of(b->measured, x, y), was = link_of(b->predicted, x, y);
            uint64_t both = UINT64_C(1) << x | UINT64_C(1) << y;
            tool_table_cell(&table, "%s", b->list->devices[x].name);
            tool_table_cell(&table, "%s", b->list->devices[y].name);
            tool_table_cell(&table, "%s", tsr_link_kind_name(was.kind));
            tool_table_cell(&table, "%.1f", is.bytes_per_s / 1e9);
            tool_table_cell(&table, "%.1f", was.bytes_per_s / 1e9);
            tool_table_cell(&table, "%.1f", tsr_links_copy_ns(b->measured, x, y, small_bytes) / 1e3);
            tool_table_cell(&table, "%.1f", tsr_links_copy_ns(b->predicted, x, y, small_bytes) / 1e3);
            tool_table_cell(&table, "%.1f", tsr_links_all_reduce_ns(b->measured, both, small_bytes) / 1e3);
            tool_table_cell(&table, "%.1f", tsr_links_all_reduce_ns(b->predicted, both, small_bytes) / 1e3);
        }
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

/* "0,1,3", or "all" */
static void name_set(const links_bench *b, uint64_t devices, char *text, size_t bytes)
{
    size_t used = 0;
    int n = 0;
    text[0] = '\0';
    for (int d = 0; d < b->list->n_devices; d++)
        if (devices >> d & 1 && used < bytes) {
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", n ? "," : "", d);
            n++;
        }
    if (n == b->list->n_devices)
        snprintf(text, bytes, "all");
}

/* Columns as in nccl-tests: algorithm bandwidth is bytes / time, bus bandwidth 2 (n - 1) / n times that,
 * which is comparable to a link's rate for any number of devices
 * (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). */
static void print_all_reduces(const links_bench *b)
{
    char bytes[TSR_BYTES_TEXT], set[64];
    tool_table table = {0};
    tool_table_header(&table, 7,
                      (const char *[]){"all-reduce", "devices", "time us", "algbw GB/s", "busbw GB/s",
                                       "pred. us", "pred. as"});
    for (int i = 0; i < tsr_links_n_measured(b->measured); i++) {
        const tsr_links_value *value = tsr_links_measured(b->measured, i);
        int n = __builtin_popcountll(value->devices);
        double rate = (double)value->bytes / value->ns;
        tsr_all_reduce_cost cost;
        if (value->from >= 0)
            continue;
        tsr_links_all_reduce(b->predicted, value->devices, value->bytes, &cost);
        name_set(b, value->devices, set, sizeof set);
        tool_table_cell(&table, "%s", tsr_bytes_text(value->bytes, bytes));
        tool_table_cell(&table, "%s", set);
        tool_table_cell(&table, "%.1f", value->ns / 1e3);
        tool_table_cell(&table, "%.2f", rate);
        tool_table_cell(&table, "%.2f", 2.0 * (n - 1) / n * rate);
        tool_table_cell(&table, "%.1f", cost.ns / 1e3);
        tool_table_cell(&table, "%s", tsr_all_reduce_algorithm_name(cost.algorithm));
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

/* The implementations of all-reduces on this machine, by size. */
static void print_algorithms(const links_bench *b)
{
    char bytes[TSR_BYTES_TEXT];
    for (int r = 0; r < b->n_collectives; r++)
        printf("%s%s up to %s", r ? ", " : "all-reduces by ", b->collectives[r].implementation,
               r + 1 < b->n_collectives ? tsr_bytes_text(b->collectives[r].bytes, bytes) : "any size");
    if (b->n_collectives)
        printf("\n\n");
}

/* -- JSON -- */

static json_t *json_value(const links_bench *b, const tsr_links_value *value)
{
    json_t *devices = json_array();
    double predicted = tsr_links_all_reduce_ns(b->predicted, value->devices, value->bytes);
    for (int d = 0; d < b->list->n_devices; d++) {
        if (!(value->devices >> d & 1))
            continue;
        json_array_append_new(devices, json_integer(d));
        if (value->from >= 0)
            predicted = tsr_links_copy_ns(b->predicted, value->from, d, value->bytes);
    }
    return json_pack("{s:s, s:o, s:o, s:I, s:f, s:f}", "kind", value->from >= 0 ? "transfer" : "all-reduce",
                     "from", value->from >= 0 ? json_integer(value->from) : json_null(), "devices", devices,
                     "bytes", (json_int_t)value->bytes, "measured_ns", value->ns, "predicted_ns", predicted);
}

static json_t *json_all(const links_bench *b)
{
    json_t *values = json_array(), *path_or_null = NULL;
    char path[TOOL_PATH];
    for (int i = 0; i < tsr_links_n_measured(b->measured); i++)
        json_array_append_new(values, json_value(b, tsr_links_measured(b->measured, i)));
    if (b->kept && tool_cache_path(TOOL_LINKS_FILE, path))
        path_or_null = tool_text_json(path);
    return json_pack("{s:o, s:o, s:o}", "devices", tool_json_devices(b->list), "links", values, "kept_in",
                     path_or_null ? path_or_null : json_null());
}

/* -- the command -- */

static tsr_status measure(const links_options *o, links_bench *b)
{
    const tool_machine_options here = {0};
    tsr_logger logger = tool_logger(o->verbose);
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    tsr_status status = tool_machine_topology(&here, &logger, &b->topo);
    if (status == TSR_OK)
        status = tsr_device_list_create(b->topo, o->devices, NULL, &b->list);
    if (status == TSR_OK)
        status = tsr_links_create(b->topo, b->list, &b->predicted);
    if (status == TSR_OK)
        status = tsr_links_create(b->topo, b->list, &b->measured);
    config.devices = o->devices;
    config.collectives = o->collectives;
    config.topology = b->topo;
    config.logger = logger;
    if (status == TSR_OK)
        status = tsr_runtime_open(&config, &rt);
    const tool_load start = tool_load_now();
    if (status == TSR_OK)
        status = tsr_runtime_measure_links(rt, b->measured);
    if (status == TSR_OK)
        status = bench_measure_rates(rt, &alone, 1, b->rates);
    if (status == TSR_OK)
        b->n_collectives = tsr_runtime_collectives(rt, b->collectives);
    b->may_keep =
        status == TSR_OK && bench_may_keep(&alone, tool_load_of_others(&alone, &start), o->keep_rates);
    tsr_runtime_close(rt);
    return status;
}

static int report(const links_options *o, links_bench *b)
{
    char path[TOOL_PATH];
    b->kept = b->may_keep && b->list->n_devices > 1 && tool_links_save(b->topo, b->list, b->measured);
    if (b->may_keep && b->list->n_devices > 1 && !b->kept)
        fprintf(stderr, "tsr: warning: cannot store the measured links: %s\n", strerror(errno));
    if (o->as_json)
        return tool_json_print("bench links", json_all(b));
    bench_print_rates(b->list, b->rates, stdout);
    if (b->may_keep)
        bench_keep_rates(&alone, b->topo, b->list, b->list, b->rates, stdout);
    printf("\n");
    if (b->list->n_devices < 2) {
        printf("One device: no links.\n");
        return TOOL_EXIT_OK;
    }
    print_pairs(b);
    printf("\n");
    print_algorithms(b);
    print_all_reduces(b);
    if (b->kept && tool_cache_path(TOOL_LINKS_FILE, path))
        printf("stored in %s for tsr plan and tsr run\n", path);
    return TOOL_EXIT_OK;
}

int tsr_cmd_bench_links(int argc, char **argv)
{
    links_options o = {0};
    const tool_option options[] = {
        {"-dev", "--devices", TOOL_STRING, &o.devices, "SPEC",
         "devices to measure between (default: all GPUs, otherwise host)", 0, 0},
        {NULL, "--collectives", TOOL_STRING, &o.collectives, "KIND",
         "between GPUs: peer, pinned, nccl, staged (default auto: the fastest)", 0, 0, TOOL_COLLECTIVES},
        {NULL, "--keep-rates", TOOL_FLAG, &o.keep_rates, NULL,
         "store measured rates even if other processes kept the machine busy", 0, 0},
        {NULL, "--json", TOOL_FLAG, &o.as_json, NULL, "print JSON", 0, 0},
        {"-v", "--verbose", TOOL_FLAG, &o.verbose, NULL, "log what the library does", 0, 0},
    };
    const tool_command command = {
        .name = "bench links",
        .summary = TOOL_LINKS_SUMMARY,
        .options = options,
        .n_options = TOOL_COUNT(options),
        .description =
            "The tables show measured values together with predicted ones. GB/s are those of the largest "
            "transfer, latencies those of 4 KiB.",
        .examples = "tsr bench links --devices host:2\n"
                    "tsr bench links --devices cuda --json",
        .pages = "benchmarking devices json"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code != TOOL_GO_ON)
        return code;
    links_bench b = {0};
    tsr_status status = measure(&o, &b);
    code = status == TSR_OK ? report(&o, &b) : tool_fail("bench links", status);
    tsr_links_destroy(b.measured);
    tsr_links_destroy(b.predicted);
    tsr_device_list_destroy(b.list);
    tsr_topology_destroy(b.topo);
    return code;
}
