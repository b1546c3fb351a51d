/* IQ4_NL, IQ4_XS, MXFP4 and NVFP4: nibbles that choose one of sixteen values which are not evenly spaced.
 * Decoders follow the layouts in quant.h line by line. Encoders are simple (quant_encode.c): the extreme
 * element fixes the scale, and every element goes to the nearest value under it. */
#include "core/quant/quant_each.h"
#include "core/quant/quant_round.h"

#include <math.h>
#include <string.h>

static const int8_t iq4_values[16] = {TSR_QUANT_IQ4_VALUES}, fp4_values[16] = {TSR_QUANT_FP4_VALUES};

static void decode_nibbles(const uint8_t *q, const int8_t *values, float scale, float *dst)
{
    for (int i = 0; i < 16; i++) {
        dst[i] = scale * (float)values[q[i] & 0x0f];
        dst[i + 16] = scale * (float)values[q[i] >> 4];
    }
}

/* 32 elements; all zeros where the scale is 0. */
static void encode_nibbles(const float *x, const int8_t *values, float scale, uint8_t *q)
{
    memset(q, 0, TSR_QUANT_BLOCK / 2);
    for (int i = 0; i < TSR_QUANT_BLOCK; i++) {
        float scaled = x[i] * tsr_quant_reciprocal(scale);
        int best = 0;
        for (int v = 1; v < 16; v++)
            if (fabsf(scaled - (float)values[v]) < fabsf(scaled - (float)values[best]))
                best = v;
        q[i % 16] |= (uint8_t)(best << (i < 16 ? 0 : 4));
    }
}

static void decode_iq4_nl(const tsr_block_iq4_nl *block, float *dst)
{
    decode_nibbles(block->q, iq4_values, tsr_f16_to_f32(block->d), dst);
}
TSR_QUANT_DECODER(iq4_nl, TSR_QUANT_BLOCK)

static tsr_block_iq4_nl encode_iq4_nl(const float *src)
{
    tsr_block_iq4_nl block = {.d = TSR_QUANT_F16_NAN};
    uint16_t half;
    float d;
    if (tsr_quant_store_scale(tsr_quant_extreme(src, TSR_QUANT_BLOCK) / -127.0f, &half, &d)) {
        block.d = half;
        encode_nibbles(src, iq4_values, d, block.q);
    }
    return block;
}
TSR_QUANT_ENCODER(iq4_nl, TSR_QUANT_BLOCK)

static void decode_iq4_xs(const tsr_block_iq4_xs *block, float *dst)
{
    for (int s = 0; s < 8; s++) {
        float scale = tsr_f16_to_f32(block->d) * (float)(tsr_quant_iq4_scale(block, s) - 32);
        decode_nibbles(block->q + 16 * s, iq4_values, scale, dst + 32 * s);
    }
}
TSR_QUANT_DECODER(iq4_xs, TSR_QUANT_SUPER_BLOCK)

static tsr_block_iq4_xs encode_iq4_xs(const float *x)
{
    tsr_block_iq4_xs block = {.d = TSR_QUANT_F16_NAN};
    float step[8], d;
    uint16_t half;
    for (int s = 0; s < 8; s++) /* signed: the sub-block's extreme element falls on -127 */
        step[s] = tsr_quant_extreme(x + 32 * s, 32) / -127.0f;
    if (!tsr_quant_store_scale(fabsf(tsr_quant_extreme(step, 8)) / 31.0f, &half, &d))
        return block;
    block.d = half;
    for (int s = 0; s < 8; s++) {
        int scale = tsr_quant_nearest(step[s] * tsr_quant_reciprocal(d), -32, 31);
        block.scales_low[s / 2] |= (uint8_t)(((scale + 32) & 0x0f) << s % 2 * 4);
        block.scales_high |= (uint16_t)(((scale + 32) >> 4) << 2 * s);
        encode_nibbles(x + 32 * s, iq4_values, d * (float)scale, block.q + 16 * s);
    }
    return block;
}
TSR_QUANT_ENCODER(iq4_xs, TSR_QUANT_SUPER_BLOCK)

static void decode_mxfp4(const tsr_block_mxfp4 *block, float *dst)
{
    decode_nibbles(block->q, fp4_values, tsr_quant_mx_scale(block->e), dst);
}
TSR_QUANT_DECODER(mxfp4, TSR_QUANT_BLOCK)

static tsr_block_mxfp4 encode_mxfp4(const float *src)
{
    tsr_block_mxfp4 block = {.e = 255};
    float largest = fabsf(tsr_quant_extreme(src, TSR_QUANT_BLOCK));
    if (!isnan(largest)) {
        /* The specification's rule: the largest element's power of two falls on that of the largest
         * FP4. */
        int exponent = largest > 0.0f ? ilogbf(largest) - 2 + 127 : 0;
        block.e = (uint8_t)(exponent < 2 ? 2 : exponent); /* below 2 the factor has no finite reciprocal */
        encode_nibbles(src, fp4_values, tsr_quant_mx_scale(block.e), block.q);
    }
    return block;
}
TSR_QUANT_ENCODER(mxfp4, TSR_QUANT_BLOCK)

static void decode_nvfp4(const tsr_block_nvfp4 *block, float *dst)
{
    for (int e = 0; e < TSR_QUANT_NV_BLOCK; e++) {
        const uint8_t pair = block->q[e / 16 * 8 + e % 8];
        dst[e] = tsr_quant_nv_scale(block->d[e / 16]) * (float)fp4_values[e % 16 < 8 ? pair & 15 : pair >> 4];
    }
}
TSR_QUANT_DECODER(nvfp4, TSR_QUANT_NV_BLOCK)

/* The sub-block's largest magnitude falls on 6, the largest FP4, by the nearest of the finite scales
 * 0..126. */
static tsr_block_nvfp4 encode_nvfp4(const float *src)
{
    tsr_block_nvfp4 block = {{0}, {0}};
    if (isnan(tsr_quant_extreme(src, TSR_QUANT_NV_BLOCK)))
        return block;
    for (int s = 0; s < 4; s++) {
        const float step = fabsf(tsr_quant_extreme(src + 16 * s, 16)) / 12.0f;
        uint8_t q[TSR_QUANT_BLOCK / 2], e = 0;
        float x[TSR_QUANT_BLOCK] = {0};
        while (e < 126 && fabsf(tsr_quant_nv_scale(e + 1) - step) <= fabsf(tsr_quant_nv_scale(e) - step))
            e++;
        for (int i = 0; i < 16; i++) /* as a block of 32 stores nibbles: q[i] holds elements i and 16 + i */
            x[i / 8 * 16 + i % 8] = src[16 * s + i];
        encode_nibbles(x, fp4_values, tsr_quant_nv_scale(e), q);
        block.d[s] = e;
        memcpy(block.q + 8 * s, q, 8);
    }
    return block;
}
TSR_QUANT_ENCODER(nvfp4, TSR_QUANT_NV_BLOCK)
