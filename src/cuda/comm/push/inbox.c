/* See inbox.h. */
#include "cuda/comm/push/inbox.h"

#include <string.h>

#include "cuda/api/check.h"
#include "cuda/memory/memory.h"

enum { EMPTY_BYTE = 0xff };

/* -- in host memory -- */

static tsr_status make_pinned(tsr_cuda_inboxes *b, tsr_cuda_device *cuda)
{
    const size_t all = b->bytes * (size_t)b->n_devices;
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    status = tsr_pool_take(cuda->pinned, all, TSR_POOL_HOST, "the inboxes of collectives", &b->pinned);
    tsr_cuda_leave(cuda);
    if (status != TSR_OK)
        return status;
    b->keeper = cuda;
    memset(b->pinned->data, EMPTY_BYTE, all);
    for (int i = 0; i < b->n_devices; i++)
        b->at[i] = (uint64_t *)((unsigned char *)b->pinned->data + b->bytes * (size_t)i);
    return TSR_OK;
}

/* -- on devices -- */

static tsr_status empty_one(const tsr_cuda_inboxes *b, int i)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device *cuda = b->devices[i];
    TSR_TRY(TSR_CUDA(cudaMemsetAsync(b->at[i], EMPTY_BYTE, b->bytes, cuda->stream)));
    TSR_TRY(tsr_cuda_drain(cuda));
out:
    return status;
}

static tsr_status make_one(tsr_cuda_inboxes *b, int i)
{
    tsr_cuda_device *cuda = b->devices[i];
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    TSR_TRY(tsr_cuda_alloc_own(cuda, b->bytes, (void **)&b->at[i]));
    TSR_TRY(empty_one(b, i));
out:
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK
                            : tsr_fail_in(status, "device %s: inbox of the collectives", cuda->base.name);
}

/* -- both -- */

tsr_status tsr_cuda_inboxes_create(tsr_cuda_inboxes *inboxes, tsr_cuda_device *const *devices, int n_devices,
                                   size_t bytes, bool pinned)
{
    tsr_status status = TSR_OK;
    *inboxes = (tsr_cuda_inboxes){.devices = devices, .n_devices = n_devices, .bytes = bytes};
    for (int i = 0; i < n_devices; i++) {
        if (!devices[i] || inboxes->keeper)
            continue;
        TSR_TRY(pinned ? make_pinned(inboxes, devices[i]) : make_one(inboxes, i));
    }
out:
    return status;
}

void tsr_cuda_inboxes_destroy(tsr_cuda_inboxes *inboxes)
{
    if (inboxes->keeper) {
        tsr_pool_give(inboxes->keeper->pinned, inboxes->pinned, TSR_POOL_HOST);
        return;
    }
    for (int i = 0; i < inboxes->n_devices; i++) {
        if (!inboxes->at[i] || !tsr_cuda_enter_to_release(inboxes->devices[i]))
            continue;
        tsr_cuda_free_own(inboxes->devices[i], inboxes->at[i], inboxes->bytes);
        (void)cudaGetLastError();
        tsr_cuda_leave(inboxes->devices[i]);
    }
}

void tsr_cuda_inboxes_reset(tsr_cuda_inboxes *inboxes)
{
    if (inboxes->keeper) {
        memset(inboxes->pinned->data, EMPTY_BYTE, inboxes->bytes * (size_t)inboxes->n_devices);
        return;
    }
    for (int i = 0; i < inboxes->n_devices; i++) {
        if (!inboxes->devices[i] || tsr_cuda_enter(inboxes->devices[i]) != TSR_OK)
            continue; /* lost: its programs will not run again */
        (void)empty_one(inboxes, i);
        (void)cudaGetLastError();
        tsr_cuda_leave(inboxes->devices[i]);
    }
}
