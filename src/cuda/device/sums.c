/* Sums in a stream of their own (sums.h). */
#include "cuda/device/sums.h"

#include "core/comm.h"
#include "cuda/api/check.h"
#include "cuda/comm/staged.h"

tsr_status tsr_cuda_sums_open(tsr_cuda_device *cuda, const tsr_op *ops, int n_ops)
{
    tsr_status status = TSR_OK;
    tsr_cuda_sums *sums = &cuda->sums;
    bool any = false;
    for (int i = 0; i < n_ops; i++)
        any = any || (tsr_cuda_sums_may_fork(cuda, &ops[i]) && !tsr_cuda_is_staged(&ops[i]));
    if (!any || sums->stream)
        return TSR_OK;
    TSR_TRY(TSR_CUDA(cudaEventCreateWithFlags(&sums->forked, cudaEventDisableTiming)));
    for (int i = 0; i < TSR_CUDA_SUMS; i++)
        TSR_TRY(TSR_CUDA(cudaEventCreateWithFlags(&sums->ended[i], cudaEventDisableTiming)));
    TSR_TRY(TSR_CUDA(cudaStreamCreateWithFlags(&sums->stream, cudaStreamNonBlocking)));
out:
    if (status != TSR_OK)
        tsr_cuda_sums_close(cuda);
    return status;
}

void tsr_cuda_sums_close(tsr_cuda_device *cuda)
{
    tsr_cuda_sums *sums = &cuda->sums;
    if (sums->stream)
        (void)cudaStreamDestroy(sums->stream);
    for (int i = 0; i < TSR_CUDA_SUMS; i++)
        if (sums->ended[i])
            (void)cudaEventDestroy(sums->ended[i]);
    if (sums->forked)
        (void)cudaEventDestroy(sums->forked);
    *sums = (tsr_cuda_sums){0};
}

bool tsr_cuda_sums_may_fork(const tsr_cuda_device *cuda, const tsr_op *op)
{
    return op->kind == TSR_OP_ALL_REDUCE && op->all_reduce.beside &&
           tsr_device_set_has(op->all_reduce.collective->desc->contributors, cuda->base.index);
}

static tsr_status join_at(tsr_cuda_device *cuda, int i)
{
    cuda->sums.running[i] = NULL;
    return TSR_CUDA(cudaStreamWaitEvent(cuda->stream, cuda->sums.ended[i], 0));
}

tsr_status tsr_cuda_sums_fork(tsr_cuda_device *cuda, const tsr_op *op)
{
    tsr_status status = TSR_OK;
    tsr_cuda_sums *sums = &cuda->sums;
    struct tsr_collective *collective = op->all_reduce.collective;
    const int at = (int)(sums->n % TSR_CUDA_SUMS);
    if (sums->running[at])
        TSR_TRY(join_at(cuda, at));
    TSR_TRY(TSR_CUDA(cudaEventRecord(sums->forked, cuda->stream)));
    TSR_TRY(TSR_CUDA(cudaStreamWaitEvent(sums->stream, sums->forked, 0)));
    TSR_TRY(collective->comm->ops->enqueue(collective->comm, &cuda->base, op, sums->stream));
    TSR_TRY(TSR_CUDA(cudaEventRecord(sums->ended[at], sums->stream)));
    sums->running[at] = collective;
    sums->n++;
out:
    return status;
}

tsr_status tsr_cuda_sums_join(tsr_cuda_device *cuda, const struct tsr_collective *collective)
{
    for (int i = 0; i < TSR_CUDA_SUMS; i++)
        if (cuda->sums.running[i] == collective)
            return join_at(cuda, i);
    return TSR_OK;
}

tsr_status tsr_cuda_sums_join_all(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < TSR_CUDA_SUMS; i++) {
        const tsr_status joined = cuda->sums.running[i] ? join_at(cuda, i) : TSR_OK;
        status = status == TSR_OK ? joined : status;
    }
    return status;
}
