/* Parts of an exact sum as planes (core/quant/wire.h) in host memory, as a GPU stages them.
 *
 * Elements are handled in pieces of TSR_PLANES_PIECE, counted from the first of the message: a piece never
 * crosses the end of a tile. `part` is the part of a message of n sums, aligned for 64-bit integers. */
#ifndef TSR_COMM_PLANES_H
#define TSR_COMM_PLANES_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/reduce.h"

enum { TSR_PLANES_PIECE = 512 };

/* The end of the piece in which element `begin` is, or `end` if that comes first. */
static inline int64_t tsr_planes_piece_end(int64_t begin, int64_t end)
{
    const int64_t piece_end = (begin / TSR_PLANES_PIECE + 1) * TSR_PLANES_PIECE;
    return piece_end < end ? piece_end : end;
}

/* sums[i] += sum begin + i of the part, for [begin, end) inside a piece. */
void tsr_planes_add(const void *part, int64_t n, int64_t begin, int64_t end, int64_t *sums);

/* sums[i] = the exact sum of element begin + i over n_parts parts, for [begin, end) inside a piece.
 * in_planes[j]: part j is planes, otherwise 64-bit integers. */
void tsr_planes_sum(const tsr_reducer *exact, const void *const *parts, const bool *in_planes, int n_parts,
                    int64_t n, int64_t begin, int64_t end, int64_t *sums);

/* Where the f32 sum of element i may be stored: at the place of its low word, which it replaces. NULL: i is
 * after the last whole tile, where elements are 64-bit integers. */
float *tsr_planes_f32(void *part, int64_t n, int64_t i);

#endif
