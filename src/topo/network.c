/* Networks of a machine; see network.h. The kernel's files: Documentation/ABI/stable/sysfs-class-infiniband
 * and Documentation/ABI/testing/sysfs-class-net. */
#include "topo/network.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"

enum { PATH_BYTES = 512, LINE_BYTES = 64, MOST_PORTS = 4 };

/* A short message from one machine's memory to another's. InfiniBand: a step of NCCL's ring over the network
 * (src/graph/tuning.cc, hwLat, LL protocol). RoCE: a tenth more, as small messages take with adapters that
 * have both modes (naddod.com, "EDR InfiniBand vs. 100Gb Ethernet Performance Competition"). TCP: the latency
 * that MPI has over TCP in one data centre. */
static const double usual_latency_ns[] = {[TSR_NETWORK_NONE] = 0,
                                          [TSR_NETWORK_INFINIBAND] = 2700,
                                          [TSR_NETWORK_ROCE] = 3000,
                                          [TSR_NETWORK_ETHERNET] = 25000};

void tsr_network_set(tsr_network_kind kind, int n_adapters, double bytes_per_s, double latency_ns,
                     tsr_machine *machine)
{
    machine->network = kind;
    machine->n_adapters = n_adapters;
    machine->network_bytes_per_s = n_adapters * bytes_per_s;
    machine->latency_guessed = kind != TSR_NETWORK_NONE && !(latency_ns > 0);
    machine->network_latency_ns = machine->latency_guessed ? usual_latency_ns[kind] : latency_ns;
}

/* The first line of a file; "" if it cannot be read. */
static void read_line(const char *folder, const char *name, char line[LINE_BYTES])
{
    char path[PATH_BYTES];
    const int used = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = used < PATH_BYTES ? fopen(path, "re") : NULL;
    if (!file || !fgets(line, LINE_BYTES, file))
        line[0] = '\0';
    if (file)
        fclose(file);
}

/* The port of an adapter in its folder: "100 Gb/sec (4X EDR)" if its state is "4: ACTIVE". */
static void look_at_port(const char *folder, tsr_machine *best)
{
    char state[LINE_BYTES], rate[LINE_BYTES], layer[LINE_BYTES];
    read_line(folder, "state", state);
    read_line(folder, "rate", rate);
    read_line(folder, "link_layer", layer);
    const tsr_network_kind kind =
        strncmp(layer, "Ethernet", 8) == 0 ? TSR_NETWORK_ROCE : TSR_NETWORK_INFINIBAND;
    const double rate_here = strtod(rate, NULL) * 1e9 / 8;
    const double most = best->n_adapters > 0 ? best->network_bytes_per_s / best->n_adapters : 0;
    if (!strstr(state, "ACTIVE") || !strstr(rate, "Gb/sec") || !(rate_here > 0) || rate_here < most)
        return;
    const int n = rate_here == most && best->network == kind ? best->n_adapters : 0;
    tsr_network_set(kind, n + 1, rate_here, 0, best);
}

/* An adapter with hardware of its own: "25000" (Mb/s) if its state is "up". */
static void look_at_ethernet(const char *folder, tsr_machine *best)
{
    char path[PATH_BYTES], state[LINE_BYTES], rate[LINE_BYTES];
    read_line(folder, "operstate", state);
    read_line(folder, "speed", rate);
    const double rate_here = strtod(rate, NULL) * 1e6 / 8;
    if (snprintf(path, sizeof path, "%s/device", folder) < PATH_BYTES && access(path, F_OK) == 0 &&
        strncmp(state, "up", 2) == 0 && rate_here > best->network_bytes_per_s)
        tsr_network_set(TSR_NETWORK_ETHERNET, 1, rate_here, 0, best);
}

/* Look at what is in a folder, or at ports of it. */
static void look_at_all(const char *root, const char *class_name, tsr_machine *best)
{
    char folder[PATH_BYTES], inside[PATH_BYTES];
    const bool is_ethernet = strcmp(class_name, "net") == 0;
    const struct dirent *entry;
    DIR *all = snprintf(folder, sizeof folder, "%s/sys/class/%s", root, class_name) < PATH_BYTES
                   ? opendir(folder)
                   : NULL;
    while (all && (entry = readdir(all)))
        for (int port = 1; *entry->d_name != '.' && port <= (is_ethernet ? 1 : MOST_PORTS); port++) {
            char end[sizeof "/ports/1"] = "";
            if (!is_ethernet)
                snprintf(end, sizeof end, "/ports/%d", port);
            if (snprintf(inside, sizeof inside, "%s/%s%s", folder, entry->d_name, end) < PATH_BYTES)
                (is_ethernet ? look_at_ethernet : look_at_port)(inside, best);
        }
    if (all)
        closedir(all);
}

bool tsr_network_find(const char *root, tsr_machine *network_out)
{
    tsr_machine best = {0};
    look_at_all(root, "infiniband", &best);
    if (best.n_adapters == 0)
        look_at_all(root, "net", &best);
    if (best.n_adapters > 0)
        *network_out = best;
    return best.n_adapters > 0;
}
