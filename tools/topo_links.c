/* Links between devices; see topo_links.h. */
#include "topo_links.h"

#include <stdio.h>

#include <tsr/bytes.h>
#include <tsr/memory.h>

#include "format.h"

static const char *mark(bool guessed)
{
    return guessed ? "~" : "";
}

/* Both numbers are devices, so the call cannot fail. */
static tsr_link link_of(const tsr_links *links, int from, int to)
{
    tsr_link link = {0};
    (void)!tsr_links_pair(links, from, to, &link);
    return link;
}

static void print_pairs(const tsr_links *links, const tsr_device_list *list)
{
    tool_table table = {0};
    tool_table_header(&table, 5, (const char *[]){"from", "to", "by", "GB/s", "latency us"});
    for (int a = 0; a < list->n_devices; a++) {
        for (int b = a + 1; b < list->n_devices; b++) {
            tsr_link link = link_of(links, a, b);
            tool_table_cell(&table, "%s", list->devices[a].name);
            tool_table_cell(&table, "%s", list->devices[b].name);
            tool_table_cell(&table, "%s", tsr_link_kind_name(link.kind));
            tool_table_cell(&table, "%s%.1f", mark(link.guessed), link.bytes_per_s / 1e9);
            tool_table_cell(&table, "%s%.1f", mark(!link.measured), link.latency_ns / 1e3);
        }
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

/* Over all devices; bus bandwidth as in nccl-tests, 2 (n - 1) / n x bytes / time. */
static void print_all_reduces(const tsr_links *links, int n)
{
    char bytes[TSR_BYTES_TEXT];
    tool_table table = {0};
    uint64_t mask = n >= 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    tool_table_header(&table, 4, (const char *[]){"all-reduce", "us", "bus GB/s", "algorithm"});
    for (uint64_t size = 4096; size <= UINT64_C(64) << 20; size *= 16) {
        tsr_all_reduce_cost cost;
        tsr_links_all_reduce(links, mask, size, &cost);
        tool_table_cell(&table, "%s", tsr_bytes_text(size, bytes));
        tool_table_cell(&table, "%s%.1f", mark(cost.algorithm != TSR_ALL_REDUCE_MEASURED), cost.ns / 1e3);
        tool_table_cell(&table, "%.1f", 2.0 * (n - 1) / n * (double)size / cost.ns);
        tool_table_cell(&table, "%s", tsr_all_reduce_algorithm_name(cost.algorithm));
    }
    printf("\n");
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

void tool_print_links(const tsr_links *links, const tsr_device_list *list)
{
    printf("\n");
    if (list->n_devices < 2) {
        printf("One device: no links.\n");
        return;
    }
    print_pairs(links, list);
    print_all_reduces(links, list->n_devices);
}

json_t *tool_json_links(const tsr_links *links)
{
    json_t *array = json_array();
    for (int a = 0; a < tsr_links_n_devices(links); a++) {
        for (int b = 0; b < tsr_links_n_devices(links); b++) {
            tsr_link link = link_of(links, a, b);
            if (a != b)
                json_array_append_new(array,
                                      json_pack("{s:i, s:i, s:s, s:f, s:f, s:b, s:b}", "from", a, "to", b,
                                                "kind", tsr_link_kind_name(link.kind), "bytes_per_s",
                                                link.bytes_per_s, "latency_ns", link.latency_ns, "guessed",
                                                link.guessed, "measured", link.measured));
        }
    }
    return array;
}
