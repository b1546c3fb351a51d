/* Compressed positions and residual streams: their operands are rows, whole on every device that computes
 * them. */
#include "graph/lower/lowering.h"

/* The op on `devices`, which get whole operands. */
static tsr_status lower_on(tsr_lowering *low, const tsr_tensor *node, tsr_device_set devices)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {.n_in = tsr_node_n_src(node)};
    for (int i = 0; i < instr.n_in; i++)
        TSR_TRY(
            tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[i]), devices, &instr.in[i]));
    return tsr_lowering_emit_node(
        low, node, (tsr_value){.sharding = TSR_SHARDING_REPLICATED, .devices = devices}, instr);
out:
    return status;
}

static tsr_status check_whole(const tsr_tensor *weight)
{
    tsr_status status = tsr_lowering_check_placed(weight);
    if (status == TSR_OK && weight->placement.sharding != TSR_SHARDING_REPLICATED)
        return tsr_fail(TSR_ERR_INVALID, "weight %s is divided; it must be whole on every device",
                        weight->name);
    return status;
}

tsr_status tsr_lower_compress(tsr_lowering *low, const tsr_tensor *node)
{
    const tsr_compress_rule *rule = &((const tsr_node_args *)node->args)->compress;
    const tsr_tensor *bias = rule->bias;
    const tsr_value on = {.devices = bias->placement.devices};
    tsr_status status = TSR_OK;
    TSR_TRY(check_whole(bias));
    TSR_TRY(tsr_lowering_check_state(node, 0, &on, 0, (rule->overlap ? 6 : 3) * node->ne[0]));
    return lower_on(low, node, bias->placement.devices);
out:
    return status;
}

/* Weights of streams on the devices of their vectors; sums on the devices that have the weights, copies on
 * those of the stream. */
tsr_status tsr_lower_streams(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_stream_rule *rule = &((const tsr_node_args *)node->args)->streams;
    const tsr_tensor *of = node->src[1] ? node->src[1] : node->src[0];
    if (node->op == TSR_OP_STREAM_MIX)
        return lower_on(low, node, tsr_lowering_value(low, tsr_lowering_value_of(low, of))->devices);
    TSR_TRY(check_whole(rule->scale));
    TSR_TRY(check_whole(rule->base));
    return lower_on(low, node, rule->scale->placement.devices & rule->base->placement.devices);
out:
    return status;
}
