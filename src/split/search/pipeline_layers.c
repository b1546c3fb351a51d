/* Whole layers on single devices, in device order.
 *
 * The least time of the first l layers, of which device d has the last, depends only on the least times of
 * fewer layers on the devices before d. A device does layers of the last device in a time that is linear in
 * their number, as many as its room holds. */
#include "split/search/pipeline.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "split/search/pipeline_stage.h"

typedef struct chain {
    const tsr_pipeline_problem *p;
    double layer_ns[TSR_MAX_DEVICES], output_ns[TSR_MAX_DEVICES];
    int64_t most[TSR_STAGE_ROLES][TSR_MAX_DEVICES]; /* layers that fit; -1: not even 0 */
    double *done; /* [n_devices][n_layers + 1]: least time if this device has the last layer, or INFINITY */
    double best_ns;
    int last;          /* last device of the best chain */
    int64_t n_at_last; /* layers of the last device */
} chain;

static void set_up(chain *c)
{
    const tsr_pipeline_problem *p = c->p;
    int64_t layer = tsr_pipeline_layer_bytes(p);
    for (int d = 0; d < p->n_devices; d++) {
        int64_t room = tsr_pipeline_room(p, d);
        for (int k = 0; k < TSR_PIPELINE_OUTPUT; k++)
            c->layer_ns[d] += tsr_cost_of(&p->classes[k], d, p->classes[k].n_granules);
        c->output_ns[d] =
            tsr_cost_of(&p->classes[TSR_PIPELINE_OUTPUT], d, p->classes[TSR_PIPELINE_OUTPUT].n_granules);
        for (int role = 0; role < TSR_STAGE_ROLES; role++) {
            int64_t left = room - tsr_stage_end_bytes(p, role);
            c->most[role][d] = left < 0 || room == 0 ? -1
                               : layer > 0           ? TSR_MIN(left / layer, p->n_layers)
                                                     : p->n_layers;
        }
    }
}

static double *done_at(const chain *c, int d)
{
    return c->done + (size_t)d * (size_t)(c->p->n_layers + 1);
}

/* The least time until m layers are done and the activations are on device d; *from_out is the device that
 * had them. */
static double arrive(const chain *c, int d, int64_t m, int *from_out)
{
    const double(*between)[TSR_MAX_DEVICES] =
        m < c->p->n_layers ? c->p->transfer_ns : c->p->output_transfer_ns;
    double least = INFINITY;
    for (int e = 0; e < d; e++) {
        double ns = done_at(c, e)[m] + (between ? between[e][d] : 0);
        if (ns < least) {
            least = ns;
            *from_out = e;
        }
    }
    return least;
}

/* Extend the chains by device d: as the first device, after others, and as the last of all. */
static void extend(chain *c, int d)
{
    int64_t n = c->p->n_layers;
    double *done = done_at(c, d);
    int from;
    for (int64_t l = 0; l <= n; l++)
        done[l] = l > 0 && l <= c->most[TSR_STAGE_FIRST][d] ? (double)l * c->layer_ns[d] : INFINITY;
    double only = (double)n * c->layer_ns[d] + c->output_ns[d];
    if (n <= c->most[TSR_STAGE_ONLY][d] && only < c->best_ns) {
        c->best_ns = only;
        c->last = d;
        c->n_at_last = n;
    }
    for (int64_t m = 1; d > 0 && m <= n; m++) {
        double ns = arrive(c, d, m, &from), left = (double)(n - m);
        if (isinf(ns))
            continue;
        for (int64_t l = 1; l <= TSR_MIN(n - m, c->most[TSR_STAGE_INNER][d]); l++)
            done[m + l] = fmin(done[m + l], ns + (double)l * c->layer_ns[d]);
        double whole = ns + left * c->layer_ns[d] + c->output_ns[d];
        if (n - m <= c->most[TSR_STAGE_LAST][d] && whole < c->best_ns) {
            c->best_ns = whole;
            c->last = d;
            c->n_at_last = n - m;
        }
    }
    for (int64_t l = 1; l < n; l++)
        if (!tsr_pipeline_may_end(c->p, l))
            done[l] = INFINITY;
}

static void put_stage(const chain *c, int d, int64_t n_layers, bool end, tsr_pipeline_stage *stage)
{
    *stage = (tsr_pipeline_stage){.devices = tsr_device_set_one(d), .n_layers = n_layers};
    for (int k = 0; k < TSR_PIPELINE_CLASSES; k++)
        if (k == TSR_PIPELINE_OUTPUT ? end : n_layers > 0)
            stage->counts[k][d] = c->p->classes[k].n_granules;
}

/* The number of layers of device d if `end` layers are done after it. */
static int64_t layers_of(const chain *c, int d, int64_t end, int *from_out)
{
    for (int64_t l = 1; l < end && l <= c->most[TSR_STAGE_INNER][d]; l++)
        if (d > 0 && arrive(c, d, end - l, from_out) + (double)l * c->layer_ns[d] == done_at(c, d)[end])
            return l;
    *from_out = -1;
    return end;
}

static void trace(const chain *c, tsr_pipeline *pipeline)
{
    tsr_pipeline_stage *stages = pipeline->stages;
    int n = 0, d = c->last, from = -1;
    int64_t end = c->p->n_layers - c->n_at_last;
    put_stage(c, d, c->n_at_last, true, &stages[n++]);
    if (end > 0)
        arrive(c, d, end, &from);
    while (from >= 0) {
        d = from;
        int64_t l = layers_of(c, d, end, &from);
        end -= l;
        put_stage(c, d, l, from < 0, &stages[n++]);
    }
    for (int i = 0; i < n / 2; i++) {
        tsr_pipeline_stage swap = stages[i];
        stages[i] = stages[n - 1 - i];
        stages[n - 1 - i] = swap;
    }
    pipeline->n_stages = n;
}

tsr_status tsr_pipeline_layers(const tsr_pipeline_problem *p, tsr_pipeline *pipeline_out)
{
    tsr_status status = TSR_OK;
    chain c = {.p = p, .best_ns = INFINITY};
    TSR_TRY(tsr_pipeline_check(p));
    TSR_TRY(tsr_mem_array((size_t)p->n_devices * (size_t)(p->n_layers + 1), sizeof *c.done,
                          "the search for stages", &c.done));
    set_up(&c);
    for (int d = 0; d < p->n_devices; d++)
        extend(&c, d);
    if (isinf(c.best_ns))
        TSR_TRY(tsr_pipeline_fail(p));
    trace(&c, pipeline_out);
    pipeline_out->total_ns = tsr_pipeline_evaluate(p, pipeline_out);
    pipeline_out->proven = true;
out:
    tsr_mem_free(c.done);
    return status;
}
