/* NCCL communicators of some devices of a process: one per device, which together are a clique.
 *
 * NCCL's rules for its non-blocking communicators (user guide, "Fault Tolerance", "Thread Safety", "Using
 * NCCL with CUDA Graphs"), and how they are kept here:
 *
 *  - A call may return before it has taken effect; until ncclCommGetAsyncError() says so, neither NCCL nor
 *    the stream may be used. tsr_nccl_clique_issue() returns when it has.
 *  - One thread uses a communicator at a time, and none while it is aborted. There is a lock per rank, never
 *    held for long, and abort takes the communicator away under it.
 *  - A communicator's last abort may wait until no CUDA graph has its operations any more. So a thread that
 *    each clique has does the aborting; whoever asks for it never waits. */
#ifndef TSR_CUDA_COMM_NCCL_CLIQUE_H
#define TSR_CUDA_COMM_NCCL_CLIQUE_H

#include <stdint.h>

#include "cuda/comm/nccl_library.h"
#include "cuda/context/context.h"

typedef struct tsr_nccl_clique tsr_nccl_clique;

/* Communicators of the devices with a bit in `members`; their ranks are in the order of devices. Blocks until
 * all are connected or `timeout_ns` has passed: TSR_ERR_TIMEOUT names those that are not. TSR_ERR_DEVICE,
 * TSR_ERR_MEMORY. The devices must outlive it. */
tsr_status tsr_nccl_clique_create(const tsr_nccl_library *nccl, tsr_cuda_device *const *devices,
                                  uint64_t members, uint64_t timeout_ns, tsr_nccl_clique **clique_out);

/* End whatever is under way on the devices, and refuse what comes. Returns at once. Any thread, any number of
 * times. */
void tsr_nccl_clique_abort(tsr_nccl_clique *clique);

/* Aborts it and waits, for `timeout_ns` at most, until no call made before can take effect any more. */
void tsr_nccl_clique_stop(tsr_nccl_clique *clique, uint64_t timeout_ns);

/* Aborts it. Waits for `timeout_ns` at most until NCCL has released everything, which it does not before
 * captured graphs with operations of this clique are destroyed; then it is left to do so in the background.
 * NULL is fine. */
void tsr_nccl_clique_destroy(tsr_nccl_clique *clique, uint64_t timeout_ns);

/* A link for the owner's use, NULL at first. */
tsr_nccl_clique **tsr_nccl_clique_next(tsr_nccl_clique *clique);

/* Rank of device `index`, a member. */
int tsr_nccl_clique_rank(const tsr_nccl_clique *clique, int index);

/* Makes NCCL calls for the rank of device `index`, through TSR_NCCL_ON. */
typedef tsr_status (*tsr_nccl_calls)(const tsr_nccl_library *nccl, ncclComm_t comm, int index, void *what);

/* Issue operations of the devices in `devices`, members all, as one group: of one device, on that device's
 * own thread, or of all at once. Waits until the streams have them, which may take until all ranks have
 * issued theirs. TSR_ERR_DEVICE if a call fails, or if the clique is aborted; TSR_ERR_TIMEOUT after
 * `deadline_ns` (tsr_clock_ns()). */
tsr_status tsr_nccl_clique_issue(tsr_nccl_clique *clique, uint64_t devices, tsr_nccl_calls calls, void *what,
                                 uint64_t deadline_ns);

/* Whether an operation of device `index` has failed behind its back. Any thread. An aborted clique has
 * not. */
tsr_status tsr_nccl_clique_poll(tsr_nccl_clique *clique, int index);

#endif
