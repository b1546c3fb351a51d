/* Products of bytes on tensor cores: exact, so unlike those of floats (mma.cuh) they have no order.
 *
 * Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k32" and "m16n8k16", integers): lane = 4 g + j holds, as
 * words of four consecutive k,
 *
 *     a[0], a[1]   rows g and g + 8, k = 4 j ..
 *     a[2], a[3]   rows g and g + 8, k = 16 + 4 j ..    (of the product over 32)
 *     b[0], b[1]   column g, k = 4 j .. and 16 + 4 j .. (b[1] of the product over 32)
 *     d[0..3]      (g, 2j), (g, 2j + 1), (g + 8, 2j), (g + 8, 2j + 1) */
#ifndef TSR_CUDA_MMA_INT_CUH
#define TSR_CUDA_MMA_INT_CUH

#include "cuda/common.cuh"

#ifdef TSR_CUDASIM

/* A warp's operands: rows of a and columns of b, by k. */
struct tsr_mma_bytes {
    int8_t a[16][32], b[8][32];
};

/* d = a b + c over 16 * WORDS elements of k, with the same c for every element. The block is
 * one-dimensional. */
template <int WORDS>
TSR_DEVICE void tsr_mma_int_reference(int d[4], const uint32_t *a, const uint32_t *b, int c)
{
    __shared__ tsr_mma_bytes warps[1024 / TSR_WARP];
    tsr_mma_bytes *const warp = warps + threadIdx.x / TSR_WARP;
    const int lane = threadIdx.x % TSR_WARP, g = lane / 4, j = lane % 4;
    for (int word = 0; word < WORDS; word++) {
        memcpy(&warp->a[g][16 * word + 4 * j], &a[2 * word], sizeof(uint32_t));
        memcpy(&warp->a[g + 8][16 * word + 4 * j], &a[2 * word + 1], sizeof(uint32_t));
        memcpy(&warp->b[g][16 * word + 4 * j], &b[word], sizeof(uint32_t));
    }
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        const int8_t *const row = warp->a[g + i / 2 * 8], *const column = warp->b[2 * j + i % 2];
        int sum = 0;
        for (int k = 0; k < 16 * WORDS; k++)
            sum += row[k] * column[k];
        d[i] = c + sum;
    }
    __syncwarp();
}

TSR_DEVICE void tsr_mma_int_16x8x32(int d[4], const uint32_t a[4], const uint32_t b[2], int c)
{
    tsr_mma_int_reference<2>(d, a, b, c);
}

TSR_DEVICE void tsr_mma_int_16x8x16(int d[4], const uint32_t a[2], const uint32_t b[1], int c)
{
    tsr_mma_int_reference<1>(d, a, b, c);
}

#else

TSR_DEVICE void tsr_mma_int_16x8x32(int d[4], const uint32_t a[4], const uint32_t b[2], int c)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
}

TSR_DEVICE void tsr_mma_int_16x8x16(int d[4], const uint32_t a[2], const uint32_t b[1], int c)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c));
}

#endif

#endif
