/* Names of the operations and descriptions of ops; the collective of an op. */
#include "core/op.h"

#include <stddef.h>
#include <stdio.h>

const char *tsr_op_kind_name(tsr_op_kind kind)
{
    static const char *const names[TSR_OP_COUNT] = {
        [TSR_OP_NONE] = "none",
        [TSR_OP_INPUTS] = "inputs",
        [TSR_OP_GET_ROWS] = "get_rows",
        [TSR_OP_RMS_NORM] = "rms_norm",
        [TSR_OP_SUM_SQUARES] = "sum_squares",
        [TSR_OP_RMS_SCALE] = "rms_scale",
        [TSR_OP_MUL_MAT] = "mul_mat",
        [TSR_OP_MUL_HEADS] = "mul_heads",
        [TSR_OP_ROPE] = "rope",
        [TSR_OP_KV_WRITE] = "kv_write",
        [TSR_OP_ATTENTION] = "attention",
        [TSR_OP_SELECT] = "select",
        [TSR_OP_CONV] = "conv",
        [TSR_OP_RECURRENCE] = "recurrence",
        [TSR_OP_COMPRESS] = "compress",
        [TSR_OP_STREAM_WEIGHTS] = "stream_weights",
        [TSR_OP_STREAM_MIX] = "stream_mix",
        [TSR_OP_GLU] = "glu",
        [TSR_OP_ADD] = "add",
        [TSR_OP_SCALE] = "scale",
        [TSR_OP_SOFTCAP] = "softcap",
        [TSR_OP_GATE] = "gate",
        [TSR_OP_SOFTMAX] = "softmax",
        [TSR_OP_ARGMAX] = "argmax",
        [TSR_OP_TOP_K] = "top_k",
        [TSR_OP_COPY] = "copy",
        [TSR_OP_ROUTE] = "route",
        [TSR_OP_EXPERTS_GLU] = "experts_glu",
        [TSR_OP_EXPERTS_DOWN] = "experts_down",
        [TSR_OP_ALL_REDUCE] = "all_reduce",
        [TSR_OP_ALL_GATHER] = "all_gather",
        [TSR_OP_SEND] = "send",
        [TSR_OP_RECV] = "recv",
        [TSR_OP_JOIN] = "join",
    };
    return kind >= 0 && kind < TSR_OP_COUNT && names[kind] ? names[kind] : "?";
}

bool tsr_op_reads_attention(const tsr_op *ops, int i)
{
    const float *x = ops[i].mul_mat.x;
    for (int a = i - 1; a >= 0 && ops[i].kind == TSR_OP_MUL_MAT; a--) {
        if (ops[a].kind == TSR_OP_MUL_HEADS && ops[a].mul_heads.y == x)
            x = ops[a].mul_heads.x;
        if (ops[a].kind == TSR_OP_ATTENTION)
            return ops[a].attention.y == x;
    }
    return false;
}

bool tsr_op_select_fits(const tsr_op_select *op, const char **what_out)
{
    *what_out = op->n_heads > TSR_MAX_INDEX_HEADS               ? "heads of index queries"
                : op->kv.k_dim > TSR_MAX_INDEX_DIM              ? "elements of index keys"
                : op->n_lists * op->n_blocks > TSR_MAX_SELECTED ? "selected blocks"
                                                                : NULL;
    return !*what_out;
}

struct tsr_collective *tsr_op_collective(const tsr_op *op)
{
    switch (op->kind) {
    case TSR_OP_ALL_REDUCE:
        return op->all_reduce.collective;
    case TSR_OP_ALL_GATHER:
        return op->all_gather.collective;
    case TSR_OP_SEND:
        return op->send.collective;
    case TSR_OP_RECV:
        return op->recv.collective;
    default:
        return NULL;
    }
}

/* A weight's name begins with "blk.", its layer and a dot, and a product has the name of its weight. */
static bool layer_of(const tsr_op *op, int *layer_out)
{
    char dot;
    return op->name && sscanf(op->name, "blk.%d%c", layer_out, &dot) == 2 && dot == '.';
}

void tsr_op_describe(const tsr_op *ops, int n_ops, int index, char *text, size_t bytes)
{
    const tsr_op *op = &ops[index];
    char of_layer[32] = "";
    int i = index, layer = 0;
    while (i < n_ops && !layer_of(&ops[i], &layer))
        i++;
    if (i > index && i < n_ops)
        snprintf(of_layer, sizeof of_layer, " of layer %d", layer);
    snprintf(text, bytes, "op '%s' (%s)%s", op->name ? op->name : "?", tsr_op_kind_name(op->kind), of_layer);
}
