/* Where every tensor of a model is stored: the role of a tensor and the split decide the placement, and one
 * buffer takes all tensors. */
#include "model/place.h"

#include "alloc/buffer/buffer.h"
#include "core/mem.h"

/* Matrices are divided by rows; one-dimensional tensors (biases) along their only axis. */
static int rows_axis(const tsr_weight *weight)
{
    return weight->matrix || weight->tensor.ne[1] > 1;
}

static tsr_placement placement_of(const tsr_weight *weight, const tsr_model_split *split)
{
    const tsr_split_group *group = tsr_model_split_group(split, tsr_weight_block(weight), weight->layer);
    tsr_placement place = {.sharding = TSR_SHARDING_SPLIT,
                           .axis = rows_axis(weight),
                           .devices = group->devices,
                           .source = weight->layout};
    switch (weight->role) {
    case TSR_WEIGHT_ATTENTION_WHOLE:
    case TSR_WEIGHT_FFN_WHOLE:
    case TSR_WEIGHT_OUTPUT_WHOLE:
        return (tsr_placement){
            .sharding = TSR_SHARDING_REPLICATED, .devices = group->devices, .source = weight->layout};
    case TSR_WEIGHT_Q_ROWS:
    case TSR_WEIGHT_Q_HEADS:
        place.map = &group->q;
        break;
    case TSR_WEIGHT_KV_ROWS:
        place.map = &group->kv;
        break;
    case TSR_WEIGHT_FFN_ROWS:
        place.map = &group->ffn;
        break;
    case TSR_WEIGHT_EXPERT_ROWS:
    case TSR_WEIGHT_EXPERT_COLUMNS:
        place.axis = weight->by_expert ? 1 : 0;
        place.map = &group->ffn;
        break;
    case TSR_WEIGHT_EXPERTS:
        place.axis = 1;
        place.map = &group->ffn;
        break;
    case TSR_WEIGHT_VOCAB_ROWS:
        place.map = &group->vocab;
        break;
    case TSR_WEIGHT_Q_COLUMNS:
        place.axis = 0;
        place.map = &group->q;
        break;
    case TSR_WEIGHT_FFN_COLUMNS:
        place.axis = 0;
        place.map = &group->ffn;
        break;
    }
    return place;
}

/* Elements of the divided axis that stay together, if that axis is not the axis of its class; otherwise 0. */
static int64_t own_granule(const tsr_weight *weight, const tsr_shard_map *map)
{
    if (map && weight->role == TSR_WEIGHT_EXPERT_ROWS && !weight->by_expert)
        return weight->tensor.ne[0] / map->extent * map->granule;
    if (map && weight->role == TSR_WEIGHT_EXPERTS && !weight->by_expert)
        return 1;
    if (map && weight->role == TSR_WEIGHT_Q_HEADS && weight->granule == 0)
        return map->granule / (map->extent / weight->tensor.ne[rows_axis(weight)]);
    return map ? weight->granule : 0;
}

typedef struct progress_adapter {
    void (*progress)(double fraction, void *user);
    void *user;
} progress_adapter;

static void report(size_t done, size_t total, void *user)
{
    progress_adapter *adapter = user;
    if (adapter->progress)
        adapter->progress(total ? (double)done / (double)total : 1, adapter->user);
}

/* The tensors to place, in the order of their list. */
typedef struct lists {
    tsr_tensor **tensors;      /* [n] */
    tsr_placement *placements; /* [n] */
    const void **sources;      /* [n] */
    tsr_tensor **previous;     /* [n] the tensors under another split; NULL: no other split */
    tsr_shard_map *maps;
    int n, n_maps;
} lists;

static void lists_free(lists *l)
{
    tsr_mem_free(l->tensors);
    tsr_mem_free(l->placements);
    tsr_mem_free(l->sources);
    tsr_mem_free(l->previous);
    tsr_mem_free(l->maps); /* the buffer has a copy */
}

static tsr_status lists_alloc(const tsr_weights *weights, const tsr_weights *prompt, lists *l)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)weights->n * (prompt ? 2 : 1);
    TSR_TRY(tsr_mem_array(n, sizeof *l->tensors, "tensor lists", &l->tensors));
    TSR_TRY(tsr_mem_array(n, sizeof *l->placements, "tensor placements", &l->placements));
    TSR_TRY(tsr_mem_array(n, sizeof *l->sources, "tensor sources", &l->sources));
    TSR_TRY(tsr_mem_array(n, sizeof *l->previous, "tensor lists", &l->previous));
    TSR_TRY(tsr_mem_array(n, sizeof *l->maps, "shard maps", &l->maps));
out:
    return status;
}

static void list_tensor(tsr_weight *weight, const tsr_weight *previous, tsr_runtime *rt,
                        const tsr_model_split *split, lists *l)
{
    tsr_placement place = placement_of(weight, split);
    weight->tensor.rt = rt;
    int64_t granule = own_granule(weight, place.map);
    if (granule > 0) {
        tsr_shard_map_scale(place.map, weight->tensor.ne[place.axis], granule, &l->maps[l->n_maps]);
        place.map = &l->maps[l->n_maps++];
    }
    l->tensors[l->n] = &weight->tensor;
    l->placements[l->n] = place;
    l->previous[l->n] = previous && previous->tensor.shards ? (tsr_tensor *)&previous->tensor : NULL;
    l->sources[l->n++] = weight->source ? weight->source->data : NULL;
}

/* A tied output matrix on the devices of the embedding is the same tensor. */
static void list_weights(tsr_weights *weights, const tsr_weights *previous, tsr_runtime *rt,
                         const tsr_model_split *split, lists *l)
{
    const bool share = split->embedding_group == split->output_group;
    for (int i = 0; i < weights->n; i++)
        if (!weights->list[i]->tied || !share)
            list_tensor(weights->list[i], previous ? previous->list[i] : NULL, rt, split, l);
    if (weights->tied_output && share)
        weights->output = weights->embedding;
}

tsr_status tsr_weights_place(tsr_weights *weights, tsr_weights *prompt, tsr_runtime *rt,
                             const tsr_model_split *split, const tsr_weights_placing *placing)
{
    tsr_status status = TSR_OK;
    lists l = {0};
    const tsr_weights *previous = placing->previous;
    progress_adapter adapter = {placing->progress, placing->user};
    tsr_buffer_load_config config = {.flags = placing->flags | (prompt ? TSR_LOAD_TWINS : 0u),
                                     .owner = TSR_MEMORY_WEIGHTS,
                                     .progress = report,
                                     .user = &adapter,
                                     .previous_buffer = previous ? previous->buffer : NULL,
                                     .deferred = placing->deferred};

    TSR_TRY(lists_alloc(weights, prompt, &l));
    list_weights(weights, previous, rt, split, &l);
    if (prompt)
        list_weights(prompt, placing->previous_prompt, rt, split->prompt, &l);
    config.previous = previous ? l.previous : NULL;
    TSR_TRY(tsr_buffer_load(rt, l.tensors, l.placements, l.sources, l.n, &config, &weights->buffer));
out:
    lists_free(&l);
    return status;
}

static void list_placed(tsr_weights *weights, lists *l)
{
    for (int i = 0; i < weights->n; i++)
        if (weights->list[i]->tensor.shards) {
            l->tensors[l->n] = &weights->list[i]->tensor;
            l->sources[l->n++] = weights->list[i]->source->data;
        }
}

tsr_status tsr_weights_refill(tsr_weights *weights, tsr_weights *prompt, tsr_device_set devices,
                              unsigned flags)
{
    tsr_status status = TSR_OK;
    lists l = {0};
    TSR_TRY(lists_alloc(weights, prompt, &l));
    list_placed(weights, &l);
    if (prompt)
        list_placed(prompt, &l);
    TSR_TRY(tsr_buffer_fill(weights->buffer, l.tensors, l.sources, l.n, devices,
                            flags | (prompt ? TSR_LOAD_TWINS : 0u)));
out:
    lists_free(&l);
    return status;
}
