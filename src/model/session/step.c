/* Step programs: one per shape, all in the memory of the largest shape. */
#include "model/session/session.h"

#include "core/mem.h"

tsr_status tsr_session_build_step(const tsr_session *session, int64_t n_tokens, int64_t n_outputs,
                                  tsr_step *step)
{
    tsr_status status = TSR_OK;
    const tsr_model *model = session->model;
    const tsr_hparams *hp = &model->shape.hparams;
    tsr_step_graph *in = &step->inputs;
    TSR_TRY(tsr_graph_create(model->rt, &in->graph));
    in->kv = session->kv;
    in->tokens = tsr_graph_input(in->graph, TSR_TYPE_I32, n_tokens, 1, "tokens");
    for (int i = 0; i < TSR_ROPE_SLOTS; i++)
        if (hp->rope[i].n_rot > 0)
            in->rope_tables[i] =
                tsr_graph_input(in->graph, TSR_TYPE_F32, hp->rope[i].n_rot, n_tokens, "rope_table");
    in->output_rows = tsr_graph_input(in->graph, TSR_TYPE_I32, n_outputs, 1, "output_rows");
    tsr_kv_inputs kv = {.seq_row = tsr_graph_input(in->graph, TSR_TYPE_I32, n_tokens, 1, "seq_row"),
                        .position = tsr_graph_input(in->graph, TSR_TYPE_I32, n_tokens, 1, "position")};
    for (int g = 0; g < tsr_kv_n_groups(session->kv); g++) {
        kv.page_table = tsr_graph_input(in->graph, TSR_TYPE_I32, tsr_kv_max_pages(session->kv),
                                        model->config.session.n_seq_max, "page_table");
        in->kv_inputs[g] = kv;
    }
    if (tsr_kv_has_states(session->kv)) {
        int64_t n_rows = TSR_MIN(n_tokens, (int64_t)model->config.session.n_seq_max);
        in->state_inputs.rows = tsr_graph_input(in->graph, TSR_TYPE_I32, 3, n_rows, "state_rows");
        in->state_inputs.next = tsr_graph_input(in->graph, TSR_TYPE_I32, n_tokens, 1, "next_token");
    }
    step->logits = tsr_graph_output(in->graph, tsr_arch_build(model->shape.arch, hp, &model->weights, in));
    step->n_tokens = n_tokens;
    step->n_outputs = n_outputs;
out:
    return status;
}

void tsr_session_step_free(tsr_step *step)
{
    tsr_program_destroy(step->program);
    tsr_graph_destroy(step->inputs.graph);
    *step = (tsr_step){0};
}

static tsr_program_config program_config(const tsr_session *session)
{
    tsr_program_config config = tsr_program_config_default();
    config.reduction = session->model->config.compute.reduction;
    config.activation_bits = session->model->config.compute.activation_bits;
    config.timeout_ns = session->model->config.compute.timeout_ns;
    return config;
}

tsr_status tsr_session_reserve(tsr_session *session)
{
    tsr_status status = TSR_OK;
    tsr_step worst = {0};
    tsr_program_config config = program_config(session);
    TSR_TRY(tsr_session_build_step(session, session->model->config.session.n_batch,
                                   session->model->config.session.n_outputs_max, &worst));
    TSR_TRY(tsr_program_memory_create(worst.inputs.graph, &config, &session->memory));
out:
    tsr_session_step_free(&worst);
    return status;
}

void tsr_session_drop_steps(tsr_session *session)
{
    for (int i = 0; i < session->n_steps; i++)
        tsr_session_step_free(&session->steps[i]);
    session->n_steps = 0;
}

static tsr_step *least_recently_used(tsr_session *session)
{
    tsr_step *oldest = &session->steps[0];
    for (int i = 1; i < session->n_steps; i++)
        if (session->steps[i].last_used < oldest->last_used)
            oldest = &session->steps[i];
    return oldest;
}

tsr_status tsr_session_step(tsr_session *session, int64_t n_tokens, int64_t n_outputs, tsr_step **step_out)
{
    tsr_status status = TSR_OK;
    tsr_step step = {0};
    session->clock++;
    for (int i = 0; i < session->n_steps; i++) {
        if (session->steps[i].n_tokens == n_tokens && session->steps[i].n_outputs == n_outputs) {
            session->steps[i].last_used = session->clock;
            *step_out = &session->steps[i];
            return TSR_OK;
        }
    }
    tsr_program_config config = program_config(session);
    TSR_TRY(tsr_session_build_step(session, n_tokens, n_outputs, &step));
    TSR_TRY(tsr_program_compile_into(step.inputs.graph, &config, session->memory, &step.program));
    step.last_used = session->clock;
    tsr_step *slot;
    if (session->n_steps < TSR_SESSION_MAX_STEPS) {
        slot = &session->steps[session->n_steps++];
    } else {
        slot = least_recently_used(session);
        tsr_session_step_free(slot);
    }
    *slot = step;
    step = (tsr_step){0};
    session->stats.n_programs++;
    *step_out = slot;
out:
    tsr_session_step_free(&step);
    return status;
}
