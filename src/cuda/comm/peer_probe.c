/* Tests whether devices can use each other's memory. The driver's answer is not enough: behind some IOMMUs
 * and PCIe switches it promises peer access, and transfers then arrive wrong or not at all. So a kernel of
 * each device reads and writes the other's memory, its copies read from there, and the results are
 * compared. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/collective.h"
#include "cuda/comm/device_barrier.h"
#include "cuda/comm/peer.h"
#include "cuda/context/capture.h"
#include "cuda/context/context.h"
#include "cuda/kernels/kernels.h"
#include "cuda/memory/vmm.h"

/* Copies treat a pattern as PATTERN_ROWS rows, in two halves. */
enum { PATTERN_ROWS = 64, PATTERN_COLS = 64, PATTERN_FLOATS = PATTERN_ROWS * PATTERN_COLS };

/* Work of streams in one hardware queue starts in the order in which it was enqueued, so a device could wait
 * there for one that is behind it. A GPU has as many queues as CUDA_DEVICE_MAX_CONNECTIONS says, 1 to 32, by
 * default 8 ("CUDA C++ Programming Guide", "CUDA Environment Variables"), and a device has two streams. */
int tsr_cuda_peers_per_gpu(void)
{
    enum { DEFAULT_QUEUES = 8, MAX_QUEUES = 32, STREAMS = 2 };
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const long n = text ? strtol(text, NULL, 10) : DEFAULT_QUEUES;
    return TSR_MAX((int)(n >= 1 && n <= MAX_QUEUES ? n : DEFAULT_QUEUES) / STREAMS, 1);
}

static bool is_cuda(const tsr_device *device)
{
    return device->ops->kind == TSR_DEVICE_CUDA;
}

/* Give `cuda` access to the other's memory: cudaMalloc's and mapped memory, or neither. */
static tsr_status enable(tsr_cuda_device *cuda, tsr_cuda_device *other, bool *can_out)
{
    int can = 0, ordinal = other->ordinal;
    bool is_new = false;
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    *can_out = false;
    TSR_TRY(TSR_CUDA(cudaDeviceCanAccessPeer(&can, cuda->ordinal, ordinal)));
    if (can) {
        cudaError_t error = cudaDeviceEnablePeerAccess(ordinal, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError();
        else if (error != cudaSuccess)
            TSR_TRY(tsr_cuda_result(error, "cudaDeviceEnablePeerAccess"));
        is_new = error == cudaSuccess;
        TSR_TRY(tsr_cuda_vmm_let_peer(other, cuda->ordinal));
    }
    *can_out = can != 0;
out:
    if (status != TSR_OK && is_new) { /* otherwise later cudaMallocs would take room in BAR1 for nothing */
        (void)cudaDeviceDisablePeerAccess(ordinal);
        (void)cudaGetLastError();
    }
    tsr_cuda_leave(cuda);
    return status;
}

static tsr_status copy_by_kernel(tsr_cuda_device *cuda, const float *x, float *y)
{
    const tsr_op_scale op = {.x = x, .y = y, .n = PATTERN_FLOATS, .factor = 1};
    const tsr_cuda_stream s = {.stream = cuda->stream, .props = &cuda->props};
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    TSR_TRY(tsr_cuda_join_copies(cuda));
    TSR_TRY(tsr_cuda_scale(&op, &s));
    TSR_TRY(tsr_cuda_drain(cuda));
out:
    tsr_cuda_leave(cuda);
    return status;
}

typedef struct copying {
    tsr_cuda_device *cuda;
    const float *x;
    float *y;
} copying;

/* Copy as programs gather parts (peer.c): one column of parts after the other. */
static tsr_status enqueue_copies(void *what)
{
    enum { WIDTH = PATTERN_COLS / 2 * sizeof(float), PITCH = PATTERN_COLS * sizeof(float) };
    const copying *c = what;
    tsr_status status = TSR_OK;
    for (int column = 0; column < PATTERN_COLS && status == TSR_OK; column += PATTERN_COLS / 2)
        status = TSR_CUDA(cudaMemcpy2DAsync(c->y + column, PITCH, c->x + column, PITCH, WIDTH, PATTERN_ROWS,
                                            cudaMemcpyDefault, c->cuda->stream));
    return status;
}

/* Copy by a captured graph, as in programs; where capture is refused, without one, as in programs. */
static tsr_status copy_by_graph(tsr_cuda_device *cuda, const float *x, float *y)
{
    cudaGraphExec_t graph = NULL;
    copying c = {cuda, x, y};
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    status = tsr_cuda_capture(cuda, enqueue_copies, &c, &graph);
    if (status == TSR_OK)
        status = TSR_CUDA(cudaGraphLaunch(graph, cuda->stream));
    else if (status != TSR_ERR_DEVICE_LOST)
        status = enqueue_copies(&c);
    if (status == TSR_OK)
        status = tsr_cuda_drain(cuda);
    if (graph)
        (void)cudaGraphExecDestroy(graph);
    tsr_cuda_leave(cuda);
    return status;
}

static bool is_lost(tsr_cuda_device *one, tsr_cuda_device *other)
{
    tsr_cuda_device *const pair[] = {one, other};
    return !tsr_cuda_collective_reaches(pair, tsr_device_set_all(2));
}

/* A kernel of `one` writes the pattern to the memory of `other`, and `other` copies the pattern to a second
 * place. A kernel of `one` reads the second place, and so do copies of `one`. */
static tsr_status try_pattern(tsr_cuda_device *one, tsr_cuda_device *other, bool *good_out)
{
    tsr_status status = TSR_OK;
    enum { N = PATTERN_FLOATS, BYTES = N * sizeof(float) };
    float *pattern = NULL, *here = NULL, *there = NULL;
    /* A size that gets the kind of memory that programs use. */
    size_t bytes = TSR_MAX((size_t)3 * BYTES, TSR_MAX(one->base.granularity, other->base.granularity));
    TSR_TRY(tsr_mem_array(3 * N, sizeof *pattern, "a test pattern", &pattern));
    TSR_TRY(one->base.ops->alloc(&one->base, TSR_MEMORY_COMM, bytes, (void **)&here));
    TSR_TRY(other->base.ops->alloc(&other->base, TSR_MEMORY_COMM, bytes, (void **)&there));
    *good_out = false;
    if (is_lost(one, other)) /* already logged */
        goto out;
    for (int i = 0; i < N; i++)
        pattern[i] = (float)(i * 977 + 131 * one->ordinal + other->ordinal);
    TSR_TRY(tsr_device_upload(&one->base, here, pattern, BYTES));
    TSR_TRY(copy_by_kernel(one, here, there));
    TSR_TRY(copy_by_kernel(other, there, there + N));
    TSR_TRY(copy_by_kernel(one, there + N, here + N));
    TSR_TRY(copy_by_graph(one, there + N, here + 2 * N));
    TSR_TRY(tsr_device_download(&one->base, pattern + N, here + N, 2 * BYTES));
    *good_out = memcmp(pattern, pattern + N, BYTES) == 0 && memcmp(pattern, pattern + 2 * N, BYTES) == 0;
out:
    one->base.ops->free(&one->base, here, bytes);
    other->base.ops->free(&other->base, there, bytes);
    tsr_mem_free(pattern);
    return status;
}

/* enable(), but a refusal is a result: without NVSwitch a GPU takes no more than eight peers, and some
 * systems promise access and then do not grant it. */
static tsr_status try_enable(tsr_cuda_device *cuda, tsr_cuda_device *other, const tsr_logger *logger,
                             bool *can_out)
{
    tsr_status status = enable(cuda, other, can_out);
    if (status != TSR_ERR_DEVICE && status != TSR_ERR_UNSUPPORTED)
        return status;
    tsr_log(logger, TSR_LOG_WARN,
            "devices %s and %s: the driver offers peer access and then refuses it; their collectives do not "
            "use it: %s",
            cuda->base.name, other->base.name, tsr_last_error());
    tsr_fail_clear();
    *can_out = false;
    return TSR_OK;
}

static bool has_let_in(const tsr_cuda_device *cuda, const tsr_cuda_device *other)
{
    return other->ordinal < TSR_CUDA_MAX_GPUS && (cuda->peers >> other->ordinal & 1);
}

static bool is_open(const tsr_cuda_device *one, const tsr_cuda_device *other)
{
    return has_let_in(one, other) && has_let_in(other, one);
}

static tsr_status open_pair(tsr_cuda_device *one, tsr_cuda_device *other, const tsr_logger *logger)
{
    tsr_status status = TSR_OK;
    bool there = false, back;
    if (one->ordinal == other->ordinal)
        return TSR_OK;
    TSR_TRY(try_enable(one, other, logger, &there));
    if (there)
        TSR_TRY(try_enable(other, one, logger, &back));
out:
    return status;
}

tsr_status tsr_cuda_peers_open(tsr_device *const *devices, int n_devices, const tsr_logger *logger)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < n_devices; i++)
        for (int j = 0; j < i; j++)
            if (is_cuda(devices[i]) && is_cuda(devices[j]))
                TSR_TRY(open_pair(tsr_cuda(devices[i]), tsr_cuda(devices[j]), logger));
out:
    return status;
}

bool tsr_cuda_peers_refused(tsr_cuda_device *const *devices, int n_devices)
{
    int can;
    for (int i = 0; i < n_devices; i++)
        for (int j = 0; j < i; j++) {
            if (!devices[i] || !devices[j] || devices[i]->ordinal == devices[j]->ordinal ||
                is_open(devices[i], devices[j]))
                continue;
            if (cudaDeviceCanAccessPeer(&can, devices[i]->ordinal, devices[j]->ordinal) == cudaSuccess && can)
                return true;
        }
    (void)cudaGetLastError();
    return false;
}

static tsr_status test_pair(tsr_cuda_device *one, tsr_cuda_device *other, const tsr_logger *logger,
                            bool *good_out)
{
    tsr_status status = TSR_OK;
    bool there = false, back = false;
    *good_out = one->ordinal == other->ordinal;
    if (*good_out || !is_open(one, other))
        goto out;
    TSR_TRY(try_pattern(one, other, &there));
    TSR_TRY(try_pattern(other, one, &back));
    *good_out = there && back;
    if (!*good_out && !is_lost(one, other))
        tsr_log(logger, TSR_LOG_WARN,
                "devices %s and %s: the driver offers peer access, but test patterns arrive changed; "
                "their collectives do not use it",
                one->base.name, other->base.name);
out:
    return status;
}

/* The devices on the GPU of device i. */
static int n_sharers(tsr_device *const *devices, int n_devices, int i)
{
    int sharers = 0;
    for (int j = 0; j < n_devices; j++)
        sharers += is_cuda(devices[j]) && tsr_cuda(devices[j])->ordinal == tsr_cuda(devices[i])->ordinal;
    return sharers;
}

/* A GPU with fewer multiprocessors than devices has no room for all of them to wait (device_barrier.h). */
static bool has_room(tsr_device *const *devices, int n_devices, int i)
{
    const int sharers = n_sharers(devices, n_devices, i);
    return sharers <= tsr_cuda_peers_per_gpu() && sharers < tsr_cuda(devices[i])->props.n_sms;
}

void tsr_cuda_peers_waiting(tsr_device *const *devices, int n_devices, tsr_device_set *reach_out)
{
    tsr_device_set all = 0;
    for (int i = 0; i < n_devices; i++)
        if (is_cuda(devices[i]) && has_room(devices, n_devices, i))
            all |= tsr_device_set_one(i);
    for (int i = 0; i < n_devices; i++)
        reach_out[i] = tsr_device_set_has(all, i) ? all : 0;
}

static void warn_of_queues(tsr_device *const *devices, int n_devices, const tsr_logger *logger)
{
    for (int i = 0; i < n_devices; i++) {
        const int sharers = is_cuda(devices[i]) ? n_sharers(devices, n_devices, i) : 0;
        if (sharers <= tsr_cuda_peers_per_gpu())
            continue;
        tsr_log(logger, TSR_LOG_WARN,
                "device %s: %d devices are on its GPU, whose hardware queues let %d wait for each other; "
                "their collectives use host memory; set CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment of "
                "the process, or name fewer devices",
                devices[i]->name, sharers, tsr_cuda_peers_per_gpu());
        return;
    }
}

tsr_status tsr_cuda_peers_test(tsr_device *const *devices, int n_devices, const tsr_logger *logger,
                               tsr_device_set *reach_out)
{
    tsr_status status = TSR_OK;
    tsr_device_set reach[TSR_CUDA_MAX_PEERS] = {0};
    if (n_devices > TSR_CUDA_MAX_PEERS)
        return tsr_fail(TSR_ERR_INVALID, "peer access between %d devices; at most %d are possible", n_devices,
                        (int)TSR_CUDA_MAX_PEERS);
    TSR_TRY(tsr_cuda_peers_open(devices, n_devices, logger));
    warn_of_queues(devices, n_devices, logger);
    for (int i = 0; i < n_devices; i++) {
        if (!is_cuda(devices[i]))
            continue;
        reach[i] |= tsr_device_set_one(i);
        for (int j = 0; j < i; j++) {
            bool good = false;
            if (!is_cuda(devices[j]) || !has_room(devices, n_devices, i) || !has_room(devices, n_devices, j))
                continue;
            TSR_TRY(test_pair(tsr_cuda(devices[i]), tsr_cuda(devices[j]), logger, &good));
            reach[i] |= good ? tsr_device_set_one(j) : 0;
            reach[j] |= good ? tsr_device_set_one(i) : 0;
        }
    }
    memcpy(reach_out, reach, (size_t)n_devices * sizeof *reach);
out:
    return status;
}
