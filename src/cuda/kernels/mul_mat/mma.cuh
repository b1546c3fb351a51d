/* Tensor cores, asynchronous copies to shared memory and loads that bypass the first-level cache: all inline
 * PTX of the matrix kernels. Each has a reference path in plain C++ for the simulated machine, which defines
 * it.
 *
 * Fragments of the 16 x 8 x 16 product (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane = 4 g + t holds
 *
 *     a[0], a[1]   rows g and g + 8, columns 2t and 2t + 1    (two 16-bit elements each, the first below)
 *     a[2], a[3]   rows g and g + 8, columns 2t + 8 and 2t + 9
 *     b[0], b[1]   rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g
 *     c[0..3]      (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
 *
 * A column of c depends on the same column of b alone, and on the order in which products are added to it,
 * which is the card's own and always the same. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_MMA_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_MMA_CUH

#include <cuda_bf16.h>
#include <tsr/types.h>

#include "cuda/kernels/common.cuh"

#ifdef TSR_CUDASIM

/* A lane's operands of a product. */
struct tsr_mma_lane {
    float *c;
    uint32_t a[4], b[2];
};

template <tsr_type TYPE> TSR_DEVICE double tsr_mma_number(uint32_t bits)
{
    return TYPE == TSR_TYPE_F16 ? tsr_half_to_f32((uint16_t)bits) : tsr_bfloat_to_f32((uint16_t)bits);
}

/* Half a row of eight: compilers keep vectors wider than the registers in memory. */
typedef double tsr_mma_half __attribute__((vector_size(4 * sizeof(double))));

/* The product of a warp, each lane with a tsr_mma_lane. */
template <tsr_type TYPE> static void tsr_mma_product(void *const brought[TSR_WARP])
{
    double a[16][16];                  /* [row][k] */
    tsr_mma_half b[16][2], sum[16][2]; /* [k][column], [row][column]; columns by their halves */
    for (int lane = 0; lane < TSR_WARP; lane++) {
        const tsr_mma_lane &mine = *static_cast<const tsr_mma_lane *>(brought[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int high = 0; high < 2; high++) { /* columns 8 to 15 of a, rows 8 to 15 of b */
            const int k = 2 * t + 8 * high;
            const uint32_t upper = mine.a[2 * high], lower = mine.a[2 * high + 1];
            a[g][k] = tsr_mma_number<TYPE>(upper);
            a[g][k + 1] = tsr_mma_number<TYPE>(upper >> 16);
            a[g + 8][k] = tsr_mma_number<TYPE>(lower);
            a[g + 8][k + 1] = tsr_mma_number<TYPE>(lower >> 16);
            b[k][g / 4][g % 4] = tsr_mma_number<TYPE>(mine.b[high]);
            b[k + 1][g / 4][g % 4] = tsr_mma_number<TYPE>(mine.b[high] >> 16);
            sum[g + 8 * high][t / 2][t % 2 * 2] = mine.c[2 * high];
            sum[g + 8 * high][t / 2][t % 2 * 2 + 1] = mine.c[2 * high + 1];
        }
    }
    for (int row = 0; row < 16; row++) {
        tsr_mma_half left = sum[row][0], right = sum[row][1];
        if (cudasim_last_places != 0) { /* cut off as a card does, not rounded once */
            for (int n = 0; n < 8; n++) {
                double products[16];
                for (int k = 0; k < 16; k++)
                    products[k] = a[row][k] * b[k][n / 4][n % 4];
                sum[row][n / 4][n % 4] = cudasim_tensor_sum((float)sum[row][n / 4][n % 4], products);
            }
            continue;
        }
        for (int k = 0; k < 16; k++) {
            left += a[row][k] * b[k][0];
            right += a[row][k] * b[k][1];
        }
        sum[row][0] = left;
        sum[row][1] = right;
    }
    for (int lane = 0; lane < TSR_WARP; lane++) {
        float *const c = static_cast<const tsr_mma_lane *>(brought[lane])->c;
        const int g = lane / 4, t = lane % 4;
        for (int high = 0; high < 2; high++) {
            c[2 * high] = (float)sum[g + 8 * high][t / 2][t % 2 * 2];
            c[2 * high + 1] = (float)sum[g + 8 * high][t / 2][t % 2 * 2 + 1];
        }
    }
}

/* c += a b, each element rounded once. The block is one-dimensional. */
template <tsr_type TYPE>
TSR_DEVICE void tsr_mma_16x8x16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    tsr_mma_lane mine = {c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    cudasim_together("mma.sync", TSR_ALL_LANES, &mine, tsr_mma_product<TYPE>);
}

/* Two numbers rounded to 16 bits, `low` below. */
template <tsr_type TYPE> TSR_DEVICE uint32_t tsr_round_two(float low, float high)
{
    if (TYPE == TSR_TYPE_F16)
        return tsr_half_from_f32(low) | (uint32_t)tsr_half_from_f32(high) << 16;
    return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}

/* Two sums of numbers of 16 bits. */
template <tsr_type TYPE> TSR_DEVICE uint32_t tsr_add_two(uint32_t a, uint32_t b)
{
    return tsr_round_two<TYPE>((float)(tsr_mma_number<TYPE>(a) + tsr_mma_number<TYPE>(b)),
                               (float)(tsr_mma_number<TYPE>(a >> 16) + tsr_mma_number<TYPE>(b >> 16)));
}

/* 16 bytes from global to shared memory, both aligned to 16 bytes; complete after the wait for its group. */
TSR_DEVICE void tsr_copy_async_16(void *shared, const void *global)
{
    cudasim_copy_async(shared, global, 16);
}

/* End a group of copies. */
TSR_DEVICE void tsr_copy_async_commit(void)
{
    cudasim_copy_async_commit();
}

/* Wait for all but this thread's LATER last groups. Other threads' copies are complete after a barrier. */
template <int LATER> TSR_DEVICE void tsr_copy_async_wait(void)
{
    cudasim_copy_async_wait(LATER);
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

template <tsr_type TYPE> TSR_DEVICE uint32_t tsr_round_two(float low, float high)
{
    uint32_t two;
    if (TYPE == TSR_TYPE_F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

template <tsr_type TYPE> TSR_DEVICE uint32_t tsr_add_two(uint32_t a, uint32_t b)
{
    uint32_t sums;
    if (TYPE == TSR_TYPE_F16)
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
    else /* sm_80 has no addition of bfloat16 */
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return sums;
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
