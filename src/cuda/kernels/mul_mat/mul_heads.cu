/* mul_heads: a matrix per head (core/op.h). Weights of all types are multiplied octet by octet (octets.cuh):
 * a block takes rows and tokens of one head, as it would of a product of its own, so that one launch serves
 * all heads. The matrices are small, and read once per eight tokens.
 *
 * The elements behind a head's product are copied by a second kernel: there are few, and a block of the first
 * has none of its own. */
#include "cuda/api/check.h"
#include "cuda/kernels/common.cuh"
#include "cuda/kernels/mul_mat/octets.cuh"

/* Head h begins w_head bytes, x_head and y_head elements behind head h - 1. */
struct heads_args {
    octets_args of_head;
    size_t w_head;
    int64_t x_head, y_head;
};

/* Grid: x as of octets_kernel, y = heads. With more blocks in an SM in mind, the compiler would spill. */
template <tsr_type TYPE, int TOKENS>
static __global__ void __launch_bounds__(OCTETS_WARPS *TSR_WARP, TOKENS == 1 ? 4 : 2)
    heads_kernel(const heads_args a)
{
    tsr_begin_early();
    octets_args o = a.of_head;
    o.w += blockIdx.y * a.w_head;
    o.x += (int64_t)blockIdx.y * a.x_head;
    o.y = static_cast<float *>(o.y) + (int64_t)blockIdx.y * a.y_head;
    octets_block<TYPE, TOKENS>(o);
}

static __global__ void heads_rest_kernel(const tsr_op_mul_heads op)
{
    tsr_begin_early();
    const int64_t total = op.n_tokens * op.n_heads * op.rest;
    for (int64_t i = tsr_flat_begin(); i < total; i += tsr_flat_step()) {
        const int64_t head = i / op.rest, at = i % op.rest; /* head: of a token */
        op.y[head * (op.n_rows + op.rest) + op.n_rows + at] = op.x[head * (op.k + op.rest) + op.k + at];
    }
}

template <tsr_type TYPE, int TOKENS>
static tsr_status enqueue(const heads_args &a, int64_t n_heads, const tsr_cuda_stream *s)
{
    const int64_t tiles = (a.of_head.n_tokens + TOKENS - 1) / TOKENS;
    const int64_t blocks = (a.of_head.n_rows + OCTETS_ROWS - 1) / OCTETS_ROWS * tiles;
    return tsr_cuda_result(TSR_LAUNCH_EARLY((heads_kernel<TYPE, TOKENS>),
                                            dim3((unsigned)blocks, (unsigned)n_heads),
                                            dim3(OCTETS_WARPS * TSR_WARP), 0, s, a),
                           "heads_kernel");
}

template <tsr_type TYPE> static tsr_status multiply(const tsr_op_mul_heads *op, const tsr_cuda_stream *s)
{
    const tsr_op_mul_mat of_head = tsr_op_of_head(op, 0);
    heads_args a = {};
    a.of_head = octets_args_of(&of_head, s);
    a.w_head = (size_t)op->n_rows * op->w_stride;
    a.x_head = op->k + op->rest;
    a.y_head = op->n_rows + op->rest;
    a.of_head.wide_w = a.of_head.wide_w && a.w_head % 16 == 0;
    a.of_head.wide_x = a.of_head.wide_x && a.x_head % 4 == 0;
    return op->n_tokens == 1 ? enqueue<TYPE, 1>(a, op->n_heads, s)
                             : enqueue<TYPE, OCTETS_TOKENS>(a, op->n_heads, s);
}

static tsr_status multiply_any(const tsr_op_mul_heads *op, const tsr_cuda_stream *s)
{
    switch (tsr_kernel_type(op->type)) {
#define HEADS_CASE(type) \
    case type:           \
        return multiply<type>(op, s);
        TSR_FOR_EACH_WEIGHT_TYPE(HEADS_CASE)
#undef HEADS_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "heads_kernel");
    }
}

extern "C" tsr_status tsr_cuda_mul_heads(const tsr_op_mul_heads *op, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    if (op->n_heads == 0 || op->n_tokens == 0)
        return TSR_OK;
    TSR_TRY(multiply_any(op, s));
    if (op->rest > 0)
        TSR_TRY(tsr_cuda_result(TSR_LAUNCH_EARLY(heads_rest_kernel,
                                                 tsr_flat_grid(op->n_tokens * op->n_heads * op->rest, s),
                                                 dim3(TSR_FLAT_THREADS), 0, s, *op),
                                "heads_rest_kernel"));
out:
    return status;
}
