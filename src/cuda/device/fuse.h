/* Neighbouring ops of a program that one kernel does together. They stay ops of their own for every other
 * kind of device, and here, too, every buffer holds afterwards what it would without. */
#ifndef TSR_CUDA_DEVICE_FUSE_H
#define TSR_CUDA_DEVICE_FUSE_H

#include "core/op.h"

/* The RMS_NORM op right after the all-reduce ops[0] of n ops that normalises its sum and does not write where
 * the sum's other rows are still to be read; NULL: none such. */
const tsr_op *tsr_cuda_fuse_norm(const tsr_op *ops, int n);

/* ops[0, n) begin with the rope of queries (or not), the rope of keys, and the write of the latter to the KV
 * cache, and nothing there overwrites what another of them reads. */
typedef struct tsr_cuda_rope_kv_ops {
    const tsr_op_rope *q; /* NULL: without */
    const tsr_op_rope *k;
    const tsr_op_kv_write *write;
    int n_ops; /* 2 or 3; 0: they do not */
} tsr_cuda_rope_kv_ops;

tsr_cuda_rope_kv_ops tsr_cuda_fuse_rope_kv(const tsr_op *ops, int n);

#endif
