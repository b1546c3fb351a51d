/* Ops with the states of sequences, and columns that repeat or are joined. The states of a layer are divided
 * by the KV region as the op's operands are: by heads, with everything that belongs to a head. */
#include "alloc/kv/kv.h"
#include "core/mem.h"
#include "graph/lower/lowering.h"

tsr_status tsr_lower_columns(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_columns *c = &((const tsr_node_args *)node->args)->columns;
    tsr_instr instr = {.in = {tsr_lowering_value_of(low, node->src[0])}, .n_in = 1};
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[0], &instr.in[0]));
    tsr_value like = *tsr_lowering_value(low, instr.in[0]);
    if (like.sharding == TSR_SHARDING_SPLIT && like.map->granule % c->period != 0) {
        TSR_TRY(tsr_lowering_need_whole(low, instr.in[0], like.devices, &instr.in[0]));
        like = *tsr_lowering_value(low, instr.in[0]);
    }
    if (like.sharding == TSR_SHARDING_SPLIT)
        TSR_TRY(tsr_lowering_scale_map(low, like.map, like.map->extent / c->period * c->n, &like.map));
    return tsr_lowering_emit_node(low, node, like, instr);
out:
    return status;
}

/* A weight with `per` elements for every `per_value` elements of a value. */
static tsr_status check_weight(const tsr_tensor *weight, int64_t per, const tsr_value *value,
                               int64_t per_value)
{
    tsr_status status = tsr_lowering_check_placed(weight);
    const tsr_placement *place = &weight->placement;
    if (status != TSR_OK)
        return status;
    bool alike = place->devices == value->devices && place->sharding == value->sharding;
    if (alike && value->sharding == TSR_SHARDING_SPLIT)
        alike = tsr_lowering_same_heads(place->map, per, value->map, per_value);
    if (!alike)
        return tsr_fail(TSR_ERR_INVALID, "weight %s and %s are divided differently", weight->name,
                        value->name);
    return TSR_OK;
}

/* The same of a vector, which may also be whole on every device of the value. */
static tsr_status check_vector(const tsr_tensor *weight, int64_t per, const tsr_value *value,
                               int64_t per_value)
{
    if (weight->placement.sharding == TSR_SHARDING_REPLICATED &&
        !(value->devices & ~weight->placement.devices))
        return tsr_lowering_check_placed(weight);
    return check_weight(weight, per, value, per_value);
}

tsr_status tsr_lowering_check_state(const tsr_tensor *node, int part, const tsr_value *like, int64_t columns,
                                    int64_t n)
{
    const tsr_state_part *state = &((const tsr_node_args *)node->args)->state;
    TSR_FOR_DEVICES(d, like->devices) {
        const int64_t n_here = columns > 0 ? tsr_value_cols(like, d) / columns * n : n;
        const size_t bytes = tsr_kv_state_bytes_on(state->kv, d, state->layer, state->part + part);
        if (bytes != (size_t)n_here * sizeof(float))
            return tsr_fail(
                TSR_ERR_INVALID,
                "%s %s: state %d of layer %d of the KV region has %zu bytes on device %d, and %lld "
                "numbers are needed there; correct the weight and the number of its "
                "tsr_kv_state_config",
                tsr_op_kind_name(node->op), node->name, state->part + part, state->layer, bytes, d,
                (long long)n_here);
    }
    return TSR_OK;
}

static tsr_status need_inputs(tsr_lowering *low, const tsr_tensor *node, int first, tsr_device_set devices,
                              tsr_instr *instr)
{
    tsr_status status = TSR_OK;
    for (int i = first; i < first + 2; i++)
        TSR_TRY(
            tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[i]), devices, &instr->in[i]));
    instr->n_in = first + 2;
out:
    return status;
}

/* Append a node's value, and an instruction for each of n parts; weights NULL: no weight is named. */
static tsr_status emit_parts(tsr_lowering *low, const tsr_tensor *node, tsr_value value, tsr_instr instr,
                             const tsr_weight_parts *weights, int n)
{
    tsr_status status = TSR_OK;
    instr.weight = weights ? weights->at[0] : NULL;
    TSR_TRY(tsr_lowering_emit_node(low, node, value, instr));
    for (int i = 1; i < n; i++) {
        instr = low->out->instrs[low->out->n_instrs - 1];
        instr.weight = weights ? weights->at[i] : NULL;
        instr.part = i;
        TSR_TRY(tsr_lowering_add_instr(low, instr));
    }
out:
    return status;
}

/* Whether the operands of an instruction are divided between the same heads. */
static bool divided_alike(tsr_lowering *low, const tsr_instr *instr, int64_t n_heads)
{
    const tsr_value *first = tsr_lowering_value(low, instr->in[0]);
    for (int i = 0; i < instr->n_in; i++) {
        const tsr_value *x = tsr_lowering_value(low, instr->in[i]);
        if (x->sharding != TSR_SHARDING_SPLIT || x->devices != first->devices ||
            x->map->granule % (x->ne0 / n_heads) != 0 ||
            !tsr_lowering_same_heads(x->map, x->ne0 / n_heads, first->map, first->ne0 / n_heads))
            return false;
    }
    return true;
}

/* An instruction for each operand; all have all operands, whose lives so end together. */
tsr_status tsr_lower_concat(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {.n_in = tsr_node_n_src(node)};
    for (int i = 0; i < instr.n_in; i++)
        TSR_TRY(tsr_lowering_need_summed(low, tsr_lowering_value_of(low, node->src[i]), &instr.in[i]));
    if (!divided_alike(low, &instr, ((const tsr_node_args *)node->args)->n_heads))
        for (int i = 0; i < instr.n_in; i++)
            TSR_TRY(tsr_lowering_need_whole(low, instr.in[i], tsr_lowering_value(low, instr.in[0])->devices,
                                            &instr.in[i]));
    tsr_value like = *tsr_lowering_value(low, instr.in[0]);
    if (like.sharding == TSR_SHARDING_SPLIT)
        TSR_TRY(tsr_lowering_scale_map(low, like.map, node->ne[0], &like.map));
    return emit_parts(low, node, like, instr, NULL, instr.n_in);
out:
    return status;
}

tsr_status tsr_lower_mul_mat_parts(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_weight_parts *parts = &((const tsr_node_args *)node->args)->parts;
    const tsr_placement *place = &parts->at[0]->placement;
    tsr_value value = {.sharding = place->sharding, .devices = place->devices, .map = place->map};
    tsr_instr instr = {.n_in = 1};
    for (int i = 0; i < parts->n; i++) {
        TSR_TRY(tsr_lowering_check_placed(parts->at[i]));
        if (place->sharding == TSR_SHARDING_SPLIT && parts->at[i]->placement.axis != 1)
            return tsr_fail(TSR_ERR_INVALID, "mul_mat: weight %s is a part of rows and is divided by columns",
                            parts->at[i]->name);
        value.name = node->name;
        TSR_TRY(check_weight(parts->at[i], 1, &value, 1));
    }
    TSR_TRY(
        tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[1]), place->devices, &instr.in[0]));
    return emit_parts(low, node, value, instr, parts, parts->n);
out:
    return status;
}

tsr_status tsr_lower_conv(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *bias = ((const tsr_node_args *)node->args)->bias;
    const tsr_weight_parts *parts = &((const tsr_node_args *)node->args)->parts;
    tsr_instr instr = {.in = {tsr_lowering_value_of(low, node->src[0])}};
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[0], &instr.in[0]));
    for (int i = 0; i < parts->n; i++) {
        TSR_TRY(check_weight(parts->at[i], 1, tsr_lowering_value(low, instr.in[0]), 1));
        TSR_TRY(tsr_lowering_check_state(node, i, tsr_lowering_value(low, instr.in[0]), 1,
                                         parts->at[i]->ne[0] - 1));
    }
    if (bias)
        TSR_TRY(check_vector(bias, 1, tsr_lowering_value(low, instr.in[0]), 1));
    TSR_TRY(need_inputs(low, node, 1, tsr_lowering_value(low, instr.in[0])->devices, &instr));
    return emit_parts(low, node, *tsr_lowering_value(low, instr.in[0]), instr, parts, parts->n);
out:
    return status;
}

/* With whole queries and keys, the unit that is divided is a head; otherwise it is a key head. */
tsr_status tsr_lower_recurrence(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_recurrence_operands *o = &((const tsr_node_args *)node->args)->recurrence;
    static const int divided[] = {0, 1, 2, 3, 6}; /* not the inputs */
    const int n_divided = o->beta ? 5 : 4;
    tsr_instr instr = {0};
    for (int i = 0; i < n_divided; i++)
        TSR_TRY(tsr_lowering_need_summed(low, tsr_lowering_value_of(low, node->src[divided[i]]),
                                         &instr.in[divided[i]]));
    tsr_value v = *tsr_lowering_value(low, instr.in[2]);
    const bool whole_keys = tsr_recurrence_keys_are_whole(tsr_lowering_value(low, instr.in[0]), &v);
    const int64_t unit = whole_keys ? 1 : o->n_heads / o->n_key_heads; /* heads */
    /* elements of the operands for a unit */
    const int64_t per[] = {o->q->ne[0] / o->n_key_heads, o->k->ne[0] / o->n_key_heads,
                           unit * (o->v->ne[0] / o->n_heads), unit * (o->alpha->ne[0] / o->n_heads), unit};
    for (int i = 0; i < n_divided; i++) {
        const tsr_value *x = tsr_lowering_value(low, instr.in[divided[i]]);
        const bool whole = x->sharding == TSR_SHARDING_REPLICATED &&
                           (v.sharding == TSR_SHARDING_REPLICATED || (whole_keys && i < 2));
        bool alike =
            whole ? !(v.devices & ~x->devices) : x->devices == v.devices && x->sharding == v.sharding;
        if (alike && !whole && v.sharding == TSR_SHARDING_SPLIT)
            alike = tsr_lowering_same_heads(x->map, per[i], v.map, per[2]);
        if (!alike)
            return tsr_fail(TSR_ERR_INVALID, "recurrence: %s and %s are divided differently", x->name,
                            v.name);
    }
    for (int i = 0; i < o->a.n; i++) {
        TSR_TRY(check_vector(o->a.at[i], unit, &v, per[2]));
        TSR_TRY(check_vector(o->dt_bias.at[i], per[3], &v, per[2]));
        TSR_TRY(tsr_lowering_check_state(node, i, &v, 1, per[0]));
    }
    if (o->skip)
        TSR_TRY(check_vector(o->skip, unit, &v, per[2]));
    TSR_TRY(need_inputs(low, node, 4, v.devices, &instr));
    instr.n_in += o->beta != NULL;
    return emit_parts(low, node, v, instr, NULL, o->a.n);
out:
    return status;
}
