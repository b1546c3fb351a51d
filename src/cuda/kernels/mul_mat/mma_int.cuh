/* Products of bytes on tensor cores: exact, so unlike products of floats (mma.cuh) they have no order.
 *
 * Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k32" and "m16n8k16", integers): lane = 4 g + j holds, as
 * words of four consecutive k,
 *
 *     a[0], a[1]   rows g and g + 8, k = 4 j ..
 *     a[2], a[3]   rows g and g + 8, k = 16 + 4 j ..    (of the product over 32)
 *     b[0], b[1]   column g, k = 4 j .. and 16 + 4 j .. (b[1] of the product over 32)
 *     d[0..3]      (g, 2j), (g, 2j + 1), (g + 8, 2j), (g + 8, 2j + 1) */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_MMA_INT_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_MMA_INT_CUH

#include "cuda/kernels/common.cuh"

#ifdef TSR_CUDASIM

/* A lane's operands of a product. */
struct tsr_mma_int_lane {
    int *d;
    const uint32_t *a, *b;
};

typedef int tsr_mma_int_row __attribute__((vector_size(8 * sizeof(int))));

/* The product of a warp over 16 * WORDS elements of k, each lane with a tsr_mma_int_lane, without c. */
template <int WORDS> static void tsr_mma_int_product(void *const brought[TSR_WARP])
{
    int8_t a[16][16 * WORDS];      /* [row][k] */
    tsr_mma_int_row b[16 * WORDS]; /* [k][column] */
    for (int lane = 0; lane < TSR_WARP; lane++) {
        const tsr_mma_int_lane &mine = *static_cast<const tsr_mma_int_lane *>(brought[lane]);
        const int g = lane / 4, k = lane % 4 * 4;
        for (int word = 0; word < WORDS; word++) {
            memcpy(&a[g][16 * word + k], &mine.a[2 * word], sizeof(uint32_t));
            memcpy(&a[g + 8][16 * word + k], &mine.a[2 * word + 1], sizeof(uint32_t));
            for (int i = 0; i < 4; i++)
                b[16 * word + k + i][g] = (int8_t)(mine.b[word] >> (8 * i));
        }
    }
    for (int row = 0; row < 16; row++) {
        tsr_mma_int_row sum = {};
        for (int k = 0; k < 16 * WORDS; k++)
            sum += (int)a[row][k] * b[k];
        for (int column = 0; column < 8; column++) {
            void *const owner = brought[row % 8 * 4 + column / 2];
            static_cast<const tsr_mma_int_lane *>(owner)->d[row / 8 * 2 + column % 2] = sum[column];
        }
    }
}

/* d = a b, plus `even` and `odd` in columns of even and odd number. The block is one-dimensional. */
template <int WORDS>
TSR_DEVICE void tsr_mma_int_reference(int d[4], const uint32_t *a, const uint32_t *b, int even, int odd)
{
    int sums[4];
    tsr_mma_int_lane mine = {sums, a, b};
    cudasim_together("mma.sync", TSR_ALL_LANES, &mine, tsr_mma_int_product<WORDS>);
    for (int i = 0; i < 4; i++)
        d[i] = sums[i] + (i % 2 == 0 ? even : odd);
}

TSR_DEVICE void tsr_mma_int_16x8x32(int d[4], const uint32_t a[4], const uint32_t b[2], int even, int odd)
{
    tsr_mma_int_reference<2>(d, a, b, even, odd);
}

TSR_DEVICE void tsr_mma_int_16x8x16(int d[4], const uint32_t a[2], const uint32_t b[1], int even, int odd)
{
    tsr_mma_int_reference<1>(d, a, b, even, odd);
}

#else

TSR_DEVICE void tsr_mma_int_16x8x32(int d[4], const uint32_t a[4], const uint32_t b[2], int even, int odd)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%10,%11};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(even), "r"(odd));
}

TSR_DEVICE void tsr_mma_int_16x8x16(int d[4], const uint32_t a[2], const uint32_t b[1], int even, int odd)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%7,%8};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(even), "r"(odd));
}

#endif

#endif
