/* The host device's table of functions; see device.h. Programs are in program.c. */
#include "host/device.h"

#include <stdio.h>
#include <string.h>

#include "core/comm.h"
#include "core/event.h"
#include "core/input/meminfo.h"
#include "core/mem.h"
#include "host/cpu.h"
#include "host/host.h"
#include "host/memory.h"

/* How long a thread polls before it sleeps, where every thread can have its own processor: longer than the
 * usual spread between the devices of a step. Unpinned threads may share one processor while another
 * processor is busy. The awaited thread then cannot run as long as the other polls, so unpinned threads poll
 * for about the time that sleeping and waking take. (Two such threads on a busy machine took 1500 us per
 * all-reduce with the long time, 12 us with the short one, 0.5 us with either when they had a processor
 * each.) */
enum { POLL_PINNED_NS = 200000, POLL_UNPINNED_NS = 5000 };

static tsr_status host_alloc(tsr_device *device, tsr_memory_owner owner, size_t bytes, void **pointer_out)
{
    (void)owner;
    tsr_host_device *host = tsr_host(device);
    tsr_status status = tsr_host_memory_alloc(bytes, host->numa_node, pointer_out);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", device->name);
}

static void host_free(tsr_device *device, void *pointer, size_t bytes)
{
    (void)device;
    tsr_host_memory_free(pointer, bytes);
}

static tsr_status host_reserve(tsr_device *device, size_t bytes, void **base_out)
{
    tsr_host_device *host = tsr_host(device);
    tsr_status status = tsr_host_memory_reserve(bytes, host->numa_node, base_out);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", device->name);
}

static void host_release(tsr_device *device, void *base, size_t bytes)
{
    (void)device;
    tsr_host_memory_release(base, bytes);
}

/* commit and decommit take whole pages only. */
static tsr_status check_pages(const tsr_device *device, size_t offset, size_t bytes)
{
    if ((offset | bytes) & (device->granularity - 1))
        return tsr_fail(TSR_ERR_INVALID,
                        "device %s: offset %zu and size %zu of a commit must be multiples of %zu bytes",
                        device->name, offset, bytes, device->granularity);
    return TSR_OK;
}

static tsr_status host_commit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    tsr_status status = check_pages(device, offset, bytes);
    if (status == TSR_OK) {
        status = tsr_host_memory_commit(base, offset, bytes);
        if (status != TSR_OK)
            tsr_fail_in(status, "device %s", device->name);
    }
    return status;
}

static tsr_status host_decommit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    tsr_status status = check_pages(device, offset, bytes);
    if (status == TSR_OK) {
        status = tsr_host_memory_decommit(base, offset, bytes);
        if (status != TSR_OK)
            tsr_fail_in(status, "device %s", device->name);
    }
    return status;
}

static tsr_status host_memory_info(tsr_device *device, size_t *free_out, size_t *total_out)
{
    tsr_status status = tsr_meminfo(tsr_host(device)->numa_node, free_out, total_out);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", device->name);
}

static tsr_status host_wrap(tsr_device *device, const void *pointer, size_t bytes, const void **wrapped_out)
{
    (void)device, (void)bytes;
    *wrapped_out = pointer;
    return TSR_OK;
}

static void host_unwrap(tsr_device *device, const void *wrapped, size_t bytes)
{
    (void)device, (void)wrapped, (void)bytes;
}

/* Copies are made in blocks of about BLOCK_BYTES, each a step of its thread. */
enum { BLOCK_BYTES = 4 << 20 };

static void copy_bytes(const tsr_host_copy *copy, size_t begin, size_t end, tsr_host_thread *self)
{
    for (size_t at = begin, n; at < end; at += n) {
        n = TSR_MIN(end - at, (size_t)BLOCK_BYTES);
        tsr_host_note_step(self);
        memcpy(copy->dst + at, copy->src + at, n);
    }
}

/* A thread's share of a 2-D copy, which is divided by rows; one long row by bytes. */
static void copy_share(const tsr_host_copy *copy, tsr_host_thread *self, int thread, int n_threads)
{
    size_t n = (size_t)n_threads, t = (size_t)thread;
    if (copy->height == 1) {
        size_t share = tsr_align_up(copy->width / n + 1, 4096);
        size_t begin = TSR_MIN(share * t, copy->width), end = TSR_MIN(begin + share, copy->width);
        copy_bytes(copy, begin, end, self);
        return;
    }
    size_t share = copy->height / n + 1;
    size_t begin = TSR_MIN(share * t, copy->height), end = TSR_MIN(begin + share, copy->height);
    for (size_t row = begin; row < end; row++) {
        tsr_host_note_step(self);
        memcpy(copy->dst + row * copy->dst_stride, copy->src + row * copy->src_stride, copy->width);
    }
}

static void copy_by_team(void *argument, int thread, int n_threads)
{
    tsr_host_device *host = argument;
    copy_share(&host->copy, &host->threads[thread], thread, n_threads);
}

/* A smaller copy takes the calling thread less time than waking the team. Only a copy by the team is waited
 * for, and so bounded if it hangs. */
enum { TEAM_COPY_BYTES = 1 << 20 };

static tsr_status copy_rows(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                            size_t src_stride, size_t width, size_t height, const char *what)
{
    tsr_host_device *host = tsr_host(device);
    if (dst_stride == width && src_stride == width) { /* dense: one row */
        width *= height;
        height = 1;
    }
    tsr_status status = tsr_host_await(host, "a program before a copy");
    if (status != TSR_OK || width == 0 || height == 0)
        return status;
    host->copy = (tsr_host_copy){dst, src, dst_stride, src_stride, width, height};
    tsr_trace *trace = device->clock.trace;
    const uint64_t begin = trace ? tsr_clock_ns() : 0;
    if (device->n_threads == 1 || width < TEAM_COPY_BYTES / height) {
        copy_share(&host->copy, &host->threads[0], 0, 1);
    } else {
        status = tsr_team_submit(host->team, copy_by_team, host);
        if (status == TSR_OK)
            status = tsr_host_await(host, "a copy");
    }
    if (trace)
        tsr_trace_add(trace, TSR_SPAN_COPY, what, NULL, begin, tsr_clock_ns());
    return status;
}

static tsr_status host_upload(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                              size_t src_stride, size_t width, size_t height)
{
    return copy_rows(device, dst, dst_stride, src, src_stride, width, height, "upload");
}

static tsr_status host_download(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                                size_t src_stride, size_t width, size_t height)
{
    return copy_rows(device, dst, dst_stride, src, src_stride, width, height, "download");
}

static tsr_status host_move(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                            size_t src_stride, size_t width, size_t height)
{
    return copy_rows(device, dst, dst_stride, src, src_stride, width, height, "move");
}

static void host_destroy(tsr_device *device)
{
    tsr_host_device *host = tsr_host(device);
    tsr_watch_remove(device->watch, host);
    if (!tsr_team_destroy(host->team))
        return; /* its threads may still use the rest */
    tsr_host_memory_free(host->shared, host->kernels ? host->kernels->shared_bytes : 0);
    tsr_host_memory_free(host->packed, TSR_HOST_PACKED_BYTES);
    tsr_mem_free(host->scratch);
    tsr_mem_free(host->threads);
    tsr_mem_free(host);
}

static const struct tsr_device_ops host_ops = {
    .kind = TSR_DEVICE_HOST,
    .destroy = host_destroy,
    .alloc = host_alloc,
    .free = host_free,
    .reserve = host_reserve,
    .release = host_release,
    .commit = host_commit,
    .decommit = host_decommit,
    .memory_info = host_memory_info,
    .wrap = host_wrap,
    .unwrap = host_unwrap,
    .upload = host_upload,
    .download = host_download,
    .copy = host_move,
    .program_create = tsr_host_program_create,
    .program_destroy = tsr_host_program_destroy,
    .launch = tsr_host_program_launch,
    .synchronize = tsr_host_synchronize,
    .wait_queue = tsr_host_wait_queue,
};

static tsr_status select_kernels(tsr_host_device *host, const tsr_host_device_config *config)
{
    host->reading = tsr_cpu_reads();
    if (config->kernels) {
        host->kernels = config->kernels;
        return TSR_OK;
    }
    tsr_status status = tsr_kernel_set_find(config->isa, &host->kernels);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", host->base.name);
}

/* Each thread's scratch memory starts and ends on a cache line. */
static tsr_status alloc_threads(tsr_host_device *host)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)host->base.n_threads, bytes;
    TSR_TRY(tsr_mem_array(n, sizeof *host->threads, "the threads of a host device", &host->threads));
    host->scratch_stride = tsr_align_up(host->kernels->scratch_bytes, TSR_HOST_ALIGNMENT);
    const size_t share_bytes = n * sizeof(tsr_host_shares);
    if (!tsr_mul_size(n, host->scratch_stride, &bytes) ||
        !tsr_add_size(bytes, TSR_HOST_ALIGNMENT + 2 * share_bytes, &bytes))
        return tsr_fail(TSR_ERR_INVALID, "device %s: scratch memory of %zu threads is too large",
                        host->base.name, n);
    TSR_TRY(tsr_mem_array(bytes, 1, "the scratch memory of a host device", &host->scratch));
    unsigned char *aligned =
        (unsigned char *)tsr_align_up((uintptr_t)host->scratch, (size_t)TSR_HOST_ALIGNMENT);
    for (size_t i = 0; i < n; i++) {
        host->threads[i].fault_op = -1;
        host->threads[i].scratch = aligned + i * host->scratch_stride;
    }
    for (size_t i = 0; i < 2; i++)
        host->shares[i] = (tsr_host_shares *)(void *)(aligned + n * host->scratch_stride + i * share_bytes);
    if (n > 1 && host->kernels->shared_bytes > 0)
        TSR_TRY(tsr_host_memory_alloc(host->kernels->shared_bytes, host->numa_node, &host->shared));
    if (host->kernels->pack)
        TSR_TRY(tsr_host_memory_alloc(TSR_HOST_PACKED_BYTES, host->numa_node, (void **)&host->packed));
out:
    return status;
}

static tsr_status start_team(tsr_host_device *host, const tsr_host_device_config *config)
{
    tsr_status status = TSR_OK;
    const char *name = host->base.name;
    int total = TSR_MAX(config->total_threads, config->n_threads);
    int processors = tsr_cpu_allowed();
    tsr_team_config team = {.name = name,
                            .n_threads = config->n_threads,
                            .pin = config->pin,
                            .pin_user = config->pin_user,
                            .watch = config->watch};
    TSR_TRY(tsr_team_create(&team, &host->team));
    int n_unpinned = config->pin ? tsr_team_n_unpinned(host->team) : config->n_threads;
    if (config->pin && n_unpinned > 0)
        tsr_log(config->logger, TSR_LOG_WARN,
                "device %s: %d of %d thread%s could not be pinned; timing may vary", name, n_unpinned,
                config->n_threads, tsr_plural(config->n_threads));
    if (total <= processors)
        host->base.polls = tsr_event_polls(n_unpinned > 0 ? POLL_UNPINNED_NS : POLL_PINNED_NS);
    /* Between jobs the application's threads, which are not pinned, need the processors. */
    int idle_polls = total < processors ? tsr_event_polls(POLL_UNPINNED_NS) : 0;
    tsr_team_set_polls(host->team, host->base.polls, idle_polls);
    tsr_team_adapt(host->team, total <= processors && n_unpinned == 0);
    tsr_log(config->logger, TSR_LOG_DEBUG, "device %s: %d thread%s, %s kernels, %s", name, config->n_threads,
            tsr_plural(config->n_threads), host->kernels->isa,
            host->base.polls ? "polling before sleeping" : "sleeping immediately");
out:
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", name);
}

tsr_status tsr_host_device_create(const tsr_host_device_config *config, tsr_device **device_out)
{
    tsr_status status = TSR_OK;
    tsr_host_device *host = NULL;

    if (config->n_threads < 1)
        return tsr_fail(TSR_ERR_INVALID, "device %s: %d threads; a host device needs at least one",
                        config->name, config->n_threads);
    TSR_TRY(TSR_NEW(&host, "a host device"));
    host->base = (tsr_device){
        .ops = &host_ops,
        .index = config->index,
        .memory_cap = config->memory_cap ? config->memory_cap : SIZE_MAX,
        .alignment = TSR_HOST_ALIGNMENT,
        .max_alloc = SIZE_MAX,
        .granularity = tsr_host_page_bytes(),
        .alloc_unit = tsr_host_page_bytes(),
        .place = config->numa_node,
        .host_writes = true,
        .n_threads = config->n_threads,
        .watch = config->watch,
    };
    snprintf(host->base.name, sizeof host->base.name, "%s", config->name);
    host->numa_node = config->numa_node;
    host->duty_percent = config->duty_percent ? config->duty_percent : 100;
    TSR_TRY(select_kernels(host, config));
    snprintf(host->base.isa, sizeof host->base.isa, "%s", host->kernels->isa);
    TSR_TRY(alloc_threads(host));
    tsr_watch_add(config->watch, tsr_host_progress, host);
    TSR_TRY(start_team(host, config));
    *device_out = &host->base;
    host = NULL;
out:
    if (host)
        host_destroy(&host->base);
    return status;
}
