/* From granule counts to the shard maps of every kind of matrix. */
#include "arch/sharding.h"

#include <string.h>

#include "core/mem.h"

static tsr_status find_attention(const tsr_hparams *hp, const int64_t *blocks, tsr_model_granules *g)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < hp->n_kinds; i++) {
        const tsr_layer_kind *k = &hp->kinds[i];
        if (k->mixer == TSR_MIXER_NONE)
            continue;
        if (k->mixer == TSR_MIXER_COMPRESSED) /* the columns are those of groups of heads */
            TSR_TRY(tsr_granule_attention(hp->out_rank, k->n_head_kv, k->n_head_kv, blocks[i],
                                          &g->kind_heads[i]));
        else
            TSR_TRY(
                tsr_granule_attention(k->head_dim, k->n_head, k->n_head_kv, blocks[i], &g->kind_heads[i]));
        int64_t n = (k->n_head_kv + g->kind_heads[i] - 1) / g->kind_heads[i];
        if (n > g->n[TSR_CLASS_ATTENTION]) {
            g->n[TSR_CLASS_ATTENTION] = n;
            g->main_kind = i;
        }
    }
    g->kv_heads = g->kind_heads[g->main_kind];
out:
    return status;
}

tsr_status tsr_model_granules_find(const tsr_hparams *hp, const int64_t attention_blocks[TSR_MAX_LAYER_KINDS],
                                   int64_t ffn_block, tsr_model_granules *granules_out)
{
    tsr_status status = TSR_OK;
    tsr_model_granules g = {0};
    TSR_TRY(find_attention(hp, attention_blocks, &g));
    TSR_TRY(tsr_granule_ffn(hp->n_ff, ffn_block, &g.ffn_columns));
    g.size[TSR_CLASS_ATTENTION] = g.kv_heads;
    g.size[TSR_CLASS_FFN] = g.ffn_columns;
    g.size[TSR_CLASS_OUTPUT] = TSR_GRANULE_ROWS;
    g.n[TSR_CLASS_FFN] = (hp->n_ff + g.ffn_columns - 1) / g.ffn_columns;
    g.n[TSR_CLASS_OUTPUT] = hp->n_vocab;
    *granules_out = g;
out:
    return status;
}

/* The map of a class without granules in the group has no elements. */
static tsr_status map_init(int64_t extent, int64_t granule, int n_devices, const int64_t *counts,
                           tsr_shard_map *map_out)
{
    bool any = false;
    for (int d = 0; d < n_devices; d++)
        any |= counts[d] != 0;
    return tsr_shard_map_init(any ? extent : 0, granule, n_devices, counts, map_out);
}

/* counts[class * n_devices + d], as tsr_split_fit gives them. */
static tsr_status group_init(const tsr_hparams *hp, const tsr_model_granules *g, int n_devices,
                             const int64_t *counts, tsr_split_group *group)
{
    tsr_status status = TSR_OK;
    const int64_t *attention = counts + TSR_CLASS_ATTENTION * n_devices;
    const int64_t *ffn = counts + TSR_CLASS_FFN * n_devices;
    const int64_t *output = counts + TSR_CLASS_OUTPUT * n_devices;
    const tsr_layer_kind *k = &hp->kinds[g->main_kind];
    int64_t head_group = k->n_head / k->n_head_kv * k->head_dim; /* query elements per KV head */

    TSR_TRY(map_init(k->n_head_kv, g->kv_heads, n_devices, attention, &group->kv_heads));
    TSR_TRY(
        map_init(k->n_head_kv * k->head_dim, g->kv_heads * k->head_dim, n_devices, attention, &group->kv));
    TSR_TRY(map_init(k->n_head * k->head_dim, g->kv_heads * head_group, n_devices, attention, &group->q));
    if (hp->by_expert)
        TSR_TRY(map_init(hp->n_expert, 1, n_devices, ffn, &group->ffn));
    else
        TSR_TRY(map_init(hp->n_ff, g->ffn_columns, n_devices, ffn, &group->ffn));
    TSR_TRY(map_init(hp->n_vocab, TSR_GRANULE_ROWS, n_devices, output, &group->vocab));
    for (int d = 0; d < n_devices; d++)
        if (attention[d] || ffn[d] || output[d])
            group->devices |= tsr_device_set_one(d);
out:
    return status;
}

static tsr_status split_init(const tsr_model_split *like, tsr_model_split *split)
{
    tsr_status status = TSR_OK;
    size_t n_layers = (size_t)like->n_layers;
    *split = *like;
    split->groups = NULL;
    split->attention_group = split->ffn_group = NULL;
    split->prompt = NULL;
    TSR_TRY(tsr_mem_array((size_t)like->n_groups, sizeof *split->groups, "device groups", &split->groups));
    TSR_TRY(tsr_mem_array(n_layers, sizeof(int), "layer groups", &split->attention_group));
    TSR_TRY(tsr_mem_array(n_layers, sizeof(int), "layer groups", &split->ffn_group));
    memcpy(split->attention_group, like->attention_group, n_layers * sizeof(int));
    memcpy(split->ffn_group, like->ffn_group, n_layers * sizeof(int));
out:
    return status;
}

void tsr_model_split_join_shared_kv(const tsr_hparams *hp, tsr_model_split *split)
{
    for (int64_t l = hp->n_layers - hp->n_shared_kv; l < hp->n_layers; l++) {
        const int group = split->attention_group[tsr_hparams_kv_layer(hp, l)];
        if (split->ffn_group[l] == split->attention_group[l])
            split->ffn_group[l] = group;
        split->attention_group[l] = group;
    }
}

tsr_status tsr_model_split_create(const tsr_hparams *hp, const tsr_model_granules *granules,
                                  const tsr_split_layout *layout, tsr_model_split *split_out)
{
    tsr_status status = TSR_OK;
    tsr_model_split split = {0};
    tsr_model_split like = {.mode = layout->mode,
                            .n_devices = layout->n_devices,
                            .n_layers = hp->n_layers,
                            .n_groups = layout->n_groups,
                            .attention_group = (int *)layout->attention_group,
                            .ffn_group = (int *)layout->ffn_group,
                            .embedding_group = layout->embedding_group,
                            .output_group = layout->output_group};
    memcpy(like.requested, layout->requested, (size_t)layout->n_devices * sizeof *layout->requested);
    TSR_TRY(split_init(&like, &split));
    tsr_model_split_join_shared_kv(hp, &split);
    for (int g = 0; g < layout->n_groups; g++)
        TSR_TRY(group_init(hp, granules, layout->n_devices, layout->counts[g], &split.groups[g]));
    *split_out = split;
    split = (tsr_model_split){0};
out:
    tsr_model_split_free(&split);
    return status;
}

tsr_status tsr_model_split_copy(const tsr_model_split *split, tsr_model_split *copy_out)
{
    tsr_status status = TSR_OK;
    tsr_model_split copy = {0};
    TSR_TRY(split_init(split, &copy));
    memcpy(copy.groups, split->groups, (size_t)split->n_groups * sizeof *split->groups);
    if (split->prompt) {
        TSR_TRY(TSR_NEW(&copy.prompt, "a split of prompts"));
        TSR_TRY(tsr_model_split_copy(split->prompt, copy.prompt));
    }
    *copy_out = copy;
    copy = (tsr_model_split){0};
out:
    tsr_model_split_free(&copy);
    return status;
}

tsr_status tsr_split_group_init_alone(const tsr_hparams *hp, const tsr_model_granules *granules,
                                      int n_devices, int d, tsr_split_group *group_out)
{
    int64_t counts[TSR_CLASS_COUNT * TSR_MAX_DEVICES] = {0};
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        counts[c * n_devices + d] = granules->n[c];
    return group_init(hp, granules, n_devices, counts, group_out);
}

tsr_status tsr_model_split_tensor(const tsr_hparams *hp, const tsr_model_granules *granules,
                                  const double *shares, int n_devices, const int64_t *counts,
                                  tsr_model_split *split_out)
{
    tsr_status status = TSR_OK;
    int *first = NULL;
    int64_t group[1][TSR_CLASS_COUNT * TSR_MAX_DEVICES] = {{0}};
    memcpy(group[0], counts, (size_t)(TSR_CLASS_COUNT * n_devices) * sizeof *counts);
    TSR_TRY(tsr_mem_array((size_t)hp->n_layers, sizeof *first, "layer groups", &first));
    tsr_split_layout layout = {.mode = TSR_SPLIT_MODE_TENSOR,
                               .n_devices = n_devices,
                               .requested = shares,
                               .n_groups = 1,
                               .counts = group,
                               .attention_group = first,
                               .ffn_group = first};
    TSR_TRY(tsr_model_split_create(hp, granules, &layout, split_out));
out:
    tsr_mem_free(first);
    return status;
}

tsr_status tsr_model_split_layers(const tsr_hparams *hp, const tsr_model_granules *granules,
                                  const double *shares, int n_devices, tsr_split_mode mode,
                                  const int *devices, tsr_model_split *split_out)
{
    tsr_status status = TSR_OK;
    int64_t(*counts)[TSR_CLASS_COUNT * TSR_MAX_DEVICES] = NULL;
    TSR_TRY(tsr_mem_array((size_t)n_devices, sizeof *counts, "device groups", &counts));
    for (int d = 0; d < n_devices; d++)
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            counts[d][c * n_devices + d] = granules->n[c];
    tsr_split_layout layout = {.mode = mode,
                               .n_devices = n_devices,
                               .requested = shares,
                               .n_groups = n_devices,
                               .counts = (const int64_t(*)[TSR_CLASS_COUNT * TSR_MAX_DEVICES]) counts,
                               .attention_group = devices,
                               .ffn_group = devices,
                               .embedding_group = devices[0],
                               .output_group = devices[hp->n_layers]};
    TSR_TRY(tsr_model_split_create(hp, granules, &layout, split_out));
out:
    tsr_mem_free(counts);
    return status;
}

bool tsr_kind_has_whole_states(const tsr_layer_kind *kind)
{
    return kind->ratio > 0 || (kind->mixer == TSR_MIXER_MAMBA && kind->n_groups != kind->n_head_kv);
}

static bool has_whole_states(const tsr_hparams *hp)
{
    for (int i = 0; i < hp->n_kinds; i++)
        if (tsr_kind_has_whole_states(&hp->kinds[i]))
            return true;
    return false;
}

/* A whole state is written by the devices of a step, so a device that holds one takes part in all steps. */
tsr_status tsr_model_split_add_prompt(const tsr_hparams *hp, const tsr_model_granules *granules,
                                      const double *shares, const int64_t *counts, int64_t prompt_tokens,
                                      tsr_model_split *split)
{
    tsr_status status = TSR_OK;
    TSR_TRY(TSR_NEW(&split->prompt, "a split of prompts"));
    TSR_TRY(tsr_model_split_tensor(hp, granules, shares, split->n_devices, counts, split->prompt));
    split->prompt_tokens = prompt_tokens;
    tsr_split_group *group = &split->groups[0], *of_prompts = &split->prompt->groups[0];
    if (has_whole_states(hp))
        group->devices = of_prompts->devices = group->devices | of_prompts->devices;
out:
    return status;
}

const tsr_model_split *tsr_model_split_of(const tsr_model_split *split, int64_t n_tokens)
{
    return split->prompt && n_tokens >= split->prompt_tokens ? split->prompt : split;
}

void tsr_model_split_free(tsr_model_split *split)
{
    if (split->prompt)
        tsr_model_split_free(split->prompt);
    tsr_mem_free(split->prompt);
    tsr_mem_free(split->groups);
    tsr_mem_free(split->attention_group);
    tsr_mem_free(split->ffn_group);
    *split = (tsr_model_split){0};
}

const tsr_split_group *tsr_model_split_group(const tsr_model_split *split, tsr_block block, int64_t layer)
{
    int g = block == TSR_BLOCK_EMBEDDING   ? split->embedding_group
            : block == TSR_BLOCK_ATTENTION ? split->attention_group[layer]
            : block == TSR_BLOCK_FFN       ? split->ffn_group[layer]
                                           : split->output_group;
    return &split->groups[g];
}

/* Block i of all, in the order of a step: the embedding, attention and FFN of each layer, the output. */
static tsr_device_set block_devices(const tsr_model_split *split, int64_t i)
{
    const int64_t layer = (i - 1) / 2;
    const tsr_block block = i == 0                     ? TSR_BLOCK_EMBEDDING
                            : layer == split->n_layers ? TSR_BLOCK_OUTPUT
                            : i % 2 == 1               ? TSR_BLOCK_ATTENTION
                                                       : TSR_BLOCK_FFN;
    return tsr_model_split_group(split, block, layer)->devices;
}

int tsr_model_split_n_stages(const tsr_model_split *split)
{
    const int64_t n_blocks = 2 * split->n_layers + 2;
    int64_t last[TSR_MAX_DEVICES] = {0}, end = 0; /* of each device, and of the devices so far */
    int n = 1;
    for (int64_t i = 0; i < n_blocks; i++)
        TSR_FOR_DEVICES(d, block_devices(split, i))
            last[d] = i;
    for (int64_t i = 0; i < n_blocks - 2; i++) { /* the output alone is no stage */
        TSR_FOR_DEVICES(d, block_devices(split, i))
            end = TSR_MAX(end, last[d]);
        n += end == i && i > 0; /* nor is the embedding */
    }
    return n;
}

/* A host thread computes 1024 tokens in chunks of 32 in 1.04 of the time of chunks of 256 and more; GPUs need
 * a few hundred tokens to be busy. */
enum { HOST_CHUNK_COST = 2, GPU_CHUNK_COST = 128, LEAST_CHUNK = 32 };

int64_t tsr_stage_chunk_cost(bool any_gpu)
{
    return any_gpu ? GPU_CHUNK_COST : HOST_CHUNK_COST;
}

int64_t tsr_stage_chunk_tokens(int64_t n_tokens, int n_stages, bool any_gpu, bool windows, int64_t n_batch)
{
    const int64_t cost = tsr_stage_chunk_cost(any_gpu);
    int64_t most = LEAST_CHUNK;
    if (n_stages == 1)
        return n_batch;
    while (2 * most * most <= n_tokens * cost / (n_stages - 1))
        most *= 2;
    return TSR_MIN(most, windows ? TSR_MAX(n_batch / n_stages, 1) : n_batch);
}

const tsr_shard_map *tsr_split_group_map(const tsr_split_group *group, tsr_split_class_id id)
{
    return id == TSR_CLASS_ATTENTION ? &group->kv_heads : id == TSR_CLASS_FFN ? &group->ffn : &group->vocab;
}

void tsr_split_group_kv_heads(const tsr_split_group *group, const tsr_hparams *hp,
                              const tsr_model_granules *granules, int kind, tsr_shard_map *heads_out)
{
    if (kind == granules->main_kind)
        *heads_out = group->kv_heads;
    else
        tsr_shard_map_scale(&group->kv_heads, hp->kinds[kind].n_head_kv, granules->kind_heads[kind],
                            heads_out);
}
