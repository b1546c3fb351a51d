/* The packing validator: every pair of items, every byte range, nothing clever. Where items must share it
 * finds everybody's piece anew for each item, which is cubic. */
#include "alloc/pack/pack.h"

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

/* The item where the chain of partners that must share ends, or the least one of its circle. */
static int end_of_chain(const tsr_pack_problem *problem, int i)
{
    for (int step = 0; step < problem->n_items && problem->items[i].share == TSR_PACK_MUST_SHARE; step++)
        i = problem->items[i].partner;
    int least = i;
    for (int step = 0; step < problem->n_items && problem->items[i].share == TSR_PACK_MUST_SHARE; step++) {
        i = problem->items[i].partner;
        least = i < least ? i : least;
    }
    return problem->items[i].share == TSR_PACK_MUST_SHARE ? least : i;
}

/* The piece that item i must be one with: its life and its size. */
static tsr_pack_item piece_of(const tsr_pack_problem *problem, int i)
{
    tsr_pack_item piece = problem->items[i];
    for (int j = 0; j < problem->n_items; j++) {
        const tsr_pack_item *item = &problem->items[j];
        if (end_of_chain(problem, j) != end_of_chain(problem, i))
            continue;
        piece.lower = item->lower < piece.lower ? item->lower : piece.lower;
        piece.upper = item->upper > piece.upper ? item->upper : piece.upper;
        piece.size = item->size > piece.size ? item->size : piece.size;
    }
    return piece;
}

/* Whether items i and j, which lie at the same place, may be there at the same time: they must, or some item
 * that must lie with the one may share with some that must lie with the other. */
static bool may_share(const tsr_pack_problem *problem, int i, int j)
{
    int a = end_of_chain(problem, i), b = end_of_chain(problem, j);
    for (int k = 0; k < problem->n_items && a != b; k++) {
        if (problem->items[k].share != TSR_PACK_MAY_SHARE)
            continue;
        int x = end_of_chain(problem, k), y = end_of_chain(problem, problem->items[k].partner);
        if ((x == a && y == b) || (x == b && y == a))
            return true;
    }
    return a == b;
}

static tsr_status check_partner(const tsr_pack_problem *problem, const tsr_pack_solution *solution, int i)
{
    const tsr_pack_item *item = &problem->items[i];
    if (item->share == TSR_PACK_APART)
        return TSR_OK;
    if (item->partner < 0 || item->partner >= problem->n_items)
        return tsr_fail(TSR_ERR_INVALID, "item %d shares with item %d of %d", i, item->partner,
                        problem->n_items);
    const tsr_pack_place *p = &solution->places[i], *q = &solution->places[item->partner];
    if (item->share == TSR_PACK_MUST_SHARE && (p->chunk != q->chunk || p->offset != q->offset))
        return tsr_fail(TSR_ERR_INVALID,
                        "items %d and %d must share but lie at %zu and %zu of chunks %d and %d", i,
                        item->partner, p->offset, q->offset, p->chunk, q->chunk);
    return TSR_OK;
}

static tsr_status check_pair(const tsr_pack_problem *problem, const tsr_pack_solution *solution, int i, int j,
                             bool must_share)
{
    const tsr_pack_place *p = &solution->places[i], *q = &solution->places[j];
    tsr_pack_item piece_a = problem->items[i], piece_b = problem->items[j], *a = &piece_a, *b = &piece_b;

    if (must_share) {
        piece_a = piece_of(problem, i);
        piece_b = piece_of(problem, j);
    }
    if (p->chunk != q->chunk || a->upper <= b->lower || b->upper <= a->lower)
        return TSR_OK;
    if (a->size == 0 || b->size == 0 || p->offset + a->size <= q->offset || q->offset + b->size <= p->offset)
        return TSR_OK;
    if (p->offset == q->offset && may_share(problem, i, j))
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "items %d and %d, live at the same time, share bytes of chunk %d", i, j,
                    p->chunk);
}

tsr_status tsr_pack_check(const tsr_pack_problem *problem, const tsr_pack_solution *solution)
{
    tsr_status status = TSR_OK;
    size_t total = 0;
    bool must_share = false;

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
        must_share = must_share || problem->items[i].share == TSR_PACK_MUST_SHARE;
        TSR_TRY(check_partner(problem, solution, i));
    }
    for (int i = 0; i < problem->n_items; i++) {
        TSR_TRY(check_place(problem, solution, i));
        for (int j = 0; j < i; j++)
            TSR_TRY(check_pair(problem, solution, i, j, must_share));
    }
out:
    return status;
}
