/* Pinned blocks of the layers that llama.cpp's -ngl and --n-cpu-moe count. offload_patterns.c has -ot. */
#include "plan/offload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

/* -- devices -- */

tsr_status tsr_offload_find_device(const tsr_planner *planner, const char *text, const char *what,
                                   int *device_out)
{
    const tsr_device_props *props = planner->props;
    int n_devices = planner->n_devices;
    char names[512] = "", *end;
    size_t used = 0;
    for (int d = 0; d < n_devices; d++) {
        if (strcmp(text, props[d].name) == 0) {
            *device_out = d;
            return TSR_OK;
        }
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", d ? ", " : "", props[d].name);
    }
    long number = strtol(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && number < n_devices) {
        *device_out = (int)number;
        return TSR_OK;
    }
    return tsr_fail(TSR_ERR_INVALID, "%s: there is no device \"%s\"; there are: %s", what, text, names);
}

static bool all_alike(const tsr_planner *planner)
{
    for (int d = 1; d < planner->n_devices; d++)
        if (planner->props[d].kind != planner->props[0].kind)
            return false;
    return true;
}

/* The device that config.offload.device names, or the last host device; -1 if there is none. */
static tsr_status find_offload_device(const tsr_planner *planner, int *device_out)
{
    const char *name = planner->config.offload.device;
    if (name)
        return tsr_offload_find_device(planner, name, "offload_device", device_out);
    *device_out = -1;
    for (int d = 0; d < planner->n_devices; d++)
        if (planner->props[d].kind == TSR_DEVICE_HOST)
            *device_out = d;
    return TSR_OK;
}

tsr_status tsr_offload_spare_device(const tsr_planner *planner, int *device_out)
{
    int d;
    tsr_status status = find_offload_device(planner, &d);
    if (status != TSR_OK)
        return status;
    *device_out = -1;
    if (d < 0 || planner->n_devices < 2)
        return TSR_OK;
    bool alone = planner->config.split.mode == TSR_SPLIT_MODE_NONE;
    bool is_extra = planner->config.offload.device || alone || !all_alike(planner);
    bool has_share = !planner->request.automatic && planner->request.share[d] > 0;
    if (is_extra && !has_share)
        *device_out = d;
    return TSR_OK;
}

/* -- layers -- */

int *tsr_offload_at(tsr_offload_map *map, tsr_block block, int64_t layer)
{
    switch (block) {
    case TSR_BLOCK_ATTENTION:
        return &map->attention[layer];
    case TSR_BLOCK_FFN:
        return &map->ffn[layer];
    case TSR_BLOCK_EMBEDDING:
        return &map->embedding;
    case TSR_BLOCK_OUTPUT:
        break;
    }
    return &map->output;
}

/* The last n layers are not offloaded. With n above the number of layers nothing is. */
static tsr_status pin_layers(const tsr_model_config *config, int offload_device, tsr_offload_map *map)
{
    int64_t n = config->offload.n_gpu_layers;
    if (n < 0 || n > map->n_layers)
        return TSR_OK;
    if (offload_device < 0)
        return tsr_fail(TSR_ERR_INVALID,
                        "n_gpu_layers %lld leaves %lld of %lld layers and the output to a host device, and "
                        "there is none; add one to the devices (-dev cuda,host:1)",
                        (long long)n, (long long)(map->n_layers - n), (long long)map->n_layers);
    map->embedding = map->output = offload_device;
    for (int64_t l = 0; l < map->n_layers - n; l++)
        map->attention[l] = map->ffn[l] = offload_device;
    return TSR_OK;
}

static bool has_experts(const tsr_weights *weights, int64_t layer)
{
    for (int i = 0; i < weights->n; i++)
        if (weights->list[i]->layer == layer && weights->list[i]->expert)
            return true;
    return false;
}

/* A block is not divided, so the whole FFN of a layer with experts is offloaded. */
static tsr_status pin_experts(const tsr_weights *weights, const tsr_model_config *config, int offload_device,
                              tsr_offload_map *map)
{
    bool any = false;
    if (config->offload.n_cpu_moe == 0)
        return TSR_OK;
    for (int64_t l = 0; l < map->n_layers; l++) {
        if (!has_experts(weights, l))
            continue;
        any = true;
        if (l < config->offload.n_cpu_moe)
            map->ffn[l] = offload_device;
    }
    if (!any)
        return tsr_fail(TSR_ERR_INVALID, "n_cpu_moe offloads experts, and the model has no experts; "
                                         "n_gpu_layers (-ngl) moves whole layers");
    if (offload_device < 0)
        return tsr_fail(TSR_ERR_INVALID,
                        "n_cpu_moe is %d, and there is no host device for the experts; add "
                        "one to the devices (-dev cuda,host:1)",
                        config->offload.n_cpu_moe);
    return TSR_OK;
}

/* -- all of them -- */

static tsr_status check_config(const tsr_model_config *config)
{
    if (config->offload.n_gpu_layers < -1)
        return tsr_fail(TSR_ERR_INVALID, "n_gpu_layers is %d; use -1 for all, or a number of layers",
                        config->offload.n_gpu_layers);
    if (config->offload.n_cpu_moe < 0)
        return tsr_fail(TSR_ERR_INVALID, "n_cpu_moe is %d; use a number of layers",
                        config->offload.n_cpu_moe);
    if (config->offload.n_rules < 0 || (config->offload.n_rules > 0 && !config->offload.rules))
        return tsr_fail(TSR_ERR_INVALID, "%d offload rules at %p", config->offload.n_rules,
                        (const void *)config->offload.rules);
    return TSR_OK;
}

static tsr_device_set devices_of(const tsr_offload_map *map)
{
    tsr_device_set devices = 0;
    const int single[2] = {map->embedding, map->output};
    for (int i = 0; i < 2; i++)
        if (single[i] != TSR_FREE)
            devices |= tsr_device_set_one(single[i]);
    for (int64_t l = 0; l < map->n_layers; l++) {
        if (map->attention[l] != TSR_FREE)
            devices |= tsr_device_set_one(map->attention[l]);
        if (map->ffn[l] != TSR_FREE)
            devices |= tsr_device_set_one(map->ffn[l]);
    }
    return devices;
}

/* The devices with pinned blocks that get no share of the free ones; none if that were all devices. */
static tsr_device_set reserved_devices(const tsr_planner *planner, tsr_device_set pinned, int offload_device)
{
    tsr_device_set reserved = 0;
    bool alike = all_alike(planner);
    TSR_FOR_DEVICES(d, pinned)
        if (d == offload_device || (!alike && planner->props[d].kind == TSR_DEVICE_HOST))
            reserved |= tsr_device_set_one(d);
    return reserved == tsr_device_set_all(planner->n_devices) ? 0 : reserved;
}

tsr_status tsr_offload_map_create(const tsr_planner *planner, tsr_offload_map *map_out)
{
    tsr_status status = TSR_OK;
    const tsr_weights *weights = &planner->weights;
    const tsr_model_config *config = &planner->config;
    tsr_offload_map map = {.n_layers = weights->n_layers, .embedding = TSR_FREE, .output = TSR_FREE};
    int offload_device;
    TSR_TRY(check_config(config));
    TSR_TRY(find_offload_device(planner, &offload_device));
    TSR_TRY(tsr_mem_array((size_t)map.n_layers, sizeof(int), "pinned blocks", &map.attention));
    TSR_TRY(tsr_mem_array((size_t)map.n_layers, sizeof(int), "pinned blocks", &map.ffn));
    for (int64_t l = 0; l < map.n_layers; l++)
        map.attention[l] = map.ffn[l] = TSR_FREE;
    TSR_TRY(pin_layers(config, offload_device, &map));
    TSR_TRY(pin_experts(weights, config, offload_device, &map));
    TSR_TRY(tsr_offload_rules_apply(planner, offload_device, &map));
    tsr_device_set pinned = devices_of(&map);
    map.any = pinned != 0;
    if (config->offload.n_gpu_layers >= 0 && offload_device >= 0) /* reserved without a block, too */
        pinned |= tsr_device_set_one(offload_device);
    map.reserved = reserved_devices(planner, pinned, offload_device);
    *map_out = map;
    map = (tsr_offload_map){0};
out:
    tsr_offload_map_free(&map);
    return status;
}

void tsr_offload_map_free(tsr_offload_map *map)
{
    tsr_mem_free(map->attention);
    tsr_mem_free(map->ffn);
    *map = (tsr_offload_map){0};
}

int64_t tsr_offload_n_free(const tsr_offload_map *map, tsr_split_class_id id)
{
    int64_t n = 0;
    if (id == TSR_CLASS_OUTPUT)
        return (map->output == TSR_FREE) + (map->embedding == TSR_FREE);
    const int *devices = id == TSR_CLASS_ATTENTION ? map->attention : map->ffn;
    for (int64_t l = 0; l < map->n_layers; l++)
        n += devices[l] == TSR_FREE;
    return n;
}

static bool is_free(const tsr_offload_map *map, const tsr_weight *weight)
{
    switch (tsr_weight_block(weight)) {
    case TSR_BLOCK_EMBEDDING:
        return map->embedding == TSR_FREE;
    case TSR_BLOCK_ATTENTION:
        return map->attention[weight->layer] == TSR_FREE;
    case TSR_BLOCK_FFN:
        return map->ffn[weight->layer] == TSR_FREE;
    case TSR_BLOCK_OUTPUT:
        break;
    }
    return map->output == TSR_FREE;
}

size_t tsr_offload_free_bytes(const tsr_offload_map *map, const tsr_weights *weights, tsr_split_class_id id)
{
    size_t bytes = 0;
    for (int i = 0; i < weights->n; i++) {
        const tsr_weight *weight = weights->list[i];
        if (!weight->tied && tsr_weight_class(weight) == id && is_free(map, weight))
            bytes += weight->source->bytes;
    }
    return bytes;
}

/* -- carrying them out -- */

/* The index of a device's own group in the split, which is added where it is not there yet. */
static tsr_status own_group(const tsr_hparams *hp, const tsr_model_granules *granules, int d, int *groups,
                            tsr_model_split *split, int *group_out)
{
    tsr_status status = TSR_OK;
    if (groups[d] < 0) {
        TSR_TRY(
            tsr_split_group_init_alone(hp, granules, split->n_devices, d, &split->groups[split->n_groups]));
        groups[d] = split->n_groups++;
    }
    *group_out = groups[d];
out:
    return status;
}

tsr_status tsr_offload_apply(const tsr_offload_map *map, const tsr_hparams *hp,
                             const tsr_model_granules *granules, tsr_model_split *split)
{
    tsr_status status = TSR_OK;
    int groups[TSR_MAX_DEVICES];
    size_t n = (size_t)(split->n_groups + split->n_devices);
    if (!map->any)
        return TSR_OK;
    tsr_split_group *grown = tsr_mem_realloc(split->groups, n, sizeof *grown);
    if (!grown)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for %zu device groups", n);
    split->groups = grown;
    memset(split->groups + split->n_groups, 0, (size_t)split->n_devices * sizeof *grown);
    memset(groups, -1, sizeof groups);
    if (map->embedding != TSR_FREE)
        TSR_TRY(own_group(hp, granules, map->embedding, groups, split, &split->embedding_group));
    if (map->output != TSR_FREE)
        TSR_TRY(own_group(hp, granules, map->output, groups, split, &split->output_group));
    for (int64_t l = 0; l < map->n_layers; l++) {
        if (map->attention[l] != TSR_FREE)
            TSR_TRY(own_group(hp, granules, map->attention[l], groups, split, &split->attention_group[l]));
        if (map->ffn[l] != TSR_FREE)
            TSR_TRY(own_group(hp, granules, map->ffn[l], groups, split, &split->ffn_group[l]));
    }
    tsr_model_split_join_shared_kv(hp, split);
out:
    return status;
}
