/* How ranks of the simulated NCCL reach each other: straight into each other's buffers where messages are
 * large, which faults where a buffer was not opened to the writer, or through the host's shared memory, which
 * may be missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include "cudasim.h"

enum { N_RANKS = 3, BUFFER = 4 << 20, SMALL = 1024, LARGE = BUFFER / 8 };

#define OK(call)   assert_int_equal(call, cudaSuccess)
#define CU(call)   assert_int_equal(call, CUDA_SUCCESS)
#define NCCL(call) assert_int_equal(call, ncclSuccess)

static struct {
    ncclComm_t comms[N_RANKS];
    cudaStream_t streams[N_RANKS];
    CUdeviceptr buffers[N_RANKS];
} all;

static void machine_of(int version)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = N_RANKS;
    config.memory = (size_t)16 << 20;
    config.hang_ms = 300;
    config.nccl_version = version;
    cudasim_configure(&config);
}

static void open_to(CUdeviceptr buffer, int device)
{
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CU(cuMemSetAccess(buffer, BUFFER, &access, 1));
}

/* Mapped memory on every device, for itself. */
static void start()
{
    for (int i = 0; i < N_RANKS; i++) {
        CUmemAllocationProp prop = {};
        CUmemGenericAllocationHandle handle;
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop.location.id = i;
        OK(cudaSetDevice(i));
        OK(cudaStreamCreateWithFlags(&all.streams[i], cudaStreamNonBlocking));
        CU(cuMemAddressReserve(&all.buffers[i], BUFFER, 0, 0, 0));
        CU(cuMemCreate(&handle, BUFFER, &prop, 0));
        CU(cuMemMap(all.buffers[i], BUFFER, 0, handle, 0));
        CU(cuMemRelease(handle));
        open_to(all.buffers[i], i);
    }
}

static void connect()
{
    ncclUniqueId id;
    NCCL(ncclGetUniqueId(&id));
    NCCL(ncclGroupStart());
    for (int i = 0; i < N_RANKS; i++) {
        OK(cudaSetDevice(i));
        NCCL(ncclCommInitRank(&all.comms[i], N_RANKS, id, i));
    }
    NCCL(ncclGroupEnd());
}

static ncclResult_t sum(size_t count)
{
    NCCL(ncclGroupStart());
    for (int i = 0; i < N_RANKS; i++)
        NCCL(ncclAllReduce((void *)all.buffers[i], (void *)all.buffers[i], count, ncclInt64, ncclSum,
                           all.comms[i], all.streams[i]));
    return ncclGroupEnd();
}

static cudaError_t wait_all()
{
    cudaError_t first = cudaSuccess;
    for (int i = 0; i < N_RANKS; i++) {
        cudaError_t error = cudaStreamSynchronize(all.streams[i]);
        first = first == cudaSuccess ? error : first;
    }
    return first;
}

static void stop()
{
    for (int i = 0; i < N_RANKS; i++)
        NCCL(ncclCommAbort(all.comms[i]));
    for (int i = 0; i < N_RANKS; i++) {
        OK(cudaSetDevice(i));
        CU(cuMemUnmap(all.buffers[i], BUFFER));
        CU(cuMemAddressFree(all.buffers[i], BUFFER));
        OK(cudaStreamDestroy(all.streams[i]));
    }
    assert_int_equal(cudasim_leaks(stderr), 0);
    assert_string_equal(cudasim_violation(), "");
}

static void large_messages_fault_in_buffers_that_are_not_open(void **)
{
    machine_of(NCCL_VERSION(2, 21, 5));
    start();
    connect();
    NCCL(sum(SMALL));
    OK(wait_all());
    for (int i = 0; i < N_RANKS; i++)
        for (int j = 0; j < N_RANKS; j++)
            if (i != 1 || j != 2)
                open_to(all.buffers[i], j);
    NCCL(sum(LARGE));
    assert_int_equal(wait_all(), cudaErrorIllegalAddress);
    assert_non_null(strstr(cudasim_violation(), "device 2 writes 4194304 bytes straight into a buffer of "
                                                "device 1"));
    OK(cudaSetDevice(0));
    cudaEvent_t event;
    OK(cudaEventCreate(&event)); /* only the writer is lost */
    OK(cudaEventDestroy(event));
    assert_int_equal(cudaSetDevice(2), cudaErrorIllegalAddress);
}

static void open_buffers_later_versions_and_the_switch_are_well(void **)
{
    for (int way = 0; way < 4; way++) {
        machine_of(way == 1 ? NCCL_VERSION(2, 23, 4) : NCCL_VERSION(2, 22, 3));
        if (way == 2)
            setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
        for (int i = 1; i < N_RANKS && way == 3; i++)
            for (int j = 0; j < i; j++)
                cudasim_forbid_peer(i, j);
        start();
        for (int i = 0; i < N_RANKS && way == 0; i++)
            for (int j = 0; j < N_RANKS; j++)
                open_to(all.buffers[i], j);
        connect();
        NCCL(sum(LARGE));
        OK(wait_all());
        stop();
        unsetenv("NCCL_P2P_DIRECT_DISABLE");
    }
}

static void without_shared_memory_ranks_without_peer_access_do_not_connect(void **)
{
    for (int room = 0; room < 3; room++) {
        machine_of(NCCL_VERSION(2, 28, 9));
        cudasim_forbid_peer(0, 2);
        cudasim_nccl_shared_memory(room);
        start();
        connect();
        assert_int_equal(sum(SMALL), room > 0 ? ncclSuccess : ncclSystemError);
        assert_int_equal(sum(LARGE), room > 1 ? ncclSuccess : ncclSystemError);
        assert_int_equal(strstr(ncclGetLastError(NULL), "/dev/shm") != NULL, room < 2);
        stop();
    }
    machine_of(NCCL_VERSION(2, 28, 9)); /* with peer access nothing is needed */
    cudasim_nccl_shared_memory(0);
    start();
    connect();
    NCCL(sum(LARGE));
    OK(wait_all());
    stop();
}

static void a_capture_can_be_refused(void **)
{
    cudaGraph_t graph = NULL;
    machine_of(NCCL_VERSION(2, 28, 9));
    cudasim_nccl_refuse_capture();
    start();
    connect();
    NCCL(sum(SMALL));
    OK(wait_all());
    OK(cudaSetDevice(0));
    OK(cudaStreamBeginCapture(all.streams[0], cudaStreamCaptureModeRelaxed));
    assert_int_equal(ncclAllReduce((void *)all.buffers[0], (void *)all.buffers[0], SMALL, ncclInt64, ncclSum,
                                   all.comms[0], all.streams[0]),
                     ncclInvalidUsage);
    assert_int_equal(cudaStreamEndCapture(all.streams[0], &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
    (void)cudaGetLastError();
    stop();
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_messages_fault_in_buffers_that_are_not_open),
        cmocka_unit_test(open_buffers_later_versions_and_the_switch_are_well),
        cmocka_unit_test(without_shared_memory_ranks_without_peer_access_do_not_connect),
        cmocka_unit_test(a_capture_can_be_refused),
    };
    return cmocka_run_group_tests_name("the links of the simulated NCCL", tests, NULL, NULL);
}
