/* A plan's notes. */
#ifndef TSR_PLAN_NOTES_H
#define TSR_PLAN_NOTES_H

#include "plan/offload.h"
#include "plan/plan.h"

/* Append a note, as printf() writes it; nothing once the plan has TSR_PLAN_MAX_NOTES. */
tsr_status tsr_plan_add_note(tsr_plan *plan, const char *format, ...) TSR_PRINTF(2, 3);

/* Notes that explain the decision: what is offloaded, devices left out, shares that round to nothing. */
tsr_status tsr_plan_write_notes(tsr_plan *plan, const tsr_offload_map *map);

/* Each host device of a NUMA node may have all of its memory, so that unequal shares fit. No cap limits the
 * sum over these devices; the plan gets a note if the sum is more than the memory of the node. */
tsr_status tsr_plan_note_shared_memory(const tsr_device_list *devices, tsr_plan *plan);

#endif
