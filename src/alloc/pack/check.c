/* The packing validator: checks every item, then every pair of items. Naive on purpose. Items that must share
 * are one block: as large as the largest, live from the first start to the last end. */
#include "alloc/pack/pack.h"

#include "core/mem.h"
#include "core/status.h"

#define REQUIRE(condition, ...)                            \
    do {                                                   \
        if (!(condition))                                  \
            return tsr_fail(TSR_ERR_INVALID, __VA_ARGS__); \
    } while (0)

static tsr_status check_chunks(const tsr_pack_problem *problem, const tsr_pack_solution *s)
{
    size_t total = 0, most = problem->max_chunk_bytes ? problem->max_chunk_bytes : SIZE_MAX;
    REQUIRE(s->n_items == problem->n_items, "the solution has %d of %d items", s->n_items, problem->n_items);
    for (int c = 0; c < s->n_chunks; c++) {
        REQUIRE(s->chunk_bytes[c] <= most, "chunk %d has %zu bytes, %zu are allowed", c, s->chunk_bytes[c],
                most);
        total += s->chunk_bytes[c];
    }
    REQUIRE(total == s->total_bytes, "the chunks have %zu bytes, the solution says %zu", total,
            s->total_bytes);
    return TSR_OK;
}

static tsr_status check_item(const tsr_pack_problem *problem, const tsr_pack_solution *s, int i)
{
    const tsr_pack_item *item = &problem->items[i];
    int chunk = s->places[i].chunk, j = item->partner;
    size_t at = s->places[i].offset, alignment = item->alignment ? item->alignment : 1;

    REQUIRE(chunk >= 0 && chunk < s->n_chunks, "item %d is in chunk %d of %d", i, chunk, s->n_chunks);
    REQUIRE(at % alignment == 0, "item %d is at %zu, not aligned to %zu", i, at, alignment);
    REQUIRE(at <= s->chunk_bytes[chunk] && item->size <= s->chunk_bytes[chunk] - at,
            "item %d of %zu bytes at %zu leaves chunk %d of %zu bytes", i, item->size, at, chunk,
            s->chunk_bytes[chunk]);
    REQUIRE(item->fixed_offset < 0 || (chunk == 0 && at == (size_t)item->fixed_offset),
            "item %d is fixed at %lld of chunk 0 but is at %zu of chunk %d", i, (long long)item->fixed_offset,
            at, chunk);
    REQUIRE(item->share == TSR_PACK_APART || (j >= 0 && j < problem->n_items),
            "item %d shares with item %d of %d", i, j, problem->n_items);
    REQUIRE(item->share != TSR_PACK_MUST_SHARE || (s->places[j].chunk == chunk && s->places[j].offset == at),
            "items %d and %d must share but are at %zu and %zu of chunks %d and %d", i, j, at,
            s->places[j].offset, chunk, s->places[j].chunk);
    return TSR_OK;
}

/* block_of[i] is the number of item i's block; blocks[number] has the block's life and size. */
static void make_blocks(const tsr_pack_problem *problem, int *block_of, tsr_pack_item *blocks)
{
    for (int i = 0; i < problem->n_items; i++) {
        block_of[i] = i;
        blocks[i] = problem->items[i];
    }
    for (int i = 0; i < problem->n_items; i++) {
        int from = block_of[i],
            to = block_of[problem->items[i].share == TSR_PACK_MUST_SHARE ? problem->items[i].partner : i];
        blocks[to].lower = TSR_MIN(blocks[to].lower, blocks[from].lower);
        blocks[to].upper = TSR_MAX(blocks[to].upper, blocks[from].upper);
        blocks[to].size = TSR_MAX(blocks[to].size, blocks[from].size);
        for (int k = 0; k < problem->n_items && to != from; k++)
            block_of[k] = block_of[k] == from ? to : block_of[k];
    }
}

/* Whether a and b are one block, or an item of one names an item of the other as its partner. */
static bool may_share(const tsr_pack_problem *problem, const int *block_of, int a, int b)
{
    bool found = a == b;
    for (int k = 0; k < problem->n_items && !found; k++) {
        const tsr_pack_item *item = &problem->items[k];
        int x = block_of[k], y = item->share == TSR_PACK_APART ? x : block_of[item->partner];
        found = (x == a && y == b) || (x == b && y == a);
    }
    return found;
}

static bool overlap(const tsr_pack_item *a, const tsr_pack_place *p, const tsr_pack_item *b,
                    const tsr_pack_place *q)
{
    return p->chunk == q->chunk && a->lower < b->upper && b->lower < a->upper && a->size > 0 && b->size > 0 &&
           p->offset < q->offset + b->size && q->offset < p->offset + a->size;
}

tsr_status tsr_pack_check(const tsr_pack_problem *problem, const tsr_pack_solution *solution)
{
    tsr_status status = TSR_OK;
    int *block_of = NULL, n = problem->n_items;
    tsr_pack_item *blocks = NULL;
    const tsr_pack_place *places = solution->places;

    TSR_TRY(check_chunks(problem, solution));
    for (int i = 0; i < n; i++)
        TSR_TRY(check_item(problem, solution, i));
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *block_of, "a packing to check", &block_of));
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *blocks, "a packing to check", &blocks));
    make_blocks(problem, block_of, blocks);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            int a = block_of[i], b = block_of[j];
            if (overlap(&blocks[a], &places[i], &blocks[b], &places[j]) &&
                (places[i].offset != places[j].offset || !may_share(problem, block_of, a, b)))
                TSR_TRY(tsr_fail(TSR_ERR_INVALID,
                                 "items %d and %d, live at the same time, share bytes of chunk %d", i, j,
                                 places[i].chunk));
        }
out:
    tsr_mem_free(blocks);
    tsr_mem_free(block_of);
    return status;
}
