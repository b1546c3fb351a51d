/* Inside the printing of topologies: functions shared by its files. */
#ifndef TSR_TOPO_PRINT_H
#define TSR_TOPO_PRINT_H

#include <tsr/topology.h>

#include "core/status.h"

enum { TSR_TOPO_LINE_BYTES = 4096 };

typedef struct tsr_topo_printer {
    const tsr_topology *topo;
    tsr_write_fn write;
    void *user;
    char line[TSR_TOPO_LINE_BYTES]; /* the pieces since the last end of a line */
    size_t length;
    bool gpu_printed[TSR_MAX_GPUS];
} tsr_topo_printer;

/* A piece of a line, indented by 2 x depth blanks. A piece that ends in "\n" ends the line, which is broken
 * into as many as it needs (tsr_put_paragraph). Bytes beyond TSR_TOPO_LINE_BYTES are left out. */
void tsr_topo_put(tsr_topo_printer *p, int depth, const char *format, ...) TSR_PRINTF(3, 4);

/* "936 GB/s", "4.80 TB/s". */
const char *tsr_topo_speed_text(double bytes_per_s, char text[32]);

/* Number of GPUs and their driver, or the reason for none. */
void tsr_topo_put_gpu_summary(tsr_topo_printer *p);

/* Two lines for each GPU near a NUMA node (index), or with -1 for each not yet printed. */
void tsr_topo_put_gpus_at(tsr_topo_printer *p, int depth, int numa_node);

/* The matrix of paths between GPUs, with a legend. */
void tsr_topo_put_gpu_pairs(tsr_topo_printer *p);

#endif
