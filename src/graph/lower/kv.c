/* Lowering of the ops over a KV region, like node.c. */
#include "alloc/kv/kv.h"
#include "graph/lower/lowering.h"

/* Every device must have the sinks of its heads: all, or a map that is that of the attention in heads instead
 * of elements. */
static tsr_status check_sinks(const tsr_tensor *sinks, const tsr_value *q)
{
    const tsr_placement *place = &sinks->placement;
    if (place->sharding == TSR_SHARDING_REPLICATED && !(q->devices & ~place->devices))
        return TSR_OK;
    if (place->sharding != TSR_SHARDING_SPLIT || q->sharding != TSR_SHARDING_SPLIT ||
        q->devices != place->devices ||
        !tsr_lowering_same_heads(place->map, 1, q->map, q->ne0 / sinks->ne[0]))
        return tsr_fail(
            TSR_ERR_INVALID,
            "attention: sinks %s are neither whole on every device of %s nor divided by its heads",
            sinks->name, q->name);
    return TSR_OK;
}

/* Every device must have the KV heads of its heads of x, which is a layer's keys, or has a part for each of
 * its query heads. Layers whose devices have the one KV head whole need any part of it. */
static tsr_status check_kv_heads(const char *op, const tsr_node_args *args, const tsr_value *x)
{
    const tsr_kv_rows *rows = tsr_kv_layer_rows(args->kv, args->layer);
    TSR_FOR_DEVICES(d, x->devices) {
        tsr_kv_view view;
        tsr_kv_view_of(args->kv, d, args->layer, &view);
        const int64_t n = tsr_value_cols(x, d);
        if (rows->whole ? n > 0 && view.n_heads == 0 : n * rows->n_heads != x->ne0 * view.n_heads)
            return tsr_fail(
                TSR_ERR_INVALID,
                "%s: device %d has %lld of %lld elements of %s, and %lld of %lld KV heads; divide "
                "the weights of queries, keys and values between the same heads",
                op, d, (long long)n, (long long)x->ne0, x->name, (long long)view.n_heads,
                (long long)rows->n_heads);
    }
    return TSR_OK;
}

/* Devices have whole query heads. */
static tsr_status check_cuts(const tsr_node_args *args, const tsr_value *q)
{
    const int64_t k_dim = tsr_kv_layer_rows(args->kv, args->layer)->k_dim;
    if (q->sharding == TSR_SHARDING_SPLIT && !tsr_lowering_same_heads(q->map, k_dim, q->map, k_dim))
        return tsr_fail(
            TSR_ERR_INVALID,
            "attention: %s is divided inside heads; its weight needs granules of whole heads, %lld "
            "rows each",
            q->name, (long long)k_dim);
    return TSR_OK;
}

tsr_status tsr_lower_attention(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *sinks = ((const tsr_node_args *)node->args)->sinks;
    if (sinks)
        TSR_TRY(tsr_lowering_check_placed(sinks));
    TSR_TRY(check_cuts(node->args, tsr_lowering_value(low, tsr_lowering_value_of(low, node->src[0]))));
    TSR_TRY(tsr_lower_by_head(low, node));
    const tsr_value *value = tsr_lowering_value(low, tsr_lowering_value_of(low, node));
    TSR_TRY(check_kv_heads("attention", node->args, value));
    if (sinks)
        TSR_TRY(check_sinks(sinks, value));
out:
    return status;
}

/* Those of `devices` that hold keys of a KV layer. */
static tsr_device_set with_keys(const tsr_node_args *args, tsr_device_set devices)
{
    tsr_device_set with = 0;
    TSR_FOR_DEVICES(d, devices) {
        tsr_kv_view view;
        tsr_kv_view_of(args->kv, d, args->layer, &view);
        if (view.n_heads > 0)
            with |= tsr_device_set_one(d);
    }
    return with;
}

/* Every device that has index keys computes the selection from whole queries, weights and keys. */
tsr_status tsr_lower_select(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {.n_in = tsr_node_n_src(node)};
    int q = tsr_lowering_value_of(low, node->src[0]);
    tsr_value value = {.sharding = TSR_SHARDING_REPLICATED};
    TSR_TRY(tsr_lowering_need_whole(low, q, tsr_lowering_value(low, q)->devices, &instr.in[0]));
    value.devices =
        tsr_lowering_deciders(low, with_keys(node->args, tsr_lowering_value(low, instr.in[0])->devices));
    for (int i = 1; i < instr.n_in; i++)
        TSR_TRY(tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[i]), value.devices,
                                        &instr.in[i]));
    return tsr_lowering_emit_node(low, node, value, instr);
out:
    return status;
}

tsr_status tsr_lower_kv_write(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {
        .in = {tsr_lowering_value_of(low, node->src[0]), tsr_lowering_value_of(low, node->src[1])},
        .n_in = 5};
    const tsr_node_args *args = node->args;
    const tsr_value *k = tsr_lowering_value(low, instr.in[0]), *v = tsr_lowering_value(low, instr.in[1]);
    const bool whole = tsr_kv_layer_rows(args->kv, args->layer)->whole;
    const tsr_device_set all = tsr_device_set_all(low->graph->rt->n_devices);
    tsr_device_set devices = whole ? k->devices | with_keys(args, all) : k->devices;
    for (int i = 0; i < 2 && whole; i++)
        TSR_TRY(tsr_lowering_need_whole(low, instr.in[i], devices, &instr.in[i]));
    if (!whole && (k->sharding == TSR_SHARDING_PARTIAL || v->sharding == TSR_SHARDING_PARTIAL ||
                   k->devices != v->devices))
        return tsr_fail(TSR_ERR_INVALID, "kv_store: %s and %s must be divided by the same heads", k->name,
                        v->name);
    for (int i = 0; i < 2 && !whole; i++)
        TSR_TRY(check_kv_heads("kv_store", args, i == 0 ? k : v));
    for (int i = 2; i < 5; i++)
        TSR_TRY(
            tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[i]), devices, &instr.in[i]));
    instr.kind = node->op;
    instr.name = node->name;
    instr.args = node->args;
    instr.out = -1;
    instr.devices = devices;
    instr.collective = -1;
    TSR_TRY(tsr_lowering_add_instr(low, instr));
out:
    return status;
}
