/* The packing validator: every pair of items, every byte range, nothing clever. */
#include "alloc/pack.h"

#include "core/status.h"

static tsr_status check_place(const tsr_pack_problem *problem, const tsr_pack_solution *solution, int i)
{
    const tsr_pack_item *item = &problem->items[i];
    const tsr_pack_place *place = &solution->places[i];
    size_t alignment = item->alignment ? item->alignment : 1;

    if (place->chunk < 0 || place->chunk >= solution->n_chunks)
        return tsr_fail(TSR_ERR_INVALID, "item %d lies in chunk %d of %d", i, place->chunk,
                        solution->n_chunks);
    if (place->offset % alignment)
        return tsr_fail(TSR_ERR_INVALID, "item %d lies at %zu, not aligned to %zu", i, place->offset,
                        alignment);
    if (place->offset > solution->chunk_bytes[place->chunk] ||
        item->size > solution->chunk_bytes[place->chunk] - place->offset)
        return tsr_fail(TSR_ERR_INVALID, "item %d of %zu bytes at %zu leaves chunk %d of %zu bytes", i,
                        item->size, place->offset, place->chunk, solution->chunk_bytes[place->chunk]);
    if (item->fixed_offset >= 0 && (place->chunk != 0 || place->offset != (size_t)item->fixed_offset))
        return tsr_fail(TSR_ERR_INVALID, "item %d is fixed at %lld of chunk 0 but lies at %zu of chunk %d", i,
                        (long long)item->fixed_offset, place->offset, place->chunk);
    return TSR_OK;
}

static tsr_status check_pair(const tsr_pack_problem *problem, const tsr_pack_solution *solution, int i, int j)
{
    const tsr_pack_item *a = &problem->items[i], *b = &problem->items[j];
    const tsr_pack_place *p = &solution->places[i], *q = &solution->places[j];

    if (p->chunk != q->chunk || a->upper <= b->lower || b->upper <= a->lower)
        return TSR_OK;
    if (a->size == 0 || b->size == 0 || p->offset + a->size <= q->offset || q->offset + b->size <= p->offset)
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "items %d and %d, live at the same time, share bytes of chunk %d", i, j,
                    p->chunk);
}

tsr_status tsr_pack_check(const tsr_pack_problem *problem, const tsr_pack_solution *solution)
{
    tsr_status status = TSR_OK;
    size_t total = 0;

    if (solution->n_items != problem->n_items)
        return tsr_fail(TSR_ERR_INVALID, "the solution has %d of %d items", solution->n_items,
                        problem->n_items);
    for (int c = 0; c < solution->n_chunks; c++) {
        if (problem->max_chunk_bytes && solution->chunk_bytes[c] > problem->max_chunk_bytes)
            return tsr_fail(TSR_ERR_INVALID, "chunk %d has %zu bytes, %zu are allowed", c,
                            solution->chunk_bytes[c], problem->max_chunk_bytes);
        total += solution->chunk_bytes[c];
    }
    if (total != solution->total_bytes)
        return tsr_fail(TSR_ERR_INVALID, "the chunks have %zu bytes, the solution says %zu", total,
                        solution->total_bytes);
    for (int i = 0; i < problem->n_items; i++) {
        TSR_TRY(check_place(problem, solution, i));
        for (int j = 0; j < i; j++)
            TSR_TRY(check_pair(problem, solution, i, j));
    }
out:
    return status;
}
