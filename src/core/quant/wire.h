/* How a partial sum of the exact reduction (fixed.h) travels between devices where bytes count.
 *
 * A sum is an integer s, |s| < 2^57. Most are small: with 28 fraction bits, |s| < 2^30 says that the value is
 * below 4. So a tile of TSR_WIRE_TILE sums is stored as planes in the tile's own 8 bytes per sum, and a
 * reader reads what the sums need:
 *
 *     low      4 bytes per sum, always: 31 bits and whether the sum is wide, which is |s| >= 2^30
 *     middle   1 byte: 7 bits more and whether the sum is large, s < -2^37 or s >= 2^37; where one of the
 *              TSR_WIRE_GROUP sums of a group is wide
 *     top      3 bytes, of a plane each: the last 24 bits; where one of a group is large
 *
 * The integers are the same as without planes, so nothing is rounded and nothing can overflow. Where a sum
 * needs no plane its bytes there are undefined. The sums after the last whole tile stay 64-bit integers. */
#ifndef TSR_CORE_QUANT_WIRE_H
#define TSR_CORE_QUANT_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#ifndef TSR_WIRE_FUNCTION
#define TSR_WIRE_FUNCTION static inline
#endif

enum {
    TSR_WIRE_TILE = 2048,
    TSR_WIRE_GROUP = 4,
    TSR_WIRE_LOW_BITS = 31,
    TSR_WIRE_MIDDLE_BITS = 7,
    TSR_WIRE_MIDDLE = 4 * TSR_WIRE_TILE, /* bytes from the tile's begin */
    TSR_WIRE_TOP = 5 * TSR_WIRE_TILE     /* the first of three planes */
};

#define TSR_WIRE_WIDE  UINT32_C(0x80000000) /* in a low word */
#define TSR_WIRE_LARGE UINT32_C(0x80)       /* in a middle byte */

TSR_WIRE_FUNCTION bool tsr_wire_is_wide(int64_t sum)
{
    return sum <= -((int64_t)1 << 30) || sum >= (int64_t)1 << 30;
}

TSR_WIRE_FUNCTION bool tsr_wire_is_large(int64_t sum)
{
    return sum < -((int64_t)1 << 37) || sum >= (int64_t)1 << 37;
}

TSR_WIRE_FUNCTION uint32_t tsr_wire_low(int64_t sum)
{
    return ((uint32_t)sum & ~TSR_WIRE_WIDE) | (tsr_wire_is_wide(sum) ? TSR_WIRE_WIDE : 0);
}

TSR_WIRE_FUNCTION uint32_t tsr_wire_middle(int64_t sum)
{
    return ((uint32_t)(sum >> TSR_WIRE_LOW_BITS) & 0x7f) | (tsr_wire_is_large(sum) ? TSR_WIRE_LARGE : 0);
}

/* 24 bits. */
TSR_WIRE_FUNCTION uint32_t tsr_wire_top(int64_t sum)
{
    return (uint32_t)(sum >> (TSR_WIRE_LOW_BITS + TSR_WIRE_MIDDLE_BITS)) & 0xffffff;
}

/* The sum of a low word and of the bits above it, which are used if the sum is wide. */
TSR_WIRE_FUNCTION int64_t tsr_wire_sum_of(uint32_t low, int32_t high)
{
    const int32_t narrow = (int32_t)(low << 1) >> 1;
    return low & TSR_WIRE_WIDE ? (int64_t)high * ((int64_t)1 << TSR_WIRE_LOW_BITS) + (low & ~TSR_WIRE_WIDE)
                               : narrow;
}

/* The sum of a low word and of the bytes that it calls for; the others are not used. */
TSR_WIRE_FUNCTION int64_t tsr_wire_sum(uint32_t low, uint32_t middle, uint32_t top)
{
    const int32_t seven = (int32_t)(middle << 25) >> 25,
                  large = (int32_t)(top << 8) >> 1 | (int32_t)(middle & 0x7f);
    return tsr_wire_sum_of(low, middle & TSR_WIRE_LARGE ? large : seven);
}

#endif
