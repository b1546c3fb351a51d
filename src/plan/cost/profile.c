/* Counting the operations and collectives of a step; see profile.h.
 *
 * A collective belongs to the class of the last weight before it: sums over devices are added up at the next
 * norm, and the values of a head are gathered behind the weights that made them. So are operations without a
 * weight, such as rotations. */
#include "plan/cost/profile.h"

#include "core/mem.h"
#include "graph/lower/lower.h"
#include "model/load.h"
#include "model/session/session.h"

enum { N_DEVICES = 2 };

static tsr_split_class_id class_of(const tsr_tensor *weight)
{
    switch (tsr_weight_block((const tsr_weight *)weight)) {
    case TSR_BLOCK_ATTENTION:
        return TSR_CLASS_ATTENTION;
    case TSR_BLOCK_FFN:
        return TSR_CLASS_FFN;
    default:
        return TSR_CLASS_OUTPUT;
    }
}

static tsr_status add_collectives(tsr_split_class_id c, bool gathers, int64_t n_elems, int n,
                                  tsr_step_profile *profile)
{
    for (int i = 0; i < profile->n_collectives; i++) {
        tsr_step_collective *one = &profile->collectives[i];
        if (one->class_id == c && one->gathers == gathers && one->n_elems == n_elems) {
            one->n += n;
            return TSR_OK;
        }
    }
    tsr_status status = tsr_mem_grow(&profile->collectives, profile->n_collectives, &profile->capacity, 8,
                                     sizeof *profile->collectives, "collectives");
    if (status == TSR_OK)
        profile->collectives[profile->n_collectives++] =
            (tsr_step_collective){.class_id = c, .gathers = gathers, .n_elems = n_elems, .n = n};
    return status;
}

/* A value may have several rows per token: its parts (tsr_weight_parts). */
static int64_t elems_per_token(const tsr_value *value, int64_t n_tokens)
{
    return value->ne0 * TSR_MAX(value->ne1 / n_tokens, 1);
}

/* Products are counted by their weights (step.c), and candidates are only computed where they are wanted. */
static bool is_counted(tsr_op_kind kind)
{
    return kind != TSR_OP_MUL_MAT && kind != TSR_OP_EXPERTS_GLU && kind != TSR_OP_EXPERTS_DOWN &&
           kind != TSR_OP_TOP_K;
}

static tsr_status count(const tsr_lowered *low, int64_t n_tokens, tsr_step_profile *profile)
{
    tsr_status status = TSR_OK;
    tsr_split_class_id c = TSR_CLASS_OUTPUT;
    for (int i = 0; i < low->n_instrs; i++) {
        const tsr_instr *instr = &low->instrs[i];
        if (instr->weight)
            c = class_of(instr->weight);
        profile->n_ops[c] += is_counted(instr->kind);
        if (instr->kind == TSR_OP_ALL_REDUCE || instr->kind == TSR_OP_ALL_GATHER)
            TSR_TRY(add_collectives(c, instr->kind == TSR_OP_ALL_GATHER,
                                    elems_per_token(&low->values[instr->in[0]], n_tokens), 1, profile));
    }
out:
    return status;
}

static tsr_status split_evenly(const tsr_model_shape *shape, tsr_model_split *split_out)
{
    tsr_status status = TSR_OK;
    static const double shares[N_DEVICES] = {0.5, 0.5};
    int64_t counts[TSR_CLASS_COUNT * TSR_MAX_DEVICES];
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        TSR_TRY(tsr_split_round(shares, N_DEVICES, shape->granules.n[c], NULL, &counts[c * N_DEVICES]));
    TSR_TRY(tsr_model_split_tensor(&shape->hparams, &shape->granules, shares, N_DEVICES, counts, split_out));
out:
    return status;
}

/* Apart from products, of a layer's attention: norm, two rotations, KV write, attention, sum; of its FFN:
 * norm, activation, sum; around the layers: embedding, its sum, norm. */
static tsr_status profile_of_llama(const tsr_hparams *hp, tsr_step_profile *profile)
{
    static const int n_ops[TSR_CLASS_COUNT] = {6, 3, 3};
    tsr_status status = TSR_OK;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        const int n = c == TSR_CLASS_OUTPUT ? 1 : (int)hp->n_layers;
        profile->n_ops[c] = n * n_ops[c];
        TSR_TRY(add_collectives(c, false, hp->n_embd, n, profile));
    }
out:
    return status;
}

tsr_status tsr_step_profile_create(const tsr_planner *planner, tsr_step_profile *profile_out)
{
    tsr_status status = TSR_OK;
    const tsr_device_props props[N_DEVICES] = {planner->props[0], planner->props[0]};
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    tsr_model_split split = {0};
    tsr_step step = {0};
    tsr_lowered low = {0};
    tsr_model_config config = planner->config;
    if (planner->shape.arch->header_only)
        return profile_of_llama(&planner->shape.hparams, profile_out);
    config.load.progress = NULL;
    TSR_TRY(tsr_runtime_open_dry(props, N_DEVICES, &rt));
    TSR_TRY(split_evenly(&planner->shape, &split));
    TSR_TRY(tsr_model_load(rt, &planner->shape, &config, &split, NULL, &model));
    TSR_TRY(tsr_session_create(model, &session));
    TSR_TRY(tsr_session_build_step(
        session,
        (tsr_step_shape){.n_tokens = config.session.n_batch, .n_outputs = config.session.n_outputs_max},
        &step));
    TSR_TRY(tsr_lower(step.inputs.graph, &low));
    TSR_TRY(count(&low, step.shape.n_tokens, profile_out));
out:
    tsr_lowered_free(&low);
    tsr_session_step_free(&step);
    tsr_session_destroy(session);
    tsr_model_unload(model);
    tsr_model_split_free(&split);
    tsr_runtime_close(rt);
    return status;
}
