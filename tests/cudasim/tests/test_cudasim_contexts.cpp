/* The simulated machine's contexts: which calls make one, what it costs, and which one is current. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda.h>

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
    };
    return cmocka_run_group_tests_name("contexts of the simulated machine", tests, NULL, NULL);
}
