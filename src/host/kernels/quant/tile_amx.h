/* Products with quantized weights, many tokens at a time, by AMX tiles: tile_words.h for processors with AMX.
 * Formulas and bits are those of generic.h.
 *
 * Tiles multiply bytes, but activations are 16-bit integers. So an activation is 256 * high + low, high
 * signed and low unsigned. The two sums are combined as 256 * (sum of w * high) + (sum of w * low), in 32
 * bits, exact like any other way to that integer. Quants that do not fit a byte (those with sub-scales) are
 * divided in the same way, and the two mixed products share a tile. Activations of 8 bits are high bytes
 * alone, which saves half of the products.
 *
 * D is 16 tokens x 16 rows of the matrix. A block of 32 elements has its own scale on either side, so a
 * product is over 32 bytes: half of a tile's capacity. Products are not the bottleneck. For 16 x 16 sums, per
 * block (in parentheses for quants of two bytes):
 *
 *     products       2 x 16 cycles (4 x 16)        one per row of A
 *     tile stores    2 x 16 (3 x 16)               a row per cycle
 *     tile loads     2 x 8 + 4 (2 x 8 + 2 x 4)     two rows per cycle
 *     vectors        16 x 5 / 2 (16 x 7 / 2)       shift, add, convert, two multiplications; two a cycle
 *
 * Products: Intel's 2048 8-bit operations per cycle and core of Sapphire Rapids are 16 x 16 x 64
 * multiply-adds in 16 cycles. Loads and stores are assumptions. The units work in parallel, so a block takes
 * some 45 cycles (65) by this estimate; VNNI takes 128 for its multiplications alone. Sums in f32 stay in 16
 * registers along all blocks of a panel, which fixes the size of D. A block's tile products are started
 * before the sums of the previous block are added up, so the vector work hides the products' latency. */
#ifndef TSR_HOST_KERNELS_QUANT_TILE_AMX_H
#define TSR_HOST_KERNELS_QUANT_TILE_AMX_H

#include "host/kernels/vec/amx.h"
#include "host/kernels/quant/tile_size.h"
#include "host/kernels/quant/x.h"

_Static_assert(INT_LANES == AMX_ROW_BYTES / 4, "a tile's row is a vector of sums");

/* Tiles 0 .. 3 are sums; these hold the bytes of activations and of weights. */
#define TILE_X_HIGH 4
#define TILE_X_LOW  5
#define TILE_W_LOW  6
#define TILE_W_HIGH 7

/* B: a row is four elements of each of INT_LANES rows of the matrix. */
typedef uint8_t amx_weights[QUANT_STEPS][AMX_ROW_BYTES];

/* A panel of QUANT_ROWS rows. */
typedef struct quant_tile {
    amx_tiles tiles;
    _Alignas(64) amx_weights low[QUANT_BLOCKS][QUANT_VECTORS], high[QUANT_BLOCKS][QUANT_VECTORS];
    float scale[QUANT_BLOCKS][QUANT_VECTORS][INT_LANES];
    float min[2][QUANT_BLOCKS][QUANT_VECTORS][INT_LANES]; /* the second half only with two minima */
    bool two_bytes, x_two_bytes; /* whether quants have high bytes, activations low bytes */
} quant_tile;

/* Before a thread's first multiplication; quant_tile_end() after its last. */
static void quant_tile_begin(const tsr_op_mul_mat *op, quant_tile *tile)
{
    tile->x_two_bytes = !quant_multiplies_bytes(op);
    amx_config *config = &tile->tiles.config;
    *config = (amx_config){.palette = 1};
    for (int d = 0; d < TILE_X_HIGH; d++)
        config->rows[d] = QUANT_TOKENS, config->row_bytes[d] = AMX_ROW_BYTES;
    for (int a = TILE_X_HIGH; a <= TILE_X_LOW; a++)
        config->rows[a] = QUANT_TOKENS, config->row_bytes[a] = X_BLOCK;
    for (int b = TILE_W_LOW; b <= TILE_W_HIGH; b++)
        config->rows[b] = QUANT_STEPS, config->row_bytes[b] = AMX_ROW_BYTES;
    AMX_CONFIGURE(&tile->tiles);
}

static void quant_tile_end(quant_tile *tile)
{
    AMX_RELEASE(&tile->tiles);
}

/* -- weights -- */

/* The low bytes, or the high bytes, of four elements in order, from words of elements 0 and 2, 1 and 3. */
ALWAYS_INLINE vec_int amx_low_bytes(quant_pair q)
{
    return (vec_int)(((vec_bits)q.even & 0x00ff00ff) | (vec_bits)((vec_short)q.odd << 8));
}

ALWAYS_INLINE vec_int amx_high_bytes(quant_pair q)
{
    return (vec_int)(((vec_bits)q.even >> 8 & 0x00ff00ff) | ((vec_bits)q.odd & 0xff00ff00));
}

/* The quants of block b of vector v of the tile. */
ALWAYS_INLINE void quant_tile_block(tsr_type type, const bool bytes, const quant_panel *panel,
                                    const quant_group *group, int b, int v, quant_tile *tile)
{
    (void)bytes;
    tile->two_bytes = quant_has_sub_scales(type);
    UNROLL for (int i = 0; i < QUANT_STEPS; i++)
    {
        const quant_pair q = quant_quants(type, panel, group, b, i);
        int_store(tile->low[b][v][i], amx_low_bytes(q));
        if (tile->two_bytes)
            int_store(tile->high[b][v][i], amx_high_bytes(q));
    }
}

#define QUANT_TILE_HAS_BYTES 0
/* -- activations -- */

/* A block's bytes are stored in place of its words: first the high bytes, then the low bytes, in the
 * elements' order. */
ALWAYS_INLINE const uint8_t *amx_x_high(const x_block *x)
{
    return (const uint8_t *)x->q;
}

ALWAYS_INLINE const uint8_t *amx_x_low(const x_block *x)
{
    return (const uint8_t *)x->q + X_BLOCK;
}

/* Divide n encoded blocks for quant_tile_multiply(). Packed bytes are high bytes already. */
static void quant_tile_x(const tsr_op_mul_mat *op, x_block *x, int64_t n)
{
    for (int64_t i = 0; i < n && !quant_multiplies_bytes(op); i++) {
        word16 even, odd, high, low;
        memcpy(&even, x[i].q, sizeof even);
        memcpy(&odd, x[i].q + 16, sizeof odd);
        high = (even >> 8) | (odd & 0xff00);
        low = (even & 0x00ff) | (odd << 8);
        memcpy(x[i].q, &high, sizeof high);
        memcpy(x[i].q + 16, &low, sizeof low);
    }
}

/* -- products -- */

/* Whether quants and activations have two bytes: constants of the code. */
typedef struct amx_form {
    bool w_two, x_two;
} amx_form;

/* A block's sums as the tiles store them: [token][row], of high bytes with high bytes, high with low, low
 * with low. Quants of one byte have low bytes only, activations of one byte high bytes only. */
typedef struct amx_sums {
    int32_t high[QUANT_TOKENS][INT_LANES], mixed[QUANT_TOKENS][INT_LANES], low[QUANT_TOKENS][INT_LANES];
} amx_sums;

/* Quants of one byte. Sums in tiles d and e, so that a block need not wait for the previous block. */
#define AMX_BLOCK_OF_BYTES(d, e)                                 \
    do {                                                         \
        AMX_ZERO(tiles, d);                                      \
        AMX_DOT_SS(tiles, d, TILE_X_HIGH, TILE_W_LOW);           \
        if (form.x_two) {                                        \
            AMX_ZERO(tiles, e);                                  \
            AMX_DOT_US(tiles, e, TILE_X_LOW, TILE_W_LOW);        \
        }                                                        \
        AMX_STORE(tiles, d, sums->mixed, sizeof sums->mixed[0]); \
        if (form.x_two)                                          \
            AMX_STORE(tiles, e, sums->low, sizeof sums->low[0]); \
    } while (0)

/* The products of block b of vector v with the blocks of QUANT_TOKENS tokens, of which x is the first. */
ALWAYS_INLINE void amx_block(const amx_form form, quant_tile *tile, int b, int v, const x_block *x,
                             amx_sums *sums)
{
    amx_tiles *tiles = &tile->tiles;
    (void)tiles; /* real tiles have fixed names */
    AMX_LOAD(tiles, TILE_X_HIGH, amx_x_high(x), QUANT_BLOCKS * sizeof *x);
    if (form.x_two)
        AMX_LOAD(tiles, TILE_X_LOW, amx_x_low(x), QUANT_BLOCKS * sizeof *x);
    AMX_LOAD(tiles, TILE_W_LOW, tile->low[b][v], AMX_ROW_BYTES);
    if (form.w_two) {
        AMX_LOAD(tiles, TILE_W_HIGH, tile->high[b][v], AMX_ROW_BYTES);
        AMX_ZERO(tiles, 0);
        AMX_ZERO(tiles, 1);
        AMX_DOT_SS(tiles, 0, TILE_X_HIGH, TILE_W_HIGH);
        AMX_DOT_SU(tiles, 1, TILE_X_HIGH, TILE_W_LOW);
        if (form.x_two) {
            AMX_ZERO(tiles, 2);
            AMX_DOT_UU(tiles, 2, TILE_X_LOW, TILE_W_LOW);
            AMX_DOT_US(tiles, 1, TILE_X_LOW, TILE_W_HIGH);
            AMX_STORE(tiles, 2, sums->low, sizeof sums->low[0]);
        }
        AMX_STORE(tiles, 0, sums->high, sizeof sums->high[0]);
        AMX_STORE(tiles, 1, sums->mixed, sizeof sums->mixed[0]);
    } else if (b % 2 == 0) {
        AMX_BLOCK_OF_BYTES(0, 1);
    } else {
        AMX_BLOCK_OF_BYTES(2, 3);
    }
}
#undef AMX_BLOCK_OF_BYTES

/* The integer sum of token t with each row. */
ALWAYS_INLINE vec_int amx_dot_of(const amx_form form, const amx_sums *sums, int t)
{
    vec_bits sum = (vec_bits)int_load(sums->mixed[t]);
    if (form.w_two)
        sum += (vec_bits)int_load(sums->high[t]) << 8;
    if (form.x_two)
        sum = (sum << 8) + (vec_bits)int_load(sums->low[t]);
    return (vec_int)sum;
}

/* Add vector v's products with n_tokens tokens, a constant. The tiles always have QUANT_TOKENS tokens; those
 * past n_tokens are whatever memory follows x. */
ALWAYS_INLINE void quant_tile_n(const int n_tokens, const int minima, const amx_form form, quant_tile *tile,
                                int v, int block, int n_blocks, const x_block *x, bool opens, float *sums)
{
    const int end = block + n_blocks;
    amx_sums products[2];
    vec acc[QUANT_TOKENS] = {0};
    if (!opens)
        UNROLL for (int t = 0; t < n_tokens; t++) acc[t] = vec_load(sums + t * QUANT_ROWS);
    amx_block(form, tile, block, v, x, &products[block % 2]);
    for (int b = block; b < end; b++, x++) {
        if (b + 1 < end)
            amx_block(form, tile, b + 1, v, x + 1, &products[(b + 1) % 2]);
        const vec scale = vec_load(tile->scale[b][v]);
        vec min[2];
        UNROLL for (int half = 0; half < minima; half++) min[half] = -vec_load(tile->min[half][b][v]);
        UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const x_block *xb = &x[t * QUANT_BLOCKS];
            const vec_int dot = amx_dot_of(form, &products[b % 2], t);
            acc[t] = vec_fma(int_to_float(dot) * vec_set1(xb->scale), scale, acc[t]);
            UNROLL for (int half = 0; half < minima; half++) acc[t] =
                vec_fma(vec_set1(quant_x_sum(xb, minima, half)), min[half], acc[t]);
        }
    }
    UNROLL for (int t = 0; t < n_tokens; t++) vec_store(sums + t * QUANT_ROWS, acc[t]);
}

/* quant_tile_n() for the form of the tile. Only Q2_K has two minima, and its quants have sub-scales. */
ALWAYS_INLINE void quant_tile_any(const int n_tokens, int minima, const bool x_two, quant_tile *tile, int v,
                                  int block, int n_blocks, const x_block *x, bool opens, float *sums)
{
#define MULTIPLY(minima, w_two) \
    quant_tile_n(n_tokens, minima, (amx_form){w_two, x_two}, tile, v, block, n_blocks, x, opens, sums)
    if (minima == 2)
        MULTIPLY(2, true);
    else if (tile->two_bytes)
        MULTIPLY(0, true);
    else if (minima == 1)
        MULTIPLY(1, false);
    else
        MULTIPLY(0, false);
#undef MULTIPLY
}

/* Multiply blocks [block, block + n_blocks) of the panel with the blocks of n_tokens tokens, divided by
 * quant_tile_x(). The first token's blocks are at x, the others QUANT_BLOCKS blocks apart. The products are
 * added to sums[token * QUANT_ROWS + row] or, if `opens`, to zero. 1 <= n_tokens <= QUANT_TOKENS, but x and
 * sums have room for QUANT_TOKENS, and sums past n_tokens are overwritten. */
static void quant_tile_multiply(int n_tokens, int minima, quant_tile *tile, int block, int n_blocks,
                                const x_block *x, bool opens, float *sums)
{
#define MULTIPLY_UP_TO(n)                                                             \
    do {                                                                              \
        float *at = sums + v * INT_LANES;                                             \
        if (tile->x_two_bytes)                                                        \
            quant_tile_any(n, minima, true, tile, v, block, n_blocks, x, opens, at);  \
        else                                                                          \
            quant_tile_any(n, minima, false, tile, v, block, n_blocks, x, opens, at); \
    } while (0)
    for (int v = 0; v < QUANT_VECTORS; v++) {
        if (n_tokens <= 4)
            MULTIPLY_UP_TO(4);
        else if (n_tokens <= 8)
            MULTIPLY_UP_TO(8);
        else
            MULTIPLY_UP_TO(QUANT_TOKENS);
    }
#undef MULTIPLY_UP_TO
}

#endif
