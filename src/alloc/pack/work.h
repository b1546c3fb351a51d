/* Inside the packer: a checked problem in the form that searches read.
 *
 * Items are renumbered by the begin of their life, so that the items which begin during another one's life
 * lie side by side. Steps become ranks among all begins and ends, so they fit 32 bits. Chunks become one line
 * of bytes: chunk c is [c * chunk_bytes, (c + 1) * chunk_bytes), and an item may not lie across a boundary. A
 * search therefore assigns one offset to every item and needs no notion of chunks beyond tsr_pack_fit(). */
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
    int64_t bound; /* lower bound of the total: the bytes live at once */
    int64_t least; /* proven since: no packing has a smaller total; at least `bound` */
    int64_t n_nodes;
} tsr_pack_work;

/* Every item by itself: TSR_ERR_INVALID or TSR_ERR_MEMORY where it is malformed or too large. */
tsr_status tsr_pack_check_items(const tsr_pack_problem *problem);

/* Check the problem and fill *work_out; released with tsr_pack_work_free() (a zeroed value is fine). */
tsr_status tsr_pack_work_init(const tsr_pack_problem *problem, tsr_pack_work *work_out);
void tsr_pack_work_free(tsr_pack_work *work);

/* Sets work->contention and work->bound (bound.c). */
tsr_status tsr_pack_bound(tsr_pack_work *work);

/* The items that live at some step together with `item`, itself left out, in ascending order; their number.
 * `items_out` has room for n. */
int tsr_pack_neighbours(const tsr_pack_work *work, int item, int *items_out);

/* The lowest place of `item` from `from` on that fixed items leave free. */
int64_t tsr_pack_clear_of_fixed(const tsr_pack_work *work, int item, int64_t from);

/* Bytes that offset[n] takes over all chunks. */
int64_t tsr_pack_total(const tsr_pack_work *work, const int64_t *offset);

/* The searches: offset_out[n] for every item. */
tsr_status tsr_pack_best_fit(tsr_pack_work *work, int64_t *offset_out);

/* Orders in which tsr_pack_skyline() prefers items; each is one dive. */
enum { TSR_PACK_SKYLINE_ORDERS = 3 };
tsr_status tsr_pack_skyline(tsr_pack_work *work, int order, int64_t *offset_out);

/* Pack a problem whose items all lie apart. Spends of the budget. */
tsr_status tsr_pack_apart(const tsr_pack_problem *problem, size_t capacity, tsr_pack_budget *budget,
                          tsr_pack_solution *solution_out);

/* Pack one in which items share (share.c). */
tsr_status tsr_pack_shared(const tsr_pack_problem *problem, size_t capacity, tsr_pack_budget *budget,
                           tsr_pack_solution *solution_out);

/* Assign items to chunks, each packed on its own, until offset[n] is proven or the budget is spent
 * (chunks.c). Raises work->least by what it proves. */
tsr_status tsr_pack_chunks(tsr_pack_work *work, size_t capacity, tsr_pack_budget *budget, int64_t *offset);

/* Improves offset[n] until it is the smallest, the budget is spent, or (where capacity is not 0) the total is
 * at most `capacity`. Raises work->least by what it proves. */
tsr_status tsr_pack_exact(tsr_pack_work *work, int64_t capacity, tsr_pack_budget *budget, int64_t *offset);

static inline bool tsr_pack_overlap(const tsr_pack_work *work, int a, int b)
{
    return (work->lower[a] < work->upper[b]) & (work->lower[b] < work->upper[a]);
}

/* Where an item without bytes is said to lie: it is in nobody's way. */
static inline int64_t tsr_pack_empty_offset(const tsr_pack_work *work, int item)
{
    return work->fixed_at[item] == TSR_PACK_FREE ? 0 : work->fixed_at[item];
}

/* The first offset from `from` on at which the item is aligned and inside one chunk. */
static inline int64_t tsr_pack_fit(const tsr_pack_work *work, int item, int64_t from)
{
    int64_t begin = work->chunk_bytes == INT64_MAX ? 0 : from / work->chunk_bytes * work->chunk_bytes;
    int64_t mask = work->alignment[item] - 1, inside = (from - begin + mask) & ~mask;
    if (inside > work->chunk_bytes - work->size[item])
        return begin + work->chunk_bytes;
    return begin + inside;
}

#endif
