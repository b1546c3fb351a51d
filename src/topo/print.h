/* Inside the printing of topologies: functions shared by its files. */
#ifndef TSR_TOPO_PRINT_H
#define TSR_TOPO_PRINT_H

#include <tsr/topology.h>

#include "core/status.h"

typedef struct tsr_topo_printer {
    const tsr_topology *topo;
    tsr_write_fn write;
    void *user;
    bool gpu_printed[TSR_MAX_GPUS];
} tsr_topo_printer;

/* A piece of a line, at most 511 bytes of it, indented by 2 x depth blanks. */
void tsr_topo_put(const tsr_topo_printer *p, int depth, const char *format, ...) TSR_PRINTF(3, 4);

/* "936 GB/s", "4.80 TB/s". */
const char *tsr_topo_speed_text(double bytes_per_s, char text[32]);

/* Number of GPUs and their driver, or the reason for none. */
void tsr_topo_put_gpu_summary(const tsr_topo_printer *p);

/* Two lines for each GPU near a NUMA node (index), or with -1 for each not yet printed. */
void tsr_topo_put_gpus_at(tsr_topo_printer *p, int depth, int numa_node);

/* The matrix of paths between GPUs, with a legend. */
void tsr_topo_put_gpu_pairs(const tsr_topo_printer *p);

#endif
