/* See quant_bounds.h. Where a scale is rounded to F16 it moves by 2^-11 of itself (SLACK), which only matters
 * at the ends of the range. */
#include "support/quant_bounds.h"

#include <math.h>

#define SLACK (1 + 0x1p-10)

static double largest_magnitude(const float *x, int n)
{
    double largest = 0;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

/* Types with a minimum per sub-block of n elements, levels 0 .. `top`, and scales and minima of `most` + 1
 * levels: half a step; plus, at the ends, half a unit of the minimum and `top` half units of the scale. */
static double bound_with_minima(const float *x, int e, int n, int top, int most)
{
    double step = 0, largest_step = 0, largest_offset = 0;
    for (int s = 0; s < 256 / n; s++) {
        double low = 0, high = (double)x[n * s];
        for (int i = 0; i < n; i++) {
            low = fmin(low, (double)x[n * s + i]);
            high = fmax(high, (double)x[n * s + i]);
        }
        if (s == e / n)
            step = (high - low) / top;
        largest_step = fmax(largest_step, (high - low) / top);
        largest_offset = fmax(largest_offset, -low);
    }
    return SLACK * (step / 2 + largest_offset / most / 2 + largest_step / most * (top + 1) / 2) +
           largest_offset * 0x1p-11 + largest_step * top * 0x1p-11;
}

/* Half a step, and what rounding moves the offset and the last step. */
static double bound_with_offset(const float *x, int top)
{
    double low = (double)x[0], high = low;
    for (int i = 0; i < 32; i++) {
        low = fmin(low, (double)x[i]);
        high = fmax(high, (double)x[i]);
    }
    return SLACK * (high - low) * (0.5 / top + 0x1p-10) + fabs(low) * 0x1p-9;
}

/* A whole step, of `top` to the largest of 16 elements, opposite the extreme element, and `top` half units of
 * a scale of `most` levels. */
static double bound_without_minima(const float *x, int e, int top, int most)
{
    const double step = largest_magnitude(x + e / 16 * 16, 16) / top;
    return SLACK * (step + largest_magnitude(x, 256) / top / most * (top + 1) / 2);
}

/* Half the widest gap, 24 of 127, or the range above 113. */
static double bound_iq4(const float *x)
{
    return largest_magnitude(x, 32) * 14 / 127 * SLACK;
}

double quant_error_bound(tsr_type type, const float *x, int e)
{
    switch (type) {
    case TSR_TYPE_F16: /* half a unit in the last place, 11 significant bits; half a subnormal */
        return fmax(fabs((double)x[e]) * 0x1p-11, 0x1p-25);
    case TSR_TYPE_BF16: /* 8 significant bits */
        return fabs((double)x[e]) * 0x1p-8;
    case TSR_TYPE_Q8_0: /* half a step, or what rounding the scale cuts off the extreme element */
        return largest_magnitude(x, 32) * (0.5 / 127 + 0x1p-11);
    case TSR_TYPE_Q4_0: /* quantum 8 does not exist: an element opposite the extreme one loses a whole step */
        return largest_magnitude(x, 32) / 8 * SLACK;
    case TSR_TYPE_Q5_0:
        return largest_magnitude(x, 32) / 16 * SLACK;
    case TSR_TYPE_Q4_1:
        return bound_with_offset(x, 15);
    case TSR_TYPE_Q5_1:
        return bound_with_offset(x, 31);
    case TSR_TYPE_Q2_K:
        return bound_with_minima(x, e, 16, 3, 15);
    case TSR_TYPE_Q4_K:
        return bound_with_minima(x, e, 32, 15, 63);
    case TSR_TYPE_Q5_K:
        return bound_with_minima(x, e, 32, 31, 63);
    case TSR_TYPE_Q3_K:
        return bound_without_minima(x, e, 4, 31);
    case TSR_TYPE_Q6_K:
        return bound_without_minima(x, e, 32, 127);
    case TSR_TYPE_IQ4_NL:
        return bound_iq4(x);
    case TSR_TYPE_IQ4_XS: /* the same, and half a unit of the 6-bit scale */
        return bound_iq4(x + e / 32 * 32) + SLACK * largest_magnitude(x, 256) / 31 * 0.6;
    case TSR_TYPE_MXFP4: /* half the gap of 2 of the largest binade, or what is above 6 of up to 8 */
        return largest_magnitude(x, 32) / 4;
    case TSR_TYPE_NVFP4: { /* as MXFP4; what is above the largest scale, and half the smallest */
        const double largest = largest_magnitude(x + e / 16 * 16, 16);
        return fmax(largest / 4, largest - 2688) + 0x1.8p-8;
    }
    case TSR_TYPE_IQ1_S:
    case TSR_TYPE_IQ1_M:
    case TSR_TYPE_IQ2_XXS:
    case TSR_TYPE_IQ2_XS:
    case TSR_TYPE_IQ2_S:
    case TSR_TYPE_IQ3_XXS:
    case TSR_TYPE_IQ3_S: /* entries are few: an element may get any value of its block's size */
        return largest_magnitude(x, 256) * 1.2 * SLACK;
    case TSR_TYPE_TQ1_0:
    case TSR_TYPE_TQ2_0: /* half a step */
        return largest_magnitude(x, 256) / 2 * SLACK;
    default: /* F32 */
        return 0;
    }
}
