/* Which slot of the collectives' workspace a partial sum may be written to.
 *
 * A rank's slot is read by the other ranks while they run the collective, and nothing tells the writer when
 * they have finished. But every collective is a meeting: a rank that has passed one knows that the others had
 * arrived, hence had finished everything before it. Following what each rank knows of each (a vector clock,
 * one entry per pair of devices) shows, when the program is compiled, whether a slot is free again; if none
 * is, there is one more slot. Where all devices take part in every collective two slots are used in turn;
 * groups of devices that overlap may need more. */
#ifndef TSR_GRAPH_LOWER_SLOTS_H
#define TSR_GRAPH_LOWER_SLOTS_H

#include <stdint.h>

#include "core/status.h"

typedef struct tsr_slots {
    int n_devices;
    int n_slots, capacity;
    int *known;  /* [n_devices][n_devices] last collective at which d knows that r had arrived; -1 = none */
    int *merged; /* [n_devices] scratch */
    int *last;   /* [n_slots][n_devices] collective that last read d's slot; -1 = never used */
    uint64_t *readers; /* [n_slots][n_devices] ranks that read it then */
} tsr_slots;

tsr_status tsr_slots_init(tsr_slots *slots, int n_devices);
void tsr_slots_free(tsr_slots *slots);

/* A slot that every device of `writers` may write now. */
tsr_status tsr_slots_choose(tsr_slots *slots, uint64_t writers, int *slot_out);

/* Collective number `collective` (ascending) is run by `participants`, who read the writers' slot. */
void tsr_slots_barrier(tsr_slots *slots, int collective, uint64_t participants, uint64_t writers, int slot);

/* A transfer: the receivers learn what the sender knew; the sender learns nothing. */
void tsr_slots_transfer(tsr_slots *slots, int collective, uint64_t sender, uint64_t receivers);

#endif
