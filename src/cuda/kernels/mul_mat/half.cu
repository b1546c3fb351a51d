/* mul_mat with F16 and BF16 weights: the choice of the kernel (half.cuh). */
#include "cuda/kernels/mul_mat/half.cuh"
#include "cuda/kernels/mul_mat/launch_heads.cuh"

/* Up to here weights are read once per eight tokens, beyond once per 64 from shared memory. */
enum { FEW_TOKENS = 2 * HALF_TOKENS };

/* Tokens whose parts are in scratch memory together. More tokens would save little: weights are read from
 * memory once per MOST_TOKENS tokens, which takes a fifth of the time of multiplying them. */
enum { MOST_TOKENS = 256 };

static int64_t granule_of(const tsr_op_mul_mat *op)
{
    const bool exact = op->partial && op->reduce == TSR_REDUCE_EXACT;
    return exact && op->granule < op->k ? op->granule : op->k;
}

static int chunks_in(int64_t n)
{
    return (int)((n + HALF_CHUNK - 1) / HALF_CHUNK);
}

static int chunks_of(const tsr_op_mul_mat *op)
{
    const int64_t granule = granule_of(op);
    return (int)(op->k / granule) * chunks_in(granule) + chunks_in(op->k % granule);
}

static half_args args_of(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    half_args a = {};
    a.w = static_cast<const unsigned char *>(op->w);
    a.w_stride = op->w_stride;
    a.x = op->x;
    a.x_stride = op->x_stride;
    a.y = op->y;
    a.y_stride = op->y_stride;
    a.n_rows = op->n_rows;
    a.k = op->k;
    a.n_tokens = op->n_tokens;
    a.granule = granule_of(op);
    a.granule_chunks = chunks_in(a.granule);
    a.chunks = chunks_of(op);
    a.limit = op->limit;
    a.exact = op->partial && op->reduce == TSR_REDUCE_EXACT;
    a.bf16 = op->partial && op->reduce == TSR_REDUCE_BF16;
    const bool aligned = a.granule % TSR_OCTET == 0 || a.granule == a.k;
    a.wide_w = aligned && tsr_wide_rows(op->w, op->w_stride);
    a.wide_x = aligned && tsr_wide_rows(op->x, (size_t)op->x_stride * sizeof(float));
    a.fault = tsr_fault_of(s);
    a.sibling = s->sibling;
    return a;
}

extern "C" size_t tsr_cuda_mul_mat_half_scratch(const tsr_op_mul_mat *op)
{
    if (op->n_tokens <= FEW_TOKENS || op->n_rows == 0 || op->k == 0)
        return 0;
    const int64_t tokens = op->n_tokens < MOST_TOKENS ? op->n_tokens : MOST_TOKENS;
    return tsr_cuda_mul_mat_half_many_scratch(op->type, chunks_of(op), tokens);
}

extern "C" tsr_status tsr_cuda_mul_mat_half(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    const half_args a = args_of(op, s);
    const tsr_cuda_products alone = {1, {op}};
    const size_t least = tsr_cuda_mul_mat_half_many_scratch(op->type, a.chunks, HALF_TILE_TOKENS);
    if (op->n_tokens <= FEW_TOKENS || s->scratch_bytes < least)
        return tsr_cuda_mul_mat_half_few(&alone, a, s);
    return tsr_cuda_mul_mat_half_many(op->type, a, s);
}

/* A block adds up its norm while its first weights are on their way. Blocks that start when others end would
 * lose more by that than one more kernel takes. */
static bool may_normalise(const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    enum { BLOCKS = 4 }; /* per multiprocessor */
    int64_t rows = 0;
    for (int i = 0; i < p->n; i++)
        rows += p->of[i]->n_rows;
    return rows <= (int64_t)BLOCKS * HALF_ROWS * s->props->n_sms;
}

extern "C" bool tsr_cuda_can_mul_mats_half(const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    return p->of[0]->n_tokens <= HALF_TOKENS && !tsr_launch_quantizes(p) && (!p->norm || may_normalise(p, s));
}

extern "C" tsr_status tsr_cuda_mul_mats_half(const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    half_args a = args_of(p->of[0], s);
    for (int i = 1; i < p->n; i++)
        a.wide_w = a.wide_w && args_of(p->of[i], s).wide_w;
    if (p->norm) {
        a.x = p->norm->x;
        a.wide_x =
            a.wide_x && tsr_wide_rows(a.x, (size_t)a.k * sizeof(float)) && tsr_wide_rows(p->norm->weight, 0);
    }
    return tsr_cuda_mul_mat_half_few(p, a, s);
}
