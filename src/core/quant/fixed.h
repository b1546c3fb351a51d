/* The exact reduction's number format.
 *
 * A matrix product whose K columns are divided over devices is a sum of partial sums, one per K granule. A
 * float sum depends on its order, hence on the split. So each granule's partial (computed in one fixed
 * order, wherever the granule is stored) is rounded once to a multiple of 2^-28, and everything after that
 * is int64 addition, which is associative: any split, any number of devices and any all-reduce algorithm
 * give the same bits.
 *
 * 28 fraction bits keep all 24 significant bits of any partial of at least 2^-5, and most sums of a model,
 * those below 4, have 31 bits, which is what travels between devices (wire.h). The range is shared out so
 * that any sum of granules of a tensor stays below 2^57: with G granules in the whole tensor each partial
 * must stay below 2^(57 - 28 - ceil(log2 G)), which is 4194304 for the 112 granules of a 14336-wide FFN. A
 * partial outside it, or a NaN, is reported (TSR_ERR_RANGE), never wrapped. The limit depends on the tensor,
 * not on the split. Sums of 57 bits leave 64 processes room for sums in pieces (comm/narrow.h). */
#ifndef TSR_CORE_QUANT_FIXED_H
#define TSR_CORE_QUANT_FIXED_H

#include <stdbool.h>
#include <stdint.h>

enum { TSR_FIXED_FRACTION_BITS = 28, TSR_FIXED_SUM_BITS = 57 /* of a sum's magnitude */ };

#define TSR_FIXED_ONE 268435456.0 /* 2^28 */

/* Largest |partial| (exclusive) for a tensor of n_granules K granules in total. */
static inline float tsr_fixed_limit(int64_t n_granules)
{
    int log2_ceil = 0;
    while (((int64_t)1 << log2_ceil) < n_granules)
        log2_ceil++;
    return (float)((int64_t)1 << (TSR_FIXED_SUM_BITS - TSR_FIXED_FRACTION_BITS - log2_ceil));
}

/* Round to the nearest multiple of 2^-28 (ties to even). The product with 2^28 is exact in double. llrint
 * rounds in the current mode of the floating-point environment, which the library leaves at nearest. */
static inline int64_t tsr_fixed_from_f32(float value)
{
    return (int64_t)__builtin_llrint((double)value * TSR_FIXED_ONE);
}

/* False for NaN too. */
static inline bool tsr_fixed_in_range(float value, float limit)
{
    return value > -limit && value < limit;
}

static inline float tsr_fixed_to_f32(int64_t sum)
{
    return (float)((double)sum * (1.0 / TSR_FIXED_ONE));
}

#endif
