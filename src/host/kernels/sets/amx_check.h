/* A check that tiles compute correctly: small products of random weights and activations by the kernels
 * themselves. Products of bytes are compared with the same formula in plain C.
 *
 * Products of bfloat16 are compared with plain C where no order of additions would round, and otherwise with
 * themselves: one token must have the bits of many, with operands that have changed places and tiles of
 * another shape. Whether a processor rounds in the manual's order (amx.h) is not checked: if it does not, its
 * results differ from another processor's in the last bits, and are as good. */
#ifndef TSR_HOST_KERNELS_SETS_AMX_CHECK_H
#define TSR_HOST_KERNELS_SETS_AMX_CHECK_H

#include "host/kernels/mul_mat/halves_amx.h"
#include "host/kernels/quant/tile.h"

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

/* Random bytes are quants; the scales d become 1. */
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

/* Row r with token t by the formula of generic.h; neither type has a minimum. */
static float amx_check_sum(tsr_type type, const amx_check *c, int t, int r)
{
    float sum = 0.0f;
    for (int b = 0; b < QUANT_BLOCKS; b++) {
        quant_block w = {0};
        int32_t dot = 0;
        quant_expand(type, c->weights[r], b, &w);
        for (int i = 0; i < X_BLOCK; i++)
            dot += (int32_t)w.q[i] * (int32_t)c->x[t][b].q[i];
        sum = fmaf((float)dot * c->x[t][b].scale, w.scale, sum);
    }
    return sum;
}

/* Q8_0 has quants of one byte, Q6_K of two. Activations of 16 bits take every instruction. */
static bool amx_check_type(tsr_type type, amx_check *c)
{
    const tsr_op_mul_mat op = {.type = type, .x_bits = 16};
    bool same = true;
    amx_check_fill(type, c);
    memcpy(c->divided, c->x, sizeof c->x);
    quant_tile_x(&op, &c->divided[0][0], (int64_t)QUANT_TOKENS * QUANT_BLOCKS);
    quant_tile_expand(type, c->weights[0], sizeof c->weights[0], QUANT_ROWS, QUANT_BLOCKS, false, &c->tile);
    quant_tile_begin(&op, &c->tile);
    quant_tile_multiply(QUANT_TOKENS, 0, &c->tile, 0, QUANT_BLOCKS, c->divided[0], true, c->sums[0]);
    quant_tile_end(&c->tile);
    for (int t = 0; t < QUANT_TOKENS; t++)
        for (int r = 0; r < QUANT_ROWS; r++)
            same &= tsr_f32_bits(c->sums[t][r]) == tsr_f32_bits(amx_check_sum(type, c, t, r));
    return same;
}

enum { CHECK_K = 2 * HALF_CHUNK, CHECK_CHUNKS = CHECK_K / HALF_CHUNK };

/* About 90 KiB of stack. */
typedef struct amx_check_halves {
    amx_tiles tiles;
    half_panel panel;
    half_group groups[2];
    half_weights rows[CHECK_CHUNKS][2];
    uint16_t w[HALF_ROWS][CHECK_K]; /* F16 */
    float x[HALF_TOKENS][CHECK_K], sums[HALF_TOKENS][HALF_ROWS];
} amx_check_halves;

/* A random integer of `bits` bits and a sign. */
static float amx_check_integer(uint32_t *state, int bits)
{
    const int32_t random = (int32_t)amx_check_random(state);
    return (float)(random / (1 << (31 - bits)));
}

/* Exact: integers whose sums fit into 24 bits, with low parts on one side or the other. */
static void amx_check_halves_fill(bool exact, amx_check_halves *c)
{
    uint32_t state = 2;
    for (int i = 0; i < CHECK_K; i++) {
        for (int r = 0; r < HALF_ROWS; r++)
            c->w[r][i] = tsr_f32_to_f16(amx_check_integer(&state, exact && i % 2 ? 4 : 11));
        for (int t = 0; t < HALF_TOKENS; t++)
            c->x[t][i] = amx_check_integer(&state, !exact ? 24 : i % 2 ? 13 : 4);
    }
}

static void amx_check_halves_many(amx_check_halves *c)
{
    for (int t = 0; t < HALF_TOKENS; t++)
        for (int i = 0; i < CHECK_CHUNKS; i++) {
            const half_pairs x = half_divide_x(TSR_TYPE_F16, c->x[t] + i * HALF_CHUNK, HALF_CHUNK);
            half_group *group = &c->groups[t / HALF_TILE];
            memcpy(group->chunk[i].high[t % HALF_TILE], &x.high, sizeof x.high);
            memcpy(group->chunk[i].low[t % HALF_TILE], &x.low, sizeof x.low);
        }
    half_panel_fill(TSR_TYPE_F16, (const unsigned char *)c->w, sizeof c->w[0], HALF_ROWS, CHECK_K, &c->panel);
    half_begin(&c->tiles, 0);
    half_multiply(TSR_TYPE_F16, true, HALF_TOKENS, &c->tiles, &c->panel, c->groups, CHECK_CHUNKS, true,
                  c->sums[0]);
    half_end(&c->tiles);
}

/* The product with token t alone. */
static void amx_check_halves_one(amx_check_halves *c, int t, float sums[HALF_ROWS])
{
    half_begin(&c->tiles, 1);
    AMX_ZERO(&c->tiles, 0);
    AMX_ZERO(&c->tiles, 1);
    for (int i = 0; i < CHECK_CHUNKS; i++) {
        const half_pairs x = half_divide_x(TSR_TYPE_F16, c->x[t] + i * HALF_CHUNK, HALF_CHUNK);
        half_source source[2];
        uint32_t parts[2 * HALF_PAIRS];
        memcpy(parts, &x.high, sizeof x.high);
        memcpy(parts + HALF_PAIRS, &x.low, sizeof x.low);
        for (int half = 0; half < 2; half++) {
            half_weights *w = &c->rows[i][half];
            half_fill(TSR_TYPE_F16, (const unsigned char *)&c->w[half * HALF_TILE][i * HALF_CHUNK],
                      sizeof c->w[0], HALF_TILE, HALF_CHUNK, w);
            source[half] = (half_source){w->high, w->low, sizeof w->high[0]};
        }
        half_step(TSR_TYPE_F16, true, &c->tiles, source, parts, 1);
    }
    AMX_STORE(&c->tiles, 0, sums, sizeof *sums);
    AMX_STORE(&c->tiles, 1, sums + HALF_TILE, sizeof *sums);
    half_end(&c->tiles);
}

static bool amx_check_halves_agree(bool exact, amx_check_halves *c)
{
    bool same = true;
    amx_check_halves_fill(exact, c);
    amx_check_halves_many(c);
    for (int t = 0; t < HALF_TOKENS; t++) {
        float one[HALF_ROWS];
        amx_check_halves_one(c, t, one);
        same &= memcmp(one, c->sums[t], sizeof one) == 0;
        for (int r = 0; r < HALF_ROWS && exact; r++) {
            float sum = 0.0f;
            for (int i = 0; i < CHECK_K; i++)
                sum += tsr_f16_to_f32(c->w[r][i]) * c->x[t][i];
            same &= sum == one[r];
        }
    }
    return same;
}

static bool amx_check_bytes(void)
{
    amx_check c;
    return amx_check_type(TSR_TYPE_Q8_0, &c) && amx_check_type(TSR_TYPE_Q6_K, &c);
}

static bool amx_check_bf16(void)
{
    amx_check_halves c;
    return amx_check_halves_agree(true, &c) && amx_check_halves_agree(false, &c);
}

static bool amx_check_all(void)
{
    return amx_check_bytes() && amx_check_bf16();
}

#endif
