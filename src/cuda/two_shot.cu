/* The two-shot all-reduce between devices that read each other's memory, for messages so large that bytes
 * count: a reduce-scatter, in which each contributor adds up its share of the elements, and an all-gather of
 * the sums. Each device reads 1/P of every partial and then n f32, where in one shot it reads P whole
 * partials.
 *
 * Elements are handled in tiles. A contributor's share is a range of tiles, and the f32 sums of a tile lie at
 * the front of the tile's own bytes in its owner's partial. Only the owner reads that tile of its partial in
 * the first kernel, in one block, and that block has read all of it before it writes. */
#include "cuda/meet.cuh"
#include "cuda/reduce.cuh"

enum { PACK = 2, TILE_THREADS = 512, TILE = PACK * TILE_THREADS };

TSR_DEVICE int64_t first_tile(int64_t n_tiles, int part, int n_parts)
{
    return n_tiles * part / n_parts;
}

/* The sums of tile `tile`, in the partial of the one who makes them. */
template <typename Partial>
TSR_DEVICE float *sums_of_tile(const tsr_cuda_reduction &reduction, int owner, int64_t tile)
{
    Partial *part = static_cast<Partial *>(const_cast<void *>(reduction.parts[owner]));
    return reinterpret_cast<float *>(part + tile * TILE);
}

template <typename Partial>
__global__ void reduce_share_kernel(const __grid_constant__ tsr_cuda_meeting meeting,
                                    const __grid_constant__ tsr_cuda_reduction reduction, int part)
{
    tsr_meet(meeting);
    if (part < 0)
        return;
    const int64_t n_tiles = (reduction.n + TILE - 1) / TILE;
    const int64_t end = first_tile(n_tiles, part + 1, reduction.n_parts);
    for (int64_t t = first_tile(n_tiles, part, reduction.n_parts) + blockIdx.x; t < end; t += gridDim.x) {
        const int64_t i = t * TILE + PACK * (int64_t)threadIdx.x;
        tsr_pack<float, PACK> sum = {};
        if (i + 1 < reduction.n)
            sum = tsr_sum_of_parts<Partial, PACK>(reduction, i / PACK);
        else if (i < reduction.n)
            sum.at[0] = tsr_sum_of_parts<Partial, 1>(reduction, i).at[0];
        __syncthreads(); /* everybody has read this tile of our own partial */
        float *sums = sums_of_tile<Partial>(reduction, part, t) + PACK * threadIdx.x;
        if (i + 1 < reduction.n)
            *reinterpret_cast<tsr_pack<float, PACK> *>(sums) = sum;
        else if (i < reduction.n)
            sums[0] = sum.at[0];
    }
}

template <typename Partial>
__global__ void gather_shares_kernel(const __grid_constant__ tsr_cuda_meeting meeting,
                                     const __grid_constant__ tsr_cuda_reduction reduction)
{
    tsr_meet(meeting);
    const int64_t n_tiles = (reduction.n + TILE - 1) / TILE;
    int owner = 0;
    for (int64_t t = blockIdx.x; t < n_tiles; t += gridDim.x) {
        while (t >= first_tile(n_tiles, owner + 1, reduction.n_parts))
            owner++;
        const float *sums = sums_of_tile<Partial>(reduction, owner, t);
        TSR_UNROLL
        for (int k = 0; k < PACK; k++) {
            const int at = (int)threadIdx.x + k * TILE_THREADS;
            const int64_t i = t * TILE + at;
            if (i < reduction.n)
                reduction.y[i] = reduction.residual ? sums[at] + reduction.residual[i] : sums[at];
        }
    }
}

/* ---- launchers ---- */

static unsigned blocks_for(int64_t n_tiles, int max_blocks)
{
    return (unsigned)(n_tiles < 1 ? 1 : n_tiles < max_blocks ? n_tiles : max_blocks);
}

extern "C" tsr_status tsr_cuda_meet_reduce_share(const tsr_cuda_meeting *meeting,
                                                 const tsr_cuda_reduction *reduction, int part,
                                                 const tsr_cuda_stream *s)
{
    const int64_t n_tiles = (reduction->n + TILE - 1) / TILE;
    const int64_t largest_share = (n_tiles + reduction->n_parts - 1) / reduction->n_parts;
    const dim3 grid(blocks_for(largest_share, meeting->max_blocks)), block(TILE_THREADS);
    return tsr_cuda_result(
        reduction->type == TSR_REDUCE_EXACT
            ? TSR_LAUNCH((reduce_share_kernel<int64_t>), grid, block, 0, s->stream, *meeting, *reduction,
                         part)
            : TSR_LAUNCH((reduce_share_kernel<float>), grid, block, 0, s->stream, *meeting, *reduction, part),
        "reduce_share_kernel");
}

extern "C" tsr_status tsr_cuda_meet_gather_shares(const tsr_cuda_meeting *meeting,
                                                  const tsr_cuda_reduction *reduction,
                                                  const tsr_cuda_stream *s)
{
    const int64_t n_tiles = (reduction->n + TILE - 1) / TILE;
    const dim3 grid(blocks_for(n_tiles, meeting->max_blocks)), block(TILE_THREADS);
    return tsr_cuda_result(
        reduction->type == TSR_REDUCE_EXACT
            ? TSR_LAUNCH((gather_shares_kernel<int64_t>), grid, block, 0, s->stream, *meeting, *reduction)
            : TSR_LAUNCH((gather_shares_kernel<float>), grid, block, 0, s->stream, *meeting, *reduction),
        "gather_shares_kernel");
}
