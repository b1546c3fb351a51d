/* Host memory read in place; see wrap.h. */
#include "cuda/memory/wrap.h"

#include <unistd.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/context/context.h"

/* Registered pages [begin, end). */
typedef struct registration {
    struct registration *next;
    uintptr_t begin, end;
    int n_users;  /* wraps that touch it */
    bool foreign; /* registered by other code, which keeps it registered while the memory is wrapped */
} registration;

struct tsr_cuda_registry {
    int n_devices;
    registration *list;
};

struct tsr_cuda_wrap {
    struct tsr_cuda_wrap *next;
    const void *wrapped;
    size_t bytes;
    uintptr_t begin, end; /* pages in the registry; begin == end: none needed */
};

/* -- what the GPU can do -- */

static tsr_status has_attribute(const tsr_cuda_device *cuda, enum cudaDeviceAttr attribute, bool *has_out)
{
    int value = 0;
    tsr_status status = TSR_CUDA(cudaDeviceGetAttribute(&value, attribute, cuda->ordinal));
    *has_out = value != 0;
    return status;
}

tsr_status tsr_cuda_wrapping_open(tsr_cuda_device *cuda, bool forced, double link_bytes_per_s,
                                  tsr_device *sibling)
{
    tsr_status status = TSR_OK;
    tsr_cuda_wrapping *w = &cuda->wrapping;
    bool pageable, page_tables, can_map;
    w->forced = forced;
    w->link_bytes_per_s = link_bytes_per_s;
    TSR_TRY(has_attribute(cuda, cudaDevAttrIntegrated, &w->integrated));
    TSR_TRY(has_attribute(cuda, cudaDevAttrPageableMemoryAccess, &pageable));
    TSR_TRY(has_attribute(cuda, cudaDevAttrPageableMemoryAccessUsesHostPageTables, &page_tables));
    TSR_TRY(has_attribute(cuda, cudaDevAttrCanMapHostMemory, &can_map));
    TSR_TRY(has_attribute(cuda, cudaDevAttrHostRegisterSupported, &w->can_register));
    TSR_TRY(has_attribute(cuda, cudaDevAttrHostRegisterReadOnlySupported, &w->read_only_flag));
    w->coherent = pageable && page_tables;
    w->can_register = w->can_register && can_map;
    cuda->base.prefers_copies = !w->forced;
    if (sibling)
        w->registry = tsr_cuda(sibling)->wrapping.registry;
    else
        TSR_TRY(TSR_NEW(&w->registry, "a list of registered memory"));
    w->registry->n_devices++;
out:
    return status;
}

void tsr_cuda_wrapping_close(tsr_cuda_device *cuda)
{
    struct tsr_cuda_registry *registry = cuda->wrapping.registry;
    cuda->wrapping.registry = NULL;
    while (cuda->wrapping.wraps) { /* of a device that was given up: its registrations are lost */
        struct tsr_cuda_wrap *wrap = cuda->wrapping.wraps;
        cuda->wrapping.wraps = wrap->next;
        tsr_mem_free(wrap);
    }
    if (!registry || --registry->n_devices > 0)
        return;
    while (registry->list) {
        registration *r = registry->list;
        registry->list = r->next;
        tsr_mem_free(r);
    }
    tsr_mem_free(registry);
}

/* -- registered pages -- */

/* With the read-only flag where the device supports it: maps of files opened for reading need it. Some
 * drivers report the attribute and refuse the flag, hence the second try. */
static cudaError_t register_pages(const tsr_cuda_device *cuda, uintptr_t begin, uintptr_t end)
{
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    cudaError_t error = cudaErrorNotSupported;
    if (cuda->wrapping.read_only_flag)
        error = cudaHostRegister((void *)begin, end - begin, flags | cudaHostRegisterReadOnly);
    if (error != cudaSuccess && error != cudaErrorHostMemoryAlreadyRegistered) {
        (void)cudaGetLastError();
        error = cudaHostRegister((void *)begin, end - begin, flags);
    }
    return error;
}

/* Whether a host address is already registered for the current device. */
static bool is_mapped(uintptr_t at)
{
    void *mapped;
    bool found = cudaHostGetDevicePointer(&mapped, (void *)at, 0) == cudaSuccess;
    (void)cudaGetLastError();
    return found;
}

/* Add pages none of which is in the list. Pages may be registered already, by the caller or by another
 * runtime. The caller of wrap promises that wrapped memory does not change, including its registration. */
static tsr_status add_registration(tsr_cuda_device *cuda, uintptr_t begin, uintptr_t end)
{
    tsr_status status = TSR_OK;
    registration *r = NULL;
    bool foreign = false;
    TSR_TRY(TSR_NEW(&r, "a registration of host memory"));
    cudaError_t error = register_pages(cuda, begin, end);
    if (error == cudaErrorHostMemoryAlreadyRegistered) {
        (void)cudaGetLastError();
        foreign = is_mapped(begin) && is_mapped(end - 1);
        if (!foreign)
            status = tsr_fail(TSR_ERR_UNSUPPORTED,
                              "part of %zu bytes of host memory at %p is registered with CUDA already; "
                              "register all of it, mapped, or none",
                              (size_t)(end - begin), (void *)begin);
    } else {
        status = tsr_cuda_result(error, "cudaHostRegister");
        if (status == TSR_ERR_DEVICE) /* not out of memory, not lost: this memory cannot be mapped */
            status = tsr_fail_in(TSR_ERR_UNSUPPORTED, "%zu bytes of host memory at %p", (size_t)(end - begin),
                                 (void *)begin);
    }
    if (status != TSR_OK)
        goto out;
    *r = (registration){cuda->wrapping.registry->list, begin, end, 0, foreign};
    cuda->wrapping.registry->list = r;
    r = NULL;
out:
    tsr_mem_free(r);
    return status;
}

/* Unregister unused registrations. */
static void sweep(struct tsr_cuda_registry *registry)
{
    registration **link = &registry->list;
    while (*link) {
        registration *r = *link;
        if (r->n_users > 0) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        if (!r->foreign)
            (void)cudaHostUnregister((void *)r->begin);
        tsr_mem_free(r);
    }
    (void)cudaGetLastError();
}

static void count_users(struct tsr_cuda_registry *registry, uintptr_t begin, uintptr_t end, int change)
{
    for (registration *r = registry->list; r; r = r->next)
        if (r->begin < end && begin < r->end)
            r->n_users += change;
}

/* The next address after `at` where the list changes: the end of the registration that contains `at`
 * (*known_out), or the start of the next one. */
static uintptr_t next_edge(const struct tsr_cuda_registry *registry, uintptr_t at, uintptr_t end,
                           bool *known_out)
{
    *known_out = false;
    for (const registration *r = registry->list; r; r = r->next) {
        if (r->begin <= at && at < r->end) {
            *known_out = true;
            return TSR_MIN(end, r->end);
        }
        if (at < r->begin && r->begin < end)
            end = r->begin;
    }
    return end;
}

/* Register the missing pages of [begin, end), and count one more user. */
static tsr_status use_pages(tsr_cuda_device *cuda, uintptr_t begin, uintptr_t end)
{
    tsr_status status = TSR_OK;
    struct tsr_cuda_registry *registry = cuda->wrapping.registry;
    bool known;
    for (uintptr_t at = begin, edge; at < end; at = edge) {
        edge = next_edge(registry, at, end, &known);
        if (!known)
            TSR_TRY(add_registration(cuda, at, edge));
    }
    count_users(registry, begin, end, 1);
out:
    if (status != TSR_OK)
        sweep(registry);
    return status;
}

static void drop_pages(tsr_cuda_device *cuda, uintptr_t begin, uintptr_t end)
{
    count_users(cuda->wrapping.registry, begin, end, -1);
    sweep(cuda->wrapping.registry);
}

/* -- wrapping -- */

/* The device address of the memory. Neighbouring registrations need not have neighbouring device
 * addresses. */
static tsr_status find_mapped(const void *pointer, size_t bytes, const void **mapped_out)
{
    tsr_status status = TSR_OK;
    void *first, *last;
    TSR_TRY(TSR_CUDA(cudaHostGetDevicePointer(&first, (void *)pointer, 0)));
    TSR_TRY(TSR_CUDA(cudaHostGetDevicePointer(&last, (unsigned char *)pointer + (bytes - 1), 0)));
    if ((unsigned char *)last - (unsigned char *)first != (ptrdiff_t)(bytes - 1))
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%zu bytes of host memory at %p are not contiguous for the GPU",
                        bytes, pointer);
    *mapped_out = first;
out:
    return status;
}

/* Wrap memory by registration. */
static tsr_status map_pages(tsr_cuda_device *cuda, const void *pointer, struct tsr_cuda_wrap *wrap)
{
    tsr_status status = TSR_OK;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)pointer & ~(page - 1);
    uintptr_t end = ((uintptr_t)pointer + wrap->bytes + page - 1) & ~(page - 1);
    TSR_TRY(use_pages(cuda, begin, end));
    status = find_mapped(pointer, wrap->bytes, &wrap->wrapped);
    if (status != TSR_OK) {
        drop_pages(cuda, begin, end);
        goto out;
    }
    wrap->begin = begin;
    wrap->end = end;
out:
    return status;
}

static tsr_status refuse(const tsr_cuda_device *cuda)
{
    const tsr_cuda_wrapping *w = &cuda->wrapping;
    if ((w->integrated || w->forced) && !w->can_register)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "the GPU cannot map host memory; copy the weights to it");
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "the GPU reads host memory only over the bus; copy the weights to it, or open it with "
                    "wrap=1 to let it read them slowly");
}

tsr_status tsr_cuda_wrap(tsr_device *device, const void *pointer, size_t bytes, const void **wrapped_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_cuda_wrapping *w = &cuda->wrapping;
    struct tsr_cuda_wrap *wrap = NULL;
    tsr_status status = tsr_cuda_enter_to_copy(cuda);
    if (status != TSR_OK)
        return status;
    if (!w->coherent && !((w->integrated || w->forced) && w->can_register)) {
        status = refuse(cuda);
        goto out;
    }
    TSR_TRY(TSR_NEW(&wrap, "a piece of wrapped memory"));
    *wrap = (struct tsr_cuda_wrap){.next = w->wraps, .wrapped = pointer, .bytes = bytes};
    if (!w->coherent && bytes > 0)
        TSR_TRY(map_pages(cuda, pointer, wrap));
    w->wraps = wrap;
    w->bytes += bytes;
    *wrapped_out = wrap->wrapped;
    wrap = NULL;
out:
    tsr_mem_free(wrap);
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", device->name);
}

void tsr_cuda_unwrap(tsr_device *device, const void *wrapped, size_t bytes)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    struct tsr_cuda_wrap **link = &cuda->wrapping.wraps, *wrap;
    while (*link && !((*link)->wrapped == wrapped && (*link)->bytes == bytes))
        link = &(*link)->next;
    wrap = *link;
    if (!wrap)
        return;
    if (wrap->begin < wrap->end) {
        if (!tsr_cuda_enter_to_release(cuda))
            return; /* work may still read it: stays registered */
        tsr_cuda_quiesce_to_release(cuda);
        drop_pages(cuda, wrap->begin, wrap->end);
        tsr_cuda_leave(cuda);
    }
    *link = wrap->next;
    cuda->wrapping.bytes -= wrap->bytes;
    tsr_mem_free(wrap);
}

tsr_status tsr_cuda_check_writable(const tsr_cuda_device *cuda, const void *dst, size_t bytes)
{
    uintptr_t begin = (uintptr_t)dst;
    for (const struct tsr_cuda_wrap *wrap = cuda->wrapping.wraps; wrap; wrap = wrap->next)
        if (begin < (uintptr_t)wrap->wrapped + wrap->bytes && (uintptr_t)wrap->wrapped < begin + bytes)
            return tsr_fail(TSR_ERR_INVALID,
                            "device %s: the memory at %p is the caller's, wrapped for reading; it is never "
                            "written",
                            cuda->base.name, dst);
    return TSR_OK;
}

void tsr_cuda_wrapping_tell(tsr_cuda_device *cuda)
{
    tsr_cuda_wrapping *w = &cuda->wrapping;
    char text[TSR_BYTES_TEXT];
    /* 16 GT/s x 16 lanes x 128/130: a PCIe 4 slot, where the link is not known. */
    double rate = w->link_bytes_per_s > 0 ? w->link_bytes_per_s : 31.5e9;
    if (!w->forced || w->integrated || w->bytes == w->told_bytes)
        return;
    w->told_bytes = w->bytes;
    if (w->bytes > 0)
        tsr_log(&cuda->logger, TSR_LOG_WARN,
                "device %s: %s stay in host memory (wrap=1): a token that reads them all waits %.3g ms for "
                "the link to the host, at its %.3g GB/s%s",
                cuda->base.name, tsr_bytes_text(w->bytes, text), 1e3 * (double)w->bytes / rate, rate / 1e9,
                w->link_bytes_per_s > 0 ? "" : " (assumed)");
}
