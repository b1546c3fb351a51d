/* Size-ordered best fit: the largest item first, each into the smallest gap that holds it.
 *
 * The gaps of an item are those between the placed items that live at the same time. If no gap is large
 * enough, the item goes on top. Best fit is good if sizes differ much. In transformer graphs it usually
 * meets the bound. */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/work.h"
#include "core/mem.h"

typedef struct key {
    int64_t size, duration;
    int item;
} key;

/* Large before small, long before short, then by index. */
static int compare_keys(const void *a, const void *b)
{
    const key *x = a, *y = b;
    if (x->size != y->size)
        return x->size > y->size ? -1 : 1;
    if (x->duration != y->duration)
        return x->duration > y->duration ? -1 : 1;
    return x->item - y->item;
}

/* The placed items, ascending by offset. */
typedef struct shelf {
    const tsr_pack_work *w;
    const int64_t *offset;
    int *items, n;
    int *obstacles; /* [w->n] scratch */
} shelf;

static void put(shelf *s, int item)
{
    int low = 0, high = s->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (s->offset[s->items[middle]] <= s->offset[item])
            low = middle + 1;
        else
            high = middle;
    }
    memmove(s->items + low + 1, s->items + low, (size_t)(s->n - low) * sizeof *s->items);
    s->items[low] = item;
    s->n++;
}

/* Write the placed items that live at the same time as `item` to s->obstacles. Most of the packing's time is
 * spent here. The comparisons are unpredictable, so the loop has no branch. */
static int find_obstacles(const shelf *s, int item)
{
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        s->obstacles[n] = s->items[i];
        n += tsr_pack_overlap(s->w, item, s->items[i]);
    }
    return n;
}

static int64_t best_gap(const shelf *s, int item)
{
    const tsr_pack_work *w = s->w;
    int n = find_obstacles(s, item);
    int64_t end = 0, best = -1, best_bytes = INT64_MAX; /* `end`: highest end of the obstacles so far */

    for (int i = 0; i < n; i++) {
        int64_t begin = s->offset[s->obstacles[i]], gap = begin - end;
        if (gap >= w->size[item] && gap < best_bytes) {
            int64_t at = tsr_pack_fit(w, item, end);
            if (at + w->size[item] <= begin) {
                best = at;
                best_bytes = gap;
            }
        }
        end = TSR_MAX(end, begin + w->size[s->obstacles[i]]);
    }
    return best >= 0 ? best : tsr_pack_fit(w, item, end);
}

tsr_status tsr_pack_best_fit(tsr_pack_work *w, int64_t *offset_out)
{
    tsr_status status = TSR_OK;
    shelf s = {.w = w, .offset = offset_out};
    key *keys = NULL;

    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *keys, "packing", &keys));
    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *s.items, "packing", &s.items));
    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *s.obstacles, "packing", &s.obstacles));
    for (int i = 0; i < w->n; i++)
        keys[i] = (key){w->size[i], w->duration[i], i};
    qsort(keys, (size_t)w->n, sizeof *keys, compare_keys);

    for (int f = 0; f < w->n_fixed; f++) {
        offset_out[w->fixed[f]] = w->fixed_at[w->fixed[f]];
        put(&s, w->fixed[f]);
    }
    for (int k = 0; k < w->n; k++) {
        int item = keys[k].item;
        if (w->size[item] == 0) {
            offset_out[item] = tsr_pack_empty_offset(w, item);
        } else if (w->fixed_at[item] == TSR_PACK_FREE) {
            offset_out[item] = best_gap(&s, item);
            put(&s, item);
            w->n_nodes++;
        }
    }
out:
    tsr_mem_free(s.obstacles);
    tsr_mem_free(s.items);
    tsr_mem_free(keys);
    return status;
}
