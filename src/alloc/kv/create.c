/* Regions whose heads and states are where the rows of weights are (tsr/kv.h). */
#include <tsr/kv.h>

#include <stddef.h>

#include "alloc/kv/kv.h"
#include "core/config.h"
#include "core/mem.h"
#include "core/tensor.h"

size_t tsr_kv_config_init(tsr_kv_config *config_out, size_t size)
{
    const tsr_kv_config defaults = {
        .type_k = TSR_TYPE_F16, .type_v = TSR_TYPE_F16, .n_batch = 512, .n_seq_max = 1};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

static tsr_status refuse(int index, const tsr_tensor *w, const char *problem)
{
    return tsr_fail(TSR_ERR_INVALID, "KV region: layer %d: weight %s [%lld, %lld] %s", index, w->name,
                    (long long)w->ne[0], (long long)w->ne[1], problem);
}

static tsr_status check_weight(tsr_runtime *rt, int index, const tsr_tensor *w)
{
    if (w->rt != rt)
        return refuse(index, w, "is of another runtime; pass the runtime of the weights");
    if (w->op != TSR_OP_NONE || (w->flags & TSR_TENSOR_INPUT))
        return refuse(index, w, "is a tensor of a graph; pass the weight");
    if (w->placement.sharding == TSR_SHARDING_NONE)
        return refuse(index, w, "is not allocated; call tsr_tensors_alloc() before");
    return TSR_OK;
}

/* n units on every device that has a part of the weight. */
static tsr_status on_holders(const tsr_tensor *w, int64_t n, tsr_shard_map *map_out)
{
    int64_t counts[TSR_MAX_DEVICES], extent = 0;
    for (int d = 0; d < w->rt->n_devices; d++) {
        counts[d] = tsr_placement_bytes(w, &w->placement, d) > 0 ? n : 0;
        extent += counts[d];
    }
    return tsr_shard_map_init(extent, 1, w->rt->n_devices, counts, map_out);
}

static tsr_status find_heads(tsr_runtime *rt, int index, const tsr_kv_layer_config *layer,
                             tsr_shard_map *heads_out)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *wk = layer->wk;
    const tsr_placement *place = &wk->placement;
    const int64_t n_rows = tsr_tensor_rows(wk);
    const bool keys_only = layer->whole && layer->v_dim == 0 && !layer->v_in_k;
    TSR_TRY(check_weight(rt, index, wk));
    if (layer->k_dim < 1 || (layer->v_dim < 1 && !keys_only))
        return refuse(index, wk, "needs a k_dim and a v_dim of at least 1");
    if (layer->whole)
        return on_holders(wk, 1, heads_out);
    if (n_rows % layer->k_dim != 0)
        return refuse(index, wk, "has rows that are no whole number of heads; correct k_dim");
    if (place->sharding == TSR_SHARDING_REPLICATED && tsr_device_set_count(place->devices) == 1)
        return on_holders(wk, n_rows / layer->k_dim, heads_out);
    if (place->sharding != TSR_SHARDING_SPLIT || place->axis != 1)
        return refuse(index, wk, "is neither divided by rows nor on one device only");
    if (place->map->granule % layer->k_dim != 0)
        return refuse(index, wk, "is divided inside heads; allocate it with a granule of whole heads");
    *heads_out = *place->map;
    heads_out->extent /= layer->k_dim;
    heads_out->granule /= layer->k_dim;
out:
    return status;
}

/* A state is divided like its weight, or whole on all devices of the layer. */
static tsr_status find_state(tsr_runtime *rt, int index, const tsr_kv_state_config *state, tsr_shard_map *map,
                             tsr_kv_state_part *part_out)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *like = state->like;
    if (!like)
        return tsr_fail(TSR_ERR_INVALID,
                        "KV region: layer %d: a state has no weight that it is divided like (like)", index);
    TSR_TRY(check_weight(rt, index, like));
    const tsr_placement *place = &like->placement;
    const int64_t n_rows = tsr_tensor_rows(like), n_units = n_rows > 1 ? n_rows : like->ne[0];
    const bool whole = place->sharding == TSR_SHARDING_REPLICATED;
    if (!whole && n_rows > 1 && place->axis != 1)
        return refuse(index, like, "has a state and is divided by columns; pass a weight divided by rows");
    if (state->n < 1 || state->n > PTRDIFF_MAX / (int64_t)sizeof(float) / n_units)
        return refuse(index, like, "needs a number n, at least 1, of its state that fits the address space");
    if (whole)
        TSR_TRY(on_holders(like, 1, map));
    else
        *map = *place->map;
    *part_out =
        (tsr_kv_state_part){.map = map,
                            .unit_bytes = (size_t)(whole ? n_units * state->n : state->n) * sizeof(float),
                            .whole = whole};
out:
    return status;
}

/* maps[0] is that of the heads, the others those of the states. */
static tsr_status find_layer(tsr_runtime *rt, int index, const tsr_kv_layer_config *config,
                             tsr_shard_map *maps, tsr_kv_layer *layer)
{
    tsr_status status = TSR_OK;
    if (!config->wk && (config->n_states == 0 || config->k_dim > 0))
        return tsr_fail(TSR_ERR_INVALID, "KV region: layer %d: the weight of keys (wk) is NULL", index);
    if (config->n_states < 0 || config->n_states > TSR_KV_MAX_STATES ||
        (config->n_states > 0 && !config->states))
        return tsr_fail(TSR_ERR_INVALID, "KV region: layer %d: %d states at %p; 0 to %d are possible", index,
                        config->n_states, (const void *)config->states, TSR_KV_MAX_STATES);
    if (config->wk) {
        TSR_TRY(find_heads(rt, index, config, maps));
        *layer = (tsr_kv_layer){.devices = config->wk->placement.devices,
                                .kv_heads = maps,
                                .k_dim = config->k_dim,
                                .v_dim = config->v_dim,
                                .window = config->window,
                                .whole = config->whole,
                                .v_in_k = config->v_in_k,
                                .ratio = config->ratio};
    }
    for (int i = 0; i < config->n_states; i++) {
        TSR_TRY(find_state(rt, index, &config->states[i], &maps[1 + i], &layer->state[i]));
        layer->devices |= config->states[i].like->placement.devices;
    }
out:
    return status;
}

static tsr_status check_config(const tsr_kv_config *config)
{
    if (config->n_layers < 1 || !config->layers)
        return tsr_fail(TSR_ERR_INVALID, "KV region: %d layers at %p; at least one is needed",
                        config->n_layers, (const void *)config->layers);
    if (config->n_batch < 1 || config->n_batch > INT32_MAX)
        return tsr_fail(TSR_ERR_INVALID, "KV region: n_batch %lld is out of range; 1 to %d are possible",
                        (long long)config->n_batch, INT32_MAX);
    return TSR_OK;
}

static tsr_status create(tsr_runtime *rt, const tsr_kv_config *config, bool no_alloc, tsr_kv **kv_out)
{
    tsr_status status = TSR_OK;
    tsr_kv_layer *layers = NULL;
    tsr_shard_map *maps = NULL;
    tsr_kv_config own = tsr_kv_config_default();
    TSR_TRY(tsr_config_read("tsr_kv_config", config, sizeof own, &own, sizeof own));
    TSR_TRY(check_config(&own));
    const size_t n = (size_t)own.n_layers;
    TSR_TRY(tsr_mem_array(n, sizeof *layers, "KV layers", &layers));
    TSR_TRY(tsr_mem_array(n, (1 + TSR_KV_MAX_STATES) * sizeof *maps, "KV layers", &maps));
    for (int l = 0; l < own.n_layers; l++)
        TSR_TRY(find_layer(rt, l, &own.layers[l], &maps[l * (1 + TSR_KV_MAX_STATES)], &layers[l]));
    const tsr_kv_spec spec = {.n_layers = own.n_layers,
                              .layers = layers,
                              .type_k = own.type_k,
                              .type_v = own.type_v,
                              .n_ctx = own.n_ctx,
                              .n_seq_max = own.n_seq_max,
                              .n_batch = own.n_batch,
                              .keep_all = own.swa_full,
                              .no_alloc = no_alloc};
    TSR_TRY(tsr_kv_create_spec(rt, &spec, kv_out));
out:
    tsr_mem_free(maps);
    tsr_mem_free(layers);
    return status;
}

tsr_status tsr_kv_create(tsr_runtime *rt, const tsr_kv_config *config, tsr_kv **kv_out)
{
    if (!rt || !kv_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_create: runtime and kv_out must not be NULL");
    return create(rt, config, false, kv_out);
}

tsr_status tsr_kv_measure(tsr_runtime *rt, const tsr_kv_config *config, size_t *bytes_out)
{
    tsr_kv *kv = NULL;
    if (!rt || !bytes_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_measure: runtime and bytes_out must not be NULL");
    tsr_status status = create(rt, config, true, &kv);
    for (int d = 0; d < rt->n_devices && status == TSR_OK; d++)
        bytes_out[d] = tsr_kv_reserved_bytes(kv, d);
    tsr_kv_destroy(kv);
    return status;
}
