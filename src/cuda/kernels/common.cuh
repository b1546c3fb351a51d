/* Functions for several kernels: number formats, sums over a warp or block, sizes of grids.
 *
 * The functions are __device__ only and written without intrinsics where plain C++ gives the same machine
 * code, so that the simulated machine runs the same lines as the GPU. */
#ifndef TSR_CUDA_KERNELS_COMMON_CUH
#define TSR_CUDA_KERNELS_COMMON_CUH

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "core/quant/fixed.h"
#include "cuda/api/check.h"
#include "cuda/api/launch.h"
#include "cuda/kernels/kernels.h"

#ifdef __CUDACC__
#define TSR_PRAGMA(text)     _Pragma(#text)
#define TSR_UNROLL           _Pragma("unroll")
#define TSR_UNROLL_BY(times) TSR_PRAGMA(unroll times)
#else
#define TSR_UNROLL
#define TSR_UNROLL_BY(times)
#endif

#define TSR_DEVICE static __device__ __forceinline__

enum { TSR_WARP = 32 };
#define TSR_ALL_LANES 0xffffffffu

/* Loads of 8 and 16 bytes; the address must be a multiple of the size. */
struct alignas(8) tsr_bytes_8 {
    uint32_t word[2];
};
struct alignas(16) tsr_bytes_16 {
    uint32_t word[4];
};
struct alignas(16) tsr_floats_4 {
    float at[4];
};

/* The same number, opaque to the compiler: what is computed from it inside a loop is not computed before the
 * loop and kept in registers. For kernels whose loops use all registers. */
TSR_DEVICE int tsr_not_kept(int number)
{
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(number));
#endif
    return number;
}

/* Quotient and rest of numbers in [0, 2^31): a division of 64 bits takes a small kernel's time. */
struct tsr_quotient {
    int of, rest;
};

TSR_DEVICE tsr_quotient tsr_divide(int64_t number, int64_t by)
{
    const uint32_t of = (uint32_t)number / (uint32_t)by;
    return {(int)of, (int)((uint32_t)number - of * (uint32_t)by)};
}

/* -- number formats -- */

TSR_DEVICE float tsr_bits_to_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

TSR_DEVICE float tsr_half_to_f32(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

TSR_DEVICE uint16_t tsr_half_from_f32(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

TSR_DEVICE float tsr_bfloat_to_f32(uint16_t bfloat)
{
    return tsr_bits_to_f32((uint32_t)bfloat << 16);
}

/* Nearest, ties to even; a NaN stays a NaN (core/quant/half.h). */
TSR_DEVICE uint16_t tsr_bfloat_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Output `at` of an op with plain sums: f32, or bfloat16 as the all-reduce adds it. */
TSR_DEVICE void tsr_put_sum(void *y, int64_t at, float sum, bool bf16)
{
    if (bf16)
        static_cast<uint16_t *>(y)[at] = tsr_bfloat_from_f32(sum);
    else
        static_cast<float *>(y)[at] = sum;
}

/* The value of a partial that tsr_put_sum() stores. */
TSR_DEVICE float tsr_partial_value(float sum, bool bf16)
{
    return bf16 ? tsr_bfloat_to_f32(tsr_bfloat_from_f32(sum)) : sum;
}

/* -- the exact reduction (core/quant/fixed.h) -- */

/* value * 2^28, rounded to the nearest integer, ties to even; |value| < 2^29. The product is exact in f32: a
 * power of two. A multiprocessor converts 16 floats per clock to integers of 64 bits with compute capability
 * 8.0, 9.0 and 10.0, otherwise 2, and 64 floats to 32 bits. So there two integers are made: multiples of 2^3,
 * and the rest. Both differences are exact: from 2^27 on, floats are multiples of 2^3. */
TSR_DEVICE int64_t tsr_fixed_round(float value)
{
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
    return (int64_t)llrintf(value * (float)TSR_FIXED_ONE);
#else
    const float to_high = (float)TSR_FIXED_ONE / 2147483648.0f;
    const int high = __float2int_rn(value * to_high);
    const int low = __float2int_rn(fmaf(value, to_high, -(float)high) * 2147483648.0f);
    return (int64_t)high * ((int64_t)1 << 31) + low;
#endif
}

/* To fixed point; a value out of range, or a NaN, sets `bad` and gives 0. */
TSR_DEVICE int64_t tsr_fixed_of(float value, float limit, bool *bad)
{
    if (!(value > -limit && value < limit)) {
        *bad = true;
        return 0;
    }
    return tsr_fixed_round(value);
}

/* tsr_fixed_to_f32(), to the bit. */
TSR_DEVICE float tsr_fixed_value(int64_t sum)
{
    return (float)((double)sum * (1.0 / TSR_FIXED_ONE));
}

/* The word in which a kernel reports a range fault, and its value. */
struct tsr_fault_word {
    int *word;
    int value;
};

TSR_DEVICE void tsr_fault_raise(tsr_fault_word fault)
{
    atomicMax(fault.word, fault.value);
}

static inline tsr_fault_word tsr_fault_of(const tsr_cuda_stream *s)
{
    tsr_fault_word fault = {s->fault, s->op_index + 1};
    return fault;
}

/* -- kernels that start early (TSR_LAUNCH_EARLY) -- */

/* From here on the blocks of the next kernel may take what room is left. They wait until this kernel has
 * ended. Not before this kernel has stopped waiting for other devices: these may share the GPU, and need
 * room, too. The first thread that calls it does so for its block, so all must have stopped. */
TSR_DEVICE void tsr_start_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Wait until the kernel before this one has ended, and so all before it. Until then a kernel may only read
 * what no other kernel writes: weights. All threads call it, whether they have work or not. */
TSR_DEVICE void tsr_wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The same of a kernel that runs beside the one before it, if it is a sibling: that one has waited for all
 * before it, whose results are in the second-level cache. The fence drops what the first level has of older
 * ones. A sibling waits before it ends. */
TSR_DEVICE void tsr_wait_unless(bool sibling)
{
    if (sibling)
        __threadfence();
    else
        tsr_wait_for_previous();
}

/* Before the wait: a value that an earlier kernel wrote. It comes from the second-level cache, because the
 * first level may still have what was there before it. */
template <typename T> TSR_DEVICE T tsr_read_early(const T *x)
{
    return *(const volatile T *)x;
}

/* Begin to fetch n floats of a weight into the second-level cache, by all threads of a block. Before the wait
 * it takes no time. */
TSR_DEVICE void tsr_prefetch(const float *x, int64_t n)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    enum { LINE = 32 };
    for (int64_t i = (int64_t)threadIdx.x * LINE; i < n; i += (int64_t)blockDim.x * LINE)
        asm volatile("prefetch.L2 [%0];" ::"l"(x + i));
#else
    (void)x;
    (void)n;
#endif
}

/* For kernels that read nothing beforehand. */
TSR_DEVICE void tsr_begin_early()
{
    tsr_start_next();
    tsr_wait_for_previous();
}

/* Whether this is the last of the n blocks that come here. Then what the others stored before is visible to
 * it, and *counter is 0 again. All threads call it. */
TSR_DEVICE bool tsr_is_last_of(uint32_t *counter, uint32_t n)
{
    uint32_t before = 0;
    __syncthreads(); /* what all threads stored */
    if (threadIdx.x == 0) {
#ifdef __CUDA_ARCH__
        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(counter), "r"(n - 1)
                     : "memory");
#else
        before = *counter; /* the simulated machine runs one thread at a time */
        *counter = before >= n - 1 ? 0 : before + 1;
#endif
    }
    return __syncthreads_and(before != n - 1) == 0;
}

/* -- sums -- */

/* Binary tree over neighbouring lanes; every lane gets the sum. */
TSR_DEVICE float tsr_warp_sum(float value)
{
    TSR_UNROLL
    for (int mask = 1; mask < TSR_WARP; mask *= 2)
        value = value + __shfl_xor_sync(TSR_ALL_LANES, value, mask);
    return value;
}

TSR_DEVICE float tsr_warp_max(float value)
{
    TSR_UNROLL
    for (int mask = 1; mask < TSR_WARP; mask *= 2)
        value = fmaxf(value, __shfl_xor_sync(TSR_ALL_LANES, value, mask));
    return value;
}

/* The sum of the values of the lanes up to this one. */
TSR_DEVICE int tsr_warp_sum_up_to(int value, int lane)
{
    TSR_UNROLL
    for (int step = 1; step < TSR_WARP; step *= 2) {
        const int before = __shfl_up_sync(TSR_ALL_LANES, value, step);
        value += lane >= step ? before : 0;
    }
    return value;
}

/* One level of tsr_tree_sum with COUNT values left (0 counts as 1). A template, so that every index is a
 * constant and the values stay in registers. */
template <int COUNT> TSR_DEVICE void tsr_tree_level(float *values, int lane, int mask)
{
    const bool upper = (lane & mask) != 0;
    if (COUNT <= 1)
        values[0] = values[0] + __shfl_xor_sync(TSR_ALL_LANES, values[0], mask);
    TSR_UNROLL
    for (int i = 0; i < COUNT / 2; i++) {
        const float mine = upper ? values[i + COUNT / 2] : values[i];
        const float others = upper ? values[i] : values[i + COUNT / 2];
        values[i] = mine + __shfl_xor_sync(TSR_ALL_LANES, others, mask);
    }
}

/* N values (a power of two, at most 32) summed over groups of 32 lanes, or of 16 if `narrow`, each as the
 * binary tree over neighbouring lanes. While several values are left, the two lanes of a pair divide them:
 * each lane gives one half to the other lane and receives the other lane's part of the half it keeps, so that
 * N values take about N shuffles, not 5 N. Afterwards value o is in values[tsr_tree_slot] of lane
 * tsr_tree_lane. */
template <int N> TSR_DEVICE void tsr_tree_sum(float *values, int lane, bool narrow)
{
    tsr_tree_level<N>(values, lane, 1);
    tsr_tree_level<N / 2>(values, lane, 2);
    tsr_tree_level<N / 4>(values, lane, 4);
    tsr_tree_level<N / 8>(values, lane, 8);
    if (!narrow)
        tsr_tree_level<N / 16>(values, lane, 16);
}

/* Lane (of the first group) and slot of value o after tsr_tree_sum<N>. */
template <int N> TSR_DEVICE int tsr_tree_lane(int o, bool narrow)
{
    int lane = 0;
    TSR_UNROLL
    for (int level = 0; (N >> level) > 1; level++)
        lane |= (o / (N >> (level + 1)) & 1) << level;
    return narrow ? lane & 15 : lane;
}

template <int N> TSR_DEVICE int tsr_tree_slot(int o, bool narrow)
{
    return N == 32 && narrow ? o & 1 : 0;
}

/* Threads of a kernel that works on one row per block. */
enum { TSR_ROW_THREADS = 512, TSR_ROW_WARPS = TSR_ROW_THREADS / TSR_WARP };

/* Give every warp's value to every warp: lane l of each gets the value of warp l % TSR_ROW_WARPS. `shared`
 * has TSR_ROW_WARPS floats. */
TSR_DEVICE float tsr_block_exchange(float value, float *shared)
{
    __syncthreads(); /* the previous use of `shared` may still read it */
    if (threadIdx.x % TSR_WARP == 0)
        shared[threadIdx.x / TSR_WARP] = value;
    __syncthreads();
    return shared[threadIdx.x % TSR_ROW_WARPS];
}

/* Sum over a block of TSR_ROW_THREADS threads as one binary tree over neighbours; every thread gets it. */
TSR_DEVICE float tsr_block_sum(float value, float *shared)
{
    value = tsr_block_exchange(tsr_warp_sum(value), shared);
    TSR_UNROLL
    for (int mask = 1; mask < TSR_ROW_WARPS; mask *= 2)
        value = value + __shfl_xor_sync(TSR_ALL_LANES, value, mask);
    return value;
}

TSR_DEVICE float tsr_block_max(float value, float *shared)
{
    return tsr_warp_max(tsr_block_exchange(tsr_warp_max(value), shared));
}

/* -- launching -- */

/* Allow launches of a kernel `bytes` of dynamic shared memory and, since the limit belongs to the kernel and
 * not to a launch, as much as the card has besides the kernel's `fixed` static bytes. A limit that changed
 * with each launch would be too low for launches captured before, and for launches by other threads for the
 * same GPU. For kernels whose launches differ in size. */
static inline tsr_status tsr_allow_shared(const void *kernel, size_t bytes, const tsr_cuda_stream *s,
                                          size_t fixed = 0)
{
    const size_t card = s->props->shared_bytes, most = bytes + fixed > card ? bytes : card - fixed;
    return TSR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most));
}

/* Whether a multiprocessor has room for n blocks with `bytes` of shared memory each. The system reserves some
 * of each block, and the most of one block is less by that. */
static inline bool tsr_has_room(size_t n, size_t bytes, const tsr_cuda_stream *s)
{
    enum { RESERVED = 1024 };
    return n * (bytes + RESERVED) <= s->props->shared_bytes + RESERVED;
}

/* -- grids -- */

/* Elementwise kernels: thread i of the grid takes elements i, i + threads of the grid, ... */
enum { TSR_FLAT_THREADS = 256 };

TSR_DEVICE int64_t tsr_flat_begin(void)
{
    return (int64_t)blockIdx.x * TSR_FLAT_THREADS + threadIdx.x;
}

TSR_DEVICE int64_t tsr_flat_step(void)
{
    return (int64_t)gridDim.x * TSR_FLAT_THREADS;
}

/* Enough blocks for n items, but no more than keep the card busy. */
static inline dim3 tsr_flat_grid(int64_t n, const tsr_cuda_stream *s)
{
    const int64_t most = (int64_t)s->props->n_sms * 16;
    const int64_t blocks = (n + TSR_FLAT_THREADS - 1) / TSR_FLAT_THREADS;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + u) with u = e^-|x| <= 1, and ln(1 + u) = 2 artanh s with s = u / (2 + u)
 * <= 1/3: its series ends at s^15, whose remainder is below 2 s^17 / 17 / (1 - s^2) = 1e-9 s. */
TSR_DEVICE float tsr_softplus(float x)
{
    const float u = expf(x < 0.0f ? x : -x), s = u / (2.0f + u), square = s * s;
    float p = 2.0f / 15;
    p = fmaf(p, square, 2.0f / 13);
    p = fmaf(p, square, 2.0f / 11);
    p = fmaf(p, square, 2.0f / 9);
    p = fmaf(p, square, 2.0f / 7);
    p = fmaf(p, square, 2.0f / 5);
    p = fmaf(p, square, 2.0f / 3);
    p = fmaf(p, square, 2.0f);
    return p * s + (x < 0.0f ? 0.0f : x);
}

/* One block per row, but no more than keep the card busy: a block then takes several rows in turn. */
static inline dim3 tsr_row_grid(int64_t n_rows, const tsr_cuda_stream *s)
{
    const int64_t most = (int64_t)s->props->n_sms * 16;
    return dim3((unsigned)(n_rows < most ? n_rows : most));
}

#endif
