/* How fast the memory of a NUMA node is read. Descriptions of machines do not say it, except the --machine
 * text; where nothing is known it follows from the model of the processor.
 *
 * The table has the memory channels of a socket and their rate with the fastest modules that the maker
 * allows: AMD EPYC 7003, 9004 and 9005, Intel Xeon Scalable of the second to fifth generation, NVIDIA Grace
 * (LPDDR5X), Ryzen 7000 and Core of the 12th to 14th generation (data sheets of the makers). A socket reads
 * about 0.8 of that (STREAM results of such machines); fewer modules than channels, which no description
 * shows, read less. A processor that the table lacks gets 50 GB/s per node: a desktop with two channels of
 * DDR4-3200, and what this project measured on small servers. */
#include <string.h>

#include "core/mem.h"
#include "topo/topo.h"

static const double any_node_bytes_per_s = 50e9, stream_share = 0.8;

static const struct {
    const char *model; /* part of tsr_package.cpu_model */
    int channels;
    double channel_bytes_per_s; /* 8 bytes x transfers */
} sockets[] = {
    {"EPYC 9", 12, 8 * 4.8e9},        {"EPYC 7", 8, 8 * 3.2e9},         {"EPYC-Genoa", 12, 8 * 4.8e9},
    {"EPYC-Milan", 8, 8 * 3.2e9},     {"EPYC-Rome", 8, 8 * 3.2e9},      {"Platinum 85", 8, 8 * 5.6e9},
    {"Platinum 84", 8, 8 * 4.8e9},    {"Platinum 83", 8, 8 * 3.2e9},    {"Platinum 82", 6, 8 * 2.933e9},
    {"Gold 65", 8, 8 * 5.2e9},        {"Gold 64", 8, 8 * 4.8e9},        {"Gold 63", 8, 8 * 3.2e9},
    {"Gold 62", 6, 8 * 2.933e9},      {"Neoverse-V2", 1, 500e9},        {"Ryzen 9 7", 2, 8 * 5.2e9},
    {"Ryzen 7 7", 2, 8 * 5.2e9},      {"Ryzen 9 9", 2, 8 * 5.6e9},      {"Ryzen 7 9", 2, 8 * 5.6e9},
    {"12th Gen Intel", 2, 8 * 4.8e9}, {"13th Gen Intel", 2, 8 * 5.6e9}, {"14th Gen Intel", 2, 8 * 5.6e9},
};

double tsr_topo_memory_rate(const tsr_topology *topo, int node, bool *assumed_out)
{
    const tsr_numa_node *n = node >= 0 ? &topo->numa_nodes[node] : NULL;
    int package = n && n->n_cores > 0 ? topo->cores[n->first_core].package : -1, n_nodes = 0;
    bool has_rate = n && n->bytes_per_s > 0;
    *assumed_out = !has_rate || n->rate_guessed;
    if (has_rate)
        return n->bytes_per_s;
    for (int i = 0; package >= 0 && i < topo->n_numa_nodes; i++) {
        const tsr_numa_node *other = &topo->numa_nodes[i];
        n_nodes += other->n_cores > 0 && topo->cores[other->first_core].package == package;
    }
    for (size_t i = 0; package >= 0 && i < sizeof sockets / sizeof *sockets; i++)
        if (strstr(topo->packages[package].cpu_model, sockets[i].model))
            return stream_share * sockets[i].channels * sockets[i].channel_bytes_per_s / n_nodes;
    return any_node_bytes_per_s;
}
