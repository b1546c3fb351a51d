/* Partial sums of the exact reduction as planes (core/quant/wire.h), written and read by kernels. */
#ifndef TSR_CUDA_COMM_WIRE_CUH
#define TSR_CUDA_COMM_WIRE_CUH

#include "cuda/comm/reduce.cuh"

#define TSR_WIRE_FUNCTION TSR_DEVICE
#include "core/quant/wire.h"

/* A block of TSR_WIRE_THREADS threads handles a tile. */
enum { TSR_WIRE_THREADS = TSR_WIRE_TILE / TSR_WIRE_GROUP, TSR_WIRE_TOP_PLANES = 3 };

typedef tsr_pack<uint32_t, TSR_WIRE_GROUP> tsr_wire_lows;

/* The planes of a thread's group. */
struct tsr_wire_group {
    tsr_wire_lows low;
    uint32_t middle, top[TSR_WIRE_TOP_PLANES]; /* a byte per sum */
    bool is_wide, is_large;                    /* some sum is */
};

/* Group `nth` of the sums from `from` on, which are aligned for two. */
TSR_DEVICE void tsr_wire_load_sums(const int64_t *from, int nth, int64_t *sums)
{
    TSR_UNROLL
    for (int i = 0; i < TSR_WIRE_GROUP; i += 2) {
        const tsr_pack<int64_t, 2> two =
            reinterpret_cast<const tsr_pack<int64_t, 2> *>(from)[(TSR_WIRE_GROUP * nth + i) / 2];
        sums[i] = two.at[0];
        sums[i + 1] = two.at[1];
    }
}

TSR_DEVICE tsr_wire_group tsr_wire_group_of(const int64_t *from, int nth)
{
    tsr_wire_group group = {};
    int64_t sums[TSR_WIRE_GROUP];
    tsr_wire_load_sums(from, nth, sums);
    TSR_UNROLL
    for (int i = 0; i < TSR_WIRE_GROUP; i++) {
        const uint32_t top = tsr_wire_top(sums[i]);
        group.low.at[i] = tsr_wire_low(sums[i]);
        group.middle |= tsr_wire_middle(sums[i]) << (8 * i);
        group.is_wide = group.is_wide || tsr_wire_is_wide(sums[i]);
        group.is_large = group.is_large || tsr_wire_is_large(sums[i]);
        TSR_UNROLL
        for (int p = 0; p < TSR_WIRE_TOP_PLANES; p++)
            group.top[p] |= (top >> (8 * p) & 0xff) << (8 * i);
    }
    return group;
}

/* A plane is stored by all groups of a warp where one needs it: whole lines. Called by all of its threads. */
TSR_DEVICE void tsr_wire_store(const tsr_wire_group &group, unsigned char *tile, int nth)
{
    const bool is_wide = __any_sync(TSR_ALL_LANES, group.is_wide);
    const bool is_large = __any_sync(TSR_ALL_LANES, group.is_large);
    tsr_link_store(reinterpret_cast<tsr_wire_lows *>(tile) + nth, group.low);
    if (is_wide)
        tsr_link_store(reinterpret_cast<uint32_t *>(tile + TSR_WIRE_MIDDLE) + nth, group.middle);
    TSR_UNROLL
    for (int p = 0; p < TSR_WIRE_TOP_PLANES; p++)
        if (is_large)
            tsr_link_store(reinterpret_cast<uint32_t *>(tile + TSR_WIRE_TOP + p * TSR_WIRE_TILE) + nth,
                           group.top[p]);
}

/* The tile's sums become planes in place. Called by all threads of a block. */
TSR_DEVICE void tsr_wire_pack(int64_t *tile)
{
    const tsr_wire_group group = tsr_wire_group_of(tile, (int)threadIdx.x);
    __syncthreads(); /* all threads have read the tile's sums */
    tsr_wire_store(group, reinterpret_cast<unsigned char *>(tile), (int)threadIdx.x);
}

TSR_DEVICE tsr_wire_lows tsr_wire_load(const unsigned char *tile, int nth)
{
    return tsr_link_load(reinterpret_cast<const tsr_wire_lows *>(tile) + nth);
}

/* Add the group of these low words to sum[TSR_WIRE_GROUP], reading the other planes where they are needed. */
TSR_DEVICE void tsr_wire_add(const unsigned char *tile, int nth, const tsr_wire_lows &low, int64_t *sum)
{
    uint32_t middle = 0, top[TSR_WIRE_TOP_PLANES] = {};
    if ((low.at[0] | low.at[1] | low.at[2] | low.at[3]) & TSR_WIRE_WIDE)
        middle = tsr_link_load(reinterpret_cast<const uint32_t *>(tile + TSR_WIRE_MIDDLE) + nth);
    const bool is_large = (middle & TSR_WIRE_LARGE * 0x01010101u) != 0;
    TSR_UNROLL
    for (int p = 0; p < TSR_WIRE_TOP_PLANES; p++)
        if (is_large)
            top[p] = tsr_link_load(
                reinterpret_cast<const uint32_t *>(tile + TSR_WIRE_TOP + p * TSR_WIRE_TILE) + nth);
    TSR_UNROLL
    for (int i = 0; i < TSR_WIRE_GROUP; i++) {
        const uint32_t of_top =
            (top[0] >> (8 * i) & 0xff) | (top[1] >> (8 * i) & 0xff) << 8 | (top[2] >> (8 * i) & 0xff) << 16;
        sum[i] += tsr_wire_sum(low.at[i], middle >> (8 * i) & 0xff, of_top);
    }
}

#endif
