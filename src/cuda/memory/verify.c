/* The checksum of device memory: a kernel on the copy stream, after the upload that it verifies. The sum is
 * stored in a block of the device's scratch pool and copied to the host through pinned memory. */
#include "cuda/api/check.h"
#include "cuda/context/context.h"
#include "cuda/memory/checksum.h"

static tsr_status sum_up(tsr_cuda_device *cuda, const void *bytes, size_t n, uint64_t *sum, uint64_t *home)
{
    tsr_status status = TSR_OK;
    const tsr_cuda_stream s = {.stream = cuda->copies, .props = &cuda->props};
    TSR_TRY(TSR_CUDA(cudaMemsetAsync(sum, 0, sizeof *sum, cuda->copies)));
    TSR_TRY(tsr_cuda_checksum_launch(bytes, n, sum, &s));
    TSR_TRY(TSR_CUDA(cudaMemcpyAsync(home, sum, sizeof *sum, cudaMemcpyDeviceToHost, cuda->copies)));
    TSR_TRY(TSR_CUDA(cudaEventRecord(cuda->copied, cuda->copies)));
    TSR_TRY(tsr_cuda_wait_event(cuda, cuda->copied));
out:
    return status;
}

tsr_status tsr_cuda_checksum(tsr_device *device, const void *bytes, size_t n, uint64_t *sum_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_pool_block *sum = NULL, *home = NULL;
    TSR_TRY(tsr_device_scratch_take(device, sizeof(uint64_t), TSR_STREAM_COPIES, "checksums", &sum));
    TSR_TRY(tsr_cuda_enter_to_copy(cuda));
    status = tsr_pool_take(cuda->pinned, sizeof(uint64_t), TSR_POOL_HOST, "checksums", &home);
    if (status == TSR_OK) {
        atomic_store(&cuda->copies_pending, true);
        status = sum_up(cuda, bytes, n, sum->data, home->data);
        if (status == TSR_OK)
            *sum_out = *(const uint64_t *)home->data;
        else
            tsr_cuda_quiesce_to_release(cuda); /* no work may write to the blocks when they are given back */
    }
    tsr_cuda_leave(cuda);
out:
    tsr_pool_give(cuda->pinned, home, TSR_POOL_HOST);
    tsr_device_scratch_give(device, sum, status == TSR_OK ? TSR_STREAM_COPIES : TSR_POOL_HOST);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s: checksum", device->name);
}
