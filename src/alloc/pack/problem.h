/* A packing problem and its solution, as values. */
#ifndef TSR_ALLOC_PACK_PROBLEM_H
#define TSR_ALLOC_PACK_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSR_PACK_FREE (-1) /* fixed_offset of an item without a fixed place */

/* Items that share are one piece of memory: as large as the largest of them, live from the first one's start
 * to the last one's end. Sharing is mutual: either item may name the other. Items that must share count as
 * one. Items that may share and are live at the same step share only with their own partners: of two results
 * over one operand, one shares. */
typedef enum tsr_pack_share {
    TSR_PACK_APART = 0, /* names no partner; other items may share with it */
    TSR_PACK_MAY_SHARE, /* with its partner, if it helps */
    TSR_PACK_MUST_SHARE
} tsr_pack_share;

typedef struct tsr_pack_item {
    int64_t lower, upper; /* live at steps lower, lower + 1, ..., upper - 1; lower < upper */
    size_t size;          /* bytes; zero-sized items are placed at offset 0 of chunk 0 */
    size_t alignment;     /* of the offset inside its chunk; a power of two, 0 counts as 1 */
    int64_t fixed_offset; /* TSR_PACK_FREE, or the item's offset in chunk 0 */
    const char *name;     /* for messages, may be NULL; borrowed */
    tsr_pack_share share;
    int partner; /* index of the item to share with; ignored if APART */
} tsr_pack_item;

typedef struct tsr_pack_problem {
    const tsr_pack_item *items; /* borrowed */
    int n_items;
    size_t max_chunk_bytes; /* 0: one chunk of any size */
} tsr_pack_problem;

/* The effort if no greedy packing meets the bound. Greedy packings always come first; their time grows with
 * the square of the items: half a second for 10 000. Problems of more than 8192 items are not searched. */
typedef struct tsr_pack_limits {
    int64_t max_nodes;      /* placements that the exact search may try; 0: none, greedy packing only */
    double max_cpu_seconds; /* 0: no limit. With one, the result depends on the machine */
    size_t capacity;        /* 0: find the smallest packing; otherwise stop at a packing of at most N
                             * bytes */
} tsr_pack_limits;

typedef struct tsr_pack_place {
    int chunk;
    size_t offset; /* bytes from the start of the chunk */
} tsr_pack_place;

typedef struct tsr_pack_solution {
    tsr_pack_place *places; /* [n_items] */
    int n_items;
    size_t *chunk_bytes; /* [n_chunks], each at most max_chunk_bytes */
    int n_chunks;
    size_t total_bytes; /* sum of chunk_bytes */
    size_t bound_bytes; /* bytes live at the busiest step: no packing has a smaller total */
    bool optimal;       /* proven: no packing has a smaller total than this one */
    int64_t n_nodes;    /* placements tried */
    const char *method; /* strategy that found it: "best fit", "skyline", "exact"; static */
} tsr_pack_solution;

/* Also zeroes the value; a zeroed value or NULL is fine. */
void tsr_pack_solution_free(tsr_pack_solution *solution);

#endif
