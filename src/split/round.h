/* Inside src/split: rounding towards given ideals instead of shares. */
#ifndef TSR_SPLIT_ROUND_H
#define TSR_SPLIT_ROUND_H

#include <tsr/split.h>

/* Ideals are integers in units of 2^-20 granule: comparing them is exact, and values that are equal on paper
 * but not as doubles (3 * 1/6 and 1/2) tie. */
#define TSR_SPLIT_IDEAL_BITS 20

__extension__ typedef unsigned __int128 tsr_split_wide; /* for products of two 64-bit values */

/* value * numerator / denominator, rounded down; all >= 0, denominator > 0, the result fits. */
static inline int64_t tsr_split_scale(int64_t value, int64_t numerator, int64_t denominator)
{
    return (int64_t)((tsr_split_wide)value * (tsr_split_wide)numerator / (tsr_split_wide)denominator);
}

/* `count_out` sums to n_granules, count_out[d] <= cap[d] (cap 0: the device gets nothing), with the
 * properties of tsr_split_round. The ideals need not sum to n_granules. False: the caps hold less than
 * n_granules. */
bool tsr_split_round_ideals(const int64_t *ideal, const int64_t *cap, int n_devices, int64_t n_granules,
                            int64_t *count_out);

/* ideal_out[d] = n_granules * share of d, at least one unit for a device with a share and 0 for one without.
 * TSR_ERR_INVALID for shares that are negative, not finite or all zero, naming the device. */
tsr_status tsr_split_ideals(const double *shares, int n_devices, int64_t n_granules, int64_t *ideal_out);

#endif
