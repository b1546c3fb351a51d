/* Choosing a split that fits, and without a tensor_split the one that takes the least time.
 *
 * The counts are found without regard to memory, from the shares or by a search (split/search/optimize.h for
 * one group, split/search/pipeline.h for stages), and the result is measured. Where a device is over its cap,
 * what it holds whatever the counts (replicated tensors, arena, workspace) is known from the measurement, so
 * the counts are found again under the room that is left, and measured again. The arena moves with the
 * counts, hence a few rounds. */
#include <string.h>

#include "core/mem.h"
#include "plan/cost/step.h"
#include "plan/decide.h"
#include "plan/dry_run.h"
#include "plan/cost/stages.h"
#include "split/fit.h"

enum { MAX_ROUNDS = 8 };

typedef struct planner {
    const tsr_device_props *props;
    int n_devices;
    const tsr_model_shape *shape;
    const tsr_weights *weights;
    const tsr_model_config *config;
    double shares[TSR_MAX_DEVICES];
    tsr_offload_map map;
    size_t class_bytes[TSR_CLASS_COUNT]; /* of all granules of the free blocks, weights and KV */
    tsr_split_room rooms[TSR_MAX_DEVICES];
    tsr_memory_demand demand; /* `wanted` may be NULL */
    tsr_split_mode mode;      /* what the config comes to */
    bool automatic, proven;
    tsr_model_cost cost; /* where automatic */
    tsr_stages_problem stages;
    tsr_pipeline pipeline;
} planner;

static size_t room_of(const planner *dec, int d)
{
    return tsr_device_props_room(&dec->props[d]);
}

/* The first device over its cap, or -1. */
static int find_overfull(const planner *dec, const tsr_measurement *m)
{
    for (int d = 0; d < dec->n_devices; d++)
        if (tsr_used_total(m->used[d]) > room_of(dec, d))
            return d;
    return -1;
}

static tsr_status fail_overfull(planner *dec, const tsr_measurement *m, int d)
{
    size_t need = tsr_used_total(m->used[d]), cap = room_of(dec, d);
    dec->demand.no_room = true;
    return tsr_fail(
        TSR_ERR_MEMORY,
        "device %s: needs %zu bytes (weights %zu, KV %zu, arena %zu, workspace %zu, scratch "
        "%zu), has %zu, %zu "
        "are missing; use a smaller context (-c), a smaller share, fewer layers there (-ngl) or another "
        "device",
        dec->props[d].name, need, m->used[d][TSR_MEMORY_WEIGHTS], m->used[d][TSR_MEMORY_KV],
        m->used[d][TSR_MEMORY_ARENA], m->used[d][TSR_MEMORY_COMM], m->used[d][TSR_MEMORY_SCRATCH], cap,
        need - cap);
}

/* The first look was at a split without regard to memory. */
static void estimate_demand(planner *dec, const tsr_measurement *m)
{
    if (dec->demand.wanted)
        memcpy(dec->demand.wanted, m->used, (size_t)dec->n_devices * sizeof *m->used);
}

static size_t granule_bytes(const planner *dec, int c)
{
    size_t n = (size_t)dec->shape->granules.n[c];
    return n ? (dec->class_bytes[c] + n - 1) / n : 0;
}

/* Class sizes: the weights by class, and the KV region of the free layers, where it is divided like attention
 * or goes with its layer. */
static void find_class_bytes(planner *dec, const tsr_measurement *m)
{
    size_t kv = 0, n_free = (size_t)tsr_offload_n_free(&dec->map, TSR_CLASS_ATTENTION);
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        dec->class_bytes[c] = tsr_offload_free_bytes(&dec->map, dec->weights, c);
    bool divided = !dec->shape->hparams.kv.whole || dec->config->split.mode != TSR_SPLIT_MODE_TENSOR;
    for (int d = 0; d < dec->n_devices && divided; d++)
        kv += m->used[d][TSR_MEMORY_KV];
    dec->class_bytes[TSR_CLASS_ATTENTION] += kv / (size_t)dec->shape->hparams.n_layers * n_free;
}

/* Granules of a class to divide: none where every block of it is pinned. */
static int64_t n_granules(const planner *dec, int c)
{
    return tsr_offload_n_free(&dec->map, c) ? dec->shape->granules.n[c] : 0;
}

static bool all_pinned(const planner *dec)
{
    int64_t n = 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        n += tsr_offload_n_free(&dec->map, c);
    return n == 0;
}

/* Move the pinned blocks, and look what the split takes. */
static tsr_status finish_split(const planner *dec, tsr_model_split *split, tsr_measurement *m)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_offload_apply(&dec->map, &dec->shape->hparams, &dec->shape->granules, split));
    TSR_TRY(tsr_measurement_create(dec->props, dec->n_devices, dec->shape, dec->config, split, m));
out:
    return status;
}

/* -- tensor mode -- */

static tsr_status fit_counts(planner *dec, int64_t *counts)
{
    tsr_split_class classes[TSR_CLASS_COUNT];
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        classes[c] = (tsr_split_class){.name = tsr_split_class_name(c),
                                       .n_granules = n_granules(dec, c),
                                       .granule_bytes = granule_bytes(dec, c),
                                       .shares = dec->shares};
    return tsr_split_fit_in_rooms(classes, TSR_CLASS_COUNT, dec->rooms, dec->n_devices, counts,
                                  &dec->demand.no_room);
}

/* What a device holds besides its granules: as just measured. Only where a device was over its cap at the
 * first look it will end up with fewer granules than now, hence with a smaller arena; in proportion is a good
 * guess, and where it proves too small, the next look tells. In the second half of the rounds nothing once
 * seen is assumed smaller again, so that they settle. */
static void learn_fixed(planner *dec, const tsr_measurement *m, const int64_t *counts, int round)
{
    for (int d = 0; d < dec->n_devices; d++) {
        tsr_split_room *room = &dec->rooms[d];
        size_t used = tsr_used_total(m->used[d]), cap = room_of(dec, d), granules = 0;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            granules += (size_t)counts[c * dec->n_devices + d] * granule_bytes(dec, c);
        size_t fixed = used > granules ? used - granules : 0;
        if (round == 0 && used > cap) {
            double arena = (double)m->used[d][TSR_MEMORY_ARENA];
            fixed -= TSR_MIN(fixed, (size_t)(arena * (1 - (double)cap / (double)used)));
        }
        room->fixed_bytes = round < MAX_ROUNDS / 2 ? fixed : TSR_MAX(room->fixed_bytes, fixed);
        room->capacity_bytes = cap;
    }
}

/* The fastest counts in the rooms. The shares that they come to are what was "requested". */
static tsr_status optimize_counts(planner *dec, int64_t *counts)
{
    tsr_status status = TSR_OK;
    tsr_cost_result result;
    dec->cost.problem.no_room = &dec->demand.no_room;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        dec->cost.classes[c].n_granules = n_granules(dec, c);
        if (c != TSR_CLASS_OUTPUT) /* of nothing to divide the time does not matter */
            dec->cost.classes[c].repeats = (double)TSR_MAX(tsr_offload_n_free(&dec->map, c), 1);
        if (dec->class_bytes[c])
            dec->cost.classes[c].granule_bytes = granule_bytes(dec, c);
    }
    dec->cost.problem.allowed = ~dec->map.reserved;
    memcpy(dec->cost.rooms, dec->rooms, (size_t)dec->n_devices * sizeof *dec->rooms);
    TSR_TRY(tsr_split_optimize(&dec->cost.problem, &result));
    double all = 0;
    for (int d = 0; d < dec->n_devices; d++) {
        dec->shares[d] = 0;
        for (int c = 0; c < TSR_CLASS_COUNT; c++) {
            counts[c * dec->n_devices + d] = result.counts[c][d];
            dec->shares[d] += (double)result.counts[c][d] * (double)dec->cost.classes[c].granule_bytes;
        }
        all += dec->shares[d];
    }
    for (int d = 0; d < dec->n_devices; d++)
        dec->shares[d] /= all;
    dec->proven = result.proven;
out:
    return status;
}

static tsr_status choose_counts(planner *dec, int64_t *counts)
{
    if (all_pinned(dec)) {
        memset(counts, 0, TSR_CLASS_COUNT * TSR_MAX_DEVICES * sizeof *counts);
        return TSR_OK;
    }
    return dec->automatic ? optimize_counts(dec, counts) : fit_counts(dec, counts);
}

/* Whether a device is over its cap with what is pinned to it alone. */
static bool is_hopeless(const planner *dec, const tsr_measurement *m, const int64_t *counts)
{
    int d = find_overfull(dec, m);
    bool any = false;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        any |= counts[c * dec->n_devices + d] > 0;
    return !any;
}

static tsr_status decide_tensor(planner *dec, tsr_model_split *split, tsr_measurement *m)
{
    tsr_status status = TSR_OK;
    int64_t counts[TSR_CLASS_COUNT * TSR_MAX_DEVICES];
    for (int d = 0; d < dec->n_devices; d++)
        dec->rooms[d] = (tsr_split_room){.capacity_bytes = SIZE_MAX, .name = dec->props[d].name};
    for (int round = 0; round < MAX_ROUNDS; round++) {
        TSR_TRY(choose_counts(dec, counts));
        tsr_model_split_free(split);
        tsr_measurement_free(m);
        TSR_TRY(tsr_model_split_tensor(&dec->shape->hparams, &dec->shape->granules, dec->shares,
                                       dec->n_devices, counts, split));
        TSR_TRY(finish_split(dec, split, m));
        if (round == 0)
            estimate_demand(dec, m);
        if (find_overfull(dec, m) < 0)
            return TSR_OK;
        if (is_hopeless(dec, m, counts))
            break;
        if (round == 0)
            find_class_bytes(dec, m);
        learn_fixed(dec, m, counts, round);
    }
    status = fail_overfull(dec, m, find_overfull(dec, m));
out:
    return status;
}

/* -- layer mode and "none" -- */

/* Most layers that fit on each device, from what it held with `layers`. */
static void learn_layer_caps(const planner *dec, const tsr_measurement *m, const tsr_shard_map *layers,
                             int64_t *caps)
{
    size_t per_layer = 0;
    for (int c = 0; c < TSR_CLASS_COUNT - 1; c++)
        per_layer += dec->class_bytes[c] / (size_t)dec->shape->hparams.n_layers;
    for (int d = 0; d < dec->n_devices; d++) {
        int64_t held = tsr_shard_map_count(layers, d);
        size_t used = tsr_used_total(m->used[d]), cap = room_of(dec, d);
        if (used <= cap || per_layer == 0)
            continue;
        int64_t over = (int64_t)((used - cap + per_layer - 1) / per_layer);
        caps[d] = TSR_MAX(held - over, 0);
    }
}

/* Whether the devices that take part may hold n_items layers together; a negative cap is none. */
static bool caps_hold(const planner *dec, const int64_t *caps, int64_t n_items)
{
    int64_t sum = 0;
    for (int d = 0; d < dec->n_devices; d++)
        if (dec->shares[d] > 0)
            sum += caps[d] < 0 ? n_items : caps[d];
    return sum >= n_items;
}

static bool is_pinned(const planner *dec, int64_t layer)
{
    return dec->map.attention[layer] != TSR_FREE && dec->map.ffn[layer] != TSR_FREE;
}

/* Layers with a free block, and the output if it is free; at least one, for a free embedding. */
static int64_t count_items(const planner *dec)
{
    int64_t n = dec->map.output == TSR_FREE;
    for (int64_t l = 0; l < dec->shape->hparams.n_layers; l++)
        n += !is_pinned(dec, l);
    return TSR_MAX(n, 1);
}

/* devices[l] of every layer, and the output's behind them: the free ones in order; one that is pinned counts
 * to the next free one, which is where a free embedding goes. */
static void place_items(const planner *dec, const tsr_shard_map *items, int *devices)
{
    int64_t item = 0, n_layers = dec->shape->hparams.n_layers, last = items->extent - 1;
    for (int64_t l = 0; l < n_layers; l++) {
        devices[l] = tsr_shard_map_device(items, TSR_MIN(item, last));
        item += !is_pinned(dec, l);
    }
    devices[n_layers] = tsr_shard_map_device(items, last);
}

static tsr_status decide_layers(planner *dec, tsr_model_split *split, tsr_measurement *m)
{
    tsr_status status = TSR_OK;
    int64_t n_layers = dec->shape->hparams.n_layers, n_items = count_items(dec), caps[TSR_MAX_DEVICES];
    tsr_shard_map items;
    int *devices = NULL;
    TSR_TRY(tsr_mem_array((size_t)n_layers + 1, sizeof *devices, "layers", &devices));
    for (int d = 0; d < dec->n_devices; d++)
        caps[d] = -1;
    for (int round = 0; round < MAX_ROUNDS; round++) {
        TSR_TRY(tsr_split_layers(dec->shares, dec->n_devices, n_items, caps, &items));
        place_items(dec, &items, devices);
        tsr_model_split_free(split);
        tsr_measurement_free(m);
        TSR_TRY(tsr_model_split_layers(&dec->shape->hparams, &dec->shape->granules, dec->shares,
                                       dec->n_devices, dec->config->split.mode, devices, split));
        TSR_TRY(finish_split(dec, split, m));
        if (round == 0)
            estimate_demand(dec, m);
        if (find_overfull(dec, m) < 0)
            goto out;
        if (dec->config->split.mode == TSR_SPLIT_MODE_NONE)
            break;
        if (round == 0)
            find_class_bytes(dec, m);
        learn_layer_caps(dec, m, &items, caps);
        if (!caps_hold(dec, caps, n_items))
            break;
    }
    status = fail_overfull(dec, m, find_overfull(dec, m));
out:
    tsr_mem_free(devices);
    return status;
}

/* -- stages by time: layer mode and "auto" -- */

static tsr_status choose_stages(planner *dec)
{
    tsr_status status = TSR_OK;
    const tsr_pipeline_problem *problem = &dec->stages.problem;
    dec->cost.problem.no_room = &dec->demand.no_room;
    dec->cost.problem.allowed = ~dec->map.reserved;
    memcpy(dec->cost.rooms, dec->rooms, (size_t)dec->n_devices * sizeof *dec->rooms);
    tsr_stages_problem_init(&dec->cost, dec->weights, dec->shape->hparams.n_layers, dec->class_bytes,
                            &dec->stages);
    TSR_TRY(dec->mode == TSR_SPLIT_MODE_LAYER ? tsr_pipeline_layers(problem, &dec->pipeline)
                                              : tsr_pipeline_optimize(problem, &dec->pipeline));
    dec->proven = dec->pipeline.proven;
out:
    return status;
}

/* As learn_fixed(). A device that has nothing yet is expected to need what the others do at most: stages move
 * on to it as soon as those before are full. */
static void learn_fixed_of_stages(planner *dec, const tsr_measurement *m, int round)
{
    size_t most = 0;
    for (int d = 0; d < dec->n_devices; d++) {
        size_t used = tsr_used_total(m->used[d]), granules = 0, *fixed = &dec->rooms[d].fixed_bytes;
        for (int i = 0; i < dec->pipeline.n_stages; i++)
            granules += tsr_stages_bytes(&dec->stages, &dec->pipeline, i, d);
        size_t seen = used > granules ? used - granules : 0;
        *fixed = round < MAX_ROUNDS / 2 ? seen : TSR_MAX(*fixed, seen);
        most = TSR_MAX(most, seen);
        dec->rooms[d].capacity_bytes = room_of(dec, d);
    }
    for (int d = 0; d < dec->n_devices; d++)
        if (tsr_used_total(m->used[d]) == 0)
            dec->rooms[d].fixed_bytes = TSR_MAX(dec->rooms[d].fixed_bytes, most);
}

static tsr_status decide_stages(planner *dec, tsr_model_split *split, tsr_measurement *m)
{
    tsr_status status = TSR_OK;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        dec->class_bytes[c] = tsr_weights_class_bytes(dec->weights, c);
    for (int d = 0; d < dec->n_devices; d++)
        dec->rooms[d] = (tsr_split_room){.capacity_bytes = SIZE_MAX, .name = dec->props[d].name};
    for (int round = 0; round < MAX_ROUNDS; round++) {
        TSR_TRY(choose_stages(dec));
        tsr_model_split_free(split);
        tsr_measurement_free(m);
        TSR_TRY(tsr_stages_split(&dec->stages, dec->shape, &dec->pipeline, split));
        TSR_TRY(finish_split(dec, split, m));
        if (round == 0)
            estimate_demand(dec, m);
        if (find_overfull(dec, m) < 0)
            goto out;
        if (round == 0) {
            find_class_bytes(dec, m);
            tsr_stages_problem_init(&dec->cost, dec->weights, dec->shape->hparams.n_layers, dec->class_bytes,
                                    &dec->stages);
        }
        learn_fixed_of_stages(dec, m, round);
    }
    status = fail_overfull(dec, m, find_overfull(dec, m));
out:
    /* One device in layer mode is still layer mode. */
    if (status == TSR_OK && dec->mode == TSR_SPLIT_MODE_LAYER)
        split->mode = TSR_SPLIT_MODE_LAYER;
    return status;
}

/* -- the whole -- */

static bool has_tensor_split(const tsr_model_config *config)
{
    for (int i = 0; config->split.tensor_split && i < config->split.n_tensor_split; i++)
        if (config->split.tensor_split[i] != 0)
            return true;
    return false;
}

/* What "auto" leaves open, and who chooses the shares: the planner, where there is no tensor_split to obey.
 * Blocks that are pinned leave the rest to tensor mode, and to even shares in layer mode. */
static void find_mode(planner *dec)
{
    const tsr_model_config *config = dec->config;
    bool is_open = dec->n_devices > 1 && !has_tensor_split(config);
    dec->mode = config->split.mode;
    if (dec->mode == TSR_SPLIT_MODE_AUTO && (!is_open || dec->map.any))
        dec->mode = TSR_SPLIT_MODE_TENSOR;
    dec->automatic =
        is_open && dec->mode != TSR_SPLIT_MODE_NONE && !(dec->mode == TSR_SPLIT_MODE_LAYER && dec->map.any);
}

/* Even shares are for the devices that are not set apart. */
static void share_evenly(planner *dec)
{
    int n = 0;
    for (int d = 0; d < dec->n_devices; d++)
        n += !tsr_device_set_has(dec->map.reserved, d);
    for (int d = 0; d < dec->n_devices; d++)
        dec->shares[d] = tsr_device_set_has(dec->map.reserved, d) ? 0 : 1.0 / n;
}

static tsr_status find_shares(planner *dec)
{
    const tsr_model_config *config = dec->config;
    if (config->split.mode != TSR_SPLIT_MODE_NONE) {
        tsr_status status = tsr_split_check(config->split.tensor_split, config->split.n_tensor_split,
                                            dec->n_devices, dec->shares);
        if (status == TSR_OK && !has_tensor_split(config))
            share_evenly(dec);
        return status;
    }
    if (config->split.main_device < 0 || config->split.main_device >= dec->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "main_device is %d; there are %d devices", config->split.main_device,
                        dec->n_devices);
    memset(dec->shares, 0, sizeof dec->shares);
    dec->shares[config->split.main_device] = 1;
    return TSR_OK;
}

tsr_status tsr_plan_decide(const tsr_device_props *props, int n_devices, const tsr_model_shape *shape,
                           const tsr_weights *weights, const tsr_model_config *resolved,
                           tsr_memory_demand *demand, tsr_plan_choice *choice_out)
{
    tsr_status status = TSR_OK;
    planner *dec = NULL;
    tsr_plan_choice result = {0};
    TSR_TRY(TSR_NEW(&dec, "a decision"));
    dec->props = props;
    dec->n_devices = n_devices;
    dec->shape = shape;
    dec->weights = weights;
    dec->config = resolved;
    if (demand)
        dec->demand.wanted = demand->wanted;
    TSR_TRY(tsr_offload_map_create(props, n_devices, weights, resolved, &dec->map));
    find_mode(dec);
    TSR_TRY(find_shares(dec));
    if (dec->automatic)
        TSR_TRY(
            tsr_model_cost_init(shape, weights, resolved, n_devices, resolved->plan.n_tokens, &dec->cost));
    if (dec->automatic && dec->mode != TSR_SPLIT_MODE_TENSOR)
        TSR_TRY(decide_stages(dec, &result.split, &result.measurement));
    else if (dec->mode == TSR_SPLIT_MODE_TENSOR)
        TSR_TRY(decide_tensor(dec, &result.split, &result.measurement));
    else
        TSR_TRY(decide_layers(dec, &result.split, &result.measurement));
    result.map = dec->map;
    dec->map = (tsr_offload_map){0};
    result.automatic = dec->automatic;
    result.proven = dec->proven;
    *choice_out = result;
    result = (tsr_plan_choice){0};
out:
    if (dec && demand)
        demand->no_room = dec->demand.no_room;
    tsr_plan_choice_free(&result);
    if (dec)
        tsr_offload_map_free(&dec->map);
    tsr_mem_free(dec);
    return status;
}

void tsr_plan_choice_free(tsr_plan_choice *choice)
{
    tsr_offload_map_free(&choice->map);
    tsr_model_split_free(&choice->split);
    tsr_measurement_free(&choice->measurement);
}
