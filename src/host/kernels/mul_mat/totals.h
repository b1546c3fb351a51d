/* Totals of an exact product with many tokens, kept in scratch until all of K is done: in the output, whose
 * rows are far apart, they would leave the cache between granules.
 *
 * A granule's sum becomes two 32-bit integers, which a vector holds and adds like floats: the nearest
 * multiple of 2^-13, and the remainder, rounded to a multiple of 2^-28. All steps but the last are exact, and
 * the first integer, shifted, is even, so the two together are tsr_fixed_from_f32(), ties included. The range
 * that 32 bits impose on the sums is checked at the end: a product with larger sums, or with sums that are
 * not numbers, is computed once more without these totals. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_TOTALS_H
#define TSR_HOST_KERNELS_MUL_MAT_TOTALS_H

#include "core/op.h"
#include "core/quant/fixed.h"
#include "host/kernels/vec/vec.h"

enum {
    TOTALS_MAX = 288 * 512, /* outputs: rows times tokens of a product */
    TOTALS_GRANULES = 511,  /* remainders, each at most 2^14 units, add up in 32 bits */
    TOTALS_LOW_BITS = TSR_FIXED_FRACTION_BITS - 13 /* bits of a unit of 2^-13, in units of 2^-28 */
};

typedef struct exact_totals {
    uint32_t largest[VEC_LANES]; /* bits of the largest magnitude in each lane */
    int32_t high[TOTALS_MAX], low[TOTALS_MAX];
} exact_totals;

ALWAYS_INLINE int64_t totals_granules(const tsr_op_mul_mat *op)
{
    return (op->k + op->granule - 1) / op->granule;
}

/* Empty totals of an op that can have them; otherwise NULL. */
ALWAYS_INLINE exact_totals *totals_begin(const tsr_op_mul_mat *op, exact_totals *totals)
{
    if (!op->partial || op->reduce != TSR_REDUCE_EXACT || totals_granules(op) > TOTALS_GRANULES)
        return NULL;
    memset(totals->largest, 0, sizeof totals->largest);
    return totals;
}

/* Whether every sum was in the op's range and small enough for 32 bits. Compared as integers, the bits of
 * magnitudes have the order of the values, with infinity and NaN on top. */
ALWAYS_INLINE bool totals_hold(const tsr_op_mul_mat *op, const exact_totals *totals)
{
    const float small = 0x1p17f / (float)totals_granules(op);
    const uint32_t limit = tsr_f32_bits(op->limit < small ? op->limit : small);
    for (int i = 0; i < VEC_LANES; i++)
        if (totals->largest[i] >= limit)
            return false;
    return true;
}

/* Add n granule sums, whole vectors of them, to the totals from `at` on; `first`: the totals are new. */
ALWAYS_INLINE void totals_add(const float *sums, int n, bool first, int64_t at, exact_totals *totals)
{
    vec_int largest, high, low;
    memcpy(&largest, totals->largest, sizeof largest);
    for (int i = 0; i < n; i += VEC_LANES, at += VEC_LANES) {
        const vec sum = vec_load(sums + i);
        const vec_int units = vec_round(sum * vec_set1(0x1p13f));
        const vec rest = sum - __builtin_convertvector(units, vec) * vec_set1(0x1p-13f);
        largest = vec_int_max(largest, (vec_int)sum & 0x7fffffff);
        high = units, low = vec_round(rest * vec_set1((float)TSR_FIXED_ONE));
        if (!first) {
            vec_bits before;
            memcpy(&before, totals->high + at, sizeof before);
            high = (vec_int)((vec_bits)high + before);
            memcpy(&before, totals->low + at, sizeof before);
            low = (vec_int)((vec_bits)low + before);
        }
        memcpy(totals->high + at, &high, sizeof high);
        memcpy(totals->low + at, &low, sizeof low);
    }
    memcpy(totals->largest, &largest, sizeof largest);
}

/* Store n totals from `at` on in the reduction's format. */
ALWAYS_INLINE void totals_take(const exact_totals *totals, int64_t at, int n, int64_t *out)
{
    for (int i = 0; i < n; i++)
        out[i] = (int64_t)totals->high[at + i] * (1 << TOTALS_LOW_BITS) + totals->low[at + i];
}

#endif
