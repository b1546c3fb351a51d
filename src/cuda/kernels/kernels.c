/* The launcher of each op record, and the refusal of unsupported ops. */
#include "cuda/kernels/kernels.h"

#include "core/gpu.h"
#include "cuda/api/check.h"

static bool is_weight_type(tsr_type type)
{
    switch (type) {
    case TSR_TYPE_F32:
    case TSR_TYPE_F16:
    case TSR_TYPE_BF16:
    case TSR_TYPE_Q8_0:
    case TSR_TYPE_Q4_0:
    case TSR_TYPE_Q4_K:
    case TSR_TYPE_Q5_K:
    case TSR_TYPE_Q6_K:
    case TSR_TYPE_Q4_1:
    case TSR_TYPE_Q5_0:
    case TSR_TYPE_Q5_1:
    case TSR_TYPE_Q2_K:
    case TSR_TYPE_Q3_K:
    case TSR_TYPE_IQ4_NL:
    case TSR_TYPE_IQ4_XS:
    case TSR_TYPE_MXFP4:
    case TSR_TYPE_NVFP4:
    case TSR_TYPE_IQ1_S:
    case TSR_TYPE_IQ1_M:
    case TSR_TYPE_IQ2_XXS:
    case TSR_TYPE_IQ2_XS:
    case TSR_TYPE_IQ2_S:
    case TSR_TYPE_IQ3_XXS:
    case TSR_TYPE_IQ3_S:
    case TSR_TYPE_TQ1_0:
    case TSR_TYPE_TQ2_0:
        return true;
    default:
        return false;
    }
}

/* Types that kernels can write: caches and converted rows. */
static bool is_cache_type(tsr_type type)
{
    return type == TSR_TYPE_F32 || type == TSR_TYPE_F16 || type == TSR_TYPE_BF16 || type == TSR_TYPE_Q8_0 ||
           type == TSR_TYPE_Q4_0;
}

static tsr_status refuse_type(const tsr_op *op, tsr_type type)
{
    return tsr_fail(TSR_ERR_UNSUPPORTED, "op '%s': the CUDA kernels have no %s of type %s",
                    op->name ? op->name : "?", tsr_op_kind_name(op->kind), tsr_type_name(type));
}

static tsr_status check_kv(const tsr_op *op, const tsr_kv_view *kv)
{
    if (!is_cache_type(kv->type_k))
        return refuse_type(op, kv->type_k);
    return is_cache_type(kv->type_v) ? TSR_OK : refuse_type(op, kv->type_v);
}

static tsr_status check_attention(const tsr_op *op)
{
    const tsr_kv_view *kv = &op->attention.kv;
    const int64_t head_dim = kv->k_dim > kv->v_dim ? kv->k_dim : kv->v_dim;
    if (head_dim > TSR_MAX_HEAD_DIM)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "op '%s': attention heads of %lld elements; the CUDA kernels take at most %d",
                        op->name ? op->name : "?", (long long)head_dim, TSR_MAX_HEAD_DIM);
    return check_kv(op, kv);
}

static tsr_status check_most(const tsr_op *op, int64_t n, const char *what, int64_t most)
{
    if (n > most)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "op '%s': %lld %s; the CUDA kernels take at most %lld",
                        op->name ? op->name : "?", (long long)n, what, (long long)most);
    return TSR_OK;
}

/* Grids have at most GRID_SIDE blocks along their second and third side. */
enum { GRID_SIDE = 65535 };

/* The scores of one token must fit into a device's scratch memory. */
static tsr_status check_select(const tsr_op *op)
{
    const char *too_much;
    const tsr_op_select *a = &op->select;
    if (!tsr_op_select_fits(a, &too_much))
        return tsr_fail(TSR_ERR_UNSUPPORTED, "op '%s': too many %s; the CUDA kernels take fewer",
                        op->name ? op->name : "?", too_much);
    if (!is_cache_type(a->kv.type_k))
        return refuse_type(op, a->kv.type_k);
    if (tsr_cuda_select_scratch(a, 1) > TSR_GPU_SCRATCH_BYTES)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "op '%s': the scores of %lld positions in %lld lists take %zu bytes; the CUDA kernels "
            "have room for %d; open with a smaller n_ctx",
            op->name ? op->name : "?", (long long)(a->index.table_stride * a->kv.page_tokens),
            (long long)a->n_lists, tsr_cuda_select_scratch(a, 1), TSR_GPU_SCRATCH_BYTES);
    return TSR_OK;
}

static tsr_status check_conv(const tsr_op *op)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_most(op, op->conv.kernel, "tokens of a convolution", TSR_MAX_CONV_KERNEL));
    TSR_TRY(check_most(op, op->conv.index.n_rows, "sequences", GRID_SIDE));
out:
    return status;
}

static tsr_status check_recurrence(const tsr_op *op)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_most(op, op->recurrence.dk, "elements of a key", TSR_MAX_STATE_ROWS));
    TSR_TRY(check_most(op, op->recurrence.n_heads, "heads", GRID_SIDE));
    TSR_TRY(check_most(op, op->recurrence.index.n_rows, "sequences", GRID_SIDE));
out:
    return status;
}

static tsr_status check_heads(const tsr_op *op)
{
    if (!is_weight_type(op->mul_heads.type))
        return refuse_type(op, op->mul_heads.type);
    return check_most(op, op->mul_heads.n_heads, "heads", GRID_SIDE);
}

static tsr_status check_stream_mix(const tsr_op *op)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_most(op, op->stream_mix.n_in, "streams", TSR_MAX_STREAMS));
    TSR_TRY(
        check_most(op, op->stream_mix.n, "elements of a stream", (int64_t)GRID_SIDE * TSR_CUDA_MIX_THREADS));
out:
    return status;
}

/* tsr_divide(). */
static tsr_status check_rope(const tsr_op *op)
{
    const tsr_op_rope *rope = &op->rope;
    return check_most(op, rope->n_tokens * rope->n_heads * rope->head_dim, "elements of all heads and tokens",
                      INT32_MAX);
}

static tsr_status check_top_k(const tsr_op *op)
{
    const tsr_op_top_k *a = &op->top_k;
    if (a->k < 1 || a->k > TSR_MAX_CANDIDATES || a->n > INT32_MAX)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "op '%s': the %lld largest of %lld; the CUDA kernels take up to %d of up to %d",
                        op->name ? op->name : "?", (long long)a->k, (long long)a->n, TSR_MAX_CANDIDATES,
                        INT32_MAX);
    return check_most(op, (int64_t)tsr_cuda_top_k_scratch(a, 1), "bytes of candidates of a row",
                      TSR_GPU_SCRATCH_BYTES);
}

tsr_status tsr_cuda_op_check(const tsr_op *op)
{
    switch (op->kind) {
    case TSR_OP_GET_ROWS:
        return is_weight_type(op->get_rows.type) ? TSR_OK : refuse_type(op, op->get_rows.type);
    case TSR_OP_MUL_MAT:
        return is_weight_type(op->mul_mat.type) ? TSR_OK : refuse_type(op, op->mul_mat.type);
    case TSR_OP_MUL_HEADS:
        return check_heads(op);
    case TSR_OP_COPY:
        return is_cache_type(op->copy.dst_type) ? TSR_OK : refuse_type(op, op->copy.dst_type);
    case TSR_OP_KV_WRITE:
        return check_kv(op, &op->kv_write.kv);
    case TSR_OP_ATTENTION:
        return check_attention(op);
    case TSR_OP_SELECT:
        return check_select(op);
    case TSR_OP_EXPERTS_GLU:
        return !is_weight_type(op->experts_glu.gate.type) ? refuse_type(op, op->experts_glu.gate.type)
               : !is_weight_type(op->experts_glu.up.type) ? refuse_type(op, op->experts_glu.up.type)
                                                          : TSR_OK;
    case TSR_OP_EXPERTS_DOWN:
        return is_weight_type(op->experts_down.down.type) ? TSR_OK
                                                          : refuse_type(op, op->experts_down.down.type);
    case TSR_OP_CONV:
        return check_conv(op);
    case TSR_OP_RECURRENCE:
        return check_recurrence(op);
    case TSR_OP_COMPRESS:
        return check_most(op, op->compress.index.n_rows, "sequences", GRID_SIDE);
    case TSR_OP_STREAM_WEIGHTS:
        return check_most(op, op->stream_weights.n, "streams", TSR_MAX_STREAMS);
    case TSR_OP_STREAM_MIX:
        return check_stream_mix(op);
    case TSR_OP_TOP_K:
        return check_top_k(op);
    case TSR_OP_ROPE:
        return check_rope(op);
    case TSR_OP_INPUTS:
    case TSR_OP_JOIN:
    case TSR_OP_ROUTE:
    case TSR_OP_RMS_NORM:
    case TSR_OP_SUM_SQUARES:
    case TSR_OP_RMS_SCALE:
    case TSR_OP_GLU:
    case TSR_OP_ADD:
    case TSR_OP_SCALE:
    case TSR_OP_SOFTCAP:
    case TSR_OP_GATE:
    case TSR_OP_SOFTMAX:
    case TSR_OP_ARGMAX:
        return TSR_OK;
    default:
        return tsr_fail(TSR_ERR_UNSUPPORTED, "op '%s': the CUDA kernels have no %s",
                        op->name ? op->name : "?", tsr_op_kind_name(op->kind));
    }
}

size_t tsr_cuda_op_scratch(const tsr_op *op)
{
    switch (op->kind) {
    case TSR_OP_ATTENTION:
        return tsr_cuda_attention_scratch(&op->attention);
    case TSR_OP_SELECT:
        return tsr_cuda_select_scratch(&op->select, op->select.n_tokens);
    case TSR_OP_TOP_K:
        return tsr_cuda_top_k_scratch(&op->top_k, op->top_k.n_rows);
    case TSR_OP_MUL_MAT:
        return tsr_cuda_mul_mat_scratch(&op->mul_mat);
    case TSR_OP_EXPERTS_GLU:
        return tsr_cuda_experts_glu_scratch(&op->experts_glu);
    case TSR_OP_EXPERTS_DOWN:
        return tsr_cuda_experts_down_scratch(&op->experts_down);
    default:
        return 0;
    }
}

tsr_status tsr_cuda_op_launch(const tsr_op *op, const tsr_cuda_stream *s)
{
    switch (op->kind) {
    case TSR_OP_INPUTS:
        return TSR_CUDA(
            cudaMemcpyAsync(op->inputs.y, op->inputs.x, op->inputs.bytes, cudaMemcpyHostToDevice, s->stream));
    case TSR_OP_GET_ROWS:
        return tsr_cuda_get_rows(&op->get_rows, s);
    case TSR_OP_RMS_NORM:
        return tsr_cuda_rms_norm(&op->rms_norm, s);
    case TSR_OP_SUM_SQUARES:
        return tsr_cuda_sum_squares(&op->sum_squares, s);
    case TSR_OP_RMS_SCALE:
        return tsr_cuda_rms_scale(&op->rms_scale, s);
    case TSR_OP_MUL_MAT:
        return tsr_cuda_mul_mat(&op->mul_mat, s);
    case TSR_OP_MUL_HEADS:
        return tsr_cuda_mul_heads(&op->mul_heads, s);
    case TSR_OP_ROPE:
        return tsr_cuda_rope(&op->rope, s);
    case TSR_OP_KV_WRITE:
        return tsr_cuda_kv_write(&op->kv_write, s);
    case TSR_OP_ATTENTION:
        return tsr_cuda_attention(&op->attention, s);
    case TSR_OP_SELECT:
        return tsr_cuda_select(&op->select, s);
    case TSR_OP_CONV:
        return tsr_cuda_conv(&op->conv, s);
    case TSR_OP_RECURRENCE:
        return tsr_cuda_recurrence(&op->recurrence, s);
    case TSR_OP_COMPRESS:
        return tsr_cuda_compress(&op->compress, s);
    case TSR_OP_STREAM_WEIGHTS:
        return tsr_cuda_stream_weights(&op->stream_weights, s);
    case TSR_OP_STREAM_MIX:
        return tsr_cuda_stream_mix(&op->stream_mix, s);
    case TSR_OP_GLU:
        return tsr_cuda_glu(&op->glu, s);
    case TSR_OP_ADD:
        return tsr_cuda_add(&op->add, s);
    case TSR_OP_SCALE:
        return tsr_cuda_scale(&op->scale, s);
    case TSR_OP_SOFTCAP:
        return tsr_cuda_softcap(&op->softcap, s);
    case TSR_OP_GATE:
        return tsr_cuda_gate(&op->gate, s);
    case TSR_OP_SOFTMAX:
        return tsr_cuda_softmax(&op->softmax, s);
    case TSR_OP_ARGMAX:
        return tsr_cuda_argmax(&op->argmax, s);
    case TSR_OP_TOP_K:
        return tsr_cuda_top_k(&op->top_k, s);
    case TSR_OP_COPY:
        return tsr_cuda_copy(&op->copy, s);
    case TSR_OP_ROUTE:
        return tsr_cuda_route(&op->route, s);
    case TSR_OP_EXPERTS_GLU:
        return tsr_cuda_experts_glu(&op->experts_glu, s);
    case TSR_OP_EXPERTS_DOWN:
        return tsr_cuda_experts_down(&op->experts_down, s);
    default:
        return tsr_cuda_op_check(op);
    }
}
