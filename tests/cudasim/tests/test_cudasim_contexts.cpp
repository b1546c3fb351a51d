/* The simulated machine's contexts and hardware queues: which calls make a context and what it costs, which
 * one is current, and what streams share. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda.h>

#include "cuda/api/launch.h"
#include "cuda/comm/memory_order.h"
#include "cudasim.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

static const size_t memory = (size_t)1 << 20;

static void machine_of(int n_devices, uint32_t owned)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = memory;
    config.hang_ms = 300;
    config.owned = owned;
    cudasim_configure(&config);
}

static int machine_of_three(void **)
{
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    machine_of(3, 0);
    return 0;
}

static int nothing_left(void **)
{
    return cudasim_leaks(stderr);
}

static void expect_contexts(bool zero, bool one, bool two)
{
    assert_int_equal(cudasim_context(0) > 0, zero);
    assert_int_equal(cudasim_context(1) > 0, one);
    assert_int_equal(cudasim_context(2) > 0, two);
}

static int current()
{
    int device = -1;
    OK(cudaGetDevice(&device));
    return device;
}

/* -- contexts -- */

static void questions_make_no_context(void **)
{
    int n, value;
    cudaDeviceProp prop;
    CUdevice device;
    size_t granularity;
    CUmemAllocationProp memory_prop = {};
    memory_prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory_prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cudaGetDeviceCount(&n));
    OK(cudaGetDeviceProperties(&prop, 1));
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 2));
    OK(cudaDeviceCanAccessPeer(&value, 0, 1));
    assert_int_equal(cuDeviceGet(&device, 1), CUDA_SUCCESS);
    assert_int_equal(
        cuMemGetAllocationGranularity(&granularity, &memory_prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        CUDA_SUCCESS);
    assert_int_equal(current(), 0);
    OK(cudaGetLastError());
    expect_contexts(false, false, false);
}

static void the_first_use_of_a_device_makes_its_context_and_costs_memory(void **)
{
    size_t left, total;
    void *p;
    OK(cudaMemGetInfo(&left, &total));
    expect_contexts(true, false, false);
    assert_int_equal(left, memory);
    assert_int_equal(total - left, cudasim_context(0));
    OK(cudaSetDevice(1));
    expect_contexts(true, true, false);
    OK(cudaInitDevice(2, 0, 0));
    expect_contexts(true, true, true);
    assert_int_equal(current(), 1);
    OK(cudaMalloc(&p, memory));
    assert_int_equal(cudasim_used(1), memory);
    OK(cudaFree(p));
}

static void *free_nothing(void *)
{
    cudaEvent_t event = NULL;
    cudaEventQuery(event);
    return NULL;
}

static void a_thread_that_set_no_device_uses_the_first(void **)
{
    pthread_t thread;
    OK(cudaSetDevice(2));
    expect_contexts(false, false, true);
    pthread_create(&thread, NULL, free_nothing, NULL);
    pthread_join(thread, NULL);
    expect_contexts(true, false, true);
}

static void a_pushed_context_is_the_runtimes(void **)
{
    CUcontext one, popped;
    void *p;
    CUdeviceptr range;
    const size_t granule = (size_t)64 << 10;
    assert_int_equal(cuMemAddressReserve(&range, granule, 0, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(cuDevicePrimaryCtxRetain(&one, 1), CUDA_SUCCESS);
    assert_int_equal(current(), 0);
    assert_int_equal(cuCtxPushCurrent(one), CUDA_SUCCESS);
    assert_int_equal(current(), 1);
    OK(cudaMalloc(&p, 512));
    assert_int_equal(cudasim_used(1), 512);
    OK(cudaFree(p));
    assert_int_equal(cuMemAddressReserve(&range, granule, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemAddressFree(range, granule), CUDA_SUCCESS);
    assert_int_equal(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
    assert_ptr_equal(popped, one);
    assert_int_equal(current(), 0);
    expect_contexts(false, true, false);

    /* The driver's reference was the only one. */
    assert_int_equal(cudasim_leaks(NULL), 1);
    assert_int_equal(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
    expect_contexts(false, false, false);
    assert_int_equal(cuCtxPushCurrent(one), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
    assert_non_null(strstr(cudasim_violation(), "not retained"));
}

static void the_runtimes_context_outlasts_the_drivers_reference(void **)
{
    CUcontext one;
    OK(cudaInitDevice(1, 0, 0));
    assert_int_equal(cuDevicePrimaryCtxRetain(&one, 1), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
    expect_contexts(false, true, false);
}

static void another_processs_device_takes_no_context(void **)
{
    CUcontext context;
    machine_of(3, 1);
    assert_int_equal(cudaSetDevice(0), cudaErrorDevicesUnavailable);
    assert_int_equal(cudaInitDevice(0, 0, 0), cudaErrorDevicesUnavailable);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), (CUresult)cudaErrorDevicesUnavailable);
    OK(cudaSetDevice(1));
    expect_contexts(false, true, false);
}

/* -- hardware queues -- */

__global__ void announce_and_wait(uint32_t *mine, const uint32_t *others)
{
    tsr_store_release_u32(mine, 1);
    while (tsr_load_acquire_u32(others) == 0)
        tsr_spin_pause();
}

__global__ void nothing()
{
}

/* Zeroed, with the kernels' code on the device. */
static uint32_t *make_words()
{
    uint32_t *words;
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(announce_and_wait)));
    OK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(nothing)));
    OK(cudaMalloc(&words, 64));
    OK(cudaMemset(words, 0, 64));
    return words;
}

/* Two streams wait for each other, the first with more work behind. n_between streams are made in between. */
static cudaError_t meet(int n_between)
{
    enum { MOST = 32 };
    cudaStream_t first, second, between[MOST];
    uint32_t *words = make_words();
    OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    for (int i = 0; i < n_between; i++)
        OK(cudaStreamCreateWithFlags(&between[i], cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    OK(TSR_LAUNCH(announce_and_wait, 1, 1, 0, first, words, words + 8));
    OK(TSR_LAUNCH(nothing, 1, 1, 0, first));
    OK(TSR_LAUNCH(announce_and_wait, 1, 1, 0, second, words + 8, words));
    cudaError_t error = cudaDeviceSynchronize();
    OK(cudaStreamDestroy(first));
    for (int i = 0; i < n_between; i++)
        OK(cudaStreamDestroy(between[i]));
    OK(cudaStreamDestroy(second));
    assert_int_equal(cudaFree(words), error);
    return error;
}

static void streams_of_one_queue_start_in_order(void **)
{
    OK(meet(0));
    OK(meet(6));
    assert_int_equal(meet(7), cudaErrorLaunchTimeout); /* the ninth is in the first's queue */
    assert_non_null(strstr(cudasim_violation(), "nothing moves"));
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    machine_of(3, 0);
    OK(meet(7));
    assert_string_equal(cudasim_violation(), "");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    machine_of(3, 0);
    assert_int_equal(meet(0), cudaErrorLaunchTimeout);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

typedef struct launches {
    cudaStream_t stream;
    uint32_t *words;
    int n;
} launches;

static void *launch_many(void *argument)
{
    const launches *l = (const launches *)argument;
    (void)!TSR_LAUNCH(announce_and_wait, 1, 1, 0, l->stream, l->words, l->words + 8);
    for (int i = 0; i < l->n; i++)
        (void)!TSR_LAUNCH(nothing, 1, 1, 0, l->stream);
    return NULL;
}

/* The first stream gets n launches behind one that waits for the second. Then the second gets its own. */
static cudaError_t launch_behind(int n)
{
    cudaStream_t first, second;
    pthread_t thread;
    uint32_t *words = make_words();
    OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    const uint64_t before = cudasim_calls_of("cudaLaunchKernel");
    launches l = {first, words, n};
    pthread_create(&thread, NULL, launch_many, &l);
    while (cudasim_calls_of("cudaLaunchKernel") < before + (uint64_t)(n < 1025 ? n : 1025))
        usleep(1000);
    cudaError_t error = TSR_LAUNCH(announce_and_wait, 1, 1, 0, second, words + 8, words);
    pthread_join(thread, NULL);
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    OK(cudaStreamDestroy(first));
    OK(cudaStreamDestroy(second));
    assert_int_equal(cudaFree(words), error);
    return error;
}

static void a_launch_into_a_full_queue_keeps_the_lock(void **)
{
    OK(launch_behind(500));
    assert_string_equal(cudasim_violation(), "");
    assert_int_not_equal(launch_behind(1500), cudaSuccess);
    assert_non_null(strstr(cudasim_violation(), "nothing moves"));
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, machine_of_three, nothing_left)
    const struct CMUnitTest tests[] = {
        CASE(questions_make_no_context),
        CASE(the_first_use_of_a_device_makes_its_context_and_costs_memory),
        CASE(a_thread_that_set_no_device_uses_the_first),
        CASE(a_pushed_context_is_the_runtimes),
        CASE(the_runtimes_context_outlasts_the_drivers_reference),
        CASE(another_processs_device_takes_no_context),
        CASE(streams_of_one_queue_start_in_order),
        CASE(a_launch_into_a_full_queue_keeps_the_lock),
    };
    return cmocka_run_group_tests_name("contexts and queues of the simulated machine", tests, NULL, NULL);
}
