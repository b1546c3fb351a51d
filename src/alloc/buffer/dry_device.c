/* The dry-run device; see alloc/buffer/dry_device.h.
 *
 * Its addresses come from a counter that starts far above anything a program maps, so that an access by
 * mistake faults immediately. */
#include "alloc/buffer/dry_device.h"

#include <stdio.h>

#include "core/mem.h"

enum { FIRST_ADDRESS_BIT = 56, DEVICE_ADDRESS_BIT = 48, PAGE_BYTES = 4096 };

static void measure_destroy(tsr_device *device)
{
    tsr_mem_free(device);
}

static tsr_status measure_reserve(tsr_device *device, size_t bytes, void **pointer_out)
{
    size_t alignment = TSR_MAX(device->alignment, (size_t)PAGE_BYTES);
    /* One page stays free between neighbours, so that the end of one allocation is never the start of the
     * next. */
    if (bytes > UINTPTR_MAX - device->dry_next - PAGE_BYTES - 2 * alignment)
        return tsr_fail(TSR_ERR_MEMORY, "device %s: %zu bytes exceed the address space", device->name, bytes);
    *pointer_out = (void *)device->dry_next;
    device->dry_next = tsr_align_up(device->dry_next + bytes + PAGE_BYTES, alignment);
    return TSR_OK;
}

static tsr_status measure_alloc(tsr_device *device, tsr_memory_owner owner, size_t bytes, void **pointer_out)
{
    (void)owner;
    if (bytes > device->max_alloc)
        return tsr_fail(TSR_ERR_MEMORY, "device %s: one allocation of %zu bytes, at most %zu are possible",
                        device->name, bytes, device->max_alloc);
    return measure_reserve(device, bytes, pointer_out);
}

static void measure_free(tsr_device *device, void *pointer, size_t bytes)
{
    (void)device, (void)pointer, (void)bytes;
}

static tsr_status measure_commit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    (void)device, (void)base, (void)offset, (void)bytes;
    return TSR_OK;
}

static tsr_status measure_memory_info(tsr_device *device, size_t *free_out, size_t *total_out)
{
    *free_out = *total_out = device->memory_cap;
    return TSR_OK;
}

static tsr_status measure_wrap(tsr_device *device, const void *pointer, size_t bytes,
                               const void **wrapped_out)
{
    (void)device, (void)bytes;
    *wrapped_out = pointer;
    return TSR_OK;
}

static void measure_unwrap(tsr_device *device, const void *wrapped, size_t bytes)
{
    (void)device, (void)wrapped, (void)bytes;
}

static tsr_status measure_copy_2d(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                                  size_t src_stride, size_t width, size_t height)
{
    (void)device, (void)dst, (void)dst_stride, (void)src, (void)src_stride, (void)width, (void)height;
    return TSR_OK;
}

/* The device pointer stands for every program. */
static tsr_status measure_program_create(tsr_device *device, const tsr_op *ops, int n_ops,
                                         tsr_device_program **program_out)
{
    (void)ops, (void)n_ops;
    *program_out = (tsr_device_program *)device;
    return TSR_OK;
}

static void measure_program_destroy(tsr_device *device, tsr_device_program *program)
{
    (void)device, (void)program;
}

static tsr_status measure_launch(tsr_device *device, tsr_device_program *program)
{
    (void)program;
    if (device->elsewhere) /* launched by the device's own process */
        return TSR_OK;
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "device %s only measures memory; open the runtime without no_alloc to run programs",
                    device->name);
}

static tsr_status measure_synchronize(tsr_device *device, uint64_t timeout_ns)
{
    (void)device, (void)timeout_ns;
    return TSR_OK;
}

static tsr_status measure_wait_queue(tsr_device *device, int n_left, uint64_t timeout_ns)
{
    (void)device, (void)n_left, (void)timeout_ns;
    return TSR_OK;
}

static const struct tsr_device_ops measure_ops = {
    .kind = TSR_DEVICE_HOST,
    .destroy = measure_destroy,
    .alloc = measure_alloc,
    .free = measure_free,
    .reserve = measure_reserve,
    .release = measure_free,
    .commit = measure_commit,
    .decommit = measure_commit,
    .memory_info = measure_memory_info,
    .wrap = measure_wrap,
    .unwrap = measure_unwrap,
    .upload = measure_copy_2d,
    .download = measure_copy_2d,
    .copy = measure_copy_2d,
    .program_create = measure_program_create,
    .program_destroy = measure_program_destroy,
    .launch = measure_launch,
    .synchronize = measure_synchronize,
    .wait_queue = measure_wait_queue,
};

/* Addresses of this device, after all that programs map. */
static uintptr_t first_address(const tsr_device *device)
{
    return tsr_align_up(((uintptr_t)1 << FIRST_ADDRESS_BIT) +
                            ((uintptr_t)device->index << DEVICE_ADDRESS_BIT),
                        TSR_MAX(device->alignment, (size_t)PAGE_BYTES));
}

tsr_status tsr_measure_device_create(const char *name, int index, size_t memory_cap, size_t alignment,
                                     size_t max_alloc, size_t granularity, tsr_device **device_out)
{
    tsr_status status = TSR_OK;
    tsr_device *device = NULL;

    TSR_TRY(TSR_NEW(&device, "a measuring device"));
    device->ops = &measure_ops;
    device->index = index;
    device->memory_cap = memory_cap;
    device->alignment = alignment;
    device->max_alloc = max_alloc;
    device->granularity = granularity;
    snprintf(device->name, sizeof device->name, "%s", name);
    device->dry_next = first_address(device);
    *device_out = device;
out:
    return status;
}

void tsr_device_become_dry(tsr_device *device)
{
    device->real_ops = device->ops;
    device->ops = &measure_ops;
    device->elsewhere = true;
    device->memory_cap = 0;
    device->dry_next = first_address(device);
}
