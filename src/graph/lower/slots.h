/* Choosing slots of the collectives' workspace for partial sums.
 *
 * Other ranks read a rank's slot during the collective, and the writer gets no signal when the readers have
 * finished. But every collective is a barrier: when a rank has passed it, all participants had arrived, and
 * so had finished everything before it. A vector clock (one entry per pair of devices), computed when the
 * program is compiled, shows whether a slot is free again; if no slot is free, one is added. If all devices
 * take part in every collective, two slots are used in turn; overlapping groups of devices may need more. A
 * collective that runs beside what follows is passed at its JOIN only, so halves (halves.h) take three. */
#ifndef TSR_GRAPH_LOWER_SLOTS_H
#define TSR_GRAPH_LOWER_SLOTS_H

#include "graph/lower/lowered.h"

/* Choose the slot of every PARTIAL value. Collectives are numbered in the order of their instructions. A
 * value that is added onto another one is in its slot. */
tsr_status tsr_slots_choose(tsr_lowered *lowered, int n_devices);

#endif
