/* The network that joins this machine to others: what a text says, or what the kernel shows. */
#ifndef TSR_TOPO_NETWORK_H
#define TSR_TOPO_NETWORK_H

#include "topo/topo.h"

/* Set the fields of a machine that describe its network. bytes_per_s: of each adapter. latency_ns 0: what is
 * usual for the kind. */
void tsr_network_set(tsr_network_kind kind, int n_adapters, double bytes_per_s, double latency_ns,
                     tsr_machine *machine);

/* "ib 400Gb/s", "4x roce 200Gb/s 3us": a network of tsr_topology_parse(). Writes the fields above, others are
 * 0. TSR_ERR_INVALID with the column of the wrong word. */
tsr_status tsr_network_parse(const char *text, tsr_machine *network_out);

/* The fastest network that the kernel shows, as tsr_network_parse() writes it: the active ports of InfiniBand
 * and RoCE adapters that have the highest rate, otherwise the fastest Ethernet adapter that is up. False,
 * without writing, if there is none; virtual adapters and most virtual machines show no rate. `root` is ""
 * for this machine; tests pass a directory with sys/ inside. */
bool tsr_network_find(const char *root, tsr_machine *network_out);

#endif
