/* A communicator over several implementations, which makes each collective with the implementation that
 * was measured to be the fastest for its size on these devices.
 *
 * Creation measures all-reduces of a few sizes, in real programs, for each implementation that serves all
 * members together. An implementation is probed first. If it fails, or does not return the right sum on every
 * device within a deadline, it is dropped with a warning, and so is one that fails while it is measured; the
 * last one is a failure. The selection does not change results: all implementations give the same bits of
 * exact sums.
 *
 * A collective belongs to the implementation that made it (collective->comm) and is run by it. Programs
 * may use several implementations, since each orders its collectives by the devices' own order of work. */
#ifndef TSR_COMM_SELECT_H
#define TSR_COMM_SELECT_H

#include <tsr/log.h>

#include "core/comm.h"

enum { TSR_COMM_MAX_MEMBERS = 6, TSR_COMM_MAX_ROWS = 8 };

/* A row of the table: all-reduces of up to `bytes` (of one device's partial) and more than the previous
 * row; the last row serves all larger ones, too. */
typedef struct tsr_comm_row {
    size_t bytes;
    const char *kind;    /* of the implementation */
    uint64_t latency_ns; /* measured for `bytes`; 0: a guess */
} tsr_comm_row;

/* Time of the collectives that are measured, without that of making them. */
typedef struct tsr_comm_budget {
    uint64_t all_ns;     /* of all: sizes that would probably exceed it are not measured */
    uint64_t smaller_ns; /* of the sizes below 256 KiB or 4 MiB, which are not measured if it is exceeded */
} tsr_comm_budget;

/* Between `members` of devices[n_devices], none of them a stand-in. `comms`: the implementations, in the
 * order of preference for unmeasured collectives. The last one serves every collective; `serves` of the
 * others is called. The new communicator owns them, even if this call fails. 4 KiB are always measured, 256
 * KiB and 4 MiB unless smaller sizes took longer than budget.smaller_ns; they are then served as the largest
 * size that was measured. Other sizes that would probably exceed budget.all_ns are served as their
 * neighbours. TSR_ERR_MEMORY, or a failure of a device or of the last implementation. */
tsr_status tsr_comm_select_create(tsr_device *const *devices, int n_devices, tsr_device_set members,
                                  tsr_comm *const *comms, int n_comms, tsr_comm_budget budget,
                                  const tsr_logger *logger, tsr_comm **comm_out);

/* After a device was lost while the implementation `kind` was made or tried: say so in the stored sentence,
 * and what avoids it. The value is TSR_ERR_DEVICE_LOST. */
tsr_status tsr_comm_fail_lost(const char *kind);

/* The implementations, in the order of preference; the value is their number. A communicator that was not
 * made by the function above is its own only one. For measuring them. */
int tsr_comm_select_members(tsr_comm *comm, tsr_comm *members[TSR_COMM_MAX_MEMBERS]);

/* The table; the value is its number of rows, at least 1. 0 for a communicator that was not made by the
 * function above. */
int tsr_comm_select_rows(const tsr_comm *comm, tsr_comm_row rows[TSR_COMM_MAX_ROWS]);

#endif
