/* mul_mat with quantized weights: the launcher, and the kernel that quantizes activations. q_chunk.cuh has
 * the arithmetic.
 *
 * A few tokens whose activations fit into a block's shared memory need no other kernel, nor one for their
 * norm. The activations of all others are quantized first, into scratch memory. With too little scratch the
 * tokens are taken in portions, which is slower and gives the same bits. (Up to eight tokens that do not fit
 * are read from there by the same kernel; the kernel for many tokens takes over where a card has too little
 * shared memory even for that.) */
#include "cuda/kernels/mul_mat/launch_heads.cuh"
#include "cuda/kernels/mul_mat/mul_mat.h"
#include "cuda/kernels/mul_mat/q_chunk.cuh"
#include "cuda/kernels/mul_mat/q_x.cuh"

enum {
    X_THREADS = 256,
    X_CHUNKS = X_THREADS / Q_X_LANES,
    FEW_TOKENS = 2 * Q_TOKENS,
    OWN_CHUNKS =
        128 /* that a block of the kernel for few tokens quantizes faster than one more kernel does */
};

/* Eight lanes per chunk, chunks slowest. */
template <int BYTES, bool MIXED, bool SUMS>
static __global__ void __launch_bounds__(X_THREADS)
    q_quantize_kernel(const q_args a, unsigned char *codes, q_meta *meta)
{
    const int64_t i = (int64_t)blockIdx.x * X_CHUNKS + threadIdx.x / Q_X_LANES;
    const int chunk = (int)(i / a.n_tokens), token = (int)(i - (int64_t)chunk * a.n_tokens);
    tsr_begin_early();
    q_quantize<BYTES, MIXED, SUMS>(a, a.x + token * a.x_stride, chunk, threadIdx.x % TSR_WARP,
                                   chunk < a.chunks, codes + q_code_at<BYTES>(a.n_tokens, token, chunk),
                                   meta + i);
}

/* -- sizes -- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Fill in how K is divided (q_chunk.cuh). */
static void divide(const tsr_op_mul_mat *op, q_args *a)
{
    a->exact = op->partial && op->reduce == TSR_REDUCE_EXACT;
    a->bf16 = op->partial && op->reduce == TSR_REDUCE_BF16;
    a->unit = a->exact && op->granule < op->k ? op->granule : op->k;
    const int64_t units = ceil_div(op->k, a->unit);
    const int64_t last = op->k - (units - 1) * a->unit;
    a->unit_chunks = (int)ceil_div(a->unit, Q_CHUNK);
    a->units_cut_chunks = a->unit % Q_CHUNK != 0 && a->unit < op->k;
    a->chunks = (int)((units - 1) * a->unit_chunks + ceil_div(last, Q_CHUNK));
    /* Parts hold whole units and whole super-blocks. */
    a->part_chunks =
        (int)(a->exact ? ceil_div(units, Q_PARTS) * a->unit_chunks : 2 * ceil_div(a->chunks, 2 * Q_PARTS));
}

/* With 8 bits two tokens share a place. */
size_t tsr_cuda_q_token_bytes(const q_args &a)
{
    return (size_t)a.chunks * (Q_CODE_BYTES + sizeof(q_meta));
}

size_t tsr_cuda_mul_mat_q_scratch(const tsr_op_mul_mat *op)
{
    q_args a = {};
    if (op->k == 0)
        return 0;
    divide(op, &a);
    return (size_t)op->n_tokens * tsr_cuda_q_token_bytes(a);
}

/* A row's steps may begin at any multiple of their alignment from a multiple of 16, so a slot has room for
 * the worst case. */
static void place_slots(tsr_type type, size_t apart, q_args *a)
{
    const size_t block = tsr_type_block_bytes(type), elems = (size_t)tsr_type_block_elems(type);
    const bool super = elems > TSR_QUANT_BLOCK;
    const size_t step = super ? block : Q_BLOCKS * block;
    const size_t steps_begin = (uintptr_t)a->w | a->w_stride | apart | step | (size_t)a->unit / elems * block;
    const size_t multiple = steps_begin % 16 == 0 ? 16 : steps_begin & -steps_begin;
    a->adjacent = block % 16 == 0;
    a->mixed = type == TSR_TYPE_IQ4_NL || type == TSR_TYPE_MXFP4;
    a->sums = type == TSR_TYPE_Q4_K || type == TSR_TYPE_Q5_K;
    a->bytewise = block % 16 == 0 && multiple < 16;
    a->slot_pieces = (int)((step + (a->bytewise ? 0 : 16 - multiple) + 15) / 16);
    a->slot_stride = q_slot_stride(a->slot_pieces);
    a->even = !a->bytewise && ((uintptr_t)a->w | a->w_stride | apart) % 16 == 0 && multiple == (step & -step);
}

q_args tsr_cuda_q_args(const tsr_op_mul_mat *op, size_t apart, const tsr_cuda_stream *s)
{
    q_args a = {};
    divide(op, &a);
    a.w = static_cast<const unsigned char *>(op->w);
    a.w_stride = op->w_stride;
    a.w_end = a.w + (size_t)(op->n_rows - 1) * op->w_stride + tsr_type_row_bytes(op->type, op->k);
    a.n_rows = op->n_rows;
    a.k = op->k;
    a.x = op->x;
    a.x_stride = op->x_stride;
    a.wide_x = tsr_wide_rows(op->x, (size_t)op->x_stride * sizeof(float)) && a.unit % 4 == 0;
    a.y = op->y;
    a.y_stride = op->y_stride;
    a.limit = op->limit;
    a.bytes = tsr_op_takes_bytes(op->x_bits);
    a.fault = tsr_fault_of(s);
    a.set_rows = a.reach = Q_ROWS;
    a.lower_at = Q_ROWS / 2 * (int64_t)op->w_stride;
    place_slots(op->type, apart, &a);
    return a;
}

/* -- portions of tokens -- */

static bool few_fit(q_args a, int64_t n_tokens, bool both, const tsr_cuda_stream *s)
{
    a.n_tokens = (int)n_tokens;
    return n_tokens <= FEW_TOKENS && tsr_cuda_mul_mat_q_few_fits(a, both, s->props);
}

/* The number of the remaining tokens to take next, and whether through scratch memory; 0: no room for one. */
static int64_t portion(const q_args &a, int64_t left, const tsr_cuda_stream *s, bool *through_scratch)
{
    const int64_t room = (int64_t)(s->scratch_bytes / tsr_cuda_q_token_bytes(a));
    *through_scratch = !few_fit(a, left, false, s) || (left * a.chunks > OWN_CHUNKS && room >= left);
    if (!*through_scratch)
        return left;
    if (room >= left)
        return left;
    if (room > FEW_TOKENS)
        return room < Q_TILE_TOKENS ? room : room / Q_TILE_TOKENS * Q_TILE_TOKENS;
    for (int64_t n = FEW_TOKENS; n > room; n--)
        if (few_fit(a, n, false, s)) {
            *through_scratch = false;
            return n;
        }
    return room;
}

template <int BYTES, bool MIXED, bool SUMS>
static tsr_status launch_quantize(const q_args &a, unsigned char *codes, q_meta *meta,
                                  const tsr_cuda_stream *s)
{
    const int64_t chunks = (int64_t)a.n_tokens * a.chunks;
    return tsr_cuda_result(TSR_LAUNCH_EARLY((q_quantize_kernel<BYTES, MIXED, SUMS>),
                                            dim3((unsigned)ceil_div(chunks, X_CHUNKS)), dim3(X_THREADS), 0, s,
                                            a, codes, meta),
                           "q_quantize_kernel");
}

template <int BYTES>
static tsr_status launch_bytes(const q_args &a, unsigned char *codes, q_meta *meta, const tsr_cuda_stream *s)
{
    return a.mixed  ? launch_quantize<BYTES, true, false>(a, codes, meta, s)
           : a.sums ? launch_quantize<BYTES, false, true>(a, codes, meta, s)
                    : launch_quantize<BYTES, false, false>(a, codes, meta, s);
}

tsr_status tsr_cuda_q_quantize(q_args *a, const tsr_cuda_stream *s)
{
    const int64_t chunks = (int64_t)a->n_tokens * a->chunks;
    unsigned char *const codes = static_cast<unsigned char *>(s->scratch);
    q_meta *const meta = reinterpret_cast<q_meta *>(codes + (size_t)chunks * Q_CODE_BYTES);
    const tsr_status status =
        a->bytes ? launch_bytes<1>(*a, codes, meta, s) : launch_bytes<2>(*a, codes, meta, s);
    a->codes = codes;
    a->meta = meta;
    return status;
}

tsr_status tsr_cuda_mul_mat_q(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    q_args a = tsr_cuda_q_args(op, 0, s);
    const tsr_cuda_products alone = {1, {op}};
    const size_t elem = op->partial ? tsr_reduce_bytes(op->reduce) : sizeof(float);
    for (int64_t token = 0; token < op->n_tokens; token += a.n_tokens) {
        bool through_scratch;
        a.codes = NULL;
        a.x = op->x + token * op->x_stride;
        a.y = static_cast<char *>(op->y) + (size_t)(token * op->y_stride) * elem;
        a.n_tokens = (int)portion(a, op->n_tokens - token, s, &through_scratch);
        if (a.n_tokens == 0)
            return tsr_fail(TSR_ERR_MEMORY, "mul_mat of %lld columns needs %zu bytes of scratch memory",
                            (long long)op->k, tsr_cuda_q_token_bytes(a));
        a.sibling = s->sibling && token == 0 && !through_scratch; /* another may still read the scratch */
        tsr_status status = through_scratch ? tsr_cuda_q_quantize(&a, s) : TSR_OK;
        if (status == TSR_OK)
            status = few_fit(a, a.n_tokens, false, s) ? tsr_cuda_mul_mat_q_few(&alone, a, s)
                                                      : tsr_cuda_mul_mat_q_many(op->type, a, s);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

static q_args args_of(const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    q_args a = tsr_cuda_q_args(p->of[0], tsr_launch_apart(p), s);
    if (p->norm) {
        a.x = p->norm->x;
        a.wide_x =
            a.wide_x && tsr_wide_rows(a.x, (size_t)a.k * sizeof(float)) && tsr_wide_rows(p->norm->weight, 0);
    }
    a.n_tokens = (int)p->of[0]->n_tokens;
    a.sibling = s->sibling;
    if (p->glu || (p->heads.q && !p->heads.q->interleaved)) {
        const int64_t half = p->glu ? 0 : p->heads.q->head_dim / 2;
        a.set_rows = Q_ROWS / 2;
        a.reach = a.set_rows + (int)half;
        a.other_at = a.lower_at =
            p->glu ? static_cast<const unsigned char *>(p->of[1]->w) - a.w : half * (int64_t)a.w_stride;
    }
    return a;
}

bool tsr_cuda_can_mul_mats_q(const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    const int64_t n_tokens = p->of[0]->n_tokens;
    const q_args a = args_of(p, s);
    bool through_scratch;
    return n_tokens <= FEW_TOKENS && portion(a, n_tokens, s, &through_scratch) == n_tokens &&
           few_fit(a, n_tokens, tsr_launch_quantizes(p), s) && !(p->norm && through_scratch);
}

tsr_status tsr_cuda_mul_mats_q(const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    q_args a = args_of(p, s);
    bool through_scratch;
    (void)portion(a, a.n_tokens, s, &through_scratch);
    if (through_scratch) {
        a.sibling = false; /* another may still read the scratch memory */
        status = tsr_cuda_q_quantize(&a, s);
    }
    return status == TSR_OK ? tsr_cuda_mul_mat_q_few(p, a, s) : status;
}
