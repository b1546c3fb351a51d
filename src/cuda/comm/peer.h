/* Collectives between CUDA devices by kernels: GPUs with peer access, devices on one GPU, and, through pinned
 * host memory, any GPUs. Everything is kernels and copies in the devices' own streams, so a whole step can be
 * captured into one CUDA graph.
 *
 * A one-shot all-reduce is one kernel: each device announces that its partial is ready, waits until all are,
 * and adds up all partials itself. This is the fastest way for messages of a decode step, where only latency
 * counts, and the norm that follows fits into the same kernel. In two shots (two_shot.cu) each device adds up
 * a share and then reads the other devices' sums: for messages of a prompt, where bytes count. Devices may
 * also write their partials into inboxes of the others (push/push.h), in their memory or in host memory. Each
 * form is a communicator of its own, so that all can be measured (comm/select.h). */
#ifndef TSR_CUDA_COMM_PEER_H
#define TSR_CUDA_COMM_PEER_H

#include "core/comm.h"

struct tsr_cuda_device;

/* Give all GPUs access to each other's memory, mapped memory included, where the driver offers access. A pair
 * that the driver offers and then refuses is logged as a warning, and is no error. */
tsr_status tsr_cuda_peers_open(tsr_device *const *devices, int n_devices, const tsr_logger *logger);

/* After tsr_cuda_peers_open(): whether the driver offers access between two of the devices, and they do not
 * have access. */
bool tsr_cuda_peers_refused(struct tsr_cuda_device *const *devices, int n_devices);

/* Which devices can read and write each other's memory: reach_out[i] has bit j if i and j both can; 0 for
 * host devices. Access is opened as above, and tested with patterns in both directions before it is used. A
 * pair that fails is logged as a warning, and is no error. */
tsr_status tsr_cuda_peers_test(tsr_device *const *devices, int n_devices, const tsr_logger *logger,
                               tsr_device_set *reach_out);

/* The most devices on one GPU that can wait for each other in kernels. Reads CUDA_DEVICE_MAX_CONNECTIONS, as
 * the driver does. */
int tsr_cuda_peers_per_gpu(void);

/* Which devices can wait for each other in kernels, whatever memory they reach: as for tsr_cuda_peers_test(),
 * without access and tests. */
void tsr_cuda_peers_waiting(tsr_device *const *devices, int n_devices, tsr_device_set *reach_out);

typedef enum tsr_peer_form {
    TSR_PEER_ONE_SHOT,
    TSR_PEER_TWO_SHOT,
    TSR_PEER_PUSH,  /* one shot, through inboxes in the devices' memory */
    TSR_PEER_PINNED /* the same through inboxes in pinned host memory, other collectives by copies there */
} tsr_peer_form;

/* For CUDA devices, which must outlive the communicator, with devices[i]->index == i and the `reach` of
 * tsr_cuda_peers_test(), or of tsr_cuda_peers_waiting() for TSR_PEER_PINNED. It supports collectives whose
 * participants all reach each other. */
tsr_status tsr_comm_peer_create(tsr_device *const *devices, int n_devices, const tsr_device_set *reach,
                                tsr_peer_form form, tsr_comm **comm_out);

#endif
