/* Inside the packer: a checked problem in the form that the packers read.
 *
 * Items are renumbered by the start of their life, so that the items that start during another item's life
 * are adjacent. Steps become ranks among all starts and ends, so they fit 32 bits. Chunks become one line of
 * bytes: chunk c is [c * chunk_bytes, (c + 1) * chunk_bytes), and an item may not cross a boundary. So a
 * packer assigns one offset to every item and handles chunks only through tsr_pack_fit(). */
#ifndef TSR_ALLOC_PACK_WORK_H
#define TSR_ALLOC_PACK_WORK_H

#include <stdbool.h>

#include <tsr/status.h>

#include "alloc/pack/budget.h"
#include "alloc/pack/problem.h"

enum { TSR_PACK_BLOCK = 32 };

typedef struct tsr_pack_work {
    int n;
    int *id;                /* [n] index in the problem; all other arrays are in the new order */
    int32_t *lower, *upper; /* [n] ranks of steps; lower ascends */
    int64_t *size;          /* [n] bytes */
    int64_t *alignment;     /* [n] at least 1 */
    int64_t *duration;      /* [n] in steps */
    int64_t *contention;    /* [n] most bytes live at a step of the item's life */
    int64_t *fixed_at;      /* [n] offset, or TSR_PACK_FREE */
    int *fixed;             /* [n_fixed] items with bytes and a fixed offset, ascending by it */
    int n_fixed;
    int n_steps;          /* ranks are 0 .. n_steps - 1 */
    int *first_at;        /* [n_steps + 1] first item with lower >= that step */
    int32_t *block_upper; /* largest upper of each TSR_PACK_BLOCK items */
    int64_t chunk_bytes;  /* INT64_MAX: one chunk holds everything */
    bool is_tight; /* all sizes are multiples of the largest alignment: chunks can be laid end to end */
    int64_t bound; /* lower bound of the total: the most bytes live at a step */
    int64_t least; /* proven lower bound of the total; at least `bound` */
    int64_t n_nodes;
} tsr_pack_work;

/* Check every item by itself: TSR_ERR_INVALID if it is malformed, TSR_ERR_MEMORY if it is too large. */
tsr_status tsr_pack_check_items(const tsr_pack_problem *problem);

/* Check the problem and fill *work_out; released with tsr_pack_work_free() (a zeroed value is fine). */
tsr_status tsr_pack_work_init(const tsr_pack_problem *problem, tsr_pack_work *work_out);
void tsr_pack_work_free(tsr_pack_work *work);

/* Sets work->contention and work->bound (bound.c). */
tsr_status tsr_pack_bound(tsr_pack_work *work);

/* List the other items that are live at some step of `item`, ascending; returns their number. `items_out`
 * has room for n. */
int tsr_pack_neighbours(const tsr_pack_work *work, int item, int *items_out);

/* The lowest offset of `item`, at least `from`, that fixed items leave free. */
int64_t tsr_pack_clear_of_fixed(const tsr_pack_work *work, int item, int64_t from);

/* Bytes of all chunks under offset[n]. */
int64_t tsr_pack_total(const tsr_pack_work *work, const int64_t *offset);

/* Greedy packings: offset_out[n] for every item. */
tsr_status tsr_pack_best_fit(tsr_pack_work *work, int64_t *offset_out);

/* Orders of items for tsr_pack_skyline(); each gives one packing. */
enum { TSR_PACK_SKYLINE_ORDERS = 3 };
tsr_status tsr_pack_skyline(tsr_pack_work *work, int order, int64_t *offset_out);

/* Pack a problem in which no items share. Spends of the budget. */
tsr_status tsr_pack_apart(const tsr_pack_problem *problem, size_t capacity, tsr_pack_budget *budget,
                          tsr_pack_solution *solution_out);

/* Pack a problem in which items share (share.c). */
tsr_status tsr_pack_shared(const tsr_pack_problem *problem, size_t capacity, tsr_pack_budget *budget,
                           tsr_pack_solution *solution_out);

/* Assign items to chunks, each packed on its own, until offset[n] is proven optimal or the budget is spent
 * (chunks.c). Raises work->least to the proven bound. */
tsr_status tsr_pack_chunks(tsr_pack_work *work, size_t capacity, tsr_pack_budget *budget, int64_t *offset);

/* Improve offset[n] until it is proven optimal, the budget is spent, or the total is at most a nonzero
 * `capacity`. Raises work->least to the proven bound. */
tsr_status tsr_pack_exact(tsr_pack_work *work, int64_t capacity, tsr_pack_budget *budget, int64_t *offset);

static inline bool tsr_pack_overlap(const tsr_pack_work *work, int a, int b)
{
    return (work->lower[a] < work->upper[b]) & (work->lower[b] < work->upper[a]);
}

/* The offset of a zero-sized item: its fixed offset, otherwise 0. */
static inline int64_t tsr_pack_empty_offset(const tsr_pack_work *work, int item)
{
    return work->fixed_at[item] == TSR_PACK_FREE ? 0 : work->fixed_at[item];
}

/* The first offset, at least `from`, at which the item is aligned and inside one chunk. */
static inline int64_t tsr_pack_fit(const tsr_pack_work *work, int item, int64_t from)
{
    int64_t begin = work->chunk_bytes == INT64_MAX ? 0 : from / work->chunk_bytes * work->chunk_bytes;
    int64_t mask = work->alignment[item] - 1, inside = (from - begin + mask) & ~mask;
    if (inside > work->chunk_bytes - work->size[item])
        return begin + work->chunk_bytes;
    return begin + inside;
}

#endif
