/* Tensor cores, asynchronous copies to shared memory and loads that leave no trace in the first-level cache:
 * all inline PTX of the matrix kernels. Each has a reference path in plain C++ for the simulated machine,
 * which says what it means.
 *
 * Fragments of the 16 x 8 x 16 product (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane = 4 g + t holds
 *
 *     a[0], a[1]   rows g and g + 8, columns 2t and 2t + 1    (two 16-bit elements each, the first below)
 *     a[2], a[3]   rows g and g + 8, columns 2t + 8 and 2t + 9
 *     b[0], b[1]   rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g
 *     c[0..3]      (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
 *
 * A column of c depends on that column of b alone, and on the order in which products are added to it, which
 * is the card's own and always the same. */
#ifndef TSR_CUDA_MMA_CUH
#define TSR_CUDA_MMA_CUH

#include <tsr/types.h>

#include "cuda/common.cuh"

#ifdef TSR_CUDASIM

/* What a lane brings to a product. */
struct tsr_mma_lane {
    float *c;
    uint32_t a[4], b[2];
};

template <tsr_type TYPE> TSR_DEVICE float tsr_mma_number(uint32_t pair, int i)
{
    const uint16_t bits = (uint16_t)(pair >> (16 * i));
    return TYPE == TSR_TYPE_F16 ? tsr_half_to_f32(bits) : tsr_bfloat_to_f32(bits);
}

typedef double tsr_mma_row __attribute__((vector_size(8 * sizeof(double))));

/* The product of a warp, whose lanes bring a tsr_mma_lane each. */
template <tsr_type TYPE> static void tsr_mma_product(void *const brought[TSR_WARP])
{
    double a[16][16];           /* [row][k] */
    tsr_mma_row b[16], sum[16]; /* [k][column], [row][column] */
    for (int lane = 0; lane < TSR_WARP; lane++) {
        const tsr_mma_lane &mine = *static_cast<const tsr_mma_lane *>(brought[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 8; i++)
            a[g + i / 2 % 2 * 8][2 * t + i / 4 * 8 + i % 2] = tsr_mma_number<TYPE>(mine.a[i / 2], i % 2);
        for (int i = 0; i < 4; i++)
            b[2 * t + i / 2 * 8 + i % 2][g] = tsr_mma_number<TYPE>(mine.b[i / 2], i % 2);
        for (int i = 0; i < 4; i++)
            sum[g + i / 2 * 8][2 * t + i % 2] = mine.c[i];
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            sum[row] += a[row][k] * b[k];
    for (int lane = 0; lane < TSR_WARP; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<const tsr_mma_lane *>(brought[lane])->c[i] =
                (float)sum[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
}

/* c += a b, each element rounded once. The block is one-dimensional. */
template <tsr_type TYPE>
TSR_DEVICE void tsr_mma_16x8x16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    tsr_mma_lane mine = {c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    cudasim_together("mma.sync", TSR_ALL_LANES, &mine, tsr_mma_product<TYPE>);
}

/* 16 bytes from global to shared memory, both aligned so; there after the wait for its group. */
TSR_DEVICE void tsr_copy_async_16(void *shared, const void *global)
{
    memcpy(shared, global, 16);
}

/* End a group of copies. */
TSR_DEVICE void tsr_copy_async_commit(void)
{
}

/* Wait for all but this thread's LATER last groups. Other threads' copies are there after a barrier. */
template <int LATER> TSR_DEVICE void tsr_copy_async_wait(void)
{
}

/* 16 bytes that are read once. */
TSR_DEVICE tsr_bytes_16 tsr_load_once_16(const void *from)
{
    return *static_cast<const tsr_bytes_16 *>(from);
}

#else

template <tsr_type TYPE>
TSR_DEVICE void tsr_mma_16x8x16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if (TYPE == TSR_TYPE_F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

TSR_DEVICE void tsr_copy_async_16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}

TSR_DEVICE void tsr_copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

template <int LATER> TSR_DEVICE void tsr_copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(LATER) : "memory");
}

TSR_DEVICE tsr_bytes_16 tsr_load_once_16(const void *from)
{
    tsr_bytes_16 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
        : "l"(from));
    return v;
}

#endif

/* The first or second half of 16 bytes. */
TSR_DEVICE void tsr_store_8(tsr_bytes_16 *into, int half, const tsr_bytes_8 &value)
{
    *(static_cast<tsr_bytes_8 *>(static_cast<void *>(into)) + half) = value;
}

#endif
