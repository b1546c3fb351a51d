/* The GPUs of several processes, by machine. Processes are on one machine when their kernel's boot id and
 * host name are the same. Containers may share both, and no memory: what is built on this is probed. */
#ifndef TSR_CUDA_COMM_BETWEEN_NEIGHBOURS_H
#define TSR_CUDA_COMM_BETWEEN_NEIGHBOURS_H

#include "core/device.h"
#include "core/device_set.h"
#include "core/processes.h"
#include "cuda/comm/device_barrier.h"

typedef struct tsr_cuda_neighbours {
    tsr_device_set on[TSR_CUDA_MAX_PEERS]; /* of each GPU: the GPUs on its machine; 0: no GPU */
    int max_blocks[TSR_CUDA_MAX_PEERS];    /* of each GPU: of kernels with a barrier on its machine */
    int process[TSR_CUDA_MAX_PEERS];       /* of each device */
    bool several;                          /* on some machine there are GPUs of several processes */
    bool share_gpu;                        /* two processes use one GPU */
    bool wait;                             /* all can wait for each other in kernels */
} tsr_cuda_neighbours;

/* Of devices[n_devices], dropped ones excepted. A call of all processes; the result is the same in each. */
tsr_status tsr_cuda_neighbours_find(tsr_device *const *devices, int n_devices, tsr_processes *processes,
                                    tsr_cuda_neighbours *found_out);

/* The number of different processes that the devices are in. */
int tsr_cuda_neighbours_processes(const tsr_cuda_neighbours *neighbours, tsr_device_set devices);

#endif
