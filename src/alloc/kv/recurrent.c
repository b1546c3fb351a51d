/* States of recurrent layers (alloc/kv/recurrent.h). The device side is that of the pages: a slot is a page
 * whose parts are states, one after another as the layers list them. */
#include "alloc/kv/recurrent.h"

#include <string.h>

#include "core/mem.h"
#include "core/status.h"

/* -- layout -- */

static int count_parts(const tsr_kv_layer *layer)
{
    int n = 0;
    while (n < TSR_KV_MAX_STATES && layer->state[n].map)
        n++;
    return n;
}

/* This device's bytes of a part. */
static size_t part_bytes(const tsr_kv_layer *layer, const tsr_kv_state_part *part, int device)
{
    if (!tsr_device_set_has(layer->devices, device))
        return 0;
    return part->whole ? part->unit_bytes : (size_t)tsr_shard_map_count(part->map, device) * part->unit_bytes;
}

static tsr_status lay_out(tsr_kv_region *region, const tsr_kv_spec *spec)
{
    int device = region->device->index;
    for (int l = 0, i = 0; l < spec->n_layers; l++)
        for (int p = 0; p < count_parts(&spec->layers[l]); p++, i++) {
            const tsr_kv_state_part *part = &spec->layers[l].state[p];
            size_t whole, bytes = part_bytes(&spec->layers[l], part, device);
            const size_t n_units = part->whole ? 1 : (size_t)part->map->extent;
            const size_t first = part->whole ? 0 : (size_t)tsr_shard_map_first(part->map, device);
            if (!tsr_mul_size(n_units, part->unit_bytes, &whole) ||
                whole > (size_t)PTRDIFF_MAX / 2 - region->whole_bytes)
                return tsr_fail(TSR_ERR_INVALID, "device %s: a state of layer %d exceeds the address space",
                                region->device->name, l);
            region->parts[i] = (tsr_kv_part){
                .k_offset = region->page_bytes,
                .k_bytes = bytes,
                .k_whole = region->whole_bytes + first * part->unit_bytes,
                .n_heads = bytes > 0,
                .repeated = part->whole && device > tsr_device_set_first(spec->layers[l].devices)};
            region->whole_bytes += whole;
            region->page_bytes += tsr_align_up(bytes, TSR_KV_PART_ALIGNMENT);
        }
    return TSR_OK;
}

static tsr_status open_region(tsr_kv_region *region, tsr_device *device, const tsr_kv_spec *spec, int n_parts,
                              int n_slots)
{
    tsr_status status = TSR_OK;
    *region = (tsr_kv_region){.device = device, .n_layers = n_parts};
    TSR_TRY(tsr_mem_array((size_t)n_parts, sizeof *region->parts, "the layout of states", &region->parts));
    TSR_TRY(lay_out(region, spec));
    TSR_TRY(tsr_kv_region_reserve(region, n_slots, spec->no_alloc));
out:
    return status;
}

/* -- creation -- */

static void clear(tsr_kv_state *state)
{
    *state =
        (tsr_kv_state){.call.slot = -1, .end.slot = -1, .written = -1, .call_number = state->call_number};
}

tsr_status tsr_kv_states_open(tsr_kv_states *states, tsr_runtime *rt, const tsr_kv_spec *spec)
{
    tsr_status status = TSR_OK;
    int n_parts = 0, n_slots = TSR_KV_SLOTS_PER_SEQUENCE * spec->n_seq_max;
    size_t n_layers = (size_t)spec->n_layers, n_seq = (size_t)spec->n_seq_max;
    *states =
        (tsr_kv_states){.n_devices = rt->n_devices, .n_layers = spec->n_layers, .n_seq_max = spec->n_seq_max};
    TSR_TRY(tsr_mem_array(n_layers, 2 * sizeof *states->first_part, "recurrent layers", &states->first_part));
    states->n_parts = states->first_part + n_layers;
    for (int l = 0; l < spec->n_layers; l++) {
        int n = count_parts(&spec->layers[l]);
        states->first_part[l] = n > 0 ? n_parts : -1;
        states->n_parts[l] = n;
        n_parts += n;
    }
    if (n_parts == 0)
        return TSR_OK;
    states->n_slots = n_slots;
    TSR_TRY(tsr_mem_array((size_t)n_slots, sizeof *states->references, "states", &states->references));
    TSR_TRY(tsr_mem_array(n_seq, sizeof *states->seqs, "states", &states->seqs));
    TSR_TRY(
        tsr_mem_array((size_t)rt->n_devices, sizeof *states->regions, "regions of states", &states->regions));
    for (int s = 0; s < spec->n_seq_max; s++)
        clear(&states->seqs[s]);
    for (int d = 0; d < rt->n_devices; d++)
        TSR_TRY(open_region(&states->regions[d], rt->devices[d], spec, n_parts, n_slots));
out:
    return status;
}

void tsr_kv_states_close(tsr_kv_states *states)
{
    for (int d = 0; states->regions && d < states->n_devices; d++)
        tsr_kv_region_close(&states->regions[d]);
    tsr_mem_free(states->regions);
    tsr_mem_free(states->seqs);
    tsr_mem_free(states->references);
    tsr_mem_free(states->first_part);
    *states = (tsr_kv_states){0};
}

/* -- slots -- */

static tsr_kv_snapshot share(tsr_kv_states *states, tsr_kv_snapshot snapshot)
{
    if (snapshot.slot >= 0)
        states->references[snapshot.slot]++;
    return snapshot;
}

static void release(tsr_kv_states *states, int32_t *slot)
{
    if (*slot >= 0)
        states->references[*slot]--;
    *slot = -1;
}

/* The lowest free slot, so that the committed slots are the high-water mark of slots in use. There are as
 * many slots as all sequences can have. */
tsr_status tsr_kv_states_prepare(tsr_kv_states *states, int seq, int32_t *slot_out)
{
    tsr_status status = TSR_OK;
    int32_t slot = states->seqs[seq].written;
    size_t before[TSR_MAX_DEVICES];
    int n_done = 0;
    if (slot < 0)
        for (slot = 0; states->references[slot] > 0;)
            slot++;
    for (; n_done < states->n_devices; n_done++) {
        before[n_done] = states->regions[n_done].committed;
        TSR_TRY(tsr_kv_region_commit(&states->regions[n_done], slot + 1));
    }
    *slot_out = slot;
out:
    for (int d = 0; d < n_done && status != TSR_OK; d++)
        tsr_kv_region_shrink(&states->regions[d], before[d]);
    return status;
}

void tsr_kv_states_append(tsr_kv_states *states, int seq, int32_t slot)
{
    tsr_kv_state *s = &states->seqs[seq];
    if (s->written >= 0)
        return;
    if (s->call_number != states->call_number) {
        release(states, &s->call.slot);
        s->call = share(states, s->end);
        s->call_number = states->call_number;
    }
    s->written = slot;
    states->references[slot] = 1;
    states->n_touched = TSR_MAX(states->n_touched, slot + 1);
}

void tsr_kv_states_finish(tsr_kv_states *states, const int64_t *lengths)
{
    for (int i = 0; i < states->n_seq_max; i++) {
        tsr_kv_state *s = &states->seqs[i];
        if (s->written < 0)
            continue;
        release(states, &s->end.slot);
        s->end = (tsr_kv_snapshot){lengths[i], s->written};
        s->written = -1;
    }
}

/* -- sequences -- */

bool tsr_kv_states_have(const tsr_kv_states *states, int seq, int64_t length)
{
    const tsr_kv_state *s = &states->seqs[seq];
    return length == s->end.length || length == s->call.length;
}

int64_t tsr_kv_states_least(const tsr_kv_states *states, int seq)
{
    const tsr_kv_state *s = &states->seqs[seq];
    return s->call.length > 0 ? s->call.length : s->end.length;
}

void tsr_kv_states_cut(tsr_kv_states *states, int seq, int64_t length)
{
    tsr_kv_state *s = &states->seqs[seq];
    release(states, &s->written);
    if (length == 0) {
        release(states, &s->end.slot);
        release(states, &s->call.slot);
        clear(s);
    } else if (length != s->end.length) {
        release(states, &s->end.slot);
        s->end = share(states, s->call);
    }
}

void tsr_kv_states_fork(tsr_kv_states *states, int src, int dst)
{
    const tsr_kv_state *from = &states->seqs[src];
    tsr_kv_state *to = &states->seqs[dst];
    clear(to);
    to->end = share(states, from->end);
    to->call = share(states, from->call);
}

void tsr_kv_states_restore(tsr_kv_states *states, int seq, int32_t slot, int64_t length)
{
    tsr_kv_states_append(states, seq, slot);
    states->seqs[seq].end = (tsr_kv_snapshot){length, slot};
    states->seqs[seq].written = -1;
    release(states, &states->seqs[seq].call.slot);
    states->seqs[seq].call = share(states, states->seqs[seq].end);
}

/* -- compaction, another split -- */

static void follow_move(tsr_kv_states *states, int32_t from, int32_t to)
{
    for (int i = 0; i < states->n_seq_max; i++) {
        int32_t *const slots[] = {&states->seqs[i].call.slot, &states->seqs[i].end.slot,
                                  &states->seqs[i].written};
        for (int k = 0; k < 3; k++)
            if (*slots[k] == from)
                *slots[k] = to;
    }
}

tsr_status tsr_kv_states_compact(tsr_kv_states *states)
{
    tsr_status status = TSR_OK;
    int32_t low = 0, high = states->n_touched - 1;
    for (;;) {
        while (low < high && states->references[low] > 0)
            low++;
        while (low < high && states->references[high] == 0)
            high--;
        if (low >= high)
            break;
        for (int d = 0; d < states->n_devices; d++)
            TSR_TRY(tsr_kv_region_copy_page(&states->regions[d], low, high));
        states->references[low] = states->references[high];
        states->references[high] = 0;
        follow_move(states, high, low);
    }
out:
    while (states->n_touched > 0 && states->references[states->n_touched - 1] == 0)
        states->n_touched--;
    for (int d = 0; d < states->n_devices; d++) {
        tsr_status own = tsr_kv_region_trim(&states->regions[d], states->n_touched);
        status = status == TSR_OK ? own : status;
    }
    return status;
}

tsr_status tsr_kv_states_adopt(tsr_kv_states *states, const tsr_kv_states *from)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < states->n_devices; d++)
        TSR_TRY(tsr_kv_region_commit(&states->regions[d], from->n_touched));
    TSR_TRY(tsr_kv_regions_move(states->regions, from->regions, states->n_devices, from->references,
                                from->n_touched));
    memcpy(states->references, from->references, (size_t)states->n_slots * sizeof *states->references);
    memcpy(states->seqs, from->seqs, (size_t)states->n_seq_max * sizeof *states->seqs);
    states->n_touched = from->n_touched;
    states->call_number = from->call_number;
out:
    return status;
}

size_t tsr_kv_states_adopt_bytes(const tsr_kv_states *states, const tsr_kv_layer *layers,
                                 const tsr_device *device)
{
    size_t slot = 0;
    for (int l = 0; l < states->n_layers; l++)
        for (int p = 0; p < count_parts(&layers[l]); p++)
            slot += tsr_align_up(part_bytes(&layers[l], &layers[l].state[p], device->index),
                                 TSR_KV_PART_ALIGNMENT);
    return tsr_align_up(slot * (size_t)states->n_touched, device->granularity);
}
