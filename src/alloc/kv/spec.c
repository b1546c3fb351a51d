/* Checking the spec of a KV region, and the sizes that follow from it. */
#include "alloc/kv/spec.h"

#include "core/mem.h"

static bool type_fits(tsr_type type)
{
    return type == TSR_TYPE_F32 || type == TSR_TYPE_F16 || type == TSR_TYPE_BF16 || type == TSR_TYPE_Q8_0 ||
           type == TSR_TYPE_Q4_0;
}

static tsr_status check_type(const char *what, tsr_type type, int64_t head_dim)
{
    if (!type_fits(type))
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s %s: KV is stored as F32, F16, BF16, Q8_0 or Q4_0", what,
                        tsr_type_name(type));
    int64_t block = tsr_type_block_elems(type);
    if (head_dim % block != 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s %s has blocks of %lld elements, and head_dim %lld is not a multiple; use F16 or "
                        "BF16",
                        what, tsr_type_name(type), (long long)block, (long long)head_dim);
    return TSR_OK;
}

/* Every element of a state must be on a device that holds the layer. */
static tsr_status check_states(const tsr_runtime *rt, const tsr_kv_spec *spec, int index)
{
    const tsr_kv_layer *layer = &spec->layers[index];
    for (int p = 0; p < TSR_KV_MAX_STATES && layer->state[p].map; p++) {
        const tsr_shard_map *map = layer->state[p].map;
        bool good = map->n_devices == rt->n_devices && map->extent > 0 && layer->state[p].unit_bytes > 0 &&
                    layer->state[p].unit_bytes % sizeof(float) == 0;
        for (int d = 0; good && d < rt->n_devices; d++)
            good = tsr_shard_map_count(map, d) == 0 || tsr_device_set_has(layer->devices, d);
        if (!good)
            return tsr_fail(TSR_ERR_INVALID,
                            "layer %d: part %d of its state needs a map over the runtime's %d devices, with "
                            "elements on devices that hold the layer only, and whole floats",
                            index, p, rt->n_devices);
    }
    return TSR_OK;
}

static tsr_status check_rows(const tsr_kv_spec *spec, int index)
{
    tsr_status status = TSR_OK;
    const tsr_kv_layer *layer = &spec->layers[index];
    if (layer->k_dim < 1 || layer->v_dim < 0 || (layer->v_in_k && layer->v_dim > layer->k_dim))
        return tsr_fail(TSR_ERR_INVALID,
                        "KV layer %d: keys of %lld and values of %lld elements; keys have at least 1, and "
                        "values inside keys no more than keys",
                        index, (long long)layer->k_dim, (long long)layer->v_dim);
    TSR_TRY(check_type("type_k", spec->type_k, layer->k_dim));
    TSR_TRY(check_type("type_v", spec->type_v, layer->v_dim));
    if (layer->v_in_k && spec->type_k != spec->type_v)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "type_k %s, type_v %s: the values of KV layer %d are a part of its keys and have "
                        "their type; pass the same type for both",
                        tsr_type_name(spec->type_k), tsr_type_name(spec->type_v), index);
out:
    return status;
}

static tsr_status check_layer(const tsr_runtime *rt, const tsr_kv_spec *spec, int index)
{
    tsr_status status = TSR_OK;
    const tsr_kv_layer *layer = &spec->layers[index];
    const tsr_shard_map *map = layer->kv_heads;
    if (layer->state[0].map)
        TSR_TRY(check_states(rt, spec, index));
    if (!map && (layer->state[0].map || layer->k_dim == 0)) /* without rows, or they are another layer's */
        return TSR_OK;
    if (!map || map->n_devices != rt->n_devices || map->extent < 1)
        return tsr_fail(TSR_ERR_INVALID,
                        "KV layer %d: needs a map of at least one KV head over the runtime's %d devices",
                        index, rt->n_devices);
    for (int d = 0; d < rt->n_devices; d++)
        if (tsr_shard_map_count(map, d) > 0 && !tsr_device_set_has(layer->devices, d))
            return tsr_fail(
                TSR_ERR_INVALID,
                "KV layer %d: its map gives heads to device %s, which does not hold the layer; give "
                "them to devices that do",
                index, rt->devices[d]->name);
    if (layer->window < 0 || layer->window > INT32_MAX)
        return tsr_fail(TSR_ERR_INVALID,
                        "KV layer %d: a window of %lld positions; 0 (none) to %d are possible", index,
                        (long long)layer->window, INT32_MAX);
    if (layer->window > 0 && (spec->n_batch < 1 || spec->n_batch > INT32_MAX))
        return tsr_fail(TSR_ERR_INVALID, "KV layer %d has a window: n_batch %lld must be 1 to %d", index,
                        (long long)spec->n_batch, INT32_MAX);
    if (layer->ratio < 0 || layer->ratio > 1 << 16 || (layer->ratio > 1 && layer->window > 0))
        return tsr_fail(
            TSR_ERR_INVALID,
            "KV layer %d: %lld positions have one key; 1 to 65536 are possible, and 1 with a window", index,
            (long long)layer->ratio);
    TSR_TRY(check_rows(spec, index));
out:
    return status;
}

tsr_status tsr_kv_spec_check(const tsr_runtime *rt, const tsr_kv_spec *spec)
{
    tsr_status status = TSR_OK;
    if (spec->n_layers < 1 || spec->n_ctx < 1 || spec->n_seq_max < 1 || spec->page_tokens < 1)
        return tsr_fail(
            TSR_ERR_INVALID,
            "KV region: %d layers, n_ctx %lld, %d sequences, pages of %d tokens; each must be at least 1",
            spec->n_layers, (long long)spec->n_ctx, spec->n_seq_max, spec->page_tokens);
    /* Page numbers and positions are int32. */
    int64_t slack = (int64_t)spec->n_seq_max * (spec->page_tokens - 1);
    if (spec->n_ctx > INT32_MAX || slack > INT32_MAX || spec->n_ctx + slack > INT32_MAX)
        return tsr_fail(TSR_ERR_INVALID,
                        "KV region: n_ctx %lld for %d sequences is beyond 2^31 tokens; lower one of them",
                        (long long)spec->n_ctx, spec->n_seq_max);
    for (int i = 0; i < spec->n_layers; i++)
        TSR_TRY(check_layer(rt, spec, i));
out:
    return status;
}

int64_t tsr_kv_n_pages(const tsr_kv_spec *spec, int64_t window, int64_t ratio)
{
    int64_t page = (spec->page_tokens ? spec->page_tokens : TSR_KV_PAGE_TOKENS) * ratio;
    int64_t n = (spec->n_ctx + spec->n_seq_max * (page - 1)) / page;
    if (window == 0 || spec->keep_all)
        return n;
    int64_t kept = window - 1 + spec->n_batch; /* consecutive positions; the first can be anywhere in a
                                                  * page */
    return TSR_MIN(n, spec->n_seq_max * ((kept + page - 2) / page + 1));
}

tsr_kv_rows tsr_kv_rows_of(const tsr_kv_layer *layer, tsr_type type_k, tsr_type type_v)
{
    return (tsr_kv_rows){.k_dim = layer->k_dim,
                         .v_dim = layer->v_dim,
                         .k_bytes = tsr_type_row_bytes(type_k, layer->k_dim),
                         .v_bytes = layer->v_in_k ? 0 : tsr_type_row_bytes(type_v, layer->v_dim),
                         .n_heads = layer->whole ? 1 : layer->kv_heads->extent,
                         .whole = layer->whole,
                         .v_in_k = layer->v_in_k};
}

int64_t tsr_kv_heads_on(const tsr_kv_layer *layer, int device)
{
    if (!tsr_device_set_has(layer->devices, device))
        return 0;
    int64_t n = tsr_shard_map_count(layer->kv_heads, device);
    return layer->whole ? n > 0 : n;
}
