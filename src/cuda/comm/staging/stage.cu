/* See stage.h. Pinned memory is only written. */
#include "cuda/comm/staging/stage.h"

#include "cuda/comm/wire.cuh"

static __global__ void stage_planes_kernel(const int64_t *sums, int64_t n, int64_t *pinned)
{
    for (int64_t t = blockIdx.x; t * TSR_WIRE_TILE < n; t += gridDim.x) {
        const int64_t first = t * TSR_WIRE_TILE;
        const bool whole = first + TSR_WIRE_TILE <= n;
        if (whole)
            tsr_wire_store(tsr_wire_group_of(sums + first, (int)threadIdx.x),
                           reinterpret_cast<unsigned char *>(pinned + first), (int)threadIdx.x);
        for (int64_t i = first + threadIdx.x; !whole && i < n; i += TSR_WIRE_THREADS)
            tsr_link_store(pinned + i, sums[i]);
    }
}

extern "C" tsr_status tsr_cuda_stage_planes(const int64_t *sums, int64_t n, void *pinned,
                                            const tsr_cuda_stream *s)
{
    const int64_t n_tiles = (n + TSR_WIRE_TILE - 1) / TSR_WIRE_TILE, most = (int64_t)s->props->n_sms * 4;
    return tsr_cuda_result(TSR_LAUNCH(stage_planes_kernel, dim3((unsigned)(n_tiles < most ? n_tiles : most)),
                                      dim3(TSR_WIRE_THREADS), 0, s->stream, sums, n,
                                      static_cast<int64_t *>(pinned)),
                           "stage_planes_kernel");
}
