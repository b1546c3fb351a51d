/* The NCCL communicators of some devices, one per device of this process: a clique. Other members may be
 * devices of other processes, which make the same clique.
 *
 * NCCL's rules for its non-blocking communicators (user guide, "Fault Tolerance", "Thread Safety", "Using
 * NCCL with CUDA Graphs"), and how they are kept here:
 *
 * - A call may return before it has taken effect; until ncclCommGetAsyncError() reports success, neither
 * NCCL nor the stream may be used. tsr_nccl_clique_issue() returns after that. - One thread uses a
 * communicator at a time, and none while it is aborted. There is a lock per rank, never held for long,
 * and abort takes the communicator away under it. - A communicator's last abort may wait until no CUDA
 * graph contains its operations. So a thread of each clique aborts, and requests to abort never wait. */
#ifndef TSR_CUDA_COMM_NCCL_CLIQUE_H
#define TSR_CUDA_COMM_NCCL_CLIQUE_H

#include <stdint.h>

#include "core/device_set.h"
#include "cuda/comm/nccl_library.h"
#include "cuda/context/context.h"

typedef struct tsr_nccl_clique tsr_nccl_clique;

/* What all processes of a clique must know to make it. */
tsr_status tsr_nccl_clique_id(const tsr_nccl_library *nccl, ncclUniqueId *id_out);

/* Communicators of the devices in `members`; their ranks are in the order of devices. devices[i] is NULL
 * for a member of another process; one at least is not. Blocks until all are connected or `timeout_ns`
 * has passed: TSR_ERR_TIMEOUT names the devices that are not connected. TSR_ERR_DEVICE, TSR_ERR_MEMORY.
 * The devices must outlive the clique. */
tsr_status tsr_nccl_clique_create(const tsr_nccl_library *nccl, tsr_cuda_device *const *devices,
                                  tsr_device_set members, const ncclUniqueId *id, uint64_t timeout_ns,
                                  tsr_nccl_clique **clique_out);

/* End the running operations on the devices, and refuse new ones. Returns immediately. Any thread, any number
 * of times. */
void tsr_nccl_clique_abort(tsr_nccl_clique *clique);

/* Abort the clique and wait, for `timeout_ns` at most, until no earlier call can take effect any more. */
void tsr_nccl_clique_stop(tsr_nccl_clique *clique, uint64_t timeout_ns);

/* Abort the clique. Waits for `timeout_ns` at most until NCCL has released everything; NCCL does so after
 * captured graphs with operations of this clique are destroyed. After the timeout the release continues in
 * the background. NULL is fine. */
void tsr_nccl_clique_destroy(tsr_nccl_clique *clique, uint64_t timeout_ns);

/* A link for the owner's use, NULL initially. */
tsr_nccl_clique **tsr_nccl_clique_next(tsr_nccl_clique *clique);

/* Rank of device `index`, a member. */
int tsr_nccl_clique_rank(const tsr_nccl_clique *clique, int index);

/* Makes NCCL calls for the rank of device `index`, through TSR_NCCL_ON. */
typedef tsr_status (*tsr_nccl_calls)(const tsr_nccl_library *nccl, ncclComm_t comm, int index, void *what);

/* The members of this process. */
tsr_device_set tsr_nccl_clique_here(const tsr_nccl_clique *clique);

/* Issue operations of `devices`, members of this process, as one group: of one device on that device's
 * own thread, or of all together. Waits until the operations are enqueued on the streams, which may take
 * until all ranks have issued theirs. TSR_ERR_DEVICE if a call fails, or if the clique is aborted;
 * TSR_ERR_TIMEOUT after `deadline_ns` (tsr_clock_ns()). */
tsr_status tsr_nccl_clique_issue(tsr_nccl_clique *clique, tsr_device_set devices, tsr_nccl_calls calls,
                                 void *what, uint64_t deadline_ns);

/* Whether an operation of device `index` has failed asynchronously. Any thread. An aborted clique reports
 * success. */
tsr_status tsr_nccl_clique_poll(tsr_nccl_clique *clique, int index);

#endif
