/* Attention over Q8_0 and Q4_0 keys and values on tensor cores: what differs from keys and values of 16 bits
 * (halves.cuh). The codes become halves exactly; the blocks' scales are kept apart.
 *
 * Keys. A window of 32 elements is a block: its products with the parts of the query, in F16, begin with
 * zeros, and the sum times the block's scale is added to the score in f32. Step s of a window has elements
 * 16 s + 4 t .. 16 s + 4 t + 3 for t = 0..3.
 *
 * Values. The weights of 16 positions times the scales of a block are divided into two parts of BF16, 16 bits
 * of them, for scales may have F16's whole range; codes of values are BF16, too. The sum of weights is made
 * in f32: each lane adds those of its four positions of every step in order, and the four lanes of a query
 * are added at a group's end.
 *
 * Shared memory has rows as they are stored, 16 positions after another: a step of the cache is contiguous
 * and aligned to 16 bytes, so it is copied without regard to rows. What a query does not see is masked in
 * registers. Lane 4 g + t has positions 4 t .. 4 t + 3 of a step: columns 2 t and 2 t + 1 of its two
 * products. Rows so far apart are in different banks for heads of 128 elements. */
#ifndef TSR_CUDA_KERNELS_ATTENTION_CODES_CUH
#define TSR_CUDA_KERNELS_ATTENTION_CODES_CUH

#include "cuda/kernels/attention/halves.cuh"

template <tsr_type TYPE> struct codes_block {
    static constexpr int bytes =
        TYPE == TSR_TYPE_Q8_0 ? (int)sizeof(tsr_block_q8_0) : (int)sizeof(tsr_block_q4_0);
};

/* The 16 bits at an even address. */
TSR_DEVICE uint32_t codes_16_bits(const unsigned char *from)
{
    return *reinterpret_cast<const uint16_t *>(from);
}

TSR_DEVICE float codes_scale(const unsigned char *block)
{
    return tsr_half_to_f32(*reinterpret_cast<const uint16_t *>(block));
}

/* -- copies -- */

/* Start to copy the rows of slots [first, first + n) to `into`, with zeros for steps where nothing is seen.
 * Every thread of the block calls it. */
TSR_DEVICE void codes_fill(const attention_args &a, const halves_slots &slots, bool values, int first, int n,
                           tsr_bytes_16 *into)
{
    const int lane = threadIdx.x % TSR_WARP, warps = blockDim.x / TSR_WARP;
    const int pieces = (int)(values ? a.op.kv.v_row_bytes : a.op.kv.k_row_bytes); /* of a step */
    TSR_UNROLL_BY(1)
    for (int slot = first + (int)threadIdx.x / TSR_WARP * HALVES_STEP; slot < first + n;
         slot += warps * HALVES_STEP) {
        if (slot + HALVES_STEP <= slots.low || slot >= slots.high)
            continue;
        tsr_bytes_16 *to = into + (slot - first) / HALVES_STEP * pieces;
        if (!halves_any_seen(slots, slot)) {
            for (int p = lane; p < pieces; p += TSR_WARP)
                to[p] = {{0u, 0u, 0u, 0u}};
            continue;
        }
        const tsr_bytes_16 *from =
            reinterpret_cast<const tsr_bytes_16 *>(halves_rows(a, slots, values, slot));
        TSR_UNROLL_BY(4)
        for (int p = lane; p < pieces; p += TSR_WARP)
            tsr_copy_async_16(to + p, from + p);
    }
}

/* -- scores -- */

/* A lane's elements of a window of a key, as the F16 operands of two steps. `block`: of the key. */
template <tsr_type TYPE> TSR_DEVICE void codes_key(const unsigned char *block, int t, uint32_t k[4])
{
    const unsigned char *codes = block + 2 + 4 * t;
    TSR_UNROLL
    for (int i = 0; i < 4; i++) { /* step i / 2 */
        if (TYPE == TSR_TYPE_Q8_0) {
            /* two's complement plus 128 is the sign bit flipped; 0x6400 is 1024 */
            const uint32_t two = codes_16_bits(codes + i / 2 * 16 + i % 2 * 2);
            k[i] = tsr_add_two<TSR_TYPE_F16>(__byte_perm(two, 0x64646464u, 0x4140) ^ 0x00800080u,
                                             0xe480e480u); /* -1152 */
        } else if (i < 2) {                                /* lower nibbles are the block's first half */
            const uint32_t two = __byte_perm(codes_16_bits(codes + 2 * i), 0u, 0x4140);
            k[i] = tsr_add_two<TSR_TYPE_F16>((two & 0x000f000fu) | 0x64006400u, 0xe408e408u);
            k[i + 2] = tsr_add_two<TSR_TYPE_F16>((two >> 4 & 0x000f000fu) | 0x64006400u, 0xe408e408u);
        }
    }
}

/* Add to c the scores of 16 queries with the keys of STEPS steps, `apart` bytes from one to the next; two
 * tiles of a step are neighbours in c. */
template <tsr_type TYPE, int STEPS, int ROWS>
TSR_DEVICE void codes_products(const uint32_t *fragments, const unsigned char *keys, int row_bytes, int apart,
                               int windows, float c[2 * STEPS][4])
{
    constexpr int PARTS = half_type<TSR_TYPE_F16>::parts, BLOCK = codes_block<TYPE>::bytes;
    const int lane = threadIdx.x % TSR_WARP, g = lane / 4, t = lane % 4;
    const unsigned char *key = keys + (g / 2 * 4 + g % 2) * row_bytes, *scales = keys + 4 * t * row_bytes;
    TSR_UNROLL_BY(1)
    for (int window = 0; window < windows; window++, key += BLOCK, scales += BLOCK) {
        tsr_bytes_16 q[2][PARTS];
        TSR_UNROLL
        for (int i = 0; i < 2 * PARTS; i++)
            q[i / PARTS][i % PARTS] = halves_get_query<ROWS>(fragments, window * 2 * PARTS + i);
        TSR_UNROLL
        for (int i = 0; i < 2 * STEPS; i++) {
            const int row = i / 2 * apart + i % 2 * 2 * row_bytes;
            uint32_t k[4];
            float sum[4] = {};
            codes_key<TYPE>(key + row, t, k);
            TSR_UNROLL
            for (int n = 0; n < 2 * PARTS; n++) {
                const int s = n / PARTS, p = PARTS - 1 - n % PARTS;
                tsr_mma_16x8x16<TSR_TYPE_F16>(sum, q[s][p].word, k[2 * s], k[2 * s + 1]);
            }
            TSR_UNROLL
            for (int column = 0; column < 2; column++) {
                const float scale = codes_scale(scales + row + column * row_bytes);
                TSR_UNROLL
                for (int r = 0; r < ROWS; r++)
                    c[i][2 * r + column] = fmaf(sum[2 * r + column], scale, c[i][2 * r + column]);
            }
        }
    }
}

/* -- values -- */

/* Two numbers in two parts of BF16, the first below. */
TSR_DEVICE void codes_split(float low, float high, uint32_t *upper_part, uint32_t *lower_part)
{
    *upper_part = tsr_round_two<TSR_TYPE_BF16>(low, high);
    *lower_part = tsr_round_two<TSR_TYPE_BF16>(low - tsr_bits_to_f32(*upper_part << 16),
                                               high - tsr_bits_to_f32(*upper_part & 0xffff0000u));
}

/* Elements of a lane's column of tile `tile`, of values at positions 2 i and 2 i + 1 of its four, as a BF16
 * operand. `codes`: two bytes of each position, and for Q8_0 two more. */
template <tsr_type TYPE> TSR_DEVICE uint32_t codes_values(const uint32_t codes[4][2], int i, int tile)
{
    if (TYPE == TSR_TYPE_Q8_0) {
        /* the lower 7 bits above 128, minus 128 or, with the sign bit, 256 */
        const uint32_t two =
            __byte_perm(codes[2 * i][tile / 2], codes[2 * i + 1][tile / 2], tile % 2 != 0 ? 0x5511 : 0x4400);
        return tsr_add_two<TSR_TYPE_BF16>((two & 0x007f007fu) | 0x43004300u,
                                          (two & 0x00800080u) | 0xc300c300u);
    }
    const uint32_t two = __byte_perm(codes[2 * i][0], codes[2 * i + 1][0], 0x5410);
    return tsr_add_two<TSR_TYPE_BF16>((two >> (tile % 2 * 8 + tile / 2 * 4) & 0x000f000fu) | 0x43004300u,
                                      0xc308c308u); /* -136 */
}

/* The element of a window that column `column` of tile `tile` of values is. */
template <tsr_type TYPE> TSR_DEVICE int codes_element(int tile, int column)
{
    return TYPE == TSR_TYPE_Q8_0 ? 4 * column + tile : tile / 2 * 16 + 2 * column + tile % 2;
}

/* The lane's first row of a step. */
TSR_DEVICE const unsigned char *codes_row(const void *step, int row_bytes)
{
    return static_cast<const unsigned char *>(step) + threadIdx.x % 4 * 4 * row_bytes;
}

/* Add a step's values, from the lane's codes_row() on, to `out` of windows 0, APART, ... < end, and its
 * weights to `sums` of queries g and g + 8. `weights`: of the step's two tiles. ROWS: halves_parts. MASKED:
 * only to queries with a bit in `mine`, and only positions with a bit in `seen`. */
template <tsr_type TYPE, int WINDOWS, int APART, int ROWS, bool MASKED>
TSR_DEVICE void codes_add_step(const unsigned char *rows, int row_bytes, int end, const float weights[2][4],
                               uint32_t seen, uint32_t mine, float out[WINDOWS][4][4], float sums[4])
{
    constexpr int BLOCK = codes_block<TYPE>::bytes;
    const int g = threadIdx.x % TSR_WARP / 4;
    TSR_UNROLL
    for (int i = 0; i < 4 * ROWS; i++) {
        const int r = i / 4;
        if (!MASKED || (mine >> r & 1u))
            sums[2 * r] = sums[2 * r] + weights[i % 4 / 2][2 * r + i % 2];
    }
    TSR_UNROLL
    for (int window = 0; window < WINDOWS; window++) {
        if (window * APART >= end)
            break;
        float scale[4];
        uint32_t codes[4][2], upper[4] = {}, lower[4] = {};
        TSR_UNROLL
        for (int j = 0; j < 4; j++) {
            const unsigned char *block = rows + j * row_bytes + window * APART * BLOCK;
            scale[j] = !MASKED || (seen >> j & 1u) ? codes_scale(block) : 0.0f;
            codes[j][0] = codes_16_bits(block + 2 + (TYPE == TSR_TYPE_Q8_0 ? 4 : 2) * g);
            codes[j][1] = TYPE == TSR_TYPE_Q8_0 ? codes_16_bits(block + 4 + 4 * g) : 0u;
        }
        TSR_UNROLL
        for (int i = 0; i < 4; i++) { /* queries g and g + 8, then of the second tile */
            if (i % 2 >= ROWS)
                continue;
            const float *two = weights[i / 2] + i % 2 * 2;
            codes_split(two[0] * scale[i / 2 * 2], two[1] * scale[i / 2 * 2 + 1], &upper[i], &lower[i]);
        }
        TSR_UNROLL
        for (int tile = 0; tile < 4; tile++) {
            uint32_t v[2];
            float sum[4];
            TSR_UNROLL
            for (int i = 0; i < 2; i++) {
                v[i] = codes_values<TYPE>(codes, i, tile);
                if (MASKED)
                    v[i] &= halves_pair(halves_mask(seen, 2 * i), halves_mask(seen, 2 * i + 1), false);
            }
            TSR_UNROLL
            for (int e = 0; e < 4; e++)
                sum[e] = e < 2 * ROWS ? out[window][tile][e] : 0.0f;
            tsr_mma_16x8x16<TSR_TYPE_BF16>(sum, lower, v[0], v[1]);
            tsr_mma_16x8x16<TSR_TYPE_BF16>(sum, upper, v[0], v[1]);
            TSR_UNROLL
            for (int e = 0; e < 2 * ROWS; e++)
                out[window][tile][e] = !MASKED || (mine >> e / 2 & 1u) ? sum[e] : out[window][tile][e];
        }
    }
}

/* Add up the four lanes' sums of weights at a group's end. */
template <int ROWS> TSR_DEVICE void codes_sum_weights(float sums[4])
{
    TSR_UNROLL
    for (int i = 0; i < 2 * ROWS; i++)
        sums[i / 2 * 2] = sums[i / 2 * 2] + __shfl_xor_sync(TSR_ALL_LANES, sums[i / 2 * 2], 1 << i % 2);
}

#endif
