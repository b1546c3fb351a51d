/* Choosing slots of the workspace with a vector clock (slots.h). */
#include "graph/lower/slots.h"

#include <string.h>

#include "core/mem.h"

tsr_status tsr_slots_init(tsr_slots *slots, int n_devices)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)n_devices;
    *slots = (tsr_slots){.n_devices = n_devices};
    TSR_TRY(tsr_mem_array(n * n, sizeof(int), "workspace clocks", &slots->known));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "workspace clocks", &slots->merged));
    for (size_t i = 0; i < n * n; i++)
        slots->known[i] = -1;
out:
    return status;
}

void tsr_slots_free(tsr_slots *slots)
{
    tsr_mem_free(slots->known);
    tsr_mem_free(slots->merged);
    tsr_mem_free(slots->last);
    tsr_mem_free(slots->readers);
    *slots = (tsr_slots){0};
}

static tsr_status add_slot(tsr_slots *slots)
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

/* Whether every reader of device d's slot has arrived at a later collective, as known to d. */
static bool is_free(const tsr_slots *slots, int slot, int d)
{
    int last = slots->last[slot * slots->n_devices + d];
    tsr_device_set readers = slots->readers[slot * slots->n_devices + d];
    TSR_FOR_DEVICES(r, readers)
        if (r != d && slots->known[d * slots->n_devices + r] <= last)
            return false;
    return true;
}

tsr_status tsr_slots_choose(tsr_slots *slots, tsr_device_set writers, int *slot_out)
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
static void learn(tsr_slots *slots, int collective, tsr_device_set from, tsr_device_set to)
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

void tsr_slots_barrier(tsr_slots *slots, int collective, tsr_device_set participants, tsr_device_set writers,
                       int slot)
{
    learn(slots, collective, participants, participants);
    TSR_FOR_DEVICES(d, writers) {
        slots->last[slot * slots->n_devices + d] = collective;
        slots->readers[slot * slots->n_devices + d] = participants;
    }
}

void tsr_slots_transfer(tsr_slots *slots, int collective, tsr_device_set sender, tsr_device_set receivers)
{
    learn(slots, collective, sender, receivers);
}
