/* Costs of given counts, and which problems make sense. */
#include "split/search/cost.h"

#include <math.h>
#include <string.h>

#include "core/status.h"

double tsr_cost_of(const tsr_cost_class *c, int device, int64_t n)
{
    return n ? c->fixed_ns[device] + (double)n * c->granule_ns[device] : 0;
}

int tsr_cost_n_parts(const tsr_cost_class *c)
{
    return c->has_parts ? TSR_COST_PARTS : 1;
}

tsr_cost_times tsr_cost_part(const tsr_cost_class *c, int part)
{
    return c->has_parts ? (tsr_cost_times){c->part_granule_ns[part], c->part_fixed_ns[part]}
                        : (tsr_cost_times){c->granule_ns, c->fixed_ns};
}

double tsr_cost_walk_ns(const tsr_cost_class *c, int n_devices, const int64_t *counts)
{
    double ns = 0;
    for (int i = 0; i < tsr_cost_n_parts(c); i++) {
        double slowest = 0;
        for (int d = 0; d < n_devices; d++)
            slowest = fmax(slowest, tsr_cost_time(tsr_cost_part(c, i), d, counts[d]));
        ns += slowest;
    }
    return ns;
}

tsr_cost_class tsr_cost_as_one_part(const tsr_cost_class *c, int part)
{
    tsr_cost_class one = *c;
    one.has_parts = false;
    if (c->has_parts && part < TSR_COST_PARTS) {
        memcpy(one.granule_ns, c->part_granule_ns[part], sizeof one.granule_ns);
        memcpy(one.fixed_ns, c->part_fixed_ns[part], sizeof one.fixed_ns);
    }
    return one;
}

bool tsr_cost_alike(const tsr_cost_class *c, int a, int b)
{
    bool same = c->granule_ns[a] == c->granule_ns[b] && c->fixed_ns[a] == c->fixed_ns[b];
    for (int i = 0; c->has_parts && i < TSR_COST_PARTS; i++)
        same = same && c->part_granule_ns[i][a] == c->part_granule_ns[i][b] &&
               c->part_fixed_ns[i][a] == c->part_fixed_ns[i][b];
    return same;
}

void tsr_cost_evaluate(const tsr_cost_problem *p, const int64_t counts[][TSR_MAX_DEVICES],
                       tsr_cost_result *result_out)
{
    tsr_cost_result *r = result_out;
    memset(r, 0, sizeof *r);
    for (int c = 0; c < p->n_classes; c++) {
        memcpy(r->counts[c], counts[c], (size_t)p->n_devices * sizeof counts[c][0]);
        r->slowest[c] = -1;
        for (int d = 0; d < p->n_devices; d++) {
            double ns = tsr_cost_of(&p->classes[c], d, counts[c][d]);
            if (counts[c][d])
                r->devices |= tsr_device_set_one(d);
            if (counts[c][d] && (r->slowest[c] < 0 || ns > r->work_ns[c])) {
                r->slowest[c] = d;
                r->work_ns[c] = ns;
            }
        }
        if (p->classes[c].has_parts)
            r->work_ns[c] = tsr_cost_walk_ns(&p->classes[c], p->n_devices, counts[c]);
    }
    for (int c = 0; c < p->n_classes; c++) {
        double ns = p->walk_ns && r->slowest[c] >= 0 ? p->walk_ns(p->user, c, counts[c]) : -1;
        r->work_ns[c] = ns >= 0 ? ns : r->work_ns[c];
        r->sync_ns[c] = tsr_cost_sync(p, r->devices, c);
        r->total_ns += p->classes[c].repeats * (r->work_ns[c] + r->sync_ns[c]);
    }
}

int64_t tsr_cost_room(const tsr_split_room *room)
{
    size_t bytes = room->capacity_bytes > room->fixed_bytes ? room->capacity_bytes - room->fixed_bytes : 0;
    return bytes > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)bytes;
}

tsr_status tsr_cost_check(const tsr_cost_problem *p)
{
    int64_t bytes = 0, of_class;
    for (int c = 0; c < p->n_classes; c++) {
        const tsr_cost_class *k = &p->classes[c];
        bool good = k->n_granules >= 0 && k->n_granules <= TSR_SPLIT_MAX_GRANULES && k->repeats > 0 &&
                    isfinite(k->repeats);
        for (int d = 0; d < p->n_devices; d++)
            for (int i = 0; tsr_device_set_has(p->allowed, d) && i < tsr_cost_n_parts(k); i++) {
                const tsr_cost_times t = tsr_cost_part(k, i);
                good = good && t.granule_ns[d] > 0 && t.fixed_ns[d] >= 0 && isfinite(t.granule_ns[d]) &&
                       isfinite(t.fixed_ns[d]);
            }
        if (!good)
            return tsr_fail(TSR_ERR_INVALID, "class %s: counts, repeats or times out of range",
                            k->name ? k->name : "?");
        if (k->n_granules > 0 &&
            (k->granule_bytes == 0 || k->granule_bytes > INT64_MAX / 4 ||
             __builtin_mul_overflow(k->n_granules, (int64_t)k->granule_bytes, &of_class) ||
             __builtin_add_overflow(bytes, of_class, &bytes) || bytes > INT64_MAX / 4))
            return tsr_fail(TSR_ERR_INVALID,
                            "class %s: %lld granules of %zu bytes; 1 to 2^61 bytes are possible",
                            k->name ? k->name : "?", (long long)k->n_granules, k->granule_bytes);
    }
    return TSR_OK;
}
