/* Activations that are packed for all threads of a team before the products of an op run (kernels.h).
 *
 * A product of many tokens multiplies its activations in a form of its own. If every thread packed them
 * for each of its pieces, the total work would grow with the number of threads. So they are packed once,
 * and products that read the same activations in the same way (queries, keys and values; gate and up)
 * share them. */
#ifndef TSR_HOST_PACKING_H
#define TSR_HOST_PACKING_H

#include "host/host.h"

/* The address of an op's packed activations (NULL: not packed), and whether the op is the first of its op run
 * to use them. */
typedef struct tsr_host_packed {
    unsigned char *at;
    bool is_first;
} tsr_host_packed;

/* Divide the device's room for packed activations among the n <= TSR_HOST_RUN_OPS ops of an op run. Ops
 * without room pack for themselves. */
void tsr_host_find_packed(const tsr_host_device *host, const tsr_kernel_env *env, const tsr_op *const ops[],
                          int n, tsr_host_packed packed[]);

#endif
