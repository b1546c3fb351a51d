/* One set of devices whose memory ties the classes together.
 *
 * A split is as fast as its levels: the time of each class on its slowest device. Only costs of whole
 * granules matter as levels, so for all classes but the one with the smallest granules they are listed, every
 * combination is completed by the lowest level of the last class that memory could possibly allow, and the
 * combinations are tried in the order of the time that this gives. "Possibly" is bytes as a fluid: by
 * max-flow min-cut, classes with at most most[c][d] granules per device fit the rooms if for every group G of
 * classes
 *
 *     bytes of G <= sum over devices of min(room[d], sum over c in G of most[c][d] * granule_bytes[c])
 *
 * Whole granules are then decided exactly by tsr_split_place(). The first combination whose fluid time is no
 * better than the best split found ends the search with a proof. */
#include "split/search/optimize_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "split/fit.h"
#include "split/search/optimize_level.h"

enum {
    MOST_COMBINATIONS = 1 << 16,
    FLUID_STEPS = 16 /* what finding the last level of a combination takes, per device */
};

typedef struct combination {
    double ns;                           /* least time of a step, all-reduces included */
    double level[TSR_SPLIT_MAX_CLASSES]; /* by rank; the last: as a fluid */
} combination;

typedef struct levels {
    const tsr_cost_set *set;
    int n;                            /* classes that have granules */
    int order[TSR_SPLIT_MAX_CLASSES]; /* by rank: the largest granules first */
    tsr_split_fit_problem fit;        /* by rank */
    double *choices[TSR_SPLIT_MAX_CLASSES];
    int64_t n_choices[TSR_SPLIT_MAX_CLASSES];
    combination *list;
    int64_t n_combinations;
    int64_t *work_left;
    bool complete; /* all that could be faster than the best are in the list */
} levels;

static const tsr_cost_class *class_at(const levels *l, int rank)
{
    return &l->set->problem->classes[l->order[rank]];
}

static void most_within(const levels *l, int rank, double level, int64_t *most)
{
    for (int d = 0; d < l->fit.n_devices; d++)
        most[d] = tsr_cost_most(class_at(l, rank), d, level, l->set->cap[l->order[rank]][d]);
}

/* Whether the condition for every group G of classes (see the top of the file) holds. */
static bool flows(const levels *l, const int64_t most[][TSR_MAX_DEVICES])
{
    for (unsigned group = 1; group < 1u << l->n; group++) {
        int64_t supply = 0, demand = 0;
        for (int d = 0; d < l->fit.n_devices; d++) {
            int64_t bytes = 0;
            for (int i = 0; i < l->n; i++)
                if (group >> i & 1)
                    bytes += most[i][d] * l->fit.granule_bytes[i];
            supply += TSR_MIN(bytes, l->set->room[d]);
        }
        for (int i = 0; i < l->n; i++)
            if (group >> i & 1)
                demand += l->fit.n_granules[i] * l->fit.granule_bytes[i];
        if (demand > supply)
            return false;
    }
    return true;
}

/* The time in which every device does all granules of a class that it can hold. */
static double longest_level(const levels *l, int rank)
{
    double longest = 0;
    for (int d = 0; d < l->fit.n_devices; d++)
        longest = fmax(longest, tsr_cost_of(class_at(l, rank), d, l->set->cap[l->order[rank]][d]));
    return longest;
}

/* The lowest level of the last class at which all classes flow, the other classes at their levels; INFINITY:
 * no such level. `most` has the granules that the other classes may take; those of the last class are
 * added. */
static double fluid_level(const levels *l, int64_t most[][TSR_MAX_DEVICES])
{
    int last = l->n - 1;
    double too_short = 0, enough = longest_level(l, last);
    most_within(l, last, enough, most[last]);
    if (!flows(l, most))
        return INFINITY;
    for (;;) {
        double middle = too_short + (enough - too_short) / 2;
        if (middle <= too_short || middle >= enough)
            break;
        most_within(l, last, middle, most[last]);
        *(flows(l, most) ? &enough : &too_short) = middle;
    }
    return enough;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* List the levels that rank may have: costs of counts, from the level of the class alone up to `longest`. */
static tsr_status list_choices(levels *l, int rank, double longest)
{
    tsr_status status = TSR_OK;
    const tsr_cost_class *c = class_at(l, rank);
    const int64_t *cap = l->set->cap[l->order[rank]];
    double least = l->set->level[l->order[rank]];
    int64_t n = 0, n_kept = 0, first[TSR_MAX_DEVICES], most[TSR_MAX_DEVICES];
    for (int d = 0; d < l->fit.n_devices; d++) {
        first[d] = TSR_MAX(tsr_cost_most(c, d, least, cap[d]), 1);
        most[d] = tsr_cost_most(c, d, longest, cap[d]);
        n += TSR_MAX(most[d] - first[d] + 1, 0);
    }
    if (n > MOST_COMBINATIONS) {
        l->complete = false;
        n = 0;
    }
    TSR_TRY(tsr_mem_array((size_t)n + 1, sizeof(double), "levels of a split", &l->choices[rank]));
    double *choices = l->choices[rank];
    choices[n_kept++] = least;
    for (int d = 0; n > 0 && d < l->fit.n_devices; d++)
        for (int64_t k = first[d]; k <= most[d]; k++)
            if (tsr_cost_of(c, d, k) > least)
                choices[n_kept++] = tsr_cost_of(c, d, k);
    qsort(choices, (size_t)n_kept, sizeof *choices, compare_doubles);
    for (int64_t i = 0; i < n_kept; i++)
        if (i == 0 || choices[i] != choices[l->n_choices[rank] - 1])
            choices[l->n_choices[rank]++] = choices[i];
out:
    return status;
}

static void add_combination(levels *l, const combination *c)
{
    if (l->n_combinations == MOST_COMBINATIONS || *l->work_left <= 0)
        l->complete = false;
    else
        l->list[l->n_combinations++] = *c;
}

/* Walk the choices of `rank` and of the ranks after it. `c` has the levels so far; c->ns is the time with
 * every open class at its level alone. */
static void combine(levels *l, int rank, combination *c, int64_t most[][TSR_MAX_DEVICES], double best_ns)
{
    double repeats = class_at(l, rank)->repeats, least = l->set->level[l->order[rank]], ns = c->ns;
    if (rank == l->n - 1 || rank == TSR_SPLIT_MAX_CLASSES - 1) { /* the second tells the compiler a bound */
        *l->work_left -= FLUID_STEPS * l->fit.n_devices;
        c->level[rank] = fmax(fluid_level(l, most), least);
        c->ns = ns + repeats * (c->level[rank] - least);
        if (c->ns < best_ns || *l->work_left <= 0)
            add_combination(l, c);
        c->ns = ns;
        return;
    }
    for (int64_t i = 0; i < l->n_choices[rank] && l->complete; i++) {
        c->level[rank] = l->choices[rank][i];
        c->ns = ns + repeats * (c->level[rank] - least);
        if (c->ns >= best_ns)
            break;
        most_within(l, rank, c->level[rank], most[rank]);
        combine(l, rank + 1, c, most, best_ns);
    }
    c->ns = ns;
}

/* Whether whole granules fit at the given levels. */
static tsr_status place(levels *l, const double *level, int64_t *work_left, bool *fits_out,
                        int64_t placed[][TSR_MAX_DEVICES])
{
    int64_t most[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    for (int i = 0; i < l->n; i++)
        most_within(l, i, level[i], most[i]);
    return tsr_split_place(&l->fit, most, work_left, fits_out, placed);
}

/* How many granules the last class may take at a level, in all. */
static int64_t last_within(const levels *l, double level)
{
    int64_t most[TSR_MAX_DEVICES], sum = 0;
    most_within(l, l->n - 1, level, most);
    for (int d = 0; d < l->fit.n_devices; d++)
        sum += most[d];
    return sum;
}

/* Find counts at the levels of one combination; the level of the last class is raised as little as whole
 * granules need. *found_out is false if no counts beat best_ns. */
static tsr_status search_combination(levels *l, combination *c, int64_t *work_left, double best_ns,
                                     bool *found_out, int64_t found[][TSR_MAX_DEVICES])
{
    tsr_status status = TSR_OK;
    int64_t placed[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    int last = l->n - 1;
    double fails = c->level[last], works = fails;
    bool fits;
    TSR_TRY(place(l, c->level, work_left, found_out, found));
    if (!*found_out) {
        works = fails + (best_ns - c->ns) / class_at(l, last)->repeats;
        works = c->level[last] = fmin(works, longest_level(l, last));
        TSR_TRY(place(l, c->level, work_left, found_out, found));
    }
    while (*found_out && last_within(l, works) > last_within(l, fails) + 1) {
        double middle = fails + (works - fails) / 2;
        if (middle <= fails || middle >= works)
            break;
        c->level[last] = middle;
        TSR_TRY(place(l, c->level, work_left, &fits, placed));
        *(fits ? &works : &fails) = middle;
        if (fits)
            memcpy(found, placed, sizeof placed);
    }
out:
    return status;
}

/* Counts by rank as counts by class. */
static void by_class(const levels *l, const int64_t by_rank[][TSR_MAX_DEVICES],
                     int64_t counts[][TSR_MAX_DEVICES])
{
    memset(counts, 0, (size_t)l->set->problem->n_classes * sizeof *counts);
    for (int i = 0; i < l->n; i++)
        memcpy(counts[l->order[i]], by_rank[i], sizeof *counts);
}

static int compare_combinations(const void *a, const void *b)
{
    const combination *x = a, *y = b;
    if (x->ns != y->ns)
        return x->ns < y->ns ? -1 : 1;
    return memcmp(x->level, y->level, sizeof x->level); /* any fixed order */
}

/* Try the combinations in order. When no work is left, the best result so far is returned, unproven. */
static tsr_status search_all(levels *l, int64_t *work_left, double *best_ns, bool *found_out,
                             int64_t count_out[][TSR_MAX_DEVICES])
{
    tsr_status status = TSR_OK;
    qsort(l->list, (size_t)l->n_combinations, sizeof *l->list, compare_combinations);
    for (int64_t i = 0; i < l->n_combinations && l->list[i].ns < *best_ns && status == TSR_OK; i++) {
        int64_t found[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES], counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
        tsr_cost_result result;
        bool fits = false;
        status = search_combination(l, &l->list[i], work_left, *best_ns, &fits, found);
        if (!fits || (status != TSR_OK && status != TSR_ERR_UNSUPPORTED))
            continue;
        by_class(l, found, counts);
        tsr_cost_evaluate(l->set->problem, counts, &result);
        if (result.total_ns >= *best_ns)
            continue;
        *best_ns = result.total_ns;
        *found_out = true;
        memcpy(count_out, counts, (size_t)l->set->problem->n_classes * sizeof *counts);
    }
    if (status != TSR_ERR_UNSUPPORTED)
        return status;
    l->complete = false;
    return TSR_OK;
}

static void set_up(levels *l)
{
    const tsr_cost_problem *p = l->set->problem;
    l->fit.n_devices = p->n_devices;
    size_t bytes[TSR_SPLIT_MAX_CLASSES];
    memcpy(l->fit.room_bytes, l->set->room, sizeof l->fit.room_bytes);
    for (int c = 0; c < p->n_classes; c++)
        bytes[c] = p->classes[c].n_granules ? p->classes[c].granule_bytes : 0;
    l->n = l->fit.n_classes = tsr_split_order(bytes, p->n_classes, l->order);
    for (int i = 0; i < l->n; i++) {
        l->fit.n_granules[i] = class_at(l, i)->n_granules;
        l->fit.granule_bytes[i] = (int64_t)class_at(l, i)->granule_bytes;
    }
}

tsr_status tsr_cost_under_memory(const tsr_cost_set *set, int64_t *work_left, double *best_ns,
                                 bool *found_out, int64_t count_out[][TSR_MAX_DEVICES], bool *proven_inout)
{
    tsr_status status = TSR_OK;
    levels *l = NULL;
    combination first = {.ns = set->sync_ns};
    int64_t most[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    TSR_TRY(TSR_NEW(&l, "the search for a split"));
    l->set = set;
    l->work_left = work_left;
    l->complete = true;
    set_up(l);
    for (int i = 0; i < l->n; i++)
        first.ns += class_at(l, i)->repeats * set->level[l->order[i]];
    for (int i = 0; i < l->n - 1; i++) {
        double slack = (*best_ns - first.ns) / class_at(l, i)->repeats; /* infinite until a split is found */
        TSR_TRY(list_choices(l, i, set->level[l->order[i]] + slack));
    }
    TSR_TRY(tsr_mem_array(MOST_COMBINATIONS, sizeof *l->list, "the search for a split", &l->list));
    combine(l, 0, &first, most, *best_ns);
    *found_out = false;
    TSR_TRY(search_all(l, work_left, best_ns, found_out, count_out));
    *proven_inout = *proven_inout && l->complete;
out:
    if (l) {
        for (int i = 0; i < l->n; i++)
            tsr_mem_free(l->choices[i]);
        tsr_mem_free(l->list);
    }
    tsr_mem_free(l);
    return status;
}
