/* A first sum, so that connections are made, NCCL's memory is taken, and the result is known to be right
 * before anything depends on it. */
#ifndef TSR_CUDA_COMM_NCCL_TRIAL_H
#define TSR_CUDA_COMM_NCCL_TRIAL_H

#include "cuda/comm/nccl_clique.h"

/* All `n_devices` are members, and none has work under way. TSR_ERR_DEVICE: a wrong sum, or a call failed.
 * TSR_ERR_TIMEOUT: no sum in time; the clique has been aborted, and a device that did not come to rest even
 * then is given up. */
tsr_status tsr_nccl_probe(tsr_nccl_clique *clique, tsr_cuda_device *const *devices, int n_devices,
                          uint64_t timeout_ns);

#endif
