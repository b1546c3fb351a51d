/* Capturing launches into a graph; see capture.h. */
#include "cuda/context/capture.h"

#include "cuda/api/check.h"
#include "cuda/context/context.h"

/* Instantiated and uploaded here, so that the first launch is as fast as later ones. */
static tsr_status make_executable(const tsr_cuda_device *cuda, cudaGraph_t graph, cudaGraphExec_t *graph_out)
{
    tsr_status status = TSR_OK;
    cudaGraphExec_t made = NULL;
    TSR_TRY(TSR_CUDA(cudaGraphInstantiate(&made, graph, 0)));
    status = TSR_CUDA(cudaGraphUpload(made, cuda->stream));
    if (status == TSR_OK)
        *graph_out = made;
    else
        (void)cudaGraphExecDestroy(made);
out:
    return status;
}

/* Relaxed mode: this thread makes no call that a capture forbids, and the calls of other threads do not
 * matter. */
tsr_status tsr_cuda_capture(tsr_cuda_device *cuda, tsr_status (*enqueue)(void *what), void *what,
                            cudaGraphExec_t *graph_out)
{
    cudaGraph_t graph = NULL;
    *graph_out = NULL;
    tsr_status status = TSR_CUDA(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeRelaxed));
    if (status != TSR_OK)
        return status;
    status = enqueue(what);
    cudaError_t ended = cudaStreamEndCapture(cuda->stream, &graph); /* also after a failure */
    if (status == TSR_OK)
        status = tsr_cuda_result(ended, "cudaStreamEndCapture");
    (void)cudaGetLastError();
    if (status == TSR_OK)
        status = make_executable(cuda, graph, graph_out);
    if (graph)
        (void)cudaGraphDestroy(graph);
    return status;
}
