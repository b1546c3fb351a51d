/* A change of split by measured times.
 *
 * Devices note the time that they spend in programs and in collectives; the difference is their work. It is
 * summed over windows of steps with few tokens, since prompts have other speeds, and the rule of
 * split/search/rebalance.h decides after each window. Shares are then rounded to granules by planning the
 * change, so a change that would move nothing is never made.
 *
 * The clock of a host device always runs. A GPU's needs events in its graphs (cuda/device/timing.h), which
 * cost a little, so with GPUs one step of EVERY is timed on all devices, and stands for the others.
 *
 * In several processes all count the same steps, share what their devices measured at the end of a window,
 * and so decide the same. */
#include <stdio.h>
#include <string.h>

#include "alloc/kv/kv.h"
#include "core/event.h"
#include "core/mem.h"
#include "engine/resplit.h"
#include "split/search/rebalance.h"

/* Windows take about this time, in a number of steps that follows from the window before; the first has the
 * least. */
#define WINDOW_NS 0.25e9
enum { LEAST_STEPS = 4, MOST_STEPS = 4096 }; /* the least: of timed ones */

/* With GPUs. */
enum { EVERY = 8 };

/* Tokens of the steps that count. */
enum { MOST_TOKENS = 64 };

/* Readings of counters that only grow. */
typedef struct reading {
    int64_t n_steps, n_tokens;
    int64_t n_other; /* steps of other models of the runtime */
    uint64_t program_ns[TSR_MAX_DEVICES], collective_ns[TSR_MAX_DEVICES];
} reading;

/* What processes share at the end of a window. */
typedef struct times {
    double program_ns[TSR_MAX_DEVICES], work_ns[TSR_MAX_DEVICES]; /* in the window so far */
    double change_ns;                                             /* of the last change; 0: none yet */
} times;

typedef struct tsr_adapter {
    tsr_rebalance rule;
    reading last;
    int64_t n_steps, n_wanted; /* in the window: so far, at its end; with those that a timed one stands for */
    int64_t n_calls;
    times times;
} tsr_adapter;

/* Steps of which one is timed. */
static int64_t steps_per_timed(const tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++)
        if (rt->devices[d]->is_gpu)
            return EVERY;
    return 1;
}

static void take_reading(const tsr_model *model, reading *r)
{
    const tsr_runtime *rt = model->rt;
    *r = (reading){0};
    for (const tsr_model *m = rt->models; m; m = m->next)
        for (const tsr_session *s = m->sessions; s; s = s->next) {
            r->n_steps += m == model ? s->stats.n_steps : 0;
            r->n_tokens += m == model ? s->stats.n_tokens : 0;
            r->n_other += m == model ? 0 : s->stats.n_steps;
        }
    for (int d = 0; d < rt->n_devices; d++) {
        tsr_device *device = rt->devices[d];
        (void)!device->ops->synchronize(device, 0); /* a failure is reported by the next call */
        r->program_ns[d] = device->clock.program_ns;
        r->collective_ns[d] = device->clock.collective_ns;
    }
}

/* Whether what happened since the last reading counts: timed steps of this model. Counters start anew where
 * the caller reads times, and a session that was destroyed takes its steps with it. */
static bool counts(const tsr_model *model, const reading *before, const reading *now)
{
    const int64_t n_steps = now->n_steps - before->n_steps, n_tokens = now->n_tokens - before->n_tokens;
    bool good = model->rt->devices[0]->clock.timed && n_steps > 0 && now->n_other == before->n_other &&
                n_tokens <= n_steps * MOST_TOKENS;
    for (int d = 0; d < model->rt->n_devices; d++)
        good = good && now->program_ns[d] >= before->program_ns[d] &&
               now->collective_ns[d] >= before->collective_ns[d];
    return good;
}

static bool clocks_run(const tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++)
        if (!rt->devices[d]->clock.on)
            return false;
    return true;
}

/* Add the steps since the last call to the window. True: the window has all of its steps. */
static bool watch(tsr_model *model, tsr_adapter *a)
{
    reading now;
    if (!clocks_run(model->rt))
        tsr_runtime_time_collectives(model->rt, true);
    take_reading(model, &now);
    const bool good = counts(model, &a->last, &now);
    const int64_t every = steps_per_timed(model->rt);
    for (int d = 0; d < model->rt->n_devices; d++) {
        const double program = (double)(now.program_ns[d] - a->last.program_ns[d]);
        const double waited = (double)(now.collective_ns[d] - a->last.collective_ns[d]);
        a->times.program_ns[d] += good ? (double)every * program : 0;
        a->times.work_ns[d] += good ? (double)every * (program - waited) : 0;
        model->rt->devices[d]->clock.timed = a->n_calls % every == 0; /* the next step */
    }
    a->n_calls++;
    a->n_steps += good ? every * (now.n_steps - a->last.n_steps) : 0;
    a->last = now;
    return a->n_steps >= a->n_wanted;
}

/* Every process has the times of its own devices. */
static tsr_status share_times(const tsr_runtime *rt, times *mine)
{
    for (int p = 0; p < tsr_processes_count(rt->processes); p++) {
        times theirs = *mine;
        const tsr_status status = tsr_processes_share(rt->processes, p, TSR_OK, &theirs, sizeof theirs,
                                                      sizeof theirs, 1, "tsr_model_adapt");
        if (status != TSR_OK)
            return status;
        for (int d = 0; d < rt->n_devices; d++)
            if (rt->devices[d]->process == p) {
                mine->program_ns[d] = theirs.program_ns[d];
                mine->work_ns[d] = theirs.work_ns[d];
            }
        mine->change_ns = TSR_MAX(mine->change_ns, theirs.change_ns);
    }
    return TSR_OK;
}

/* Before the first change: a guess by the bytes that it copies. A GPU copies most of them inside its own
 * memory. */
static double guess_change_ns(const tsr_model *model)
{
    double ns = 0;
    for (int d = 0; d < model->rt->n_devices; d++) {
        const double bytes_per_ns = model->rt->devices[d]->is_gpu ? 10 : 1;
        tsr_holding h;
        tsr_holding_of(model, d, &h);
        ns += ((double)h.kv_committed + (h.copies ? (double)h.bytes[TSR_MEMORY_WEIGHTS] : 0)) / bytes_per_ns;
    }
    return ns;
}

static void shares_of(const tsr_plan *plan, int n_devices, double *share)
{
    double sum = 0;
    for (int d = 0; d < n_devices; d++)
        sum += share[d] = (double)plan->devices[d].bytes[TSR_MEMORY_WEIGHTS];
    for (int d = 0; d < n_devices; d++)
        share[d] /= sum;
}

/* A device keeps a granule of every layer's FFN, so that its speed stays known. */
static void keep_granules(const tsr_plan *plan, int n_devices, const double *now, double *share)
{
    int64_t n = 0;
    for (int d = 0; d < n_devices; d++)
        n += plan->devices[d].granules[TSR_CLASS_FFN];
    for (int d = 0; d < n_devices; d++)
        if (now[d] > 0 && n > 0)
            share[d] = TSR_MAX(share[d], 1.5 / (double)n);
}

static void log_change(const tsr_model *model, const tsr_rebalance_window *w, const double *share,
                       double gain, double change_ns)
{
    char text[512] = "";
    for (int d = 0; d < w->n_devices; d++) {
        const size_t used = strlen(text);
        if (w->share[d] > 0)
            snprintf(text + used, sizeof text - used, "%s%s %.1f to %.1f %% (worked %.0f %% of the time)",
                     used ? ", " : "", model->rt->devices[d]->name, 100 * w->share[d], 100 * share[d],
                     100 * w->work_ns[d] / w->total_ns);
    }
    tsr_log(
        &model->rt->logger, TSR_LOG_INFO,
        "split changed to measured speeds: %s; steps should take %.0f %% less time; the change took %.0f ms",
        text, 100 * gain, change_ns / 1e6);
}

/* Make the change if it moves granules and still pays. A device without room for both splits is no failure
 * of the caller's. */
static tsr_status change(tsr_model *model, tsr_adapter *a, const tsr_rebalance_window *w, double *share,
                         bool *changed_out)
{
    tsr_status status = TSR_OK;
    tsr_plan *plan = NULL;
    double rounded[TSR_MAX_DEVICES];
    float tensor_split[TSR_MAX_DEVICES];
    keep_granules(model->plan, w->n_devices, w->share, share);
    for (int d = 0; d < w->n_devices; d++)
        tensor_split[d] = (float)share[d];
    status = tsr_resplit_preview(model, tensor_split, w->n_devices, &plan);
    TSR_TRY(tsr_processes_agree(model->rt->processes, status, "tsr_model_adapt"));
    shares_of(plan, w->n_devices, rounded);
    const double gain = tsr_rebalance_gain(w, rounded);
    if (!tsr_rebalance_pays(&a->rule, w, gain))
        goto out;
    const uint64_t begin = tsr_clock_ns();
    TSR_TRY(tsr_model_resplit(model, tensor_split, w->n_devices));
    a->times.change_ns = (double)(tsr_clock_ns() - begin);
    tsr_rebalance_changed(&a->rule);
    log_change(model, w, rounded, gain, a->times.change_ns);
    *changed_out = true;
out:
    if (status == TSR_ERR_MEMORY && !model->lost) {
        tsr_log(&model->rt->logger, TSR_LOG_WARN, "the split stays, though another one is faster: %s",
                tsr_last_error());
        tsr_rebalance_changed(&a->rule);
        status = TSR_OK;
    }
    tsr_plan_destroy(plan);
    return status;
}

/* A GPU has no times where its graphs could not be captured with events; the log has the reason. */
static tsr_status check_times(const tsr_model *model, const tsr_rebalance_window *w, const times *measured)
{
    for (int d = 0; d < w->n_devices; d++)
        if (w->share[d] > 0 && measured->work_ns[d] <= 0)
            return tsr_fail(
                TSR_ERR_UNSUPPORTED,
                "tsr_model_adapt: device %s: its steps could not be timed, for the reason that the "
                "log gives; leave the split as it is, or change it with tsr_model_resplit()",
                model->rt->devices[d]->name);
    return TSR_OK;
}

/* At the end of a window. */
static tsr_status decide(tsr_model *model, tsr_adapter *a, bool *changed_out)
{
    tsr_status status = TSR_OK;
    double share[TSR_MAX_DEVICES];
    tsr_rebalance_window w = {.n_devices = model->rt->n_devices};
    TSR_TRY(share_times(model->rt, &a->times));
    shares_of(model->plan, w.n_devices, w.share);
    TSR_TRY(check_times(model, &w, &a->times));
    for (int d = 0; d < w.n_devices; d++) {
        w.work_ns[d] = w.share[d] > 0 ? a->times.work_ns[d] : 0;
        w.total_ns = TSR_MAX(w.total_ns, a->times.program_ns[d]);
    }
    w.change_ns = a->times.change_ns > 0 ? a->times.change_ns : guess_change_ns(model);
    const double n = (double)a->n_steps * WINDOW_NS / TSR_MAX(w.total_ns, 1);
    const double least = LEAST_STEPS * (double)steps_per_timed(model->rt);
    a->n_wanted = (int64_t)TSR_MIN(TSR_MAX(n, least), MOST_STEPS);
    a->n_steps = 0;
    a->times = (times){.change_ns = a->times.change_ns};
    if (tsr_rebalance_propose(&a->rule, &w, share))
        TSR_TRY(change(model, a, &w, share, changed_out));
out:
    return status;
}

static tsr_status check_mode(const tsr_model *model)
{
    if (tsr_model_split_n_stages(&model->split) > 1)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "tsr_model_adapt: devices one after another do not wait for the slowest; open the "
                        "model in split mode tensor");
    return TSR_OK;
}

tsr_status tsr_model_adapt(tsr_model *model, bool *changed_out)
{
    tsr_status status = TSR_OK;
    bool changed = false;
    if (!model)
        return tsr_fail(TSR_ERR_INVALID, "tsr_model_adapt: model must not be NULL");
    TSR_TRY(check_mode(model));
    if (!model->adapter) {
        TSR_TRY(TSR_NEW(&model->adapter, "the times of a model"));
        model->adapter->n_wanted = LEAST_STEPS * steps_per_timed(model->rt);
    }
    if (watch(model, model->adapter))
        TSR_TRY(decide(model, model->adapter, &changed));
out:
    if (changed_out)
        *changed_out = changed;
    return status;
}
