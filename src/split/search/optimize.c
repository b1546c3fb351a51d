/* The fastest split, over all sets of devices.
 *
 * Each class alone, with all memory for itself, gives a time that no split over the set can beat; of a class
 * with two parts a bound for this time is enough to begin with. Sets are
 * taken in the order of this bound until the bound is no better than the best split found. In most sets the
 * best counts of all classes fit together, and the bound is reached; if memory is short, optimize_memory.c
 * searches. Of several sets with the same kinds of devices and the same times of all-reduces only the first
 * is tried. */
#include "split/search/optimize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "split/fit.h"
#include "split/search/optimize_level.h"
#include "split/search/optimize_memory.h"

/* Device steps of tsr_split_place() over the whole search: tens of milliseconds. */
static const int64_t MOST_WORK = INT64_C(1) << 23;

typedef struct candidate {
    double bound_ns;
    tsr_device_set devices;
} candidate;

typedef struct optimizer {
    const tsr_cost_problem *p;
    int kind[TSR_MAX_DEVICES]; /* the first device that is equal to it; -1: cannot be used */
    candidate *list;
    int n_candidates, capacity;
    bool all_sets; /* every set that could be the best is in the list */
    int64_t work_left;
    tsr_cost_result best; /* total_ns INFINITY: nothing yet */
} optimizer;

/* -- sets of devices -- */

static int64_t room_of(const tsr_cost_problem *p, int d)
{
    return tsr_cost_room(&p->rooms[d]);
}

static bool alike(const tsr_cost_problem *p, int a, int b)
{
    bool same = room_of(p, a) == room_of(p, b);
    for (int c = 0; c < p->n_classes; c++)
        same = same && tsr_cost_alike(&p->classes[c], a, b);
    return same;
}

static void find_kinds(optimizer *o)
{
    for (int d = 0; d < o->p->n_devices; d++) {
        o->kind[d] = -1;
        if (!tsr_device_set_has(o->p->allowed, d) || room_of(o->p, d) == 0)
            continue;
        o->kind[d] = d;
        for (int e = d - 1; e >= 0; e--)
            if (o->kind[e] == e && alike(o->p, d, e))
                o->kind[d] = e;
    }
}

/* Set rooms and caps of a set. Returns a time that no step takes less than; INFINITY: some class does not
 * fit. */
static double set_up(const tsr_cost_problem *p, tsr_device_set devices, tsr_cost_set *set)
{
    double ns = 0;
    memset(set, 0, sizeof *set);
    set->problem = p;
    for (int d = 0; d < p->n_devices; d++)
        set->room[d] = tsr_device_set_has(devices, d) ? room_of(p, d) : 0;
    for (int c = 0; c < p->n_classes; c++) {
        const tsr_cost_class *k = &p->classes[c];
        for (int d = 0; k->n_granules && d < p->n_devices; d++)
            set->cap[c][d] = TSR_MIN(k->n_granules, set->room[d] / (int64_t)k->granule_bytes);
        set->sync_ns += k->repeats * tsr_cost_sync(p, devices, c);
        ns += k->repeats * tsr_cost_walk_bound(k, p->n_devices, set->cap[c]);
    }
    return ns + set->sync_ns;
}

/* Whether two sets have as many devices of each kind and the same times of all-reduces: such sets are equally
 * good. */
static bool same_set(const optimizer *o, tsr_device_set a, tsr_device_set b)
{
    int n[TSR_MAX_DEVICES] = {0};
    for (int d = 0; d < o->p->n_devices; d++)
        if (o->kind[d] >= 0)
            n[o->kind[d]] += (int)tsr_device_set_has(a, d) - (int)tsr_device_set_has(b, d);
    for (int d = 0; d < o->p->n_devices; d++)
        if (n[d] != 0)
            return false;
    for (int c = 0; c < o->p->n_classes; c++)
        if (tsr_cost_sync(o->p, a, c) != tsr_cost_sync(o->p, b, c))
            return false;
    return true;
}

static void add_set(optimizer *o, tsr_device_set devices)
{
    tsr_cost_set set;
    candidate new = {.bound_ns = set_up(o->p, devices, &set), .devices = devices};
    if (isinf(new.bound_ns) || o->n_candidates == o->capacity)
        return;
    for (int i = 0; i < o->n_candidates; i++)
        if (o->list[i].bound_ns == new.bound_ns && same_set(o, o->list[i].devices, devices))
            return;
    o->list[o->n_candidates++] = new;
}

static tsr_device_set usable(const optimizer *o)
{
    tsr_device_set devices = 0;
    for (int d = 0; d < o->p->n_devices; d++)
        if (o->kind[d] >= 0)
            devices |= tsr_device_set_one(d);
    return devices;
}

/* For many devices: the set of all, then always the set without the device whose removal helps most. */
static void add_shrinking_sets(optimizer *o)
{
    tsr_cost_set set;
    tsr_device_set devices = usable(o);
    while (devices) {
        double least = INFINITY;
        tsr_device_set next = 0;
        add_set(o, devices);
        for (int d = 0; d < o->p->n_devices; d++) {
            tsr_device_set without = devices & ~tsr_device_set_one(d);
            if (without == devices || without == 0)
                continue;
            double ns = set_up(o->p, without, &set);
            if (next == 0 || ns < least) {
                least = ns;
                next = without;
            }
        }
        devices = next;
    }
}

static int compare_candidates(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    int n = tsr_device_set_count(x->devices) - tsr_device_set_count(y->devices);
    if (x->bound_ns != y->bound_ns)
        return x->bound_ns < y->bound_ns ? -1 : 1;
    if (n != 0)
        return n; /* the fewer devices the better */
    return (x->devices > y->devices) - (x->devices < y->devices);
}

static tsr_status list_sets(optimizer *o)
{
    tsr_status status = TSR_OK;
    tsr_device_set all = usable(o);
    o->all_sets = tsr_device_set_count(all) <= TSR_OPTIMIZE_ALL_SUBSETS;
    o->capacity = 1 << TSR_OPTIMIZE_ALL_SUBSETS;
    TSR_TRY(tsr_mem_array((size_t)o->capacity, sizeof *o->list, "sets of devices", &o->list));
    if (o->all_sets)
        for (tsr_device_set set = all & -all; set;
             set = (set - all) & all) /* ascending: the first of equal sets */
            add_set(o, set);
    else
        add_shrinking_sets(o);
    qsort(o->list, (size_t)o->n_candidates, sizeof *o->list, compare_candidates);
out:
    return status;
}

/* -- one set -- */

static bool fits(const tsr_cost_set *set, const int64_t counts[][TSR_MAX_DEVICES])
{
    for (int d = 0; d < set->problem->n_devices; d++) {
        int64_t bytes = 0;
        for (int c = 0; c < set->problem->n_classes; c++)
            bytes += counts[c][d] * (int64_t)set->problem->classes[c].granule_bytes;
        if (bytes > set->room[d])
            return false;
    }
    return true;
}

static void keep_better(optimizer *o, const int64_t counts[][TSR_MAX_DEVICES])
{
    tsr_cost_result result;
    tsr_cost_evaluate(o->p, counts, &result);
    if (result.total_ns < o->best.total_ns)
        o->best = result;
}

/* If memory is short, a time that is hardly above the bound is tried first: this search is quick, and a
 * result makes a wider search unnecessary. */
static tsr_status try_under_memory(optimizer *o, const tsr_cost_set *set, double bound_ns, int64_t *work_left,
                                   bool *proven)
{
    tsr_status status = TSR_OK;
    static const double slack[] = {1.01, 1.05, 1.2, 2, INFINITY};
    const double best_before_ns = o->best.total_ns;
    bool found = false;
    for (int i = 0; i < (int)(sizeof slack / sizeof *slack) && !found; i++) {
        int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
        double limit = bound_ns * slack[i], best_ns = fmin(best_before_ns, limit);
        bool complete = true;
        TSR_TRY(tsr_cost_under_memory(set, work_left, &best_ns, &found, counts, &complete));
        *proven = *proven && complete;
        if (found)
            keep_better(o, counts);
        if (best_before_ns <= limit)
            break;
    }
out:
    return status;
}

/* Quick searches for good splits, as if walks had one part: both on the same device, or one of the two. */
static tsr_status try_as_one_part(optimizer *o, const tsr_cost_set *set)
{
    tsr_status status = TSR_OK;
    const tsr_cost_problem *p = o->p;
    tsr_cost_problem one = *p;
    tsr_cost_class *classes = NULL;
    tsr_cost_set of_one = *set;
    bool ignored = true;
    TSR_TRY(tsr_mem_array((size_t)p->n_classes, sizeof *classes, "the search for a split", &classes));
    one.classes = classes;
    of_one.problem = &one;
    for (int part = TSR_COST_PARTS; part >= 0; part--) {
        double bound_ns = set->sync_ns;
        for (int c = 0; c < p->n_classes; c++) {
            classes[c] = tsr_cost_as_one_part(&p->classes[c], part);
            bound_ns += classes[c].repeats * tsr_cost_walk_bound(&classes[c], p->n_devices, set->cap[c]);
        }
        TSR_TRY(try_under_memory(o, &of_one, bound_ns, &o->work_left, &ignored));
    }
out:
    tsr_mem_free(classes);
    return status;
}

static bool has_parts(const tsr_cost_problem *p)
{
    bool any = false;
    for (int c = 0; c < p->n_classes; c++)
        any = any || p->classes[c].has_parts;
    return any;
}

static tsr_status try_set(optimizer *o, tsr_device_set devices, bool *proven)
{
    tsr_status status = TSR_OK;
    const tsr_cost_problem *p = o->p;
    tsr_cost_set set;
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    double bound_ns, ns;
    set_up(p, devices, &set);
    bound_ns = set.sync_ns;
    for (int c = 0; c < p->n_classes; c++) {
        TSR_TRY(
            tsr_cost_least(&p->classes[c], p->n_devices, set.cap[c], &o->work_left, proven, counts[c], &ns));
        bound_ns += p->classes[c].repeats * ns;
    }
    if (fits(&set, counts)) {
        keep_better(o, counts);
    } else if (!has_parts(p)) {
        TSR_TRY(try_under_memory(o, &set, bound_ns, &o->work_left, proven));
    } else if (bound_ns < o->best.total_ns) {
        TSR_TRY(try_as_one_part(o, &set));
        int64_t some = o->work_left / 4; /* the rest is for other sets */
        o->work_left -= some;
        TSR_TRY(try_under_memory(o, &set, bound_ns, &some, proven));
        o->work_left += TSR_MAX(some, 0);
    }
out:
    return status;
}

tsr_status tsr_cost_optimize_set(const tsr_cost_problem *problem, tsr_device_set devices, double limit_ns,
                                 int64_t *work_left, tsr_cost_result *result_out)
{
    tsr_status status = TSR_OK;
    optimizer o = {.p = problem, .work_left = *work_left, .best.total_ns = limit_ns};
    tsr_cost_set set;
    bool proven = true;
    if (set_up(problem, devices, &set) < limit_ns)
        TSR_TRY(try_set(&o, devices, &proven));
    o.best.proven = proven;
    *work_left = o.work_left;
    *result_out = o.best;
out:
    return status;
}

/* -- the whole -- */

/* Use tsr_split_fit(): it finds counts whenever there are any, and its message has the missing bytes
 * otherwise. */
static tsr_status fall_back(optimizer *o)
{
    tsr_status status = TSR_OK;
    const tsr_cost_problem *p = o->p;
    tsr_split_class classes[TSR_SPLIT_MAX_CLASSES];
    double shares[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    int64_t flat[TSR_SPLIT_MAX_CLASSES * TSR_MAX_DEVICES];
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    tsr_device_set devices = usable(o) ? usable(o) : p->allowed;
    bool ignored, *no_room = p->no_room ? p->no_room : &ignored;
    for (int c = 0; c < p->n_classes; c++) {
        const tsr_cost_class *k = &p->classes[c];
        for (int d = 0; d < p->n_devices; d++)
            shares[c][d] = tsr_device_set_has(devices, d) ? 1 / k->granule_ns[d] : 0;
        classes[c] = (tsr_split_class){.name = k->name,
                                       .n_granules = k->n_granules,
                                       .granule_bytes = k->granule_bytes,
                                       .shares = shares[c]};
    }
    TSR_TRY(tsr_split_fit_in_rooms(classes, p->n_classes, p->rooms, p->n_devices, flat, no_room));
    for (int c = 0; c < p->n_classes; c++)
        memcpy(counts[c], flat + c * p->n_devices, (size_t)p->n_devices * sizeof *flat);
    tsr_cost_evaluate(p, counts, &o->best);
out:
    return status;
}

static double work_bound(const tsr_cost_problem *p, tsr_device_set devices)
{
    tsr_cost_set set;
    double ns = set_up(p, devices, &set);
    return ns - set.sync_ns;
}

tsr_status tsr_split_optimize(const tsr_cost_problem *problem, tsr_cost_result *result_out)
{
    tsr_status status = TSR_OK;
    optimizer o = {.p = problem, .work_left = MOST_WORK, .best.total_ns = INFINITY};
    bool proven = true;
    double bound_ns = INFINITY;
    TSR_TRY(tsr_cost_check(problem));
    find_kinds(&o);
    TSR_TRY(list_sets(&o));
    for (int i = 0; i < o.n_candidates && o.list[i].bound_ns < o.best.total_ns; i++) {
        bool set_proven = true;
        TSR_TRY(try_set(&o, o.list[i].devices, &set_proven));
        if (!set_proven)
            bound_ns = fmin(bound_ns, o.list[i].bound_ns);
        proven = proven && set_proven;
    }
    if (isinf(o.best.total_ns))
        TSR_TRY(fall_back(&o));
    *result_out = o.best;
    if (!o.all_sets) /* all devices and no all-reduces: no set can be faster */
        bound_ns = work_bound(problem, usable(&o));
    result_out->bound_ns = fmin(bound_ns, o.best.total_ns);
    result_out->proven =
        (o.all_sets && proven && !problem->walk_ns) || result_out->bound_ns >= o.best.total_ns;
out:
    tsr_mem_free(o.list);
    return status;
}
