/* Collectives between CUDA devices that can read each other's memory: GPUs with peer access, and devices on
 * one GPU. Everything is kernels and copies in the devices' own streams, so a whole step can be captured into
 * one CUDA graph.
 *
 * An all-reduce is one-shot: a small kernel tells every participant that this device's partial is ready and
 * waits until all are, then each device adds up all partials itself. That is the fastest way for messages of
 * a decode step, where latency is all that counts. */
#ifndef TSR_CUDA_PEER_H
#define TSR_CUDA_PEER_H

#include "core/comm.h"

/* Whether these devices can all read and write each other's memory; peer access is enabled on the way, and
 * tried with patterns in both directions before it is believed. A pair that cannot is no failure. */
tsr_status tsr_cuda_peers_test(tsr_device *const *devices, int n_devices, bool *all_out);

/* For CUDA devices, which must outlive it, with devices[i]->index == i, that passed the test. */
tsr_status tsr_comm_peer_create(tsr_device *const *devices, int n_devices, tsr_comm **comm_out);

#endif
