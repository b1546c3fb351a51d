/* A first sum: it connects the ranks, makes NCCL allocate its memory, and shows that results are correct
 * before anything depends on them. */
#ifndef TSR_CUDA_COMM_NCCL_PROBE_H
#define TSR_CUDA_COMM_NCCL_PROBE_H

#include "cuda/comm/nccl_clique.h"

/* By all members at once; devices[i] is NULL for one of another process, the others have no work in flight.
 * TSR_ERR_DEVICE: a wrong sum, or a call failed.
 * TSR_ERR_TIMEOUT: no sum in time; the clique has been aborted, and a device that was not quiescent even then
 * is given up. */
tsr_status tsr_nccl_probe(tsr_nccl_clique *clique, tsr_cuda_device *const *devices, tsr_device_set members,
                          uint64_t timeout_ns);

#endif
