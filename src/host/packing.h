/* Activations that are packed for all threads of a team before the products of a stage run (kernels.h).
 *
 * A product of many tokens multiplies its activations in a form of its own. Threads that made it for every
 * piece of the product would spend more time on that the more of them there are, so it is made once, and
 * products that read the same activations alike (queries, keys and values; gate and up) share it. */
#ifndef TSR_HOST_PACKING_H
#define TSR_HOST_PACKING_H

#include "host/host.h"

/* Of an op: where its activations are packed (NULL: nowhere), and whether it is the first of its stage whose
 * are there. */
typedef struct tsr_host_packed {
    unsigned char *at;
    bool is_first;
} tsr_host_packed;

/* Divide the device's room for packed activations among the n <= TSR_HOST_RUN_OPS ops of a stage. Those for
 * which nothing is left pack for themselves. */
void tsr_host_find_packed(const tsr_host_device *host, const tsr_kernel_env *env, const tsr_op *const ops[],
                          int n, tsr_host_packed packed[]);

#endif
