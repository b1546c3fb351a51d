/* The lower bound of every packing: the most bytes that are live at one step.
 *
 * If every offset is a multiple of some alignment, each stacked item except the uppermost takes its size
 * rounded up to the alignment; the bound counts the rounding. (Limited chunks: rounding is not counted,
 * because every chunk has an uppermost item and the number of chunks is unknown.) */
#include "alloc/pack/work.h"

#include "core/mem.h"
#include "core/status.h"

enum { BLOCK = 64 }; /* steps per entry of the coarse table of maxima */

static int64_t max_in(const int64_t *values, int32_t from, int32_t to)
{
    int64_t most = 0;
    for (int32_t i = from; i < to; i++)
        most = TSR_MAX(most, values[i]);
    return most;
}

/* Largest live[t] for from <= t < to, by whole blocks where possible. */
static int64_t max_between(const int64_t *live, const int64_t *block, int32_t from, int32_t to)
{
    int32_t first = (from + BLOCK - 1) / BLOCK, last = to / BLOCK;
    if (first >= last)
        return max_in(live, from, to);
    int64_t edges = TSR_MAX(max_in(live, from, first * BLOCK), max_in(live, last * BLOCK, to));
    return TSR_MAX(edges, max_in(block, first, last));
}

/* live[t] for all steps, with sizes rounded up to `grain`. */
static void sweep(const tsr_pack_work *w, int64_t grain, int64_t *live)
{
    int64_t sum = 0;
    for (int t = 0; t < w->n_steps; t++)
        live[t] = 0;
    for (int i = 0; i < w->n; i++) {
        int64_t bytes = (w->size[i] + grain - 1) & ~(grain - 1);
        live[w->lower[i]] += bytes;
        live[w->upper[i]] -= bytes;
    }
    for (int t = 0; t < w->n_steps; t++)
        live[t] = sum += live[t];
}

tsr_status tsr_pack_bound(tsr_pack_work *w)
{
    tsr_status status = TSR_OK;
    int64_t *live = NULL, *block = NULL, grain = INT64_MAX, padding = 0;
    int n_blocks = w->n_steps / BLOCK;

    TSR_TRY(tsr_mem_array((size_t)w->n_steps, sizeof *live, "packing", &live));
    TSR_TRY(tsr_mem_array((size_t)n_blocks, sizeof *block, "packing", &block));

    /* The grain is the smallest alignment: alignments are powers of two, so all offsets are multiples of
     * it. */
    for (int i = 0; i < w->n; i++)
        grain = TSR_MIN(grain, w->alignment[i]);
    for (int i = 0; i < w->n; i++)
        padding = TSR_MAX(padding, -w->size[i] & (grain - 1));
    w->bound = 0;
    if (w->chunk_bytes == INT64_MAX && w->n > 0) {
        sweep(w, grain, live);
        w->bound = max_in(live, 0, w->n_steps) - padding;
    }

    sweep(w, 1, live);
    for (int b = 0; b < n_blocks; b++)
        block[b] = max_in(live, b * BLOCK, (b + 1) * BLOCK);
    for (int i = 0; i < w->n; i++)
        w->contention[i] = max_between(live, block, w->lower[i], w->upper[i]);
    w->bound = TSR_MAX(w->bound, max_in(live, 0, w->n_steps));
    for (int i = 0; i < w->n; i++)
        if (w->fixed_at[i] != TSR_PACK_FREE)
            w->bound = TSR_MAX(w->bound, w->fixed_at[i] + w->size[i]);
    w->least = w->bound;
out:
    tsr_mem_free(block);
    tsr_mem_free(live);
    return status;
}
