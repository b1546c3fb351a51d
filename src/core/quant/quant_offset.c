/* Q4_1, Q5_0 and Q5_1: blocks of 32 whose quants are nibbles, with a fifth bit in a word of 32, around an
 * offset that is 16 steps or the block's own. Decoders follow the layouts in quant.h line by line;
 * encoders are simple (quant_encode.c). */
#include "core/quant/quant_each.h"
#include "core/quant/quant_round.h"

#include <math.h>
#include <string.h>

/* Quantum of element i (0..31): nibbles as in Q4_0, and the fifth bit if `high` is not NULL. */
static int quantum_at(const uint8_t *q, const uint8_t *high, int i)
{
    int nibble = i < 16 ? q[i] & 0x0f : q[i - 16] >> 4;
    return high ? nibble | (high[i / 8] >> i % 8 & 1) << 4 : nibble;
}

static void put_quantum(uint8_t *q, uint8_t *high, int i, int quantum)
{
    q[i % 16] |= (uint8_t)((quantum & 0x0f) << (i < 16 ? 0 : 4));
    if (high)
        high[i / 8] |= (uint8_t)((quantum >> 4) << i % 8);
}

static void decode_q4_1(const tsr_block_q4_1 *block, float *dst)
{
    float d = tsr_f16_to_f32(block->d), m = tsr_f16_to_f32(block->m);
    for (int i = 0; i < TSR_QUANT_BLOCK; i++)
        dst[i] = d * (float)quantum_at(block->q, NULL, i) + m;
}
TSR_QUANT_DECODER(q4_1, TSR_QUANT_BLOCK)

static void decode_q5_0(const tsr_block_q5_0 *block, float *dst)
{
    float d = tsr_f16_to_f32(block->d);
    for (int i = 0; i < TSR_QUANT_BLOCK; i++)
        dst[i] = d * (float)(quantum_at(block->q, block->high, i) - 16);
}
TSR_QUANT_DECODER(q5_0, TSR_QUANT_BLOCK)

static void decode_q5_1(const tsr_block_q5_1 *block, float *dst)
{
    float d = tsr_f16_to_f32(block->d), m = tsr_f16_to_f32(block->m);
    for (int i = 0; i < TSR_QUANT_BLOCK; i++)
        dst[i] = d * (float)quantum_at(block->q, block->high, i) + m;
}
TSR_QUANT_DECODER(q5_1, TSR_QUANT_BLOCK)

/* The range [smallest, largest] in `top` steps from m: both as stored, or NaN. */
static void fit_range(const float *x, int top, uint16_t *d_out, uint16_t *m_out, uint8_t *quants)
{
    float smallest = x[0], largest = x[0], d, m;
    uint16_t d_half, m_half;
    for (int i = 0; i < TSR_QUANT_BLOCK; i++) {
        smallest = fminf(smallest, x[i]);
        largest = fmaxf(largest, x[i]);
    }
    memset(quants, 0, TSR_QUANT_BLOCK);
    *d_out = *m_out = TSR_QUANT_F16_NAN;
    if (isnan(tsr_quant_extreme(x, TSR_QUANT_BLOCK)) || !tsr_quant_store_scale(smallest, &m_half, &m) ||
        !tsr_quant_store_scale((largest - m) / (float)top, &d_half, &d))
        return;
    *d_out = d_half;
    *m_out = m_half;
    for (int i = 0; i < TSR_QUANT_BLOCK; i++)
        quants[i] = (uint8_t)tsr_quant_nearest((x[i] - m) * tsr_quant_reciprocal(d), 0, top);
}

static tsr_block_q4_1 encode_q4_1(const float *src)
{
    tsr_block_q4_1 block = {0};
    uint8_t quants[TSR_QUANT_BLOCK];
    fit_range(src, 15, &block.d, &block.m, quants);
    for (int i = 0; i < TSR_QUANT_BLOCK; i++)
        put_quantum(block.q, NULL, i, quants[i]);
    return block;
}
TSR_QUANT_ENCODER(q4_1, TSR_QUANT_BLOCK)

static tsr_block_q5_0 encode_q5_0(const float *src)
{
    tsr_block_q5_0 block = {.d = TSR_QUANT_F16_NAN};
    uint16_t half;
    float d;
    /* As Q4_0: the signed scale puts the extreme element on -16. */
    if (tsr_quant_store_scale(tsr_quant_extreme(src, TSR_QUANT_BLOCK) / -16.0f, &half, &d)) {
        block.d = half;
        for (int i = 0; i < TSR_QUANT_BLOCK; i++)
            put_quantum(block.q, block.high, i,
                        tsr_quant_nearest(src[i] * tsr_quant_reciprocal(d), -16, 15) + 16);
    }
    return block;
}
TSR_QUANT_ENCODER(q5_0, TSR_QUANT_BLOCK)

static tsr_block_q5_1 encode_q5_1(const float *src)
{
    tsr_block_q5_1 block = {0};
    uint8_t quants[TSR_QUANT_BLOCK];
    fit_range(src, 31, &block.d, &block.m, quants);
    for (int i = 0; i < TSR_QUANT_BLOCK; i++)
        put_quantum(block.q, block.high, i, quants[i]);
    return block;
}
TSR_QUANT_ENCODER(q5_1, TSR_QUANT_BLOCK)
