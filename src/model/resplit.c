/* Changing the split of loaded models and their sessions in place.
 *
 * The new split is made beside the old one by the code that opens models and creates sessions; the KV pages
 * are copied over; the step that ran last is compiled. All that can fail happens before anything of the old
 * split is touched. Then models and sessions exchange their contents with their successors, which cannot
 * fail, and what was theirs is destroyed under the successors' names. Handles stay what they were. */
#include "model/resplit.h"

#include <string.h>

#include "core/mem.h"

/* ---- sessions -------------------------------------------------------------------------------- */

/* What a session runs next is most likely what it ran last. */
static const tsr_step *last_step(const tsr_session *session)
{
    const tsr_step *last = NULL;
    for (int i = 0; i < session->n_steps; i++)
        if (!last || session->steps[i].last_used > last->last_used)
            last = &session->steps[i];
    return last;
}

static tsr_status follow_session(tsr_session *session, tsr_model *next)
{
    tsr_status status = TSR_OK;
    const tsr_step *last = last_step(session);
    tsr_step *step;
    TSR_TRY(tsr_session_create(next, &session->successor));
    TSR_TRY(tsr_kv_take_over(session->successor->kv, session->kv));
    if (last)
        TSR_TRY(tsr_session_step(session->successor, last->n_tokens, last->n_outputs, &step));
out:
    return status;
}

static void exchange_sessions(tsr_session *a, tsr_session *b)
{
    tsr_session was = *a;
    a->kv = b->kv;
    a->memory = b->memory;
    memcpy(a->steps, b->steps, sizeof a->steps);
    a->n_steps = b->n_steps;
    a->clock = b->clock;
    a->stats.n_programs += b->stats.n_programs;
    b->kv = was.kv;
    b->memory = was.memory;
    memcpy(b->steps, was.steps, sizeof b->steps);
    b->n_steps = was.n_steps;
}

/* ---- one model ------------------------------------------------------------------------------- */

static tsr_status prepare(tsr_resplits *all, tsr_resplit *r)
{
    tsr_status status = TSR_OK;
    tsr_model *model = r->model;
    TSR_TRY(tsr_resplit_plan(all, model, &r->plan));
    TSR_TRY(tsr_resplit_admit(all, model, r->plan));
    TSR_TRY(tsr_model_load(model->rt, &model->shape, &model->config, tsr_plan_split(r->plan), &r->next));
    for (tsr_session *s = model->sessions; s; s = s->next)
        TSR_TRY(follow_session(s, r->next));
    for (int d = 0; d < all->rt->n_devices; d++) {
        tsr_holding old;
        tsr_holding_of(model, d, &old);
        old.bytes[TSR_MEMORY_SCRATCH] = 0; /* of no model */
        all->leaving[d] += tsr_used_total(old.bytes);
    }
out:
    return status;
}

static void commit(tsr_resplit *r)
{
    tsr_model *model = r->model, *next = r->next;
    tsr_weights weights = model->weights;
    tsr_model_split split = model->split;
    for (tsr_session *s = model->sessions; s; s = s->next)
        exchange_sessions(s, s->successor);
    model->weights = next->weights;
    next->weights = weights;
    model->split = next->split;
    next->split = split;
    tsr_model_set_plan(model, r->plan);
    r->plan = NULL;
}

/* Of what is not in use: the successors before a commit, the former contents after it. */
static void drop(tsr_resplit *r)
{
    for (tsr_session *s = r->model->sessions; s; s = s->next)
        s->successor = NULL;
    while (r->next && r->next->sessions)
        tsr_session_destroy(r->next->sessions);
    tsr_model_close(r->next);
    tsr_plan_destroy(r->plan);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static tsr_status resplit(tsr_runtime *rt, tsr_resplit *list, int n, const float *tensor_split,
                          int n_tensor_split)
{
    tsr_status status = TSR_OK;
    tsr_resplits all = {
        .rt = rt, .tensor_split = tensor_split, .n_tensor_split = n_tensor_split, .list = list, .n = n};
    for (int d = 0; d < rt->n_devices; d++) {
        all.caps[d] = rt->devices[d]->memory_cap;
        all.present[d] = tsr_device_used(rt->devices[d]);
    }
    for (int d = 0; d < rt->n_devices; d++)
        rt->devices[d]->memory_cap = SIZE_MAX;
    for (int i = 0; i < n; i++)
        TSR_TRY(prepare(&all, &list[i]));
    for (int i = 0; i < n; i++)
        commit(&list[i]);
out:
    for (int i = 0; i < n; i++)
        drop(&list[i]);
    for (int d = 0; d < rt->n_devices; d++)
        rt->devices[d]->memory_cap = all.caps[d];
    return status;
}

static tsr_status check_split(const char *call, const float *tensor_split, int n)
{
    if (n >= 0 && (n == 0 || tensor_split))
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "%s: a tensor_split of %d entries at %p", call, n,
                    (const void *)tensor_split);
}

tsr_status tsr_model_resplit(tsr_model *model, const float *tensor_split, int n_tensor_split)
{
    tsr_status status = TSR_OK;
    tsr_resplit one = {.model = model};
    if (!model)
        return tsr_fail(TSR_ERR_INVALID, "tsr_model_resplit: model must not be NULL");
    TSR_TRY(check_split("tsr_model_resplit", tensor_split, n_tensor_split));
    TSR_TRY(resplit(model->rt, &one, 1, tensor_split, n_tensor_split));
out:
    return status;
}

tsr_status tsr_runtime_resplit(tsr_runtime *rt, const float *tensor_split, int n_tensor_split)
{
    tsr_status status = TSR_OK;
    tsr_resplit *list = NULL;
    int n = 0;
    if (!rt)
        return tsr_fail(TSR_ERR_INVALID, "tsr_runtime_resplit: runtime must not be NULL");
    TSR_TRY(check_split("tsr_runtime_resplit", tensor_split, n_tensor_split));
    for (const tsr_model *m = rt->models; m; m = m->next)
        n++;
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *list, "a change of split", &list));
    n = 0;
    for (tsr_model *m = rt->models; m; m = m->next)
        list[n++].model = m;
    TSR_TRY(resplit(rt, list, n, tensor_split, n_tensor_split));
out:
    tsr_mem_free(list);
    return status;
}
