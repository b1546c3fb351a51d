/* Host memory as a device, with checks and failures; fake_device.h is the manual. */
#include "support/fake_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "alloc/buffer/dry_device.h"
#include "core/mem.h"

enum { POISON = 0xA5 };

/* Something handed out: an allocation, a reservation (with one flag per granule) or a wrapped range. */
typedef struct block {
    struct block *next;
    unsigned char *data;
    size_t bytes;
    bool wrapped;
    bool *committed; /* reservations */
} block;

typedef struct fake_device {
    tsr_device base;
    bool refuses_wrap;
    block *blocks;
    int64_t calls[FAKE_CALL_COUNT];
    int64_t fail_at[FAKE_CALL_COUNT]; /* in numbers of calls[], 0 = none */
    size_t memory, others;            /* what it has, and what others have taken of that */
    int64_t corrupt;                  /* uploads until one is changed, 0 = none */
} fake_device;

static fake_device *self_of(tsr_device *device)
{
    return (fake_device *)device;
}

/* Count a call; its status if it is to fail. */
static tsr_status count_call(tsr_device *device, fake_call call)
{
    fake_device *self = self_of(device);
    if (++self->calls[call] != self->fail_at[call])
        return TSR_OK;
    self->fail_at[call] = 0;
    return tsr_fail(call <= FAKE_COMMIT ? TSR_ERR_MEMORY : TSR_ERR_DEVICE, "device %s: made to fail",
                    device->name);
}

static void add_block(fake_device *self, void *data, size_t bytes, bool wrapped, size_t n_granules)
{
    block *b = calloc(1, sizeof *b);
    assert_non_null(b);
    *b = (block){.next = self->blocks, .data = data, .bytes = bytes, .wrapped = wrapped};
    if (n_granules > 0) {
        b->committed = calloc(n_granules, sizeof *b->committed);
        assert_non_null(b->committed);
    }
    self->blocks = b;
}

/* Take the block that starts at `data` off the list; it must have these bytes. */
static void remove_block(fake_device *self, const void *data, size_t bytes, bool wrapped)
{
    for (block **link = &self->blocks; *link; link = &(*link)->next) {
        block *b = *link;
        if (b->data != data || b->bytes != bytes || b->wrapped != wrapped)
            continue;
        *link = b->next;
        free(b->committed);
        free(b);
        return;
    }
    fail_msg("device %s: %zu bytes at %p were never handed out", self->base.name, bytes, data);
}

static bool is_committed(const fake_device *self, const block *b, size_t offset, size_t bytes)
{
    size_t granularity = self->base.granularity;
    for (size_t at = offset / granularity; b->committed && at * granularity < offset + bytes; at++)
        if (!b->committed[at])
            return false;
    return true;
}

/* Every access must be in one live block, in committed memory, and not write what is only wrapped. */
static void check_access(fake_device *self, const void *pointer, size_t bytes, bool write)
{
    const unsigned char *p = pointer;
    for (const block *b = self->blocks; b; b = b->next)
        if (p >= b->data && bytes <= b->bytes && (size_t)(p - b->data) <= b->bytes - bytes &&
            !(write && b->wrapped) && is_committed(self, b, (size_t)(p - b->data), bytes))
            return;
    fail_msg("device %s: stray %s of %zu bytes at %p", self->base.name, write ? "write" : "read", bytes,
             pointer);
}

static void fake_destroy(tsr_device *device)
{
    fake_device *self = self_of(device);
    assert_null(self->blocks);
    free(self);
}

static tsr_status fake_alloc(tsr_device *device, tsr_memory_owner owner, size_t bytes, void **pointer_out)
{
    (void)owner;
    tsr_status status = TSR_OK;
    size_t alignment = TSR_MAX(device->alignment, (size_t)256);
    TSR_TRY(count_call(device, FAKE_ALLOC));
    assert_true(bytes > 0 && bytes <= device->max_alloc);
    void *data = aligned_alloc(alignment, tsr_align_up(bytes, alignment));
    if (!data)
        return tsr_fail(TSR_ERR_MEMORY, "device %s: no memory for %zu bytes", device->name, bytes);
    memset(data, POISON, bytes);
    add_block(self_of(device), data, bytes, false, 0);
    *pointer_out = data;
out:
    return status;
}

static void fake_free(tsr_device *device, void *pointer, size_t bytes)
{
    remove_block(self_of(device), pointer, bytes, false);
    free(pointer);
}

static tsr_status fake_reserve(tsr_device *device, size_t bytes, void **base_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(count_call(device, FAKE_RESERVE));
    assert_true(bytes > 0 && bytes % device->granularity == 0);
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return tsr_fail(TSR_ERR_MEMORY, "device %s: no address space for %zu bytes", device->name, bytes);
    add_block(self_of(device), base, bytes, false, bytes / device->granularity);
    *base_out = base;
out:
    return status;
}

static void fake_release(tsr_device *device, void *base, size_t bytes)
{
    remove_block(self_of(device), base, bytes, false);
    munmap(base, bytes);
}

/* Mark granules of a reservation, which must all have been in the other state. */
static void mark(tsr_device *device, const void *base, size_t offset, size_t bytes, bool committed)
{
    size_t granularity = device->granularity;
    block *b = self_of(device)->blocks;
    while (b && b->data != base)
        b = b->next;
    assert_non_null(b);
    assert_true(bytes > 0 && offset % granularity == 0 && bytes % granularity == 0 && offset <= b->bytes &&
                bytes <= b->bytes - offset);
    for (size_t i = offset / granularity; i < (offset + bytes) / granularity; i++) {
        assert_true(b->committed[i] != committed);
        b->committed[i] = committed;
    }
}

static tsr_status fake_commit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    tsr_status status = TSR_OK;
    TSR_TRY(count_call(device, FAKE_COMMIT));
    if (mprotect((unsigned char *)base + offset, bytes, PROT_READ | PROT_WRITE) != 0)
        return tsr_fail(TSR_ERR_MEMORY, "device %s: cannot commit %zu bytes", device->name, bytes);
    mark(device, base, offset, bytes, true);
out:
    return status;
}

static tsr_status fake_decommit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    tsr_status status = TSR_OK;
    TSR_TRY(count_call(device, FAKE_DECOMMIT));
    mark(device, base, offset, bytes, false);
    void *p = mmap((unsigned char *)base + offset, bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    assert_true(p != MAP_FAILED);
out:
    return status;
}

static tsr_status fake_memory_info(tsr_device *device, size_t *free_out, size_t *total_out)
{
    const fake_device *self = self_of(device);
    size_t held = self->others;
    for (const block *b = self->blocks; b; b = b->next)
        if (!b->wrapped && !b->committed)
            held += b->bytes;
    held += fake_device_committed_bytes(device);
    *total_out = self->memory;
    *free_out = self->memory - TSR_MIN(self->memory, held);
    return TSR_OK;
}

static tsr_status fake_wrap(tsr_device *device, const void *pointer, size_t bytes, const void **wrapped_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(count_call(device, FAKE_WRAP));
    if (self_of(device)->refuses_wrap)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "device %s cannot read host memory", device->name);
    add_block(self_of(device), (void *)pointer, bytes, true, 0);
    *wrapped_out = pointer;
out:
    return status;
}

static void fake_unwrap(tsr_device *device, const void *wrapped, size_t bytes)
{
    remove_block(self_of(device), wrapped, bytes, true);
}

static void copy_2d(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t width,
                    size_t height)
{
    for (size_t row = 0; row < height; row++)
        memcpy((unsigned char *)dst + row * dst_stride, (const unsigned char *)src + row * src_stride, width);
}

static tsr_status fake_upload(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                              size_t src_stride, size_t width, size_t height)
{
    tsr_status status = TSR_OK;
    TSR_TRY(count_call(device, FAKE_UPLOAD));
    assert_true(width > 0 && height > 0 && dst_stride >= width && src_stride >= width);
    check_access(self_of(device), dst, (height - 1) * dst_stride + width, true);
    copy_2d(dst, dst_stride, src, src_stride, width, height);
    if (self_of(device)->corrupt > 0 && --self_of(device)->corrupt == 0)
        ((unsigned char *)dst)[(height - 1) * dst_stride + width - 1] ^= 1;
out:
    return status;
}

static tsr_status fake_download(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                                size_t src_stride, size_t width, size_t height)
{
    tsr_status status = TSR_OK;
    TSR_TRY(count_call(device, FAKE_DOWNLOAD));
    assert_true(width > 0 && height > 0 && dst_stride >= width && src_stride >= width);
    check_access(self_of(device), src, (height - 1) * src_stride + width, false);
    copy_2d(dst, dst_stride, src, src_stride, width, height);
out:
    return status;
}

static tsr_status fake_copy(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                            size_t src_stride, size_t width, size_t height)
{
    tsr_status status = TSR_OK;
    TSR_TRY(count_call(device, FAKE_COPY));
    assert_true(width > 0 && height > 0 && dst_stride >= width && src_stride >= width);
    check_access(self_of(device), src, (height - 1) * src_stride + width, false);
    check_access(self_of(device), dst, (height - 1) * dst_stride + width, true);
    copy_2d(dst, dst_stride, src, src_stride, width, height);
out:
    return status;
}

static tsr_status fake_program_create(tsr_device *device, const tsr_op *ops, int n_ops,
                                      tsr_device_program **program_out)
{
    (void)ops, (void)n_ops;
    *program_out = (tsr_device_program *)device;
    return TSR_OK;
}

static void fake_program_destroy(tsr_device *device, tsr_device_program *program)
{
    (void)device, (void)program;
}

static tsr_status fake_launch(tsr_device *device, tsr_device_program *program)
{
    (void)program;
    return tsr_fail(TSR_ERR_UNSUPPORTED, "device %s runs no programs", device->name);
}

static tsr_status fake_synchronize(tsr_device *device, uint64_t timeout_ns)
{
    (void)device, (void)timeout_ns;
    return TSR_OK;
}

static tsr_status fake_wait_queue(tsr_device *device, int n_left, uint64_t timeout_ns)
{
    (void)device, (void)n_left, (void)timeout_ns;
    return TSR_OK;
}

static const struct tsr_device_ops fake_ops = {
    .kind = TSR_DEVICE_HOST,
    .destroy = fake_destroy,
    .alloc = fake_alloc,
    .free = fake_free,
    .reserve = fake_reserve,
    .release = fake_release,
    .commit = fake_commit,
    .decommit = fake_decommit,
    .memory_info = fake_memory_info,
    .wrap = fake_wrap,
    .unwrap = fake_unwrap,
    .upload = fake_upload,
    .download = fake_download,
    .copy = fake_copy,
    .program_create = fake_program_create,
    .program_destroy = fake_program_destroy,
    .launch = fake_launch,
    .synchronize = fake_synchronize,
    .wait_queue = fake_wait_queue,
};

fake_device_config fake_device_defaults(void)
{
    return (fake_device_config){SIZE_MAX, 64, SIZE_MAX, 4096, false};
}

tsr_device *fake_device_create(int index, const fake_device_config *config)
{
    fake_device *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->base.ops = &fake_ops;
    self->base.index = index;
    self->base.memory_cap = config->memory_cap;
    self->base.alignment = config->alignment;
    self->base.max_alloc = config->max_alloc;
    self->base.granularity = config->granularity;
    self->base.place = index;
    self->memory = config->memory_cap;
    self->refuses_wrap = config->refuses_wrap;
    snprintf(self->base.name, sizeof self->base.name, "fake:%d", index);
    return &self->base;
}

void fake_device_fail(tsr_device *device, fake_call call, int64_t n)
{
    fake_device *self = self_of(device);
    self->fail_at[call] = n > 0 ? self->calls[call] + n : 0;
}

void fake_device_others(tsr_device *device, size_t memory, size_t others)
{
    self_of(device)->memory = memory;
    self_of(device)->others = others;
}

void fake_device_corrupt(tsr_device *device, int64_t n)
{
    self_of(device)->corrupt = n;
}

int64_t fake_device_calls(const tsr_device *device, fake_call call)
{
    return ((const fake_device *)device)->calls[call];
}

size_t fake_device_live_bytes(const tsr_device *device)
{
    size_t bytes = 0;
    for (const block *b = ((const fake_device *)device)->blocks; b; b = b->next)
        bytes += b->bytes;
    return bytes;
}

size_t fake_device_committed_bytes(const tsr_device *device)
{
    size_t bytes = 0;
    for (const block *b = ((const fake_device *)device)->blocks; b; b = b->next)
        for (size_t i = 0; b->committed && i < b->bytes / device->granularity; i++)
            bytes += b->committed[i] ? device->granularity : 0;
    return bytes;
}

static void runtime_init(fake_runtime *fake, int n_devices)
{
    assert_true(n_devices >= 1 && n_devices <= TSR_MAX_DEVICES);
    memset(fake, 0, sizeof *fake);
    fake->rt.n_devices = n_devices;
    fake->rt.devices = fake->devices;
}

void fake_runtime_open(fake_runtime *fake, int n_devices, const fake_device_config *configs)
{
    fake_device_config defaults = fake_device_defaults();
    runtime_init(fake, n_devices);
    for (int d = 0; d < n_devices; d++)
        fake->devices[d] = fake_device_create(d, configs ? &configs[d] : &defaults);
}

void fake_runtime_open_dry(fake_runtime *fake, int n_devices, const fake_device_config *configs)
{
    fake_device_config defaults = fake_device_defaults();
    runtime_init(fake, n_devices);
    fake->rt.no_alloc = true;
    for (int d = 0; d < n_devices; d++) {
        const fake_device_config *c = configs ? &configs[d] : &defaults;
        assert_int_equal(tsr_measure_device_create("measured", d, c->memory_cap, c->alignment, c->max_alloc,
                                                   c->granularity, &fake->devices[d]),
                         TSR_OK);
    }
}

void fake_runtime_close(fake_runtime *fake)
{
    if (fake->rt.buffer_types_destroy)
        fake->rt.buffer_types_destroy(fake->rt.buffer_types);
    for (int d = 0; d < fake->rt.n_devices; d++) {
        assert_int_equal(tsr_device_used(fake->devices[d]), 0);
        tsr_device_destroy(fake->devices[d]);
    }
}
