/* The --devices text as data; devices.h places the devices on a machine. */
#ifndef TSR_TOPO_DEVICES_DEVICE_TEXT_H
#define TSR_TOPO_DEVICES_DEVICE_TEXT_H

#include <tsr/device_list.h>
#include <tsr/topology.h>

/* Most ranges in one cpus= option. */
enum { TSR_DEVICE_CPU_RANGES = 32 };

/* "host:2,mem=200MiB,threads=1" or "cuda:0,mem=8GiB": one item. */
typedef struct tsr_device_item {
    tsr_device_kind kind;
    int count;                    /* host devices; 0 = one per NUMA node ("host" without a number) */
    int gpu;                      /* CUDA's number; -1: gpu_name, or every GPU ("cuda" alone) */
    char gpu_name[48];            /* the beginning of a UUID, or a PCI bus id; "" = none */
    int threads;                  /* of each host device; 0 = one per core */
    char isa[TSR_ISA_NAME_BYTES]; /* of each host device; "" = the runtime's default */
    int duty;                     /* of each host device: percent of the time that it may work; 0 = 100 */
    uint64_t mem_cap_bytes;       /* of each device; 0 = none */
    bool managed, wrap;           /* of GPUs */
    int n_cpu_ranges;             /* CPUs for the host threads of its GPUs; 0 = near the GPU */
    struct {
        int first, last; /* os indices */
    } cpus[TSR_DEVICE_CPU_RANGES];
} tsr_device_item;

typedef struct tsr_device_spec {
    int n_items;
    tsr_device_item items[TSR_MAX_DEVICES];
} tsr_device_spec;

/* `text` NULL or blank: `by_default` is parsed. Grammar and errors: tsr_device_list_create(). */
tsr_status tsr_device_spec_parse(const char *text, const char *by_default, tsr_device_spec *spec_out);

#endif
