/* Ties between splits; see balance.h. */
#include "plan/cost/balance.h"

#include <string.h>

#include "core/mem.h"

/* Times are sums in another order after a change. */
static const double same = 1 + 1e-9;

/* -- granules of equal devices -- */

static bool are_equal(const tsr_model_cost *cost, int a, int b)
{
    return memcmp(&cost->rates[a], &cost->rates[b], sizeof *cost->rates) == 0 &&
           cost->rooms[a].capacity_bytes == cost->rooms[b].capacity_bytes;
}

static size_t bytes_on(const tsr_model_cost *cost, int64_t counts[][TSR_MAX_DEVICES], int d)
{
    size_t bytes = cost->rooms[d].fixed_bytes;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        bytes += (size_t)counts[c][d] * cost->classes[c].granule_bytes;
    return bytes;
}

static void exchange(int64_t *counts, int a, int b)
{
    int64_t n = counts[a];
    counts[a] = counts[b];
    counts[b] = n;
}

void tsr_balance_counts(const tsr_model_cost *cost, int64_t counts[][TSR_MAX_DEVICES])
{
    for (int a = 0; a < cost->problem.n_devices; a++)
        for (int b = a + 1; b < cost->problem.n_devices; b++) {
            if (!are_equal(cost, a, b))
                continue;
            for (int c = 0; c < TSR_CLASS_COUNT; c++) {
                if (counts[c][a] == 0 ||
                    counts[c][b] == 0) /* the devices of the all-reduce must not change */
                    continue;
                size_t most = TSR_MAX(bytes_on(cost, counts, a), bytes_on(cost, counts, b));
                exchange(counts[c], a, b);
                if (TSR_MAX(bytes_on(cost, counts, a), bytes_on(cost, counts, b)) >= most)
                    exchange(counts[c], a, b);
            }
        }
}

/* -- layers of stages -- */

/* The part of its room that the fullest device of a stage uses. */
static double fill_of(const tsr_stages_problem *stages, const tsr_pipeline *pipeline, int i)
{
    double most = 0;
    TSR_FOR_DEVICES(d, pipeline->stages[i].devices) {
        const tsr_split_room *room = &stages->problem.rooms[d];
        double bytes = (double)(room->fixed_bytes + tsr_stages_bytes(stages, pipeline, i, d));
        most = TSR_MAX(most, bytes / (double)TSR_MAX(room->capacity_bytes, 1));
    }
    return most;
}

static bool may_end_so(const tsr_pipeline_problem *problem, const tsr_pipeline *pipeline)
{
    int64_t n_done = 0;
    bool may = true;
    for (int i = 0; i < pipeline->n_stages; i++) {
        n_done += pipeline->stages[i].n_layers;
        may = may && tsr_pipeline_may_end(problem, n_done);
    }
    return may;
}

/* Move a layer if that leaves the fuller of both stages less full and takes no more time. */
static bool move_layer(const tsr_stages_problem *stages, tsr_pipeline *pipeline, int from, int to)
{
    tsr_pipeline_stage *source = &pipeline->stages[from], *target = &pipeline->stages[to];
    double fill = fill_of(stages, pipeline, from);
    if (source->n_layers < 2 || target->n_layers < 1 || fill_of(stages, pipeline, to) >= fill)
        return false;
    source->n_layers--;
    target->n_layers++;
    if (may_end_so(&stages->problem, pipeline) && fill_of(stages, pipeline, to) < fill &&
        tsr_pipeline_evaluate(&stages->problem, pipeline) <= pipeline->total_ns * same)
        return true;
    source->n_layers++;
    target->n_layers--;
    return false;
}

void tsr_balance_stages(const tsr_stages_problem *stages, tsr_pipeline *pipeline)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int from = 0; from < pipeline->n_stages; from++)
            for (int to = 0; to < pipeline->n_stages; to++)
                moved = (from != to && move_layer(stages, pipeline, from, to)) || moved;
    }
}
