/* The --devices text as data; where devices then go on a machine is host_devices.c's business. */
#ifndef TSR_TOPO_DEVICE_SPEC_H
#define TSR_TOPO_DEVICE_SPEC_H

#include <tsr/topology.h>

/* "host:2,mem=200MiB,threads=1": one item. */
typedef struct tsr_device_item {
    int count;              /* devices; 0 = one per NUMA node ("host" without a number) */
    int threads;            /* of each device; 0 = one per core */
    uint64_t mem_cap_bytes; /* of each device; 0 = none */
} tsr_device_item;

typedef struct tsr_device_spec {
    int n_items;
    tsr_device_item items[TSR_MAX_DEVICES];
} tsr_device_spec;

/* `text` NULL or blank means "host". Grammar and errors: tsr_device_list_create(). */
tsr_status tsr_device_spec_parse(const char *text, tsr_device_spec *spec_out);

#endif
