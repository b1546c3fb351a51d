/* Inside the link model: wires, routes over them, and the measured values. */
#ifndef TSR_TOPO_LINKS_LINKS_H
#define TSR_TOPO_LINKS_LINKS_H

#include <tsr/links.h>

#include "core/device_set.h"
#include "core/status.h"

enum { TSR_LINKS_MAX_WIRES = 4096, TSR_LINKS_MAX_HOPS = 48 };

/* A wire carries bytes at this rate in each direction. */
typedef struct tsr_wire {
    double bytes_per_s;
    bool guessed;
} tsr_wire;

/* Route from one device to another: wires in order, 2 x wire + direction. */
typedef struct tsr_link_route {
    tsr_link_kind kind;
    double latency_ns;
    bool guessed;
    int n_hops;
    uint16_t hops[TSR_LINKS_MAX_HOPS];
} tsr_link_route;

/* Where a route that leaves a part ends: in host memory, from which the other processes of the machine copy,
 * or at the adapters of the network. */
typedef enum tsr_links_end_kind { TSR_LINKS_MEMORY, TSR_LINKS_NETWORK } tsr_links_end_kind;

enum { TSR_LINKS_ENDS = 4 }; /* of a device: kinds, out and in */

struct tsr_links {
    int n_devices, n_wires, n_routes;
    int n_machines;               /* that the devices are on, one process each; of a runtime: processes */
    int machine[TSR_MAX_DEVICES]; /* of each device, below n_machines */
    int host[TSR_MAX_DEVICES];    /* of each device: machines of a runtime with the same number are one */
    bool is_gpu[TSR_MAX_DEVICES];
    int ring[TSR_MAX_DEVICES]; /* devices in the order of the ring */
    tsr_wire *wires;
    tsr_link_route *routes; /* [from][to]; of a part, the ends of each device follow */
    int n_measured, n_room;
    tsr_links_value *measured; /* [n_room], ordered by `from`, devices and bytes */
};

static inline const tsr_link_route *tsr_links_route(const tsr_links *links, int from, int to)
{
    return &links->routes[from * links->n_devices + to];
}

static inline tsr_link_route *tsr_links_end(const tsr_links *part, int device, tsr_links_end_kind kind,
                                            int direction)
{
    const int first = part->n_devices * part->n_devices;
    return &part->routes[first + device * TSR_LINKS_ENDS + 2 * (int)kind + direction];
}

/* Links without values, of n_wires zeroed wires. */
tsr_status tsr_links_alloc(int n_devices, int n_wires, bool is_part, tsr_links **links_out);

/* Order links->ring; the routes exist. */
void tsr_links_order_ring(tsr_links *links);

/* A part: links between the devices of one process of several, and from these to host memory and to the
 * adapters of `network`, which has the fields of tsr_machine for it. */
tsr_status tsr_links_create_part(const tsr_topology *topo, const tsr_device_list *devices,
                                 const tsr_machine *network, tsr_links **links_out);

/* One process of several. */
typedef struct tsr_links_process {
    const tsr_links *part;
    int machine; /* equal numbers: on one machine */
    double network_latency_ns;
} tsr_links_process;

/* The links between the devices of all processes, process after process, as those of a topology with as many
 * machines. Processes of one machine reach each other through its memory instead of the network, and share
 * its adapters; memory and processors count for each. TSR_ERR_UNSUPPORTED: too many wires. */
tsr_status tsr_links_join(const tsr_links_process *processes, int n, tsr_links **links_out);

/* What a sum takes on its way, of one device or one machine. */
typedef struct tsr_sum_bytes {
    uint64_t part; /* in the workspace, and by NCCL */
    uint64_t
        narrow; /* by all other ways inside a machine, if one of the devices is a GPU (core/quant/wire.h) */
    uint64_t between; /* by MPI (comm/narrow.h) */
    int n_messages;   /* by MPI */
} tsr_sum_bytes;

/* As tsr_links_all_reduce(), where the bytes depend on the way. */
void tsr_links_all_reduce_bytes(const tsr_links *links, uint64_t device_mask, tsr_sum_bytes bytes,
                                tsr_all_reduce_cost *cost_out);

/* Nanoseconds from the table of measured values; negative if the table has no value of the set (`from` -1)
 * or of the transfer (`devices`: the bit of its target). */
double tsr_links_measured_ns(const tsr_links *links, int from, tsr_device_set devices, uint64_t bytes);

/* Rate and latency of a measured transfer; false, without writing, if there is none. */
bool tsr_links_measured_link(const tsr_links *links, int from, int to, tsr_link *link);

/* Reserve room for `n` more values, so that recording them cannot fail. */
tsr_status tsr_links_reserve(tsr_links *links, int n);

#endif
