/* Packed weights for q_chunk.cuh: how they are copied to shared memory, and how a lane unpacks its words
 * there.
 *
 * Blocks of Q8_0, Q4_0, IQ4_NL and Q6_K (34, 18, 18 and 210 bytes) start at any even address, those of MXFP4
 * (17) at any, but asynchronous copies move aligned pieces of 16 bytes. So of each row all pieces are copied
 * that contain a byte of the step, and the step has the same distance from a multiple of 16 in its slot as in
 * memory. Of a piece that is not wholly inside the tensor the bytes inside are copied, two at a time, or one
 * of MXFP4. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_Q_BLOCK_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_Q_BLOCK_CUH

#include "cuda/kernels/mul_mat/mma.cuh"
#include "cuda/kernels/mul_mat/q_chunk.cuh"

/* -- to shared memory -- */

/* The byte in a row where the step begins whose first chunk is `chunk`. */
template <tsr_type TYPE> TSR_DEVICE size_t q_step_at(const q_args &a, int chunk)
{
    if (!a.units_cut_chunks) /* the same with less arithmetic */
        return (uint32_t)chunk / q_type<TYPE>::step_chunks * (uint32_t)q_type<TYPE>::step_bytes;
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

/* Copy the part of [from, from + 16) that is inside [begin, end). */
template <typename Unit>
TSR_DEVICE void q_copy_edge(unsigned char *slot, const unsigned char *from, const unsigned char *begin,
                            const unsigned char *end)
{
    TSR_UNROLL_BY(1) /* rare, and all pieces together would take registers from the products */
    for (int i = 0; i < 16; i += (int)sizeof(Unit))
        if (from + i >= begin && from + i < end)
            *reinterpret_cast<Unit *>(slot + i) = *reinterpret_cast<const Unit *>(from + i);
}

/* Copy a piece, asynchronously if it is inside the matrix that begins `at` bytes after a.w. */
template <tsr_type TYPE>
TSR_DEVICE void q_copy_piece(const q_args &a, unsigned char *slot, const unsigned char *from, int64_t at = 0)
{
    if (from >= a.w + at && from + 16 <= a.w_end + at && !(q_type<TYPE>::words && a.bytewise))
        tsr_copy_async_16(slot, from);
    else
        q_copy_edge<std::conditional_t<q_type<TYPE>::block_bytes % 2 == 1, uint8_t, uint16_t>>(
            slot, from, a.w + at, a.w_end + at);
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

/* The pieces of a warp's lane, of a step of a set whose rows begin at multiples of 16 bytes (q_args.even).
 * They are dealt one after another, or where there are gaps between slots (`pairs`) two rows at a time, half
 * a warp for each. What is kept is where they begin, if the set is the matrix's first and the step a row's;
 * of pairs of rows, the upper and the lower half's first. It is the same for every step, so it is KEPT where
 * there are registers for it. */
template <tsr_type TYPE, bool KEPT> struct q_even {
    static constexpr bool pairs = q_type<TYPE>::pieces % 2 == 0;
    static constexpr int pieces = Q_ROWS * q_type<TYPE>::pieces; /* of all lanes */
    static constexpr int count = pairs ? Q_ROWS / 2 : (pieces + TSR_WARP - 1) / TSR_WARP;
    const unsigned char *from[pairs ? 2 : KEPT ? count : 1];
};

/* The same address, which the compiler keeps instead of what it was computed from. */
TSR_DEVICE const unsigned char *q_kept(const unsigned char *address)
{
#ifdef __CUDA_ARCH__
    asm("" : "+l"(address));
#endif
    return address;
}

/* Where piece number nth of all begins. The set is less than 4 GB long. */
template <tsr_type TYPE> TSR_DEVICE const unsigned char *q_even_from(const q_args &a, uint32_t nth)
{
    constexpr uint32_t pieces = q_type<TYPE>::pieces, reciprocal = 65536 / pieces + 1;
    static_assert(Q_ROWS * pieces * pieces < 65536, "the quotient of every piece is right");
    const uint32_t row = nth * reciprocal >> 16, stride = (uint32_t)a.w_stride;
    const unsigned char *const w =
        row < Q_ROWS / 2 ? a.w : a.w + (a.lower_at - (int64_t)(Q_ROWS / 2 * stride));
    return w + (row * (stride - 16 * pieces) + 16 * nth);
}

template <tsr_type TYPE, bool KEPT> TSR_DEVICE q_even<TYPE, KEPT> q_even_of(const q_args &a, int lane)
{
    q_even<TYPE, KEPT> even = {};
    if constexpr (q_even<TYPE, KEPT>::pairs) {
        even.from[0] = q_kept(a.w + (size_t)lane / 16 * a.w_stride + lane % 16 * 16);
        even.from[1] = q_kept(even.from[0] + a.lower_at);
    } else if constexpr (KEPT) {
        TSR_UNROLL
        for (int i = 0; i < even.count; i++)
            even.from[i] = q_kept(q_even_from<TYPE>(a, (uint32_t)lane + i * TSR_WARP));
    }
    return even;
}

/* As q_copy_rows() does, of the set and step whose first piece is `at` bytes after the matrix's first. None
 * of its rows is the matrix's last: the pieces that contain the end of that one need not be inside the
 * tensor. */
template <tsr_type TYPE, bool KEPT>
TSR_DEVICE void q_copy_even(const q_args &a, const q_even<TYPE, KEPT> &even, size_t at, unsigned char *slots,
                            int lane)
{
    constexpr int stride = q_slot_stride(q_type<TYPE>::pieces), half = even.count / 2;
    if (even.pairs && lane % 16 >= q_type<TYPE>::pieces)
        return;
    slots += even.pairs ? lane / 16 * stride + lane % 16 * 16 : lane * 16;
    TSR_UNROLL
    for (int i = 0; i < even.count; i++) {
        const int nth = lane + i * TSR_WARP;
        if (even.pairs)
            tsr_copy_async_16(slots + 2 * i * stride, even.from[i / half] + at + i % half * 2 * a.w_stride);
        else if (nth < even.pieces)
            tsr_copy_async_16(slots + 16 * TSR_WARP * i,
                              (KEPT ? even.from[i] : q_even_from<TYPE>(a, (uint32_t)nth)) + at);
    }
}

/* -- from shared memory -- */

/* ALIGNED: at a multiple of four bytes; otherwise of two. */
template <bool ALIGNED> TSR_DEVICE uint32_t q_word(const unsigned char *from)
{
    if (ALIGNED)
        return *reinterpret_cast<const uint32_t *>(from);
    const uint16_t *const half = reinterpret_cast<const uint16_t *>(from);
    return half[0] | (uint32_t)half[1] << 16;
}

TSR_DEVICE float q_half(const unsigned char *from)
{
    return tsr_half_to_f32(*reinterpret_cast<const uint16_t *>(from));
}

/* d times byte n of a word, exactly, without a conversion: the byte becomes a float of 32768 more; `minus` is
 * -d times what is too much. */
#define Q_SCALE_MORE 32768.0f
TSR_DEVICE float q_scaled(uint32_t word, int n, float d, float minus)
{
    return fmaf(d, tsr_bits_to_f32(__byte_perm(word, 0x47000000u, 0x7604u + ((uint32_t)n << 4))), minus);
}

/* Sixteen times the quants of 8 less, of the words of low and high nibbles. */
TSR_DEVICE void q_sixteenfold(uint32_t nibbles, uint32_t *low, uint32_t *high)
{
    *low = (nibbles << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
    *high = (nibbles & 0xf0f0f0f0u) ^ 0x80808080u;
}

/* prmt: bytes of {b, a}, which four nibbles of the selector choose; eight times the sign of the byte where a
 * nibble's fourth bit is set. (__byte_perm() of CUDA does not have the fourth bit.) */
TSR_DEVICE uint32_t q_permute(uint32_t a, uint32_t b, uint32_t selector)
{
#ifdef __CUDA_ARCH__
    uint32_t chosen;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(chosen) : "r"(a), "r"(b), "r"(selector));
    return chosen;
#else
    return __byte_perm(a, b, selector);
#endif
}

/* The values that eight nibbles choose in the type's table, TSR_QUANT_IQ4_VALUES or TSR_QUANT_FP4_VALUES, in
 * order. Three bits of a nibble choose from either half of the table, and its fourth bit one of the halves.
 * */
template <tsr_type TYPE> TSR_DEVICE void q_look_up(uint32_t nibbles, uint32_t *first, uint32_t *second)
{
    constexpr bool fp4 = TYPE == TSR_TYPE_MXFP4;
    const uint32_t in_half = nibbles & 0x77777777u, half = (nibbles >> 1 & 0x44444444u) | 0x32103210u;
    TSR_UNROLL
    for (int i = 0; i < 2; i++) { /* the upper 16 bits of a selector do not count */
        const uint32_t low =
            q_permute(fp4 ? 0x03020100u : 0xbfad9881u, fp4 ? 0x0c080604u : 0xf6eaddcfu, in_half >> (16 * i));
        const uint32_t high =
            q_permute(fp4 ? 0xfdfeff00u : 0x26190d01u, fp4 ? 0xf4f8fafcu : 0x71594535u, in_half >> (16 * i));
        *(i == 0 ? first : second) = q_permute(low, high, half >> (16 * i));
    }
}

/* The same of MXFP4 plus 12, in fewer instructions: a nibble chooses a byte of one half of the table, and of
 * the other half it has the sign, which is 0. */
TSR_DEVICE void q_look_up_plus_12(uint32_t nibbles, uint32_t *first, uint32_t *second)
{
    const uint32_t negative = nibbles ^ 0x88888888u;
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        *(i == 0 ? first : second) = q_permute(0x0f0e0d0cu, 0x18141210u, nibbles >> (16 * i)) |
                                     q_permute(0x090a0b0cu, 0x00040608u, negative >> (16 * i));
}

/* Four times the quants of 32 less, which have their low bits in bits 2 to 5 of their bytes and high bits
 * above. */
TSR_DEVICE uint32_t q_four_times(uint32_t low, uint32_t high)
{
    return (low & 0x3c3c3c3cu) | ((high & 0xc0c0c0c0u) ^ 0x80808080u);
}

/* Lane 4 g + j has the scales of block j of two rows; every lane needs the scales of all four blocks. */
TSR_DEVICE void q_share_scales(const float scale[2], int lane, float all[Q_BLOCKS][2])
{
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++)
        all[b][r] = __shfl_sync(TSR_ALL_LANES, scale[r], (lane & ~3) | b);
}

/* Arguments of the following functions: a lane's two rows of a step; chunk number `half` (of a super-block),
 * and its first `blocks` blocks. Other blocks get scales of zero. */

template <tsr_type TYPE, bool ALIGNED>
TSR_DEVICE void q_words_of_block(const unsigned char *block, int r, int lane, uint32_t a[4])
{
    const unsigned char *const at = block + 2 + lane % 4 * 4;
    a[r] = q_word<ALIGNED>(at);
    if (TYPE == TSR_TYPE_Q8_0)
        a[2 + r] = q_word<ALIGNED>(at + 16);
    else if (TYPE == TSR_TYPE_IQ4_NL)
        q_look_up<TYPE>(a[r], &a[r], &a[2 + r]);
    else
        q_sixteenfold(a[r], &a[r], &a[2 + r]);
}

/* EVEN: the step begins at a multiple of four bytes, so that words of every other block do. */
template <tsr_type TYPE, bool EVEN>
TSR_DEVICE void q_words_plain(const unsigned char *const rows[2], int lane, uint32_t a[Q_BLOCKS][4])
{
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const unsigned char *const block = rows[r] + b * q_type<TYPE>::block_bytes;
        if (EVEN && b % 2 == 1)
            q_words_of_block<TYPE, true>(block, r, lane, a[b]);
        else
            q_words_of_block<TYPE, false>(block, r, lane, a[b]);
    }
}

template <tsr_type TYPE>
TSR_DEVICE void q_load_plain(const unsigned char *const rows[2], int blocks, int lane, q_weights<TYPE> *w)
{
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++)
        w->scale[b][r] = b < blocks ? q_half(rows[r] + b * q_type<TYPE>::block_bytes) : 0.0f;
    q_words_plain<TYPE, false>(rows, lane, w->a);
}

/* A step of MXFP4 begins at any byte, `past` after a multiple of four, and each of its blocks has one byte
 * before its words. So a word of block b is in two aligned ones, from byte (past + b) % 4 + 1 of the first to
 * the same of the second. `words`: the last multiple of four up to the step's begin, and four bytes more for
 * each lane of four before this one. */
TSR_DEVICE uint32_t q_word_mxfp4(const unsigned char *words, int past, int b)
{
    const unsigned char *const at = words + 16 * b + (b > 0 ? (past + b) & 4 : 0);
    return __funnelshift_l(q_word<true>(at), q_word<true>(at + 4), (uint32_t)(24 - 8 * past - 8 * b));
}

/* Twice tsr_quant_mx_scale(): 2^(e - 127), or NaN. */
TSR_DEVICE float q_power(uint32_t e)
{
    const uint32_t bits = e << 23, smallest = 0x00400000u; /* e = 0: 2^-127 */
    const float power = tsr_bits_to_f32(bits > smallest ? bits : smallest);
    return fmaf(power, 0.0f, power); /* infinity, of e = 255, becomes NaN */
}

TSR_DEVICE void q_load_mxfp4(const unsigned char *const rows[2], int blocks, int lane,
                             q_weights<TSR_TYPE_MXFP4> *w)
{
    const int j = lane % 4;
    float scale[2];
    TSR_UNROLL
    for (int r = 0; r < 2; r++)
        scale[r] = j < blocks ? q_power(rows[r][j * q_type<TSR_TYPE_MXFP4>::block_bytes]) : 0.0f;
    q_share_scales(scale, lane, w->scale);
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int past = (int)(reinterpret_cast<uintptr_t>(rows[r]) % 4);
        TSR_UNROLL
        for (int b = 0; b < Q_BLOCKS; b++)
            q_look_up<TSR_TYPE_MXFP4>(q_word_mxfp4(rows[r] - past + lane % 4 * 4, past, b), &w->a[b][r],
                                      &w->a[b][2 + r]);
    }
}

/* The scales (byte b: block b) and minima of a chunk's blocks, for Q4_K and Q5_K (tsr_quant_scale_min in
 * core/quant/quant.h), and their factors. */
struct q_header {
    uint32_t scales, minima;
    float d, m;
};

TSR_DEVICE q_header q_header_of(const uint32_t word[4], bool second_half)
{
    const int shift = second_half ? 2 : 0;
    const uint32_t mask = second_half ? 0x30303030u : 0x3f3f3f3fu, more = second_half ? 0x0f0f0f0fu : 0;
    return {(word[1] >> shift & mask) | (word[3] & more), (word[2] >> shift & mask) | (word[3] >> 4 & more),
            tsr_half_to_f32((uint16_t)word[0]), tsr_half_to_f32((uint16_t)(word[0] >> 16))};
}

/* One over the multiple of its quants that words of block b have: q_words_minimum(). */
template <tsr_type TYPE> TSR_DEVICE float q_share(int b)
{
    return TYPE == TSR_TYPE_Q4_K ? (b % 2 == 0 ? 1.0f : 1.0f / 16) : 1.0f / (float)(1 << b);
}

/* A nibble stays where it is in its byte. The fifth bits of four blocks are those from 4 on of their bytes,
 * and nibbles are moved to the bits below. */
template <tsr_type TYPE>
TSR_DEVICE void q_words_minimum(const unsigned char *const rows[2], int half, int lane,
                                uint32_t a[Q_BLOCKS][4])
{
    const int at = lane % 4 * 8; /* adjacent words */
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        tsr_bytes_8 fifth = {};
        if (TYPE == TSR_TYPE_Q5_K)
            fifth = *reinterpret_cast<const tsr_bytes_8 *>(rows[r] + 16 + at);
        TSR_UNROLL
        for (int pair = 0; pair < 2; pair++) {
            const int quants = (TYPE == TSR_TYPE_Q5_K ? 48 : 16) + 64 * half + 32 * pair;
            const tsr_bytes_8 both = *reinterpret_cast<const tsr_bytes_8 *>(rows[r] + quants + at);
            TSR_UNROLL
            for (int side = 0; side < 2; side++) {
                const uint32_t word = both.word[side],
                               bits = half == 0 ? fifth.word[side] << 4 : fifth.word[side];
                uint32_t *const even = &a[2 * pair][2 * side + r], *const odd =
                                                                       &a[2 * pair + 1][2 * side + r];
                if (TYPE == TSR_TYPE_Q4_K) {
                    *even = word & 0x0f0f0f0fu;
                    *odd = word & 0xf0f0f0f0u;
                } else if (pair == 0) {
                    *even = (word & 0x0f0f0f0fu) | (bits & 0x10101010u);
                    *odd = (word >> 3 & 0x1e1e1e1eu) | (bits & 0x20202020u);
                } else {
                    *even = (word << 2 & 0x3c3c3c3cu) | (bits & 0x40404040u);
                    *odd = (word >> 1 & 0x78787878u) | (bits & 0x80808080u);
                }
            }
        }
    }
}

template <tsr_type TYPE>
TSR_DEVICE void q_load_minimum(const unsigned char *const rows[2], int half, int lane, q_weights<TYPE> *w)
{
    const int j = lane % 4;
    float scale[2], minimum[2];
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const tsr_bytes_16 words = *reinterpret_cast<const tsr_bytes_16 *>(rows[r]);
        const q_header header = q_header_of(words.word, half != 0);
        const float d = header.d * q_share<TYPE>(j);
        scale[r] = q_scaled(header.scales, j, d, -Q_SCALE_MORE * d);
        minimum[r] = q_scaled(header.minima, j, -header.m, Q_SCALE_MORE * header.m);
    }
    q_words_minimum<TYPE>(rows, half, lane, w->a);
    q_share_scales(scale, lane, w->scale);
    q_share_scales(minimum, lane, w->second);
}

/* Q6_K's scales are signed bytes: as bytes of 128 more. */
TSR_DEVICE float q_scaled_signed(uint32_t word, int n, float d)
{
    return q_scaled(word ^ 0x80808080u, n, d, -(Q_SCALE_MORE + 128.0f) * d);
}

/* Four times the quants of 32 less. ALIGNED: the step begins at a multiple of four bytes. */
template <bool ALIGNED>
TSR_DEVICE void q_words_q6_k(const unsigned char *const rows[2], int half, int lane, uint32_t a[Q_BLOCKS][4])
{
    TSR_UNROLL
    for (int r = 0; r < 2; r++)
        TSR_UNROLL
    for (int side = 0; side < 2; side++) { /* words j and j + 4 */
        const unsigned char *const at = rows[r] + lane % 4 * 4 + 16 * side;
        const uint32_t high = q_word<ALIGNED>(at + 128 + 32 * half);
        TSR_UNROLL
        for (int pair = 0; pair < 2; pair++) { /* blocks `pair` and pair + 2 */
            const uint32_t low = q_word<ALIGNED>(at + 64 * half + 32 * pair);
            a[pair][2 * side + r] = q_four_times(low << 2, high << (6 - 2 * pair));
            a[pair + 2][2 * side + r] = q_four_times(low >> 2, high << (2 - 2 * pair));
        }
    }
}

TSR_DEVICE void q_load_q6_k(const unsigned char *const rows[2], int half, int lane,
                            q_weights<TSR_TYPE_Q6_K> *w)
{
    const int j = lane % 4;
    float scale[2], second[2];
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const unsigned char *const block = rows[r];
        const float d = q_half(block + 208);
        const uint32_t scales = *reinterpret_cast<const uint16_t *>(block + 192 + 8 * half + 2 * j);
        scale[r] = q_scaled_signed(scales, 0, d);
        second[r] = q_scaled_signed(scales, 1, d);
    }
    q_words_q6_k<false>(rows, half, lane, w->a);
    q_share_scales(scale, lane, w->scale);
    q_share_scales(second, lane, w->second);
}

/* Load a lane's part of 16 rows of one chunk: rows[r] is the step of row q_row_in(lane) + 8 r. */
template <tsr_type TYPE>
TSR_DEVICE void q_rows_load(const q_args &a, const unsigned char *const rows[2], int chunk, int lane,
                            q_weights<TYPE> *w)
{
    const int half = chunk % q_type<TYPE>::step_chunks;
    const int blocks = q_type<TYPE>::super ? (int)Q_BLOCKS : q_span_of(a, chunk).length / TSR_QUANT_BLOCK;
    if constexpr (q_type<TYPE>::minimum)
        q_load_minimum<TYPE>(rows, half, lane, w);
    else if constexpr (q_type<TYPE>::halves)
        q_load_q6_k(rows, half, lane, w);
    else if constexpr (TYPE == TSR_TYPE_MXFP4)
        q_load_mxfp4(rows, blocks, lane, w);
    else
        q_load_plain<TYPE>(rows, blocks, lane, w);
}

/* The distances of a lane's two rows of a set of rows from the last multiple of 16. All of a lane's steps of
 * the set have them in common. */
TSR_DEVICE void q_phases(const q_args &a, bool even, int64_t first_row, int lane, uint32_t phases[2])
{
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int64_t row = first_row + q_row_in(lane) + r * (a.set_rows - Q_ROWS / 2);
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
        rows[r] = slots + (q_row_in(lane) + 8 * r) * a.slot_stride + offset;
    }
    q_rows_load<TYPE>(a, rows, chunk, lane, w);
}

#endif
