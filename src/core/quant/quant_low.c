/* Q2_K and Q3_K: super-blocks of sixteen sub-blocks whose quants have two bits, with a third stored
 * separately. TQ1_0 and TQ2_0: super-blocks of three values with one scale. Decoders follow the layouts in
 * quant.h line by line; encoders are simple (quant_encode.c). */
#include "core/quant/quant_each.h"
#include "core/quant/quant_round.h"

#include <math.h>
#include <string.h>

/* The low two bits of element e (0..255): byte and shift. */
static int low_byte(int e)
{
    return 32 * (e / 128) + e % 32;
}

static int low_shift(int e)
{
    return e % 128 / 32 * 2;
}

static void decode_q2_k(const tsr_block_q2_k *block, float *dst)
{
    for (int e = 0; e < TSR_QUANT_SUPER_BLOCK; e++) {
        float step = tsr_f16_to_f32(block->d) * (float)(block->scales[e / 16] & 0x0f);
        float offset = tsr_f16_to_f32(block->dmin) * (float)(block->scales[e / 16] >> 4);
        dst[e] = step * (float)(block->q[low_byte(e)] >> low_shift(e) & 3) - offset;
    }
}
TSR_QUANT_DECODER(q2_k, TSR_QUANT_SUPER_BLOCK)

/* Each sub-block's range [min(0, smallest), largest] is cut into three steps. */
static tsr_block_q2_k encode_q2_k(const float *x)
{
    tsr_block_q2_k block = {.d = TSR_QUANT_F16_NAN, .dmin = TSR_QUANT_F16_NAN};
    float step[16], offset[16], largest_step = 0.0f, largest_offset = 0.0f, d, dmin;
    uint16_t d_half, dmin_half;
    for (int s = 0; s < 16; s++) {
        float smallest = 0.0f, largest = x[16 * s];
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            smallest = fminf(smallest, x[i]);
            largest = fmaxf(largest, x[i]);
        }
        step[s] = (largest - smallest) / 3.0f;
        offset[s] = -smallest;
        largest_step = fmaxf(largest_step, step[s]);
        largest_offset = fmaxf(largest_offset, offset[s]);
    }
    if (isnan(tsr_quant_extreme(x, TSR_QUANT_SUPER_BLOCK)) ||
        !tsr_quant_store_scale(largest_step / 15.0f, &d_half, &d) ||
        !tsr_quant_store_scale(largest_offset / 15.0f, &dmin_half, &dmin))
        return block;
    block.d = d_half;
    block.dmin = dmin_half;
    for (int e = 0; e < TSR_QUANT_SUPER_BLOCK; e++) {
        int s = e / 16;
        int scale = tsr_quant_nearest(step[s] * tsr_quant_reciprocal(d), 0, 15);
        int min = tsr_quant_nearest(offset[s] * tsr_quant_reciprocal(dmin), 0, 15);
        float scaled = (x[e] + dmin * (float)min) * tsr_quant_reciprocal(d * (float)scale);
        block.scales[s] = (uint8_t)(scale | min << 4);
        block.q[low_byte(e)] |= (uint8_t)(tsr_quant_nearest(scaled, 0, 3) << low_shift(e));
    }
    return block;
}
TSR_QUANT_ENCODER(q2_k, TSR_QUANT_SUPER_BLOCK)

static void decode_q3_k(const tsr_block_q3_k *block, float *dst)
{
    for (int e = 0; e < TSR_QUANT_SUPER_BLOCK; e++) {
        float scale = tsr_f16_to_f32(block->d) * (float)(tsr_quant_q3_scale(block->scales, e / 16) - 32);
        int quantum = (block->q[low_byte(e)] >> low_shift(e) & 3) | (block->high[e % 32] >> e / 32 & 1) << 2;
        dst[e] = scale * (float)(quantum - 4);
    }
}
TSR_QUANT_DECODER(q3_k, TSR_QUANT_SUPER_BLOCK)

/* The inverse of tsr_quant_q3_scale. */
static void pack_q3_scale(uint8_t packed[TSR_QUANT_SCALES_BYTES], int s, int scale)
{
    packed[s % 8] |= (uint8_t)((scale & 0x0f) << (s < 8 ? 0 : 4));
    packed[8 + s % 4] |= (uint8_t)((scale >> 4) << s / 4 * 2);
}

static tsr_block_q3_k encode_q3_k(const float *x)
{
    tsr_block_q3_k block = {.d = TSR_QUANT_F16_NAN};
    float step[16], d;
    uint16_t half;
    for (int s = 0; s < 16; s++) /* signed: the sub-block's extreme element falls on quantum -4 */
        step[s] = tsr_quant_extreme(x + 16 * s, 16) / -4.0f;
    if (!tsr_quant_store_scale(fabsf(tsr_quant_extreme(step, 16)) / 31.0f, &half, &d))
        return block;
    block.d = half;
    for (int s = 0; s < 16; s++) {
        int scale = tsr_quant_nearest(step[s] * tsr_quant_reciprocal(d), -32, 31);
        float inverse = tsr_quant_reciprocal(d * (float)scale);
        pack_q3_scale(block.scales, s, scale + 32);
        for (int e = 16 * s; e < 16 * s + 16; e++) {
            int quantum = tsr_quant_nearest(x[e] * inverse, -4, 3) + 4;
            block.q[low_byte(e)] |= (uint8_t)((quantum & 3) << low_shift(e));
            block.high[e % 32] |= (uint8_t)((quantum >> 2) << e / 32);
        }
    }
    return block;
}
TSR_QUANT_ENCODER(q3_k, TSR_QUANT_SUPER_BLOCK)

static void decode_tq2_0(const tsr_block_tq2_0 *block, float *dst)
{
    for (int e = 0; e < TSR_QUANT_SUPER_BLOCK; e++)
        dst[e] = tsr_f16_to_f32(block->d) * (float)((block->q[low_byte(e)] >> low_shift(e) & 3) - 1);
}
TSR_QUANT_DECODER(tq2_0, TSR_QUANT_SUPER_BLOCK)

/* The largest magnitude is the scale. */
static tsr_block_tq2_0 encode_tq2_0(const float *x)
{
    tsr_block_tq2_0 block = {.d = TSR_QUANT_F16_NAN};
    uint16_t half;
    float d;
    if (!tsr_quant_store_scale(fabsf(tsr_quant_extreme(x, TSR_QUANT_SUPER_BLOCK)), &half, &d))
        return block;
    block.d = half;
    for (int e = 0; e < TSR_QUANT_SUPER_BLOCK; e++) {
        const int quantum = tsr_quant_nearest(x[e] * tsr_quant_reciprocal(d), -1, 1) + 1;
        block.q[low_byte(e)] |= (uint8_t)(quantum << low_shift(e));
    }
    return block;
}
TSR_QUANT_ENCODER(tq2_0, TSR_QUANT_SUPER_BLOCK)

/* The byte of element e, and the element's number in the byte. */
static int three_byte(int e, int *number_out)
{
    const int begin = e < 160 ? 0 : e < 240 ? 160 : 240, width = e < 160 ? 32 : e < 240 ? 16 : 4;
    *number_out = (e - begin) / width;
    return (e < 160 ? 0 : e < 240 ? 32 : 48) + (e - begin) % width;
}

static const uint8_t powers_of_three[5] = {1, 3, 9, 27, 81};

static void decode_tq1_0(const tsr_block_tq1_0 *block, float *dst)
{
    for (int e = 0; e < TSR_QUANT_SUPER_BLOCK; e++) {
        int number;
        const int at = three_byte(e, &number);
        const uint8_t byte = at < 48 ? block->q[at] : block->last[at - 48];
        const uint8_t moved = (uint8_t)(byte * powers_of_three[number]);
        dst[e] = tsr_f16_to_f32(block->d) * (float)((moved * 3 >> 8) - 1);
    }
}
TSR_QUANT_DECODER(tq1_0, TSR_QUANT_SUPER_BLOCK)

static tsr_block_tq1_0 encode_tq1_0(const float *x)
{
    tsr_block_tq1_0 block = {.d = TSR_QUANT_F16_NAN};
    int sums[52] = {0}; /* numbers in base three, the first element's digit the highest of five */
    uint16_t half;
    float d;
    if (!tsr_quant_store_scale(fabsf(tsr_quant_extreme(x, TSR_QUANT_SUPER_BLOCK)), &half, &d))
        return block;
    block.d = half;
    for (int e = 0; e < TSR_QUANT_SUPER_BLOCK; e++) {
        int number;
        const int at = three_byte(e, &number);
        const int quantum = tsr_quant_nearest(x[e] * tsr_quant_reciprocal(d), -1, 1) + 1;
        sums[at] += quantum * powers_of_three[4 - number];
    }
    for (int i = 0; i < 52; i++) /* the smallest byte whose products give the digits back */
        *(i < 48 ? &block.q[i] : &block.last[i - 48]) = (uint8_t)((sums[i] * 256 + 242) / 243);
    return block;
}
TSR_QUANT_ENCODER(tq1_0, TSR_QUANT_SUPER_BLOCK)
