/* mul_mat with quantized weights for one to eight tokens, at the speed of memory. q_chunk.cuh has the
 * arithmetic.
 *
 * A block has one or two groups of eight warps. A group computes 16 rows at a time and each of its warps one
 * of the eight parts of K, so that even a matrix of 1024 rows occupies 64 groups. A warp streams its part of
 * the rows through its own ring of three slots in shared memory. Two slots are always in flight, also across
 * the end of one set of rows and the start of the next. Warps wait for each other only for the eight warps'
 * sums, once per 16 rows.
 *
 * Bytes in flight: an H200 delivers about 4.8 TB/s some 0.8 us after the request, so 3.8 MB must be in
 * flight, 29 KB per SM. 16 warps with two slots each have 37 KB (Q4_0), 70 KB (Q8_0), 74 KB (Q4_K) to 107 KB
 * (Q6_K). A slot is 16 rows of 72 (Q4_0) to 210 bytes (Q6_K), each a run of consecutive addresses.
 * Cards with less shared memory get one group.
 *
 * One token, in decoding, has a form of its own (q_one.cuh) where rows begin at multiples of 16 bytes, which
 * those of models do: all that depends on the layout of slots is then known to the compiler.
 *
 * With one or a few tokens the block quantizes the activations itself, while its first slots fill: one launch
 * less per op, which in decoding is worth more than the repeated work. Where they do not fit in addition to
 * the rings, the launcher (q.cu) starts a kernel for it, and the block reads them from memory. */
#include "cuda/kernels/mul_mat/launch_heads.cuh"
#include "cuda/kernels/mul_mat/q_one.cuh"
#include "cuda/kernels/mul_mat/q_x.cuh"
#include "cuda/kernels/rms_norm.cuh"

enum {
    FEW_GROUPS = 2, /* at most */
    FEW_GROUP_THREADS = Q_PARTS * TSR_WARP,
    FEW_SLOTS = 3
};

/* The offsets in a block's dynamic shared memory. A group's sums are [part][token][Q_ROWS] of 8 bytes, a
 * warp's ring [slot][Q_ROWS][slot_stride]. */
struct few_layout {
    int groups;
    size_t sums, zeros, codes, meta, bytes; /* the rings are at 0 */
};

struct few_sums {
    float open[2];
    int64_t fixed[2];
};

/* The op with its first matrix, all matrices, and the layout of shared memory. */
struct few_args {
    q_args q;
    tsr_launch_of of;
    few_layout layout;
};

/* The rows and the part of K of a warp. */
struct few_place {
    int lane, part;
    int first;  /* row */
    int stride; /* rows from one turn of the block to its next; no matrix has 2^31 rows */
    int before; /* rows of the block's groups before the warp's */
    int slot_bytes;
    int begin, end; /* chunks */
    unsigned char *ring;
    q_deal deal;
};

/* The next step to fetch; the slot in bytes from the ring's first. */
struct few_ahead {
    int row, chunk, slot;
};

/* Whether rows are even, where there are registers to make use of it: not with super-blocks and eight
 * tokens. */
template <tsr_type TYPE, int QUADS> TSR_DEVICE bool few_even(const q_args &a)
{
    return (QUADS <= 1 || !q_type<TYPE>::super) && a.even;
}

/* The ring's slot after `slot`, in bytes from its first. */
TSR_DEVICE int few_after(const few_place &p, int slot)
{
    return slot < (FEW_SLOTS - 1) * p.slot_bytes ? slot + p.slot_bytes : 0;
}

template <tsr_type TYPE, int QUADS>
TSR_DEVICE void few_fetch(const q_args &a, const few_place &p, const q_even<TYPE, QUADS <= 1> &even,
                          few_ahead *ahead)
{
    if (ahead->row - p.before < (int)a.n_rows && p.begin < p.end) {
        const int row = ahead->row;
        const size_t at = q_step_at<TYPE>(a, ahead->chunk);
        unsigned char *const slots = p.ring + ahead->slot;
        if (few_even<TYPE, QUADS>(a) && row + a.reach < (int)a.n_rows + (q_type<TYPE>::step_bytes % 16 == 0))
            q_copy_even(a, even, (size_t)row * a.w_stride + (at - at % 16), slots, p.lane);
        else
            q_copy_rows<TYPE, true>(a, p.deal, row, Q_ROWS, at, slots);
        ahead->slot = few_after(p, ahead->slot);
        ahead->chunk += q_type<TYPE>::step_chunks;
        if (ahead->chunk >= p.end) {
            ahead->chunk = p.begin;
            ahead->row += p.stride;
        }
    }
    tsr_copy_async_commit();
}

/* Wait until the step in `slot` has arrived, go on to the slot after it, and fetch one more step. */
template <tsr_type TYPE, int QUADS>
TSR_DEVICE void few_advance(const q_args &a, const few_place &p, const q_even<TYPE, QUADS <= 1> &even,
                            few_ahead *ahead, int *slot)
{
    tsr_copy_async_wait<FEW_SLOTS - 2>();
    __syncwarp(); /* all lanes' copies are complete, and no lane reads the previous slot any more */
    few_fetch<TYPE, QUADS>(a, p, even, ahead);
    *slot = few_after(p, *slot);
}

/* The token of the lane's sums number `quad`: with 8 bits and more than four tokens one product has both. */
template <int QUADS, int BYTES> TSR_DEVICE int few_token(int quad, int lane)
{
    return BYTES == 1 && QUADS == 2 ? 2 * (lane % 4) + quad : quad * Q_TOKENS + lane % 4;
}

/* Multiply one chunk of 16 rows with all tokens. */
template <tsr_type TYPE, int QUADS, int BYTES>
TSR_DEVICE void few_chunk(const q_args &a, const q_weights<TYPE> &w, const unsigned char *codes,
                          const q_meta *meta, int chunk, int lane, few_sums *sums)
{
    constexpr int together = BYTES == 1 ? QUADS : 1; /* quads of a product */
    TSR_UNROLL
    for (int quad = 0; quad < QUADS; quad += together) {
        /* Tokens beyond the last repeat it; their results are dropped. */
        const int last = a.n_tokens - 1;
        const int loaded = together == 2 ? lane / 4 : quad * Q_TOKENS + lane / 8;
        q_tokens<BYTES, together> t;
        float *open[2 * together];
        TSR_UNROLL
        for (int i = 0; i < together; i++) {
            const int mine = few_token<QUADS, BYTES>(quad + i, lane);
            t.meta[i] = meta + q_place(a, mine < last ? mine : last, chunk);
            open[2 * i] = &sums[quad + i].open[0];
            open[2 * i + 1] = &sums[quad + i].open[1];
        }
        q_tokens_load<BYTES, together>(
            codes + q_code_at<BYTES>(a.n_tokens, loaded < last ? loaded : last, chunk) +
                q_piece_of<BYTES>(lane),
            &t);
        q_multiply<TYPE>(w, t, open);
    }
}

template <int QUADS> TSR_DEVICE void few_close(const q_args &a, few_sums *sums, bool *bad)
{
    TSR_UNROLL
    for (int quad = 0; quad < QUADS; quad++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        sums[quad].fixed[r] += tsr_fixed_of(sums[quad].open[r], a.limit, bad);
        sums[quad].open[r] = 0.0f;
    }
}

/* Compute the warp's part of K for 16 rows. */
template <tsr_type TYPE, int QUADS, int BYTES>
TSR_DEVICE void few_part(const q_args &a, const few_place &p, const q_even<TYPE, QUADS <= 1> &even, int row,
                         const unsigned char *codes, const q_meta *meta, few_ahead *ahead, int *slot,
                         few_sums *sums)
{
    bool bad = false;
    int in_unit = 0;
    uint32_t phases[2];
    q_phases(a, few_even<TYPE, QUADS>(a), row, p.lane, phases);
    TSR_UNROLL
    for (int quad = 0; quad < QUADS; quad++)
        sums[quad] = {{0.0f, 0.0f}, {0, 0}};
    for (int step = p.begin; step < p.end; step += q_type<TYPE>::step_chunks) {
        const unsigned char *const slots = p.ring + *slot;
        few_advance<TYPE, QUADS>(a, p, even, ahead, slot);
        const size_t at = q_step_at<TYPE>(a, step);
        TSR_UNROLL_BY((QUADS == 1 && (BYTES == 2 || TYPE != TSR_TYPE_Q6_K) ? 2 : 1)) /* registers */
        for (int i = 0; i < q_type<TYPE>::step_chunks; i++) {
            q_weights<TYPE> w;
            q_weights_load<TYPE>(a, slots, phases, at, step + i, p.lane, &w);
            few_chunk<TYPE, QUADS, BYTES>(a, w, codes, meta, step + i, p.lane, sums);
            if (a.exact && (++in_unit == a.unit_chunks || step + i + 1 == p.end)) {
                few_close<QUADS>(a, sums, &bad);
                in_unit = 0;
            }
        }
    }
    if (bad)
        tsr_fault_raise(a.fault);
}

/* All lanes of four get the sum. */
TSR_DEVICE void few_gather(const few_place &p, bool exact, few_sums *sums)
{
    const int last = (p.end - p.begin + 3) % Q_ONE_CHUNKS;
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        if (!exact)
            sums->open[r] = __shfl_sync(TSR_ALL_LANES, sums->open[r], last, Q_ONE_CHUNKS);
        TSR_UNROLL
        for (int mask = 1; exact && mask < Q_ONE_CHUNKS; mask *= 2)
            sums->fixed[r] += __shfl_xor_sync(TSR_ALL_LANES, sums->fixed[r], mask);
    }
}

/* As few_part() does, for one token and rows that are even: four chunks at a time (q_one.cuh). */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void few_part_of_one(const q_args &a, const few_place &p, const q_even<TYPE, true> &even,
                                const q_one_token &x, few_ahead *ahead, int *slot, few_sums *sums)
{
    const int j = p.lane % 4, next = a.exact ? Q_ONE_CHUNKS % a.unit_chunks : 0;
    bool bad = false;
    int in_unit = a.exact ? j % a.unit_chunks : 1; /* chunks of its unit before the lane's */
    q_one<TYPE> one = {};
    *sums = {{0.0f, 0.0f}, {0, 0}};
    for (int group = p.begin; group < p.end; group += Q_ONE_CHUNKS) {
        const unsigned char *const codes = x.codes + (x.column ? group * Q_CODE_BYTES : 0);
        q_one_begin<TYPE, BYTES>(group + p.lane / 8 < p.end ? codes : x.zeros, &one);
        for (int step = group; step < p.end && step < group + Q_ONE_CHUNKS;
             step += q_type<TYPE>::step_chunks) {
            const int at = (int)(q_step_at<TYPE>(a, step) % 16),
                      upper = q_row_in(p.lane) * a.slot_stride + at;
            const q_one_rows rows = {p.ring + *slot, {upper, upper + 8 * a.slot_stride}, at % 4, at % 4 == 0};
            few_advance<TYPE, 0>(a, p, even, ahead, slot);
            if (j / q_type<TYPE>::step_chunks * q_type<TYPE>::step_chunks == step - group)
                q_one_scales(rows, j % q_type<TYPE>::step_chunks, &one);
            TSR_UNROLL
            for (int i = 0; i < q_type<TYPE>::step_chunks; i++)
                q_one_multiply<TYPE, BYTES>(rows, i, p.lane / 8 == step - group + i ? codes : x.zeros, p.lane,
                                            &one);
        }
        const q_meta *const meta = x.meta + (group + j < p.end ? group + j : group);
        float values[2][BYTES == 2 ? 1 : Q_BLOCKS], own[2] = {0.0f, 0.0f};
        q_one_values<TYPE, BYTES>(one, meta, Q_BLOCKS, p.lane, values);
        if (!a.exact) {
            q_one_add<BYTES, Q_ONE_CHUNKS>(values, meta, p.end - group, false, p.lane, sums->open, own);
            continue;
        }
        q_one_add<BYTES, Q_ONE_CHUNKS>(values, meta, p.end - group, in_unit == 0, p.lane, sums->open, own);
        if (group + j < p.end && (in_unit + 1 == a.unit_chunks || group + j + 1 == p.end))
            TSR_UNROLL
        for (int r = 0; r < 2; r++)
            sums->fixed[r] += tsr_fixed_of(own[r], a.limit, &bad);
        in_unit += next;
        in_unit -= in_unit >= a.unit_chunks ? a.unit_chunks : 0;
    }
    few_gather(p, a.exact, sums);
    if (bad)
        tsr_fault_raise(a.fault);
}

/* The sum over the parts of output `at` of a group's. */
TSR_DEVICE float few_total(const int64_t *sums, int outputs, int at)
{
    float total = 0.0f;
    for (int part = 0; part < Q_PARTS; part++)
        total = total + *reinterpret_cast<const float *>(sums + part * outputs + at);
    return total;
}

/* Add up the parts of a set of rows and store them: one thread per row and token. */
TSR_DEVICE void few_store(const few_args &f, const q_args &a, const few_place &p, int row,
                          const int64_t *sums)
{
    const int outputs = a.n_tokens * Q_ROWS;
    const int thread = tsr_not_kept(p.part * TSR_WARP + p.lane);
    const int token = (int)((unsigned)thread / Q_ROWS), nth = (int)((unsigned)thread % Q_ROWS);
    if (thread >= outputs || nth >= a.set_rows || row + nth >= a.n_rows)
        return;
    const int64_t at = token * a.y_stride + row + nth;
    if (a.exact) {
        int64_t total = 0;
        for (int part = 0; part < Q_PARTS; part++)
            total += sums[part * outputs + thread];
        if (f.of.sum_y)
            tsr_launch_store_sum(f.of, token, row + nth, tsr_fixed_value(total));
        else
            static_cast<int64_t *>(a.y)[at] = total;
        return;
    }
    const float total = few_total(sums, outputs, thread);
    if (f.of.sum_y)
        tsr_launch_store_sum(f.of, token, row + nth, tsr_partial_value(total, a.bf16));
    else if (f.of.glu)
        tsr_launch_store_glu(f.of, token, row + nth, total, few_total(sums, outputs, thread + Q_ROWS / 2));
    else
        tsr_put_sum(a.y, at, total, a.bf16);
}

/* The same of queries, keys and values: one warp of the block per token, one lane per row. `row`: the first
 * of the block's groups; `sums`: theirs. */
TSR_DEVICE void few_store_heads(const few_args &f, const q_args &a, int row, const int64_t *sums)
{
    const int token = threadIdx.x / TSR_WARP, lane = threadIdx.x % TSR_WARP, nth = lane % Q_ROWS;
    const int group = f.layout.groups == FEW_GROUPS ? lane / Q_ROWS : 0, outputs = a.n_tokens * Q_ROWS;
    if (token >= a.n_tokens)
        return;
    sums += group * Q_PARTS * outputs + token * Q_ROWS;
    const float sum = few_total(sums, outputs, nth),
                other = few_total(sums, outputs, tsr_launch_paired(f.of, nth));
    row = tsr_launch_row(f.of, row + group * a.set_rows, nth);
    tsr_launch_store_head(f.of, token, row, lane / Q_ROWS < f.layout.groups && row < a.n_rows, sum, other);
}

template <int QUADS, int BYTES>
TSR_DEVICE void few_publish(const q_args &a, const few_place &p, const few_sums *sums, int64_t *shared)
{
    TSR_UNROLL
    for (int quad = 0; quad < QUADS; quad++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int token = few_token<QUADS, BYTES>(quad, p.lane);
        int64_t *const to = shared + (p.part * a.n_tokens + token) * Q_ROWS + q_row_in(p.lane) + 8 * r;
        if (token < a.n_tokens && a.exact)
            *to = sums[quad].fixed[r];
        else if (token < a.n_tokens)
            *reinterpret_cast<float *>(to) = sums[quad].open[r];
    }
}

/* The op with the matrix of this block, and what is known of it. */
template <tsr_type TYPE, int QUADS>
TSR_DEVICE q_args few_args_of(const few_args &f, const tsr_launch_matrix &m)
{
    q_args a = f.q;
    a.w = m.w;
    a.w_end = m.w_end;
    a.y = m.y;
    a.y_stride = m.y_stride;
    a.n_rows = m.n_rows;
    if (QUADS == 0) {
        a.n_tokens = 1;
        a.even = true;
        a.bytewise = a.units_cut_chunks = false;
        a.slot_pieces = q_type<TYPE>::pieces;
        a.slot_stride = q_slot_stride(a.slot_pieces);
    }
    return a;
}

/* Quantize all activations, which may have to be normalised first, into the block's memory. `scales`: what
 * tsr_rms_scales() needs. */
template <int BYTES, bool MIXED, bool SUMS>
TSR_DEVICE void few_quantize(const few_args &f, const q_args &a, int warp, int lane, unsigned char *codes,
                             q_meta *meta, float *scales)
{
    const tsr_launch_norm &norm = f.of.norm;
    if (norm.x)
        tsr_rms_scales(norm.x, a.k, a.n_tokens, norm.eps, scales + a.n_tokens, scales);
    const int all = a.n_tokens * a.chunks, step = f.layout.groups * Q_PARTS * Q_X_CHUNKS;
    for (int first = warp * Q_X_CHUNKS; first < all; first += step) {
        const int i = first + lane / Q_X_LANES, token = i % a.n_tokens, chunk = i / a.n_tokens;
        const q_norm normed = {norm.x != NULL, norm.x ? scales[token] : 0.0f, norm.weight,
                               norm.y && blockIdx.x == 0 ? norm.y + token * a.x_stride : NULL};
        q_quantize<BYTES, MIXED, SUMS>(a, a.x + token * a.x_stride, chunk, lane, i < all,
                                       codes + q_code_at<BYTES>(a.n_tokens, token, chunk), meta + i, normed);
    }
}

/* The place of this thread's warp. */
TSR_DEVICE few_place few_place_of(const few_args &f, const q_args &a, const tsr_launch_matrix &matrix,
                                  unsigned char *memory)
{
    const int warp = threadIdx.x / TSR_WARP, turn = f.layout.groups * a.set_rows;
    few_place p = {(int)(threadIdx.x % TSR_WARP), warp % Q_PARTS};
    p.before = warp / Q_PARTS * a.set_rows;
    p.begin = p.part * a.part_chunks < a.chunks ? p.part * a.part_chunks : a.chunks;
    p.end = p.begin + a.part_chunks < a.chunks ? p.begin + a.part_chunks : a.chunks;
    p.first = ((int)blockIdx.x - matrix.first_block) * turn;
    p.stride = matrix.n_blocks * turn;
    if (f.of.half > 0) { /* counted without lower halves until here */
        p.first += p.first / f.of.half * f.of.half;
        p.stride *= 2;
    }
    p.first += p.before;
    p.slot_bytes = Q_ROWS * a.slot_stride;
    p.ring = memory + warp * FEW_SLOTS * p.slot_bytes;
    p.deal = q_deal_of(a, p.lane, TSR_WARP);
    return p;
}

/* QUADS: tokens in units of four; 0: one token, rows are even. BYTES: of an activation. */
template <tsr_type TYPE, int QUADS, int BYTES>
static __global__ void __launch_bounds__(FEW_GROUPS *FEW_GROUP_THREADS, 1)
    q_few_kernel(const __grid_constant__ few_args f)
{
    TSR_DYNAMIC_SHARED(unsigned char, memory);
    const few_layout &layout = f.layout;
    const tsr_launch_matrix &matrix = tsr_launch_matrix_of(f.of);
    const q_args a = few_args_of<TYPE, QUADS>(f, matrix);
    const int warp = threadIdx.x / TSR_WARP;
    const few_place p = few_place_of(f, a, matrix, memory);
    constexpr bool kept = QUADS <= 1;
    const q_even<TYPE, kept> even = q_even_of<TYPE, kept>(a, p.lane);

    few_ahead ahead = {p.first, p.begin, 0};
    TSR_UNROLL
    for (int i = 0; i < FEW_SLOTS - 1; i++)
        few_fetch<TYPE, QUADS>(a, p, even, &ahead);
    if (f.of.norm.weight)
        tsr_prefetch(f.of.norm.weight, a.k);
    tsr_wait_unless(a.sibling);
    tsr_start_next(); /* of siblings: they do not wait for the activations */

    if (QUADS == 0 && threadIdx.x < Q_CODE_BYTES / sizeof(uint32_t))
        reinterpret_cast<uint32_t *>(memory + layout.zeros)[threadIdx.x] = 0;
    const unsigned char *codes = a.codes;
    const q_meta *meta = a.meta;
    if (!codes) {
        few_quantize<BYTES, q_type<TYPE>::table, q_type<TYPE>::minimum>(
            f, a, warp, p.lane, memory + layout.codes, reinterpret_cast<q_meta *>(memory + layout.meta),
            reinterpret_cast<float *>(memory + layout.sums)); /* there is no sum yet */
        codes = memory + layout.codes;
        meta = reinterpret_cast<q_meta *>(memory + layout.meta);
    }
    if (!a.codes || QUADS == 0)
        __syncthreads();

    int64_t *const shared =
        reinterpret_cast<int64_t *>(memory + layout.sums) + warp / Q_PARTS * Q_PARTS * a.n_tokens * Q_ROWS;
    const unsigned char *const zeros = q_kept(memory + layout.zeros);
    const bool column = BYTES == 2 || p.lane / 4 % 2 == 0;
    const q_one_token one = {column ? codes + p.lane / 8 * Q_CODE_BYTES + q_piece_of<BYTES>(p.lane) : zeros,
                             zeros, column, meta};
    int slot = 0;
    for (int row = p.first; row - p.before < (int)a.n_rows; row += p.stride) {
        few_sums sums[QUADS == 2 ? 2 : 1];
        if constexpr (QUADS == 0)
            few_part_of_one<TYPE, BYTES>(a, p, even, one, &ahead, &slot, sums);
        else
            few_part<TYPE, QUADS, BYTES>(a, p, even, row, codes, meta, &ahead, &slot, sums);
        few_publish<QUADS == 2 ? 2 : 1, BYTES>(a, p, sums, shared);
        __syncthreads();
        if (f.of.heads)
            few_store_heads(f, a, row - p.before, reinterpret_cast<int64_t *>(memory + layout.sums));
        else
            few_store(f, a, p, row, shared);
        __syncthreads();
    }
    if (a.sibling)
        tsr_wait_for_previous();
}

/* -- host -- */

/* Whether the form for one token computes it. Where rows are even, no unit ends inside a chunk, but the last
 * may. */
static bool few_of_one(const q_args &a)
{
    return a.n_tokens == 1 && a.even && a.k % Q_CHUNK == 0;
}

static few_layout few_layout_of(const q_args &a, int groups)
{
    few_layout l = {};
    const size_t chunks = (size_t)a.n_tokens * (size_t)a.chunks;
    const int places = a.bytes ? q_places<1>(a.n_tokens) : a.n_tokens;
    l.groups = groups;
    l.sums = (size_t)(groups * Q_PARTS * FEW_SLOTS * Q_ROWS) * (size_t)a.slot_stride;
    l.zeros = l.sums + (size_t)(groups * Q_PARTS * a.n_tokens * Q_ROWS) * sizeof(int64_t);
    l.codes = l.zeros + (few_of_one(a) ? Q_CODE_BYTES : 0);
    l.meta = l.codes + (a.codes ? 0 : (size_t)places * (size_t)a.chunks * Q_CODE_BYTES);
    l.bytes = l.meta + (a.codes ? 0 : chunks * sizeof(q_meta));
    return l;
}

/* Two groups where they fit and blocks of one group would occupy every SM, or both have what is quantized
 * together. */
static few_layout few_choose(const q_args &a, int64_t all_rows, bool both, const tsr_cuda_props *props)
{
    const few_layout two = few_layout_of(a, FEW_GROUPS);
    const bool busy = all_rows > (int64_t)props->n_sms * a.set_rows;
    return (both || busy) && two.bytes <= props->shared_bytes ? two : few_layout_of(a, 1);
}

bool tsr_cuda_mul_mat_q_few_fits(const q_args &a, bool both, const tsr_cuda_props *props)
{
    return few_layout_of(a, both ? FEW_GROUPS : 1).bytes <= props->shared_bytes;
}

template <tsr_type TYPE, int QUADS, int BYTES>
static tsr_status launch(const q_args &a, const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    few_args f = {a, tsr_launch_of_products(p), {}};
    int64_t rows = 0;
    f.of.m[0].y = a.y; /* of the tokens from which a.x is */
    for (int i = 0; i < (f.of.glu ? 1 : p->n); i++)
        rows += p->of[i]->n_rows / (f.of.half > 0 ? 2 : 1);
    if (f.of.half > 0)
        for (int i = 0; i < p->n; i++)
            f.of.m[i].w_end -= a.other_at; /* of the upper halves */
    f.layout = few_choose(a, rows, tsr_launch_quantizes(p), s->props);
    tsr_status status = tsr_allow_shared(reinterpret_cast<const void *>(&q_few_kernel<TYPE, QUADS, BYTES>),
                                         f.layout.bytes, s);
    if (status != TSR_OK)
        return status;
    /* One block of two groups per SM, or two of one group; each continues with further rows. */
    const unsigned blocks = tsr_launch_deal(&f.of, p->n, f.layout.groups * a.set_rows,
                                            (int64_t)s->props->n_sms * (FEW_GROUPS / f.layout.groups));
    return tsr_cuda_result(TSR_LAUNCH_EARLY((q_few_kernel<TYPE, QUADS, BYTES>), dim3(blocks),
                                            dim3((unsigned)(f.layout.groups * FEW_GROUP_THREADS)),
                                            f.layout.bytes, s, f),
                           "q_few_kernel");
}

template <tsr_type TYPE, int QUADS>
static tsr_status launch_bytes(const q_args &a, const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    return a.bytes ? launch<TYPE, QUADS, 1>(a, p, s) : launch<TYPE, QUADS, 2>(a, p, s);
}

tsr_status tsr_cuda_mul_mat_q_few(const tsr_cuda_products *p, const q_args &a, const tsr_cuda_stream *s)
{
    switch (p->of[0]->type) {
#define FEW_CASE(constant)                                                   \
    case constant:                                                           \
        return few_of_one(a)            ? launch_bytes<constant, 0>(a, p, s) \
               : a.n_tokens <= Q_TOKENS ? launch_bytes<constant, 1>(a, p, s) \
                                        : launch_bytes<constant, 2>(a, p, s);
        TSR_FOR_EACH_QUANTIZED_TYPE(FEW_CASE)
#undef FEW_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "q_few_kernel");
    }
}
