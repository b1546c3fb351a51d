/* From f32 to the types in which rows and caches are stored, with the bits of core/quant/quant_encode.c and
 * core/quant/half.h: one warp per 32 consecutive elements, one lane per element. */
#ifndef TSR_CUDA_KERNELS_ENCODE_CUH
#define TSR_CUDA_KERNELS_ENCODE_CUH

#include "cuda/kernels/mul_mat/quant.cuh"

/* Elements that one warp encodes. */
enum { TSR_ENCODE_GROUP = 32 };

/* Nearest integer (ties to even) within [low, high]. `scaled` is not NaN. */
TSR_DEVICE int tsr_nearest(float scaled, float low, float high)
{
    return (int)rintf(fminf(fmaxf(scaled, low), high));
}

/* The element of largest magnitude over the warp, the first of equals; NaN if an element is not finite. */
TSR_DEVICE float tsr_warp_extreme(float x, int lane)
{
    float best = x + 0.0f; /* no negative zero: a block of zeros has one encoding */
    int at = lane;
    const bool finite = fabsf(x) <= 3.40282347e38f;
    TSR_UNROLL
    for (int mask = 1; mask < TSR_WARP; mask *= 2) {
        const float other = __shfl_xor_sync(TSR_ALL_LANES, best, mask);
        const int other_at = __shfl_xor_sync(TSR_ALL_LANES, at, mask);
        if (fabsf(other) > fabsf(best) || (fabsf(other) == fabsf(best) && other_at < at)) {
            best = other;
            at = other_at;
        }
    }
    return __all_sync(TSR_ALL_LANES, finite) ? best : NAN;
}

/* The stored scale, and the factor of the elements: NaN for both where the scale is not finite. */
struct tsr_stored_scale {
    uint16_t half;
    bool finite;
    float reciprocal;
};

TSR_DEVICE tsr_stored_scale tsr_store_scale(float scale)
{
    tsr_stored_scale stored;
    stored.half = tsr_half_from_f32(scale);
    stored.finite = (stored.half & 0x7c00) != 0x7c00;
    if (!stored.finite)
        stored.half = 0x7e00;
    const float value = tsr_half_to_f32(stored.half);
    stored.reciprocal = value != 0.0f ? 1.0f / value : 0.0f;
    return stored;
}

TSR_DEVICE void tsr_encode_q8_0(float x, int lane, unsigned char *block)
{
    const tsr_stored_scale d = tsr_store_scale(fabsf(tsr_warp_extreme(x, lane)) / 127.0f);
    if (lane == 0)
        *reinterpret_cast<uint16_t *>(block) = d.half;
    block[2 + lane] = d.finite ? (unsigned char)tsr_nearest(x * d.reciprocal, -127.0f, 127.0f) : 0;
}

/* Quants are -8 to 7; the signed scale puts the extreme element on -8. Byte i holds elements i (low nibble)
 * and i + 16. */
TSR_DEVICE void tsr_encode_q4_0(float x, int lane, unsigned char *block)
{
    const tsr_stored_scale d = tsr_store_scale(tsr_warp_extreme(x, lane) / -8.0f);
    const int q = d.finite ? tsr_nearest(x * d.reciprocal, -8.0f, 7.0f) + 8 : 0;
    const int upper = __shfl_xor_sync(TSR_ALL_LANES, q, 16);
    if (lane == 0)
        *reinterpret_cast<uint16_t *>(block) = d.half;
    if (lane < 16)
        block[2 + lane] = (unsigned char)(q | upper << 4);
}

/* Store element `group` * 32 + `lane` of row y, which exists if `here`. Called by all lanes of a warp,
 * each with its own value, 0 where the element does not exist. Other types are refused when a program is
 * created. */
TSR_DEVICE void tsr_encode_value(tsr_type type, float value, bool here, unsigned char *y, int64_t group,
                                 int lane)
{
    const int64_t at = group * TSR_ENCODE_GROUP + lane;
    if (type == TSR_TYPE_Q8_0)
        tsr_encode_q8_0(value, lane, y + group * (int64_t)sizeof(tsr_block_q8_0));
    else if (type == TSR_TYPE_Q4_0)
        tsr_encode_q4_0(value, lane, y + group * (int64_t)sizeof(tsr_block_q4_0));
    else if (type == TSR_TYPE_F32 && here)
        reinterpret_cast<float *>(y)[at] = value;
    else if (type == TSR_TYPE_F16 && here)
        reinterpret_cast<uint16_t *>(y)[at] = tsr_half_from_f32(value);
    else if (type == TSR_TYPE_BF16 && here)
        reinterpret_cast<uint16_t *>(y)[at] = tsr_bfloat_from_f32(value);
}

/* Encode group number `group` (32 elements, `left` of which exist) of the row from x to row y. */
TSR_DEVICE void tsr_encode_group(tsr_type type, const float *x, unsigned char *y, int64_t group, int64_t left,
                                 int lane)
{
    const bool here = lane < left;
    tsr_encode_value(type, here ? x[group * TSR_ENCODE_GROUP + lane] : 0.0f, here, y, group, lane);
}

#endif
