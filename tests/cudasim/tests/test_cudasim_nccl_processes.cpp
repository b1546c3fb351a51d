/* The simulated NCCL between processes of the operating system, each with a machine of its own: process 0 has
 * ranks 0 and 1 on two GPUs, process 1 has rank 2. The parent uses no CUDA, so that it can fork. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_runtime.h>
#include <nccl.h>

#include "cudasim.h"

enum { N_RANKS = 3, N = 1000, BUFFER_BYTES = 2 << 20 };

/* In a child a failure ends the process, and the parent's test fails. */
#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: process %d: %s\n", __FILE__, __LINE__, self.index, #condition); \
            _exit(1);                                                                               \
        }                                                                                           \
    } while (0)
#define OK(call) CHECK((call) == 0)

static struct {
    int index, n, first; /* of this process: ranks first to first + n - 1, on GPUs 0 to n - 1 */
    int pipe[2];         /* process 0 writes, process 1 reads */
    ncclUniqueId id;
    ncclComm_t comms[2];
    cudaStream_t streams[2];
    int64_t *buffers[2];
} self;

static void start()
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = 2;
    config.memory = (size_t)16 << 20;
    cudasim_configure(&config);
    self.n = self.index == 0 ? 2 : 1;
    self.first = 2 * self.index;
    for (int i = 0; i < self.n; i++) {
        OK(cudaSetDevice(i));
        OK(cudaStreamCreateWithFlags(&self.streams[i], cudaStreamNonBlocking));
        OK(cudaMalloc((void **)&self.buffers[i], BUFFER_BYTES));
    }
}

static void share_id()
{
    if (self.index == 0) {
        OK(ncclGetUniqueId(&self.id));
        CHECK(write(self.pipe[1], &self.id, sizeof self.id) == sizeof self.id);
    } else
        CHECK(read(self.pipe[0], &self.id, sizeof self.id) == sizeof self.id);
}

static ncclResult_t join(int n_ranks, int first)
{
    OK(ncclGroupStart());
    for (int i = 0; i < self.n; i++) {
        OK(cudaSetDevice(i));
        const ncclResult_t result = ncclCommInitRank(&self.comms[i], n_ranks, self.id, first + i);
        if (result != ncclSuccess) {
            (void)ncclGroupEnd();
            return result;
        }
    }
    return ncclGroupEnd();
}

static void connect()
{
    start();
    share_id();
    OK(join(N_RANKS, self.first));
}

static void close_all()
{
    for (int i = 0; i < self.n; i++) {
        if (self.comms[i] != NULL)
            OK(ncclCommAbort(self.comms[i]));
        OK(cudaSetDevice(i));
        OK(cudaStreamSynchronize(self.streams[i]));
        OK(cudaFree(self.buffers[i]));
        OK(cudaStreamDestroy(self.streams[i]));
    }
    OK(cudasim_leaks(stderr));
}

/* Run `body` in both processes. how[i]: what waitpid() reports of process i. */
static void run(void (*body)(), int *how)
{
    pid_t children[2];
    assert_int_equal(pipe(self.pipe), 0);
    fflush(NULL);
    for (self.index = 0; self.index < 2; self.index++) {
        children[self.index] = fork();
        assert_true(children[self.index] >= 0);
        if (children[self.index] == 0) {
            body();
            _exit(0);
        }
    }
    close(self.pipe[0]);
    close(self.pipe[1]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(waitpid(children[i], &how[i], 0), children[i]);
}

static void run_well(void (*body)())
{
    int how[2];
    run(body, how);
    assert_int_equal(how[0], 0);
    assert_int_equal(how[1], 0);
}

/* -- results -- */

static int64_t value(int rank, int i)
{
    return ((int64_t)1 << 40) * (rank - 1) * i + 3 * rank + i;
}

static void fill()
{
    static int64_t values[N_RANKS * N];
    for (int i = 0; i < self.n; i++) {
        for (int k = 0; k < N_RANKS * N; k++)
            values[k] = value(self.first + i, k);
        OK(cudaSetDevice(i));
        OK(cudaMemcpy(self.buffers[i], values, sizeof values, cudaMemcpyHostToDevice));
    }
}

static const int64_t *result(int i)
{
    static int64_t values[N_RANKS * N];
    OK(cudaStreamSynchronize(self.streams[i]));
    OK(cudaSetDevice(i));
    OK(cudaMemcpy(values, self.buffers[i], sizeof values, cudaMemcpyDeviceToHost));
    return values;
}

/* All ranks of the process call one thing, and get expect(rank, k) for value k. */
static void compare(ncclResult_t (*call)(int i, int rank), int n_values, int64_t (*expect)(int rank, int k))
{
    fill();
    OK(ncclGroupStart());
    for (int i = 0; i < self.n; i++)
        OK(call(i, self.first + i));
    OK(ncclGroupEnd());
    for (int i = 0; i < self.n; i++) {
        const int64_t *values = result(i);
        for (int k = 0; k < n_values; k++)
            CHECK(values[k] == expect(self.first + i, k));
    }
}

static ncclResult_t sum(int i, size_t count)
{
    return ncclAllReduce(self.buffers[i], self.buffers[i], count, ncclInt64, ncclSum, self.comms[i],
                         self.streams[i]);
}

static int64_t sum_of_all(int, int k)
{
    return value(0, k) + value(1, k) + value(2, k);
}

/* Rank r sends N values to rank r + 1, and has those of rank r - 1 behind them. */
static ncclResult_t pass_on(int i, int rank)
{
    ncclResult_t sent =
        ncclSend(self.buffers[i], N, ncclInt64, (rank + 1) % N_RANKS, self.comms[i], self.streams[i]);
    return sent != ncclSuccess ? sent
                               : ncclRecv(self.buffers[i] + N, N, ncclInt64, (rank + 2) % N_RANKS,
                                          self.comms[i], self.streams[i]);
}

static void call_all_operations()
{
    connect();
    compare([](int i, int) { return sum(i, N); }, N, sum_of_all);
    compare(
        [](int i, int) {
            return ncclReduce(self.buffers[i], self.buffers[i], N, ncclInt64, ncclMax, 1, self.comms[i],
                              self.streams[i]);
        },
        N, [](int rank, int k) { return rank == 1 ? value(2, k) : value(rank, k); });
    compare(
        [](int i, int) {
            return ncclBroadcast(self.buffers[i], self.buffers[i], N, ncclInt64, 2, self.comms[i],
                                 self.streams[i]);
        },
        N, [](int, int k) { return value(2, k); });
    compare(
        [](int i, int) {
            return ncclAllGather(self.buffers[i], self.buffers[i], N, ncclInt64, self.comms[i],
                                 self.streams[i]);
        },
        N_RANKS * N, [](int, int k) { return value(k / N, k % N); });
    compare(
        [](int i, int) {
            return ncclReduceScatter(self.buffers[i], self.buffers[i], N, ncclInt64, ncclSum, self.comms[i],
                                     self.streams[i]);
        },
        N, [](int rank, int k) { return sum_of_all(0, rank * N + k); });
    compare(pass_on, 2 * N,
            [](int rank, int k) { return k < N ? value(rank, k) : value((rank + 2) % N_RANKS, k - N); });
    OK(strcmp(cudasim_violation(), ""));
    close_all();
}

static void operations_are_between_all_processes(void **)
{
    run_well(call_all_operations);
}

/* Every replay adds again: 1, 3, 9, ... */
static void replay_sums()
{
    enum { REPLAYS = 6 };
    cudaGraph_t graphs[2];
    cudaGraphExec_t execs[2];
    const int64_t one = 1;
    connect();
    compare([](int i, int) { return sum(i, N); }, N, sum_of_all);
    for (int i = 0; i < self.n; i++)
        OK(cudaStreamBeginCapture(self.streams[i], cudaStreamCaptureModeRelaxed));
    OK(ncclGroupStart());
    for (int i = 0; i < self.n; i++)
        OK(sum(i, 1));
    OK(ncclGroupEnd());
    for (int i = 0; i < self.n; i++) {
        OK(cudaSetDevice(i));
        OK(cudaStreamEndCapture(self.streams[i], &graphs[i]));
        OK(cudaGraphInstantiate(&execs[i], graphs[i], 0));
        OK(cudaMemcpy(self.buffers[i], &one, sizeof one, cudaMemcpyHostToDevice));
    }
    for (int n = 0; n < REPLAYS; n++)
        for (int i = 0; i < self.n; i++)
            OK(cudaGraphLaunch(execs[i], self.streams[i]));
    for (int i = 0; i < self.n; i++) {
        CHECK(*result(i) == 729);
        OK(cudaGraphExecDestroy(execs[i]));
        OK(cudaGraphDestroy(graphs[i]));
    }
    OK(strcmp(cudasim_violation(), ""));
    close_all();
}

static void captured_sums_are_replayed(void **)
{
    run_well(replay_sums);
}

/* Bytes of memory that this process's file of the communicator has. */
static size_t bytes_of_segment()
{
    for (int fd = 3; fd < 256; fd++) {
        char path[64], name[64] = "";
        struct stat about;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, name, sizeof name - 1) > 0 && strstr(name, "cudasim-nccl") &&
            fstat(fd, &about) == 0)
            return (size_t)about.st_blocks * 512;
    }
    return 0;
}

static void sum_much()
{
    enum { SUMS = 40, VALUES = (1 << 20) / sizeof(int64_t) };
    connect();
    for (int n = 0; n < SUMS; n++) {
        OK(ncclGroupStart());
        for (int i = 0; i < self.n; i++)
            OK(sum(i, VALUES));
        OK(ncclGroupEnd());
        for (int i = 0; i < self.n; i++)
            OK(cudaStreamSynchronize(self.streams[i]));
    }
    CHECK(bytes_of_segment() > 0);
    CHECK(bytes_of_segment() < SUMS * (size_t)(1 << 20) / 2); /* all ranks sent three times that many */
    close_all();
}

static void what_all_have_read_takes_no_memory(void **)
{
    run_well(sum_much);
}

/* -- wrong use -- */

static void call_with_another_count()
{
    connect();
    OK(ncclGroupStart());
    for (int i = 0; i < self.n; i++)
        OK(sum(i, (size_t)(N - self.index)));
    OK(ncclGroupEnd());
    for (int i = 0; i < self.n; i++) {
        ncclResult_t state = ncclSuccess;
        while (state == ncclSuccess) {
            (void)cudaStreamQuery(self.streams[i]);
            OK(ncclCommGetAsyncError(self.comms[i], &state));
        }
        CHECK(state == ncclInvalidUsage);
    }
    CHECK(strstr(cudasim_violation(), "while rank") && strstr(cudasim_violation(), "count 999"));
    close_all();
}

static void processes_must_agree(void **)
{
    run_well(call_with_another_count);
}

static void join_wrongly()
{
    start();
    share_id();
    const ncclResult_t result = join(N_RANKS, self.index == 0 ? 0 : 1);
    CHECK(result == ncclInvalidArgument || result == ncclInvalidUsage);
    _exit(result == ncclInvalidArgument ? 2 : 3);
}

static void no_two_processes_have_a_rank(void **)
{
    int how[2];
    run(join_wrongly, how);
    assert_int_equal(WEXITSTATUS(how[0]) + WEXITSTATUS(how[1]), 5); /* the second to come is refused */
}

/* -- processes that end -- */

static void be_killed_after_a_sum()
{
    connect();
    compare([](int i, int) { return sum(i, N); }, N, sum_of_all);
    if (self.index == 1)
        raise(SIGKILL);
    OK(ncclGroupStart());
    for (int i = 0; i < self.n; i++)
        OK(sum(i, N));
    OK(ncclGroupEnd());
    for (int tries = 0; tries < 200; tries++) {
        ncclResult_t state;
        CHECK(cudaStreamQuery(self.streams[0]) == cudaErrorNotReady);
        OK(ncclCommGetAsyncError(self.comms[0], &state));
        OK(state);
        usleep(1000);
    }
    OK(strcmp(cudasim_violation(), ""));
    close_all();
}

static void the_others_wait_for_a_killed_process_until_they_abort(void **)
{
    int how[2];
    run(be_killed_after_a_sum, how);
    assert_int_equal(how[0], 0);
    assert_true(WIFSIGNALED(how[1]) && WTERMSIG(how[1]) == SIGKILL);
}

static void join_what_is_gone()
{
    char end;
    start();
    share_id();
    if (self.index == 0)
        _exit(0);
    close(self.pipe[1]);
    CHECK(read(self.pipe[0], &end, 1) == 0); /* process 0 and its files are gone */
    usleep(100000);
    CHECK(join(N_RANKS, self.first) == ncclRemoteError);
    self.comms[0] = NULL;
    close_all();
}

static void the_id_of_a_process_that_has_ended_is_refused(void **)
{
    run_well(join_what_is_gone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_are_between_all_processes),
        cmocka_unit_test(captured_sums_are_replayed),
        cmocka_unit_test(what_all_have_read_takes_no_memory),
        cmocka_unit_test(processes_must_agree),
        cmocka_unit_test(no_two_processes_have_a_rank),
        cmocka_unit_test(the_others_wait_for_a_killed_process_until_they_abort),
        cmocka_unit_test(the_id_of_a_process_that_has_ended_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
