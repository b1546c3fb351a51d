/* Products of bytes on tensor cores: exact, so unlike products of floats (mma.cuh) they have no order. Bytes
 * of b are signed, those of a as A says, int8_t or uint8_t.
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

#include <type_traits>

#include "cuda/kernels/common.cuh"

#ifdef TSR_CUDASIM

/* A lane's operands of a product. */
struct tsr_mma_int_lane {
    int *d;
    const uint32_t *a, *b;
};

typedef int tsr_mma_int_row __attribute__((vector_size(8 * sizeof(int))));

/* The product of a warp over 16 * WORDS elements of k, each lane with a tsr_mma_int_lane, without c. */
template <typename A, int WORDS> static void tsr_mma_int_product(void *const brought[TSR_WARP])
{
    A a[16][16 * WORDS];           /* [row][k] */
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

/* d = a b + c, where d may be c. The block is one-dimensional. */
template <typename A, int WORDS>
TSR_DEVICE void tsr_mma_int_reference(int d[4], const uint32_t *a, const uint32_t *b, const int c[4])
{
    int sums[4];
    tsr_mma_int_lane mine = {sums, a, b};
    cudasim_together("mma.sync", TSR_ALL_LANES, &mine, tsr_mma_int_product<A, WORDS>);
    for (int i = 0; i < 4; i++)
        d[i] = sums[i] + c[i];
}

template <typename A>
TSR_DEVICE void tsr_mma_int_16x8x32(int d[4], const uint32_t a[4], const uint32_t b[2], const int c[4])
{
    tsr_mma_int_reference<A, 2>(d, a, b, c);
}

TSR_DEVICE void tsr_mma_int_16x8x16(int d[4], const uint32_t a[2], const uint32_t b[1], const int c[4])
{
    tsr_mma_int_reference<int8_t, 1>(d, a, b, c);
}

#else

#define TSR_MMA_INT_32(a_type)                                                                               \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." a_type ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "             \
        "{%8,%9}, {%10,%11,%12,%13};"                                                                        \
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), \
          "r"(c[3]))

template <typename A>
TSR_DEVICE void tsr_mma_int_16x8x32(int d[4], const uint32_t a[4], const uint32_t b[2], const int c[4])
{
    if constexpr (std::is_signed<A>::value)
        TSR_MMA_INT_32("s8");
    else
        TSR_MMA_INT_32("u8");
}

#undef TSR_MMA_INT_32

TSR_DEVICE void tsr_mma_int_16x8x16(int d[4], const uint32_t a[2], const uint32_t b[1], const int c[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

#endif

#endif
