/* Helpers of the encoders: rounding to quants and scales. */
#ifndef TSR_CORE_QUANT_QUANT_ROUND_H
#define TSR_CORE_QUANT_QUANT_ROUND_H

#include <math.h>

#include "core/quant/quant.h"

/* Nearest integer (ties to even, as vector conversions round) within [low, high]. `scaled` is not NaN. */
static inline int tsr_quant_nearest(float scaled, int low, int high)
{
    if (scaled <= (float)low)
        return low;
    if (scaled >= (float)high)
        return high;
    return (int)rintf(scaled);
}

/* 1 / scale, or 0 for a scale of 0: then every quantum is 0. A scale too small to have a finite reciprocal
 * cannot occur, since stored scales are halves. */
static inline float tsr_quant_reciprocal(float scale)
{
    return scale != 0.0f ? 1.0f / scale : 0.0f;
}

/* Round a scale to F16. False if the result is not finite: the caller then stores a NaN scale over zeroed
 * quants, so that all of the block decodes to NaN. */
static inline int tsr_quant_store_scale(float scale, uint16_t *half_out, float *stored_out)
{
    *half_out = tsr_f32_to_f16(scale);
    *stored_out = tsr_f16_to_f32(*half_out);
    return isfinite(*stored_out);
}

enum { TSR_QUANT_F16_NAN = 0x7e00 };

/* The element of largest magnitude, sign kept; NaN if an element is not finite. */
static inline float tsr_quant_extreme(const float *x, int n)
{
    float best = 0.0f;
    int finite = 1;
    for (int i = 0; i < n; i++) {
        finite &= isfinite(x[i]) != 0;
        if (fabsf(x[i]) > fabsf(best))
            best = x[i];
    }
    return finite ? best : NAN;
}

#endif
