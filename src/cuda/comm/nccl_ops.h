/* The collectives of a communicator over NCCL, as ops of a device's stream. */
#ifndef TSR_CUDA_COMM_NCCL_OPS_H
#define TSR_CUDA_COMM_NCCL_OPS_H

#include "core/comm.h"

/* The functions of struct tsr_comm_ops (core/comm.h). */
tsr_status tsr_nccl_enqueue(tsr_comm *comm, tsr_device *device, const tsr_op *op, void *stream);
tsr_status tsr_nccl_enqueue_norm(tsr_comm *comm, tsr_device *device, const tsr_op *op, const tsr_op *norm,
                                 void *stream, bool *done_out);

#endif
