/* Changing the split of loaded models and their sessions in place.
 *
 * The code that opens models and creates sessions makes the new split next to the old one. The KV pages are
 * copied, and the step that ran last is compiled. All calls that can fail come before any change of the old
 * split. Then models and sessions exchange their contents with their successors, and the previous contents
 * are destroyed with the successors. Handles stay valid.
 *
 * If a device has no room for the copied weights of both splits, the old weights are freed first, as late as
 * possible, and the new weights are read from the file. A later failure loads the old weights again, the only
 * memory that a rollback allocates. If the device refuses memory that was just freed on it, the model is
 * lost, and its calls return this failure. */
#include "engine/resplit.h"

#include <stdio.h>
#include <string.h>

#include "alloc/buffer/buffer.h"
#include "core/checksum.h"
#include "core/mem.h"
#include "engine/open.h"
#include "model/load.h"
#include "model/place.h"

/* -- sessions -- */

/* The step that ran last: the session most likely runs it next. */
static const tsr_step *last_step(const tsr_session *session)
{
    const tsr_step *last = NULL;
    for (int i = 0; i < session->n_steps; i++)
        if (!session->steps[i].shape.predicts && (!last || session->steps[i].last_used > last->last_used))
            last = &session->steps[i];
    return last;
}

static tsr_status follow_session(tsr_session *session, tsr_model *next)
{
    tsr_status status = TSR_OK;
    const tsr_step *last = last_step(session);
    TSR_TRY(tsr_session_create(next, &session->successor));
    TSR_TRY(tsr_kv_adopt(session->successor->kv, session->kv));
    if (last)
        session->successor->next_shape = last->shape;
    session->successor->next_shape.lane = 0;
out:
    return status;
}

static tsr_status compile_step(tsr_session *session)
{
    tsr_step *step;
    return session->next_shape.n_tokens ? tsr_session_step(session, session->next_shape, &step) : TSR_OK;
}

static void swap_contents(tsr_session *a, tsr_session *b)
{
    tsr_session was = *a;
    a->kv = b->kv;
    a->memory = b->memory;
    a->prompt_memory = b->prompt_memory;
    a->prediction_memory = b->prediction_memory;
    memcpy(a->steps, b->steps, sizeof a->steps);
    a->n_steps = b->n_steps;
    a->clock = b->clock;
    a->stats.n_programs += b->stats.n_programs;
    b->kv = was.kv;
    b->memory = was.memory;
    b->prompt_memory = was.prompt_memory;
    b->prediction_memory = was.prediction_memory;
    memcpy(b->steps, was.steps, sizeof b->steps);
    b->n_steps = was.n_steps;
}

/* -- one model -- */

static tsr_status prepare(tsr_resplits *all, tsr_resplit *r)
{
    tsr_status status = TSR_OK;
    tsr_model *model = r->model;
    if (model->lost)
        return tsr_fail(TSR_ERR_DEVICE,
                        "the model lost weights when a change of its split failed; close it and "
                        "open it anew");
    TSR_TRY(tsr_resplit_plan(all, model, &r->plan));
    TSR_TRY(tsr_resplit_admit(all, r));
    const tsr_model_previous previous = {model, r->exchanged};
    TSR_TRY(tsr_model_load(model->rt, &model->shape, &model->config, tsr_plan_split(r->plan), &previous,
                           &r->next));
    for (tsr_session *s = model->sessions; s; s = s->next)
        TSR_TRY(follow_session(s, r->next));
    for (int d = 0; d < all->rt->n_devices; d++) {
        const tsr_plan_device *new = &r->plan->devices[d];
        tsr_holding old;
        tsr_holding_of(model, d, &old);
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            if (o != TSR_MEMORY_SCRATCH) /* memory without a model */
                all->deferred[d] = all->deferred[d] - old.bytes[o] + new->bytes[o];
    }
out:
    return status;
}

static void drop_weights(tsr_model *model, tsr_device_set devices)
{
    TSR_FOR_DEVICES(d, devices)
        tsr_buffer_drop_device(model->weights.buffer, d);
}

static tsr_status refill(tsr_model *model, tsr_device_set devices)
{
    return tsr_weights_refill(&model->weights, tsr_model_prompt_weights(model), devices,
                              tsr_model_load_flags(&model->config));
}

/* Programs contain the addresses of weights, so the programs of the old split are dropped with its
 * weights. */
static tsr_status exchange_weights(tsr_resplit *r)
{
    tsr_model *model = r->model;
    if (!r->exchanged)
        return TSR_OK;
    for (tsr_session *s = model->sessions; s; s = s->next)
        tsr_session_drop_steps(s);
    r->exchanging = true;
    drop_weights(model, r->exchanged);
    return refill(r->next, r->exchanged);
}

/* Load the old weights again, wherever exchange_weights() stopped. */
static void restore_weights(tsr_resplit *r)
{
    char sentence[512];
    if (!r->exchanging)
        return;
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    for (tsr_session *s = r->next->sessions; s; s = s->next)
        tsr_session_drop_steps(s);
    drop_weights(r->next, r->exchanged);
    if (refill(r->model, r->exchanged) != TSR_OK) {
        tsr_log(&r->model->rt->logger, TSR_LOG_WARN,
                "a change of split failed (%s), and the old weights cannot be loaded again: %s", sentence,
                tsr_last_error());
        r->model->lost = true;
    }
    tsr_fail_store("%s", sentence);
}

static tsr_status compile_steps(tsr_model *next)
{
    tsr_status status = TSR_OK;
    for (tsr_session *s = next->sessions; s; s = s->next)
        TSR_TRY(compile_step(s));
out:
    return status;
}

static void commit(tsr_resplit *r)
{
    tsr_model *model = r->model, *next = r->next;
    tsr_weights weights = model->weights, prompt_weights = model->prompt_weights;
    tsr_model_split split = model->split;
    for (tsr_session *s = model->sessions; s; s = s->next)
        swap_contents(s, s->successor);
    model->weights = next->weights;
    next->weights = weights;
    model->prompt_weights = next->prompt_weights;
    next->prompt_weights = prompt_weights;
    model->split = next->split;
    next->split = split;
    tsr_buffer_inherit(model->weights.buffer, next->weights.buffer);
    tsr_model_set_plan(model, r->plan);
    r->plan = NULL;
}

/* Destroy the half that is not in use: the successors if nothing was committed, otherwise the previous
 * contents. */
static void drop(tsr_resplit *r)
{
    for (tsr_session *s = r->model->sessions; s; s = s->next)
        s->successor = NULL;
    while (r->next && r->next->sessions)
        tsr_session_destroy(r->next->sessions);
    tsr_model_close(r->next);
    tsr_plan_destroy(r->plan);
}

/* -- all of them -- */

/* Prepare the new splits of all models, complete except for the exchange of contents. */
static tsr_status make_all(tsr_resplits *all)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < all->n; i++)
        TSR_TRY(prepare(all, &all->list[i]));
    for (int i = 0; i < all->n; i++)
        TSR_TRY(exchange_weights(&all->list[i]));
    for (int i = 0; i < all->n; i++)
        TSR_TRY(compile_steps(all->list[i].next));
out:
    return status;
}

/* The first exchange of a change of split: processes with different splits would not make the same steps. */
static tsr_status agree_on_split(const tsr_runtime *rt, const float *tensor_split, int n, tsr_status mine)
{
    uint64_t mark = tsr_hash_words(0, &n, sizeof n);
    if (mine == TSR_OK && n > 0)
        mark = tsr_hash_words(mark, tensor_split, (size_t)n * sizeof *tensor_split);
    return tsr_processes_agree_on(rt->processes, mine, "the start of a change of split", mark);
}

/* Devices that get nothing: `without`, and those that were dropped. */
static tsr_status leave_out(const tsr_runtime *rt, tsr_device_set without, tsr_split_request *request)
{
    double left = 0;
    bool any = false;
    for (int d = 0; d < rt->n_devices; d++) {
        const bool out = tsr_device_set_has(without, d) || tsr_device_is_dropped(rt->devices[d]);
        if (out && request->share[d] > 0 && !request->automatic)
            return tsr_fail(TSR_ERR_INVALID, "device %s was dropped; give it a share of 0",
                            rt->devices[d]->name);
        if (out)
            request->share[d] = 0;
        any = any || out;
        left += request->share[d];
    }
    for (int d = 0; d < rt->n_devices && any; d++) /* otherwise they are, to the bit, those of opening */
        request->share[d] /= left;
    return TSR_OK;
}

/* Read the request, and the memory before the change. */
static tsr_status start(tsr_resplits *all, const float *tensor_split, int n_tensor_split)
{
    const tsr_runtime *rt = all->rt;
    for (int d = 0; d < rt->n_devices; d++) {
        all->caps[d] = rt->devices[d]->memory_cap;
        all->present[d] = all->deferred[d] = tsr_device_used(rt->devices[d]);
        all->peak_total[d] = rt->devices[d]->accounting.peak_total;
    }
    const tsr_status status =
        tsr_split_request_read(tensor_split, n_tensor_split, rt->n_devices, &all->request);
    return status == TSR_OK ? leave_out(rt, all->without, &all->request) : status;
}

tsr_status tsr_resplit_preview(tsr_model *model, const float *tensor_split, int n_tensor_split,
                               tsr_plan **plan_out)
{
    tsr_resplits all = {.rt = model->rt};
    const tsr_status status = start(&all, tensor_split, n_tensor_split);
    return status == TSR_OK ? tsr_resplit_plan(&all, model, plan_out) : status;
}

static tsr_status resplit(tsr_runtime *rt, tsr_resplit *list, int n, tsr_device_set without,
                          const float *tensor_split, int n_tensor_split)
{
    tsr_resplits all = {.rt = rt, .list = list, .n = n, .without = without};
    tsr_status status = start(&all, tensor_split, n_tensor_split);
    status = agree_on_split(rt, tensor_split, n_tensor_split, status);
    if (status != TSR_OK)
        return status;
    for (int d = 0; d < rt->n_devices; d++)
        rt->devices[d]->memory_cap = SIZE_MAX;
    if (status == TSR_OK)
        status = make_all(&all);
    status = tsr_processes_agree(rt->processes, status, "a change of split");
    for (int i = 0; i < n && status == TSR_OK; i++)
        commit(&list[i]);
    for (int i = 0; i < n && status != TSR_OK; i++)
        restore_weights(&list[i]);
    for (int i = 0; i < n; i++)
        drop(&list[i]);
    for (int d = 0; d < rt->n_devices; d++)
        rt->devices[d]->memory_cap = all.caps[d];
    tsr_resplit_correct_peaks(&all);
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
    status = check_split("tsr_model_resplit", tensor_split, n_tensor_split);
    if (status != TSR_OK)
        return agree_on_split(model->rt, NULL, 0, status);
    TSR_TRY(resplit(model->rt, &one, 1, 0, tensor_split, n_tensor_split));
out:
    return status;
}

tsr_status tsr_runtime_resplit(tsr_runtime *rt, const float *tensor_split, int n_tensor_split)
{
    if (!rt)
        return tsr_fail(TSR_ERR_INVALID, "tsr_runtime_resplit: runtime must not be NULL");
    const tsr_status status = check_split("tsr_runtime_resplit", tensor_split, n_tensor_split);
    return status == TSR_OK ? tsr_resplit_all(rt, 0, tensor_split, n_tensor_split)
                            : agree_on_split(rt, NULL, 0, status);
}

tsr_status tsr_resplit_all(tsr_runtime *rt, tsr_device_set without, const float *tensor_split,
                           int n_tensor_split)
{
    tsr_resplit *list = NULL;
    int n = 0;
    for (const tsr_model *m = rt->models; m; m = m->next)
        n++;
    tsr_status status = tsr_mem_array((size_t)n, sizeof *list, "a change of split", &list);
    if (status != TSR_OK)
        return agree_on_split(rt, NULL, 0, status);
    n = 0;
    for (tsr_model *m = rt->models; m; m = m->next)
        list[n++].model = m;
    TSR_TRY(resplit(rt, list, n, without, tensor_split, n_tensor_split));
out:
    tsr_mem_free(list);
    return status;
}
