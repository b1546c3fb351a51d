/* The simulated NCCL: what its operations compute, and what it catches of wrong use. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_runtime.h>
#include <nccl.h>

#include "cuda/api/launch.h"
#include "cudasim.h"

enum { MAX_RANKS = 5, N = 100 };

#define OK(call)   assert_int_equal(call, cudaSuccess)
#define NCCL(call) assert_int_equal(call, ncclSuccess)

static struct {
    int n;
    ncclComm_t comms[MAX_RANKS];
    cudaStream_t streams[MAX_RANKS];
    int64_t *buffers[MAX_RANKS]; /* [2 * MAX_RANKS * N] */
} all;

static void machine_of(int n_devices, int version)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = (size_t)4 << 20;
    config.hang_ms = 300;
    config.nccl_version = version;
    cudasim_configure(&config);
}

static int machine_of_three(void **)
{
    machine_of(3, NCCL_VERSION(2, 28, 9));
    return 0;
}

static int nothing_left(void **)
{
    return cudasim_leaks(stderr);
}

static void wait_ready()
{
    for (int i = 0; i < all.n; i++) {
        ncclResult_t state = ncclInProgress;
        while (state == ncclInProgress)
            NCCL(ncclCommGetAsyncError(all.comms[i], &state));
        NCCL(state);
    }
}

static void connect(int n, bool blocking)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    all.n = n;
    NCCL(ncclGetUniqueId(&id));
    NCCL(ncclGroupStart());
    for (int i = 0; i < n; i++) {
        OK(cudaSetDevice(i));
        OK(cudaStreamCreateWithFlags(&all.streams[i], cudaStreamNonBlocking));
        OK(cudaMalloc((void **)&all.buffers[i], 2 * MAX_RANKS * N * sizeof(int64_t)));
        NCCL(ncclCommInitRankConfig(&all.comms[i], n, id, i, &config));
    }
    assert_int_equal(ncclGroupEnd(), blocking ? ncclSuccess : ncclInProgress);
    wait_ready();
}

static void close_all()
{
    for (int i = 0; i < all.n; i++) {
        if (all.comms[i] != NULL)
            NCCL(ncclCommAbort(all.comms[i]));
        all.comms[i] = NULL;
        OK(cudaSetDevice(i));
        OK(cudaFree(all.buffers[i]));
        OK(cudaStreamDestroy(all.streams[i]));
    }
}

static void expect_violation(const char *part)
{
    if (strstr(cudasim_violation(), part) == NULL)
        fail_msg("'%s' is not in '%s'", part, cudasim_violation());
    cudasim_forget_violations();
}

static void put(int rank, const void *values, size_t bytes)
{
    OK(cudaSetDevice(rank));
    OK(cudaMemcpy(all.buffers[rank], values, bytes, cudaMemcpyHostToDevice));
}

static void get(int rank, void *values, size_t bytes)
{
    OK(cudaStreamSynchronize(all.streams[rank]));
    OK(cudaMemcpy(values, all.buffers[rank], bytes, cudaMemcpyDeviceToHost));
}

static ncclResult_t sum(int rank, size_t count)
{
    return ncclAllReduce(all.buffers[rank], all.buffers[rank], count, ncclInt64, ncclSum, all.comms[rank],
                         all.streams[rank]);
}

/* -- results -- */

static void sums_are_sums(void **)
{
    connect(3, true);
    for (int i = 0; i < 3; i++) {
        int64_t values[N];
        for (int k = 0; k < N; k++)
            values[k] = ((int64_t)1 << 40) * (i - 1) * k + i;
        put(i, values, sizeof values);
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < 3; i++)
        NCCL(sum(i, N));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < 3; i++) {
        int64_t values[N];
        get(i, values, sizeof values);
        for (int k = 0; k < N; k++)
            assert_true(values[k] == 3);
    }
    close_all();
    assert_string_equal(cudasim_violation(), "");
}

static void types_and_operations(void **)
{
    connect(2, true);
    const float a[2] = {1.5f, -2.0f}, b[2] = {0.25f, 8.0f};
    static const struct {
        ncclRedOp_t op;
        float want[2];
    } cases[] = {{ncclSum, {1.75f, 6.0f}},
                 {ncclProd, {0.375f, -16.0f}},
                 {ncclMax, {1.5f, 8.0f}},
                 {ncclMin, {0.25f, -2.0f}}};
    for (const auto &c : cases) {
        put(0, a, sizeof a);
        put(1, b, sizeof b);
        NCCL(ncclGroupStart());
        for (int i = 0; i < 2; i++)
            NCCL(ncclAllReduce(all.buffers[i], all.buffers[i], 2, ncclFloat32, c.op, all.comms[i],
                               all.streams[i]));
        NCCL(ncclGroupEnd());
        float got[2];
        get(1, got, sizeof got);
        assert_memory_equal(got, c.want, sizeof got);
    }
    close_all();
}

static void broadcasts_gathers_and_pairs(void **)
{
    connect(3, true);
    for (int i = 0; i < 3; i++) {
        const int64_t mine[2] = {i + 1, 10 * (i + 1)};
        put(i, mine, sizeof mine);
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < 3; i++)
        NCCL(ncclAllGather(all.buffers[i], all.buffers[i] + N, 2, ncclInt64, all.comms[i], all.streams[i]));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    for (int i = 0; i < 3; i++)
        NCCL(
            ncclBroadcast(all.buffers[i], all.buffers[i] + 2, 2, ncclInt64, 1, all.comms[i], all.streams[i]));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart()); /* around the ring */
    for (int i = 0; i < 3; i++) {
        NCCL(ncclSend(all.buffers[i], 1, ncclInt64, (i + 1) % 3, all.comms[i], all.streams[i]));
        NCCL(ncclRecv(all.buffers[i] + 4, 1, ncclInt64, (i + 2) % 3, all.comms[i], all.streams[i]));
    }
    NCCL(ncclGroupEnd());
    for (int i = 0; i < 3; i++) {
        int64_t got[N + 6];
        get(i, got, sizeof got);
        static const int64_t gathered[] = {1, 10, 2, 20, 3, 30};
        assert_memory_equal(got + N, gathered, sizeof gathered);
        assert_true(got[2] == 2 && got[3] == 20);
        assert_true(got[4] == (i + 2) % 3 + 1);
    }
    close_all();
    assert_string_equal(cudasim_violation(), "");
}

/* -- rules -- */

static void ranks_must_agree(void **)
{
    connect(3, true);
    NCCL(ncclGroupStart());
    for (int i = 0; i < 3; i++)
        NCCL(sum(i, i == 1 ? N - 1 : N));
    NCCL(ncclGroupEnd());
    ncclResult_t state = ncclSuccess;
    for (int tries = 0; state == ncclSuccess && tries < 1000; tries++) {
        (void)cudaStreamQuery(all.streams[0]);
        NCCL(ncclCommGetAsyncError(all.comms[0], &state));
    }
    assert_int_equal(state, ncclInvalidUsage);
    expect_violation("rank");
    close_all();
}

static void one_thread_groups_its_ranks(void **)
{
    connect(2, false);
    assert_int_equal(sum(0, N), ncclInProgress);
    assert_int_equal(sum(1, N), ncclInvalidUsage);
    expect_violation("outside a group");
    close_all();
}

static void calls_of_a_nonblocking_communicator_take_effect_later(void **)
{
    connect(2, false);
    const int64_t five = 5;
    put(0, &five, sizeof five);
    put(1, &five, sizeof five);
    NCCL(ncclGroupStart());
    NCCL(sum(0, 1));
    NCCL(sum(1, 1));
    assert_int_equal(ncclGroupEnd(), ncclInProgress);
    assert_int_equal(sum(0, 1), ncclInvalidArgument); /* too early */
    expect_violation("before its last call has ended");
    OK(cudaSetDevice(1));
    OK(cudaMemsetAsync(all.buffers[1] + 1, 0, 8, all.streams[1])); /* too early, too */
    expect_violation("before a non-blocking NCCL call there has ended");
    wait_ready();
    int64_t got = 0;
    get(1, &got, sizeof got);
    assert_true(got == 10);
    close_all();
    assert_string_equal(cudasim_violation(), "");
}

/* The first collective is not enqueued anywhere until all ranks have called one. */
static void the_first_collective_connects_all(void **)
{
    connect(2, false);
    ncclResult_t state;
    assert_int_equal(sum(0, N), ncclInProgress);
    for (int tries = 0; tries < 50; tries++) {
        NCCL(ncclCommGetAsyncError(all.comms[0], &state));
        assert_int_equal(state, ncclInProgress);
    }
    close_all();
    assert_string_equal(cudasim_violation(), "");
}

static void blocking_and_nonblocking_do_not_mix(void **)
{
    connect(1, true);
    ncclComm_t blocking = all.comms[0];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t other;
    config.blocking = 0;
    NCCL(ncclGetUniqueId(&id));
    assert_int_equal(ncclCommInitRankConfig(&other, 1, id, 0, &config), ncclInProgress);
    ncclResult_t state;
    NCCL(ncclCommGetAsyncError(other, &state));
    NCCL(state);
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(all.buffers[0], all.buffers[0], 1, ncclInt64, ncclSum, blocking, all.streams[0]));
    NCCL(ncclAllReduce(all.buffers[0], all.buffers[0], 1, ncclInt64, ncclSum, other, all.streams[0]));
    assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
    expect_violation("in one group");
    NCCL(ncclCommAbort(other));
    close_all();
}

static void options_that_are_not_simulated_are_caught(void **)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER, wrong = {};
    ncclUniqueId id;
    ncclComm_t comm;
    NCCL(ncclGetUniqueId(&id));
    assert_int_equal(ncclCommInitRankConfig(&comm, 1, id, 0, &wrong), ncclInvalidArgument);
    config.maxCTAs = 4;
    NCCL(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    expect_violation("not simulated");
    NCCL(ncclCommDestroy(comm));
}

static void a_gpu_has_one_rank_unless_that_is_allowed(void **)
{
    static const int twice[] = {0, 0};
    ncclComm_t comms[2];
    assert_int_equal(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
    assert_non_null(strstr(ncclGetLastError(NULL), "Duplicate GPU"));
    machine_of(1, NCCL_VERSION(2, 30, 0));
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    assert_int_equal(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    NCCL(ncclCommInitAll(comms, 2, twice));
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    NCCL(ncclCommDestroy(comms[0]));
    NCCL(ncclCommDestroy(comms[1]));
    assert_int_equal(ncclCommDestroy(comms[1]), ncclInvalidArgument);
    expect_violation("no such communicator");
}

/* -- graphs -- */

static cudaGraphExec_t capture_sum(int rank)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaSetDevice(rank));
    OK(cudaStreamEndCapture(all.streams[rank], &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    return exec;
}

/* The sum of ranks 0 to n - 1 is captured by the first n_captured of them. */
static void issue_sum(int n_captured)
{
    for (int i = 0; i < n_captured; i++)
        OK(cudaStreamBeginCapture(all.streams[i], cudaStreamCaptureModeRelaxed));
    NCCL(ncclGroupStart());
    for (int i = 0; i < all.n; i++)
        NCCL(sum(i, 1));
    NCCL(ncclGroupEnd());
}

static void a_captured_collective_is_replayed(void **)
{
    const int64_t one = 1;
    cudaGraphExec_t execs[2];
    connect(2, true);
    issue_sum(2);
    for (int i = 0; i < 2; i++)
        execs[i] = capture_sum(i);
    put(0, &one, sizeof one);
    put(1, &one, sizeof one);
    for (int64_t run = 1; run < 4; run++) {
        for (int i = 0; i < 2; i++)
            OK(cudaGraphLaunch(execs[i], all.streams[i]));
        for (int i = 0; i < 2; i++) {
            int64_t got = 0;
            get(i, &got, sizeof got);
            assert_true(got == (int64_t)1 << run);
        }
    }
    for (int i = 0; i < 2; i++)
        OK(cudaGraphExecDestroy(execs[i]));
    close_all();
    assert_string_equal(cudasim_violation(), "");
}

static void all_ranks_capture_or_none(void **)
{
    connect(2, true);
    issue_sum(1);
    cudaGraphExec_t exec = capture_sum(0);
    OK(cudaGraphLaunch(exec, all.streams[0]));
    for (int tries = 0; cudasim_violations() == 0 && tries < 1000; tries++)
        for (int i = 0; i < 2; i++)
            (void)cudaStreamQuery(all.streams[i]);
    expect_violation("in a graph");
    OK(cudaGraphExecDestroy(exec));
    close_all();
}

static void a_graph_outlives_no_communicator(void **)
{
    connect(1, true);
    issue_sum(1);
    cudaGraphExec_t exec = capture_sum(0);
    NCCL(ncclCommDestroy(all.comms[0]));
    expect_violation("a graph still has operations");
    all.comms[0] = NULL;
    OK(cudaGraphExecDestroy(exec));
    close_all();
}

static void *abort_rank(void *comm)
{
    assert_int_equal(ncclCommAbort((ncclComm_t)comm), ncclSuccess);
    return NULL;
}

/* The last abort returns when the graphs are gone; until then they may be launched, and end at once. */
static void the_last_abort_waits_for_graphs(void **)
{
    connect(2, true);
    cudaGraphExec_t execs[2];
    issue_sum(2);
    for (int i = 0; i < 2; i++)
        execs[i] = capture_sum(i);
    OK(cudaGraphLaunch(execs[0], all.streams[0])); /* waits for the other rank */
    NCCL(ncclCommAbort(all.comms[0]));
    OK(cudaStreamSynchronize(all.streams[0]));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, abort_rank, all.comms[1]), 0);
    while (cudasim_calls_of("ncclCommAbort") < 2)
        usleep(100);
    OK(cudaGraphLaunch(execs[1], all.streams[1]));
    OK(cudaStreamSynchronize(all.streams[1]));
    assert_true(cudasim_used(0) > 2 * MAX_RANKS * N * sizeof(int64_t)); /* NCCL's memory is still there */
    for (int i = 0; i < 2; i++)
        OK(cudaGraphExecDestroy(execs[i]));
    pthread_join(thread, NULL);
    all.comms[0] = all.comms[1] = NULL;
    close_all();
    assert_string_equal(cudasim_violation(), "");
}

/* -- trouble -- */

static void an_absent_rank_keeps_the_others_waiting(void **)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t comms[2];
    ncclResult_t state;
    config.blocking = 0;
    NCCL(ncclGetUniqueId(&id));
    cudasim_nccl_absent(1, true);
    NCCL(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        OK(cudaSetDevice(i));
        NCCL(ncclCommInitRankConfig(&comms[i], 2, id, i, &config));
    }
    assert_int_equal(ncclGroupEnd(), ncclInProgress);
    for (int tries = 0; tries < 50; tries++) {
        NCCL(ncclCommGetAsyncError(comms[0], &state));
        assert_int_equal(state, ncclInProgress);
    }
    cudasim_nccl_absent(1, false);
    NCCL(ncclCommGetAsyncError(comms[0], &state));
    NCCL(state);
    NCCL(ncclCommAbort(comms[0]));
    NCCL(ncclCommAbort(comms[1]));
}

static void an_asynchronous_error_is_told_and_ended_by_abort(void **)
{
    connect(2, true);
    cudasim_nccl_async_error(1, ncclRemoteError);
    NCCL(ncclGroupStart());
    NCCL(sum(0, N));
    NCCL(sum(1, N));
    NCCL(ncclGroupEnd());
    ncclResult_t state;
    NCCL(ncclCommGetAsyncError(all.comms[1], &state));
    assert_int_equal(state, ncclRemoteError);
    for (int tries = 0; tries < 20; tries++)
        assert_int_equal(cudaStreamQuery(all.streams[0]), cudaErrorNotReady);
    for (int i = 0; i < 2; i++) {
        NCCL(ncclCommAbort(all.comms[i]));
        all.comms[i] = NULL;
    }
    OK(cudaStreamSynchronize(all.streams[0]));
    close_all();
    assert_string_equal(cudasim_violation(), "");
}

static void any_call_can_be_made_to_fail(void **)
{
    connect(1, false);
    ncclResult_t state;
    cudasim_fail_named("ncclCommGetAsyncError", 1, ncclInternalError);
    assert_int_equal(ncclCommGetAsyncError(all.comms[0], &state), ncclInternalError);
    cudasim_fail_named("ncclAllReduce", 1, 0);
    assert_int_equal(sum(0, 1), ncclSystemError);
    cudasim_fail_named("ncclGroupEnd", 1, ncclUnhandledCudaError);
    NCCL(ncclGroupStart());
    NCCL(sum(0, 1));
    assert_int_equal(ncclGroupEnd(), ncclUnhandledCudaError);
    wait_ready();
    NCCL(ncclGroupStart());
    NCCL(ncclGroupEnd());
    assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
    expect_violation("without ncclGroupStart");
    close_all();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, machine_of_three, nothing_left)

int main()
{
    const struct CMUnitTest tests[] = {
        TEST(sums_are_sums),
        TEST(types_and_operations),
        TEST(broadcasts_gathers_and_pairs),
        TEST(ranks_must_agree),
        TEST(one_thread_groups_its_ranks),
        TEST(calls_of_a_nonblocking_communicator_take_effect_later),
        TEST(the_first_collective_connects_all),
        TEST(blocking_and_nonblocking_do_not_mix),
        TEST(options_that_are_not_simulated_are_caught),
        TEST(a_gpu_has_one_rank_unless_that_is_allowed),
        TEST(a_captured_collective_is_replayed),
        TEST(all_ranks_capture_or_none),
        TEST(a_graph_outlives_no_communicator),
        TEST(the_last_abort_waits_for_graphs),
        TEST(an_absent_rank_keeps_the_others_waiting),
        TEST(an_asynchronous_error_is_told_and_ended_by_abort),
        TEST(any_call_can_be_made_to_fail),
    };
    return cmocka_run_group_tests_name("the simulated NCCL", tests, NULL, NULL);
}
