/* Measuring a split: load the model and make a session on devices that allocate nothing, then read their
 * accounting. */
#include "plan/dry_run.h"

#include <string.h>

#include "core/mem.h"
#include "model/load.h"
#include "model/session/session.h"
#include "plan/header_only/dry_run.h"

/* All sessions of a model hold the same bytes; `session` is one of them. */
static void read_accounting(const tsr_runtime *rt, const tsr_session *session, int n_sessions,
                            tsr_measurement *m)
{
    for (int d = 0; d < rt->n_devices; d++) {
        memcpy(m->used[d], rt->devices[d]->used, sizeof m->used[d]);
        m->kv_windowed[d] = tsr_kv_windowed_bytes(session->kv, d) * (size_t)n_sessions;
        for (int i = 0; i < TSR_SESSION_MEMORIES; i++) {
            const tsr_program_memory *memory = tsr_session_memory(session, i);
            m->arena_bound[d] += memory ? tsr_layout_bound_bytes(&memory->layout, d) : 0;
        }
    }
    m->program = session->memory->info;
}

tsr_status tsr_measurement_create(const tsr_planner *planner, const tsr_model_split *split,
                                  tsr_measurement *measurement_out)
{
    tsr_status status = TSR_OK;
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_session *session;
    tsr_measurement m = {0};
    if (planner->shape.arch->header_only)
        return tsr_measurement_create_header_only(planner, split, measurement_out);
    tsr_model_config config = planner->config;
    config.load.progress = NULL;
    TSR_TRY(tsr_runtime_open_dry(planner->props, planner->n_devices, &rt));
    TSR_TRY(tsr_model_load(rt, &planner->shape, &config, split, NULL, &model));
    for (int i = 0; i < config.session.n_sessions; i++)
        TSR_TRY(tsr_session_create(model, &session));
    TSR_TRY(tsr_measurement_init(&m, planner->n_devices));
    read_accounting(rt, session, config.session.n_sessions, &m);
    *measurement_out = m;
    m = (tsr_measurement){0};
out:
    tsr_measurement_free(&m);
    while (model && model->sessions)
        tsr_session_destroy(model->sessions);
    tsr_model_unload(model);
    tsr_runtime_close(rt);
    return status;
}
