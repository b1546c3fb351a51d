/* Checks a caller's problem and converts it to the form that the packers read. */
#include "alloc/pack/work.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"

static const int64_t MOST_BYTES = INT64_C(1) << 61; /* over all items, so that no sum of offsets overflows */

static const char *name_of(const tsr_pack_item *item)
{
    return item->name ? item->name : "";
}

static tsr_status check_item(const tsr_pack_problem *problem, int i, int64_t *bytes_left)
{
    const tsr_pack_item *item = &problem->items[i];
    size_t alignment = item->alignment ? item->alignment : 1;

    if (item->lower >= item->upper || item->upper - 1 > INT64_MAX / 2 || item->lower < -(INT64_MAX / 2))
        return tsr_fail(TSR_ERR_INVALID, "packing: item %d (%s) lives in [%lld, %lld), which is no lifetime",
                        i, name_of(item), (long long)item->lower, (long long)item->upper);
    if (alignment & (alignment - 1))
        return tsr_fail(TSR_ERR_INVALID, "packing: item %d (%s) has alignment %zu, no power of two", i,
                        name_of(item), alignment);
    if (alignment > (size_t)*bytes_left || item->size > (size_t)*bytes_left - alignment)
        return tsr_fail(TSR_ERR_INVALID, "packing: item %d (%s) of %zu bytes brings the sum over 2^61 bytes",
                        i, name_of(item), item->size);
    *bytes_left -= (int64_t)(alignment + item->size);
    if (problem->max_chunk_bytes && item->size > problem->max_chunk_bytes)
        return tsr_fail(
            TSR_ERR_MEMORY,
            "packing: item %d (%s) has %zu bytes, but one allocation may have no more than %zu; split "
            "the tensor over more devices or run smaller batches",
            i, name_of(item), item->size, problem->max_chunk_bytes);
    if (item->fixed_offset == TSR_PACK_FREE)
        return TSR_OK;
    if (item->fixed_offset < 0 || item->fixed_offset % (int64_t)alignment ||
        item->fixed_offset > MOST_BYTES - (int64_t)item->size ||
        (problem->max_chunk_bytes && (size_t)item->fixed_offset + item->size > problem->max_chunk_bytes))
        return tsr_fail(
            TSR_ERR_INVALID,
            "packing: item %d (%s) of %zu bytes is fixed at %lld, which is negative, not aligned to %zu "
            "or outside the first chunk",
            i, name_of(item), item->size, (long long)item->fixed_offset, alignment);
    return TSR_OK;
}

static tsr_status check_items(const tsr_pack_problem *problem, int64_t *bytes_left)
{
    tsr_status status = TSR_OK;
    if (problem->n_items < 0 || problem->n_items > INT32_MAX / 4 || (problem->n_items && !problem->items))
        return tsr_fail(TSR_ERR_INVALID, "packing: %d items", problem->n_items);
    for (int i = 0; i < problem->n_items; i++)
        TSR_TRY(check_item(problem, i, bytes_left));
out:
    return status;
}

tsr_status tsr_pack_check_items(const tsr_pack_problem *problem)
{
    int64_t bytes_left = MOST_BYTES;
    return check_items(problem, &bytes_left);
}

static int compare_int64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int32_t rank_of(const int64_t *steps, int n_steps, int64_t step)
{
    const int64_t *found = bsearch(&step, steps, (size_t)n_steps, sizeof *steps, compare_int64);
    return (int32_t)(found - steps);
}

typedef struct begin {
    int64_t lower;
    int id;
} begin;

static int compare_begins(const void *a, const void *b)
{
    const begin *x = a, *y = b;
    if (x->lower != y->lower)
        return x->lower < y->lower ? -1 : 1;
    return x->id - y->id;
}

static tsr_status set_order(tsr_pack_work *w, const tsr_pack_item *items)
{
    begin *begins = NULL;
    tsr_status status = tsr_mem_array((size_t)w->n, sizeof *begins, "packing", &begins);
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < w->n; i++)
        begins[i] = (begin){items[i].lower, i};
    qsort(begins, (size_t)w->n, sizeof *begins, compare_begins);
    for (int i = 0; i < w->n; i++)
        w->id[i] = begins[i].id;
    tsr_mem_free(begins);
    return TSR_OK;
}

/* Steps as ranks, and the tables for tsr_pack_neighbours(). */
static tsr_status set_lives(tsr_pack_work *w, const tsr_pack_item *items)
{
    int64_t *steps = NULL;
    int n = 0;
    tsr_status status = tsr_mem_array(2 * (size_t)w->n, sizeof *steps, "packing", &steps);
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < w->n; i++) {
        steps[2 * i] = items[i].lower;
        steps[2 * i + 1] = items[i].upper;
    }
    qsort(steps, 2 * (size_t)w->n, sizeof *steps, compare_int64);
    for (int i = 0; i < 2 * w->n; i++)
        if (n == 0 || steps[n - 1] != steps[i])
            steps[n++] = steps[i];
    w->n_steps = n;
    for (int i = 0; i < w->n; i++) {
        int32_t *block_upper = &w->block_upper[i / TSR_PACK_BLOCK];
        w->lower[i] = rank_of(steps, n, items[w->id[i]].lower);
        w->upper[i] = rank_of(steps, n, items[w->id[i]].upper);
        *block_upper = TSR_MAX(*block_upper, w->upper[i]);
    }
    for (int step = 0, i = 0; step <= n; step++) {
        while (i < w->n && w->lower[i] < step)
            i++;
        w->first_at[step] = i;
    }
    tsr_mem_free(steps);
    return TSR_OK;
}

int tsr_pack_neighbours(const tsr_pack_work *w, int item, int *items_out)
{
    int n = 0, first = w->first_at[w->lower[item]], end = w->first_at[w->upper[item]];

    /* Items that start earlier may still be live; skip whole blocks of items that have ended. */
    for (int block = 0; block * TSR_PACK_BLOCK < first; block++) {
        if (w->block_upper[block] <= w->lower[item])
            continue;
        int block_end = TSR_MIN((block + 1) * TSR_PACK_BLOCK, first);
        for (int i = block * TSR_PACK_BLOCK; i < block_end; i++) {
            items_out[n] = i;
            n += w->upper[i] > w->lower[item];
        }
    }
    for (int i = first; i < end; i++) {
        items_out[n] = i;
        n += i != item;
    }
    return n;
}

/* Sort the fixed items with bytes by offset, and check that none overlap. */
static tsr_status set_fixed(tsr_pack_work *w, const tsr_pack_item *items)
{
    for (int i = 0; i < w->n; i++) {
        if (w->fixed_at[i] == TSR_PACK_FREE || w->size[i] == 0)
            continue;
        int at = w->n_fixed++;
        for (; at > 0 && w->fixed_at[w->fixed[at - 1]] > w->fixed_at[i]; at--)
            w->fixed[at] = w->fixed[at - 1];
        w->fixed[at] = i;
    }
    for (int a = 0; a < w->n_fixed; a++)
        for (int b = a + 1; b < w->n_fixed; b++) {
            int i = w->fixed[a], j = w->fixed[b];
            if (w->fixed_at[j] >= w->fixed_at[i] + w->size[i])
                break;
            if (tsr_pack_overlap(w, i, j))
                return tsr_fail(
                    TSR_ERR_INVALID,
                    "packing: items %d (%s) and %d (%s) are fixed to the same bytes at the same time", i,
                    name_of(&items[i]), j, name_of(&items[j]));
        }
    return TSR_OK;
}

/* One pass suffices, because fixed items ascend by offset: an item that is below one of them is below all
 * later ones. */
int64_t tsr_pack_clear_of_fixed(const tsr_pack_work *w, int item, int64_t from)
{
    int64_t at = tsr_pack_fit(w, item, from);
    for (int f = 0; f < w->n_fixed; f++) {
        int other = w->fixed[f];
        int64_t bottom = w->fixed_at[other], end = bottom + w->size[other];
        if (at < end && bottom < at + w->size[item] && tsr_pack_overlap(w, item, other))
            at = tsr_pack_fit(w, item, end);
    }
    return at;
}

static tsr_status allocate(tsr_pack_work *w)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)w->n;

    TSR_TRY(tsr_mem_array(n, sizeof *w->id, "packing", &w->id));
    TSR_TRY(tsr_mem_array(n, sizeof *w->lower, "packing", &w->lower));
    TSR_TRY(tsr_mem_array(n, sizeof *w->upper, "packing", &w->upper));
    TSR_TRY(tsr_mem_array(n, sizeof *w->size, "packing", &w->size));
    TSR_TRY(tsr_mem_array(n, sizeof *w->alignment, "packing", &w->alignment));
    TSR_TRY(tsr_mem_array(n, sizeof *w->duration, "packing", &w->duration));
    TSR_TRY(tsr_mem_array(n, sizeof *w->contention, "packing", &w->contention));
    TSR_TRY(tsr_mem_array(n, sizeof *w->fixed_at, "packing", &w->fixed_at));
    TSR_TRY(tsr_mem_array(n, sizeof *w->fixed, "packing", &w->fixed));
    TSR_TRY(tsr_mem_array(2 * n + 1, sizeof *w->first_at, "packing", &w->first_at));
    TSR_TRY(tsr_mem_array(n / TSR_PACK_BLOCK + 1, sizeof *w->block_upper, "packing", &w->block_upper));
out:
    return status;
}

static bool is_tight(const tsr_pack_work *w)
{
    int64_t most = 1;
    for (int i = 0; i < w->n; i++)
        most = TSR_MAX(most, w->alignment[i]);
    for (int i = 0; i < w->n; i++)
        if (w->size[i] % most)
            return false;
    return true;
}

tsr_status tsr_pack_work_init(const tsr_pack_problem *problem, tsr_pack_work *work_out)
{
    tsr_status status = TSR_OK;
    tsr_pack_work w = {.n = problem->n_items, .chunk_bytes = INT64_MAX};
    int64_t bytes_left = MOST_BYTES, fixed_end = 0;

    TSR_TRY(check_items(problem, &bytes_left));
    TSR_TRY(allocate(&w));
    TSR_TRY(set_order(&w, problem->items));
    for (int i = 0; i < w.n; i++) {
        const tsr_pack_item *item = &problem->items[w.id[i]];
        w.size[i] = (int64_t)item->size;
        w.alignment[i] = item->alignment ? (int64_t)item->alignment : 1;
        w.duration[i] = item->upper - item->lower;
        w.fixed_at[i] = item->fixed_offset;
        if (item->fixed_offset != TSR_PACK_FREE)
            fixed_end = TSR_MAX(fixed_end, item->fixed_offset + w.size[i]);
    }
    TSR_TRY(set_lives(&w, problem->items));
    TSR_TRY(set_fixed(&w, problem->items));

    /* A chunk size that holds all items end to end is no limit, unless several chunks save padding of
     * alignment. A smaller chunk may be opened once per item. */
    int64_t most = MOST_BYTES - bytes_left + fixed_end, unused;
    w.is_tight = is_tight(&w);
    if (problem->max_chunk_bytes && (problem->max_chunk_bytes < (size_t)most || !w.is_tight)) {
        w.chunk_bytes = (int64_t)TSR_MIN(problem->max_chunk_bytes, (size_t)most);
        if (__builtin_mul_overflow(w.chunk_bytes, w.n + 2, &unused))
            TSR_TRY(tsr_fail(TSR_ERR_INVALID, "packing: %d chunks of %zu bytes are more than can be counted",
                             w.n, problem->max_chunk_bytes));
    }
    TSR_TRY(tsr_pack_bound(&w));
    *work_out = w;
    memset(&w, 0, sizeof w);
out:
    tsr_pack_work_free(&w);
    return status;
}

void tsr_pack_work_free(tsr_pack_work *w)
{
    tsr_mem_free(w->block_upper);
    tsr_mem_free(w->first_at);
    tsr_mem_free(w->fixed);
    tsr_mem_free(w->fixed_at);
    tsr_mem_free(w->contention);
    tsr_mem_free(w->duration);
    tsr_mem_free(w->alignment);
    tsr_mem_free(w->size);
    tsr_mem_free(w->upper);
    tsr_mem_free(w->lower);
    tsr_mem_free(w->id);
    memset(w, 0, sizeof *w);
}
