/* Simple encoders of quantized blocks. A block's range fixes its scale, and every element goes to the
 * nearest quantum under the scale *as stored* (rounded to F16), so rounding the scale adds no further
 * error. Better scales are not searched for: these encoders serve KV caches, tests and benchmarks, not the
 * quantization of files. */
#include "core/quant/quant.h"

#include <math.h>

#include "core/quant/quant_each.h"
#include "core/quant/quant_round.h"

static tsr_block_q8_0 encode_q8_0(const float *src)
{
    tsr_block_q8_0 block = {.d = TSR_QUANT_F16_NAN};
    uint16_t half;
    float d;
    if (tsr_quant_store_scale(fabsf(tsr_quant_extreme(src, TSR_QUANT_BLOCK)) / 127.0f, &half, &d)) {
        block.d = half;
        for (int i = 0; i < TSR_QUANT_BLOCK; i++)
            block.q[i] = (int8_t)tsr_quant_nearest(src[i] * tsr_quant_reciprocal(d), -127, 127);
    }
    return block;
}
TSR_QUANT_ENCODER(q8_0, TSR_QUANT_BLOCK)

static tsr_block_q4_0 encode_q4_0(const float *src)
{
    tsr_block_q4_0 block = {.d = TSR_QUANT_F16_NAN};
    uint16_t half;
    float d;
    /* Quanta run from -8 to 7; the signed scale puts the extreme element on -8. */
    if (tsr_quant_store_scale(tsr_quant_extreme(src, TSR_QUANT_BLOCK) / -8.0f, &half, &d)) {
        block.d = half;
        for (int i = 0; i < TSR_QUANT_BLOCK / 2; i++) {
            int low = tsr_quant_nearest(src[i] * tsr_quant_reciprocal(d), -8, 7) + 8;
            int high = tsr_quant_nearest(src[i + 16] * tsr_quant_reciprocal(d), -8, 7) + 8;
            block.q[i] = (uint8_t)(low | high << 4);
        }
    }
    return block;
}
TSR_QUANT_ENCODER(q4_0, TSR_QUANT_BLOCK)

/* Common to Q4_K and Q5_K: header and quants of one super-block before packing. */
struct min_block {
    uint16_t d, dmin;
    uint8_t scales[TSR_QUANT_SCALES_BYTES];
    uint8_t quants[TSR_QUANT_SUPER_BLOCK];
};

/* The inverse of tsr_quant_scale_min. */
static void pack_scale_min(uint8_t packed[TSR_QUANT_SCALES_BYTES], int s, int scale, int min)
{
    if (s < 4) {
        packed[s] |= (uint8_t)scale;
        packed[s + 4] |= (uint8_t)min;
    } else {
        packed[s + 4] |= (uint8_t)((scale & 0x0f) | (min & 0x0f) << 4);
        packed[s - 4] |= (uint8_t)((scale >> 4) << 6);
        packed[s] |= (uint8_t)((min >> 4) << 6);
    }
}

/* Each sub-block's range [min(0, smallest), largest] is cut into `top` steps. */
static struct min_block encode_min_block(const float *x, int top)
{
    struct min_block block = {.d = TSR_QUANT_F16_NAN, .dmin = TSR_QUANT_F16_NAN};
    float step[8], offset[8], largest_step = 0.0f, largest_offset = 0.0f;
    for (int s = 0; s < 8; s++) {
        float smallest = 0.0f, largest = x[32 * s];
        for (int i = 32 * s; i < 32 * s + 32; i++) {
            smallest = fminf(smallest, x[i]);
            largest = fmaxf(largest, x[i]);
        }
        step[s] = (largest - smallest) / (float)top;
        offset[s] = -smallest;
        largest_step = fmaxf(largest_step, step[s]);
        largest_offset = fmaxf(largest_offset, offset[s]);
    }
    uint16_t d_half, dmin_half;
    float d, dmin;
    if (isnan(tsr_quant_extreme(x, TSR_QUANT_SUPER_BLOCK)) ||
        !tsr_quant_store_scale(largest_step / 63.0f, &d_half, &d) ||
        !tsr_quant_store_scale(largest_offset / 63.0f, &dmin_half, &dmin))
        return block;
    block.d = d_half;
    block.dmin = dmin_half;
    for (int s = 0; s < 8; s++) {
        int scale = tsr_quant_nearest(step[s] * tsr_quant_reciprocal(d), 0, 63);
        int min = tsr_quant_nearest(offset[s] * tsr_quant_reciprocal(dmin), 0, 63);
        pack_scale_min(block.scales, s, scale, min);
        float inverse = tsr_quant_reciprocal(d * (float)scale);
        for (int i = 32 * s; i < 32 * s + 32; i++)
            block.quants[i] = (uint8_t)tsr_quant_nearest((x[i] + dmin * (float)min) * inverse, 0, top);
    }
    return block;
}

/* Low nibbles of 256 quants into the four groups of 32 bytes. */
static void pack_nibbles(const uint8_t *quants, uint8_t *q)
{
    for (int group = 0; group < 4; group++) {
        const uint8_t *even = quants + 64 * group, *odd = even + 32;
        for (int i = 0; i < 32; i++)
            q[32 * group + i] = (uint8_t)((even[i] & 0x0f) | (odd[i] & 0x0f) << 4);
    }
}

static tsr_block_q4_k encode_q4_k(const float *src)
{
    struct min_block plain = encode_min_block(src, 15);
    tsr_block_q4_k block = {.d = plain.d, .dmin = plain.dmin};
    memcpy(block.scales, plain.scales, sizeof block.scales);
    pack_nibbles(plain.quants, block.q);
    return block;
}
TSR_QUANT_ENCODER(q4_k, TSR_QUANT_SUPER_BLOCK)

static tsr_block_q5_k encode_q5_k(const float *src)
{
    struct min_block plain = encode_min_block(src, 31);
    tsr_block_q5_k block = {.d = plain.d, .dmin = plain.dmin};
    memcpy(block.scales, plain.scales, sizeof block.scales);
    pack_nibbles(plain.quants, block.q);
    for (int element = 0; element < TSR_QUANT_SUPER_BLOCK; element++)
        block.high[element % 32] |= (uint8_t)((plain.quants[element] >> 4) << (element / 32));
    return block;
}
TSR_QUANT_ENCODER(q5_k, TSR_QUANT_SUPER_BLOCK)

static tsr_block_q6_k encode_q6_k(const float *x)
{
    tsr_block_q6_k block = {.d = TSR_QUANT_F16_NAN};
    float step[16];
    for (int s = 0; s < 16; s++) /* signed, so that the sub-block's extreme element falls on quantum -32 */
        step[s] = tsr_quant_extreme(x + 16 * s, 16) / -32.0f;
    uint16_t half;
    float d;
    if (!tsr_quant_store_scale(fabsf(tsr_quant_extreme(step, 16)) / 127.0f, &half, &d))
        return block;
    block.d = half;
    for (int element = 0; element < TSR_QUANT_SUPER_BLOCK; element++) {
        int s = element / 16;
        block.scales[s] = (int8_t)tsr_quant_nearest(step[s] * tsr_quant_reciprocal(d), -127, 127);
        float inverse = tsr_quant_reciprocal(d * (float)block.scales[s]);
        int quantum = tsr_quant_nearest(x[element] * inverse, -32, 31) + 32;
        int h = element / 128, k = element % 128 / 32, i = element % 32;
        block.low[64 * h + 32 * (k % 2) + i] |= (uint8_t)((quantum & 0x0f) << (k < 2 ? 0 : 4));
        block.high[32 * h + i] |= (uint8_t)((quantum >> 4) << 2 * k);
    }
    return block;
}
TSR_QUANT_ENCODER(q6_k, TSR_QUANT_SUPER_BLOCK)
