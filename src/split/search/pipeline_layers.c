/* Whole layers on single devices, in device order.
 *
 * Chunks in flight together save a share of every stage but the slowest. If no stage is slower than some
 * time, the best chains are those by times less that share; so the search is repeated, each time with stages
 * that are faster than the slowest one of the last result, while the sum can still be less than the best.
 * The chunks depend on the number of stages, and a search does not: there is one with the chunks of each
 * number. A chain that it finds may have another number of stages. If it would take less time with the chunks
 * of that search, a chain that was not found may be better, and the result is not proven.
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

#define TINY 1e-12
#define SAME (1 - 1e-9) /* less than this of a time is less, and no rounding error */

/* Times of a layer added to a chain: some tenths of a second. */
static const double MOST_STEPS = 1e8;

typedef struct chain {
    const tsr_pipeline_problem *p;
    int n_stages;                /* whose chunks the prompt is in; 0: there are no chunks */
    double saved, slowest_share; /* of every stage's chunked part, and what the slowest takes instead */
    double least_unproven;       /* what a chain may take that was not found */
    double steps_left;
    double layer_ns[TSR_MAX_DEVICES], output_ns[TSR_MAX_DEVICES]; /* less the share that is saved */
    double chunked_layer[TSR_MAX_DEVICES], chunked_output[TSR_MAX_DEVICES];
    double slower;                                  /* every stage is faster than this in the chunked part */
    double slowest;                                 /* stage of the best chain, in the chunked part */
    int64_t most[TSR_STAGE_ROLES][TSR_MAX_DEVICES]; /* layers that fit; -1: not even 0 */
    double *done; /* [n_devices][n_layers + 1]: least time if this device has the last layer, or INFINITY */
    double best_ns;
    int last;          /* last device of the best chain */
    int64_t n_at_last; /* layers of the last device */
} chain;

static double whole_ns(const tsr_cost_class *classes, int d, int k)
{
    return tsr_cost_of(&classes[k], d, classes[k].n_granules);
}

/* Layers of a stage that is faster than c->slower; -1: not even without a layer. */
static int64_t most_fast(const chain *c, int d, int role)
{
    const double left = c->slower - (role & TSR_STAGE_LAST ? c->chunked_output[d] : 0);
    int64_t n = c->p->n_layers;
    if (isinf(c->slower))
        return n;
    if (left <= 0)
        return -1;
    if ((double)n * c->chunked_layer[d] >= left)
        n = (int64_t)(left / c->chunked_layer[d]);
    return n - ((double)n * c->chunked_layer[d] >= left);
}

static void set_up(chain *c)
{
    const tsr_pipeline_problem *p = c->p;
    const double saved = c->saved;
    int64_t layer = tsr_pipeline_layer_bytes(p);
    for (int d = 0; d < p->n_devices; d++) {
        int64_t room = tsr_pipeline_room(p, d);
        c->layer_ns[d] = c->chunked_layer[d] = c->chunked_output[d] = 0;
        for (int k = 0; k < TSR_PIPELINE_OUTPUT; k++) {
            c->layer_ns[d] += whole_ns(p->classes, d, k);
            c->chunked_layer[d] += c->n_stages > 0 ? whole_ns(p->chunked, d, k) : 0;
        }
        c->output_ns[d] = whole_ns(p->classes, d, TSR_PIPELINE_OUTPUT);
        c->chunked_output[d] = c->n_stages > 0 ? whole_ns(p->chunked, d, TSR_PIPELINE_OUTPUT) : 0;
        c->layer_ns[d] = TSR_MAX(c->layer_ns[d] - saved * c->chunked_layer[d], 0);
        c->output_ns[d] = TSR_MAX(c->output_ns[d] - saved * c->chunked_output[d], 0);
        for (int role = 0; role < TSR_STAGE_ROLES; role++) {
            int64_t left = room - tsr_stage_end_bytes(p, role);
            c->most[role][d] = left < 0 || room == 0 ? -1
                               : layer > 0           ? TSR_MIN(left / layer, p->n_layers)
                                                     : p->n_layers;
            c->most[role][d] = TSR_MIN(c->most[role][d], most_fast(c, d, role));
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
    if (c->n_stages < 2 && n <= c->most[TSR_STAGE_ONLY][d] && only < c->best_ns) {
        c->best_ns = only;
        c->last = d;
        c->n_at_last = n;
    }
    for (int64_t m = 1; c->n_stages != 1 && d > 0 && m <= n; m++) {
        double ns = arrive(c, d, m, &from), left = (double)(n - m);
        if (isinf(ns))
            continue;
        for (int64_t l = 1; l <= TSR_MIN(n - m, c->most[TSR_STAGE_INNER][d]); l++)
            done[m + l] = fmin(done[m + l], ns + (double)l * c->layer_ns[d]);
        c->steps_left -= (double)(n - m + d);
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

static void note_slowest(chain *c, const tsr_pipeline *pipeline)
{
    c->slowest = 0;
    for (int i = 0; i < pipeline->n_stages; i++) {
        const tsr_pipeline_stage *s = &pipeline->stages[i];
        const int d = tsr_device_set_first(s->devices);
        const double ns = (double)s->n_layers * c->chunked_layer[d] +
                          (i == pipeline->n_stages - 1 ? c->chunked_output[d] : 0);
        c->slowest = TSR_MAX(c->slowest, ns);
    }
}

/* The best chain whose stages are faster than c->slower; c->best_ns is its time less what is saved in all
 * stages, INFINITY if there is none. */
static void find_chain(chain *c, tsr_pipeline *pipeline)
{
    set_up(c);
    c->best_ns = INFINITY;
    for (int d = 0; d < c->p->n_devices; d++)
        extend(c, d);
    if (isinf(c->best_ns))
        return;
    trace(c, pipeline);
    note_slowest(c, pipeline);
    pipeline->total_ns = tsr_pipeline_evaluate(c->p, pipeline);
}

/* Improve the result by chains with the chunks of n_stages stages. */
static void find_chains(chain *c, int n_stages, tsr_pipeline *next, tsr_pipeline *best)
{
    const tsr_pipeline_chunks *chunks = &c->p->chunks[n_stages];
    const bool chunked = n_stages > 1 && chunks->n > 1;
    c->n_stages = n_stages;
    c->saved = chunked ? 1 - chunks->slower / chunks->n : 0;
    c->slowest_share = chunked ? chunks->slower * (1 - 1 / chunks->n) : 0;
    c->slower = INFINITY;
    do {
        find_chain(c, next);
        if (isinf(c->best_ns))
            return;
        if (next->total_ns < best->total_ns)
            *best = *next;
        const double here = c->best_ns + c->slowest_share * c->slowest; /* with the chunks of n_stages */
        if (here < next->total_ns * SAME)
            c->least_unproven = fmin(c->least_unproven, here);
        c->slower = c->slowest * (1 - TINY); /* so that rounding errors do not find the same chain again */
    } while (c->slowest_share > 0 && c->slowest > 0 && c->best_ns < best->total_ns && c->steps_left > 0);
    if (c->slowest_share > 0 && c->best_ns < best->total_ns && c->steps_left <= 0)
        c->least_unproven = 0;
}

tsr_status tsr_pipeline_layers(const tsr_pipeline_problem *p, tsr_pipeline *pipeline_out)
{
    tsr_status status = TSR_OK;
    tsr_pipeline *next = NULL;
    chain c = {.p = p, .least_unproven = INFINITY, .steps_left = MOST_STEPS};
    const int most_stages = (int)TSR_MIN(TSR_MIN(p->n_devices, p->n_layers + 1), TSR_PIPELINE_LANES);
    TSR_TRY(tsr_pipeline_check(p));
    TSR_TRY(TSR_NEW(&next, "the search for stages"));
    TSR_TRY(tsr_mem_array((size_t)p->n_devices * (size_t)(p->n_layers + 1), sizeof *c.done,
                          "the search for stages", &c.done));
    pipeline_out->total_ns = INFINITY;
    for (int n = p->chunked ? 1 : 0; n <= (p->chunked ? most_stages : 0); n++)
        find_chains(&c, n, next, pipeline_out);
    if (isinf(pipeline_out->total_ns))
        TSR_TRY(tsr_pipeline_fail(p));
    pipeline_out->proven = c.least_unproven >= pipeline_out->total_ns * SAME;
out:
    tsr_mem_free(c.done);
    tsr_mem_free(next);
    return status;
}
