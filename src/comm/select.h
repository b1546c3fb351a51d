/* A communicator that has several implementations to choose from, and makes each collective with the one that
 * was measured to be the fastest for its size on these devices.
 *
 * The measuring is done once, when it is created: for a few sizes, all-reduces of each implementation that
 * serves all devices together, in programs such as the real ones are. It is also a probe. Before its times
 * count, an implementation must bring back the right sum on every device within a deadline; one that does not
 * is dropped with a warning. Nothing of this changes a result: exact sums are the same bits whichever way
 * they come about.
 *
 * A collective belongs to the implementation that made it (collective->comm) and is run by it. Programs that
 * use several of them work, since each orders its collectives by the devices' own order of work. */
#ifndef TSR_COMM_SELECT_H
#define TSR_COMM_SELECT_H

#include <tsr/log.h>

#include "core/comm.h"

enum { TSR_COMM_MAX_MEMBERS = 6, TSR_COMM_MAX_ROWS = 8 };

/* What serves all-reduces of up to `bytes` (of one device's partial) and more than the row before; the last
 * row serves all larger ones, too. */
typedef struct tsr_comm_row {
    size_t bytes;
    const char *kind;    /* of the implementation */
    uint64_t latency_ns; /* measured for `bytes`; 0: nothing was to be measured */
} tsr_comm_row;

/* `comms`: the implementations, those to be preferred where nothing was measured first; the last one serves
 * every collective (of the others `serves` is asked). They belong to the new communicator, also where this
 * fails. `budget_ns`: no further size is begun that would probably exceed it; what is not measured is served
 * as the largest size that was. TSR_ERR_MEMORY, or a failure of a device. */
tsr_status tsr_comm_select_create(tsr_device *const *devices, int n_devices, tsr_comm *const *comms,
                                  int n_comms, uint64_t budget_ns, const tsr_logger *logger,
                                  tsr_comm **comm_out);

/* What there is to choose from, in the order of preference; the value is their number. A communicator that
 * was not made by the function above is its own only one. For measuring them. */
int tsr_comm_select_members(tsr_comm *comm, tsr_comm *members[TSR_COMM_MAX_MEMBERS]);

/* The table; the value is its number of rows, at least 1. 0 for a communicator that was not made by the
 * function above. */
int tsr_comm_select_rows(const tsr_comm *comm, tsr_comm_row rows[TSR_COMM_MAX_ROWS]);

#endif
