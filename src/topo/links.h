/* Inside the link model: wires, routes over them, and the measured values. */
#ifndef TSR_TOPO_LINKS_H
#define TSR_TOPO_LINKS_H

#include <tsr/links.h>

#include "core/status.h"

enum { TSR_LINKS_MAX_WIRES = 4096, TSR_LINKS_MAX_HOPS = 48, TSR_LINKS_KEY_BYTES = 64 };

/* Something that carries bytes, so many per second in each direction. */
typedef struct tsr_wire {
    double bytes_per_s;
    bool guessed;
} tsr_wire;

/* From one device to another: wires in order, 2 x wire + direction. */
typedef struct tsr_route {
    tsr_link_kind kind;
    double latency_ns;
    bool guessed;
    int n_hops;
    uint16_t hops[TSR_LINKS_MAX_HOPS];
} tsr_route;

typedef struct tsr_measured {
    uint64_t mask, bytes;
    double ns;
} tsr_measured;

struct tsr_links {
    int n_devices, n_wires;
    bool is_gpu[TSR_MAX_DEVICES];
    char keys[TSR_MAX_DEVICES][TSR_LINKS_KEY_BYTES]; /* what a device is called in files */
    char machine_id[20];
    int ring[TSR_MAX_DEVICES]; /* devices in the order in which a ring visits them */
    tsr_wire *wires;
    tsr_route *routes; /* [from][to] */
    int n_measured;
    tsr_measured *measured; /* by mask, then bytes */
};

static inline const tsr_route *tsr_links_route(const tsr_links *links, int from, int to)
{
    return &links->routes[from * links->n_devices + to];
}

/* Nanoseconds by the table of measured values; negative if there is none for that set. */
double tsr_links_measured_ns(const tsr_links *links, uint64_t mask, uint64_t bytes);

/* machine_id and keys of links->n_devices devices. */
void tsr_links_identify(const tsr_topology *topo, const tsr_device_list *devices, tsr_links *links);

#endif
