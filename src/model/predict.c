/* What a plan's steps will take, and what other layouts would. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "model/cost.h"
#include "model/plan.h"

/* More devices than this are not shown one by one among the alternatives. */
enum { MAX_SINGLES = 8, MAX_ALTERNATIVES = 2 * MAX_SINGLES + 2 };

typedef struct predictor {
    tsr_plan *plan;
    tsr_model_cost decode, prompt;
} predictor;

/* ---- phases ---------------------------------------------------------------------------------- */

static void phase_of_result(const tsr_model_cost *cost, const tsr_cost_result *result, tsr_plan_phase *phase)
{
    phase->total_ns = result->total_ns;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        phase->repeats[c] = cost->classes[c].repeats;
        phase->work_ns[c] = result->work_ns[c];
        phase->sync_ns[c] = result->sync_ns[c];
        phase->slowest[c] = result->slowest[c];
        for (int d = 0; d < cost->problem.n_devices; d++)
            phase->device_ns[c][d] = tsr_cost_of(&cost->classes[c], d, result->counts[c][d]);
    }
}

/* Devices one after another: layers[d] whole layers each, the output on one of them. */
static void phase_of_layers(const tsr_model_cost *cost, const int64_t *layers, int output_device,
                            tsr_plan_phase *phase)
{
    int n_devices = cost->problem.n_devices;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        const tsr_cost_class *k = &cost->classes[c];
        double all = 0;
        phase->repeats[c] = k->repeats;
        phase->slowest[c] = -1;
        for (int d = 0; d < n_devices; d++) {
            double n = c == TSR_CLASS_OUTPUT ? d == output_device : (double)layers[d];
            phase->device_ns[c][d] = n > 0 ? tsr_cost_of(k, d, k->n_granules) : 0;
            all += n * phase->device_ns[c][d];
            if (n > 0 &&
                (phase->slowest[c] < 0 || phase->device_ns[c][d] > phase->device_ns[c][phase->slowest[c]]))
                phase->slowest[c] = d;
        }
        phase->work_ns[c] = all / k->repeats;
        phase->total_ns += all;
    }
}

static void predict_phase(const tsr_plan *plan, const tsr_model_cost *cost, tsr_plan_phase *phase)
{
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}}, layers[TSR_MAX_DEVICES];
    int output_device = 0;
    tsr_cost_result result;
    for (int d = 0; d < plan->info.n_devices; d++) {
        layers[d] = plan->devices[d].n_layers;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            counts[c][d] = plan->devices[d].granules[c];
        if (plan->devices[d].granules[TSR_CLASS_OUTPUT] > 0)
            output_device = d;
    }
    if (plan->info.mode != TSR_SPLIT_MODE_TENSOR) {
        phase_of_layers(cost, layers, output_device, phase);
        return;
    }
    tsr_cost_evaluate(&cost->problem, counts, &result);
    phase_of_result(cost, &result, phase);
}

/* ---- alternatives ---------------------------------------------------------------------------- */

static void add_alternative(predictor *p, const char *text, double decode_ns, double prompt_ns)
{
    tsr_plan_alternative *a = &p->plan->alternatives[p->plan->n_alternatives++];
    snprintf(a->text, sizeof a->text, "%s", text);
    a->decode_ns = decode_ns;
    a->prompt_ns = prompt_ns;
}

/* Tensor mode by shares, memory aside. */
static tsr_status add_shares(predictor *p, const char *text, const double *shares)
{
    tsr_status status = TSR_OK;
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    tsr_cost_result decode, prompt;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        TSR_TRY(
            tsr_split_round(shares, p->plan->info.n_devices, p->plan->info.n_granules[c], NULL, counts[c]));
    tsr_cost_evaluate(&p->decode.problem, counts, &decode);
    tsr_cost_evaluate(&p->prompt.problem, counts, &prompt);
    add_alternative(p, text, decode.total_ns, prompt.total_ns);
out:
    return status;
}

/* The fastest shares of other devices than the plan has, memory aside. */
static tsr_status add_best_of(predictor *p, const char *text, uint64_t devices)
{
    tsr_status status = TSR_OK;
    tsr_cost_result decode, prompt;
    p->decode.problem.allowed = devices;
    TSR_TRY(tsr_split_optimize(&p->decode.problem, &decode));
    tsr_cost_evaluate(&p->prompt.problem, decode.counts, &prompt);
    add_alternative(p, text, decode.total_ns, prompt.total_ns);
out:
    p->decode.problem.allowed = ~UINT64_C(0);
    return status;
}

/* A device that got nothing takes part as much as its speed allows. */
static tsr_status add_with(predictor *p, int device)
{
    double shares[TSR_MAX_DEVICES];
    char text[64];
    for (int d = 0; d < p->plan->info.n_devices; d++)
        shares[d] =
            p->plan->devices[d].used || d == device ? 1 / p->decode.classes[TSR_CLASS_FFN].granule_ns[d] : 0;
    snprintf(text, sizeof text, "with %s", p->plan->devices[device].name);
    return add_shares(p, text, shares);
}

static tsr_status add_whole_layers(predictor *p)
{
    tsr_status status = TSR_OK;
    double even[TSR_MAX_DEVICES];
    int64_t layers[TSR_MAX_DEVICES];
    tsr_plan_phase decode = {0}, prompt = {0};
    int n_devices = p->plan->info.n_devices;
    for (int d = 0; d < n_devices; d++)
        even[d] = 1;
    TSR_TRY(tsr_split_round(even, n_devices, p->plan->info.n_layers, NULL, layers));
    phase_of_layers(&p->decode, layers, n_devices - 1, &decode);
    phase_of_layers(&p->prompt, layers, n_devices - 1, &prompt);
    add_alternative(p, "whole layers, evenly", decode.total_ns, prompt.total_ns);
out:
    return status;
}

static tsr_status add_alternatives(predictor *p)
{
    tsr_status status = TSR_OK;
    const tsr_plan *plan = p->plan;
    int n_devices = plan->info.n_devices, fastest = 0, n_used = 0;
    double even[TSR_MAX_DEVICES] = {0};
    char text[64];
    uint64_t used = 0;
    for (int d = 0; d < n_devices; d++) {
        const double *ns = p->decode.classes[TSR_CLASS_FFN].granule_ns;
        even[d] = 1;
        fastest = ns[d] < ns[fastest] ? d : fastest;
        used |= (uint64_t)plan->devices[d].used << d;
        n_used += plan->devices[d].used;
    }
    TSR_TRY(add_shares(p, "even shares", even));
    for (int d = 0; d < n_devices && n_devices <= MAX_SINGLES; d++) {
        snprintf(text, sizeof text, "without %s", plan->devices[d].name);
        if (!plan->devices[d].used)
            TSR_TRY(add_with(p, d));
        else if (n_used > 2) /* of two, that is the other one alone */
            TSR_TRY(add_best_of(p, text, used & ~(UINT64_C(1) << d)));
    }
    snprintf(text, sizeof text, "%s alone", plan->devices[fastest].name);
    TSR_TRY(add_best_of(p, text, UINT64_C(1) << fastest));
    TSR_TRY(add_whole_layers(p));
out:
    return status;
}

/* ---- the plan -------------------------------------------------------------------------------- */

tsr_status tsr_plan_predict_times(tsr_plan *plan, const tsr_model_shape *shape, const tsr_weights *weights,
                                  const tsr_model_config *resolved)
{
    tsr_status status = TSR_OK;
    predictor *p = NULL;
    tsr_plan_times *times = &plan->times;
    int n_devices = plan->info.n_devices;
    TSR_TRY(tsr_mem_array(1, sizeof *p, "a prediction", &p));
    TSR_TRY(tsr_mem_array(MAX_ALTERNATIVES, sizeof *plan->alternatives, "a prediction", &plan->alternatives));
    p->plan = plan;
    TSR_TRY(tsr_model_cost_init(shape, weights, resolved, n_devices, 1, &p->decode));
    TSR_TRY(tsr_model_cost_init(shape, weights, resolved, n_devices, resolved->n_batch, &p->prompt));
    times->measured = true;
    for (int d = 0; d < n_devices; d++)
        times->measured = times->measured && resolved->rates[d].measured;
    times->decode.n_tokens = 1;
    times->prompt.n_tokens = resolved->n_batch;
    predict_phase(plan, &p->decode, &times->decode);
    predict_phase(plan, &p->prompt, &times->prompt);
    if (n_devices > 1)
        TSR_TRY(add_alternatives(p));
out:
    tsr_mem_free(p);
    return status;
}

void tsr_plan_predict(const tsr_plan *plan, tsr_plan_times *times_out)
{
    *times_out = plan->times;
}

bool tsr_plan_alternative_at(const tsr_plan *plan, int index, tsr_plan_alternative *alternative_out)
{
    if (index < 0 || index >= plan->n_alternatives)
        return false;
    *alternative_out = plan->alternatives[index];
    return true;
}
