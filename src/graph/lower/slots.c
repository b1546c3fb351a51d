/* Choosing slots of the workspace with a vector clock (slots.h). */
#include "graph/lower/slots.h"

#include <string.h>

#include "core/mem.h"

typedef struct slot_clocks {
    int n_devices;
    int n_slots, capacity;
    int *known;  /* [n_devices][n_devices] last collective at which d knows that r had arrived; -1 = none */
    int *merged; /* [n_devices] scratch */
    int *last;   /* [n_slots][n_devices] collective that last read d's slot; -1 = never used */
    tsr_device_set *readers; /* [n_slots][n_devices] ranks that read it in that collective */
} slot_clocks;

static tsr_status init(slot_clocks *slots, int n_devices)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)n_devices;
    *slots = (slot_clocks){.n_devices = n_devices};
    TSR_TRY(tsr_mem_array(n * n, sizeof(int), "workspace clocks", &slots->known));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "workspace clocks", &slots->merged));
    for (size_t i = 0; i < n * n; i++)
        slots->known[i] = -1;
out:
    return status;
}

static void release(slot_clocks *slots)
{
    tsr_mem_free(slots->known);
    tsr_mem_free(slots->merged);
    tsr_mem_free(slots->last);
    tsr_mem_free(slots->readers);
    *slots = (slot_clocks){0};
}

static tsr_status add_slot(slot_clocks *slots)
{
    if (slots->n_slots == slots->capacity) {
        int capacity = slots->capacity ? 2 * slots->capacity : 2;
        size_t n = (size_t)capacity * (size_t)slots->n_devices;
        int *last = tsr_mem_realloc(slots->last, n, sizeof *last);
        if (last)
            slots->last = last;
        tsr_device_set *readers = last ? tsr_mem_realloc(slots->readers, n, sizeof *readers) : NULL;
        if (!readers)
            return tsr_fail(TSR_ERR_MEMORY, "out of host memory for %d workspace slots", capacity);
        slots->readers = readers;
        slots->capacity = capacity;
    }
    for (int d = 0; d < slots->n_devices; d++) {
        slots->last[slots->n_slots * slots->n_devices + d] = -1;
        slots->readers[slots->n_slots * slots->n_devices + d] = 0;
    }
    slots->n_slots++;
    return TSR_OK;
}

/* Whether every reader of device d's slot has arrived at a later collective, as known to d, and d itself has
 * passed the collective that read it. */
static bool is_free(const slot_clocks *slots, int slot, int d)
{
    int last = slots->last[slot * slots->n_devices + d];
    tsr_device_set readers = slots->readers[slot * slots->n_devices + d];
    TSR_FOR_DEVICES(r, readers)
        if (slots->known[d * slots->n_devices + r] < last + (r != d))
            return false;
    return true;
}

/* Choose a slot that every device of `writers` may write now. */
static tsr_status choose(slot_clocks *slots, tsr_device_set writers, int *slot_out)
{
    for (int s = 0; s < slots->n_slots; s++) {
        bool all_free = true;
        for (int d = 0; d < slots->n_devices && all_free; d++)
            all_free = !tsr_device_set_has(writers, d) || is_free(slots, s, d);
        if (all_free) {
            *slot_out = s;
            return TSR_OK;
        }
    }
    tsr_status status = add_slot(slots);
    if (status == TSR_OK)
        *slot_out = slots->n_slots - 1;
    return status;
}

/* Merge the clocks of all devices of `from`, and their arrival at `collective`, into the clocks of `to`. */
static void learn(slot_clocks *slots, int collective, tsr_device_set from, tsr_device_set to)
{
    int n = slots->n_devices;
    for (int r = 0; r < n; r++) {
        slots->merged[r] = tsr_device_set_has(from, r) ? collective : -1;
        TSR_FOR_DEVICES(d, from)
            slots->merged[r] = TSR_MAX(slots->merged[r], slots->known[d * n + r]);
    }
    for (int d = 0; d < n; d++)
        for (int r = 0; r < n; r++)
            if (tsr_device_set_has(to, d))
                slots->known[d * n + r] = TSR_MAX(slots->known[d * n + r], slots->merged[r]);
}

/* The writers' slot is read in `collective`. */
static void read_slot(slot_clocks *slots, int collective, tsr_device_set participants, tsr_device_set writers,
                      int slot)
{
    TSR_FOR_DEVICES(d, writers) {
        slots->last[slot * slots->n_devices + d] = collective;
        slots->readers[slot * slots->n_devices + d] = participants;
    }
}

/* What instruction i means for slots: it makes a PARTIAL, or reads or passes a collective. */
static tsr_status follow(slot_clocks *slots, tsr_lowered *low, int i)
{
    tsr_status status = TSR_OK;
    const tsr_instr *instr = &low->instrs[i];
    tsr_value *out = instr->out >= 0 ? &low->values[instr->out] : NULL;
    const tsr_value *onto = instr->n_in > 2 ? &low->values[instr->in[2]] : NULL;
    if (out && out->sharding == TSR_SHARDING_PARTIAL && instr->part == 0) {
        if (onto && onto->sharding == TSR_SHARDING_PARTIAL)
            out->slot = onto->slot;
        else
            TSR_TRY(choose(slots, out->devices, &out->slot));
    } else if (instr->kind == TSR_OP_ALL_REDUCE || instr->kind == TSR_OP_ALL_GATHER) {
        const tsr_value *in = &low->values[instr->in[0]];
        const bool sum = instr->kind == TSR_OP_ALL_REDUCE;
        read_slot(slots, instr->collective, instr->devices, sum ? in->contributors : in->devices, in->slot);
        if (!instr->beside)
            learn(slots, instr->collective, instr->devices, instr->devices);
    } else if (instr->kind == TSR_OP_JOIN) {
        learn(slots, instr->collective, instr->devices, instr->devices);
    } else if (instr->kind == TSR_OP_RECV) { /* the SEND is before it; the sender's clock does not change */
        learn(slots, instr->collective, low->instrs[i - 1].devices, instr->devices);
    }
out:
    return status;
}

tsr_status tsr_slots_choose(tsr_lowered *lowered, int n_devices)
{
    tsr_status status = TSR_OK;
    slot_clocks slots;
    TSR_TRY(init(&slots, n_devices));
    for (int i = 0; i < lowered->n_instrs; i++)
        TSR_TRY(follow(&slots, lowered, i));
out:
    release(&slots);
    return status;
}
