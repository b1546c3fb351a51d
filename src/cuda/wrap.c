/* Host memory that kernels read where it lies.
 *
 * Worth it where CPU and GPU share memory (integrated) or a coherent link (Grace: the GPU walks the host's
 * page tables, and nothing needs to be registered). A discrete card reads host memory over PCIe, 20 to 50
 * times slower than its own, on every use: refused unless the device was opened to do it anyway.
 *
 * Registration works on whole pages, and a page can be registered once; neighbouring tensors share pages. So
 * a device keeps a list of what it has registered, registers only what is missing, and unregisters all when
 * the last wrapping ends. */
#include <unistd.h>

#include "core/mem.h"
#include "cuda/check.h"
#include "cuda/gpu.h"

struct tsr_cuda_registration {
    struct tsr_cuda_registration *next;
    uintptr_t begin, end;
};

static tsr_status has_attribute(int ordinal, enum cudaDeviceAttr attribute, bool *has_out)
{
    int value = 0;
    tsr_status status = TSR_CUDA(cudaDeviceGetAttribute(&value, attribute, ordinal));
    *has_out = value != 0;
    return status;
}

/* Leave out of [begin, end) what the list covers at its two ends. */
static void trim(const tsr_cuda_registrations *registrations, uintptr_t *begin, uintptr_t *end)
{
    bool again = true;
    while (again && *begin < *end) {
        again = false;
        for (const struct tsr_cuda_registration *r = registrations->list; r; r = r->next) {
            if (r->begin <= *begin && *begin < r->end) {
                *begin = r->end;
                again = true;
            }
            if (r->begin < *end && *end <= r->end) {
                *end = r->begin;
                again = true;
            }
        }
    }
}

/* With the read-only flag where the device knows it: maps of files opened for reading need it. Some drivers
 * report the attribute and refuse the flag, hence the second try. */
static tsr_status register_pages(tsr_cuda_device *cuda, uintptr_t begin, uintptr_t end)
{
    tsr_status status = TSR_OK;
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    bool read_only;
    TSR_TRY(has_attribute(cuda->ordinal, cudaDevAttrHostRegisterReadOnlySupported, &read_only));
    if (read_only &&
        cudaHostRegister((void *)begin, end - begin, flags | cudaHostRegisterReadOnly) == cudaSuccess)
        goto out;
    (void)cudaGetLastError();
    TSR_TRY(TSR_CUDA(cudaHostRegister((void *)begin, end - begin, flags)));
out:
    return status;
}

static tsr_status add_registration(tsr_cuda_device *cuda, const void *pointer, size_t bytes)
{
    tsr_status status = TSR_OK;
    struct tsr_cuda_registration *r = NULL;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)pointer & ~(page - 1);
    uintptr_t end = ((uintptr_t)pointer + bytes + page - 1) & ~(page - 1);
    trim(&cuda->registrations, &begin, &end);
    if (begin >= end)
        return TSR_OK;
    TSR_TRY(tsr_mem_array(1, sizeof *r, "a registration of host memory", &r));
    TSR_TRY(register_pages(cuda, begin, end));
    *r = (struct tsr_cuda_registration){cuda->registrations.list, begin, end};
    cuda->registrations.list = r;
    r = NULL;
out:
    tsr_mem_free(r);
    return status;
}

static void drop_registrations(tsr_cuda_device *cuda)
{
    struct tsr_cuda_registration *r = cuda->registrations.list;
    cuda->registrations.list = NULL;
    while (r) {
        struct tsr_cuda_registration *next = r->next;
        (void)cudaHostUnregister((void *)r->begin);
        tsr_mem_free(r);
        r = next;
    }
    (void)cudaGetLastError();
}

/* Where the device finds host memory that it can read; integrated or forced. */
static tsr_status wrap_registered(tsr_cuda_device *cuda, const void *pointer, size_t bytes,
                                  const void **wrapped_out)
{
    tsr_status status = TSR_OK;
    void *mapped = NULL;
    TSR_TRY(add_registration(cuda, pointer, bytes));
    status = TSR_CUDA(cudaHostGetDevicePointer(&mapped, (void *)pointer, 0));
    if (status == TSR_OK) {
        cuda->registrations.n_wraps++;
        *wrapped_out = mapped;
    } else if (cuda->registrations.n_wraps == 0) {
        drop_registrations(cuda);
    }
out:
    return status;
}

tsr_status tsr_cuda_wrap(tsr_device *device, const void *pointer, size_t bytes, const void **wrapped_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    bool integrated, page_tables;
    int previous;
    tsr_status status = tsr_cuda_enter(cuda, &previous);
    if (status != TSR_OK)
        return status;
    TSR_TRY(has_attribute(cuda->ordinal, cudaDevAttrPageableMemoryAccessUsesHostPageTables, &page_tables));
    TSR_TRY(has_attribute(cuda->ordinal, cudaDevAttrIntegrated, &integrated));
    if (page_tables) {
        cuda->registrations.n_wraps++;
        *wrapped_out = pointer;
    } else if (integrated || cuda->always_wrap) {
        TSR_TRY(wrap_registered(cuda, pointer, bytes, wrapped_out));
        if (!integrated)
            tsr_log(&cuda->logger, TSR_LOG_WARN,
                    "device %s: %zu bytes stay in host memory, and every use of them crosses the bus",
                    device->name, bytes);
    } else {
        status =
            tsr_fail(TSR_ERR_UNSUPPORTED,
                     "device %s reads host memory only over the bus; copy the weights to it", device->name);
    }
out:
    tsr_cuda_leave(previous);
    return status;
}

void tsr_cuda_unwrap(tsr_device *device, const void *wrapped, size_t bytes)
{
    (void)wrapped, (void)bytes;
    tsr_cuda_device *cuda = tsr_cuda(device);
    int previous;
    if (--cuda->registrations.n_wraps > 0 || !cuda->registrations.list ||
        !tsr_cuda_enter_to_release(cuda, &previous))
        return;
    (void)!tsr_cuda_drain(cuda); /* nothing may still read it */
    drop_registrations(cuda);
    tsr_cuda_leave(previous);
}
