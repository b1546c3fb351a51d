/* Packed weights for q_chunk.cuh: how they are copied to shared memory, and how a lane unpacks its words
 * there.
 *
 * Blocks of Q8_0, Q4_0 and Q6_K (34, 18 and 210 bytes) start at any even address, but asynchronous copies
 * move aligned pieces of 16 bytes. So of each row all pieces are copied that contain a byte of the step, and
 * the step has the same distance from a multiple of 16 in its slot as in memory. Of a piece that is not
 * wholly inside the tensor the bytes inside are copied, two at a time. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_Q_BLOCK_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_Q_BLOCK_CUH

#include "cuda/kernels/mul_mat/mma.cuh"
#include "cuda/kernels/mul_mat/q_chunk.cuh"

/* -- to shared memory -- */

/* The byte in a row where the step begins whose first chunk is `chunk`. */
template <tsr_type TYPE> TSR_DEVICE size_t q_step_at(const q_args &a, int chunk)
{
    if (!a.units_cut_chunks) /* the same with less arithmetic */
        return (size_t)((uint32_t)chunk / q_type<TYPE>::step_chunks) * q_type<TYPE>::step_bytes;
    return (size_t)(q_span_of(a, chunk).begin / q_type<TYPE>::block_elems) * q_type<TYPE>::block_bytes;
}

TSR_DEVICE const unsigned char *q_row_of(const q_args &a, int64_t row)
{
    return a.w + (size_t)(row < a.n_rows ? row : a.n_rows - 1) * a.w_stride;
}

/* The distance of a row's step from its slot's start. */
template <tsr_type TYPE> TSR_DEVICE int q_offset(const q_args &a, const unsigned char *step)
{
    return q_type<TYPE>::words && a.bytewise ? 0 : (int)(reinterpret_cast<uintptr_t>(step) % 16);
}

/* Copy the part of [from, from + 16) that is inside [begin, end), two bytes at a time. */
TSR_DEVICE void q_copy_edge(unsigned char *slot, const unsigned char *from, const unsigned char *begin,
                            const unsigned char *end)
{
    TSR_UNROLL_BY(1) /* rare, and all pieces together would take registers from the products */
    for (int i = 0; i < 16; i += 2)
        if (from + i >= begin && from + i < end)
            *reinterpret_cast<uint16_t *>(slot + i) = *reinterpret_cast<const uint16_t *>(from + i);
}

/* Copy a piece, asynchronously if it is inside the matrix that begins `at` bytes after a.w. */
template <tsr_type TYPE>
TSR_DEVICE void q_copy_piece(const q_args &a, unsigned char *slot, const unsigned char *from, int64_t at = 0)
{
    if (from >= a.w + at && from + 16 <= a.w_end + at && !(q_type<TYPE>::words && a.bytewise))
        tsr_copy_async_16(slot, from);
    else
        q_copy_edge(slot, from, a.w + at, a.w_end + at);
}

/* The distribution of the pieces of a tile's rows over `threads` threads: a thread's first piece, and the
 * distance to its next (a division, so computed once). */
struct q_deal {
    int row, piece, row_step, piece_step;
};

TSR_DEVICE q_deal q_deal_of(const q_args &a, int thread, int threads)
{
    return {thread / a.slot_pieces, thread % a.slot_pieces, threads / a.slot_pieces, threads % a.slot_pieces};
}

/* Copy the step at byte `at` of `rows` rows from first_row on (SET: of the set that begins there), a slot
 * each. Rows past the matrix's last repeat it. Bytes after a row's last block, inside the tensor, may be
 * copied too. */
template <tsr_type TYPE, bool SET = false>
TSR_DEVICE void q_copy_rows(const q_args &a, q_deal deal, int64_t first_row, int rows, size_t at,
                            unsigned char *slots)
{
    while (deal.row < rows) {
        const bool lower = SET && deal.row >= Q_ROWS / 2;
        const int64_t other_at = lower ? a.other_at : 0;
        const unsigned char *const step =
            q_row_of(a, first_row + deal.row - (lower ? Q_ROWS - a.set_rows : 0)) + other_at + at;
        q_copy_piece<TYPE>(a, slots + deal.row * a.slot_stride + 16 * deal.piece,
                           step - q_offset<TYPE>(a, step) + 16 * deal.piece, other_at);
        deal.row += deal.row_step;
        deal.piece += deal.piece_step;
        if (deal.piece >= a.slot_pieces) {
            deal.piece -= a.slot_pieces;
            deal.row++;
        }
    }
}

/* The pieces of a warp's lane, of a step of a set whose rows begin at multiples of 16 bytes (q_args.even):
 * where they begin, counted from the first row's first piece. They are the same for every step, so they are
 * KEPT where there are registers for them. */
template <tsr_type TYPE, bool KEPT> struct q_even {
    static constexpr int pieces = Q_ROWS * q_type<TYPE>::pieces; /* of all lanes */
    static constexpr int count = (pieces + TSR_WARP - 1) / TSR_WARP;
    int64_t from[KEPT ? count : 1];
};

template <tsr_type TYPE> TSR_DEVICE int64_t q_even_from(const q_args &a, uint32_t nth)
{
    const uint32_t row = nth / q_type<TYPE>::pieces;
    return row / (Q_ROWS / 2) * a.lower_at + row % (Q_ROWS / 2) * (uint32_t)a.w_stride +
           16 * (nth - row * q_type<TYPE>::pieces);
}

template <tsr_type TYPE, bool KEPT> TSR_DEVICE q_even<TYPE, KEPT> q_even_of(const q_args &a, int lane)
{
    q_even<TYPE, KEPT> even = {};
    TSR_UNROLL
    for (int i = 0; KEPT && i < q_even<TYPE, KEPT>::count; i++)
        even.from[i] = q_even_from<TYPE>(a, lane + i * TSR_WARP);
    return even;
}

/* As q_copy_rows() does, of rows none of which is the matrix's last: the pieces that contain the end of that
 * one need not be inside the tensor. */
template <tsr_type TYPE, bool KEPT>
TSR_DEVICE void q_copy_even(const q_args &a, const q_even<TYPE, KEPT> &even, const unsigned char *first_piece,
                            unsigned char *slots, int lane)
{
    TSR_UNROLL
    for (int i = 0; i < q_even<TYPE, KEPT>::count; i++) {
        const int nth = lane + i * TSR_WARP;
        const int gap =
            q_type<TYPE>::pieces % 2 == 0 ? nth / q_type<TYPE>::pieces : 0; /* slot_stride is odd */
        if (nth < q_even<TYPE, KEPT>::pieces)
            tsr_copy_async_16(slots + 16 * (nth + gap),
                              first_piece + (KEPT ? even.from[i] : q_even_from<TYPE>(a, nth)));
    }
}

/* -- from shared memory -- */

template <tsr_type TYPE> TSR_DEVICE uint32_t q_word(const unsigned char *from)
{
    if (q_type<TYPE>::words)
        return *reinterpret_cast<const uint32_t *>(from);
    const uint16_t *const half = reinterpret_cast<const uint16_t *>(from);
    return half[0] | (uint32_t)half[1] << 16;
}

TSR_DEVICE float q_half(const unsigned char *from)
{
    return tsr_half_to_f32(*reinterpret_cast<const uint16_t *>(from));
}

/* A byte's value 0..255 as a float, and a signed byte's value, without a conversion. */
TSR_DEVICE float q_small(uint32_t number)
{
    return tsr_bits_to_f32(0x4b000000u | number) - 8388608.0f;
}

TSR_DEVICE float q_small_signed(unsigned char number)
{
    return tsr_bits_to_f32(0x4b000000u | (number ^ 0x80u)) - (8388608.0f + 128.0f);
}

/* Four numbers minus 8 or 32 each, as signed bytes: with 128 more no byte borrows from the next. */
TSR_DEVICE uint32_t q_less_8(uint32_t nibbles)
{
    return (nibbles + 0x78787878u) ^ 0x80808080u;
}

TSR_DEVICE uint32_t q_less_32(uint32_t numbers)
{
    return (numbers + 0x60606060u) ^ 0x80808080u;
}

/* Lane 4 g + j has the scales of block j; every lane needs the scales of all four blocks. */
template <tsr_type TYPE>
TSR_DEVICE void q_share_scales(const float scale[2], const float second[2], int lane, q_weights<TYPE> *w)
{
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        w->scale[b][r] = __shfl_sync(TSR_ALL_LANES, scale[r], (lane & ~3) | b);
        w->second[b][r] = __shfl_sync(TSR_ALL_LANES, second[r], (lane & ~3) | b);
    }
}

/* Arguments of the following functions: rows g and g + 8 of a step; chunk number `half` (of a super-block),
 * and its first `blocks` blocks. Other blocks get scales of zero. */

template <tsr_type TYPE>
TSR_DEVICE void q_load_plain(const unsigned char *const rows[2], int blocks, int lane, q_weights<TYPE> *w)
{
    const int j = lane % 4;
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const unsigned char *const block = rows[r] + b * q_type<TYPE>::block_bytes;
        const uint32_t word = q_word<TYPE>(block + 2 + 4 * j);
        w->scale[b][r] = b < blocks ? q_half(block) : 0.0f;
        if (TYPE == TSR_TYPE_Q8_0) {
            w->a[b][r] = word;
            w->a[b][2 + r] = q_word<TYPE>(block + 18 + 4 * j);
        } else {
            w->a[b][r] = q_less_8(word & 0x0f0f0f0fu);
            w->a[b][2 + r] = q_less_8(word >> 4 & 0x0f0f0f0fu);
        }
    }
}

/* Scale and minimum of block j of the chunk, for Q4_K and Q5_K (tsr_quant_scale_min in core/quant/quant.h).
 * */
TSR_DEVICE void q_scale_min(const unsigned char *block, int half, int j, float *scale, float *minimum)
{
    const uint32_t low = block[4 + j], middle = block[8 + j], high = block[12 + j];
    const uint32_t s = half == 0 ? low & 63 : (high & 15) | low >> 6 << 4;
    const uint32_t m = half == 0 ? middle & 63 : high >> 4 | middle >> 6 << 4;
    *scale = q_half(block) * q_small(s);
    *minimum = q_half(block + 2) * q_small(m);
}

template <tsr_type TYPE>
TSR_DEVICE void q_load_minimum(const unsigned char *const rows[2], int half, int lane, q_weights<TYPE> *w)
{
    const int j = lane % 4, quants = TYPE == TSR_TYPE_Q5_K ? 48 : 16;
    float scale[2], minimum[2];
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        q_scale_min(rows[r], half, j, &scale[r], &minimum[r]);
        TSR_UNROLL
        for (int side = 0; side < 2; side++) { /* words j and j + 4 */
            const int at = 4 * j + 16 * side;
            const uint32_t fifth = TYPE == TSR_TYPE_Q5_K ? q_word<TYPE>(rows[r] + 16 + at) >> (4 * half) : 0;
            TSR_UNROLL
            for (int pair = 0; pair < 2; pair++) {
                const uint32_t word = q_word<TYPE>(rows[r] + quants + 64 * half + 32 * pair + at);
                uint32_t even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;
                if (TYPE == TSR_TYPE_Q5_K) {
                    even |= (fifth >> (2 * pair) & 0x01010101u) << 4;
                    odd |= (fifth >> (2 * pair + 1) & 0x01010101u) << 4;
                }
                w->a[2 * pair][2 * side + r] = even;
                w->a[2 * pair + 1][2 * side + r] = odd;
            }
        }
    }
    q_share_scales(scale, minimum, lane, w);
}

TSR_DEVICE void q_load_q6_k(const unsigned char *const rows[2], int half, int lane,
                            q_weights<TSR_TYPE_Q6_K> *w)
{
    const int j = lane % 4;
    float scale[2], second[2];
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const unsigned char *const block = rows[r];
        scale[r] = q_half(block + 208) * q_small_signed(block[192 + 8 * half + 2 * j]);
        second[r] = q_half(block + 208) * q_small_signed(block[192 + 8 * half + 2 * j + 1]);
        TSR_UNROLL
        for (int side = 0; side < 2; side++) {
            const int at = 4 * j + 16 * side;
            const uint32_t high = q_word<TSR_TYPE_Q6_K>(block + 128 + 32 * half + at);
            TSR_UNROLL
            for (int pair = 0; pair < 2; pair++) { /* blocks `pair` and pair + 2 */
                const uint32_t low = q_word<TSR_TYPE_Q6_K>(block + 64 * half + 32 * pair + at);
                w->a[pair][2 * side + r] =
                    q_less_32((low & 0x0f0f0f0fu) | (high >> (2 * pair) & 0x03030303u) << 4);
                w->a[pair + 2][2 * side + r] =
                    q_less_32((low >> 4 & 0x0f0f0f0fu) | (high >> (2 * pair + 4) & 0x03030303u) << 4);
            }
        }
    }
    q_share_scales(scale, second, lane, w);
}

template <tsr_type TYPE> struct q_tag {
};

TSR_DEVICE void q_load(q_tag<TSR_TYPE_Q8_0>, const unsigned char *const rows[2], int, int blocks, int lane,
                       q_weights<TSR_TYPE_Q8_0> *w)
{
    q_load_plain<TSR_TYPE_Q8_0>(rows, blocks, lane, w);
}

TSR_DEVICE void q_load(q_tag<TSR_TYPE_Q4_0>, const unsigned char *const rows[2], int, int blocks, int lane,
                       q_weights<TSR_TYPE_Q4_0> *w)
{
    q_load_plain<TSR_TYPE_Q4_0>(rows, blocks, lane, w);
}

TSR_DEVICE void q_load(q_tag<TSR_TYPE_Q4_K>, const unsigned char *const rows[2], int half, int, int lane,
                       q_weights<TSR_TYPE_Q4_K> *w)
{
    q_load_minimum<TSR_TYPE_Q4_K>(rows, half, lane, w);
}

TSR_DEVICE void q_load(q_tag<TSR_TYPE_Q5_K>, const unsigned char *const rows[2], int half, int, int lane,
                       q_weights<TSR_TYPE_Q5_K> *w)
{
    q_load_minimum<TSR_TYPE_Q5_K>(rows, half, lane, w);
}

TSR_DEVICE void q_load(q_tag<TSR_TYPE_Q6_K>, const unsigned char *const rows[2], int half, int, int lane,
                       q_weights<TSR_TYPE_Q6_K> *w)
{
    q_load_q6_k(rows, half, lane, w);
}

/* Load a lane's part of 16 rows of one chunk: rows[r] is the step of row lane / 4 + 8 r. */
template <tsr_type TYPE>
TSR_DEVICE void q_rows_load(const q_args &a, const unsigned char *const rows[2], int chunk, int lane,
                            q_weights<TYPE> *w)
{
    q_load(q_tag<TYPE>(), rows, chunk % q_type<TYPE>::step_chunks,
           q_type<TYPE>::super ? (int)Q_BLOCKS : q_span_of(a, chunk).length / TSR_QUANT_BLOCK, lane, w);
}

/* The distances of rows g and g + 8 of a set of rows from the last multiple of 16. All of a lane's steps of
 * the set have them in common. */
TSR_DEVICE void q_phases(const q_args &a, bool even, int64_t first_row, int lane, uint32_t phases[2])
{
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int64_t row = first_row + lane / 4 + r * (a.set_rows - Q_ROWS / 2);
        phases[r] = even ? 0 : (uint32_t) reinterpret_cast<uintptr_t>(q_row_of(a, row) + r * a.other_at) % 16;
    }
}

/* Load it from the slots of its step, which was copied as a set, and `at`. */
template <tsr_type TYPE>
TSR_DEVICE void q_weights_load(const q_args &a, const unsigned char *slots, const uint32_t phases[2],
                               size_t at, int chunk, int lane, q_weights<TYPE> *w)
{
    const unsigned char *rows[2];
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const uint32_t offset = q_type<TYPE>::words && a.bytewise ? 0 : (phases[r] + (uint32_t)at) % 16;
        rows[r] = slots + (lane / 4 + 8 * r) * a.slot_stride + offset;
    }
    q_rows_load<TYPE>(a, rows, chunk, lane, w);
}

#endif
