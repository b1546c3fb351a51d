/* The CUDA device's table of functions, its creation and its end; see device.h. */
#include "cuda/device/device.h"

#include <stdio.h>

#include <tsr/bytes.h>

#include "core/event.h"
#include "core/gpu.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/api/driver.h"
#include "cuda/context/context.h"
#include "cuda/context/worker.h"
#include "cuda/device/program.h"
#include "cuda/device/sums.h"
#include "cuda/device/timing.h"
#include "cuda/kernels/kernels.h"
#include "cuda/libs/cublas.h"
#include "cuda/memory/checksum.h"
#include "cuda/memory/memory.h"
#include "cuda/memory/pools.h"
#include "cuda/memory/upload.h"
#include "cuda/memory/vmm.h"
#include "cuda/memory/wrap.h"

#define DEFAULT_GRACE_NS 10000000000u

/* -- copies -- */

static tsr_status copy_inside(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                              size_t src_stride, size_t width, size_t height)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    if (width == 0 || height == 0)
        return TSR_OK;
    tsr_status status = tsr_cuda_check_writable(cuda, dst, (height - 1) * dst_stride + width);
    if (status == TSR_OK)
        status = tsr_cuda_enter_to_copy(cuda);
    if (status != TSR_OK)
        return status;
    /* "Default", because the source may be wrapped host memory. Strides of 2-D copies are limited to 2 GiB
     * (cudaDevAttrMaxPitch), so dense rows are copied as one. */
    if (height == 1 || (dst_stride == width && src_stride == width))
        status = TSR_CUDA(cudaMemcpyAsync(dst, src, width * height, cudaMemcpyDefault, cuda->copies));
    else
        status = TSR_CUDA(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, width, height,
                                            cudaMemcpyDefault, cuda->copies));
    atomic_store(&cuda->copies_pending, true);
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s: copy", device->name);
}

/* -- life -- */

/* Release a device, also one created in part. A hung device would block every release, so its CUDA objects
 * stay. */
static void close_device(tsr_cuda_device *cuda)
{
    if (cuda->worker && tsr_cuda_enter_to_release(cuda)) {
        tsr_cuda_quiesce_to_release(cuda); /* may give up the device */
        tsr_cuda_leave(cuda);
    }
    tsr_watch_remove(cuda->base.watch, cuda);
    if (!tsr_cuda_worker_destroy(cuda->worker))
        return; /* the thread may still use the rest */
    cuda->worker = NULL;
    const bool usable = tsr_cuda_enter_to_release(cuda);
    if (usable) {
        tsr_cublas_destroy(cuda->cublas);
        cuda->cublas = NULL;
        tsr_cuda_ring_destroy(cuda);
        if (cuda->words)
            tsr_cuda_free_own(cuda, cuda->words, sizeof *cuda->words);
        if (cuda->copied)
            (void)cudaEventDestroy(cuda->copied);
        if (cuda->copies)
            (void)cudaStreamDestroy(cuda->copies);
        if (cuda->done)
            (void)cudaEventDestroy(cuda->done);
        tsr_cuda_sums_close(cuda);
        tsr_cuda_timing_close(cuda);
        if (cuda->stream)
            (void)cudaStreamDestroy(cuda->stream);
    }
    if (cuda->pinned) {
        tsr_pool_give(cuda->pinned, cuda->fault_block, TSR_POOL_HOST);
        tsr_cuda_pinned_close(cuda);
    }
    if (usable) {
        (void)cudaGetLastError();
        tsr_cuda_leave(cuda);
    }
    tsr_cuda_context_close(cuda);
    tsr_cuda_ranges_abandon(cuda); /* ranges are left only of a device that was given up */
    tsr_cuda_wrapping_close(cuda);
    tsr_mem_free(cuda->cublas);
    tsr_mem_free(cuda->timing.events);
    tsr_mem_free(cuda);
}

static void cuda_destroy(tsr_device *device)
{
    close_device(tsr_cuda(device));
}

static const struct tsr_device_ops cuda_ops = {
    .kind = TSR_DEVICE_CUDA,
    .destroy = cuda_destroy,
    .alloc = tsr_cuda_alloc,
    .free = tsr_cuda_free,
    .reserve = tsr_cuda_reserve,
    .release = tsr_cuda_release,
    .commit = tsr_cuda_commit,
    .decommit = tsr_cuda_decommit,
    .memory_info = tsr_cuda_memory_info,
    .wrap = tsr_cuda_wrap,
    .unwrap = tsr_cuda_unwrap,
    .pin = tsr_cuda_pin,
    .unpin = tsr_cuda_unpin,
    .upload = tsr_cuda_upload,
    .download = tsr_cuda_download,
    .copy = copy_inside,
    .program_create = tsr_cuda_program_create,
    .program_destroy = tsr_cuda_program_destroy,
    .prepare = tsr_cuda_program_prepare,
    .discard = tsr_cuda_program_discard,
    .launch = tsr_cuda_program_launch,
    .synchronize = tsr_cuda_synchronize,
    .wait_queue = tsr_cuda_wait_queue,
    .checksum = tsr_cuda_checksum,
    .stream_mark = tsr_cuda_stream_mark,
    .stream_passed = tsr_cuda_stream_passed,
    .stream_wait = tsr_cuda_stream_wait,
    .stream_drop = tsr_cuda_stream_drop,
    .trim = tsr_cuda_trim,
};

/* Choose how memory is allocated; log the cost of an unusual way. */
static tsr_status choose_memory(tsr_cuda_device *cuda, const tsr_cuda_device_config *config)
{
    tsr_status status = TSR_OK;
    size_t granularity;
    int can_manage = 0;
    TSR_TRY(tsr_cuda_granularity(&cuda->driver, cuda->ordinal, &granularity));
    cuda->has_vmm = granularity > 0;
    cuda->base.granularity = cuda->has_vmm ? granularity : TSR_CUDA_PLAIN_GRANULARITY;
    cuda->managed = config->managed;
    cuda->base.mapped_bytes = cuda->has_vmm && !cuda->managed ? granularity : 0;
    cuda->base.reserves_whole = !cuda->has_vmm || cuda->managed;
    cuda->base.may_exceed = cuda->managed;
    if (cuda->managed) {
        TSR_TRY(TSR_CUDA(cudaDeviceGetAttribute(&can_manage, cudaDevAttrManagedMemory, cuda->ordinal)));
        if (!can_manage)
            return tsr_fail(TSR_ERR_UNSUPPORTED, "the GPU has no managed memory; open it without managed=1");
        tsr_log(&cuda->logger, TSR_LOG_WARN,
                "device %s: managed memory: pages beyond the GPU's own memory stay in host memory, and "
                "every use of them crosses the bus",
                cuda->base.name);
    } else if (!cuda->has_vmm) {
        tsr_log(&cuda->logger, TSR_LOG_INFO,
                "device %s: the driver has no virtual memory management for this GPU: the KV region is "
                "allocated whole when it is created",
                cuda->base.name);
    }
out:
    return status;
}

static tsr_status read_props(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    int major, minor, shared_bytes;
    TSR_TRY(
        TSR_CUDA(cudaDeviceGetAttribute(&cuda->props.n_sms, cudaDevAttrMultiProcessorCount, cuda->ordinal)));
    TSR_TRY(TSR_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->ordinal)));
    TSR_TRY(TSR_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, cuda->ordinal)));
    cuda->props.compute_capability = 10 * major + minor;
    TSR_TRY(TSR_CUDA(
        cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, cuda->ordinal)));
    cuda->props.shared_bytes = (size_t)shared_bytes;
out:
    return status;
}

/* Lower the cap to the free memory. Where memory may be outside the GPU, a given cap stays. */
static void lower_cap(tsr_cuda_device *cuda, size_t available)
{
    char had[TSR_BYTES_TEXT], has[TSR_BYTES_TEXT];
    size_t *cap = &cuda->base.memory_cap;
    bool may_exceed = cuda->managed || cuda->wrapping.forced;
    if (*cap <= available || (may_exceed && *cap != SIZE_MAX))
        return;
    if (*cap != SIZE_MAX)
        tsr_log(&cuda->logger, TSR_LOG_WARN,
                "device %s: %s of GPU memory are free, not %s; its cap is lowered", cuda->base.name,
                tsr_bytes_text(available, has), tsr_bytes_text(*cap, had));
    *cap = available;
}

/* What takes so long, before it does. */
static void announce_compilation(const tsr_cuda_device *cuda)
{
    const int capability = cuda->props.compute_capability;
    if (!tsr_cuda_kernels_are_native(capability))
        tsr_log(
            &cuda->logger, TSR_LOG_WARN,
            "device %s: this build has no machine code for compute capability %d.%d: the driver compiles the "
            "kernels now, which may take minutes the first time; build with CMAKE_CUDA_ARCHITECTURES=%d, or "
            "keep the driver's cache (CUDA_CACHE_PATH, ~/.nv/ComputeCache) writable",
            cuda->base.name, capability / 10, capability % 10, capability);
}

/* The device is current. */
static tsr_status make_objects(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    size_t available, total;
    announce_compilation(cuda);
    TSR_TRY(tsr_cuda_kernels_load(&cuda->props.early));
    TSR_TRY(TSR_CUDA(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking)));
    TSR_TRY(TSR_CUDA(cudaEventCreateWithFlags(&cuda->done, cudaEventDisableTiming)));
    TSR_TRY(TSR_CUDA(cudaStreamCreateWithFlags(&cuda->copies, cudaStreamNonBlocking)));
    TSR_TRY(TSR_CUDA(cudaEventCreateWithFlags(&cuda->copied, cudaEventDisableTiming)));
    TSR_TRY(tsr_cuda_pinned_open(cuda));
    TSR_TRY(tsr_pool_take(cuda->pinned, sizeof *cuda->fault_copy, TSR_POOL_HOST, "the fault flag",
                          &cuda->fault_block));
    cuda->fault_copy = cuda->fault_block->data;
    *cuda->fault_copy = 0;
    TSR_TRY(tsr_cuda_alloc_own(cuda, sizeof *cuda->words, (void **)&cuda->words));
    TSR_TRY(tsr_cuda_ring_create(cuda));
    TSR_TRY(tsr_cuda_memory_now(cuda, &available, &total));
    lower_cap(cuda, available);
out:
    return status;
}

/* The host thread's first job. */
typedef struct start_job {
    tsr_cuda_device *cuda;
    const tsr_cuda_device_config *config;
    tsr_status status, pin_status;
    char text[256]; /* messages are per thread */
} start_job;

/* The device's context stays the thread's current one. */
static void begin_host_thread(void *argument)
{
    start_job *job = argument;
    job->status = tsr_cuda_make_current(job->cuda);
    if (job->status == TSR_OK && job->config->pin)
        job->pin_status = job->config->pin(job->config->pin_user, 0);
    if (job->status != TSR_OK || job->pin_status != TSR_OK)
        snprintf(job->text, sizeof job->text, "%s", tsr_last_error());
}

static tsr_status start_host_thread(tsr_cuda_device *cuda, const tsr_cuda_device_config *config)
{
    tsr_status status = TSR_OK;
    start_job job = {.cuda = cuda, .config = config};
    TSR_TRY(tsr_cuda_worker_create(config->polls, config->watch, &cuda->worker));
    tsr_watch_add(config->watch, tsr_cuda_progress, cuda);
    TSR_TRY(tsr_cuda_worker_submit(cuda->worker, begin_host_thread, &job));
    if (tsr_cuda_worker_wait(cuda->worker, TSR_FOREVER) != TSR_WAIT_DONE)
        return tsr_watch_lose(config->watch, "its host thread does not start");
    if (job.status != TSR_OK)
        return tsr_fail(job.status, "%s", job.text);
    if (job.pin_status != TSR_OK)
        tsr_log(&cuda->logger, TSR_LOG_INFO,
                "device %s: its host thread stays unpinned, which may cost some speed: %s", cuda->base.name,
                job.text);
out:
    return status;
}

tsr_status tsr_cuda_device_create(const tsr_cuda_device_config *config, tsr_device **device_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device *cuda = NULL;

    TSR_TRY(TSR_NEW(&cuda, "a CUDA device"));
    cuda->base = (tsr_device){
        .ops = &cuda_ops,
        .index = config->index,
        .memory_cap = config->memory_cap ? config->memory_cap : SIZE_MAX,
        .alignment = TSR_GPU_ALIGNMENT,
        .max_alloc = SIZE_MAX,
        .scratch_bytes = TSR_GPU_SCRATCH_BYTES,
        .is_gpu = true,
        .n_uploaders = TSR_CUDA_UPLOADERS,
        .alloc_unit = TSR_CUDA_MALLOC_UNIT,
        .place = config->ordinal,
        .polls = config->polls,
        .watch = config->watch,
    };
    snprintf(cuda->base.name, sizeof cuda->base.name, "%s", config->name);
    cuda->ordinal = config->ordinal;
    cuda->library_tokens = config->library_tokens ? TSR_MAX(config->library_tokens, 0) : TSR_CUBLAS_TOKENS;
    cuda->grace_ns =
        config->grace_ns ? config->grace_ns : TSR_MIN(tsr_watch_stall_ns(config->watch), DEFAULT_GRACE_NS);
    if (config->logger)
        cuda->logger = *config->logger;
    TSR_TRY(tsr_cuda_context_open(cuda));
    TSR_TRY(tsr_cuda_make_current(cuda));
    status = read_props(cuda);
    if (status == TSR_OK)
        status = choose_memory(cuda, config);
    if (status == TSR_OK)
        status = tsr_cuda_wrapping_open(cuda, config->always_wrap, config->link_bytes_per_s, config->sibling);
    if (cuda->wrapping.integrated)
        cuda->base.place = TSR_PLACE_HOST;
    if (status == TSR_OK)
        status = make_objects(cuda);
    tsr_cuda_leave(cuda);
    if (status != TSR_OK)
        goto out;
    TSR_TRY(start_host_thread(cuda, config));
    *device_out = &cuda->base;
    cuda = NULL;
out:
    if (cuda) {
        tsr_fail_in(status, "device %s", config->name);
        close_device(cuda);
    }
    return status;
}
