/* Regions whose heads are where the rows of the weights of keys are (tsr/kv.h). */
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

static tsr_status refuse(int index, const tsr_tensor *wk, const char *problem)
{
    return tsr_fail(TSR_ERR_INVALID, "tsr_kv_create: layer %d: weight of keys %s [%lld, %lld] %s", index,
                    wk->name, (long long)wk->ne[0], (long long)wk->ne[1], problem);
}

/* The heads on one device that has the whole weight. */
static tsr_status whole_heads(const tsr_tensor *wk, int64_t n_heads, tsr_shard_map *heads_out)
{
    int64_t counts[TSR_MAX_DEVICES];
    for (int d = 0; d < wk->rt->n_devices; d++)
        counts[d] = tsr_device_set_has(wk->placement.devices, d) ? n_heads : 0;
    return tsr_shard_map_init(n_heads, 1, wk->rt->n_devices, counts, heads_out);
}

static tsr_status find_heads(tsr_runtime *rt, int index, const tsr_kv_layer_config *layer,
                             tsr_shard_map *heads_out)
{
    const tsr_tensor *wk = layer->wk;
    if (!wk)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_create: layer %d: the weight of keys (wk) is NULL", index);
    const tsr_placement *place = &wk->placement;
    const int64_t n_rows = tsr_tensor_rows(wk);
    if (wk->rt != rt)
        return refuse(index, wk, "is of another runtime; pass the runtime of the weights");
    if (wk->op != TSR_OP_NONE || (wk->flags & TSR_TENSOR_INPUT))
        return refuse(index, wk, "is a tensor of a graph; pass the weight");
    if (place->sharding == TSR_SHARDING_NONE)
        return refuse(index, wk, "is not allocated; call tsr_tensors_alloc() before");
    if (layer->k_dim < 1 || layer->v_dim < 1)
        return refuse(index, wk, "needs a k_dim and a v_dim of at least 1");
    if (n_rows % layer->k_dim != 0)
        return refuse(index, wk, "has rows that are no whole number of heads; correct k_dim");
    if (place->sharding == TSR_SHARDING_REPLICATED && tsr_device_set_count(place->devices) == 1)
        return whole_heads(wk, n_rows / layer->k_dim, heads_out);
    if (place->sharding != TSR_SHARDING_SPLIT || place->axis != 1)
        return refuse(index, wk, "is neither divided by rows nor on one device only");
    if (place->map->granule % layer->k_dim != 0)
        return refuse(index, wk, "is divided inside heads; allocate it with a granule of whole heads");
    *heads_out = *place->map;
    heads_out->extent /= layer->k_dim;
    heads_out->granule /= layer->k_dim;
    return TSR_OK;
}

static tsr_status check_config(tsr_runtime *rt, const tsr_kv_config *config, tsr_kv **kv_out)
{
    if (!rt || !kv_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_create: runtime and kv_out must not be NULL");
    if (config->n_layers < 1 || !config->layers)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_create: %d layers at %p; at least one is needed",
                        config->n_layers, (const void *)config->layers);
    if (config->n_batch < 1 || config->n_batch > INT32_MAX)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_create: n_batch %lld is out of range; 1 to %d are possible",
                        (long long)config->n_batch, INT32_MAX);
    return TSR_OK;
}

tsr_status tsr_kv_create(tsr_runtime *rt, const tsr_kv_config *config, tsr_kv **kv_out)
{
    tsr_status status = TSR_OK;
    tsr_kv_layer *layers = NULL;
    tsr_kv_config own = tsr_kv_config_default();
    TSR_TRY(tsr_config_read("tsr_kv_config", config, sizeof own, &own, sizeof own));
    TSR_TRY(check_config(rt, &own, kv_out));
    const size_t n = (size_t)own.n_layers;
    TSR_TRY(tsr_mem_array(n, sizeof *layers + sizeof(tsr_shard_map), "KV layers", &layers));
    tsr_shard_map *heads = (tsr_shard_map *)(layers + n); /* behind the layers, in one block of memory */
    for (int l = 0; l < own.n_layers; l++) {
        TSR_TRY(find_heads(rt, l, &own.layers[l], &heads[l]));
        layers[l] = (tsr_kv_layer){.devices = own.layers[l].wk->placement.devices,
                                   .kv_heads = &heads[l],
                                   .k_dim = own.layers[l].k_dim,
                                   .v_dim = own.layers[l].v_dim,
                                   .window = own.layers[l].window};
    }
    const tsr_kv_spec spec = {.n_layers = own.n_layers,
                              .layers = layers,
                              .type_k = own.type_k,
                              .type_v = own.type_v,
                              .n_ctx = own.n_ctx,
                              .n_seq_max = own.n_seq_max,
                              .n_batch = own.n_batch};
    TSR_TRY(tsr_kv_create_spec(rt, &spec, kv_out));
out:
    tsr_mem_free(layers);
    return status;
}
