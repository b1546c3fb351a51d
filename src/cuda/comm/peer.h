/* Collectives between CUDA devices that can read each other's memory: GPUs with peer access, and devices on
 * one GPU. Everything is kernels and copies in the devices' own streams, so a whole step can be captured into
 * one CUDA graph.
 *
 * An all-reduce is one kernel in one shot: each device says that its partial is ready, waits until all are,
 * and adds up all partials itself. That is the fastest way for messages of a decode step, where latency is
 * all that counts, and the norm that follows fits into the same kernel. In two shots (two_shot.cu) the
 * devices share out the adding and then read each other's sums: for messages of a prompt, where bytes count.
 * Each is a communicator, so that they can be measured against each other (comm/select.h). */
#ifndef TSR_CUDA_COMM_PEER_H
#define TSR_CUDA_COMM_PEER_H

#include "core/comm.h"

/* Which devices can read and write each other's memory: reach_out[i] has bit j if i and j both can; it is 0
 * for host devices. Peer access is enabled on the way, and tried with patterns in both directions before it
 * is believed; a pair that fails is logged as a warning, and is no error. */
tsr_status tsr_cuda_peers_test(tsr_device *const *devices, int n_devices, const tsr_logger *logger,
                               uint64_t *reach_out);

/* For CUDA devices, which must outlive it, with devices[i]->index == i, and what the test says of them. It
 * serves collectives whose participants all reach each other. */
tsr_status tsr_comm_peer_create(tsr_device *const *devices, int n_devices, const uint64_t *reach,
                                bool two_shot, tsr_comm **comm_out);

#endif
