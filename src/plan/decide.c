/* Choosing a split that fits, and without a tensor_split the one that takes the least time.
 *
 * The counts are found without regard to memory, from the shares or by a search (split/search/optimize.h for
 * one group, split/search/pipeline.h for stages), and the result is measured. Where a device is over its cap,
 * what it holds whatever the counts (replicated tensors, arena, workspace) is known from the measurement, so
 * the counts are found again under the room that is left, and measured again. The arena moves with the
 * counts, hence a few rounds. */
#include <string.h>

#include "core/mem.h"
#include "plan/cost/balance.h"
#include "plan/cost/goal.h"
#include "plan/decide.h"
#include "plan/dry_run.h"
#include "plan/phases.h"
#include "plan/cost/stages.h"
#include "split/fit.h"

enum { MAX_ROUNDS = 8 };

typedef struct decision {
    const tsr_planner *in;
    tsr_plan_choice *out;
    tsr_split_mode mode;                 /* of config.split.mode, with "auto" resolved where it can be */
    double shares[TSR_MAX_DEVICES];      /* [n_devices] requested, or found by a search */
    size_t class_bytes[TSR_CLASS_COUNT]; /* of all granules of the free blocks, weights and KV */
    tsr_split_room rooms[TSR_MAX_DEVICES];
    int64_t prompt[TSR_CLASS_COUNT * TSR_MAX_DEVICES]; /* counts of prompts, as those of decoding */
    bool has_prompt;                                   /* a split of prompts */
    bool no_pair;                                      /* no split of prompts may be chosen */
    tsr_goal goal;                                     /* of an automatic decision */
    tsr_stages_problem stages;
    tsr_pipeline pipeline;
} decision;

static size_t room_of(const decision *dec, int d)
{
    return dec->in->uncapped ? SIZE_MAX : tsr_device_props_room(&dec->in->props[d]);
}

/* Bytes of device d under the split that was measured last. */
static size_t used_by(const decision *dec, int d)
{
    return tsr_used_total(dec->out->measurement.used[d]);
}

/* The first device over its cap, or -1. */
static int find_overfull(const decision *dec)
{
    for (int d = 0; d < dec->in->n_devices; d++)
        if (used_by(dec, d) > room_of(dec, d))
            return d;
    return -1;
}

static tsr_status fail_overfull(decision *dec)
{
    const int d = find_overfull(dec);
    const size_t *used = dec->out->measurement.used[d];
    size_t need = used_by(dec, d), cap = room_of(dec, d);
    dec->out->no_room = true;
    return tsr_fail(
        TSR_ERR_MEMORY,
        "device %s: needs %zu bytes (weights %zu, KV %zu, arena %zu, workspace %zu, scratch "
        "%zu), has %zu, %zu "
        "are missing; use a smaller context (-c), a smaller share, fewer layers there (-ngl) or another "
        "device",
        dec->in->props[d].name, need, used[TSR_MEMORY_WEIGHTS], used[TSR_MEMORY_KV], used[TSR_MEMORY_ARENA],
        used[TSR_MEMORY_COMM], used[TSR_MEMORY_SCRATCH], cap, need - cap);
}

static size_t granule_bytes(const decision *dec, int c)
{
    size_t n = (size_t)dec->in->shape.granules.n[c];
    return n ? (dec->class_bytes[c] + n - 1) / n : 0;
}

/* Class sizes: the weights by class, and the KV region of the free layers, where it is divided like attention
 * or goes with its layer. */
static void find_class_bytes(decision *dec)
{
    size_t kv = 0, n_free = (size_t)tsr_offload_n_free(&dec->out->map, TSR_CLASS_ATTENTION);
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        dec->class_bytes[c] = tsr_offload_free_bytes(&dec->out->map, &dec->in->weights, c);
    bool divided = !dec->in->shape.hparams.kv.whole || dec->in->config.split.mode != TSR_SPLIT_MODE_TENSOR;
    for (int d = 0; d < dec->in->n_devices && divided; d++)
        kv += dec->out->measurement.used[d][TSR_MEMORY_KV];
    dec->class_bytes[TSR_CLASS_ATTENTION] += kv / (size_t)dec->in->shape.hparams.n_layers * n_free;
}

/* Granules of a class to divide: none where every block of it is pinned. */
static int64_t n_granules(const decision *dec, int c)
{
    return tsr_offload_n_free(&dec->out->map, c) ? dec->in->shape.granules.n[c] : 0;
}

static bool all_pinned(const decision *dec)
{
    int64_t n = 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        n += tsr_offload_n_free(&dec->out->map, c);
    return n == 0;
}

static void drop_split(decision *dec)
{
    tsr_model_split_free(&dec->out->split);
    tsr_measurement_free(&dec->out->measurement);
}

/* Move the pinned blocks of the split, and measure it. The first round's split disregards memory. */
static tsr_status measure_split(decision *dec, int round)
{
    tsr_status status = TSR_OK;
    tsr_plan_choice *out = dec->out;
    const tsr_model_shape *shape = &dec->in->shape;
    TSR_TRY(tsr_offload_apply(&out->map, &shape->hparams, &shape->granules, &out->split));
    TSR_TRY(tsr_measurement_create(dec->in, &out->split, &out->measurement));
    if (round == 0)
        memcpy(out->wanted, out->measurement.used,
               (size_t)dec->in->n_devices * sizeof *out->measurement.used);
out:
    return status;
}

/* -- tensor mode -- */

static tsr_status fit_counts(decision *dec, int64_t *counts)
{
    tsr_split_class classes[TSR_CLASS_COUNT];
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        classes[c] = (tsr_split_class){.name = tsr_split_class_name(c),
                                       .n_granules = n_granules(dec, c),
                                       .granule_bytes = granule_bytes(dec, c),
                                       .shares = dec->shares};
    return tsr_split_fit_in_rooms(classes, TSR_CLASS_COUNT, dec->rooms, dec->in->n_devices, counts,
                                  &dec->out->no_room);
}

/* The granules that a device holds: those of decoding and those of prompts. */
static int64_t held(const decision *dec, const int64_t *counts, int c, int d)
{
    const int n = dec->in->n_devices;
    return dec->has_prompt ? tsr_phase_held(counts + c * n, dec->prompt + c * n, d) : counts[c * n + d];
}

/* Learn what a device holds besides its granules from the last measurement. A device over its cap in the
 * first round will have fewer granules, hence a smaller arena: the arena is guessed in proportion, and
 * measured in the next round. In the second half of the rounds no value gets smaller again, so that the
 * rounds converge. */
static void learn_fixed(decision *dec, const int64_t *counts, int round)
{
    for (int d = 0; d < dec->in->n_devices; d++) {
        tsr_split_room *room = &dec->rooms[d];
        size_t used = used_by(dec, d), cap = room_of(dec, d), granules = 0;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            granules += (size_t)held(dec, counts, c, d) * granule_bytes(dec, c);
        size_t fixed = used > granules ? used - granules : 0;
        if (round == 0 && used > cap) {
            double arena = (double)dec->out->measurement.used[d][TSR_MEMORY_ARENA];
            fixed -= TSR_MIN(fixed, (size_t)(arena * (1 - (double)cap / (double)used)));
        }
        room->fixed_bytes = round < MAX_ROUNDS / 2 ? fixed : TSR_MAX(room->fixed_bytes, fixed);
        room->capacity_bytes = cap;
    }
}

/* Replace the fastest split by a pair, if a pair gains enough. */
static tsr_status take_pair(decision *dec, tsr_cost_result *result)
{
    tsr_status status = TSR_OK;
    tsr_phase_pair pair;
    TSR_TRY(tsr_phase_find_pair(dec->in, &dec->goal, &pair));
    dec->has_prompt = !dec->out->map.any && pair.total_ns <= (1 - TSR_PROMPT_SPLIT_GAIN) * result->total_ns;
    if (!dec->has_prompt)
        return TSR_OK;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        memcpy(result->counts[c], pair.decode[c], sizeof pair.decode[c]);
        memcpy(dec->prompt + c * dec->in->n_devices, pair.prompt[c],
               (size_t)dec->in->n_devices * sizeof *dec->prompt);
    }
    result->proven = false;
out:
    return status;
}

/* The fastest counts in the rooms. The shares of their bytes are reported as "requested". */
static tsr_status optimize_counts(decision *dec, int64_t *counts)
{
    tsr_status status = TSR_OK;
    tsr_cost_result result;
    dec->goal.cost.problem.no_room = &dec->out->no_room;
    tsr_model_cost *costs[] = {&dec->goal.cost, &dec->goal.decode, &dec->goal.prompt};
    for (int i = 0; i < 3; i++)
        for (int c = 0; c < TSR_CLASS_COUNT; c++) {
            tsr_cost_class *k = &costs[i]->classes[c];
            k->n_granules = n_granules(dec, c);
            if (c != TSR_CLASS_OUTPUT) /* of nothing to divide the time does not matter */
                k->repeats = (double)TSR_MAX(tsr_offload_n_free(&dec->out->map, c), 1);
            if (dec->class_bytes[c])
                k->granule_bytes = granule_bytes(dec, c);
        }
    dec->goal.cost.problem.allowed = ~dec->out->map.reserved;
    memcpy(dec->goal.cost.rooms, dec->rooms, (size_t)dec->in->n_devices * sizeof *dec->rooms);
    TSR_TRY(tsr_goal_optimize(&dec->goal, &dec->goal.cost, &result));
    tsr_balance_counts(&dec->goal.cost, result.counts);
    if (dec->in->config.prompt.automatic && dec->in->prompt.automatic && !dec->no_pair)
        TSR_TRY(take_pair(dec, &result));
    double all = 0;
    for (int d = 0; d < dec->in->n_devices; d++) {
        dec->shares[d] = 0;
        for (int c = 0; c < TSR_CLASS_COUNT; c++) {
            counts[c * dec->in->n_devices + d] = result.counts[c][d];
            dec->shares[d] += (double)result.counts[c][d] * (double)dec->goal.cost.classes[c].granule_bytes;
        }
        all += dec->shares[d];
    }
    for (int d = 0; d < dec->in->n_devices; d++)
        dec->shares[d] /= all;
    dec->out->proven = result.proven;
out:
    return status;
}

static tsr_status choose_counts(decision *dec, int64_t *counts)
{
    if (all_pinned(dec)) {
        memset(counts, 0, TSR_CLASS_COUNT * TSR_MAX_DEVICES * sizeof *counts);
        return TSR_OK;
    }
    return dec->out->automatic ? optimize_counts(dec, counts) : fit_counts(dec, counts);
}

/* The counts of a given split of prompts: rounded without regard to memory, except those of attention. */
static tsr_status round_prompt(decision *dec, const int64_t *counts)
{
    tsr_status status = TSR_OK;
    const int n = dec->in->n_devices;
    memcpy(dec->prompt, counts, (size_t)(TSR_CLASS_COUNT * n) * sizeof *counts);
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        if (c != TSR_CLASS_ATTENTION)
            TSR_TRY(tsr_split_round(dec->in->prompt.share, n, dec->in->shape.granules.n[c], NULL,
                                    dec->prompt + c * n));
out:
    return status;
}

static tsr_status make_tensor_split(decision *dec, const int64_t *counts)
{
    tsr_status status = TSR_OK;
    const tsr_model_shape *shape = &dec->in->shape;
    TSR_TRY(tsr_model_split_tensor(&shape->hparams, &shape->granules, dec->shares, dec->in->n_devices, counts,
                                   &dec->out->split));
    if (dec->has_prompt && !dec->in->prompt.automatic)
        TSR_TRY(round_prompt(dec, counts));
    if (dec->has_prompt)
        TSR_TRY(tsr_phase_add_split(dec->in, counts, dec->prompt, &dec->out->split));
out:
    return status;
}

/* Whether a device is over its cap with what is pinned to it alone. */
static bool is_hopeless(const decision *dec, const int64_t *counts)
{
    int d = find_overfull(dec);
    bool any = false;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        any |= counts[c * dec->in->n_devices + d] > 0;
    return !any;
}

static tsr_status decide_tensor(decision *dec)
{
    tsr_status status = TSR_OK;
    int64_t counts[TSR_CLASS_COUNT * TSR_MAX_DEVICES];
    for (int d = 0; d < dec->in->n_devices; d++)
        dec->rooms[d] = (tsr_split_room){.capacity_bytes = SIZE_MAX, .name = dec->in->props[d].name};
    for (int round = 0; round < MAX_ROUNDS; round++) {
        TSR_TRY(choose_counts(dec, counts));
        drop_split(dec);
        TSR_TRY(make_tensor_split(dec, counts));
        TSR_TRY(measure_split(dec, round));
        if (find_overfull(dec) < 0)
            return TSR_OK;
        if (is_hopeless(dec, counts))
            break;
        if (round == 0)
            find_class_bytes(dec);
        learn_fixed(dec, counts, round);
    }
    status = fail_overfull(dec);
out:
    return status;
}

/* What fits without a split of prompts of the planner's must not fail because of it. */
static tsr_status decide_phases(decision *dec)
{
    tsr_status status = decide_tensor(dec);
    if (status != TSR_ERR_MEMORY || !dec->has_prompt || !dec->in->prompt.automatic)
        return status;
    tsr_fail_clear();
    dec->no_pair = true;
    dec->has_prompt = dec->out->no_room = false;
    return decide_tensor(dec);
}

/* -- layer mode and "none" -- */

/* Most layers that fit on each device, from what it held with `layers`. */
static void learn_layer_caps(const decision *dec, const tsr_shard_map *layers, int64_t *caps)
{
    size_t per_layer = 0;
    for (int c = 0; c < TSR_CLASS_COUNT - 1; c++)
        per_layer += dec->class_bytes[c] / (size_t)dec->in->shape.hparams.n_layers;
    for (int d = 0; d < dec->in->n_devices; d++) {
        int64_t held = tsr_shard_map_count(layers, d);
        size_t used = used_by(dec, d), cap = room_of(dec, d);
        if (used <= cap || per_layer == 0)
            continue;
        int64_t over = (int64_t)((used - cap + per_layer - 1) / per_layer);
        caps[d] = TSR_MAX(held - over, 0);
    }
}

/* Whether the devices that take part may hold n_items layers together; a negative cap is none. */
static bool caps_hold(const decision *dec, const int64_t *caps, int64_t n_items)
{
    int64_t sum = 0;
    for (int d = 0; d < dec->in->n_devices; d++)
        if (dec->shares[d] > 0)
            sum += caps[d] < 0 ? n_items : caps[d];
    return sum >= n_items;
}

static bool is_pinned(const decision *dec, int64_t layer)
{
    return dec->out->map.attention[layer] != TSR_FREE && dec->out->map.ffn[layer] != TSR_FREE;
}

/* Layers with a free block, and the output if it is free; at least one, for a free embedding. */
static int64_t count_items(const decision *dec)
{
    int64_t n = dec->out->map.output == TSR_FREE;
    for (int64_t l = 0; l < dec->in->shape.hparams.n_layers; l++)
        n += !is_pinned(dec, l);
    return TSR_MAX(n, 1);
}

/* Layers that belong together have one device: a border between devices that is among them moves to their
 * nearer end. */
static void keep_together(const decision *dec, tsr_shard_map *items)
{
    const tsr_hparams *hp = &dec->in->shape.hparams;
    const int64_t first_layer = hp->n_layers - tsr_hparams_n_together(hp);
    int64_t first = 0, end = 0;
    for (int64_t l = 0; l < hp->n_layers; l++) {
        first += l < first_layer && !is_pinned(dec, l);
        end += !is_pinned(dec, l);
    }
    for (int d = 1; d < items->n_devices; d++)
        if (items->begin[d] > first && items->begin[d] < end)
            items->begin[d] = items->begin[d] - first <= end - items->begin[d] ? first : end;
}

/* Write devices[l] of every layer, then that of the output. Free layers are placed in order. A pinned layer
 * gets the device of the next free layer, so that a free embedding has a device if layer 0 is pinned. */
static void place_items(const decision *dec, const tsr_shard_map *items, int *devices)
{
    int64_t item = 0, n_layers = dec->in->shape.hparams.n_layers, last = items->extent - 1;
    for (int64_t l = 0; l < n_layers; l++) {
        devices[l] = tsr_shard_map_device(items, TSR_MIN(item, last));
        item += !is_pinned(dec, l);
    }
    devices[n_layers] = tsr_shard_map_device(items, last);
}

static tsr_status decide_layers(decision *dec)
{
    tsr_status status = TSR_OK;
    int64_t n_layers = dec->in->shape.hparams.n_layers, n_items = count_items(dec), caps[TSR_MAX_DEVICES];
    tsr_shard_map items;
    int *devices = NULL;
    TSR_TRY(tsr_mem_array((size_t)n_layers + 1, sizeof *devices, "layers", &devices));
    for (int d = 0; d < dec->in->n_devices; d++)
        caps[d] = -1;
    for (int round = 0; round < MAX_ROUNDS; round++) {
        TSR_TRY(tsr_split_layers(dec->shares, dec->in->n_devices, n_items, caps, &items));
        keep_together(dec, &items);
        place_items(dec, &items, devices);
        drop_split(dec);
        TSR_TRY(tsr_model_split_layers(&dec->in->shape.hparams, &dec->in->shape.granules, dec->shares,
                                       dec->in->n_devices, dec->in->config.split.mode, devices,
                                       &dec->out->split));
        TSR_TRY(measure_split(dec, round));
        if (find_overfull(dec) < 0)
            goto out;
        if (dec->in->config.split.mode == TSR_SPLIT_MODE_NONE)
            break;
        if (round == 0)
            find_class_bytes(dec);
        learn_layer_caps(dec, &items, caps);
        if (!caps_hold(dec, caps, n_items))
            break;
    }
    status = fail_overfull(dec);
out:
    tsr_mem_free(devices);
    return status;
}

/* -- stages by time: layer mode and "auto" -- */

static tsr_status choose_stages(decision *dec)
{
    tsr_status status = TSR_OK;
    dec->goal.cost.problem.no_room = &dec->out->no_room;
    dec->goal.cost.problem.allowed = ~dec->out->map.reserved;
    memcpy(dec->goal.cost.rooms, dec->rooms, (size_t)dec->in->n_devices * sizeof *dec->rooms);
    tsr_stages_problem_init(&dec->goal.cost, &dec->in->weights, &dec->in->shape.hparams, dec->class_bytes,
                            &dec->stages);
    tsr_stages_problem_chunk(&dec->goal, dec->goal.n_prompts, &dec->stages);
    TSR_TRY(tsr_stages_find(&dec->goal, &dec->goal.cost, &dec->stages, dec->mode == TSR_SPLIT_MODE_LAYER,
                            &dec->pipeline));
    tsr_balance_stages(&dec->stages, &dec->pipeline);
    dec->out->proven = dec->pipeline.proven;
out:
    return status;
}

/* As learn_fixed(). An unused device is assumed to need as much as any other: it is used next, once the
 * devices before it are full. */
static void learn_fixed_of_stages(decision *dec, int round)
{
    size_t most = 0;
    for (int d = 0; d < dec->in->n_devices; d++) {
        size_t used = used_by(dec, d), granules = 0, *fixed = &dec->rooms[d].fixed_bytes;
        for (int i = 0; i < dec->pipeline.n_stages; i++)
            granules += tsr_stages_bytes(&dec->stages, &dec->pipeline, i, d);
        size_t seen = used > granules ? used - granules : 0;
        *fixed = round < MAX_ROUNDS / 2 ? seen : TSR_MAX(*fixed, seen);
        most = TSR_MAX(most, seen);
        dec->rooms[d].capacity_bytes = room_of(dec, d);
    }
    for (int d = 0; d < dec->in->n_devices; d++)
        if (used_by(dec, d) == 0)
            dec->rooms[d].fixed_bytes = TSR_MAX(dec->rooms[d].fixed_bytes, most);
}

static tsr_status decide_stages(decision *dec)
{
    tsr_status status = TSR_OK;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        dec->class_bytes[c] = tsr_weights_class_bytes(&dec->in->weights, c);
    for (int d = 0; d < dec->in->n_devices; d++)
        dec->rooms[d] = (tsr_split_room){.capacity_bytes = SIZE_MAX, .name = dec->in->props[d].name};
    for (int round = 0; round < MAX_ROUNDS; round++) {
        TSR_TRY(choose_stages(dec));
        drop_split(dec);
        TSR_TRY(tsr_stages_split(&dec->stages, &dec->in->shape, &dec->pipeline, &dec->out->split));
        TSR_TRY(measure_split(dec, round));
        if (find_overfull(dec) < 0)
            goto out;
        if (round == 0) {
            find_class_bytes(dec);
            tsr_stages_problem_init(&dec->goal.cost, &dec->in->weights, &dec->in->shape.hparams,
                                    dec->class_bytes, &dec->stages);
        }
        learn_fixed_of_stages(dec, round);
    }
    status = fail_overfull(dec);
out:
    /* One device in layer mode is still layer mode. */
    if (status == TSR_OK && dec->mode == TSR_SPLIT_MODE_LAYER)
        dec->out->split.mode = TSR_SPLIT_MODE_LAYER;
    return status;
}

/* -- the whole -- */

/* Resolve "auto" as far as the request allows, and find whether the planner chooses the shares: without a
 * tensor_split it does. With pinned blocks "auto" becomes tensor mode, and layer mode gets even shares. */
static void find_mode(decision *dec)
{
    const bool is_open = dec->in->n_devices > 1 && dec->in->request.automatic && !dec->in->uncapped;
    dec->mode = dec->in->config.split.mode;
    dec->has_prompt = !dec->in->prompt.automatic;
    if (dec->mode == TSR_SPLIT_MODE_AUTO && (!is_open || dec->out->map.any || dec->has_prompt))
        dec->mode = TSR_SPLIT_MODE_TENSOR;
    dec->out->automatic = is_open && !(dec->mode == TSR_SPLIT_MODE_LAYER && dec->out->map.any);
}

/* The shares of the request. Automatic ones are for the devices that are not reserved: even, or in proportion
 * to the rooms that the plan does not keep to. */
static void find_shares(decision *dec)
{
    const tsr_split_request *request = &dec->in->request;
    double weight[TSR_MAX_DEVICES], all = 0;
    bool by_room = dec->in->uncapped;
    for (int d = 0; d < request->n; d++)
        by_room = by_room && tsr_device_props_room(&dec->in->props[d]) < SIZE_MAX;
    for (int d = 0; d < request->n; d++) {
        double room = by_room ? (double)tsr_device_props_room(&dec->in->props[d]) : 0;
        weight[d] = tsr_device_set_has(dec->out->map.reserved, d) ? 0 : TSR_MAX(room, 1);
        all += weight[d];
    }
    for (int d = 0; d < request->n; d++)
        dec->shares[d] = request->automatic ? weight[d] / all : request->share[d];
}

tsr_status tsr_plan_decide(const tsr_planner *planner, tsr_plan_choice *choice_out)
{
    tsr_status status = TSR_OK;
    decision *dec = NULL;
    *choice_out = (tsr_plan_choice){.no_room = false};
    TSR_TRY(TSR_NEW(&dec, "a decision"));
    dec->in = planner;
    dec->out = choice_out;
    TSR_TRY(tsr_offload_map_create(planner, &choice_out->map));
    find_mode(dec);
    if (dec->has_prompt && choice_out->map.any)
        TSR_TRY(tsr_fail(TSR_ERR_INVALID,
                         "a split of prompts (prompt.tensor_split) together with offloaded blocks, which one "
                         "device computes in steps of any size; drop one of the two"));
    find_shares(dec);
    if (choice_out->automatic)
        TSR_TRY(tsr_goal_init(planner, &dec->goal));
    if (choice_out->map.any) /* pinned blocks are groups of their own */
        dec->goal.halving = 0;
    if (choice_out->automatic && dec->mode != TSR_SPLIT_MODE_TENSOR)
        TSR_TRY(decide_stages(dec));
    else if (dec->mode == TSR_SPLIT_MODE_TENSOR)
        TSR_TRY(decide_phases(dec));
    else
        TSR_TRY(decide_layers(dec));
out:
    tsr_mem_free(dec);
    if (status != TSR_OK)
        tsr_plan_choice_free(choice_out);
    return status;
}

void tsr_plan_choice_free(tsr_plan_choice *choice)
{
    tsr_offload_map_free(&choice->map);
    tsr_model_split_free(&choice->split);
    tsr_measurement_free(&choice->measurement);
}
