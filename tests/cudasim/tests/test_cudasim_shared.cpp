/* The simulated GPU refuses what is wrong with shared memory: what an earlier block left there, asynchronous
 * copies that are read before their wait, not waited for, or not aligned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#pragma GCC diagnostic ignored \
    "-Wshadow" /* as for all kernels: a parameter may be named like the type half */
#include "cuda/api/launch.h"
#include "cuda/kernels/mul_mat/mma.cuh"
#include "cudasim.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

static int machine_of_one(void **)
{
    cudasim_configure(NULL);
    return 0;
}

enum { THREADS = 64, WORDS = 4 * THREADS };

/* Runs a kernel of one block, with 16 bytes per thread of `from` and of dynamic shared memory. */
struct Run {
    uint32_t *from, *out;
    uint32_t result[WORDS];
    Run()
    {
        uint32_t words[WORDS];
        for (uint32_t i = 0; i < WORDS; i++)
            words[i] = i;
        OK(cudaMalloc(&from, 2 * sizeof words));
        OK(cudaMalloc(&out, sizeof words));
        OK(cudaMemcpy(from, words, sizeof words, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(from + WORDS, words, sizeof words, cudaMemcpyHostToDevice));
    }
    const uint32_t *get()
    {
        OK(cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost));
        return result;
    }
};

static void expect_fault(cudaError_t launched, cudaError_t error, const char *why)
{
    OK(launched);
    assert_int_equal(cudaDeviceSynchronize(), error);
    if (strstr(cudasim_violation(), why) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", cudasim_violation(), why);
    cudasim_configure(NULL);
}

/* -- what is left of other blocks -- */

__global__ void count_without_start(uint32_t *out)
{
    __shared__ uint32_t count;
    if (blockIdx.x % 2 == 0)
        count = 0;
    count++;
    out[blockIdx.x] = count;
}

template <typename T> __global__ void count_in_template(T *out)
{
    __shared__ T counts[3];
    out[blockIdx.x] = counts[2];
    counts[2] = 7;
}

static void static_shared_memory_keeps_nothing_of_the_block_before(void **)
{
    Run run;
    OK(TSR_LAUNCH(count_without_start, 8, 1, 0, 0, run.out));
    run.get();
    for (int i = 0; i < 8; i++)
        assert_int_equal(run.result[i], i % 2 == 0 ? 1 : 0); /* 0xffffffff + 1 */
    OK(TSR_LAUNCH((count_in_template<uint32_t>), 8, 1, 0, 0, run.out));
    run.get();
    for (int i = 0; i < 8; i++)
        assert_int_equal(run.result[i], 0xffffffffu);
    cudasim_configure(NULL);
}

/* -- asynchronous copies -- */

/* LATER groups may be pending when the first of two is read. */
template <int LATER, bool IS_STATIC> __global__ void copy_two(const uint32_t *from, uint32_t *out)
{
    __shared__ tsr_bytes_16 here[THREADS];
    TSR_DYNAMIC_SHARED(tsr_bytes_16, there);
    tsr_bytes_16 *const to = IS_STATIC ? here : there;
    const unsigned i = threadIdx.x;
    tsr_copy_async_16(&to[i], from + 4 * i);
    tsr_copy_async_commit();
    tsr_copy_async_16(&there[THREADS + i], from + 4 * i);
    tsr_copy_async_commit();
    tsr_copy_async_wait<LATER>();
    for (int k = 0; k < 2; k++)
        out[4 * i + k] = to[i].word[k];
    out[4 * i + 2] = there[THREADS + i].word[2];
    tsr_copy_async_wait<0>();
    out[4 * i + 3] = there[THREADS + i].word[3];
}

static void copies_arrive_at_the_wait_for_their_group(void **)
{
    const size_t bytes = 2 * THREADS * sizeof(tsr_bytes_16);
    for (int is_static = 0; is_static < 2; is_static++) {
        Run run;
        OK(is_static ? TSR_LAUNCH((copy_two<1, true>), 1, THREADS, bytes, 0, run.from, run.out)
                     : TSR_LAUNCH((copy_two<1, false>), 1, THREADS, bytes, 0, run.from, run.out));
        run.get();
        for (unsigned i = 0; i < WORDS; i++)
            assert_int_equal(run.result[i], i % 4 == 2 ? 0xffffffffu : i);
    }
    Run late;
    OK(TSR_LAUNCH((copy_two<2, false>), 1, THREADS, bytes, 0, late.from, late.out)); /* one group too few */
    late.get();
    for (unsigned i = 0; i < WORDS; i++)
        assert_int_equal(late.result[i], i % 4 != 3 ? 0xffffffffu : i);
    cudasim_configure(NULL);
}

/* The next piece is fetched into the place of the one that other threads still read. */
template <bool HAS_BARRIER> __global__ void refill(const uint32_t *from, uint32_t *out)
{
    TSR_DYNAMIC_SHARED(uint32_t, piece);
    const unsigned i = threadIdx.x, other = THREADS - 1 - i;
    tsr_copy_async_16(&piece[4 * i], from + 4 * i);
    tsr_copy_async_commit();
    tsr_copy_async_wait<0>();
    __syncthreads();
    for (unsigned k = 0; k < 4; k++)
        out[4 * other + k] = piece[4 * other + k];
    if (HAS_BARRIER)
        __syncthreads();
    tsr_copy_async_16(&piece[4 * i], from + WORDS + 4 * i);
    tsr_copy_async_commit();
    tsr_copy_async_wait<1>();
    __syncthreads();
    tsr_copy_async_wait<0>();
}

static void a_place_that_is_filled_again_too_early_is_seen(void **)
{
    Run run;
    OK(TSR_LAUNCH((refill<true>), 1, THREADS, WORDS * 4, 0, run.from, run.out));
    run.get();
    for (unsigned i = 0; i < WORDS; i++)
        assert_int_equal(run.result[i], i);
    OK(TSR_LAUNCH((refill<false>), 1, THREADS, WORDS * 4, 0, run.from, run.out));
    run.get();
    int wrong = 0;
    for (unsigned i = 0; i < WORDS; i++)
        wrong += run.result[i] == 0xffffffffu;
    assert_int_equal(wrong, WORDS / 2);
    cudasim_configure(NULL);
}

template <bool COMMITS> __global__ void no_wait(const uint32_t *from)
{
    TSR_DYNAMIC_SHARED(tsr_bytes_16, to);
    tsr_copy_async_16(&to[threadIdx.x], from + 4 * threadIdx.x);
    if (COMMITS)
        tsr_copy_async_commit();
    else
        tsr_copy_async_wait<0>(); /* for no group */
}

static void copies_without_a_wait_are_caught(void **)
{
    Run run;
    expect_fault(TSR_LAUNCH((no_wait<true>), 1, THREADS, 1024, 0, run.from), cudaErrorLaunchFailure,
                 "has not waited for 1 asynchronous copies");
    Run again;
    expect_fault(TSR_LAUNCH((no_wait<false>), 1, THREADS, 1024, 0, again.from), cudaErrorLaunchFailure,
                 "has not waited for 1 asynchronous copies");
}

__global__ void copy_bytes_at(const uint32_t *from, uint32_t *to, int from_byte, int to_byte, unsigned bytes)
{
    TSR_DYNAMIC_SHARED(unsigned char, shared);
    unsigned char *target = to != NULL ? reinterpret_cast<unsigned char *>(to) : shared;
    cudasim_copy_async(target + to_byte, reinterpret_cast<const unsigned char *>(from) + from_byte, bytes);
    cudasim_copy_async_commit();
    cudasim_copy_async_wait(0);
}

static cudaError_t copy_at(Run *run, uint32_t *to, int from_byte, int to_byte, unsigned bytes)
{
    return TSR_LAUNCH(copy_bytes_at, 1, 1, 256, 0, run->from, to, from_byte, to_byte, bytes);
}

static void copies_that_the_instruction_does_not_have_are_caught(void **)
{
    static const struct {
        int from_byte, to_byte;
        unsigned bytes;
        cudaError_t error;
        const char *why;
    } cases[] = {{8, 16, 16, cudaErrorMisalignedAddress, "not both multiples of 16"},
                 {16, 8, 16, cudaErrorMisalignedAddress, "not both multiples of 16"},
                 {4, 8, 8, cudaErrorMisalignedAddress, "not both multiples of 8"},
                 {0, 0, 12, cudaErrorIllegalInstruction, "12 bytes asynchronously"},
                 {0, 256, 16, cudaErrorInvalidAddressSpace, "not in the block's shared memory"},
                 {1 << 20, 0, 16, cudaErrorIllegalAddress, "past the end"}};
    for (const auto &c : cases) {
        Run run;
        expect_fault(copy_at(&run, NULL, c.from_byte, c.to_byte, c.bytes), c.error, c.why);
    }
    Run run;
    expect_fault(copy_at(&run, run.out, 0, 0, 16), cudaErrorInvalidAddressSpace, "shared memory");
    Run fine;
    OK(copy_at(&fine, NULL, 4, 252, 4));
    OK(copy_at(&fine, NULL, 8, 248, 8));
    OK(cudaDeviceSynchronize());
    assert_string_equal(cudasim_violation(), "");
    cudasim_configure(NULL);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(static_shared_memory_keeps_nothing_of_the_block_before, machine_of_one),
        cmocka_unit_test_setup(copies_arrive_at_the_wait_for_their_group, machine_of_one),
        cmocka_unit_test_setup(a_place_that_is_filled_again_too_early_is_seen, machine_of_one),
        cmocka_unit_test_setup(copies_without_a_wait_are_caught, machine_of_one),
        cmocka_unit_test_setup(copies_that_the_instruction_does_not_have_are_caught, machine_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
