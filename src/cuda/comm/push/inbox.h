/* The inboxes of push.h: one per device, all of them in the devices' own memory or all in one block of pinned
 * host memory. */
#ifndef TSR_CUDA_COMM_PUSH_INBOX_H
#define TSR_CUDA_COMM_PUSH_INBOX_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/comm/device_barrier.h"
#include "cuda/context/context.h"

typedef struct tsr_cuda_inboxes {
    tsr_cuda_device *const *devices; /* [n_devices], of the communicator; NULL: not a member */
    int n_devices;
    size_t bytes; /* of one inbox */
    uint64_t *at[TSR_CUDA_MAX_PEERS];
    tsr_cuda_device *keeper; /* the device whose pinned pool has the block; NULL: inboxes are on devices */
    tsr_pool_block *pinned;
} tsr_cuda_inboxes;

/* Inboxes whose words are all empty. Zeroed and partly created ones may be destroyed. */
tsr_status tsr_cuda_inboxes_create(tsr_cuda_inboxes *inboxes, tsr_cuda_device *const *devices, int n_devices,
                                   size_t bytes, bool pinned);
void tsr_cuda_inboxes_destroy(tsr_cuda_inboxes *inboxes);

/* After an abort, while no kernel runs: all words are empty again, but those of lost devices. */
void tsr_cuda_inboxes_reset(tsr_cuda_inboxes *inboxes);

#endif
