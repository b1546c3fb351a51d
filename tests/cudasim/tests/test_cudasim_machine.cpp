/* The simulated machine around its kernels: memory and who may touch it, streams and events in any legal
 * order, captured graphs, peers, injected faults, and what is caught of wrong use. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda.h>

#include "cuda/api/launch.h"
#include "cuda/comm/memory_order.h"
#include "cudasim.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

static void machine_of(int n_devices, uint64_t seed)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = (size_t)1 << 20;
    config.hang_ms = 300;
    config.seed = seed;
    cudasim_configure(&config);
}

static int machine_of_two(void **)
{
    machine_of(2, 1);
    return 0;
}

static int nothing_left(void **)
{
    return cudasim_leaks(stderr);
}

__global__ void append(int *log, int *n, int what)
{
    log[atomicAdd(n, 1)] = what;
}

__global__ void set(int *p, int value)
{
    *p = value;
}

__global__ void read_into(int *to, const int *from)
{
    *to = *from;
}

/* -- memory -- */

static void memory_ends_at_the_cap(void **)
{
    void *a, *b;
    OK(cudaMalloc(&a, 700 << 10));
    assert_int_equal(cudaMalloc(&b, 400 << 10), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaGetLastError()); /* told once */
    size_t free_bytes, total;
    OK(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, (1 << 20) - (700 << 10));
    assert_int_equal(cudasim_leaks(NULL), 1);
    OK(cudaFree(a));
    OK(cudaMalloc(&b, 400 << 10));
    OK(cudaFree(b));
    assert_int_equal(cudasim_used(0), 0);
    assert_int_equal(cudasim_peak(0), 700 << 10);
}

static void new_memory_is_full_of_nans(void **)
{
    float *p, x[4];
    OK(cudaMalloc(&p, sizeof x));
    OK(cudaMemcpy(x, p, sizeof x, cudaMemcpyDeviceToHost));
    assert_true(x[0] != x[0] && x[3] != x[3]);
    OK(cudaFree(p));
}

/* In a child, since it ends there. */
static void host_code_cannot_touch_device_memory(void **)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        freopen("/dev/null", "w", stderr);
        cudasim_configure(NULL);
        volatile int *p;
        if (cudaMalloc((void **)&p, 4) != cudaSuccess)
            _exit(1);
        _exit(*p);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void peers_need_access(void **)
{
    int *on_one, *on_zero, value;
    OK(cudaMalloc(&on_zero, 4));
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&on_one, 4));
    OK(TSR_LAUNCH(set, 1, 1, 0, 0, on_one, 77));
    OK(cudaDeviceSynchronize());
    OK(cudaSetDevice(0));
    OK(cudaDeviceEnablePeerAccess(1, 0));
    OK(TSR_LAUNCH(read_into, 1, 1, 0, 0, on_zero, on_one));
    OK(cudaMemcpy(&value, on_zero, 4, cudaMemcpyDeviceToHost));
    assert_int_equal(value, 77);
    OK(cudaDeviceDisablePeerAccess(1));
    OK(TSR_LAUNCH(read_into, 1, 1, 0, 0, on_zero, on_one));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    assert_non_null(strstr(cudasim_violation(), "no peer access"));
    OK(cudaSetDevice(1)); /* the other device lives on */
    OK(cudaMemcpy(&value, on_one, 4, cudaMemcpyDeviceToHost));
    cudasim_poison_device(0, 0);
    OK(cudaFree(on_zero));
    OK(cudaFree(on_one));
}

static void virtual_memory_grows_without_moving(void **)
{
    OK(cudaSetDevice(0));
    size_t granule;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    OK((cudaError_t)cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUdeviceptr base;
    CUmemGenericAllocationHandle first, second;
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK((cudaError_t)cuMemAddressReserve(&base, 4 * granule, 0, 0, 0));
    OK((cudaError_t)cuMemCreate(&first, granule, &prop, 0));
    OK((cudaError_t)cuMemCreate(&second, granule, &prop, 0));
    assert_int_equal(cuMemCreate(&second, granule - 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    OK((cudaError_t)cuMemMap(base, granule, 0, first, 0));
    OK((cudaError_t)cuMemMap(base + granule, granule, 0, second, 0));
    assert_int_equal(cuMemMap(base, granule, 0, second, 0), CUDA_ERROR_INVALID_VALUE);
    OK((cudaError_t)cuMemSetAccess(base, 2 * granule, &access, 1));
    OK((cudaError_t)cuMemRelease(first));
    int *edge = (int *)(base + granule), seen[2];
    OK(TSR_LAUNCH(set, 1, 1, 0, 0, edge - 1, 5));
    OK(TSR_LAUNCH(set, 1, 1, 0, 0, edge, 6));
    OK(cudaMemcpy(seen, edge - 1, 8, cudaMemcpyDeviceToHost)); /* over both mappings */
    assert_int_equal(seen[0], 5);
    assert_int_equal(seen[1], 6);
    assert_int_equal(cudasim_used(0), 2 * granule);
    assert_int_equal(cuMemUnmap(base, 2 * granule), CUDA_ERROR_INVALID_VALUE); /* each by its own range */
    assert_string_not_equal(cudasim_violation(), "");
    cudasim_forget_violations();
    OK((cudaError_t)cuMemUnmap(base, granule));
    OK((cudaError_t)cuMemUnmap(base + granule, granule));
    assert_int_equal(cudasim_used(0), granule);
    OK((cudaError_t)cuMemRelease(second));
    OK((cudaError_t)cuMemAddressFree(base, 4 * granule));
}

/* -- order -- */

/* Two streams with two kernels each; over seeds, every interleaving that keeps each stream's
 * order is seen. */
static void streams_interleave_in_every_legal_order(void **)
{
    bool seen[64] = {};
    int distinct = 0;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        machine_of(1, seed);
        int *log, *n, order[4];
        cudaStream_t a, b;
        OK(cudaMalloc(&log, 16));
        OK(cudaMalloc(&n, 4));
        OK(cudaMemset(n, 0, 4));
        OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
        OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
        OK(TSR_LAUNCH(append, 1, 1, 0, a, log, n, 0));
        OK(TSR_LAUNCH(append, 1, 1, 0, a, log, n, 1));
        OK(TSR_LAUNCH(append, 1, 1, 0, b, log, n, 2));
        OK(TSR_LAUNCH(append, 1, 1, 0, b, log, n, 3));
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(order, log, 16, cudaMemcpyDeviceToHost));
        int at[4], key = 0;
        for (int i = 0; i < 4; i++)
            at[order[i]] = i;
        assert_true(at[0] < at[1] && at[2] < at[3]);
        for (int i = 0; i < 4; i++)
            key = key * 2 + (order[i] >= 2);
        distinct += !seen[key];
        seen[key] = true;
        OK(cudaStreamDestroy(a));
        OK(cudaStreamDestroy(b));
        OK(cudaFree(log));
        OK(cudaFree(n));
    }
    assert_int_equal(distinct, 6);
}

static void events_order_streams(void **)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        machine_of(2, seed);
        int *p, *q, value = 0;
        cudaStream_t a, b;
        cudaEvent_t event;
        OK(cudaMalloc(&p, 4));
        OK(cudaStreamCreate(&a));
        OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        OK(TSR_LAUNCH(set, 1, 1, 0, a, p, 42));
        OK(cudaEventRecord(event, a));
        OK(cudaSetDevice(1));
        OK(cudaDeviceEnablePeerAccess(0, 0));
        OK(cudaMalloc(&q, 4));
        OK(cudaStreamCreate(&b));
        OK(cudaStreamWaitEvent(b, event, 0));
        OK(TSR_LAUNCH(read_into, 1, 1, 0, b, q, p));
        OK(cudaMemcpyAsync(&value, q, 4, cudaMemcpyDeviceToHost, b));
        OK(cudaStreamSynchronize(b));
        assert_int_equal(value, 42);
        OK(cudaStreamDestroy(a));
        OK(cudaStreamDestroy(b));
        OK(cudaEventDestroy(event));
        OK(cudaFree(p));
        OK(cudaFree(q));
        OK(cudaSetDevice(0));
        assert_int_equal(cudasim_leaks(stderr), 0);
    }
}

/* A program that forgets the event between writer and reader is caught by some order, one that has it by
 * none. */
static void a_missing_event_shows_in_some_order(void **)
{
    int wrong[2] = {0, 0};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        for (int has_event = 0; has_event < 2; has_event++) {
            machine_of(1, seed);
            int *p, *q, value = 0;
            cudaStream_t a, b;
            cudaEvent_t event;
            OK(cudaMalloc(&p, 4));
            OK(cudaMalloc(&q, 4));
            OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
            OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
            OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
            OK(TSR_LAUNCH(set, 1, 1, 0, a, p, 42));
            OK(cudaEventRecord(event, a));
            if (has_event)
                OK(cudaStreamWaitEvent(b, event, 0));
            OK(TSR_LAUNCH(read_into, 1, 1, 0, b, q, p));
            OK(cudaDeviceSynchronize());
            OK(cudaMemcpy(&value, q, 4, cudaMemcpyDeviceToHost));
            wrong[has_event] += value != 42;
            OK(cudaStreamDestroy(a));
            OK(cudaStreamDestroy(b));
            OK(cudaEventDestroy(event));
            OK(cudaFree(p));
            OK(cudaFree(q));
        }
    }
    assert_true(wrong[0] > 5);
    assert_int_equal(wrong[1], 0);
}

/* What is between an allocation's end and the end of its page is looked at when it is freed. */
static void a_write_just_past_an_allocation_is_seen_when_it_is_freed(void **)
{
    int *p;
    OK(cudaMalloc(&p, 4));
    OK(TSR_LAUNCH(set, 1, 1, 0, 0, p + 1, 5));
    OK(cudaDeviceSynchronize());
    assert_string_equal(cudasim_violation(), "");
    OK(cudaFree(p));
    assert_non_null(strstr(cudasim_violation(), "past the end"));
}

/* As libtsr maps model files: neither host nor kernels may write. */
static void registered_read_only_memory_cannot_be_written(void **)
{
    int *host = (int *)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p, *q, value = 1;
    OK(cudaHostRegister(host, 4096, cudaHostRegisterMapped | cudaHostRegisterReadOnly));
    OK(cudaHostGetDevicePointer((void **)&p, host, 0));
    OK(cudaMalloc(&q, 4));
    OK(TSR_LAUNCH(read_into, 1, 1, 0, 0, q, p));
    OK(cudaMemcpy(&value, q, 4, cudaMemcpyDeviceToHost));
    assert_int_equal(value, 0);
    OK(TSR_LAUNCH(set, 1, 1, 0, 0, p, 5));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    assert_int_equal(cudaFree(q), cudaErrorIllegalAddress);
    OK(cudaHostUnregister(host));
    munmap(host, 4096);
}

/* A copy from pinned memory reads when its turn comes: a program that refills the buffer too early is caught
 * by some seed. */
static void copies_from_pinned_memory_are_late(void **)
{
    int late = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        machine_of(1, seed);
        int *pinned, *p, value;
        cudaStream_t stream;
        OK(cudaMallocHost(&pinned, 4));
        OK(cudaMalloc(&p, 4));
        OK(cudaStreamCreate(&stream));
        *pinned = 1;
        OK(cudaMemcpyAsync(p, pinned, 4, cudaMemcpyHostToDevice, stream));
        *pinned = 2;
        OK(cudaMemcpyAsync(&value, p, 4, cudaMemcpyDeviceToHost, stream));
        late += value == 2;
        OK(cudaStreamDestroy(stream));
        OK(cudaFree(p));
        OK(cudaFreeHost(pinned));
    }
    assert_true(late > 0);
}

/* Two devices exchange flags from inside their kernels: neither can finish without the other. */
__global__ void shake_hands(uint32_t *mine, uint32_t *theirs, int rounds)
{
    if (threadIdx.x == 0)
        for (uint32_t round = 1; round <= (uint32_t)rounds; round++) {
            tsr_store_release_u32(theirs, round);
            while (tsr_load_acquire_u32(mine) < round)
                tsr_spin_pause();
        }
    __syncthreads();
}

static void kernels_that_wait_for_a_peer_proceed(void **)
{
    uint32_t *flag[2];
    for (int device = 0; device < 2; device++) {
        OK(cudaSetDevice(device));
        OK(cudaDeviceEnablePeerAccess(1 - device, 0));
        OK(cudaMalloc(&flag[device], 4));
        OK(cudaMemset(flag[device], 0, 4));
    }
    for (int device = 0; device < 2; device++) {
        OK(cudaSetDevice(device));
        OK(TSR_LAUNCH(shake_hands, 1, 64, 0, 0, flag[device], flag[1 - device], 20));
    }
    for (int device = 0; device < 2; device++) {
        OK(cudaSetDevice(device));
        OK(cudaDeviceSynchronize());
        OK(cudaFree(flag[device]));
    }
    OK(cudaSetDevice(0));
}

static void a_kernel_that_waits_for_ever_is_ended(void **)
{
    uint32_t *flag;
    OK(cudaDeviceEnablePeerAccess(1, 0));
    OK(cudaMalloc(&flag, 8));
    OK(cudaMemset(flag, 0, 8));
    OK(TSR_LAUNCH(shake_hands, 1, 64, 0, 0, flag, flag + 1, 1));
    assert_int_equal(cudaStreamQuery(0), cudaErrorNotReady);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchTimeout);
    assert_non_null(strstr(cudasim_violation(), "shake_hands"));
    assert_int_equal(cudaFree(flag), cudaErrorLaunchTimeout);
}

__global__ void wait_for_flag(uint32_t *flag)
{
    while (tsr_load_acquire_u32(flag) == 0)
        tsr_spin_pause();
}

__global__ void raise_flag(uint32_t *flag)
{
    tsr_store_release_u32(flag, 1);
}

/* The code of a kernel that is not loaded yet is loaded by its first launch, which may wait for those that
 * run: here, for one that waits for it. */
static void a_kernel_loaded_while_another_waits_is_noticed(void **)
{
    for (int loaded = 0; loaded < 2; loaded++) {
        machine_of(1, 1);
        uint32_t *flag;
        cudaStream_t waiting, raising;
        cudaFuncAttributes attributes;
        OK(cudaMalloc(&flag, 4));
        OK(cudaMemset(flag, 0, 4));
        OK(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
        OK(cudaStreamCreateWithFlags(&raising, cudaStreamNonBlocking));
        if (loaded) {
            OK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(wait_for_flag)));
            OK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(raise_flag)));
        }
        OK(TSR_LAUNCH(wait_for_flag, 1, 1, 0, waiting, flag));
        for (int look = 0; look < 100; look++)
            assert_int_equal(cudaStreamQuery(waiting), cudaErrorNotReady);
        OK(TSR_LAUNCH(raise_flag, 1, 1, 0, raising, flag));
        OK(cudaStreamSynchronize(waiting));
        assert_int_equal(cudasim_late_loads(), loaded ? 0 : 2);
        assert_int_equal(strstr(cudasim_violation(), "raise_flag is loaded") != NULL, !loaded);
        OK(cudaStreamDestroy(waiting));
        OK(cudaStreamDestroy(raising));
        OK(cudaFree(flag));
    }
}

/* -- graphs -- */

__global__ void add(int *p, const int *amount)
{
    *p += *amount;
}

/* Captures a fork over two streams and replays it; parameters are read from memory at every launch. */
static void graphs_replay_what_was_captured(void **)
{
    int *p, *amount, value[2];
    cudaStream_t a, b;
    cudaEvent_t forked, joined;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaMalloc(&p, 8));
    OK(cudaMalloc(&amount, 4));
    OK(cudaMemset(p, 0, 8));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreate(&forked));
    OK(cudaEventCreate(&joined));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    OK(TSR_LAUNCH(add, 1, 1, 0, a, p, amount));
    OK(cudaEventRecord(forked, a));
    OK(cudaStreamWaitEvent(b, forked, 0));
    OK(TSR_LAUNCH(add, 1, 1, 0, b, p + 1, p));
    OK(cudaEventRecord(joined, b));
    OK(cudaStreamWaitEvent(a, joined, 0));
    OK(cudaStreamEndCapture(a, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    for (int step = 1; step <= 3; step++) {
        OK(cudaMemcpyAsync(amount, &step, 4, cudaMemcpyHostToDevice, a));
        OK(cudaGraphLaunch(exec, a));
    }
    OK(cudaMemcpyAsync(value, p, 8, cudaMemcpyDeviceToHost, a));
    assert_int_equal(value[0], 1 + 2 + 3);
    assert_int_equal(value[1], 1 + 3 + 6);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaEventDestroy(forked));
    OK(cudaEventDestroy(joined));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(p));
    OK(cudaFree(amount));
}

static double elapsed_us(cudaEvent_t begin, cudaEvent_t end)
{
    float ms;
    OK(cudaEventElapsedTime(&ms, begin, end));
    return round((double)ms * 1e3);
}

/* A graph with the times of its kernels: one of a device's own, and one in which both devices meet. */
static void events_tell_work_from_waiting(void **)
{
    uint32_t *flag[2];
    int *p[2];
    cudaStream_t stream[2];
    cudaEvent_t events[2][3];
    cudaGraphExec_t exec[2];
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaDeviceEnablePeerAccess(1 - d, 0));
        OK(cudaMalloc(&flag[d], 4));
        OK(cudaMemset(flag[d], 0, 4));
        OK(cudaMalloc(&p[d], 4));
        OK(cudaStreamCreate(&stream[d]));
        for (cudaEvent_t &event : events[d])
            OK(cudaEventCreate(&event));
    }
    OK(cudaDeviceSynchronize());
    cudasim_slow_device(1, 10);
    for (int d = 0; d < 2; d++) {
        cudaGraph_t graph;
        OK(cudaSetDevice(d));
        OK(cudaStreamBeginCapture(stream[d], cudaStreamCaptureModeRelaxed));
        OK(cudaEventRecordWithFlags(events[d][0], stream[d], cudaEventRecordExternal));
        OK(TSR_LAUNCH(set, 1, 1, 0, stream[d], p[d], 1));
        OK(cudaEventRecordWithFlags(events[d][1], stream[d], cudaEventRecordExternal));
        OK(TSR_LAUNCH(shake_hands, 1, 32, 0, stream[d], flag[d], flag[1 - d], 1));
        OK(cudaEventRecordWithFlags(events[d][2], stream[d], cudaEventRecordExternal));
        OK(cudaStreamEndCapture(stream[d], &graph));
        OK(cudaGraphInstantiate(&exec[d], graph, 0));
        OK(cudaGraphDestroy(graph));
        OK(cudaGraphLaunch(exec[d], stream[d]));
    }
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaStreamSynchronize(stream[d]));
    }
    assert_true(elapsed_us(events[0][0], events[0][1]) == 3);
    assert_true(elapsed_us(events[0][1], events[0][2]) == 27);
    assert_true(elapsed_us(events[1][0], events[1][1]) == 30);
    assert_true(elapsed_us(events[1][1], events[1][2]) == 30);
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaGraphExecDestroy(exec[d]));
        OK(cudaStreamDestroy(stream[d]));
        for (cudaEvent_t event : events[d])
            OK(cudaEventDestroy(event));
        OK(cudaFree(flag[d]));
        OK(cudaFree(p[d]));
    }
}

static void captures_refuse_what_cannot_be_captured(void **)
{
    cudaStream_t a, b;
    cudaEvent_t event;
    cudaGraph_t graph;
    int *p;
    void *q;
    OK(cudaMalloc(&p, 4));
    OK(cudaStreamCreate(&a));
    OK(cudaStreamCreate(&b));
    OK(cudaEventCreate(&event));

    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaStreamSynchronize(a), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(TSR_LAUNCH(set, 1, 1, 0, a, p, 1), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaMalloc(&q, 4), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    OK(cudaMalloc(&q, 4));
    OK(TSR_LAUNCH(set, 1, 1, 0, a, p, 1));
    OK(cudaEventRecord(event, a));
    assert_int_equal(cudaEventQuery(event), cudaErrorCapturedEvent);
    OK(cudaStreamWaitEvent(b, event, 0));
    OK(TSR_LAUNCH(set, 1, 1, 0, b, p, 2)); /* never joined */
    assert_int_equal(cudaStreamEndCapture(b, &graph), cudaErrorStreamCaptureUnmatched);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(event, a));
    OK(cudaStreamWaitEvent(b, event, 0));
    OK(TSR_LAUNCH(set, 1, 1, 0, b, p, 2));
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureUnjoined);

    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    assert_int_equal(TSR_LAUNCH(set, 1, 1, 0, 0, p, 2), cudaErrorStreamCaptureImplicit);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);

    OK(cudaFree(q));
    OK(cudaFree(p));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaEventDestroy(event));
}

/* -- faults -- */

static void any_call_can_be_made_to_fail(void **)
{
    void *p;
    cudasim_fail_named("cudaMalloc", 2, 0);
    OK(cudaMalloc(&p, 4));
    void *q;
    assert_int_equal(cudaMalloc(&q, 4), cudaErrorMemoryAllocation);
    cudasim_fail_call(cudasim_calls(), cudaErrorUnknown);
    assert_int_equal(cudaMemset(p, 0, 4), cudaErrorUnknown);
    cudasim_fail_named("cudaFree", 1, 0);
    assert_int_equal(cudaFree(p), cudaErrorUnknown); /* and yet it is free */
    assert_int_equal(cudasim_faults_hit(), 3);
    assert_string_equal(cudasim_call_name(cudasim_calls() - 1), "cudaFree");
}

static void a_failed_launch_loses_the_device(void **)
{
    int *p;
    OK(cudaMalloc(&p, 4));
    cudasim_fail_named("cudaLaunchKernel", 1, 0);
    assert_int_equal(TSR_LAUNCH(set, 1, 1, 0, 0, p, 1), cudaErrorLaunchFailure);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    assert_int_equal(cudaFree(p), cudaErrorLaunchFailure);
}

static void a_stalled_device_answers_not_ready(void **)
{
    int *p;
    OK(cudaMalloc(&p, 4));
    cudasim_stall_device(0, true);
    OK(TSR_LAUNCH(set, 1, 1, 0, 0, p, 1));
    for (int i = 0; i < 20; i++)
        assert_int_equal(cudaStreamQuery(0), cudaErrorNotReady);
    cudasim_stall_device(0, false);
    OK(cudaStreamSynchronize(0));
    OK(cudaFree(p));
}

static void a_machine_without_gpus_says_so(void **)
{
    machine_of(0, 1);
    int n = -1;
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    assert_int_equal(n, 0);
    void *p;
    assert_int_equal(cudaMalloc(&p, 4), cudaErrorNoDevice);
}

/* Handles of device memory are opened in other processes, by GPUs with peer access. */
static void another_process_opens_device_memory(void **)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    cudaIpcMemHandle_t handle;
    int *own, *value;
    void *opened = NULL, *again = NULL;
    config.n_devices = 3;
    cudasim_configure(&config);
    OK(cudaMalloc(&own, 4));
    OK(cudaIpcGetMemHandle(&handle, own));
    assert_int_equal(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
                     cudaErrorDeviceUninitialized); /* in the process that made it */
    (void)cudaGetLastError();
    OK(cudaFree(own));

    config.threads_are_processes = true;
    cudasim_configure(&config);
    cudasim_forbid_peer(0, 2);
    OK(cudaMalloc(&own, 4));
    OK(cudaIpcGetMemHandle(&handle, own));
    OK(cudaSetDevice(2));
    assert_int_equal(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
                     cudaErrorPeerAccessUnsupported);
    (void)cudaGetLastError();
    OK(cudaSetDevice(1));
    assert_int_equal(cudaIpcOpenMemHandle(&opened, handle, 0), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    OK(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess));
    assert_ptr_equal(opened, again);
    assert_ptr_not_equal(opened, own);
    OK(cudaMallocHost(&value, 4));
    OK(TSR_LAUNCH(set, dim3(1), dim3(1), 0, 0, (int *)opened, 77));
    OK(cudaDeviceSynchronize());
    OK(cudaSetDevice(0));
    OK(TSR_LAUNCH(read_into, dim3(1), dim3(1), 0, 0, value, own));
    OK(cudaDeviceSynchronize());
    assert_int_equal(*value, 77);
    OK(cudaFreeHost(value));
    OK(cudaIpcCloseMemHandle(again));
    OK(cudaIpcCloseMemHandle(opened));
    assert_int_equal(cudaIpcCloseMemHandle(opened), cudaErrorInvalidValue);
    assert_non_null(strstr(cudasim_violation(), "was not opened"));
    cudasim_forget_violations();
    (void)cudaGetLastError();
    OK(cudaFree(own));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, machine_of_two, nothing_left)

int main()
{
    const struct CMUnitTest tests[] = {
        TEST(memory_ends_at_the_cap),
        TEST(new_memory_is_full_of_nans),
        TEST(host_code_cannot_touch_device_memory),
        TEST(a_write_just_past_an_allocation_is_seen_when_it_is_freed),
        TEST(registered_read_only_memory_cannot_be_written),
        TEST(peers_need_access),
        TEST(another_process_opens_device_memory),
        TEST(virtual_memory_grows_without_moving),
        TEST(streams_interleave_in_every_legal_order),
        TEST(events_order_streams),
        TEST(a_missing_event_shows_in_some_order),
        TEST(copies_from_pinned_memory_are_late),
        TEST(kernels_that_wait_for_a_peer_proceed),
        TEST(a_kernel_that_waits_for_ever_is_ended),
        TEST(a_kernel_loaded_while_another_waits_is_noticed),
        TEST(graphs_replay_what_was_captured),
        TEST(events_tell_work_from_waiting),
        TEST(captures_refuse_what_cannot_be_captured),
        TEST(any_call_can_be_made_to_fail),
        TEST(a_failed_launch_loses_the_device),
        TEST(a_stalled_device_answers_not_ready),
        TEST(a_machine_without_gpus_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
