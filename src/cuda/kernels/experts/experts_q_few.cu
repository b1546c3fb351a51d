/* Ops over experts with quantized weights for few tokens, at the speed of memory: two kernels, of the slots'
 * sums and of the exact sums of down. experts_q.cuh has the order of sums.
 *
 * A block of eight warps computes 16 rows at a time. As in mul_mat (q_few.cu) each warp streams its share of
 * the weights through its own ring of three slots in shared memory, two of which are always in flight, and
 * warps wait for each other only for their sums, once per 16 rows. A slot's expert is small (768 x 2048 in
 * Qwen3 30B-A3B), so what counts is that all blocks together have the whole of it in flight immediately:
 * blocks are of 256 threads, several per SM, and most compute 16 rows only.
 *
 * Gate, up: a block belongs to a slot, and a warp has one of the eight parts of K, of which it multiplies
 * gate and up in turn. Exact down: a block belongs to a token, which has all units of the slots that the
 * device holds side by side in one row of work, distributed evenly over the warps, since with integers the
 * order does not matter.
 *
 * Four chunks have a product together, as one token of mul_mat has (q_one.cuh): two of gate and two of up, or
 * four of a warp's part, of any units and slots. */
#include "cuda/kernels/experts/experts_q.cuh"
#include "cuda/kernels/mul_mat/q_one.cuh"
#include "cuda/kernels/mul_mat/q_x.cuh"

enum {
    FEW_WARPS = Q_PARTS,
    FEW_THREADS = FEW_WARPS * TSR_WARP,
    FEW_SLOTS = 3,
    FEW_BLOCKS = 2 /* of an SM, for which there are registers */
};

/* Offsets in a block's dynamic shared memory: [warp][slot] of the rings at 0, then sums, a place of zeros,
 * codes, q_meta and held slots. */
struct few_layout {
    size_t sums, zeros, codes, meta, held, bytes;
};

/* A warp, its ring of slots, and the slots that are filled and used next, in bytes from the block's memory;
 * the first of the lane's two rows in a slot, and that row of 16; rows that experts_q_copy() need not check.
 * */
template <tsr_type TYPE> struct few_warp {
    int lane, index, row;
    unsigned char *memory;
    int ring, end; /* of the ring */
    int bytes;     /* of a slot */
    int fetch, use, at;
    uint32_t phases[2]; /* of the next two steps: where they begin (experts_q_copy()) */
    uint32_t inner;
    experts_q_pieces<TYPE, Q_ROWS, TSR_WARP> pieces;
};

template <tsr_type TYPE> TSR_DEVICE few_warp<TYPE> few_warp_of(const q_args &q, unsigned char *memory)
{
    few_warp<TYPE> w = {(int)threadIdx.x % TSR_WARP, (int)threadIdx.x / TSR_WARP};
    w.row = q_row_in(w.lane);
    w.memory = memory;
    w.bytes = Q_ROWS * q.slot_stride;
    w.ring = w.fetch = w.use = w.index * FEW_SLOTS * w.bytes;
    w.end = w.ring + FEW_SLOTS * w.bytes;
    w.at = w.row * q.slot_stride;
    w.inner = experts_q_inner<TYPE, Q_ROWS>(q);
    experts_q_deal(q, w.lane, &w.pieces);
    return w;
}

TSR_DEVICE void few_clear(unsigned char *zeros)
{
    if (threadIdx.x < Q_CODE_BYTES / sizeof(uint32_t))
        reinterpret_cast<uint32_t *>(zeros)[threadIdx.x] = 0;
}

/* The ring's slot after `slot`. */
template <tsr_type TYPE> TSR_DEVICE int few_after(const few_warp<TYPE> &w, int slot)
{
    return slot + w.bytes < w.end ? slot + w.bytes : w.ring;
}

/* Start copying the step of 16 rows that begins with `chunk` to the slot `fetch`; its phase is the last. */
template <tsr_type TYPE> TSR_DEVICE void few_fetch(const q_args &q, few_warp<TYPE> *w, int row, int chunk)
{
    w->phases[1] = experts_q_copy(q, w->pieces, w->lane, row, chunk, w->inner, w->memory + w->fetch);
}

/* Wait for the next step's weights; the value is their slot. The next step is fetched to the slot that was
 * used before it: the caller sets `fetch`. */
template <tsr_type TYPE> TSR_DEVICE int few_next(few_warp<TYPE> *w)
{
    const int slot = w->use;
    tsr_copy_async_wait<FEW_SLOTS - 2>();
    __syncwarp(); /* all lanes' copies are complete, and no lane reads the previous slot any more */
    w->use = few_after(*w, slot);
    return slot;
}

/* How far the first of a lane's two rows of a set of 16 is from the set's first. A row past the matrix's last
 * one is the last one. */
template <tsr_type TYPE> TSR_DEVICE uint32_t few_row_at(const q_args &q, const few_warp<TYPE> &w, int row)
{
    const int last = (int)q.n_rows - 1 - row;
    return (uint32_t)(w.row < last ? w.row : last) * (uint32_t)q.w_stride;
}

/* A step of the rows in its slot. The second row is eight rows behind the first, and so as far from a
 * multiple of four. Past the last row it has any values, which do not count. */
template <tsr_type TYPE>
TSR_DEVICE q_one_rows few_in_slot(const q_args &q, const few_warp<TYPE> &w, uint32_t row_at, int slot,
                                  uint32_t phase)
{
    q_one_rows s = {w.memory};
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const uint32_t past =
            experts_q_one_way<TYPE, Q_ROWS>() ? 0 : (phase + row_at + 8 * r * (uint32_t)q.w_stride) % 16;
        s.row[r] = slot + w.at + 8 * r * q.slot_stride + (int)past;
        if (r == 0)
            s.past = (int)(past % 4);
    }
    s.aligned = q.w_stride % 4 == 0 && s.past == 0;
    return s;
}

/* Activations of n rows, one chunk after another. */
struct few_x {
    const unsigned char *codes;
    const q_meta *meta;
    int n;
};

/* Whether the lane's column of products counts: with 8 bits the first of each pair does. */
template <int BYTES> TSR_DEVICE bool few_has_column(int lane)
{
    return BYTES == 2 || lane / 4 % 2 == 0;
}

/* Blocks of a chunk. */
template <tsr_type TYPE> TSR_DEVICE int few_blocks(const q_args &q, int chunk)
{
    return q_type<TYPE>::super ? (int)Q_BLOCKS : q_span_of(q, chunk).length / TSR_QUANT_BLOCK;
}

/* -- the slots' sums -- */

/* The next step to fetch of a slot. */
struct few_ahead {
    int row, chunk;
};

/* A slot of a block. */
template <int MATRICES> struct few_work {
    const unsigned char *w[MATRICES]; /* of the expert */
    int slot, expert;                 /* there are fewer than 2^31 */
    int begin, end;                   /* chunks of the warp's part */
    few_x from;
    int x; /* the slot's row of it */
};

/* The product of the slot's expert with matrix m. */
template <int MATRICES> TSR_DEVICE q_args few_q(const experts_q_args &a, const few_work<MATRICES> &k, int m)
{
    q_args q = a.q;
    q.w = k.w[m];
    q.w_end = q.w + a.m[m].bytes;
    return q;
}

/* Fetch the next step of matrix m; the last matrix goes on to the next step. */
template <tsr_type TYPE, int MATRICES>
TSR_DEVICE void few_fetch_ahead(const experts_q_args &a, const few_work<MATRICES> &k, int m,
                                few_warp<TYPE> *w, few_ahead *ahead)
{
    w->phases[0] = w->phases[1];
    if (ahead->row < (int)a.q.n_rows) {
        few_fetch<TYPE>(few_q(a, k, m), w, ahead->row, ahead->chunk);
        if (m == MATRICES - 1)
            ahead->chunk += q_type<TYPE>::step_chunks;
        if (m == MATRICES - 1 && ahead->chunk >= k.end) {
            ahead->chunk = k.begin;
            ahead->row += (int)gridDim.x * Q_ROWS;
        }
    }
    tsr_copy_async_commit();
}

/* The sums of the warp's part, of 16 rows: of matrix m in lanes of four from 4 / MATRICES * m on, in that of
 * the last chunk. */
template <tsr_type TYPE, int MATRICES, int BYTES>
TSR_DEVICE void few_part(const experts_q_args &a, const few_work<MATRICES> &k, int row,
                         const unsigned char *zeros, few_warp<TYPE> *w, few_ahead *ahead, float sums[2])
{
    constexpr int together = Q_ONE_CHUNKS / MATRICES; /* chunks */
    const int column = w->lane / 8, own = w->lane % together;
    const uint32_t row_at = few_row_at(a.q, *w, row);
    q_one<TYPE> one = {};
    for (int group = k.begin; group < k.end; group += together) {
        const int chunk = group + column % together;
        const unsigned char *const codes =
            few_has_column<BYTES>(w->lane) && chunk < k.end
                ? k.from.codes + q_code_at<BYTES>(k.from.n, k.x, chunk) + q_piece_of<BYTES>(w->lane)
                : zeros;
        q_one_begin<TYPE, BYTES>(codes, &one);
        TSR_UNROLL_BY((BYTES == 2 ? 2 : 1)) /* registers */
        for (int i = 0; i < together; i += q_type<TYPE>::step_chunks) {
            if (group + i >= k.end)
                break;
            TSR_UNROLL
            for (int m = 0; m < MATRICES; m++) {
                const int first = m * together + i; /* column */
                const uint32_t phase = w->phases[0];
                const int slot = few_next(w);
                /* Two turns ahead it is the turn of matrix m again. */
                few_fetch_ahead<TYPE, MATRICES>(a, k, m, w, ahead);
                w->fetch = slot;
                const q_one_rows s = few_in_slot<TYPE>(a.q, *w, row_at, slot, phase);
                if (w->lane % 4 / q_type<TYPE>::step_chunks * q_type<TYPE>::step_chunks == first)
                    q_one_scales(s, w->lane % q_type<TYPE>::step_chunks, &one);
                TSR_UNROLL
                for (int c = 0; c < q_type<TYPE>::step_chunks; c++)
                    q_one_multiply<TYPE, BYTES>(s, c, column == first + c ? codes : zeros, w->lane, &one);
            }
        }
        const int mine = group + own < k.end ? group + own : group;
        const q_meta *const meta = k.from.meta + k.x + mine * k.from.n;
        float values[2][BYTES == 2 ? 1 : Q_BLOCKS], unused[2];
        q_one_values<TYPE, BYTES>(one, meta, few_blocks<TYPE>(a.q, mine), w->lane, values);
        q_one_add<BYTES, together>(values, meta, k.end - group, false, w->lane, sums, unused);
    }
}

/* Add up the parts, [part][matrix][row], and store them. */
template <int MATRICES>
TSR_DEVICE void few_store(const experts_q_args &a, const few_work<MATRICES> &k, int row, const float *shared)
{
    if (threadIdx.x >= Q_ROWS || row + (int)threadIdx.x >= a.q.n_rows)
        return;
    float totals[2] = {0.0f, 0.0f};
    for (int part = 0; part < Q_PARTS; part++)
        TSR_UNROLL
    for (int m = 0; m < MATRICES; m++)
        totals[m] = totals[m] + shared[(part * MATRICES + m) * Q_ROWS + threadIdx.x];
    experts_q_store(a, k.expert, k.slot, row + threadIdx.x, totals[0], totals[1]);
}

/* All of a slot's rows that are the block's. */
template <tsr_type TYPE, int MATRICES, int BYTES>
TSR_DEVICE void few_slot_rows(const experts_q_args &a, const few_layout &layout, few_work<MATRICES> k,
                              few_warp<TYPE> *w, unsigned char *memory)
{
    constexpr int together = Q_ONE_CHUNKS / MATRICES;
    const int first = (int)blockIdx.x * Q_ROWS, last = (k.end - k.begin + together - 1) % together;
    const int64_t x = (k.slot - a.first) / a.x_slots;
    const unsigned char *const zeros = memory + layout.zeros;
    float *const shared = reinterpret_cast<float *>(memory + layout.sums);
    /* A warp without a part fetches nothing. */
    few_ahead ahead = {k.begin < k.end ? first : (int)a.q.n_rows, k.begin};
    w->fetch = w->use;
    TSR_UNROLL
    for (int i = 0; i < FEW_SLOTS - 1; i++) {
        few_fetch_ahead<TYPE, MATRICES>(a, k, i % MATRICES, w, &ahead);
        w->fetch = few_after(*w, w->fetch);
    }
    if (a.q.codes) {
        k.from = {a.q.codes, a.q.meta, a.q.n_tokens};
        k.x = (int)x;
    } else {
        q_meta *const meta = reinterpret_cast<q_meta *>(memory + layout.meta);
        for (int four = w->index * Q_X_CHUNKS; four < a.q.chunks; four += FEW_WARPS * Q_X_CHUNKS) {
            const int i = four + w->lane / Q_X_LANES;
            q_quantize<BYTES, q_type<TYPE>::table, q_type<TYPE>::minimum>(
                a.q, a.q.x + x * a.q.x_stride, i, w->lane, i < a.q.chunks,
                memory + layout.codes + (size_t)i * Q_CODE_BYTES, meta + i);
        }
        k.from = {memory + layout.codes, meta, 1};
        k.x = 0;
    }
    __syncthreads();
    for (int row = first; row < a.q.n_rows; row += (int)gridDim.x * Q_ROWS) {
        float sums[2] = {0.0f, 0.0f};
        few_part<TYPE, MATRICES, BYTES>(a, k, row, zeros, w, &ahead, sums);
        if (w->lane % together == last) {
            float *const to =
                shared + (w->index * MATRICES + w->lane % 4 / together) * Q_ROWS + q_row_in(w->lane);
            to[0] = sums[0];
            to[8] = sums[1];
        }
        __syncthreads();
        few_store<MATRICES>(a, k, row, shared);
        __syncthreads();
    }
}

/* Blocks of an SM, for which there are registers. The rings of Q5_K and Q6_K leave room for one block on most
 * cards. */
constexpr int few_blocks_of(tsr_type type, int bytes)
{
    return bytes == 1 && (type == TSR_TYPE_Q5_K || type == TSR_TYPE_Q6_K) ? 1 : (int)FEW_BLOCKS;
}

/* Gate and up, or one matrix. */
template <tsr_type TYPE, int MATRICES, int BYTES>
static __global__ void __launch_bounds__(FEW_THREADS, few_blocks_of(TYPE, BYTES))
    experts_q_few_kernel(const experts_q_args a, const few_layout layout)
{
    TSR_DYNAMIC_SHARED(unsigned char, memory);
    few_warp<TYPE> w = few_warp_of<TYPE>(a.q, memory);
    few_clear(memory + layout.zeros);
    tsr_wait_for_previous();
    tsr_start_next();
    for (int64_t slot = a.first + blockIdx.y; slot < a.end; slot += gridDim.y) {
        few_work<MATRICES> k = {};
        k.slot = (int)slot;
        k.expert = a.routing.expert[slot];
        if (!experts_q_holds(a, k.expert))
            continue;
        TSR_UNROLL
        for (int m = 0; m < MATRICES; m++)
            k.w[m] = experts_q_of(a, a.m[m], k.expert).w;
        k.begin = w.index * a.q.part_chunks < a.q.chunks ? w.index * a.q.part_chunks : a.q.chunks;
        k.end = k.begin + a.q.part_chunks < a.q.chunks ? k.begin + a.q.part_chunks : a.q.chunks;
        few_slot_rows<TYPE, MATRICES, BYTES>(a, layout, k, &w, memory);
    }
}

/* -- exact down -- */

/* A slot of a token whose expert the device holds. */
struct few_held {
    const unsigned char *w; /* the expert's matrix */
    float weight;
    int slot; /* of the token's */
};

/* A token with its held slots, whose chunks are one row of work, and a warp's part of it. */
struct few_token {
    const few_held *held;
    int n_held;
    few_x from;
    int x;                   /* the first slot's row of it */
    int index, chunk, steps; /* the part: the slot where it begins, among those held, and the chunk */
};

/* A warp's walk over its part, for 16 rows after another. */
struct few_walk {
    int row, index, chunk, left; /* steps */
};

TSR_DEVICE few_walk few_begin(const few_token &t, int row)
{
    return {row, t.index, t.chunk, t.steps};
}

template <tsr_type TYPE> TSR_DEVICE void few_step(const q_args &q, few_walk *walk)
{
    walk->left--;
    walk->chunk += q_type<TYPE>::step_chunks;
    if (walk->chunk >= q.chunks) {
        walk->chunk = tsr_not_kept(0); /* rare: a branch */
        walk->index++;
    }
}

/* List the held slots of the token whose slots begin with `first`; the value is their number. All warps come
 * to it, and the first one writes the list. It is made before the wait for the previous kernel, so the
 * routing comes from the second-level cache: the first level may still have that of the layer before. */
TSR_DEVICE int few_list(const experts_q_args &a, int64_t first, int lane, bool writes, few_held *held)
{
    int n = 0;
    for (int base = 0; base < (int)a.routing.n_used; base += TSR_WARP) {
        const int slot = base + lane;
        const int32_t expert =
            slot < (int)a.routing.n_used ? tsr_read_early(a.routing.expert + first + slot) : -1;
        const bool holds = experts_q_holds(a, expert);
        const uint32_t all = __ballot_sync(TSR_ALL_LANES, holds);
        if (holds && writes)
            held[n + __popc(all & ((1u << lane) - 1))] = {
                experts_q_of(a, a.m[0], expert).w,
                a.routing.weigh_inputs ? 1.0f : tsr_read_early(a.routing.weight + first + slot), slot};
        n += __popc(all);
    }
    return n;
}

/* Divide a row of work among the warps by whole units: with integers the order does not matter. */
template <tsr_type TYPE> TSR_DEVICE void few_divide(const q_args &q, int warp, few_token *t)
{
    constexpr int step = q_type<TYPE>::step_chunks; /* units are of whole steps */
    const int units = (q.chunks + q.unit_chunks - 1) / q.unit_chunks, all = t->n_held * units;
    const int begin = warp * all / FEW_WARPS, end = (warp + 1) * all / FEW_WARPS;
    const int last = end / units;
    t->index = begin / units;
    t->chunk = (begin - t->index * units) * q.unit_chunks;
    t->steps = ((last - t->index) * q.chunks + (end - last * units) * q.unit_chunks - t->chunk) / step;
}

/* Fetch the next step of the walk; after its part of some rows it goes on to the next. */
template <tsr_type TYPE>
TSR_DEVICE void few_fetch_walk(const experts_q_args &a, const few_token &t, few_warp<TYPE> *w, few_walk *walk)
{
    w->phases[0] = w->phases[1];
    if (walk->left == 0)
        *walk = few_begin(t, tsr_not_kept(walk->row + (int)gridDim.x * Q_ROWS)); /* rare: a branch */
    if (walk->row < (int)a.q.n_rows) {
        q_args q = a.q;
        q.w = t.held[walk->index].w;
        q.w_end = q.w + a.m[0].bytes;
        few_fetch<TYPE>(q, w, walk->row, walk->chunk);
        few_step<TYPE>(a.q, walk);
    }
    tsr_copy_async_commit();
}

/* A chunk of a token: of which of its held slots, and after how many chunks of its unit. */
struct few_chunk {
    int index, chunk, in_unit;
};

/* Go on by n chunks; `rest`: of n divided by the chunks of a unit. */
TSR_DEVICE void few_move(const q_args &q, int n, int rest, few_chunk *at)
{
    at->chunk += n;
    at->in_unit += rest;
    at->in_unit -= at->in_unit >= q.unit_chunks ? q.unit_chunks : 0;
    while (at->chunk >= q.chunks) {
        at->chunk -= q.chunks;
        at->index++;
        at->in_unit = at->chunk % q.unit_chunks;
    }
}

/* The fixed-point sums of the warp's part, of 16 rows; a lane of four has those of its chunks. Four chunks of
 * any units and slots have a product together. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void few_exact_part(const experts_q_args &a, const few_token &t, const unsigned char *zeros,
                               few_warp<TYPE> *w, int row, few_walk *ahead, int64_t fixed[2], bool *bad)
{
    constexpr int step = q_type<TYPE>::step_chunks;
    const int column = w->lane / 8, j = w->lane % Q_ONE_CHUNKS, rest = Q_ONE_CHUNKS % a.q.unit_chunks;
    float open[2] = {0.0f, 0.0f};
    q_one<TYPE> one = {};
    int left = t.steps;
    const uint32_t row_at = few_row_at(a.q, *w, row);
    few_chunk own = {t.index, t.chunk, 0};
    few_move(a.q, j, j % a.q.unit_chunks, &own);
    for (; left > 0; left -= Q_ONE_CHUNKS / step) {
        const int n = left * step; /* chunks */
        const few_chunk mine = j < n ? own : few_chunk{t.index, t.chunk, 0};
        const few_held own_held = t.held[mine.index];
        const int x = t.x + own_held.slot;
        const q_meta *const meta = t.from.meta + x + mine.chunk * t.from.n;
        const int at =
            __shfl_sync(TSR_ALL_LANES, (int)q_code_at<BYTES>(t.from.n, x, mine.chunk), column, Q_ONE_CHUNKS);
        const unsigned char *const codes = few_has_column<BYTES>(w->lane) && column < n
                                               ? t.from.codes + at + q_piece_of<BYTES>(w->lane)
                                               : zeros;
        q_one_begin<TYPE, BYTES>(codes, &one);
        TSR_UNROLL
        for (int first = 0; first < Q_ONE_CHUNKS; first += step) {
            if (first >= n)
                break;
            const uint32_t phase = w->phases[0];
            const int slot = few_next(w);
            few_fetch_walk<TYPE>(a, t, w, ahead);
            w->fetch = slot;
            const q_one_rows s = few_in_slot<TYPE>(a.q, *w, row_at, slot, phase);
            if (j / step * step == first)
                q_one_scales(s, j % step, &one);
            TSR_UNROLL
            for (int i = 0; i < step; i++)
                q_one_multiply<TYPE, BYTES>(s, i, column == first + i ? codes : zeros, w->lane, &one);
        }
        float values[2][BYTES == 2 ? 1 : Q_BLOCKS], sums[2] = {0.0f, 0.0f};
        q_one_values<TYPE, BYTES>(one, meta, few_blocks<TYPE>(a.q, mine.chunk), w->lane, values);
        q_one_add<BYTES, Q_ONE_CHUNKS>(values, meta, n, mine.in_unit == 0, w->lane, open, sums);
        if (j < n && (mine.in_unit + 1 == a.q.unit_chunks || mine.chunk + 1 == a.q.chunks))
            TSR_UNROLL
        for (int r = 0; r < 2; r++)
            if (row + w->row + 8 * r < (int)a.q.n_rows)
                fixed[r] += tsr_fixed_of(own_held.weight * sums[r], a.q.limit, bad);
        few_move(a.q, Q_ONE_CHUNKS, rest, &own);
    }
    TSR_UNROLL
    for (int r = 0; r < 2; r++)
        TSR_UNROLL
    for (int mask = 1; mask < Q_ONE_CHUNKS; mask *= 2)
        fixed[r] += __shfl_xor_sync(TSR_ALL_LANES, fixed[r], mask);
}

/* Add up the warps' sums, [warp][row], and the biases, and store them. */
TSR_DEVICE void few_exact_store(const experts_q_args &a, int64_t first, int row, const int64_t *shared,
                                bool *bad)
{
    const int64_t at = first / a.routing.n_used * a.q.n_rows + row + threadIdx.x;
    if (threadIdx.x >= Q_ROWS || row + (int)threadIdx.x >= a.q.n_rows)
        return;
    int64_t *const y = static_cast<int64_t *>(a.q.y) + at;
    int64_t total = a.onto ? *y : 0;
    for (int i = 0; i < FEW_WARPS; i++)
        total += shared[i * Q_ROWS + threadIdx.x];
    for (int64_t s = first; a.m[0].bias.data && s < first + a.routing.n_used; s++)
        if (experts_q_holds(a, a.routing.expert[s]))
            total += experts_q_bias(a, a.routing.expert[s], s, row + threadIdx.x, bad);
    *y = total;
}

/* Quantize the activations of the held slots. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void few_quantize(const experts_q_args &a, const few_token &t, const float *x, int warp, int lane,
                             unsigned char *codes, q_meta *meta)
{
    const int all = t.n_held * a.q.chunks, n = (int)a.routing.n_used;
    for (int four = warp * Q_X_CHUNKS; four < all; four += FEW_WARPS * Q_X_CHUNKS) {
        const int mine = four + lane / Q_X_LANES, i = mine < all ? mine : all - 1;
        const int index = i / a.q.chunks, chunk = i - index * a.q.chunks, slot = t.held[index].slot;
        q_quantize<BYTES, q_type<TYPE>::table, q_type<TYPE>::minimum>(
            a.q, x + slot * a.q.x_stride, chunk, lane, mine < all, codes + q_code_at<BYTES>(n, slot, chunk),
            meta + slot + chunk * n);
    }
    __syncthreads();
}

/* The first weights are fetched while gate and up are still computed. Their experts are read then, too: the
 * kernel of gate and up has the routing, and lets this one start after that, or not before its own end.
 * The rings of Q5_K and Q6_K leave room for one block on most cards. */
template <tsr_type TYPE, int BYTES>
static __global__ void __launch_bounds__(FEW_THREADS,
                                         TYPE == TSR_TYPE_Q5_K || TYPE == TSR_TYPE_Q6_K ? 1 : FEW_BLOCKS)
    experts_q_few_exact_kernel(const experts_q_args a, const few_layout layout)
{
    TSR_DYNAMIC_SHARED(unsigned char, memory);
    const int64_t n_used = a.routing.n_used;
    const int first = (int)blockIdx.x * Q_ROWS;
    int64_t *const shared = reinterpret_cast<int64_t *>(memory + layout.sums);
    few_held *const held = reinterpret_cast<few_held *>(memory + layout.held);
    few_warp<TYPE> w = few_warp_of<TYPE>(a.q, memory);
    few_clear(memory + layout.zeros);
    bool bad = false;
    for (int64_t x = blockIdx.y * n_used; x < a.end - a.first; x += gridDim.y * n_used) {
        few_token t = {held, few_list(a, a.first + x, w.lane, w.index == 0, held)};
        few_divide<TYPE>(a.q, w.index, &t);
        __syncthreads();
        /* A warp without a part fetches nothing. */
        few_walk ahead = few_begin(t, t.steps > 0 ? first : (int)a.q.n_rows);
        w.fetch = w.use;
        TSR_UNROLL_BY(1)
        for (int i = 0; i < FEW_SLOTS - 1; i++) {
            few_fetch_walk<TYPE>(a, t, &w, &ahead);
            w.fetch = few_after(w, w.fetch);
        }
        tsr_wait_for_previous(); /* the routing is older than the kernel before this one (above) */
        tsr_start_next();
        if (a.q.codes) {
            t.x = BYTES == 2 ? 0 : (int)x % 2; /* which side of a place is the first slot's */
            t.from = {a.q.codes + (x - t.x) / (BYTES == 2 ? 1 : 2) * Q_CODE_BYTES, a.q.meta + x - t.x,
                      a.q.n_tokens};
        } else {
            q_meta *const meta = reinterpret_cast<q_meta *>(memory + layout.meta);
            few_quantize<TYPE, BYTES>(a, t, a.q.x + x * a.q.x_stride, w.index, w.lane, memory + layout.codes,
                                      meta);
            t.from = {memory + layout.codes, meta, (int)n_used};
        }
        for (int row = first; row < a.q.n_rows; row += (int)gridDim.x * Q_ROWS) {
            int64_t fixed[2] = {0, 0};
            few_exact_part<TYPE, BYTES>(a, t, memory + layout.zeros, &w, row, &ahead, fixed, &bad);
            if (w.lane % 4 == 0) {
                shared[w.index * Q_ROWS + q_row_in(w.lane)] = fixed[0];
                shared[w.index * Q_ROWS + q_row_in(w.lane) + 8] = fixed[1];
            }
            __syncthreads();
            few_exact_store(a, a.first + x, row, shared, &bad);
            __syncthreads();
        }
    }
    if (bad)
        tsr_fault_raise(a.q.fault);
}

/* -- host -- */

static few_layout few_layout_of(const experts_q_args &a)
{
    const bool exact = a.form == EXPERTS_Q_EXACT;
    const size_t rows = exact ? (size_t)a.routing.n_used : 1; /* of activations */
    const size_t chunks = a.q.codes ? 0 : (size_t)a.q.chunks, places = a.q.bytes ? (rows + 1) / 2 : rows;
    few_layout l = {};
    l.sums = (size_t)(FEW_WARPS * FEW_SLOTS * Q_ROWS) * (size_t)a.q.slot_stride;
    l.zeros = l.sums + FEW_WARPS * Q_ROWS * sizeof(int64_t); /* or two floats */
    l.codes = l.zeros + Q_CODE_BYTES;
    l.meta = l.codes + chunks * places * Q_CODE_BYTES;
    l.held = l.meta + chunks * rows * sizeof(q_meta);
    l.bytes = l.held + (exact ? rows * sizeof(few_held) : 0);
    return l;
}

bool tsr_cuda_experts_q_few_fits(const experts_q_args &a, const tsr_cuda_props *props)
{
    return few_layout_of(a).bytes <= props->shared_bytes;
}

/* Blocks for `n` slots or tokens: along x as many as fill the card or, where there are more rows, as have
 * equal numbers of them. */
static dim3 few_grid(const experts_q_args &a, int64_t n, size_t bytes, const tsr_cuda_props *props)
{
    const int64_t bands = (a.q.n_rows + Q_ROWS - 1) / Q_ROWS, rows = n < 65535 ? n : 65535;
    const int64_t per_sm = (int64_t)(props->shared_bytes / bytes) > FEW_BLOCKS ? (int)FEW_BLOCKS
                           : props->shared_bytes / bytes > 0 ? (int64_t)(props->shared_bytes / bytes)
                                                             : 1;
    const int64_t most = props->n_sms * per_sm, turns = (bands * rows + most - 1) / most;
    const int64_t turns_of_slot = turns < bands ? turns : bands;
    return dim3((unsigned)((bands + turns_of_slot - 1) / turns_of_slot), (unsigned)rows);
}

template <typename Kernel> static tsr_status allow(Kernel *kernel, size_t bytes, const tsr_cuda_stream *s)
{
    return tsr_allow_shared(reinterpret_cast<const void *>(kernel), bytes, s);
}

template <tsr_type TYPE, int MATRICES, int BYTES>
static tsr_status launch(const experts_q_args &a, const tsr_cuda_stream *s)
{
    const few_layout layout = few_layout_of(a);
    const tsr_status status = allow(&experts_q_few_kernel<TYPE, MATRICES, BYTES>, layout.bytes, s);
    if (status != TSR_OK)
        return status;
    return tsr_cuda_result(TSR_LAUNCH_EARLY((experts_q_few_kernel<TYPE, MATRICES, BYTES>),
                                            few_grid(a, a.end - a.first, layout.bytes, s->props),
                                            dim3(FEW_THREADS), layout.bytes, s, a, layout),
                           "experts_q_few_kernel");
}

template <tsr_type TYPE, int BYTES>
static tsr_status launch_exact(const experts_q_args &a, const tsr_cuda_stream *s)
{
    const few_layout layout = few_layout_of(a);
    const int64_t n_tokens = (a.end - a.first) / a.routing.n_used;
    const tsr_status status = allow(&experts_q_few_exact_kernel<TYPE, BYTES>, layout.bytes, s);
    if (status != TSR_OK)
        return status;
    return tsr_cuda_result(TSR_LAUNCH_EARLY((experts_q_few_exact_kernel<TYPE, BYTES>),
                                            few_grid(a, n_tokens, layout.bytes, s->props), dim3(FEW_THREADS),
                                            layout.bytes, s, a, layout),
                           "experts_q_few_exact_kernel");
}

template <tsr_type TYPE, int BYTES>
static tsr_status launch_form(const experts_q_args &a, const tsr_cuda_stream *s)
{
    return a.form == EXPERTS_Q_EXACT ? launch_exact<TYPE, BYTES>(a, s)
           : a.form == EXPERTS_Q_GLU ? launch<TYPE, 2, BYTES>(a, s)
                                     : launch<TYPE, 1, BYTES>(a, s);
}

tsr_status tsr_cuda_experts_q_few(tsr_type type, const experts_q_args &a, const tsr_cuda_stream *s)
{
    switch (type) {
#define FEW_CASE(constant) \
    case constant:         \
        return a.q.bytes ? launch_form<constant, 1>(a, s) : launch_form<constant, 2>(a, s);
        TSR_FOR_EACH_QUANTIZED_TYPE(FEW_CASE)
#undef FEW_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "experts_q_few_kernel");
    }
}
