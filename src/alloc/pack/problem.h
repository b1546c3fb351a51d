/* A packing problem and its solution, as values. */
#ifndef TSR_ALLOC_PACK_PROBLEM_H
#define TSR_ALLOC_PACK_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSR_PACK_FREE (-1) /* fixed_offset of an item that may lie anywhere */

/* Items that share are one piece of memory, as large as the largest of them, from the first one's begin to
 * the last one's end. Sharing is mutual: either may name the other. Items that must share count as one. Items
 * that may share and live at the same step do so only with their own partners: of two results over one
 * operand one gets it. */
typedef enum tsr_pack_share {
    TSR_PACK_APART = 0, /* shares with nobody, unless others share with it */
    TSR_PACK_MAY_SHARE, /* with its partner, where that is of use */
    TSR_PACK_MUST_SHARE
} tsr_pack_share;

typedef struct tsr_pack_item {
    int64_t lower, upper; /* live at steps lower, lower + 1, ..., upper - 1; lower < upper */
    size_t size;          /* bytes; an item of 0 is put at the begin of chunk 0, in nobody's way */
    size_t alignment;     /* of the offset inside its chunk; a power of two, 0 counts as 1 */
    int64_t fixed_offset; /* TSR_PACK_FREE, or the byte in chunk 0 where the item must begin */
    const char *name;     /* for messages, may be NULL; borrowed */
    tsr_pack_share share;
    int partner; /* index of the item it shares with; of no meaning where it shares with nobody */
} tsr_pack_item;

typedef struct tsr_pack_problem {
    const tsr_pack_item *items; /* borrowed */
    int n_items;
    size_t max_chunk_bytes; /* 0: one chunk of any size */
} tsr_pack_problem;

/* How hard to try when no greedy packing meets the bound. The greedy ones come first whatever the limits:
 * they take time by the square of the items, half a second for 10 000.
 * More than 8192 items are not searched. */
typedef struct tsr_pack_limits {
    int64_t max_nodes;      /* placements that the exact search may try; 0: none, greedy packing only */
    double max_cpu_seconds; /* 0: no limit. With one, the result depends on the machine */
    size_t capacity;        /* 0: look for the smallest packing; else one of so many bytes is good enough */
} tsr_pack_limits;

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
    size_t bound_bytes; /* bytes live at the busiest step: no packing has a smaller total */
    bool optimal;       /* proven: no packing has a smaller total than this one */
    int64_t n_nodes;    /* placements that were tried */
    const char *method; /* what found it: "best fit", "skyline", "exact"; static */
} tsr_pack_solution;

/* Zeroes the value as well; a zeroed value or NULL is fine. */
void tsr_pack_solution_free(tsr_pack_solution *solution);

#endif
