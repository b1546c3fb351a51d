/* Test collectives between devices: all-reduces and transfers that check the result and measure the time. */
#ifndef TSR_COMM_PROBE_H
#define TSR_COMM_PROBE_H

#include "core/comm.h"

enum { TSR_PROBE_MAX_OPS = 32 };

typedef struct tsr_probe_config {
    tsr_device *const *devices; /* [n_devices], those of the communicators to test */
    int n_devices;
    tsr_device_set participants; /* 0: all devices */
    tsr_op_kind kind;            /* ALL_REDUCE of exact partials; or SEND between two participants, in
                            * alternating directions */
    int64_t n;                   /* elements */
    bool zeros;                  /* otherwise numbers whose sum is known */
    uint64_t timeout_ns;         /* of one timed run; 0: none */
    uint64_t enough_ns;          /* after runs of this duration no further one is timed; 0: no limit */
} tsr_probe_config;

/* Buffers of `n` elements on every participant: two partials, used in turn, and a sum. */
typedef struct tsr_probe tsr_probe;

/* Nothing is charged to the devices. TSR_ERR_MEMORY, or a failure of a device. */
tsr_status tsr_probe_create(const tsr_probe_config *config, tsr_probe **probe_out);
void tsr_probe_destroy(tsr_probe *probe); /* NULL is fine */

/* Whether the communicator makes all-reduces between all `participants`. */
bool tsr_probe_serves(const tsr_comm *comm, tsr_device_set participants);

/* Run one all-reduce and compare the sums. If they are wrong, or not complete within `timeout_ns`,
 * `problem` is a sentence about that; "" otherwise. No work is in flight afterwards, whatever fails. */
tsr_status tsr_probe_check(tsr_probe *probe, tsr_comm *comm, uint64_t timeout_ns, char *problem,
                           size_t problem_bytes);

/* Time per operation of `n_ops` (at most TSR_PROBE_MAX_OPS) consecutive operations, including start and
 * synchronisation of the devices: the median of three runs after one warm-up. It may stop early once it is
 * clearly much slower than `best_ns`. After a failure no work is in flight. */
tsr_status tsr_probe_measure(tsr_probe *probe, tsr_comm *comm, int n_ops, uint64_t best_ns, uint64_t *ns_out);

/* The duration of all timed runs and their warm-ups so far, without that of making programs. */
uint64_t tsr_probe_run_ns(const tsr_probe *probe);

#endif
