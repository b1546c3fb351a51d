/* Neighbouring ops that a host device does together, where their operands allow it, so that a thread goes on
 * with what it has just written instead of meeting the others first and reading it again:
 *
 *     sum    a product's partial that no other device adds to is converted, and added to the residual
 *     glu    the activation of gate and up follows their products
 *
 * Every buffer that is read afterwards holds the bits that it would hold without. */
#ifndef TSR_HOST_FUSE_H
#define TSR_HOST_FUSE_H

#include "host/host.h"

typedef enum tsr_host_fusion {
    TSR_HOST_FUSION_NONE = 0,
    TSR_HOST_FUSION_SUM, /* MUL_MAT, ALL_REDUCE */
    TSR_HOST_FUSION_GLU  /* MUL_MAT, MUL_MAT, GLU */
} tsr_host_fusion;

/* How the device runs the first of n ops (n >= 1), and how many with it. */
tsr_host_fusion tsr_host_fuse(const tsr_host_device *host, const tsr_op *ops, int n, int *n_ops_out);

/* A thread's part of ops that are fused. */
void tsr_host_run_fused(const tsr_host_device *host, tsr_host_fusion fusion, const tsr_op *ops,
                        const tsr_kernel_env *env);

#endif
