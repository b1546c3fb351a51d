/* Measuring a model that does not run: its own tensors are placed as the loader would place them, its KV
 * region is counted, and the arena is that of a llama of the same widths. */
#include "plan/header_only/dry_run.h"

#include <string.h>

#include "alloc/buffer/buffer.h"
#include "arch/families/families.h"
#include "model/load.h"
#include "model/place.h"
#include "plan/header_only/header.h"
#include "model/session/session.h"

static tsr_status place_weights(tsr_runtime *rt, const tsr_planner *planner, const tsr_model_split *split,
                                tsr_measurement *m)
{
    tsr_status status = TSR_OK;
    const tsr_model_shape *shape = &planner->shape;
    tsr_weights weights = {0}; /* placing changes them, so that the planner's are not used */
    TSR_TRY(tsr_weights_init(&weights, shape->gguf, shape->hparams.n_layers));
    TSR_TRY(tsr_arch_declare(shape->arch, &weights, &shape->hparams, &shape->granules));
    const tsr_weights_placing placing = {.flags = planner->config.load.copy_weights ? TSR_LOAD_COPY : 0};
    TSR_TRY(tsr_weights_place(&weights, NULL, rt, split, &placing));
    for (int d = 0; d < rt->n_devices; d++)
        m->used[d][TSR_MEMORY_WEIGHTS] = rt->devices[d]->used[TSR_MEMORY_WEIGHTS];
out:
    tsr_weights_free(&weights);
    return status;
}

/* The number of times that sessions hold bytes of this owner; they share weights and scratch. */
static size_t n_of(tsr_memory_owner owner, const tsr_model_config *config)
{
    bool shared = owner == TSR_MEMORY_WEIGHTS || owner == TSR_MEMORY_SCRATCH;
    return shared ? 1 : (size_t)config->session.n_sessions;
}

/* Measure everything but weights and KV on a llama that has no file. */
static tsr_status run_stand_in(tsr_runtime *rt, const tsr_planner *planner, const tsr_model_split *split,
                               tsr_measurement *m)
{
    tsr_status status = TSR_OK;
    const tsr_model_shape *shape = &planner->shape;
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    tsr_model_shape llama = {.arch = &tsr_arch_llama, .hparams = shape->hparams, .granules = shape->granules};
    llama.hparams.n_expert = 0; /* a dense FFN replaces the experts */
    tsr_model_config plain = planner->config;
    plain.session.type_k = plain.session.type_v = TSR_TYPE_F16;
    plain.load.progress = NULL;
    TSR_TRY(tsr_model_load(rt, &llama, &plain, split, NULL, &model));
    TSR_TRY(tsr_session_create(model, &session));
    for (int d = 0; d < rt->n_devices; d++) {
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            if (o != TSR_MEMORY_WEIGHTS && o != TSR_MEMORY_KV)
                m->used[d][o] = rt->devices[d]->used[o] * n_of(o, &planner->config);
        m->arena_bound[d] = tsr_layout_bound_bytes(&session->memory->layout, d);
    }
    m->program = session->memory->info;
out:
    tsr_session_destroy(session);
    tsr_model_unload(model);
    return status;
}

tsr_status tsr_measurement_create_header_only(const tsr_planner *planner, const tsr_model_split *split,
                                              tsr_measurement *measurement_out)
{
    tsr_status status = TSR_OK;
    tsr_runtime *rt = NULL;
    tsr_header_kv kv[TSR_MAX_DEVICES];
    size_t n_sessions = n_of(TSR_MEMORY_KV, &planner->config);
    tsr_measurement m = {0};
    TSR_TRY(tsr_measurement_init(&m, planner->n_devices));
    TSR_TRY(tsr_runtime_open_dry(planner->props, planner->n_devices, &rt));
    TSR_TRY(place_weights(rt, planner, split, &m));
    if (planner->shape.arch != &tsr_arch_by_size)
        TSR_TRY(run_stand_in(rt, planner, split, &m));
    TSR_TRY(tsr_header_kv_bytes(&planner->shape, &planner->config, split, planner->props, kv));
    for (int d = 0; d < planner->n_devices; d++) {
        m.used[d][TSR_MEMORY_KV] = (kv[d].full_bytes + kv[d].windowed_bytes) * n_sessions;
        m.kv_windowed[d] = kv[d].windowed_bytes * n_sessions;
    }
    *measurement_out = m;
    m = (tsr_measurement){0};
out:
    tsr_measurement_free(&m);
    tsr_runtime_close(rt);
    return status;
}
