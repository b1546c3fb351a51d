/* One stage of a pipeline as a split problem, and functions that all searches for pipelines use. */
#include "split/search/pipeline_stage.h"

#include <string.h>

#include "core/mem.h"
#include "split/search/transfer.h"
#include "core/status.h"

/* Reading rows of the embedding takes almost no time, but the rows must be divided: in proportion to the
 * speeds of the output. */
static const double EMBEDDING_WORK = 1e-12;

size_t tsr_stage_row_bytes(const tsr_pipeline_problem *p, tsr_stage_role role)
{
    switch (role) {
    case TSR_STAGE_FIRST:
        return p->embedding_bytes;
    case TSR_STAGE_LAST:
        return p->classes[TSR_PIPELINE_OUTPUT].granule_bytes;
    case TSR_STAGE_ONLY:
        return p->shared_bytes;
    case TSR_STAGE_INNER:
        break;
    }
    return 0;
}

static double stage_sync(void *user, tsr_device_set devices, int class_index)
{
    const tsr_stage_problem *stage = user;
    const tsr_pipeline_problem *p = stage->pipeline;
    if (class_index == TSR_PIPELINE_OUTPUT && !(stage->role & TSR_STAGE_FIRST))
        return 0;
    return p->sync_ns(p->user, devices, class_index);
}

static double stage_walk(void *user, int class_index, const int64_t *counts)
{
    const tsr_pipeline_problem *p = ((const tsr_stage_problem *)user)->pipeline;
    return p->walk_ns(p->user, class_index, counts);
}

void tsr_stage_problem_init(const tsr_pipeline_problem *p, int64_t n_layers, tsr_stage_role role,
                            tsr_stage_problem *stage)
{
    tsr_cost_class *output = &stage->classes[TSR_PIPELINE_OUTPUT];
    stage->pipeline = p;
    stage->role = role;
    stage->cost = (tsr_cost_problem){.n_devices = p->n_devices,
                                     .n_classes = TSR_PIPELINE_CLASSES,
                                     .classes = stage->classes,
                                     .rooms = p->rooms,
                                     .allowed = p->allowed,
                                     .sync_ns = p->sync_ns ? stage_sync : NULL,
                                     .walk_ns = p->walk_ns ? stage_walk : NULL,
                                     .user = stage};
    memcpy(stage->classes, p->classes, sizeof stage->classes);
    for (int c = 0; c < TSR_PIPELINE_OUTPUT; c++) {
        stage->classes[c].repeats = n_layers ? (double)n_layers : 1;
        stage->classes[c].granule_bytes *= (size_t)n_layers;
        stage->classes[c].n_granules *= n_layers > 0;
    }
    output->repeats = 1;
    output->granule_bytes = tsr_stage_row_bytes(p, role);
    if (role == TSR_STAGE_INNER)
        output->n_granules = 0;
    if (role == TSR_STAGE_FIRST) {
        output->has_parts = false;
        for (int d = 0; d < p->n_devices; d++) {
            output->granule_ns[d] *= EMBEDDING_WORK;
            output->fixed_ns[d] = 0;
        }
    }
}

int64_t tsr_pipeline_layer_bytes(const tsr_pipeline_problem *p)
{
    int64_t bytes = 0;
    for (int c = 0; c < TSR_PIPELINE_OUTPUT; c++)
        bytes += p->classes[c].n_granules * (int64_t)p->classes[c].granule_bytes;
    return bytes;
}

int64_t tsr_stage_end_bytes(const tsr_pipeline_problem *p, tsr_stage_role role)
{
    return p->classes[TSR_PIPELINE_OUTPUT].n_granules * (int64_t)tsr_stage_row_bytes(p, role);
}

int64_t tsr_pipeline_room(const tsr_pipeline_problem *p, int d)
{
    return tsr_device_set_has(p->allowed, d) ? tsr_cost_room(&p->rooms[d]) : 0;
}

tsr_status tsr_pipeline_check(const tsr_pipeline_problem *p)
{
    tsr_status status = TSR_OK;
    static const tsr_stage_role ends[] = {TSR_STAGE_FIRST, TSR_STAGE_LAST, TSR_STAGE_ONLY};
    tsr_stage_problem stage;
    if (p->n_layers < 1 || p->n_layers > INT32_MAX)
        return tsr_fail(TSR_ERR_INVALID, "a pipeline of %lld layers", (long long)p->n_layers);
    for (int c = 0; c < TSR_PIPELINE_OUTPUT; c++)
        if (p->classes[c].granule_bytes > (size_t)(INT64_MAX / p->n_layers))
            return tsr_fail(TSR_ERR_INVALID, "class %s: %lld layers of granules of %zu bytes",
                            p->classes[c].name, (long long)p->n_layers, p->classes[c].granule_bytes);
    for (int i = 0; i < (int)(sizeof ends / sizeof *ends); i++) {
        tsr_stage_problem_init(p, p->n_layers, ends[i], &stage);
        TSR_TRY(tsr_cost_check(&stage.cost));
    }
out:
    return status;
}

tsr_status tsr_pipeline_fail(const tsr_pipeline_problem *p)
{
    int64_t need = p->n_layers * tsr_pipeline_layer_bytes(p) + tsr_stage_end_bytes(p, TSR_STAGE_ONLY),
            has = 0;
    int largest = 0;
    for (int d = 0; d < p->n_devices; d++) {
        has = TSR_MIN(has + tsr_pipeline_room(p, d), INT64_MAX / 2);
        largest = tsr_pipeline_room(p, d) > tsr_pipeline_room(p, largest) ? d : largest;
    }
    const char *name = p->rooms[largest].name ? p->rooms[largest].name : "the largest device";
    long long room = tsr_pipeline_room(p, largest);
    if (p->no_room)
        *p->no_room = true;
    if (need <= has)
        return tsr_fail(
            TSR_ERR_MEMORY,
            "the model does not fit: of %lld bytes a whole layer takes %lld, and what %s, which has "
            "room for %lld bytes, and the others hold of such pieces is not enough; add memory or "
            "use a smaller context or split mode tensor",
            (long long)need, (long long)tsr_pipeline_layer_bytes(p), name, room);
    return tsr_fail(TSR_ERR_MEMORY,
                    "the model does not fit: %lld bytes are needed, %s has room for %lld and all devices "
                    "together are %lld bytes short; add devices or memory, or use a smaller model or context",
                    (long long)need, name, room, (long long)(need - has));
}

static double copy_ns(const void *user, int from, int to)
{
    const double(*between)[TSR_MAX_DEVICES] = user;
    return between[from][to];
}

double tsr_pipeline_transfer(const tsr_pipeline_problem *p, bool output, tsr_device_set from,
                             tsr_device_set to)
{
    const double(*between)[TSR_MAX_DEVICES] = output ? p->output_transfer_ns : p->transfer_ns;
    return between ? tsr_transfer_ns(p->machine, from, to, copy_ns, between) : 0;
}

/* The chunked part of a stage: the slowest device of each class. */
static double chunked_ns(const tsr_pipeline_problem *p, const tsr_pipeline_stage *s, bool last)
{
    double ns = 0;
    for (int c = 0; c < (last ? TSR_PIPELINE_CLASSES : TSR_PIPELINE_OUTPUT); c++) {
        double slowest = 0;
        for (int d = 0; d < p->n_devices; d++)
            slowest = TSR_MAX(slowest, tsr_cost_of(&p->chunked[c], d, s->counts[c][d]));
        ns += (c == TSR_PIPELINE_OUTPUT ? 1 : (double)s->n_layers) * slowest;
    }
    return ns;
}

/* What chunks in flight together save. */
static double saved_ns(const tsr_pipeline_problem *p, const tsr_pipeline *pipeline)
{
    double sum = 0, most = 0;
    for (int i = 0; i < pipeline->n_stages; i++) {
        const double ns = chunked_ns(p, &pipeline->stages[i], i == pipeline->n_stages - 1);
        sum += ns;
        most = TSR_MAX(most, ns);
    }
    return tsr_pipeline_saved(p->chunks, pipeline->n_stages, sum, most);
}

double tsr_pipeline_evaluate(const tsr_pipeline_problem *p, const tsr_pipeline *pipeline)
{
    double ns = p->chunked ? -saved_ns(p, pipeline) : 0;
    for (int i = 0; i < pipeline->n_stages; i++) {
        const tsr_pipeline_stage *s = &pipeline->stages[i];
        bool last = i == pipeline->n_stages - 1;
        tsr_stage_problem stage;
        tsr_cost_result result;
        tsr_stage_problem_init(p, s->n_layers, (i == 0) * TSR_STAGE_FIRST + last * TSR_STAGE_LAST, &stage);
        tsr_cost_evaluate(&stage.cost, s->counts, &result);
        ns += result.total_ns;
        if (i > 0)
            ns += tsr_pipeline_transfer(p, s->n_layers == 0, s[-1].devices, s->devices);
    }
    return ns;
}
