/* Inside src/topo: the devices of a --devices text while they are being placed on a machine. */
#ifndef TSR_TOPO_DEVICES_DEVICES_H
#define TSR_TOPO_DEVICES_DEVICES_H

#include <tsr/device_list.h>
#include <tsr/topology.h>

#include "core/status.h"
#include "topo/devices/device_text.h"

/* A host device. */
typedef struct tsr_topo_placing {
    int threads;  /* requested; 0 = one per core */
    uint64_t cap; /* bytes, 0 = none */
    const char *isa;
    int duty;  /* percent, 0 = 100 */
    int first; /* cores [first, first + n) */
    int n;
} tsr_topo_placing;

typedef struct tsr_topo_placement {
    const tsr_topology *topo;
    int machine;   /* whose devices are being placed, after those of the machines before */
    int n_devices; /* host devices */
    tsr_topo_placing devices[TSR_MAX_DEVICES];
    int first_device;  /* of `machine` */
    int n_host_items;  /* of `machine` */
    bool one_per_node; /* the last host item has no number */
    int n_gpu_devices;
    struct {
        int machine;
        int gpu;                     /* index, or -1: the next host device */
        const tsr_device_item *item; /* the item that requested it; for GPUs */
    } order[TSR_MAX_DEVICES];        /* all devices: machine by machine, in the order of the text */
} tsr_topo_placement;

/* The name of a device: of several machines with the machine's number, "host0@1", as the devices of several
 * processes are named. */
void tsr_topo_name_device(const tsr_topology *topo, int machine, const char *name, tsr_device_desc *desc);

/* Host devices are the default: warn if the machine has GPUs. */
void tsr_topo_warn_of_no_gpu(const tsr_topology *topo, const tsr_logger *logger);

/* Append the GPUs of an item. */
tsr_status tsr_topo_add_gpus(const tsr_device_item *item, tsr_topo_placement *p);

/* After the last item: check that the GPUs have the requested memory and the machine the requested CPUs. */
tsr_status tsr_topo_check_gpus(const tsr_topo_placement *p);

/* The most numbers (cores and CPUs) that the descriptions of all GPU devices hold. */
size_t tsr_topo_gpu_numbers(const tsr_topo_placement *p);

/* Describe the device at place `at` of the order; its numbers are stored at *numbers, which advances. */
void tsr_topo_describe_gpu_device(const tsr_topo_placement *p, int at, int **numbers, tsr_device_desc *desc);

#endif
