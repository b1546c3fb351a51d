/* Columns of every expert, or whole experts: which takes less time.
 *
 * Columns keep all devices busy whichever experts a token takes, but there are only so many granules of them
 * in an expert; fine-grained mixtures have experts of few columns. Whole experts divide further. A single
 * token then waits for the device that happens to have most of its experts; in prompts all experts are in
 * use, and only the evenness of the counts matters. Both are put into the planner's cost model, memory as it
 * is. */
#include "plan/expert_split.h"

#include <math.h>

#include "core/mem.h"
#include "model/config.h"
#include "plan/cost/step.h"
#include "plan/offload.h"

typedef struct comparison {
    const tsr_weights *weights;
    const tsr_model_config *config; /* resolved, with rates */
    int n_devices;
    tsr_device_set allowed;
    double shares[TSR_MAX_DEVICES];
    bool automatic; /* shares are open */
    tsr_model_cost cost;
    size_t rooms[TSR_MAX_DEVICES];
} comparison;

/* The time of a step with the FFN divided as the shape says; INFINITY where that does not fit. */
static tsr_status predict(comparison *ch, const tsr_model_shape *shape, double *ns_out)
{
    tsr_status status = TSR_OK;
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    tsr_cost_result result;
    bool no_room = false;
    tsr_cost_problem *problem = &ch->cost.problem;
    TSR_TRY(tsr_model_cost_init(shape, ch->weights, ch->config, ch->n_devices, ch->config->plan.n_tokens,
                                &ch->cost));
    problem->allowed = ch->allowed;
    problem->no_room = &no_room;
    for (int d = 0; d < ch->n_devices; d++)
        ch->cost.rooms[d].capacity_bytes = ch->rooms[d];
    if (ch->automatic) {
        status = tsr_split_optimize(problem, &result);
    } else {
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            TSR_TRY(tsr_split_round(ch->shares, ch->n_devices, shape->granules.n[c], NULL, counts[c]));
        tsr_cost_evaluate(problem, counts, &result);
    }
    *ns_out = status == TSR_OK ? result.total_ns : INFINITY;
    if (no_room) {
        tsr_fail_clear();
        status = TSR_OK;
    }
out:
    return status;
}

static tsr_status compare(comparison *ch, tsr_model_shape *shape)
{
    tsr_status status = TSR_OK;
    double by_columns, by_experts;
    tsr_model_shape other = *shape;
    TSR_TRY(predict(ch, shape, &by_columns));
    tsr_expert_split_set(&other, true);
    TSR_TRY(predict(ch, &other, &by_experts));
    if (by_experts < by_columns)
        tsr_expert_split_set(shape, true);
out:
    return status;
}

/* Who works on the free blocks, and with which shares. */
static tsr_status set_up(comparison *ch, const tsr_device_props *props, const tsr_offload_map *map)
{
    tsr_status status = TSR_OK;
    const tsr_model_config *config = ch->config;
    ch->automatic = true;
    TSR_TRY(
        tsr_split_check(config->split.tensor_split, config->split.n_tensor_split, ch->n_devices, ch->shares));
    for (int i = 0; config->split.tensor_split && i < config->split.n_tensor_split; i++)
        ch->automatic = ch->automatic && config->split.tensor_split[i] == 0;
    ch->allowed = ~map->reserved;
    for (int d = 0; d < ch->n_devices; d++)
        ch->rooms[d] = tsr_device_props_room(&props[d]);
out:
    return status;
}

static tsr_status choose_split(tsr_model_shape *shape, const tsr_device_props *props, int n_devices,
                               const tsr_device_rates *rates, const tsr_model_config *config)
{
    tsr_status status = TSR_OK;
    tsr_model_config resolved;
    tsr_weights weights = {0};
    tsr_offload_map map = {0};
    comparison *ch = NULL;
    TSR_TRY(tsr_model_config_resolve(shape, config, &resolved));
    if (!resolved.plan.rates)
        resolved.plan.rates = rates;
    TSR_TRY(tsr_weights_init(&weights, shape->gguf, shape->hparams.n_layers));
    TSR_TRY(tsr_arch_declare(shape->arch, &weights, &shape->hparams));
    TSR_TRY(tsr_offload_map_create(props, n_devices, &weights, &resolved, &map));
    if (tsr_offload_n_free(&map, TSR_CLASS_FFN) == 0 ||
        !tsr_model_cost_known(&weights, resolved.plan.rates, n_devices))
        goto out;
    TSR_TRY(TSR_NEW(&ch, "a choice"));
    ch->weights = &weights;
    ch->config = &resolved;
    ch->n_devices = n_devices;
    TSR_TRY(set_up(ch, props, &map));
    TSR_TRY(compare(ch, shape));
out:
    tsr_mem_free(ch);
    tsr_offload_map_free(&map);
    tsr_weights_free(&weights);
    return status;
}

tsr_status tsr_model_shape_divide(tsr_model_shape *shape, const tsr_device_props *props, int n_devices,
                                  const tsr_device_rates *rates, const tsr_model_config *config)
{
    if (shape->hparams.n_expert == 0 || shape->arch->header_only)
        return TSR_OK;
    if (config->split.experts != TSR_EXPERT_SPLIT_AUTO) {
        tsr_expert_split_set(shape, config->split.experts == TSR_EXPERT_SPLIT_EXPERTS);
        return TSR_OK;
    }
    bool divides = config->split.mode == TSR_SPLIT_MODE_TENSOR || config->split.mode == TSR_SPLIT_MODE_AUTO;
    return n_devices > 1 && divides ? choose_split(shape, props, n_devices, rates, config) : TSR_OK;
}

tsr_status tsr_model_shape_divide_for(tsr_model_shape *shape, const tsr_runtime *rt,
                                      const tsr_model_config *config)
{
    tsr_status status = TSR_OK;
    tsr_device_props *props = NULL;
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *props, "devices", &props));
    for (int d = 0; d < rt->n_devices; d++)
        tsr_device_props_of(rt->devices[d], &props[d]);
    TSR_TRY(tsr_model_shape_divide(shape, props, rt->n_devices, rt->rates, config));
out:
    tsr_mem_free(props);
    return status;
}
