/* The memory of a change of split, planned before any change.
 *
 * After the change, a device holds the bytes of the new split's plan. The old split must stay usable until
 * the new split is complete, so for a time a device holds both: copied weights (unless its part stays the
 * same), arenas and workspaces twice, committed KV pages twice. Views are the same memory under both splits,
 * and only the committed part of a KV region is memory. The accounting counts views and reservations in full,
 * so caps are lifted while both splits exist, and this file's sum decides instead. A device without room for
 * both splits' weights exchanges them. */
#include "alloc/buffer/buffer.h"
#include "core/mem.h"
#include "engine/resplit.h"
#include "plan/create.h"
#include "plan/planner_init.h"
#include "runtime/memory.h"

void tsr_holding_of(const tsr_model *model, int d, tsr_holding *holding_out)
{
    const tsr_device *device = model->rt->devices[d];
    tsr_holding h = {.copies = tsr_buffer_has_copies(model->weights.buffer, d)};
    h.bytes[TSR_MEMORY_WEIGHTS] = tsr_buffer_bytes(model->weights.buffer, d);
    for (const tsr_session *s = model->sessions; s; s = s->next) {
        for (int i = 0; i < TSR_SESSION_MEMORIES; i++) {
            const tsr_program_memory *memory = tsr_session_memory(s, i);
            h.bytes[TSR_MEMORY_ARENA] += memory ? tsr_layout_arena_bytes(&memory->layout, d) : 0;
            h.bytes[TSR_MEMORY_COMM] += memory ? tsr_layout_comm_bytes(&memory->layout, d) : 0;
        }
        h.bytes[TSR_MEMORY_KV] += tsr_kv_reserved_bytes(s->kv, d);
        h.kv_committed += tsr_kv_committed_bytes(s->kv, d);
    }
    /* Scratch exists once for all programs of the device, but every plan counts it. */
    h.bytes[TSR_MEMORY_SCRATCH] = device->used[TSR_MEMORY_SCRATCH];
    *holding_out = h;
}

int tsr_resplit_n_sessions(const tsr_model *model)
{
    int n = 0;
    for (const tsr_session *s = model->sessions; s; s = s->next)
        n++;
    return n;
}

tsr_status tsr_resplit_plan(const tsr_resplits *all, const tsr_model *model, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_planner planner = {0};
    tsr_model_config config = model->config;
    config.split.experts = tsr_expert_split_of(&model->shape.hparams);
    TSR_TRY(tsr_planner_init_for_runtime(all->rt, &model->shape, &config, &planner));
    planner.config.session.n_sessions = TSR_MAX(tsr_resplit_n_sessions(model), 1);
    if (config.split.mode != TSR_SPLIT_MODE_NONE)
        planner.request = all->request;
    for (int d = 0; d < planner.n_devices; d++) {
        tsr_holding own;
        tsr_plan_device before;
        tsr_holding_of(model, d, &own);
        size_t goes = tsr_used_total(own.bytes),
               stays = all->deferred[d] > goes ? all->deferred[d] - goes : 0;
        if (all->caps[d] < SIZE_MAX)
            planner.props[d].memory_cap = all->caps[d] > stays ? all->caps[d] - stays : 0;
        if (tsr_device_set_has(all->without, d))
            planner.props[d].memory_cap = 0;
        TSR_TRY(tsr_plan_get_device(model->plan, d, &before));
        planner.props[d].margin = before.margin_bytes;
    }
    TSR_TRY(tsr_planner_plan(&planner, plan_out));
out:
    tsr_planner_free(&planner);
    return status;
}

/* A plan counts every session's KV region in full. A new region commits as many pages as the old one has in
 * use. */
static size_t new_committed(const tsr_model *model, const tsr_kv_layer *layers, int d)
{
    size_t bytes = 0;
    for (const tsr_session *s = model->sessions; s; s = s->next)
        bytes += tsr_kv_adopt_bytes(s->kv, layers, model->rt->devices[d]);
    return bytes;
}

static size_t excess(size_t wanted, size_t there)
{
    return wanted > there ? wanted - there : 0;
}

/* Whether device d holds the same granules of every block under both splits. */
static bool same_part(const tsr_model_split *a, const tsr_model_split *b, int d)
{
    static const tsr_block blocks[] = {TSR_BLOCK_EMBEDDING, TSR_BLOCK_OUTPUT, TSR_BLOCK_ATTENTION,
                                       TSR_BLOCK_FFN};
    static const tsr_split_class_id ids[] = {TSR_CLASS_OUTPUT, TSR_CLASS_OUTPUT, TSR_CLASS_ATTENTION,
                                             TSR_CLASS_FFN};
    if ((a->embedding_group == a->output_group) != (b->embedding_group == b->output_group))
        return false;
    for (int64_t l = 0; l < a->n_layers; l++)
        for (int k = 0; k < 4; k++) {
            const tsr_split_group *of_a = tsr_model_split_group(a, blocks[k], l);
            const tsr_split_group *of_b = tsr_model_split_group(b, blocks[k], l);
            const tsr_shard_map *x = tsr_split_group_map(of_a, ids[k]),
                                *y = tsr_split_group_map(of_b, ids[k]);
            if (tsr_device_set_has(of_a->devices, d) != tsr_device_set_has(of_b->devices, d) ||
                x->begin[d] != y->begin[d] || x->begin[d + 1] != y->begin[d + 1])
                return false;
        }
    return true;
}

/* The bytes that device d needs for a new split while it holds the old one. */
typedef struct need {
    size_t weights; /* bytes with the weights of both splits */
    size_t grown;   /* bytes with the new weights in place of the old */
    size_t rest;
    size_t taken; /* memory in use by all owners except weights; reservations use none */
    bool copies;
} need;

static need need_of(const tsr_model *model, const tsr_plan *plan, const tsr_kv_layer *layers, int d)
{
    const size_t *new = plan->devices[d].bytes;
    const tsr_device *device = model->rt->devices[d];
    tsr_holding old;
    tsr_holding_of(model, d, &old);
    bool copies = old.copies || device->prefers_copies || model->config.load.copy_weights;
    size_t kv = new[TSR_MEMORY_KV];
    need n = {.grown = excess(new[TSR_MEMORY_WEIGHTS], old.bytes[TSR_MEMORY_WEIGHTS]), .copies = copies};
    n.weights = copies ? new[TSR_MEMORY_WEIGHTS] : n.grown;
    const tsr_model_split *a = model->split.prompt, *b = plan->split.prompt;
    if (same_part(&model->split, &plan->split, d) && (a && b ? same_part(a, b, d) : !a && !b))
        n.weights = 0;
    if (!model->sessions)
        return n;
    size_t committed = new_committed(model, layers, d);
    size_t programs = new[TSR_MEMORY_ARENA] + new[TSR_MEMORY_COMM] +
                      excess(new[TSR_MEMORY_SCRATCH], old.bytes[TSR_MEMORY_SCRATCH]);
    kv = TSR_MAX(kv, old.kv_committed + committed);
    n.rest = excess(kv, old.bytes[TSR_MEMORY_KV]) + programs;
    n.taken = committed + programs;
    return n;
}

/* The accounting counted views and reservations twice. The real peak was lower. */
void tsr_resplit_correct_peaks(const tsr_resplits *all)
{
    for (int d = 0; d < all->rt->n_devices; d++) {
        tsr_device *device = all->rt->devices[d];
        tsr_accounting *accounting = &device->accounting;
        size_t most = TSR_MAX(all->present[d], tsr_device_used(device));
        accounting->peak_total = TSR_MAX(all->peak_total[d], TSR_MIN(accounting->peak_total, most));
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            accounting->peak[o] = TSR_MIN(accounting->peak[o], accounting->peak_total);
    }
}

tsr_status tsr_resplit_admit(tsr_resplits *all, tsr_resplit *r)
{
    tsr_status status = TSR_OK;
    size_t besides[TSR_MAX_DEVICES], taken[TSR_MAX_DEVICES];
    tsr_kv_layer *layers = NULL;
    TSR_TRY(tsr_session_kv_layers(&r->model->shape, &r->plan->split, &layers));
    for (int d = 0; d < all->rt->n_devices; d++) {
        need n = need_of(r->model, r->plan, layers, d);
        size_t room = excess(all->caps[d], all->present[d]);
        besides[d] = n.weights + n.rest;
        if (besides[d] > room && n.weights > n.grown) {
            r->exchanged |= tsr_device_set_one(d);
            besides[d] = n.grown + n.rest;
        }
        taken[d] = n.taken + (n.copies ? besides[d] - n.rest : 0);
        if (besides[d] > room) {
            status = tsr_fail(
                TSR_ERR_MEMORY,
                "device %s: a change of split needs %zu bytes there while the old split still exists, has "
                "%zu "
                "left of %zu, %zu are missing; destroy sessions, or open the model anew with the new split",
                all->rt->devices[d]->name, besides[d], room, all->caps[d], besides[d] - room);
            goto out;
        }
    }
    for (int d = 0; d < all->rt->n_devices; d++)
        all->present[d] += besides[d];
    status = tsr_runtime_check_free(all->rt, taken);
out:
    tsr_mem_free(layers);
    return status;
}
