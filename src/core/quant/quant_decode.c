/* Decoding of quantized blocks, written to be compared with the layouts in quant.h line by line. */
#include "core/quant/quant_each.h"

static void decode_q8_0(const tsr_block_q8_0 *block, float *dst)
{
    float d = tsr_f16_to_f32(block->d);
    for (int i = 0; i < TSR_QUANT_BLOCK; i++)
        dst[i] = d * (float)block->q[i];
}
TSR_QUANT_DECODER(q8_0, TSR_QUANT_BLOCK)

static void decode_q4_0(const tsr_block_q4_0 *block, float *dst)
{
    float d = tsr_f16_to_f32(block->d);
    for (int i = 0; i < TSR_QUANT_BLOCK / 2; i++) {
        dst[i] = d * (float)((block->q[i] & 0x0f) - 8);
        dst[i + 16] = d * (float)((block->q[i] >> 4) - 8);
    }
}
TSR_QUANT_DECODER(q4_0, TSR_QUANT_BLOCK)

/* Quantum of element i (0..31) of sub-block s in the nibbles of Q4_K and Q5_K. */
static int nibble_at(const uint8_t *q, int s, int i)
{
    uint8_t pair = q[32 * (s / 2) + i];
    return s % 2 == 0 ? pair & 0x0f : pair >> 4;
}

static void decode_q4_k(const tsr_block_q4_k *block, float *dst)
{
    for (int s = 0; s < 8; s++) {
        uint8_t scale, min;
        tsr_quant_scale_min(block->scales, s, &scale, &min);
        float step = tsr_f16_to_f32(block->d) * (float)scale;
        float offset = tsr_f16_to_f32(block->dmin) * (float)min;
        for (int i = 0; i < 32; i++)
            dst[32 * s + i] = step * (float)nibble_at(block->q, s, i) - offset;
    }
}
TSR_QUANT_DECODER(q4_k, TSR_QUANT_SUPER_BLOCK)

static void decode_q5_k(const tsr_block_q5_k *block, float *dst)
{
    for (int s = 0; s < 8; s++) {
        uint8_t scale, min;
        tsr_quant_scale_min(block->scales, s, &scale, &min);
        float step = tsr_f16_to_f32(block->d) * (float)scale;
        float offset = tsr_f16_to_f32(block->dmin) * (float)min;
        for (int i = 0; i < 32; i++) {
            int quantum = nibble_at(block->q, s, i) | (block->high[i] >> s & 1) << 4;
            dst[32 * s + i] = step * (float)quantum - offset;
        }
    }
}
TSR_QUANT_DECODER(q5_k, TSR_QUANT_SUPER_BLOCK)

static void decode_q6_k(const tsr_block_q6_k *block, float *dst)
{
    float d = tsr_f16_to_f32(block->d);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = block->low + 64 * half;
        const uint8_t *high = block->high + 32 * half;
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < 32; i++) {
                int element = 128 * half + 32 * k + i;
                uint8_t pair = low[32 * (k % 2) + i];
                int quantum = (k < 2 ? pair & 0x0f : pair >> 4) | (high[i] >> 2 * k & 3) << 4;
                dst[element] = d * (float)block->scales[element / 16] * (float)(quantum - 32);
            }
        }
    }
}
TSR_QUANT_DECODER(q6_k, TSR_QUANT_SUPER_BLOCK)
