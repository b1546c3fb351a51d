/* Neighbouring ops that a host device fuses where their operands allow it, so that a thread continues with
 * its own results instead of waiting at a barrier and reading them again:
 *
 *     sum    a product's partial to which no other device adds is converted, and added to the residual
 *     glu    the activation of gate and up follows their products
 *
 * Every buffer that is read afterwards holds the same bits as without fusion. */
#ifndef TSR_HOST_FUSE_H
#define TSR_HOST_FUSE_H

#include "host/host.h"

typedef enum tsr_host_fusion {
    TSR_HOST_FUSION_NONE = 0,
    TSR_HOST_FUSION_SUM, /* MUL_MAT, ALL_REDUCE */
    TSR_HOST_FUSION_GLU  /* MUL_MAT, MUL_MAT, GLU */
} tsr_host_fusion;

/* How the device runs the first of n ops (n >= 1), and how many ops are fused. */
tsr_host_fusion tsr_host_fuse(const tsr_host_device *host, const tsr_op *ops, int n, int *n_ops_out);

/* Run a thread's part of fused ops. */
void tsr_host_run_fused(const tsr_host_device *host, tsr_host_fusion fusion, const tsr_op *ops,
                        const tsr_kernel_env *env);

#endif
