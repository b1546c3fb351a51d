/* Sums beside products: the ALL_REDUCEs `beside` of a program run in a stream of their own, from their place
 * in the op list to their JOIN (docs/design/overlap.md). In a capture the stream becomes a branch of the
 * graph. Every segment of a program joins all sums that it has forked. */
#ifndef TSR_CUDA_DEVICE_SUMS_H
#define TSR_CUDA_DEVICE_SUMS_H

#include "core/op.h"
#include "cuda/context/context.h"

/* Make the stream, if any of the ops is such a sum and there is no stream yet. The device is current. */
tsr_status tsr_cuda_sums_open(tsr_cuda_device *cuda, const tsr_op *ops, int n_ops);
void tsr_cuda_sums_close(tsr_cuda_device *cuda);

/* Whether a collective may run beside what follows. One without a part of this device may not: it may use the
 * scratch block. */
bool tsr_cuda_sums_may_fork(const tsr_cuda_device *cuda, const tsr_op *op);

/* Enqueue the ALL_REDUCE beside what `stream` does next. */
tsr_status tsr_cuda_sums_fork(tsr_cuda_device *cuda, const tsr_op *op);

/* `stream` waits for the sum of a collective, if it was forked; for all sums. Other collectives must come
 * after all sums: devices run them in one order. */
tsr_status tsr_cuda_sums_join(tsr_cuda_device *cuda, const struct tsr_collective *collective);
tsr_status tsr_cuda_sums_join_all(tsr_cuda_device *cuda);

#endif
