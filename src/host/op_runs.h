/* Which ops of a program need no barrier between them.
 *
 * An op run is a sequence of neighbouring ops none of which reads or overwrites the results of another: the
 * products of one input (queries, keys and values; gate and up), the ropes of queries and keys. Threads go
 * through an op run without barriers: a thread that has finished its share of one op starts on the next. A
 * late thread therefore delays the others once per op run, not once per op. */
#ifndef TSR_HOST_OP_RUNS_H
#define TSR_HOST_OP_RUNS_H

#include <stdbool.h>

#include "core/op.h"

enum { TSR_HOST_RUN_OPS = 8 }; /* most ops of a run; a device has a chunk counter for each */

/* Whether ops[n] can join the run ops[0..n): n >= 1. Collectives never can. */
bool tsr_host_joins_run(const tsr_op *ops, int n);

/* Whether the op takes no less time with more threads: it has one row, or less work than a barrier takes. The
 * kernels of such ops take no chunks. */
bool tsr_host_is_for_one_thread(const tsr_op *op);

#endif
