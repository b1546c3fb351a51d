/* A look at whether tiles compute what they should: small products of random weights and activations by the
 * kernel itself, against the same formula in plain C. */
#ifndef TSR_HOST_KERNELS_AMX_CHECK_H
#define TSR_HOST_KERNELS_AMX_CHECK_H

#include "host/kernels/quants_amx.h"

/* The numbers of a product; about 50 KiB of stack. */
typedef struct amx_check {
    quant_tile tile;
    unsigned char weights[QUANT_ROWS][QUANT_BLOCKS * sizeof(tsr_block_q8_0)];
    x_block x[QUANT_TOKENS][QUANT_BLOCKS], divided[QUANT_TOKENS][QUANT_BLOCKS];
    float sums[QUANT_TOKENS][QUANT_ROWS];
} amx_check;

/* xorshift32 (Marsaglia, Journal of Statistical Software 8, 14) */
static uint32_t amx_check_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Any bytes are quanta; the scales d become 1. */
static void amx_check_fill(tsr_type type, amx_check *c)
{
    uint32_t state = 1;
    const uint16_t one = 0x3c00;
    for (size_t i = 0; i < sizeof c->weights; i++)
        ((unsigned char *)c->weights)[i] = (unsigned char)(amx_check_random(&state) >> 24);
    for (int r = 0; r < QUANT_ROWS; r++)
        if (type == TSR_TYPE_Q6_K)
            memcpy(c->weights[r] + offsetof(tsr_block_q6_k, d), &one, sizeof one);
        else
            for (size_t b = 0; b < QUANT_BLOCKS; b++)
                memcpy(c->weights[r] + b * sizeof(tsr_block_q8_0), &one, sizeof one);
    for (int t = 0; t < QUANT_TOKENS; t++)
        for (int b = 0; b < QUANT_BLOCKS; b++) {
            float x[X_BLOCK];
            for (int i = 0; i < X_BLOCK; i++)
                x[i] = (float)(int32_t)amx_check_random(&state);
            x_encode_block(x, quant_x_limit(type), &c->x[t][b]);
        }
}

/* Row r with token t, as quants_generic.h has it; neither type has a minimum. */
static float amx_check_sum(tsr_type type, const amx_check *c, int t, int r)
{
    float sum = 0.0f;
    for (int b = 0; b < QUANT_BLOCKS; b++) {
        quant_block w;
        int32_t dot = 0;
        quant_expand(type, c->weights[r], b, &w);
        for (int i = 0; i < X_BLOCK; i++)
            dot += (int32_t)w.q[i] * (int32_t)c->x[t][b].q[i];
        sum = fmaf((float)dot * c->x[t][b].scale, w.scale, sum);
    }
    return sum;
}

/* Q8_0: quanta of one byte; Q6_K: of two. */
static bool amx_check_type(tsr_type type, amx_check *c)
{
    bool same = true;
    amx_check_fill(type, c);
    memcpy(c->divided, c->x, sizeof c->x);
    memset(c->sums, 0, sizeof c->sums);
    quant_tile_x(&c->divided[0][0], (int64_t)QUANT_TOKENS * QUANT_BLOCKS);
    quant_tile_expand(type, c->weights[0], sizeof c->weights[0], QUANT_ROWS, QUANT_BLOCKS, &c->tile);
    quant_tile_begin(&c->tile);
    quant_tile_multiply(QUANT_TOKENS, false, &c->tile, QUANT_BLOCKS, c->divided[0], QUANT_BLOCKS, c->sums[0],
                        QUANT_ROWS);
    quant_tile_end(&c->tile);
    for (int t = 0; t < QUANT_TOKENS; t++)
        for (int r = 0; r < QUANT_ROWS; r++)
            same &= tsr_f32_bits(c->sums[t][r]) == tsr_f32_bits(amx_check_sum(type, c, t, r));
    return same;
}

static bool amx_check_all(void)
{
    amx_check c;
    return amx_check_type(TSR_TYPE_Q8_0, &c) && amx_check_type(TSR_TYPE_Q6_K, &c);
}

#endif
