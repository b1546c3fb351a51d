/* Choosing the slot of the collectives' workspace for a partial sum.
 *
 * Other ranks read a rank's slot during the collective, and the writer gets no signal when the readers have
 * finished. But every collective is a barrier: when a rank has passed it, all participants had arrived, and
 * so had finished everything before it. A vector clock (one entry per pair of devices), computed when the
 * program is compiled, shows whether a slot is free again; if no slot is free, one is added. If all devices
 * take part in every collective, two slots are used in turn; overlapping groups of devices may need more. */
#ifndef TSR_GRAPH_LOWER_SLOTS_H
#define TSR_GRAPH_LOWER_SLOTS_H

#include <stdint.h>

#include "core/device_set.h"
#include "core/status.h"

typedef struct tsr_slots {
    int n_devices;
    int n_slots, capacity;
    int *known;  /* [n_devices][n_devices] last collective at which d knows that r had arrived; -1 = none */
    int *merged; /* [n_devices] scratch */
    int *last;   /* [n_slots][n_devices] collective that last read d's slot; -1 = never used */
    tsr_device_set *readers; /* [n_slots][n_devices] ranks that read it in that collective */
} tsr_slots;

tsr_status tsr_slots_init(tsr_slots *slots, int n_devices);
void tsr_slots_free(tsr_slots *slots);

/* Choose a slot that every device of `writers` may write now. */
tsr_status tsr_slots_choose(tsr_slots *slots, tsr_device_set writers, int *slot_out);

/* Collective number `collective` (ascending): `participants` arrive and read the writers' slot. */
void tsr_slots_barrier(tsr_slots *slots, int collective, tsr_device_set participants, tsr_device_set writers,
                       int slot);

/* A transfer: the sender's clock is merged into the receivers' clocks; the sender's does not change. */
void tsr_slots_transfer(tsr_slots *slots, int collective, tsr_device_set sender, tsr_device_set receivers);

#endif
