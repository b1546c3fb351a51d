/* tsr bench links: measured times of transfers and all-reduces between devices, with the predictions of
 * the link model from the description of the machine. */
#include "tsr.h"

#include <errno.h>
#include <stdlib.h>
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
    bool as_json, verbose, keep_rates, mpi;
} links_options;

/* Two models of the same links: from the description, and with measured values. There is no description of
 * the links between several processes. */
typedef struct links_bench {
    tool_processes processes;
    bench_machine machine;
    tsr_links *predicted, *measured; /* predicted NULL: several processes */
    tsr_device_rates rates[TSR_MAX_DEVICES];
    int n_collectives;
    tsr_collectives_row collectives[TSR_COLLECTIVES_MAX_ROWS];
    bool may_keep, kept;
} links_bench;

static const uint64_t small_bytes = 4096; /* the smallest measured size */

/* -- tables -- */

/* Both numbers are devices of the list, so the call cannot fail. */
static tsr_link link_of(const tsr_links *links, int from, int to)
{
    tsr_link link = {0};
    (void)!tsr_links_pair(links, from, to, &link);
    return link;
}

static void put_times(const links_bench *b, tool_table *table, double measured, double predicted)
{
    tool_table_cell(table, "%.1f", measured);
    if (b->predicted)
        tool_table_cell(table, "%.1f", predicted);
}

/* Transfers are measured in alternating directions, so both have the same value. */
static void print_pairs(const links_bench *b)
{
    const tsr_links *predicted = b->predicted ? b->predicted : b->measured;
    tool_table table = {0};
    if (b->predicted)
        tool_table_header(&table, 9,
                          (const char *[]){"from", "to", "by", "GB/s", "pred.", "transfer us", "pred.",
                                           "all-reduce us", "pred."});
    else
        tool_table_header(&table, 5, (const char *[]){"from", "to", "GB/s", "transfer us", "all-reduce us"});
    for (int x = 0; x < b->machine.list->n_devices; x++) {
        for (int y = x + 1; y < b->machine.list->n_devices; y++) {
            tsr_link is = link_of(b->measured, x, y), was = link_of(predicted, x, y);
            uint64_t both = UINT64_C(1) << x | UINT64_C(1) << y;
            tool_table_cell(&table, "%s", b->machine.list->devices[x].name);
            tool_table_cell(&table, "%s", b->machine.list->devices[y].name);
            if (b->predicted)
                tool_table_cell(&table, "%s", tsr_link_kind_name(was.kind));
            put_times(b, &table, is.bytes_per_s / 1e9, was.bytes_per_s / 1e9);
            put_times(b, &table, tsr_links_copy_ns(b->measured, x, y, small_bytes) / 1e3,
                      tsr_links_copy_ns(predicted, x, y, small_bytes) / 1e3);
            put_times(b, &table, tsr_links_all_reduce_ns(b->measured, both, small_bytes) / 1e3,
                      tsr_links_all_reduce_ns(predicted, both, small_bytes) / 1e3);
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
    for (int d = 0; d < b->machine.list->n_devices; d++)
        if (devices >> d & 1 && used < bytes) {
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", n ? "," : "", d);
            n++;
        }
    if (n == b->machine.list->n_devices)
        snprintf(text, bytes, "all");
}

/* Columns as in nccl-tests: algorithm bandwidth is bytes / time, bus bandwidth 2 (n - 1) / n times that,
 * which is comparable to a link's rate for any number of devices
 * (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). */
static void print_all_reduces(const links_bench *b)
{
    char bytes[TSR_BYTES_TEXT], set[64];
    tool_table table = {0};
    tool_table_header(&table, b->predicted ? 7 : 5,
                      (const char *[]){"all-reduce", "devices", "time us", "algbw GB/s", "busbw GB/s",
                                       "pred. us", "pred. as"});
    for (int i = 0; i < tsr_links_n_measured(b->measured); i++) {
        const tsr_links_value *value = tsr_links_measured(b->measured, i);
        int n = __builtin_popcountll(value->devices);
        double rate = (double)value->bytes / value->ns;
        tsr_all_reduce_cost cost;
        if (value->from >= 0)
            continue;
        name_set(b, value->devices, set, sizeof set);
        tool_table_cell(&table, "%s", tsr_bytes_text(value->bytes, bytes));
        tool_table_cell(&table, "%s", set);
        tool_table_cell(&table, "%.1f", value->ns / 1e3);
        tool_table_cell(&table, "%.2f", rate);
        tool_table_cell(&table, "%.2f", 2.0 * (n - 1) / n * rate);
        if (!b->predicted)
            continue;
        tsr_links_all_reduce(b->predicted, value->devices, value->bytes, &cost);
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
    const int between = b->n_collectives > 0 && b->collectives[b->n_collectives - 1].bytes == 0,
              n = b->n_collectives - between;
    for (int r = 0; r < n; r++)
        printf("%s%s up to %s", r ? ", " : "all-reduces by ", b->collectives[r].implementation,
               r + 1 < n ? tsr_bytes_text(b->collectives[r].bytes, bytes) : "any size");
    if (between)
        printf("%s%s between processes", n ? ", " : "all-reduces by ", b->collectives[n].implementation);
    if (b->n_collectives)
        printf("\n\n");
}

/* -- JSON -- */

static json_t *json_value(const links_bench *b, const tsr_links_value *value)
{
    json_t *devices = json_array();
    double predicted = b->predicted ? tsr_links_all_reduce_ns(b->predicted, value->devices, value->bytes) : 0;
    for (int d = 0; d < b->machine.list->n_devices; d++) {
        if (!(value->devices >> d & 1))
            continue;
        json_array_append_new(devices, json_integer(d));
        if (value->from >= 0 && b->predicted)
            predicted = tsr_links_copy_ns(b->predicted, value->from, d, value->bytes);
    }
    return json_pack("{s:s, s:o, s:o, s:I, s:f, s:o}", "kind", value->from >= 0 ? "transfer" : "all-reduce",
                     "from", value->from >= 0 ? json_integer(value->from) : json_null(), "devices", devices,
                     "bytes", (json_int_t)value->bytes, "measured_ns", value->ns, "predicted_ns",
                     b->predicted ? json_real(predicted) : json_null());
}

static json_t *json_all(const links_bench *b)
{
    json_t *values = json_array(), *path_or_null = NULL;
    char path[TOOL_PATH];
    for (int i = 0; i < tsr_links_n_measured(b->measured); i++)
        json_array_append_new(values, json_value(b, tsr_links_measured(b->measured, i)));
    if (b->kept && tool_cache_path(TOOL_LINKS_FILE, path))
        path_or_null = tool_text_json(path);
    return json_pack("{s:o, s:o, s:o}", "devices", tool_json_devices(b->machine.list), "links", values,
                     "kept_in", path_or_null ? path_or_null : json_null());
}

/* -- the command -- */

/* Between the devices of several processes, any machine's: links that are nothing but measured. */
static tsr_status make_links(links_bench *b)
{
    tsr_device_desc blank[TSR_MAX_DEVICES] = {{.name = ""}};
    const tsr_device_list *list = b->machine.list;
    if (!b->processes.transport) {
        const tsr_status status = tsr_links_create(b->machine.topo, list, &b->predicted);
        return status == TSR_OK ? tsr_links_create(b->machine.topo, list, &b->measured) : status;
    }
    for (int d = 0; d < list->n_devices; d++)
        blank[d] = (tsr_device_desc){.kind = TSR_DEVICE_HOST, .gpu = -1, .numa_node = -1};
    const tsr_device_list any = {.n_devices = list->n_devices, .devices = blank};
    return tsr_links_create(b->machine.topo, &any, &b->measured);
}

static tsr_status measure(const links_options *o, links_bench *b)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    config.devices = o->devices;
    config.collectives = o->collectives;
    config.topology = b->machine.topo;
    config.logger = tool_logger(o->verbose);
    config.transport = b->processes.transport;
    tsr_status status = tsr_runtime_open(&config, &rt);
    if (status == TSR_OK)
        status = bench_machine_list(&b->machine, rt, &b->processes, o->devices);
    if (status == TSR_OK)
        status = make_links(b);
    const tool_load start = tool_load_now();
    if (status == TSR_OK)
        status = tsr_runtime_measure_links(rt, b->measured);
    if (status == TSR_OK)
        status = bench_measure_rates(rt, &b->processes, 1, b->rates);
    if (status == TSR_OK) {
        b->n_collectives = tsr_runtime_collectives(rt, b->collectives);
        b->may_keep =
            bench_may_keep(&b->processes, tool_load_of_others(&b->processes, &start), o->keep_rates);
    }
    tsr_runtime_close(rt);
    return status;
}

static int report(const links_options *o, links_bench *b)
{
    char path[TOOL_PATH];
    const bool keeps = b->may_keep && b->machine.list->n_devices > 1 && b->predicted;
    b->kept = keeps && tool_links_save(b->machine.topo, b->machine.list, b->measured);
    if (keeps && !b->kept)
        fprintf(stderr, "tsr: warning: cannot store the measured links: %s\n", strerror(errno));
    if (o->as_json)
        return tool_json_print("bench links", json_all(b));
    bench_print_rates(b->machine.list, b->rates, stdout);
    if (b->may_keep)
        bench_keep_rates(&b->processes, b->machine.topo, b->machine.own, b->machine.list, b->rates, stdout);
    printf("\n");
    if (b->machine.list->n_devices < 2) {
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
        {NULL, "--mpi", TOOL_FLAG, &o.mpi, NULL,
         "under mpirun: between the devices of all processes; --devices is for each", 0, 0},
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
        .pages = "benchmarking devices processes json"};
    links_bench b = {0};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code == TOOL_GO_ON)
        code = bench_machine_find("bench links", o.verbose, &b.machine);
    if (code == TOOL_GO_ON)
        code = tool_processes_join("bench links", o.mpi, &b.processes);
    if (code == TOOL_GO_ON) {
        const tsr_status status = measure(&o, &b);
        code = status == TSR_OK ? report(&o, &b) : tool_fail("bench links", status);
    }
    tsr_links_destroy(b.measured);
    tsr_links_destroy(b.predicted);
    bench_machine_free(&b.machine);
    return code;
}
