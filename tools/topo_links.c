/* See topo_links.h. */
#include "topo_links.h"

#include <stdio.h>

#include <tsr/memory.h>

#include "format.h"

static const char *mark(bool guessed)
{
    return guessed ? "~" : "";
}

static tsr_status print_pairs(const tsr_links *links, const tsr_device_list *list)
{
    tsr_status status = TSR_OK;
    tool_table table = {0};
    tool_table_header(&table, 5, (const char *[]){"from", "to", "by", "GB/s", "latency us"});
    for (int a = 0; a < list->n_devices && status == TSR_OK; a++) {
        for (int b = a + 1; b < list->n_devices && status == TSR_OK; b++) {
            tsr_link link;
            status = tsr_links_pair(links, a, b, &link);
            if (status != TSR_OK)
                break;
            tool_table_cell(&table, "%s", list->devices[a].name);
            tool_table_cell(&table, "%s", list->devices[b].name);
            tool_table_cell(&table, "%s", tsr_link_kind_name(link.kind));
            tool_table_cell(&table, "%s%.1f", mark(link.guessed), link.bytes_per_s / 1e9);
            tool_table_cell(&table, "~%.1f", link.latency_ns / 1e3);
        }
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
    return status;
}

/* Over all devices; bus bandwidth as nccl-tests counts it, 2 (n - 1) / n x bytes / time. */
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

tsr_status tool_print_links(const tsr_topology *topo, const tsr_device_list *list)
{
    tsr_links *links = NULL;
    tsr_status status = tsr_links_create(topo, list, &links);
    if (status == TSR_OK && topo->is_this_machine)
        status = tsr_links_load(links, NULL, NULL);
    printf("\n");
    if (status == TSR_OK && list->n_devices < 2)
        printf("One device: no links.\n");
    else if (status == TSR_OK)
        status = print_pairs(links, list);
    if (status == TSR_OK && list->n_devices > 1)
        print_all_reduces(links, list->n_devices);
    tsr_links_destroy(links);
    return status;
}
