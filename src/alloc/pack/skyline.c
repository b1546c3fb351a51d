/* Skyline packing: build upwards, always at the lowest place that is free for an item.
 *
 * The skyline is the height already used at every step; an item's slot is the highest point of the skyline
 * under its life. Each move takes the item with the lowest slot (ties: a static order, which decides the
 * quality) and raises the skyline there. No item is placed under the skyline afterwards. Since the chosen
 * slot is the lowest, the raised part is flat, and another item's new slot is the larger of its old one and
 * the new height: no skyline needs to be stored, only one slot per item. Slots only grow, so a heap may hold
 * outdated slots: an entry that is too low is corrected when it reaches the top.
 *
 * The orders combine contention, duration and area in different sequence, as minimalloc preorders its search
 * (Moffitt, "MiniMalloc", ASPLOS 2023). */
#include <stdlib.h>

#include "alloc/pack/work.h"
#include "core/mem.h"

typedef struct key {
    double value[3]; /* compared first, second, third; larger comes first */
    int item;
} key;

static int compare_keys(const void *a, const void *b)
{
    const key *x = a, *y = b;
    for (int i = 0; i < 3; i++)
        if (x->value[i] != y->value[i])
            return x->value[i] > y->value[i] ? -1 : 1;
    return x->item - y->item;
}

static void sort_items(const tsr_pack_work *w, int order, key *keys)
{
    enum { CONTENTION, DURATION, AREA };
    static const int orders[TSR_PACK_SKYLINE_ORDERS][3] = {
        {CONTENTION, DURATION, AREA}, {CONTENTION, AREA, DURATION}, {DURATION, AREA, CONTENTION}};

    for (int i = 0; i < w->n; i++) {
        double duration = (double)w->duration[i];
        double values[3] = {(double)w->contention[i], duration, (double)w->size[i] * duration};
        for (int v = 0; v < 3; v++)
            keys[i].value[v] = values[orders[order][v]];
        keys[i].item = i;
    }
    qsort(keys, (size_t)w->n, sizeof *keys, compare_keys);
}

typedef struct skyline {
    tsr_pack_work *w;
    int64_t *slot; /* [n] the item's current slot; INT64_MAX: the item is placed */
    int *rank;     /* [n] place in the static order */
    int *lowest;   /* [n_blocks] the first item of TSR_PACK_BLOCK items, -1: stale */
    int n_blocks;
    int *neighbours; /* [n] scratch */
} skyline;

static bool goes_before(const skyline *s, int a, int b)
{
    return s->slot[a] < s->slot[b] || (s->slot[a] == s->slot[b] && s->rank[a] < s->rank[b]);
}

static int lowest_of_block(const skyline *s, int block)
{
    int best = block * TSR_PACK_BLOCK, end = TSR_MIN(best + TSR_PACK_BLOCK, s->w->n);
    for (int i = best + 1; i < end; i++)
        if (goes_before(s, i, best))
            best = i;
    return best;
}

static int lowest_of_all(skyline *s)
{
    int best = 0;
    for (int block = 0; block < s->n_blocks; block++) {
        if (s->lowest[block] < 0)
            s->lowest[block] = lowest_of_block(s, block);
        if (block == 0 || goes_before(s, s->lowest[block], best))
            best = s->lowest[block];
    }
    return best;
}

static void place(skyline *s, int item, int64_t *offset_out)
{
    const tsr_pack_work *w = s->w;
    int64_t height = s->slot[item] + w->size[item];
    int n_neighbours = tsr_pack_neighbours(w, item, s->neighbours);

    offset_out[item] = s->slot[item];
    s->slot[item] = INT64_MAX;
    s->lowest[item / TSR_PACK_BLOCK] = -1;
    for (int i = 0; i < n_neighbours; i++) {
        int other = s->neighbours[i];
        if (s->slot[other] < height) {
            s->slot[other] = tsr_pack_clear_of_fixed(w, other, height);
            s->lowest[other / TSR_PACK_BLOCK] = -1;
        }
    }
}

tsr_status tsr_pack_skyline(tsr_pack_work *w, int order, int64_t *offset_out)
{
    tsr_status status = TSR_OK;
    skyline s = {.w = w, .n_blocks = (w->n + TSR_PACK_BLOCK - 1) / TSR_PACK_BLOCK};
    key *keys = NULL;
    int left = 0;

    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *keys, "packing", &keys));
    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *s.slot, "packing", &s.slot));
    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *s.rank, "packing", &s.rank));
    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *s.neighbours, "packing", &s.neighbours));
    TSR_TRY(tsr_mem_array((size_t)s.n_blocks, sizeof *s.lowest, "packing", &s.lowest));
    for (int block = 0; block < s.n_blocks; block++)
        s.lowest[block] = -1;
    sort_items(w, order, keys);
    for (int k = 0; k < w->n; k++) {
        int item = keys[k].item;
        s.rank[item] = k;
        offset_out[item] = w->size[item] ? w->fixed_at[item] : tsr_pack_empty_offset(w, item);
        s.slot[item] = offset_out[item] < 0 ? tsr_pack_clear_of_fixed(w, item, 0) : INT64_MAX;
        left += offset_out[item] < 0;
    }
    for (; left > 0; left--) {
        place(&s, lowest_of_all(&s), offset_out);
        w->n_nodes++;
    }
out:
    tsr_mem_free(s.lowest);
    tsr_mem_free(s.neighbours);
    tsr_mem_free(s.rank);
    tsr_mem_free(s.slot);
    tsr_mem_free(keys);
    return status;
}
