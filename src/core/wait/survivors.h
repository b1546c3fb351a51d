/* After a loss: which processes of a runtime are still there, agreed among them.
 *
 * In each round a process sends its list of the processes that are there to all others, and takes those of
 * the processes on the list. It strikes out one that does not answer in time, or that another one has struck
 * out. The round in which all lists are the same is the last, but for the first one: a process that comes
 * late finds the messages of that round, and is told in the next that it was struck out. Processes that
 * cannot reach each other end in different groups, each of which goes on by itself: they compute the same,
 * and share nothing that could come to differ. */
#ifndef TSR_CORE_WAIT_SURVIVORS_H
#define TSR_CORE_WAIT_SURVIVORS_H

#include <tsr/transport.h>

#include "core/status.h"

/* `candidates`: one bit for each process that may be there, this one among them; it need not be the same
 * everywhere. `said`: bits that this process contributes. Write the processes that are there, and the bits of
 * any of them: both the same in all. A process that does not answer is waited for limit_ns in the first
 * round, and another limit_ns in each further round, since others may have begun to wait later.
 *
 * `tag` serves one such agreement only: messages to lost processes stay in flight. TSR_ERR_DEVICE_LOST where
 * the others have struck out this process, or where the transport fails, with its words; TSR_ERR_MEMORY. */
tsr_status tsr_survivors_agree(const tsr_transport *transport, int tag, uint64_t limit_ns,
                               uint64_t candidates, uint64_t said, uint64_t *survivors_out,
                               uint64_t *said_by_all_out);

#endif
