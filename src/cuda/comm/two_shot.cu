/* The two-shot all-reduce between devices that read each other's memory, for messages so large that bytes
 * count: a reduce-scatter, in which each contributor adds up its share of the elements, and an all-gather of
 * the sums. Each device reads 1/P of every partial and then n f32; in one shot it reads P whole partials.
 *
 * Elements are handled in tiles. A contributor's share is a range of tiles. The sums of a tile, as f32 or for
 * BF16 in their own type, are stored at the front of the tile's own bytes in its owner's partial. Only the
 * owner reads that tile of its partial in the first kernel, in one block, and that block has read all of it
 * before it writes.
 *
 * Exact partials are 64-bit integers. Before a device announces its partial, it makes planes of the whole
 * tiles that others read (core/quant/wire.h), of which these read 4 or 5 bytes per element. A block makes
 * those that blocks of its number read, because it is announced to them alone. */
#include "cuda/comm/device_barrier.cuh"
#include "cuda/comm/reduce.cuh"
#include "cuda/comm/wire.cuh"

enum { TILE_THREADS = 512, GATHER_LOADS = 4, TOGETHER = 4 };
static_assert((int)TSR_WIRE_THREADS == (int)TILE_THREADS, "a thread has a group of a tile on the wire");

/* Elements per thread: at least 8 bytes, for loads over a link. */
template <typename Partial> struct shot {
    static constexpr int pack = sizeof(Partial) == sizeof(float) ? 2 : TSR_WIRE_GROUP;
    static constexpr int tile = pack * TILE_THREADS;
    typedef typename tsr_sum_of<Partial>::stored stored;
    static constexpr int gathered = 16 / (int)sizeof(stored); /* sums per load */
};

TSR_DEVICE int64_t first_tile(int64_t n_tiles, int part, int n_parts)
{
    return n_tiles * part / n_parts;
}

/* The sums of tile `tile`, in the partial of the device that computes them. */
template <typename Partial>
TSR_DEVICE typename shot<Partial>::stored *sums_of_tile(const tsr_cuda_reduction &reduction, int owner,
                                                        int64_t tile)
{
    Partial *part = static_cast<Partial *>(const_cast<void *>(reduction.parts[owner]));
    return reinterpret_cast<typename shot<Partial>::stored *>(part + tile * shot<Partial>::tile);
}

TSR_DEVICE void store_sum(float *to, float sum)
{
    *to = sum;
}

TSR_DEVICE void store_sum(tsr_bfloat *to, float sum)
{
    to->bits = tsr_bfloat_from_f32(sum); /* rounded already */
}

/* Get our own partial ready for those who add up other shares. */
template <typename Partial> TSR_DEVICE void make_readable(Partial, const tsr_cuda_reduction &, int)
{
}

TSR_DEVICE void make_readable(int64_t, const tsr_cuda_reduction &reduction, int part)
{
    constexpr int TILE = shot<int64_t>::tile;
    const int64_t n_tiles = (reduction.n + TILE - 1) / TILE, n_whole = reduction.n / TILE;
    int64_t *partial = static_cast<int64_t *>(const_cast<void *>(reduction.parts[part]));
    for (int owner = 0; owner < reduction.n_parts; owner++) {
        const int64_t end = first_tile(n_tiles, owner + 1, reduction.n_parts);
        for (int64_t t = first_tile(n_tiles, owner, reduction.n_parts) + blockIdx.x; t < end; t += gridDim.x)
            if (owner != part && t < n_whole)
                tsr_wire_pack(partial + t * TILE);
    }
    __syncthreads(); /* the threads of warp 0 announce the stores of all */
}

/* The thread's sums of tile t, which is whole. The loads of several parts are in flight together. */
template <typename Partial>
TSR_DEVICE tsr_pack<float, shot<Partial>::pack> sum_of_tile(Partial, const tsr_cuda_reduction &reduction, int,
                                                            int64_t t)
{
    return tsr_sum_of_parts<Partial, shot<Partial>::pack>(reduction, t * TILE_THREADS + threadIdx.x);
}

TSR_DEVICE tsr_pack<float, TSR_WIRE_GROUP> sum_of_tile(int64_t, const tsr_cuda_reduction &reduction, int part,
                                                       int64_t t)
{
    constexpr int TILE = shot<int64_t>::tile;
    const int nth = (int)threadIdx.x;
    int64_t sum[TSR_WIRE_GROUP];
    tsr_wire_load_sums(static_cast<const int64_t *>(reduction.parts[part]) + t * TILE, nth, sum);
    for (int first = 0; first < reduction.n_parts; first += TOGETHER) {
        tsr_wire_lows low[TOGETHER] = {};
        const unsigned char *tile[TOGETHER] = {}; /* NULL: none, or our own */
        TSR_UNROLL
        for (int k = 0; k < TOGETHER; k++)
            if (first + k < reduction.n_parts && first + k != part) {
                tile[k] = static_cast<const unsigned char *>(reduction.parts[first + k]) +
                          t * TILE * (int64_t)sizeof(int64_t);
                low[k] = tsr_wire_load(tile[k], nth);
            }
        TSR_UNROLL
        for (int k = 0; k < TOGETHER; k++)
            if (tile[k])
                tsr_wire_add(tile[k], nth, low[k], sum);
    }
    tsr_pack<float, TSR_WIRE_GROUP> value;
    TSR_UNROLL
    for (int i = 0; i < TSR_WIRE_GROUP; i++)
        value.at[i] = tsr_fixed_value(sum[i]);
    return value;
}

template <typename Partial>
static __global__ void reduce_share_kernel(const __grid_constant__ tsr_cuda_barrier barrier,
                                           const __grid_constant__ tsr_cuda_reduction reduction, int part)
{
    constexpr int PACK = shot<Partial>::pack, TILE = shot<Partial>::tile;
    typedef typename shot<Partial>::stored stored;
    if (part >= 0)
        make_readable(Partial(), reduction, part);
    tsr_barrier_wait(barrier);
    if (part < 0)
        return;
    const int64_t n_tiles = (reduction.n + TILE - 1) / TILE;
    const int64_t end = first_tile(n_tiles, part + 1, reduction.n_parts);
    for (int64_t t = first_tile(n_tiles, part, reduction.n_parts) + blockIdx.x; t < end; t += gridDim.x) {
        const int64_t i = t * TILE + PACK * (int64_t)threadIdx.x;
        const int64_t left = reduction.n - i;
        const bool whole = (t + 1) * TILE <= reduction.n;
        tsr_pack<float, PACK> sum = {};
        if (whole)
            sum = sum_of_tile(Partial(), reduction, part, t);
        /* unrolled, because an index that is not a constant would put the array into local memory */
        TSR_UNROLL
        for (int v = 0; v < PACK; v++)
            if (!whole && v < left)
                sum.at[v] = tsr_sum_of_parts<Partial, 1>(reduction, i + v).at[0];
        __syncthreads(); /* all threads have read this tile of our own partial */
        stored *sums = sums_of_tile<Partial>(reduction, part, t) + PACK * threadIdx.x;
        tsr_pack<stored, PACK> rounded;
        TSR_UNROLL
        for (int v = 0; v < PACK; v++)
            store_sum(&rounded.at[v], sum.at[v]);
        if (left >= PACK)
            *reinterpret_cast<tsr_pack<stored, PACK> *>(sums) = rounded;
        TSR_UNROLL
        for (int v = 0; v < PACK; v++)
            if (left < PACK && v < left)
                sums[v] = rounded.at[v];
    }
}

/* N elements, of which `left` are there; zeros behind them. `whole`: aligned for all N. */
template <int N, typename T> TSR_DEVICE tsr_pack<T, N> load_pack(const T *from, int64_t left, bool whole)
{
    tsr_pack<T, N> pack = {};
    if (whole && left >= N)
        return tsr_link_load(reinterpret_cast<const tsr_pack<T, N> *>(from));
    TSR_UNROLL
    for (int v = 0; v < N; v++)
        if (v < left)
            pack.at[v] = tsr_link_load(from + v);
    return pack;
}

template <int N>
TSR_DEVICE void store_pack(float *to, const tsr_pack<float, N> &pack, int64_t left, bool whole)
{
    if (whole && left >= N) {
        *reinterpret_cast<tsr_pack<float, N> *>(to) = pack;
        return;
    }
    TSR_UNROLL
    for (int v = 0; v < N; v++)
        if (v < left)
            to[v] = pack.at[v];
}

/* The sums are read 16 bytes at a time, GATHER_LOADS loads of a thread in flight together: 32 blocks have 1
 * MiB in flight, which fills a link of 900 GB/s. `whole`: y and the residual are aligned for a pack. */
template <typename Partial>
static __global__ void gather_shares_kernel(const __grid_constant__ tsr_cuda_barrier barrier,
                                            const __grid_constant__ tsr_cuda_reduction reduction, bool whole)
{
    constexpr int TILE = shot<Partial>::tile, PACK = shot<Partial>::gathered, PER_TILE = TILE / PACK;
    tsr_barrier_wait(barrier);
    const int64_t n_tiles = (reduction.n + TILE - 1) / TILE, n_packs = (reduction.n + PACK - 1) / PACK;
    const int64_t step = (int64_t)gridDim.x * TILE_THREADS;
    int owner = 0;
    for (int64_t first = (int64_t)blockIdx.x * TILE_THREADS + threadIdx.x; first < n_packs;
         first += GATHER_LOADS * step) {
        tsr_pack<typename shot<Partial>::stored, PACK> sums[GATHER_LOADS] = {};
        tsr_pack<float, PACK> residual[GATHER_LOADS] = {};
        TSR_UNROLL
        for (int k = 0; k < GATHER_LOADS; k++) {
            const int64_t at = first + k * step, i = at * PACK;
            if (at >= n_packs)
                continue;
            while (at / PER_TILE >= first_tile(n_tiles, owner + 1, reduction.n_parts))
                owner++;
            sums[k] =
                load_pack<PACK>(sums_of_tile<Partial>(reduction, owner, at / PER_TILE) + at % PER_TILE * PACK,
                                reduction.n - i, true);
            if (reduction.residual)
                residual[k] = load_pack<PACK>(reduction.residual + i, reduction.n - i, whole);
        }
        TSR_UNROLL
        for (int k = 0; k < GATHER_LOADS; k++) {
            const int64_t i = (first + k * step) * PACK;
            tsr_pack<float, PACK> value;
            TSR_UNROLL
            for (int v = 0; v < PACK; v++) {
                const float sum = tsr_part_to_add(sums[k].at[v]);
                value.at[v] = reduction.residual ? sum + residual[k].at[v] : sum;
            }
            store_pack<PACK>(reduction.y + i, value, reduction.n - i, whole);
        }
    }
}

/* -- launchers -- */

template <typename Partial> static dim3 grid_for(int64_t n, int n_shares, int max_blocks)
{
    const int64_t n_tiles = (n + shot<Partial>::tile - 1) / shot<Partial>::tile;
    const int64_t largest_share = (n_tiles + n_shares - 1) / n_shares;
    return dim3((unsigned)(largest_share < 1 ? 1 : largest_share < max_blocks ? largest_share : max_blocks));
}

template <typename Partial>
static tsr_status reduce_share(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction, int part,
                               const tsr_cuda_stream *s)
{
    const dim3 grid = grid_for<Partial>(reduction->n, reduction->n_parts, barrier->max_blocks);
    return tsr_cuda_result(TSR_LAUNCH((reduce_share_kernel<Partial>), grid, dim3(TILE_THREADS), 0, s->stream,
                                      *barrier, *reduction, part),
                           "reduce_share_kernel");
}

template <typename Partial>
static tsr_status gather_shares(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                                const tsr_cuda_stream *s)
{
    const dim3 grid = grid_for<Partial>(reduction->n, 1, barrier->max_blocks);
    const size_t pack_bytes = shot<Partial>::gathered * sizeof(float);
    const bool whole =
        (uintptr_t)reduction->y % pack_bytes == 0 && (uintptr_t)reduction->residual % pack_bytes == 0;
    return tsr_cuda_result(TSR_LAUNCH((gather_shares_kernel<Partial>), grid, dim3(TILE_THREADS), 0, s->stream,
                                      *barrier, *reduction, whole),
                           "gather_shares_kernel");
}

extern "C" tsr_status tsr_cuda_barrier_reduce_share(const tsr_cuda_barrier *barrier,
                                                    const tsr_cuda_reduction *reduction, int part,
                                                    const tsr_cuda_stream *s)
{
    switch (reduction->type) {
    case TSR_REDUCE_EXACT:
        return reduce_share<int64_t>(barrier, reduction, part, s);
    case TSR_REDUCE_F32:
        return reduce_share<float>(barrier, reduction, part, s);
    case TSR_REDUCE_BF16:
        return reduce_share<tsr_bfloat>(barrier, reduction, part, s);
    }
    return tsr_cuda_result(cudaErrorNotSupported, "reduce_share_kernel");
}

extern "C" tsr_status tsr_cuda_barrier_gather_shares(const tsr_cuda_barrier *barrier,
                                                     const tsr_cuda_reduction *reduction,
                                                     const tsr_cuda_stream *s)
{
    switch (reduction->type) {
    case TSR_REDUCE_EXACT:
        return gather_shares<int64_t>(barrier, reduction, s);
    case TSR_REDUCE_F32:
        return gather_shares<float>(barrier, reduction, s);
    case TSR_REDUCE_BF16:
        return gather_shares<tsr_bfloat>(barrier, reduction, s);
    }
    return tsr_cuda_result(cudaErrorNotSupported, "gather_shares_kernel");
}
