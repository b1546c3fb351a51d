/* Step programs: one per shape, all in the memory of the largest shape. */
#include "model/session/session.h"

#include "core/comm.h"
#include "core/mem.h"

static bool reads_rope(const tsr_layer_kind *kind, int slot)
{
    return kind->rope_q == slot || kind->rope_k == slot;
}

/* Inputs that the graph does not read would have no memory, so a prediction has those of its layer only. */
static void add_inputs(const tsr_session *session, int64_t n_tokens, int64_t n_outputs, bool predicts,
                       tsr_step_graph *in)
{
    const tsr_hparams *hp = &session->model->shape.hparams;
    const int last = (int)hp->n_layers - 1;
    in->tokens = tsr_graph_input(in->graph, TSR_TYPE_I32, n_tokens, 1, "tokens");
    for (int i = 0; i < TSR_ROPE_SLOTS; i++)
        if (hp->rope[i].n_rot > 0 && (!predicts || reads_rope(tsr_hparams_layer(hp, last), i)))
            in->rope_tables[i] =
                tsr_graph_input(in->graph, TSR_TYPE_F32, hp->rope[i].n_rot, n_tokens, "rope_table");
    in->output_rows = tsr_graph_input(in->graph, TSR_TYPE_I32, n_outputs, 1, "output_rows");
    if (predicts)
        in->hidden_in = tsr_graph_input(in->graph, TSR_TYPE_F32, hp->n_embd, n_tokens, "hidden");
    in->embeds = session->model->config.output.embeddings;
    in->kv_inputs = tsr_graph_kv_inputs(in->graph, session->kv, n_tokens);
}

static bool is_prompt(const tsr_session *session, const tsr_step_shape *shape)
{
    const tsr_model_split *split = &session->model->split;
    return !shape->predicts && tsr_model_split_of(split, shape->n_tokens) == split->prompt;
}

/* Of the first half only the keys, values and states are wanted. */
static void build_first_half(const tsr_session *session, const tsr_weights *weights, tsr_step *step)
{
    const tsr_model_shape *shape = &session->model->shape;
    step->first = (tsr_step_graph){.graph = step->inputs.graph};
    add_inputs(session, step->shape.n_first, 0, false, &step->first);
    if (step->first.graph->status == TSR_OK)
        (void)!tsr_arch_build(shape->arch, &shape->hparams, weights, &step->first);
    step->first.graph->n_first = step->first.graph->n_nodes;
}

/* Candidates have room in every step with logits: steps with and without them have the same memory. */
tsr_status tsr_session_build_step(const tsr_session *session, tsr_step_shape step_shape, tsr_step *step)
{
    tsr_status status = TSR_OK;
    const tsr_model_shape *shape = &session->model->shape;
    const tsr_weights *weights =
        is_prompt(session, &step_shape) ? &session->model->prompt_weights : &session->model->weights;
    tsr_step_graph *in = &step->inputs;
    TSR_TRY(tsr_graph_create(session->model->rt, &in->graph));
    step->shape = step_shape;
    if (step_shape.n_first > 0)
        build_first_half(session, weights, step);
    add_inputs(session, step_shape.n_tokens - step_shape.n_first, step_shape.n_outputs, step_shape.predicts,
               in);
    TSR_TRY(in->graph->status);
    step->result = tsr_graph_output(in->graph, tsr_arch_build(shape->arch, &shape->hparams, weights, in));
    if (!step_shape.predicts && !in->embeds)
        step->candidates = tsr_top_k(in->graph, step->result, step_shape.n_candidates);
out:
    return status;
}

void tsr_session_step_free(tsr_step *step)
{
    tsr_program_destroy(step->program);
    tsr_graph_destroy(step->inputs.graph);
    tsr_mem_free(step->parts);
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

/* Whether GPUs divide every layer among them, and steps could run in halves (docs/design/overlap.md). */
static bool takes_halves(const tsr_session *session)
{
    const tsr_model *model = session->model;
    const tsr_device_set devices = model->split.groups[0].devices;
    bool takes = model->split.n_groups == 1 && tsr_device_set_count(devices) > 1 && !model->split.prompt &&
                 !model->shape.hparams.predicts && !tsr_kv_has_states(session->kv);
    TSR_FOR_DEVICES(d, devices)
        takes = takes && model->rt->devices[d]->is_gpu;
    return takes;
}

/* Devices that share a GPU would compete for its streams' queues (docs/design/collectives.md). */
static bool share_a_gpu(const tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++)
        for (int e = 0; e < d; e++)
            if (rt->devices[d]->place == rt->devices[e]->place &&
                rt->devices[d]->process == rt->devices[e]->process)
                return true;
    return false;
}

int64_t tsr_session_first_half(const tsr_session *session, int64_t n_tokens)
{
    const tsr_model *model = session->model;
    const bool halves = session->memory->halves.n_devices > 0 && n_tokens >= 2 * model->half_tokens;
    return halves && !tsr_comm_stages(model->rt->comm, model->split.groups[0].devices) &&
                   !share_a_gpu(model->rt)
               ? n_tokens / 2
               : 0;
}

static tsr_status reserve(const tsr_session *session, tsr_step_shape shape, int n_lanes,
                          tsr_program_memory **memory_out)
{
    tsr_status status = TSR_OK;
    tsr_step worst = {0}, halves = {0};
    tsr_program_config config = program_config(session);
    TSR_TRY(tsr_session_build_step(session, shape, &worst));
    if (takes_halves(session) && shape.n_tokens >= 2 * session->model->half_tokens) {
        shape.n_first = shape.n_tokens / 2;
        shape.n_outputs = TSR_MIN(shape.n_outputs, shape.n_tokens - shape.n_first);
        TSR_TRY(tsr_session_build_step(session, shape, &halves));
    }
    TSR_TRY(tsr_program_memory_create(worst.inputs.graph, halves.inputs.graph, &config, n_lanes, memory_out));
out:
    tsr_session_step_free(&worst);
    tsr_session_step_free(&halves);
    return status;
}

/* A lane for every stage, since each can work at a chunk of its own. */
static int count_lanes(const tsr_session *session)
{
    return TSR_MIN(tsr_model_split_n_stages(&session->model->split), TSR_SESSION_MAX_LANES);
}

tsr_status tsr_session_reserve(tsr_session *session)
{
    tsr_status status = TSR_OK;
    const tsr_model *model = session->model;
    const tsr_step_shape all = {.n_tokens = model->config.session.n_batch,
                                .n_outputs = model->config.session.n_outputs_max};
    tsr_step_shape shorter = all;
    if (model->split.prompt) {
        shorter.n_tokens = TSR_MIN(all.n_tokens, model->split.prompt_tokens - 1);
        shorter.n_outputs = TSR_MIN(all.n_outputs, shorter.n_tokens);
    }
    TSR_TRY(reserve(session, shorter, count_lanes(session), &session->memory));
    if (model->split.prompt)
        TSR_TRY(reserve(session, all, 1, &session->prompt_memory));
    if (model->shape.hparams.predicts)
        TSR_TRY(reserve(session, (tsr_step_shape){.n_tokens = all.n_tokens, .n_outputs = 1, .predicts = true},
                        1, &session->prediction_memory));
out:
    return status;
}

tsr_program_memory *tsr_session_memory(const tsr_session *session, int index)
{
    tsr_program_memory *const all[TSR_SESSION_MEMORIES] = {session->memory, session->prompt_memory,
                                                           session->prediction_memory};
    return all[index];
}

static tsr_program_memory *memory_of(const tsr_session *session, const tsr_step_shape *shape)
{
    return shape->predicts             ? session->prediction_memory
           : is_prompt(session, shape) ? session->prompt_memory
                                       : session->memory;
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

static int max_steps(const tsr_session *session)
{
    return TSR_SESSION_MAX_SHAPES * session->memory->layout.n_lanes;
}

bool tsr_session_is_full(tsr_session *session, uint64_t clock)
{
    return session->n_steps == max_steps(session) && least_recently_used(session)->last_used > clock;
}

static bool same_shape(tsr_step_shape a, tsr_step_shape b)
{
    return a.n_tokens == b.n_tokens && a.n_outputs == b.n_outputs && a.n_candidates == b.n_candidates &&
           a.n_first == b.n_first && a.predicts == b.predicts && a.lane == b.lane;
}

tsr_step *tsr_session_find_step(tsr_session *session, tsr_step_shape shape)
{
    for (int i = 0; i < session->n_steps; i++)
        if (same_shape(session->steps[i].shape, shape)) {
            session->steps[i].last_used = ++session->clock;
            return &session->steps[i];
        }
    return NULL;
}

tsr_status tsr_session_step(tsr_session *session, tsr_step_shape shape, tsr_step **step_out)
{
    tsr_status status = TSR_OK;
    tsr_step step = {0};
    *step_out = tsr_session_find_step(session, shape);
    if (*step_out)
        return TSR_OK;
    tsr_program_config config = program_config(session);
    TSR_TRY(tsr_session_build_step(session, shape, &step));
    TSR_TRY(tsr_program_compile_into(step.inputs.graph, &config, memory_of(session, &shape), shape.lane,
                                     &step.program));
    TSR_TRY(tsr_mem_array((size_t)(session->model->rt->n_devices * shape.n_outputs * shape.n_candidates),
                          sizeof *step.parts, "candidates", &step.parts));
    step.last_used = ++session->clock;
    tsr_step *slot;
    if (session->n_steps < max_steps(session)) {
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
