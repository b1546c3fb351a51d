/* See stages.h. Layers are taken as all alike: where a model's differ, with their means. */
#include "plan/cost/stages.h"

#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "topo/links/links.h"

_Static_assert((int)TSR_PIPELINE_ATTENTION == (int)TSR_CLASS_ATTENTION &&
                   (int)TSR_PIPELINE_FFN == (int)TSR_CLASS_FFN &&
                   (int)TSR_PIPELINE_OUTPUT == (int)TSR_CLASS_OUTPUT &&
                   (int)TSR_PIPELINE_CLASSES == (int)TSR_CLASS_COUNT,
               "classes of a pipeline are those of a model");

/* Bytes of the matrices by vocabulary rows that belong to `layer`. */
static size_t row_bytes(const tsr_weights *weights, int layer)
{
    size_t bytes = 0;
    for (int i = 0; i < weights->n; i++)
        if (weights->list[i]->layer == layer && tsr_weight_class(weights->list[i]) == TSR_CLASS_OUTPUT)
            bytes += weights->list[i]->source->bytes;
    return bytes;
}

static size_t part(size_t bytes, size_t n)
{
    return n ? TSR_MAX((bytes + n - 1) / n, 1) : 1;
}

void tsr_stages_problem_init(tsr_model_cost *cost, const tsr_weights *weights, const tsr_hparams *hp,
                             const size_t *class_bytes, tsr_stages_problem *stages)
{
    const tsr_cost_problem *p = &cost->problem;
    const int64_t n_layers = hp->n_layers;
    size_t rows = (size_t)cost->classes[TSR_CLASS_OUTPUT].n_granules;
    memcpy(stages->classes, cost->classes, sizeof stages->classes);
    for (int c = 0; c < TSR_CLASS_OUTPUT; c++)
        stages->classes[c].granule_bytes =
            part(class_bytes[c], (size_t)cost->classes[c].n_granules * (size_t)n_layers);
    stages->classes[TSR_CLASS_OUTPUT].granule_bytes = part(row_bytes(weights, TSR_LAYER_OUTPUT), rows);
    for (int c = 0; c < TSR_CLASS_OUTPUT; c++)
        cost->classes[c].granule_bytes = stages->classes[c].granule_bytes * (size_t)n_layers;
    cost->classes[TSR_CLASS_OUTPUT].granule_bytes = part(class_bytes[TSR_CLASS_OUTPUT], rows);
    for (int a = 0; a < p->n_devices; a++)
        for (int b = 0; b < p->n_devices; b++) {
            tsr_device_set from = tsr_device_set_one(a), to = tsr_device_set_one(b);
            stages->transfer_ns[a][b] = cost->transfer_ns(cost->problem.user, from, to, false);
            stages->output_transfer_ns[a][b] = cost->transfer_ns(cost->problem.user, from, to, true);
        }
    stages->problem = (tsr_pipeline_problem){
        .n_devices = p->n_devices,
        .n_layers = n_layers,
        .n_together = tsr_hparams_n_together(hp),
        .classes = stages->classes,
        .embedding_bytes = part(row_bytes(weights, TSR_LAYER_EMBEDDING), rows),
        .shared_bytes = part(class_bytes[TSR_CLASS_OUTPUT], rows),
        .rooms = p->rooms,
        .allowed = p->allowed,
        .sync_ns = p->sync_ns,
        .walk_ns = p->walk_ns,
        .user = p->user,
        .transfer_ns = (const double(*)[TSR_MAX_DEVICES])stages->transfer_ns,
        .output_transfer_ns = (const double(*)[TSR_MAX_DEVICES])stages->output_transfer_ns,
        .machine = cost->links ? cost->links->machine : NULL,
        .no_room = p->no_room};
}

void tsr_stages_problem_chunk(const tsr_goal *goal, double n_prompts, tsr_stages_problem *stages)
{
    memcpy(stages->chunked, goal->prompt.classes, sizeof stages->chunked);
    for (int c = 0; c < TSR_PIPELINE_CLASSES; c++)
        for (int d = 0; d < stages->problem.n_devices; d++) {
            stages->chunked[c].granule_ns[d] *= n_prompts;
            stages->chunked[c].fixed_ns[d] *= n_prompts;
        }
    stages->problem.chunked = n_prompts > 0 ? stages->chunked : NULL;
    memcpy(stages->problem.chunks, goal->chunks, sizeof goal->chunks);
}

/* With chunks in flight, chains of single devices, whose search counts them. */
static tsr_status try_layers(const tsr_stages_problem *stages, tsr_pipeline *best)
{
    tsr_status status = TSR_OK;
    tsr_pipeline *single = NULL;
    bool no_room = false;
    tsr_pipeline_problem quiet = stages->problem;
    quiet.no_room = &no_room;
    TSR_TRY(TSR_NEW(&single, "stages"));
    status = tsr_pipeline_layers(&quiet, single);
    if (status == TSR_OK && single->total_ns < best->total_ns)
        *best = *single;
    status = no_room ? TSR_OK : status;
out:
    tsr_mem_free(single);
    return status;
}

/* One stage, whose all-reduces run beside work. */
static tsr_status try_halves(tsr_goal *goal, tsr_model_cost *cost, const tsr_stages_problem *stages,
                             tsr_pipeline *best)
{
    tsr_status status = TSR_OK;
    tsr_cost_result tensor;
    bool no_room = false, *told = cost->problem.no_room;
    cost->problem.no_room = &no_room;
    status = tsr_goal_optimize(goal, cost, &tensor);
    cost->problem.no_room = told;
    if (no_room) {
        tsr_fail_clear();
        return TSR_OK;
    }
    TSR_TRY(status);
    if (tensor.total_ns >= best->total_ns)
        return TSR_OK;
    *best = (tsr_pipeline){.n_stages = 1, .total_ns = tensor.total_ns};
    best->stages[0] = (tsr_pipeline_stage){.devices = tensor.devices, .n_layers = stages->problem.n_layers};
    memcpy(best->stages[0].counts, tensor.counts, sizeof best->stages[0].counts);
out:
    return status;
}

tsr_status tsr_stages_find(tsr_goal *goal, tsr_model_cost *cost, const tsr_stages_problem *stages,
                           bool layers, tsr_pipeline *pipeline_out)
{
    tsr_status status = TSR_OK;
    const tsr_pipeline_problem *p = &stages->problem;
    if (layers)
        return tsr_pipeline_layers(p, pipeline_out);
    TSR_TRY(tsr_pipeline_optimize(p, pipeline_out));
    if (!p->chunked)
        return TSR_OK;
    pipeline_out->total_ns = tsr_pipeline_evaluate(p, pipeline_out);
    TSR_TRY(try_layers(stages, pipeline_out));
    if (goal->halving)
        TSR_TRY(try_halves(goal, cost, stages, pipeline_out));
    pipeline_out->proven = false;
out:
    return status;
}

size_t tsr_stages_bytes(const tsr_stages_problem *stages, const tsr_pipeline *pipeline, int i, int d)
{
    const tsr_pipeline_problem *p = &stages->problem;
    const tsr_pipeline_stage *s = &pipeline->stages[i];
    bool first = i == 0, last = i == pipeline->n_stages - 1;
    size_t row = first && last ? p->shared_bytes
                 : first       ? p->embedding_bytes
                               : stages->classes[TSR_CLASS_OUTPUT].granule_bytes;
    size_t bytes = (size_t)s->counts[TSR_CLASS_OUTPUT][d] * row;
    for (int c = 0; c < TSR_CLASS_OUTPUT; c++)
        bytes += (size_t)(s->counts[c][d] * s->n_layers) * stages->classes[c].granule_bytes;
    return bytes;
}

static tsr_split_mode mode_of(const tsr_pipeline *pipeline)
{
    bool single = true, ascending = true;
    for (int i = 0; i < pipeline->n_stages; i++) {
        tsr_device_set devices = pipeline->stages[i].devices;
        single = single && (devices & (devices - 1)) == 0;
        ascending = ascending && (i == 0 || devices > pipeline->stages[i - 1].devices);
    }
    if (pipeline->n_stages == 1)
        return single ? TSR_SPLIT_MODE_NONE : TSR_SPLIT_MODE_TENSOR;
    return single && ascending ? TSR_SPLIT_MODE_LAYER : TSR_SPLIT_MODE_AUTO;
}

tsr_status tsr_stages_split(const tsr_stages_problem *stages, const tsr_model_shape *shape,
                            const tsr_pipeline *pipeline, tsr_model_split *split_out)
{
    tsr_status status = TSR_OK;
    int n_devices = stages->problem.n_devices, n_stages = pipeline->n_stages, *groups = NULL;
    int64_t(*counts)[TSR_CLASS_COUNT * TSR_MAX_DEVICES] = NULL;
    double shares[TSR_MAX_DEVICES] = {0}, all = 0;
    TSR_TRY(tsr_mem_array((size_t)n_stages, sizeof *counts, "stages", &counts));
    TSR_TRY(tsr_mem_array((size_t)stages->problem.n_layers, sizeof *groups, "stages", &groups));
    for (int64_t i = 0, layer = 0; i < n_stages; i++) {
        const tsr_pipeline_stage *s = &pipeline->stages[i];
        for (int64_t end = layer + s->n_layers; layer < end; layer++)
            groups[layer] = (int)i;
        for (int d = 0; d < n_devices; d++) {
            for (int c = 0; c < TSR_CLASS_COUNT; c++)
                counts[i][c * n_devices + d] = s->counts[c][d];
            shares[d] += (double)tsr_stages_bytes(stages, pipeline, (int)i, d);
        }
    }
    for (int d = 0; d < n_devices; d++)
        all += shares[d];
    for (int d = 0; d < n_devices; d++)
        shares[d] /= all;
    tsr_split_layout layout = {.mode = mode_of(pipeline),
                               .n_devices = n_devices,
                               .requested = shares,
                               .n_groups = n_stages,
                               .counts = (const int64_t(*)[TSR_CLASS_COUNT * TSR_MAX_DEVICES]) counts,
                               .attention_group = groups,
                               .ffn_group = groups,
                               .embedding_group = 0,
                               .output_group = n_stages - 1};
    TSR_TRY(tsr_model_split_create(&shape->hparams, &shape->granules, &layout, split_out));
out:
    tsr_mem_free(groups);
    tsr_mem_free(counts);
    return status;
}
