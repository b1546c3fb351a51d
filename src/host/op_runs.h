/* Which ops of a program need no barrier between them.
 *
 * An op run is a sequence of neighbouring ops none of which reads or overwrites what another one of them
 * writes: the products of one input (queries, keys and values; gate and up), the ropes of queries and keys.
 * Threads go through a run without waiting for each other, so whoever is done with one op's share starts on
 * the next, and a thread that comes late holds up the others once per run, not once per op. */
#ifndef TSR_HOST_OP_RUNS_H
#define TSR_HOST_OP_RUNS_H

#include <stdbool.h>

#include "core/op.h"

enum { TSR_HOST_RUN_OPS = 8 }; /* most ops of a run: as many chunk counters a device has */

/* Whether ops[n] can join the run ops[0..n): n >= 1. Collectives never can. */
bool tsr_host_joins_run(const tsr_op *ops, int n);

/* Whether more threads would not make it faster: it is one row, or so little that a barrier takes longer. No
 * such op's kernel asks for chunks. */
bool tsr_host_is_for_one_thread(const tsr_op *op);

#endif
