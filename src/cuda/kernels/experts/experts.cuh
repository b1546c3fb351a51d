/* Functions for the kernels over experts: tiles of slots that use one expert, and their products.
 *
 * Slots are distributed in tiles that use one expert, so that its weights are read once per tile. The tile of
 * a block follows from the routing, which is known on the device only, so grids have blocks for the largest
 * number of tiles, and blocks without a tile return. A sum's order does not depend on tiles: LANES lanes take
 * the octets of a granule (or of all of K) in turn, each lane adds its octets in order, and then the lanes'
 * sums are added as a binary tree over neighbours. */
#ifndef TSR_CUDA_KERNELS_EXPERTS_CUH
#define TSR_CUDA_KERNELS_EXPERTS_CUH

#include "cuda/kernels/mul_mat/quant.cuh"

/* Some slots of one expert. */
struct expert_tile {
    int32_t expert;
    const int32_t *slots; /* [n] */
    int n;                /* 0: no tile */
};

/* The first of the expert's slots, which ascend, that is `slot` or later. */
TSR_DEVICE int expert_slot_after(const tsr_routing &r, int32_t e, int64_t slot)
{
    int from = r.begin[e], to = r.begin[e + 1];
    while (from < to) {
        const int middle = from + (to - from) / 2;
        if (r.order[middle] < slot)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Tile number `index` of at most `size` slots, among the held experts; the same in all lanes. Slots in
 * [first, end) only. */
TSR_DEVICE expert_tile expert_tile_in(const tsr_routing &r, const tsr_expert_range &held, int64_t first,
                                      int64_t end, int64_t index, int size)
{
    const bool whole = first == 0 && end == r.n_tokens * r.n_used;
    const int lane = threadIdx.x % TSR_WARP, n_touched = *r.n_touched;
    expert_tile tile = {0, NULL, 0};
    for (int base = 0; base < n_touched; base += TSR_WARP) {
        const int32_t e = base + lane < n_touched ? r.touched[base + lane] : -1;
        int begin = 0, n = 0;
        if (e >= held.begin && e < held.end) {
            begin = whole ? r.begin[e] : expert_slot_after(r, e, first);
            n = (whole ? r.begin[e + 1] : expert_slot_after(r, e, end)) - begin;
        }
        const int tiles = (n + size - 1) / size;
        const int up_to = tsr_warp_sum_up_to(tiles, lane); /* of this lane's expert and the earlier ones */
        const uint32_t after = __ballot_sync(TSR_ALL_LANES, index < up_to);
        if (after != 0) {
            const int owner = __ffs((int)after) - 1;
            const int before = (int)(index - (up_to - tiles)) * size, left = n - before;
            tile.expert = __shfl_sync(TSR_ALL_LANES, e, owner);
            tile.n = __shfl_sync(TSR_ALL_LANES, left < size ? left : size, owner);
            tile.slots = r.order + __shfl_sync(TSR_ALL_LANES, begin + before, owner);
            return tile;
        }
        index -= __shfl_sync(TSR_ALL_LANES, up_to, TSR_WARP - 1);
    }
    return tile;
}

TSR_DEVICE expert_tile expert_tile_at(const tsr_routing &r, const tsr_expert_range &held, int64_t index,
                                      int size)
{
    return expert_tile_in(r, held, 0, r.n_tokens * r.n_used, index, size);
}

/* The largest possible number of tiles of n_slots slots. */
static inline int64_t expert_tiles(int64_t n_slots, const tsr_expert_range *held, int size)
{
    const int64_t n_held = held->end - held->begin;
    if (size == 1)
        return n_slots;
    return n_slots / size + (n_slots < n_held ? n_slots : n_held);
}

/* Slots per expert, if all experts are used equally. */
static inline int64_t expert_load(const tsr_routing *r)
{
    return r->n_tokens * r->n_used / r->n_experts;
}

/* Whether an octet of a row, and of the activations, may be loaded in pieces of 16 bytes. */
struct expert_wide {
    bool row, x;
    tsr_type stored; /* the row's type */
};

/* A matrix of the op in the form that kernels use. */
struct expert_rows {
    const unsigned char *data;
    size_t row_stride, expert_stride;
    expert_wide wide;
};

/* Multiplied with rows of k dense activations; sums begin at multiples of `granule`. */
static inline expert_rows expert_rows_of(const tsr_expert_matrix *m, const float *x, int64_t k,
                                         int64_t granule)
{
    const bool octets_aligned = granule % TSR_OCTET == 0 || granule >= k;
    const expert_wide wide = {octets_aligned && tsr_wide_rows(m->data, m->row_stride | m->expert_stride),
                              octets_aligned && tsr_wide_rows(x, (size_t)k * sizeof *x), m->type};
    const expert_rows rows = {static_cast<const unsigned char *>(m->data), m->row_stride, m->expert_stride,
                              wide};
    return rows;
}

TSR_DEVICE const unsigned char *expert_row(const expert_rows &m, int64_t expert, int64_t row)
{
    return m.data + (size_t)expert * m.expert_stride + (size_t)row * m.row_stride;
}

/* The factors on the input and on the result of a slot's expert. */
TSR_DEVICE float expert_input_weight(const tsr_routing &r, int64_t slot)
{
    return r.weigh_inputs ? r.weight[slot] : 1.0f;
}

TSR_DEVICE float expert_weight(const tsr_routing &r, int64_t slot)
{
    const float weight = r.weight[slot]; /* loaded in either case: a selection takes fewer instructions */
    return r.weigh_inputs ? 1.0f : weight;
}

/* An element of an expert's bias; 0 without a bias or where another device adds it. */
TSR_DEVICE float expert_bias_at(const tsr_expert_bias &bias, int64_t expert, int64_t row)
{
    if (!bias.data || expert < bias.held.begin || expert >= bias.held.end)
        return 0.0f;
    return bias.data[(expert - bias.held.begin) * bias.stride + row];
}

/* Add the lane's part of elements [begin, end) of a row times each of SLOTS activations to sums. */
template <tsr_type TYPE, int SLOTS, int LANES>
TSR_DEVICE void expert_dot(const unsigned char *row, expert_wide wide, const float *const *x, int64_t begin,
                           int64_t end, int lane, float *sums)
{
    for (int64_t at = begin + lane * TSR_OCTET; at < end; at += LANES * TSR_OCTET) {
        const int left = tsr_octet_length(end - at);
        tsr_octet o;
        tsr_octet_load<TYPE>(row, at, left, wide.row, &o, wide.stored);
        TSR_UNROLL
        for (int s = 0; s < SLOTS; s++) {
            float xs[TSR_OCTET], x_sum = 0.0f;
            tsr_load_floats(x[s] + at, left, wide.x, xs);
            TSR_UNROLL
            for (int i = 0; i < TSR_OCTET; i++)
                x_sum = x_sum + xs[i];
            sums[s] = sums[s] + tsr_octet_dot<TYPE>(o, xs, x_sum);
        }
    }
}

/* Binary tree over LANES neighbouring lanes; every lane gets the sum. */
template <int LANES> TSR_DEVICE float expert_lanes_sum(float value)
{
    TSR_UNROLL
    for (int mask = 1; mask < LANES; mask *= 2)
        value = value + __shfl_xor_sync(TSR_ALL_LANES, value, mask);
    return value;
}

#endif
