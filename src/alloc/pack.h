/* Static memory packing: buffers with known lifetimes into as few bytes as possible.
 *
 * A problem is a value: items that are live in [lower, upper) steps, with a size, an alignment and perhaps a
 * fixed place, and the most bytes that one chunk (one device allocation) may have. A solution is a value too:
 * a chunk and an offset for every item, such that no two items live at the same step share a byte. Its
 * quality is known, because the bytes live at the busiest step are a lower bound for every packing.
 *
 *     tsr_pack_item items[] = {{.lower = 0, .upper = 2, .size = 4096, .alignment = 256, .fixed_offset =
 * TSR_PACK_FREE},
 *                              {.lower = 1, .upper = 3, .size = 8192, .alignment = 256, .fixed_offset =
 * TSR_PACK_FREE}}; tsr_pack_problem problem = {.items = items, .n_items = 2}; tsr_pack_solution solution;
 *     TSR_TRY(tsr_pack_solve(&problem, &solution));
 *     ... solution.places[1].offset, solution.total_bytes ...
 *     tsr_pack_solution_free(&solution);
 *
 * No state: any thread may solve anything at any time. */
#ifndef TSR_ALLOC_PACK_H
#define TSR_ALLOC_PACK_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>

#define TSR_PACK_FREE (-1) /* fixed_offset of an item that may lie anywhere */

typedef struct tsr_pack_item {
    int64_t lower, upper; /* live at steps lower, lower + 1, ..., upper - 1; lower < upper */
    size_t size;          /* bytes; an item of 0 is put at the begin of chunk 0, in nobody's way */
    size_t alignment;     /* of the offset inside its chunk; a power of two, 0 counts as 1 */
    int64_t fixed_offset; /* TSR_PACK_FREE, or the byte in chunk 0 where the item must begin */
    const char *name;     /* for messages, may be NULL; borrowed */
} tsr_pack_item;

typedef struct tsr_pack_problem {
    const tsr_pack_item *items; /* borrowed */
    int n_items;
    size_t max_chunk_bytes; /* 0: one chunk of any size */
} tsr_pack_problem;

typedef struct tsr_pack_place {
    int chunk;
    size_t offset; /* bytes from the chunk's begin */
} tsr_pack_place;

typedef struct tsr_pack_solution {
    tsr_pack_place *places; /* [n_items] */
    int n_items;
    size_t *chunk_bytes; /* [n_chunks], each at most max_chunk_bytes */
    int n_chunks;
    size_t total_bytes; /* sum of chunk_bytes */
    size_t bound_bytes; /* no packing has a smaller total */
    int64_t n_nodes;    /* placements that were tried */
    const char *method; /* what found it: "best fit", "skyline"; static */
} tsr_pack_solution;

/* Pack. *solution_out is written only on success and released with tsr_pack_solution_free(). Deterministic:
 * the same problem has the same solution on every machine. 500 items of a transformer take well under a
 * millisecond, 2000 of the hardest kind some milliseconds.
 * TSR_ERR_INVALID: a malformed item, or fixed items that overlap (the message names them). TSR_ERR_MEMORY: an
 * item is larger than a chunk may be, or host memory is short. */
TSR_NODISCARD tsr_status tsr_pack_solve(const tsr_pack_problem *problem, tsr_pack_solution *solution_out);

/* Zeroes the value as well; a zeroed value or NULL is fine. */
void tsr_pack_solution_free(tsr_pack_solution *solution);

/* The slow and obvious validator: compares every pair of items and measures every chunk. TSR_ERR_INVALID with
 * a message that names the items. Shares no code with the packers. */
TSR_NODISCARD tsr_status tsr_pack_check(const tsr_pack_problem *problem, const tsr_pack_solution *solution);

#endif
