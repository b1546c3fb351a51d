/* A plan's notes. */
#ifndef TSR_PLAN_NOTES_H
#define TSR_PLAN_NOTES_H

#include "plan/offload.h"
#include "plan/plan.h"

/* Append a note, as printf() writes it; nothing once the plan has TSR_PLAN_MAX_NOTES. */
tsr_status tsr_plan_add_note(tsr_plan *plan, const char *format, ...) TSR_PRINTF(2, 3);

/* Notes that explain the decision: what is offloaded, devices left out, shares that round to nothing. */
tsr_status tsr_plan_write_notes(tsr_plan *plan, const tsr_offload_map *map);

/* What the descriptions of the devices add to a finished plan. Free memory of host devices is limited to what
 * the machine has available now. Assumed speeds of memory are marked. Notes: more is taken than is available;
 * devices of one NUMA node take more together than it has, since each may have all of it. */
tsr_status tsr_plan_note_devices(const tsr_device_list *devices, tsr_plan *plan);

#endif
