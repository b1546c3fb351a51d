/* Costs of given counts, and which problems make sense. */
#include "split/search/cost.h"

#include <math.h>
#include <string.h>

#include "core/status.h"

double tsr_cost_of(const tsr_cost_class *c, int device, int64_t n)
{
    return n ? c->fixed_ns[device] + (double)n * c->granule_ns[device] : 0;
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
            if (tsr_device_set_has(p->allowed, d))
                good = good && k->granule_ns[d] > 0 && k->fixed_ns[d] >= 0 && isfinite(k->granule_ns[d]) &&
                       isfinite(k->fixed_ns[d]);
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
