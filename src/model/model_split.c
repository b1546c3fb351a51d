/* From granule counts to the shard maps of every kind of matrix. */
#include "model/model_split.h"

#include <string.h>

#include "core/mem.h"

tsr_status tsr_model_granules_find(const tsr_hparams *hp, int64_t attention_block, int64_t ffn_block,
                                   tsr_model_granules *granules_out)
{
    tsr_status status = TSR_OK;
    tsr_model_granules g = {0};
    TSR_TRY(tsr_granule_attention(hp->head_dim, hp->n_head, hp->n_head_kv, attention_block, &g.kv_heads));
    TSR_TRY(tsr_granule_ffn(hp->n_ff, ffn_block, &g.ffn_columns));
    g.size[TSR_CLASS_ATTENTION] = g.kv_heads;
    g.size[TSR_CLASS_FFN] = g.ffn_columns;
    g.size[TSR_CLASS_OUTPUT] = TSR_GRANULE_ROWS;
    g.n[TSR_CLASS_ATTENTION] = (hp->n_head_kv + g.kv_heads - 1) / g.kv_heads;
    g.n[TSR_CLASS_FFN] = (hp->n_ff + g.ffn_columns - 1) / g.ffn_columns;
    g.n[TSR_CLASS_OUTPUT] = hp->n_vocab;
    *granules_out = g;
out:
    return status;
}

/* counts[class * n_devices + d], as tsr_split_fit gives them. */
static tsr_status group_init(const tsr_hparams *hp, const tsr_model_granules *g, int n_devices,
                             const int64_t *counts, tsr_split_group *group)
{
    tsr_status status = TSR_OK;
    const int64_t *attention = counts + TSR_CLASS_ATTENTION * n_devices;
    const int64_t *ffn = counts + TSR_CLASS_FFN * n_devices;
    const int64_t *output = counts + TSR_CLASS_OUTPUT * n_devices;
    int64_t head_group = hp->n_head / hp->n_head_kv * hp->head_dim; /* query elements per KV head */

    TSR_TRY(tsr_shard_map_init(hp->n_head_kv, g->kv_heads, n_devices, attention, &group->kv_heads));
    TSR_TRY(tsr_shard_map_init(hp->n_head_kv * hp->head_dim, g->kv_heads * hp->head_dim, n_devices, attention,
                               &group->kv));
    TSR_TRY(tsr_shard_map_init(hp->n_head * hp->head_dim, g->kv_heads * head_group, n_devices, attention,
                               &group->q));
    TSR_TRY(tsr_shard_map_init(hp->n_ff, g->ffn_columns, n_devices, ffn, &group->ffn));
    TSR_TRY(tsr_shard_map_init(hp->n_vocab, TSR_GRANULE_ROWS, n_devices, output, &group->vocab));
    for (int d = 0; d < n_devices; d++)
        if (attention[d] || ffn[d] || output[d])
            group->devices |= UINT64_C(1) << d;
out:
    return status;
}

static tsr_status split_init(const tsr_hparams *hp, const double *shares, int n_devices, int n_groups,
                             tsr_split_mode mode, tsr_model_split *split)
{
    tsr_status status = TSR_OK;
    *split = (tsr_model_split){
        .mode = mode, .n_devices = n_devices, .n_layers = hp->n_layers, .n_groups = n_groups};
    memcpy(split->requested, shares, (size_t)n_devices * sizeof *shares);
    TSR_TRY(tsr_mem_array((size_t)n_groups, sizeof *split->groups, "device groups", &split->groups));
    TSR_TRY(tsr_mem_array((size_t)hp->n_layers, sizeof(int), "layer groups", &split->layer_group));
out:
    return status;
}

tsr_status tsr_model_split_tensor(const tsr_hparams *hp, const tsr_model_granules *granules,
                                  const double *shares, int n_devices, const int64_t *counts,
                                  tsr_model_split *split_out)
{
    tsr_status status = TSR_OK;
    tsr_model_split split = {0};
    TSR_TRY(split_init(hp, shares, n_devices, 1, TSR_SPLIT_MODE_TENSOR, &split));
    TSR_TRY(group_init(hp, granules, n_devices, counts, &split.groups[0]));
    *split_out = split;
    split = (tsr_model_split){0};
out:
    tsr_model_split_free(&split);
    return status;
}

/* All of everything on device d. */
static tsr_status solo_group(const tsr_hparams *hp, const tsr_model_granules *granules, int n_devices, int d,
                             tsr_split_group *group)
{
    int64_t counts[TSR_CLASS_COUNT * TSR_MAX_DEVICES] = {0};
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        counts[c * n_devices + d] = granules->n[c];
    return group_init(hp, granules, n_devices, counts, group);
}

tsr_status tsr_model_split_layers(const tsr_hparams *hp, const tsr_model_granules *granules,
                                  const double *shares, tsr_split_mode mode, const tsr_shard_map *layers,
                                  tsr_model_split *split_out)
{
    tsr_status status = TSR_OK;
    tsr_model_split split = {0};
    int n_devices = layers->n_devices;
    TSR_TRY(split_init(hp, shares, n_devices, n_devices, mode, &split));
    for (int d = 0; d < n_devices; d++)
        TSR_TRY(solo_group(hp, granules, n_devices, d, &split.groups[d]));
    for (int64_t layer = 0; layer < hp->n_layers; layer++)
        split.layer_group[layer] = tsr_shard_map_device(layers, layer);
    split.embedding_group = split.layer_group[0];
    split.output_group = tsr_shard_map_device(layers, hp->n_layers);
    *split_out = split;
    split = (tsr_model_split){0};
out:
    tsr_model_split_free(&split);
    return status;
}

void tsr_model_split_free(tsr_model_split *split)
{
    tsr_mem_free(split->groups);
    tsr_mem_free(split->layer_group);
    *split = (tsr_model_split){0};
}
