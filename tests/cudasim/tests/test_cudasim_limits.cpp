/* The simulated GPU has the limits of the card that it is: launches that ask for more are refused, and blocks
 * that do not all fit do not all run at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include <cudasim_hook.h>

#include "cuda/api/launch.h"
#include "cuda/comm/memory_order.h"
#include "cudasim.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

static void machine(int capability, int n_sms, int n_devices = 1)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.compute_capability = capability;
    config.n_sms = n_sms;
    config.n_devices = n_devices;
    config.hang_ms = 300;
    cudasim_configure(&config);
}

static int attribute(cudaDeviceAttr which)
{
    int value;
    OK(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

template <int STATIC_BYTES> __global__ void use_shared(int *out)
{
    __shared__ int here[STATIC_BYTES / 4];
    TSR_DYNAMIC_SHARED(int, there);
    here[threadIdx.x] = there[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    if (out != NULL)
        out[threadIdx.x] = here[threadIdx.x] + there[threadIdx.x];
}

template <int STATIC_BYTES> static cudaError_t allow(int bytes)
{
    return cudaFuncSetAttribute(use_shared<STATIC_BYTES>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <int STATIC_BYTES> static cudaError_t launch(int bytes, int threads = 32)
{
    const cudaError_t error =
        TSR_LAUNCH((use_shared<STATIC_BYTES>), 1, threads, (size_t)bytes, 0, (int *)NULL);
    (void)cudaGetLastError();
    OK(cudaDeviceSynchronize());
    return error;
}

static void shared_memory_is_that_of_the_card(void **)
{
    static const struct {
        int capability, kib;
    } cards[] = {{80, 163}, {86, 99}, {89, 99}, {90, 227}, {100, 227}, {120, 99}};
    for (const auto &card : cards) {
        const int most = card.kib << 10;
        machine(card.capability, 8);
        assert_int_equal(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), most);
        assert_int_equal(allow<128>(most - 128), cudaSuccess);
        assert_int_equal(allow<128>(most - 127), cudaErrorInvalidValue); /* with the static */
        assert_int_equal(launch<128>(most - 128), cudaSuccess);
        assert_int_equal(launch<128>(most - 127), cudaErrorInvalidValue);
    }
    cudasim_configure(NULL);
}

/* 48 KiB, static and dynamic together, unless the kernel was allowed more on this device. */
static void more_than_48_kib_must_be_allowed_for_each_device(void **)
{
    machine(90, 8, 2);
    assert_int_equal(launch<4096>(44 << 10), cudaSuccess);
    assert_int_equal(launch<4096>((44 << 10) + 16), cudaErrorInvalidValue);
    OK(allow<4096>(50 << 10));
    assert_int_equal(launch<4096>(50 << 10), cudaSuccess);
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, (const void *)use_shared<4096>));
    assert_int_equal(attributes.maxDynamicSharedSizeBytes, 50 << 10);
    assert_int_equal(attributes.sharedSizeBytes, 4096);
    OK(cudaSetDevice(1));
    assert_int_equal(launch<4096>(50 << 10), cudaErrorInvalidValue);
    OK(cudaSetDevice(0));
    cudasim_configure(NULL);
}

static void blocks_of_too_many_registers_or_threads_are_refused(void **)
{
    const void *kernel = (const void *)use_shared<4096>;
    machine(86, 8);
    cudasim_set_resources(kernel, 32, 256); /* __launch_bounds__(256) */
    assert_int_equal(launch<4096>(4096, 256), cudaSuccess);
    assert_int_equal(launch<4096>(4096, 257), cudaErrorLaunchOutOfResources);
    cudasim_set_resources(kernel, 255, 1024); /* 8160 registers of a warp are 8192 */
    assert_int_equal(launch<4096>(4096, 256), cudaSuccess);
    assert_int_equal(launch<4096>(4096, 257), cudaErrorLaunchOutOfResources);
    cudasim_set_resources(kernel, 64, 1024);
    assert_int_equal(launch<4096>(4096, 1024), cudaSuccess);
    cudasim_configure(NULL);
}

/* A table of the compiler's for a kernel whose blocks were made for fewer registers than it has now. */
static void the_table_of_the_compiler_is_what_launches_go_by(void **)
{
    const char *path = "cudasim_limits_table.txt";
    FILE *table = fopen(path, "w");
    fputs("# name, threads, blocks; registers, shared memory, stack for sm_80, sm_90 and sm_120\n"
          "_Z10use_sharedILi4096EEvPi 512 1 128 4096 0 168 4096 0 64 4096 0\n"
          "_Z9elsewherev 0 0 16 0 0 16 0 0 16 0 0\n",
          table);
    fclose(table);
    cudasim_read_resources(path);
    remove(path);
    static const struct {
        int capability, registers, most; /* threads that fit */
    } cards[] = {{86, 128, 512}, {90, 168, 384}, {120, 64, 512}};
    for (const auto &card : cards) {
        int blocks;
        cudaFuncAttributes attributes;
        machine(card.capability, 8);
        OK(cudaFuncGetAttributes(&attributes, (const void *)use_shared<4096>));
        assert_int_equal(attributes.numRegs, card.registers);
        assert_int_equal(attributes.maxThreadsPerBlock, 512);
        assert_int_equal(launch<4096>(4096, card.most), cudaSuccess);
        assert_int_equal(launch<4096>(4096, card.most + 32), cudaErrorLaunchOutOfResources);
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, use_shared<4096>, card.most + 32, 0));
        assert_int_equal(blocks, 0);
    }
    cudasim_set_resources((const void *)use_shared<4096>, 64, 1024);
    cudasim_configure(NULL);
}

/* Values of cuda_occupancy.h of CUDA 13.0. */
static void occupancy_follows_from_what_a_block_takes(void **)
{
    static const struct {
        int capability, registers, threads, dynamic_bytes, blocks;
    } cases[] = {
        {90, 32, 1024, 0, 2},     /* threads */
        {86, 32, 1024, 0, 1},     /* 1536 threads */
        {90, 16, 32, 0, 32},      /* blocks */
        {86, 16, 32, 0, 16},      /* */
        {120, 16, 32, 0, 20},     /* shared memory: 5 KiB each */
        {90, 121, 256, 0, 2},     /* registers: 4 warps of 3968 in each partition */
        {90, 128, 96, 0, 5},      /* 16 warps, 3 a block */
        {90, 32, 128, 56000, 3},  /* shared memory, with 1 KiB of its own for each block */
        {86, 32, 128, 56000, 1},  /* */
        {80, 32, 128, 56000, 2},  /* */
        {90, 32, 128, 300000, 0}, /* never */
    };
    for (const auto &c : cases) {
        int blocks;
        machine(c.capability, 8);
        (void)allow<4096>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 4096);
        cudasim_set_resources((const void *)use_shared<4096>, c.registers, 1024);
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, use_shared<4096>, c.threads,
                                                         (size_t)c.dynamic_bytes));
        if (blocks != c.blocks)
            fail_msg("%d blocks of %d threads, %d registers, %d bytes with compute capability %d", blocks,
                     c.threads, c.registers, c.dynamic_bytes, c.capability);
    }
    cudasim_set_resources((const void *)use_shared<4096>, 64, 1024);
    cudasim_configure(NULL);
}

/* Blocks that wait for each other. */
__global__ void meet(uint32_t *arrived)
{
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (tsr_load_acquire_u32(arrived) < gridDim.x)
            tsr_spin_pause();
    }
}

static cudaError_t meet_of(unsigned blocks, size_t shared_bytes)
{
    cudasim_set_resources((const void *)meet, 32, 1024);
    uint32_t *arrived;
    OK(cudaMalloc((void **)&arrived, sizeof *arrived));
    OK(cudaMemset(arrived, 0, sizeof *arrived));
    OK(TSR_LAUNCH(meet, blocks, 512, shared_bytes, 0, arrived));
    return cudaDeviceSynchronize();
}

static void blocks_that_wait_for_blocks_without_room_hang(void **)
{
    machine(90, 2); /* 2048 threads each */
    assert_int_equal(meet_of(8, 0), cudaSuccess);
    assert_string_equal(cudasim_violation(), "");
    assert_int_equal(meet_of(9, 0), cudaErrorLaunchTimeout);
    assert_non_null(strstr(cudasim_violation(), "meet on device 0 spins"));
    machine(86, 2); /* 1536 threads, 100 KiB */
    assert_int_equal(meet_of(6, 0), cudaSuccess);
    assert_int_equal(meet_of(4, 48 << 10), cudaSuccess);
    assert_int_equal(meet_of(5, 48 << 10), cudaErrorLaunchTimeout);
    cudasim_configure(NULL);
}

static void the_card_is_that_of_the_environment(void **)
{
    const char *name = getenv("CUDASIM_CARD");
    const std::string before = name != NULL ? name : "";
    setenv("CUDASIM_CARD", "rtx5090", 1);
    cudasim_configure(NULL);
    assert_int_equal(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), 99 << 10);
    assert_int_equal(attribute(cudaDevAttrComputeCapabilityMajor), 12);
    assert_int_equal(attribute(cudaDevAttrMultiProcessorCount), 170);
    assert_int_equal(attribute(cudaDevAttrMaxThreadsPerMultiProcessor), 1536);
    unsetenv("CUDASIM_CARD");
    cudasim_configure(NULL);
    assert_int_equal(attribute(cudaDevAttrComputeCapabilityMajor), 9);
    assert_int_equal(attribute(cudaDevAttrMultiProcessorCount), 8);
    if (before != "")
        setenv("CUDASIM_CARD", before.c_str(), 1);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_memory_is_that_of_the_card),
        cmocka_unit_test(more_than_48_kib_must_be_allowed_for_each_device),
        cmocka_unit_test(blocks_of_too_many_registers_or_threads_are_refused),
        cmocka_unit_test(the_table_of_the_compiler_is_what_launches_go_by),
        cmocka_unit_test(occupancy_follows_from_what_a_block_takes),
        cmocka_unit_test(blocks_that_wait_for_blocks_without_room_hang),
        cmocka_unit_test(the_card_is_that_of_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
