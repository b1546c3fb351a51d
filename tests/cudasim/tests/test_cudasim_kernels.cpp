/* The simulated GPU carries out kernels as CUDA says: barriers, warp operations, shared memory, atomics; and
 * it notices kernels that break the rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_fp16.h>
#include <cuda_bf16.h>

#include "cuda/api/launch.h"
#include "cuda/comm/memory_order.h"
#include "cudasim.h"

static int machine_of_one(void **)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = 1;
    cudasim_configure(&config);
    return 0;
}

static int nothing_left(void **)
{
    return cudasim_leaks(stderr);
}

#define OK(call) assert_int_equal(call, cudaSuccess)

/* An array on the GPU for the length of a test. */
template <typename T> struct OnGpu {
    T *at = NULL;
    size_t n;
    explicit OnGpu(size_t n_) : n(n_)
    {
        OK(cudaMalloc(&at, n * sizeof(T)));
    }
    ~OnGpu()
    {
        cudaFree(at);
    }
    void put(const T *from)
    {
        OK(cudaMemcpy(at, from, n * sizeof(T), cudaMemcpyHostToDevice));
    }
    void get(T *to)
    {
        OK(cudaMemcpy(to, at, n * sizeof(T), cudaMemcpyDeviceToHost));
    }
};

/* -- what works -- */

__global__ void identify(int *out)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = (int)(blockIdx.x * 1000 + threadIdx.x);
}

static void threads_know_who_they_are(void **)
{
    OnGpu<int> gpu(5 * 96);
    OK(TSR_LAUNCH(identify, 5, 96, 0, 0, gpu.at));
    int out[5 * 96];
    gpu.get(out);
    for (int i = 0; i < 5 * 96; i++)
        assert_int_equal(out[i], i / 96 * 1000 + i % 96);
}

template <int N> __global__ void reverse(int *data)
{
    __shared__ int copy[N];
    copy[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = copy[N - 1 - threadIdx.x];
}

static void barriers_separate_writes_from_reads(void **)
{
    OnGpu<int> gpu(256);
    int data[256];
    for (int i = 0; i < 256; i++)
        data[i] = i;
    gpu.put(data);
    for (int round = 0; round < 9; round++) /* threads start in either order */
        OK(TSR_LAUNCH((reverse<256>), 1, 256, 0, 0, gpu.at));
    gpu.get(data);
    for (int i = 0; i < 256; i++)
        assert_int_equal(data[i], 255 - i);
}

/* Without barriers around the read of thread 32: 1 in rising and in falling order. */
__global__ void racing_sum(int *sums)
{
    __shared__ int first, last;
    first = last = 0;
    __syncthreads();
    if (threadIdx.x == 10)
        first = 1;
    if (threadIdx.x == 50)
        last = 1;
    if (threadIdx.x == 32)
        sums[blockIdx.x] = first + last;
}

static void threads_run_in_random_order_too(void **)
{
    OnGpu<int> gpu(300);
    int sums[300], n_of[3] = {0};
    OK(TSR_LAUNCH(racing_sum, 300, 64, 0, 0, gpu.at));
    gpu.get(sums);
    for (int i = 0; i < 300; i++) {
        assert_in_range(sums[i], 0, 2);
        n_of[sums[i]]++;
    }
    assert_true(n_of[0] > 10 &&
                n_of[2] > 10); /* about a third of 300 blocks; of those each in about a third */
    assert_true(n_of[1] > 150);
}

__global__ void sum_block(const float *x, int64_t n, float *out)
{
    TSR_DYNAMIC_SHARED(float, partial);
    float sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[i];
    for (int lanes = 16; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
        for (int lanes = 16; lanes > 0; lanes /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, (unsigned)lanes);
        if (threadIdx.x == 0)
            *out = sum;
    }
}

static void warps_sum_by_shuffles(void **)
{
    enum { N = 3000 };
    static float x[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 17);
    OnGpu<float> gpu_x(N), gpu_sum(1);
    gpu_x.put(x);
    float expected = 0, sum;
    for (int i = 0; i < N; i++)
        expected += x[i];
    OK(TSR_LAUNCH(sum_block, 1, 256, 8 * sizeof(float), 0, gpu_x.at, N, gpu_sum.at));
    gpu_sum.get(&sum);
    assert_true(sum == expected); /* small integers: exact in any order */
}

__global__ void vote(unsigned *out)
{
    unsigned lane = threadIdx.x;
    unsigned odd = __ballot_sync(0xffffffffu, lane & 1);
    int any = __any_sync(0xffffffffu, lane == 7), all = __all_sync(0xffffffffu, lane < 31);
    int up = __shfl_up_sync(0xffffffffu, (int)lane, 1), in_eights = __shfl_sync(0xffffffffu, (int)lane, 3, 8);
    unsigned sum = 0;
    if (lane < 16) /* only these lanes, and a mask that says so */
        sum = __reduce_add_sync(0xffffu, lane);
    __syncwarp();
    out[lane] = odd + (unsigned)any + (unsigned)all + (unsigned)up * 100 + (unsigned)in_eights * 10000 + sum;
}

static void lanes_vote_and_exchange(void **)
{
    OnGpu<unsigned> gpu(32);
    unsigned out[32];
    OK(TSR_LAUNCH(vote, 1, 32, 0, 0, gpu.at));
    gpu.get(out);
    for (unsigned lane = 0; lane < 32; lane++)
        assert_int_equal(out[lane], 0xaaaaaaaau + 1 + (lane == 0 ? 0 : lane - 1) * 100 +
                                        (lane / 8 * 8 + 3) * 10000 + (lane < 16 ? 120 : 0));
}

__global__ void count(int *n, unsigned long long *wide, int *largest)
{
    atomicAdd(n, 1);
    atomicAdd(wide, 1ull << 33);
    atomicMax(largest, (int)(blockIdx.x * blockDim.x + threadIdx.x));
}

static void atomics_count_every_thread(void **)
{
    OnGpu<int> n(1), largest(1);
    OnGpu<unsigned long long> wide(1);
    OK(cudaMemset(n.at, 0, sizeof(int)));
    OK(cudaMemset(wide.at, 0, sizeof(unsigned long long)));
    OK(cudaMemset(largest.at, 0, sizeof(int)));
    OK(TSR_LAUNCH(count, 10, 64, 0, 0, n.at, wide.at, largest.at));
    int total, top;
    unsigned long long sum;
    n.get(&total);
    wide.get(&sum);
    largest.get(&top);
    assert_int_equal(total, 640);
    assert_true(sum == 640ull << 33);
    assert_int_equal(top, 639);
}

/* The last block to come sums up what all blocks wrote: the pattern of split attention. */
__global__ void last_block_sums(int *values, unsigned *arrived, int *out)
{
    __shared__ bool last;
    values[blockIdx.x] = (int)blockIdx.x + 1;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0)
        for (unsigned i = 0; i < gridDim.x; i++)
            *out += values[i];
}

static void the_last_block_sees_all_others(void **)
{
    OnGpu<int> values(40), out(1);
    OnGpu<unsigned> arrived(1);
    OK(cudaMemset(arrived.at, 0, 4));
    OK(cudaMemset(out.at, 0, 4));
    OK(TSR_LAUNCH(last_block_sums, 40, 64, 0, 0, values.at, arrived.at, out.at));
    int sum;
    out.get(&sum);
    assert_int_equal(sum, 820);
}

/* Blocks of one kernel wait for each other: each needs its own shared memory while it does. */
__global__ void meet(uint32_t *arrived, int *out)
{
    __shared__ int mine;
    if (threadIdx.x == 0) {
        mine = (int)blockIdx.x;
        atomicAdd(arrived, 1u);
        while (tsr_load_acquire_u32(arrived) < gridDim.x)
            tsr_spin_pause();
    }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = mine;
}

static void blocks_that_wait_for_each_other_proceed(void **)
{
    OnGpu<uint32_t> arrived(1);
    OnGpu<int> out(4 * 64);
    OK(cudaMemset(arrived.at, 0, 4));
    OK(TSR_LAUNCH(meet, 4, 64, 0, 0, arrived.at, out.at));
    int all[4 * 64];
    out.get(all);
    for (int i = 0; i < 4 * 64; i++)
        assert_int_equal(all[i], i / 64);
}

static void half_conversions_round_to_even(void **)
{
    static const struct {
        float value;
        unsigned short bits;
    } cases[] = {{0.0f, 0},
                 {1.0f, 0x3c00},
                 {-2.5f, 0xc100},
                 {65504.0f, 0x7bff},
                 {65520.0f, 0x7c00},
                 {65519.0f, 0x7bff},
                 {0x1p-24f, 1},
                 {0x1p-25f, 0},
                 {0x1.8p-24f, 2},
                 {0x1p-14f, 0x0400},
                 {1.00048828125f, 0x3c00},
                 {1.00146484375f, 0x3c02},
                 {-0x1.8p-25f, 0x8001}};
    for (const auto &c : cases)
        assert_int_equal(__half_as_ushort(__float2half_rn(c.value)), c.bits);
    for (unsigned h = 0; h < 0x7c00; h++)
        assert_int_equal(__half_as_ushort(__float2half(__half2float(__ushort_as_half((unsigned short)h)))),
                         h);
    assert_int_equal(__bfloat16_as_ushort(__float2bfloat16(1.00390625f)), 0x3f80);
    assert_int_equal(__bfloat16_as_ushort(__float2bfloat16(1.01171875f)), 0x3f82);
}

/* -- what is caught -- */

/* The kernel ends its device; the sentence tells why. A fresh machine follows, so the test's arrays are not
 * freed one by one. */
static void expect_fault(cudaError_t launched, cudaError_t error, const char *why)
{
    OK(launched);
    assert_int_equal(cudaDeviceSynchronize(), error);
    assert_int_equal(cudaGetLastError(), error);
    assert_int_equal(cudaGetLastError(), error); /* from then on */
    void *p;
    assert_int_equal(cudaMalloc(&p, 16), error);
    if (strstr(cudasim_violation(), why) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", cudasim_violation(), why);
}

__global__ void half_waits()
{
    if (threadIdx.x < 16)
        __syncthreads();
}

__global__ void two_barriers()
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncthreads();
}

static void threads_that_part_at_a_barrier_are_caught(void **)
{
    expect_fault(TSR_LAUNCH(half_waits, 1, 64, 0, 0), cudaErrorLaunchFailure, "barrier");
    cudasim_configure(NULL);
    expect_fault(TSR_LAUNCH(two_barriers, 1, 64, 0, 0), cudaErrorLaunchFailure, "barrier");
}

__global__ void wrong_mask(int *out)
{
    out[threadIdx.x] = __shfl_sync(0xffffu, (int)threadIdx.x, 0);
}

__global__ void parted_lanes(int *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
    else
        __syncwarp();
}

__global__ void missing_lanes(int *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
    else
        __syncthreads();
}

static void lanes_that_part_at_a_warp_operation_are_caught(void **)
{
    OnGpu<int> out(32);
    expect_fault(TSR_LAUNCH(wrong_mask, 1, 32, 0, 0, out.at), cudaErrorLaunchFailure,
                 "leaves out its own lane");
    cudasim_configure(NULL);
    OnGpu<int> out2(32);
    expect_fault(TSR_LAUNCH(parted_lanes, 1, 32, 0, 0, out2.at), cudaErrorLaunchFailure,
                 "while lanes of its mask");
    cudasim_configure(NULL);
    OnGpu<int> out3(32);
    expect_fault(TSR_LAUNCH(missing_lanes, 1, 32, 0, 0, out3.at), cudaErrorLaunchFailure,
                 "wait for each other");
    cudasim_configure(NULL);
}

__global__ void write_at(char *p, int64_t offset)
{
    p[offset] = 1;
}

static void writes_past_an_allocation_are_caught(void **)
{
    char *p;
    OK(cudaMalloc(&p, 1024));
    expect_fault(TSR_LAUNCH(write_at, 1, 1, 0, 0, p, 1024), cudaErrorIllegalAddress, "past the end");
    cudasim_configure(NULL);
}

static void freed_memory_is_out_of_reach(void **)
{
    char *p;
    OK(cudaMalloc(&p, 4096));
    OK(cudaFree(p));
    expect_fault(TSR_LAUNCH(write_at, 1, 1, 0, 0, p, 0), cudaErrorIllegalAddress, "not allocated");
    cudasim_configure(NULL);
}

static void impossible_launches_are_refused(void **)
{
    assert_int_equal(TSR_LAUNCH(half_waits, 1, 2048, 0, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(TSR_LAUNCH(half_waits, 0, 32, 0, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(TSR_LAUNCH(half_waits, 1, 32, 100000, 0), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaGetLastError());
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_know_who_they_are, machine_of_one, nothing_left),
        cmocka_unit_test_setup_teardown(barriers_separate_writes_from_reads, machine_of_one, nothing_left),
        cmocka_unit_test_setup_teardown(threads_run_in_random_order_too, machine_of_one, nothing_left),
        cmocka_unit_test_setup_teardown(warps_sum_by_shuffles, machine_of_one, nothing_left),
        cmocka_unit_test_setup_teardown(lanes_vote_and_exchange, machine_of_one, nothing_left),
        cmocka_unit_test_setup_teardown(atomics_count_every_thread, machine_of_one, nothing_left),
        cmocka_unit_test_setup_teardown(the_last_block_sees_all_others, machine_of_one, nothing_left),
        cmocka_unit_test_setup_teardown(blocks_that_wait_for_each_other_proceed, machine_of_one,
                                        nothing_left),
        cmocka_unit_test(half_conversions_round_to_even),
        cmocka_unit_test_setup_teardown(threads_that_part_at_a_barrier_are_caught, machine_of_one,
                                        nothing_left),
        cmocka_unit_test_setup(lanes_that_part_at_a_warp_operation_are_caught, machine_of_one),
        cmocka_unit_test_setup(writes_past_an_allocation_are_caught, machine_of_one),
        cmocka_unit_test_setup(freed_memory_is_out_of_reach, machine_of_one),
        cmocka_unit_test_setup_teardown(impossible_launches_are_refused, machine_of_one, nothing_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
