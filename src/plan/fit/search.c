/* The search for a fit: which rules are used, and how much of the last one is needed.
 *
 * A rule is something that can be cut by 0 (nothing) to n_cuts (all that is allowed) with less memory wanted
 * at each cut. A rule that does not suffice is used up; of the first rule that suffices, the least cut is
 * searched. Bytes are almost linear in the cut, so the first guess is the cut at which the line between both
 * ends reaches the room. From there the search continues in growing strides until it crosses the border, and
 * then narrows the interval. The result was planned and fits; the next smaller cut was planned and does not
 * fit. */
#include "model/config.h"
#include "plan/fit/fit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

/* -- one attempt -- */

tsr_status tsr_fit_attempt(const tsr_fitting *fitting, bool lenient, const tsr_model_config *config,
                           tsr_attempt *attempt_out)
{
    tsr_status status = TSR_OK;
    tsr_planner planner = *fitting->planner;
    tsr_plan_choice_free(&attempt_out->choice);
    attempt_out->config = *config;
    attempt_out->fits = false;
    if (lenient)
        planner.props = fitting->lenient;
    TSR_TRY(tsr_planner_set_config(&planner, config));
    status = tsr_plan_decide(&planner, &attempt_out->choice);
    attempt_out->fits = status == TSR_OK;
    if (attempt_out->choice.no_room) {
        tsr_fail_clear();
        status = TSR_OK;
    }
out:
    return status;
}

/* Bytes wanted beyond the room of all devices but the offload device. If together they have room, the bytes
 * that the worst of them lacks. */
static double excess(const tsr_fitting *fitting, const tsr_attempt *attempt)
{
    double all = 0, worst = 0;
    for (int d = 0; d < fitting->planner->n_devices; d++) {
        size_t wanted = tsr_used_total(attempt->choice.wanted[d]),
               room = tsr_device_props_room(&fitting->planner->props[d]);
        if (wanted == 0 || room == SIZE_MAX || d == fitting->offload_device)
            continue;
        double over = (double)wanted - (double)room;
        all += over;
        worst = TSR_MAX(worst, over);
    }
    return all > 0 || attempt->fits ? all : worst;
}

/* -- the least cut -- */

/* Plan fitting->now with the rule at `cut` into fitting->spare. */
static tsr_status try_cut(tsr_fitting *fitting, const tsr_fit_cut_rule *r, int64_t cut)
{
    tsr_model_config config = fitting->now->config;
    r->apply(fitting, cut, &config);
    return tsr_fit_attempt(fitting, r->offloads, &config, fitting->spare);
}

static void swap(tsr_attempt **a, tsr_attempt **b)
{
    tsr_attempt *t = *a;
    *a = *b;
    *b = t;
}

/* The cut at which the bytes, taken as linear, reach the room. */
static int64_t guess_cut(const tsr_fitting *fitting, int64_t low, double low_excess, int64_t high)
{
    double over = low_excess, under = -excess(fitting, fitting->next);
    double part = over > 0 && under >= 0 ? over / (over + under) : 0.5;
    int64_t guess = low + (int64_t)ceil(part * (double)(high - low));
    return TSR_MAX(low + 1, TSR_MIN(guess, high - 1));
}

/* The cut at which the KV region fills the room that fitting->next leaves on its devices. Another split may
 * have room for a larger context. On several devices, with whole granules or layers each, this estimate is
 * nearer than that of guess_cut(). */
static int64_t grow_on_this_split(const tsr_fitting *fitting, int64_t high)
{
    const tsr_attempt *fits = fitting->next;
    double growth = INFINITY;
    for (int d = 0; d < fitting->planner->n_devices; d++) {
        const size_t *used = fits->choice.measurement.used[d];
        size_t room = tsr_device_props_room(&fitting->planner->props[d]);
        if (used[TSR_MEMORY_KV] > 0 && room != SIZE_MAX)
            growth = fmin(growth, (double)(room - tsr_used_total(used)) / (double)used[TSR_MEMORY_KV]);
    }
    double steps = growth * (double)fits->config.session.n_ctx / TSR_FIT_CTX_STEP;
    return high - (int64_t)fmin(floor(steps), (double)high);
}

/* fitting->next fits at cut `high`, and the excess at `low`, which does not fit, is low_excess: make
 * fitting->next the least cut that fits. */
static tsr_status close_in(tsr_fitting *fitting, const tsr_fit_cut_rule *r, int64_t low, double low_excess,
                           int64_t high)
{
    tsr_status status = TSR_OK;
    int64_t cut = guess_cut(fitting, low, low_excess, high), stride = 1;
    int64_t grown_from = -1;
    while (high - low > 1) {
        TSR_TRY(try_cut(fitting, r, cut));
        if (fitting->spare->fits) {
            swap(&fitting->next, &fitting->spare);
            high = cut;
            cut -= stride;
        } else {
            low = cut;
            cut += stride;
        }
        stride *= 2;
        if (r->cut == TSR_FIT_CUT_CONTEXT && high != grown_from) {
            /* Strides keep growing, so that splits which allow a little more each time do not make the search
             * long. */
            int64_t grown = grow_on_this_split(fitting, high);
            cut = grown_from < 0 && grown < high ? grown : TSR_MIN(cut, grown);
            grown_from = high;
        }
        if (cut <= low || cut >= high)
            cut = low + (high - low) / 2;
    }
out:
    return status;
}

/* -- the rules one after another -- */

/* Make fitting->next the current state, and record the step. */
static void take_step(tsr_fitting *fitting, tsr_fit_cut cut)
{
    tsr_fit_step *step = &fitting->fit->steps[fitting->fit->info.n_steps++];
    step->cut = cut;
    step->before = tsr_fit_choice_of(&fitting->planner->shape, &fitting->now->config);
    step->after = tsr_fit_choice_of(&fitting->planner->shape, &fitting->next->config);
    for (int d = 0; d < fitting->planner->n_devices; d++) {
        step->device_bytes[d] = (int64_t)tsr_used_total(fitting->now->choice.wanted[d]) -
                                (int64_t)tsr_used_total(fitting->next->choice.wanted[d]);
        if (d != fitting->offload_device)
            step->saved_bytes += step->device_bytes[d];
    }
    tsr_fit_write_step(fitting, step);
    swap(&fitting->now, &fitting->next);
}

/* Use one rule. *end is set if the devices have room; then no further rule is used, even if the offload
 * device has none. */
static tsr_status take_rule(tsr_fitting *fitting, const tsr_fit_cut_rule *r, bool *end)
{
    tsr_status status = TSR_OK;
    int64_t n = r->n_cuts(fitting);
    if (n == 0)
        return TSR_OK;
    TSR_TRY(try_cut(fitting, r, n));
    swap(&fitting->next, &fitting->spare);
    if (fitting->next->fits)
        TSR_TRY(close_in(fitting, r, 0, excess(fitting, fitting->now), n));
    *end = fitting->next->fits;
    if (r->offloads && fitting->next->fits) {
        TSR_TRY(tsr_fit_attempt(fitting, false, &fitting->next->config, fitting->spare));
        swap(&fitting->next, &fitting->spare);
    }
    take_step(fitting, r->cut);
out:
    return status;
}

/* fitting->now fits with the least context: grow the context into the memory that a coarser cut left free. */
static tsr_status grow_context(tsr_fitting *fitting)
{
    tsr_status status = TSR_OK;
    const tsr_fit_cut_rule *context = &tsr_fit_cut_rules[TSR_FIT_CONTEXT_RULE];
    int64_t n = context->n_cuts(fitting);
    TSR_TRY(try_cut(fitting, context, 0));
    if (fitting->spare->fits) {
        swap(&fitting->next, &fitting->spare);
    } else {
        double full_excess = excess(fitting, fitting->spare);
        if (n == 1)
            return TSR_OK;
        TSR_TRY(try_cut(fitting, context, n - 1));
        if (!fitting->spare->fits)
            return TSR_OK;
        swap(&fitting->next, &fitting->spare);
        TSR_TRY(close_in(fitting, context, 0, full_excess, n - 1));
    }
    take_step(fitting, TSR_FIT_GROW_CONTEXT);
out:
    return status;
}

tsr_status tsr_fit_search(tsr_fitting *fitting)
{
    tsr_status status = TSR_OK;
    bool end = fitting->now->fits;
    for (int i = 0; i < TSR_FIT_CUT_RULES && !end; i++)
        TSR_TRY(take_rule(fitting, &tsr_fit_cut_rules[i], &end));
    bool coarser = false; /* a cut after the context's */
    for (int i = 0; i + 1 < fitting->fit->info.n_steps; i++)
        coarser = coarser || fitting->fit->steps[i].cut == TSR_FIT_CUT_CONTEXT;
    if (fitting->now->fits && coarser)
        TSR_TRY(grow_context(fitting));
out:
    return status;
}
