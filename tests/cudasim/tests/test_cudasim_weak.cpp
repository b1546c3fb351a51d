/* Weak memory of the simulated machine: kernels that hand data over with release and acquire, or with fences,
 * are right; copies of them that lack one of the two get old data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include "cuda/api/launch.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* as where kernels are compiled */
#include "cuda/comm/device_barrier.cuh"
#pragma GCC diagnostic pop
#include "cudasim.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { N = 64, OLD = 7, NEW = 1000, ROUNDS = 20 };

/* -- the machine: two devices with peer access, or one -- */

static struct {
    int n_devices; /* of the two sides */
    cudaStream_t streams[2];
    int *data[2], *out;
    uint64_t *sent[2], *received[2], *progress;
    uint32_t *aborted, *flag;
} all;

__global__ void push(int *data, uint32_t *flag, int how);
__global__ void take(const int *data, uint32_t *flag, int *out, int how);
__global__ void make(int *data);
__global__ void wait_and_read(const tsr_cuda_barrier barrier, int lacks, const int *theirs, int *out);

/* On the current device, before anything waits there. */
static void load_kernels()
{
    const void *const kernels[] = {(const void *)push, (const void *)take, (const void *)make,
                                   (const void *)wait_and_read};
    cudaFuncAttributes attributes;
    for (const void *kernel : kernels)
        OK(cudaFuncGetAttributes(&attributes, kernel));
}

static void start(int n_devices, uint64_t seed)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    int old[N];
    config.n_devices = n_devices;
    config.memory = (size_t)1 << 20;
    config.weak = true;
    config.seed = seed;
    cudasim_configure(&config);
    all.n_devices = n_devices;
    for (int &value : old)
        value = OLD;
    for (int side = 0; side < 2; side++) {
        OK(cudaSetDevice(side % n_devices));
        load_kernels();
        if (n_devices == 2)
            OK(cudaDeviceEnablePeerAccess(!side, 0));
        OK(cudaStreamCreateWithFlags(&all.streams[side], cudaStreamNonBlocking));
        OK(cudaMalloc((void **)&all.data[side], sizeof old));
        OK(cudaMemcpy(all.data[side], old, sizeof old, cudaMemcpyHostToDevice));
        for (uint64_t **counts : {&all.sent[side], &all.received[side]}) {
            OK(cudaMalloc((void **)counts, 2 * sizeof(uint64_t)));
            OK(cudaMemset(*counts, 0, 2 * sizeof(uint64_t)));
        }
    }
    OK(cudaMalloc((void **)&all.out, sizeof old));
    OK(cudaMalloc((void **)&all.flag, sizeof *all.flag));
    OK(cudaMemset(all.flag, 0, sizeof *all.flag));
    OK(cudaHostAlloc((void **)&all.progress, 4 * sizeof(uint64_t), 0));
    OK(cudaHostAlloc((void **)&all.aborted, sizeof *all.aborted, 0));
    *all.aborted = 0;
}

/* What side 1 got: all new, or at least one old value. */
static bool got_new()
{
    int got[N];
    bool all_new = true;
    for (cudaStream_t stream : all.streams)
        OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(got, all.out, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++)
        all_new = all_new && got[i] == NEW + i;
    return all_new;
}

static void stop()
{
    for (int side = 0; side < 2; side++) {
        OK(cudaStreamDestroy(all.streams[side]));
        OK(cudaFree(all.data[side]));
        OK(cudaFree(all.sent[side]));
        OK(cudaFree(all.received[side]));
    }
    OK(cudaFree(all.out));
    OK(cudaFree(all.flag));
    OK(cudaFreeHost(all.progress));
    OK(cudaFreeHost(all.aborted));
    assert_int_equal(cudasim_leaks(stderr), 0);
    assert_string_equal(cudasim_violation(), "");
}

/* -- data and a flag, both in side 1's memory -- */

enum { STORE_RELEASES, FENCE_BEFORE_STORE, STORE_RELAXED, N_STORES };
enum { LOAD_ACQUIRES, FENCE_AFTER_LOAD, LOAD_RELAXED, N_LOADS };

__global__ void push(int *data, uint32_t *flag, int how)
{
    data[threadIdx.x] = NEW + (int)threadIdx.x;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (how == FENCE_BEFORE_STORE)
        __threadfence_system();
    if (how == STORE_RELEASES)
        tsr_store_release_u32(flag, 1);
    else
        tsr_store_relaxed_u32(flag, 1);
    while (tsr_load_relaxed_u32(flag) != 2) /* it does not end before the other side has read */
        tsr_spin_pause();
}

__global__ void take(const int *data, uint32_t *flag, int *out, int how)
{
    if (threadIdx.x == 0) {
        while ((how == LOAD_ACQUIRES ? tsr_load_acquire_u32(flag) : tsr_load_relaxed_u32(flag)) == 0)
            tsr_spin_pause();
        if (how == FENCE_AFTER_LOAD)
            __threadfence_system();
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
        tsr_store_relaxed_u32(flag, 2);
}

static bool hand_over(int store, int load, uint64_t seed)
{
    start(2, seed);
    OK(cudaSetDevice(1));
    OK(TSR_LAUNCH(take, 1, N, 0, all.streams[1], all.data[1], all.flag, all.out, load));
    OK(cudaSetDevice(0));
    OK(TSR_LAUNCH(push, 1, N, 0, all.streams[0], all.data[1], all.flag, store));
    bool good = got_new();
    stop();
    return good;
}

static void data_follows_a_flag_with_release_and_acquire(void **)
{
    for (int store = 0; store < N_STORES; store++)
        for (int load = 0; load < N_LOADS; load++) {
            int n_good = 0;
            for (uint64_t seed = 0; seed < ROUNDS; seed++)
                n_good += hand_over(store, load, seed);
            if (store != STORE_RELAXED && load != LOAD_RELAXED)
                assert_int_equal(n_good, ROUNDS);
            else if (n_good == ROUNDS)
                fail_msg("store %d and load %d are good, but should not be", store, load);
        }
}

/* -- the barrier of devices (cuda/comm/device_barrier.cuh) -- */

__global__ void make(int *data)
{
    data[threadIdx.x] = NEW + (int)threadIdx.x;
}

enum { LACKS_NOTHING, LACKS_ACQUIRE, LACKS_RELEASE };

/* A copy without its acquire, or its release. */
static __device__ void bad_barrier_wait(const tsr_cuda_barrier &m, int lacks)
{
    const int other = (int)threadIdx.x;
    if (other < m.n_devices && other != m.self) {
        const uint64_t count = ++m.sent[other];
        if (lacks == LACKS_RELEASE)
            tsr_store_relaxed_u64(m.announce[other], count);
        else
            tsr_store_release_u64(m.announce[other], count);
        while ((lacks == LACKS_ACQUIRE ? tsr_load_relaxed_u64(m.received + other)
                                       : tsr_load_acquire_u64(m.received + other)) < count)
            tsr_spin_pause();
    }
    __syncthreads();
}

__global__ void wait_and_read(const tsr_cuda_barrier barrier, int lacks, const int *theirs, int *out)
{
    if (lacks == LACKS_NOTHING)
        tsr_barrier_wait(barrier);
    else
        bad_barrier_wait(barrier, lacks);
    if (threadIdx.x < N)
        out[threadIdx.x] = theirs[threadIdx.x];
}

/* Both sides meet after side 0's kernel has made the data. Side 1 waits from early on. */
static bool meet(int n_devices, int lacks, uint64_t seed)
{
    start(n_devices, seed);
    for (int side = 1; side >= 0; side--) {
        tsr_cuda_barrier barrier = {};
        barrier.self = side;
        barrier.n_devices = 2;
        barrier.max_blocks = 1;
        barrier.participants = 3;
        barrier.sent = all.sent[side];
        barrier.received = all.received[side];
        barrier.announce[!side] = all.received[!side] + side;
        barrier.progress = all.progress + 2 * side;
        barrier.aborted = all.aborted;
        OK(cudaSetDevice(side % n_devices));
        if (side == 0)
            OK(TSR_LAUNCH(make, 1, N, 0, all.streams[0], all.data[0]));
        OK(TSR_LAUNCH(wait_and_read, 1, TSR_CUDA_MAX_PEERS, 0, all.streams[side], barrier, lacks, all.data[0],
                      side == 1 ? all.out : all.data[1]));
    }
    bool all_new = got_new();
    stop();
    return all_new;
}

static void the_barrier_of_devices_needs_its_acquire_and_release(void **)
{
    for (int n_devices = 1; n_devices <= 2; n_devices++)
        for (int lacks = LACKS_NOTHING; lacks <= LACKS_RELEASE; lacks++) {
            int n_good = 0;
            for (uint64_t seed = 0; seed < ROUNDS; seed++)
                n_good += meet(n_devices, lacks, seed);
            if (lacks == LACKS_NOTHING)
                assert_int_equal(n_good, ROUNDS);
            else
                assert_true(n_good < ROUNDS);
        }
}

/* Without any order of their own: the end of a kernel releases, the start of another acquires. */
static void kernels_that_follow_one_another_see_everything(void **)
{
    cudaEvent_t made;
    start(2, 3);
    OK(cudaSetDevice(0));
    OK(cudaEventCreate(&made));
    OK(TSR_LAUNCH(make, 1, N, 0, all.streams[0], all.data[1]));
    OK(cudaEventRecord(made, all.streams[0]));
    OK(cudaSetDevice(1));
    OK(cudaStreamWaitEvent(all.streams[1], made, 0));
    tsr_cuda_barrier alone = {};
    OK(TSR_LAUNCH(wait_and_read, 1, TSR_CUDA_MAX_PEERS, 0, all.streams[1], alone, LACKS_NOTHING, all.data[1],
                  all.out));
    assert_true(got_new());
    OK(cudaEventDestroy(made));
    stop();
}

/* Kernels of one device, whose stores no kernel releases: a later one stores what was there before the
 * first, and one that began between the two takes neither back when it ends. `flag` is in host memory. */
__global__ void put(int *data, int value)
{
    data[threadIdx.x] = value;
}

__global__ void linger(uint32_t *flag, int *out)
{
    if (threadIdx.x == 0)
        while (tsr_load_acquire_u32(flag) == 0)
            tsr_spin_pause();
    __syncthreads();
    out[threadIdx.x] = NEW + (int)threadIdx.x;
}

static void a_later_store_replaces_an_earlier_one(void **)
{
    enum { ALONE, WITH_ANOTHER_KERNEL, N_WAYS };
    for (int way = 0; way < N_WAYS; way++)
        for (int seed = 0; seed < ROUNDS; seed++) {
            const int last = OLD + seed % 2;
            int got[N];
            start(1, (uint64_t)seed);
            uint32_t *flag;
            OK(cudaHostAlloc((void **)&flag, sizeof *flag, 0));
            *flag = 0;
            OK(TSR_LAUNCH(put, 1, N, 0, all.streams[0], all.data[0], OLD + 2));
            OK(cudaStreamSynchronize(all.streams[0]));
            if (way == WITH_ANOTHER_KERNEL)
                OK(TSR_LAUNCH(linger, 1, N, 0, all.streams[1], flag, all.out));
            OK(TSR_LAUNCH(put, 1, N, 0, all.streams[0], all.data[0], last));
            OK(cudaStreamSynchronize(all.streams[0]));
            __atomic_store_n(flag, 1u, __ATOMIC_RELEASE);
            OK(cudaStreamSynchronize(all.streams[1]));
            OK(cudaMemcpy(got, all.data[0], sizeof got, cudaMemcpyDeviceToHost));
            for (int value : got)
                assert_int_equal(value, last);
            OK(cudaFreeHost(flag));
            stop();
        }
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_follows_a_flag_with_release_and_acquire),
        cmocka_unit_test(the_barrier_of_devices_needs_its_acquire_and_release),
        cmocka_unit_test(kernels_that_follow_one_another_see_everything),
        cmocka_unit_test(a_later_store_replaces_an_earlier_one),
    };
    return cmocka_run_group_tests_name("weak memory", tests, NULL, NULL);
}
