/* One set of devices whose memory ties the classes together.
 *
 * A split is as fast as its levels: the time of each class on its slowest device, or of each part of a class
 * with two parts. Only costs of whole granules matter as levels, so for all but the last, of the class with
 * the smallest granules, they are listed, every combination is completed by the lowest last level that memory
 * could possibly allow, and the combinations are tried in the order of the time that this gives. "Possibly"
 * is bytes as a fluid: by max-flow min-cut, classes with at most most[c][d] granules per device fit the rooms
 * if for every group G of classes
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
    FLUID_STEPS = TSR_COST_LEVEL_WORK, /* what finding the last level of a combination takes, per device */
    MAX_LEVELS = TSR_COST_PARTS * TSR_SPLIT_MAX_CLASSES
};

typedef struct combination {
    double ns;                /* least time of a step, all-reduces included */
    double level[MAX_LEVELS]; /* the last: as a fluid */
} combination;

/* A level of a combination: of a class, or of one of its parts. */
typedef struct level {
    int rank, part;
    const tsr_cost_class *of;
    tsr_cost_times times;
    const int64_t *cap; /* the class's */
    double least;       /* of the class, or of this part, alone */
    double *choices;    /* ascending */
    int64_t n_choices;
} level;

typedef struct levels {
    const tsr_cost_set *set;
    int n;                            /* classes that have granules */
    int order[TSR_SPLIT_MAX_CLASSES]; /* by rank: the largest granules first */
    tsr_split_fit_problem fit;        /* by rank */
    level level[MAX_LEVELS];          /* by rank, then by part */
    int n_levels;
    combination *list;
    int n_combinations, capacity;
    tsr_status status; /* of growing the list */
    int64_t *work_left;
    bool complete; /* all that could be faster than the best are in the list */
    bool ended;    /* the list takes no more */
} levels;

/* Whether the level before is that of another part of the class. */
static bool is_second(const levels *l, int i)
{
    return i > 0 && l->level[i].part > 0;
}

/* Granules that devices may have at a level, within those that an earlier part of the class allows. */
static void most_within(const levels *l, int i, double ns, int64_t most[][TSR_MAX_DEVICES])
{
    const level *at = &l->level[i];
    const int64_t *cap = is_second(l, i) ? most[i - 1] : at->cap;
    for (int d = 0; d < l->fit.n_devices; d++)
        most[i][d] = tsr_cost_most(at->times, d, ns, cap[d]);
}

/* By rank, of most[n_levels]: what all parts of a class allow is with its last part. */
static void most_by_rank(const levels *l, int64_t most[][TSR_MAX_DEVICES],
                         int64_t most_of_rank[][TSR_MAX_DEVICES])
{
    for (int i = 0; i < l->n_levels; i++)
        memcpy(most_of_rank[l->level[i].rank], most[i], sizeof *most);
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
static double longest_level(const level *at, int n_devices)
{
    double longest = 0;
    for (int d = 0; d < n_devices; d++)
        longest = fmax(longest, tsr_cost_time(at->times, d, at->cap[d]));
    return longest;
}

/* The lowest last level at which all classes flow, the others as they are; INFINITY: no such level. `most`
 * has the granules that the other levels allow; those of the last are added. */
static double fluid_level(const levels *l, int64_t most[][TSR_MAX_DEVICES])
{
    const int last = l->n_levels - 1;
    int64_t of_rank[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    double too_short = 0, enough = longest_level(&l->level[last], l->fit.n_devices);
    most_within(l, last, enough, most);
    most_by_rank(l, most, of_rank);
    if (!flows(l, of_rank))
        return INFINITY;
    for (;;) {
        double middle = too_short + (enough - too_short) / 2;
        if (middle <= too_short || middle >= enough)
            break;
        most_within(l, last, middle, most);
        memcpy(of_rank[l->n - 1], most[last], sizeof *most);
        *(flows(l, of_rank) ? &enough : &too_short) = middle;
    }
    return enough;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* List the costs of counts from the least level up to `longest`. */
static tsr_status list_choices(levels *l, level *at, double longest)
{
    tsr_status status = TSR_OK;
    int64_t n = 0, n_listed = 0, first[TSR_MAX_DEVICES], most[TSR_MAX_DEVICES];
    for (int d = 0; d < l->fit.n_devices; d++) {
        first[d] = TSR_MAX(tsr_cost_most(at->times, d, at->least, at->cap[d]), 1);
        most[d] = tsr_cost_most(at->times, d, longest, at->cap[d]);
        n += TSR_MAX(most[d] - first[d] + 1, 0);
    }
    if (n > MOST_COMBINATIONS) {
        l->complete = false;
        n = 0;
    }
    TSR_TRY(tsr_mem_array((size_t)n + 1, sizeof(double), "levels of a split", &at->choices));
    at->choices[n_listed++] = at->least;
    for (int d = 0; n > 0 && d < l->fit.n_devices; d++)
        for (int64_t k = first[d]; k <= most[d]; k++)
            if (tsr_cost_time(at->times, d, k) > at->least)
                at->choices[n_listed++] = tsr_cost_time(at->times, d, k);
    qsort(at->choices, (size_t)n_listed, sizeof *at->choices, compare_doubles);
    for (int64_t i = 0; i < n_listed; i++)
        if (i == 0 || at->choices[i] != at->choices[at->n_choices - 1])
            at->choices[at->n_choices++] = at->choices[i];
out:
    return status;
}

static void add_combination(levels *l, const combination *c)
{
    l->ended = l->n_combinations == MOST_COMBINATIONS || *l->work_left <= 0;
    if (!l->ended)
        l->status = tsr_mem_grow(&l->list, l->n_combinations, &l->capacity, 64, sizeof *l->list,
                                 "the search for a split");
    if (l->ended || l->status != TSR_OK) {
        l->ended = true;
        l->complete = false;
        return;
    }
    l->list[l->n_combinations++] = *c;
}

/* The least value of level i at those before it: of a second part, what the first part's allows. */
static double least_after(levels *l, int i, int64_t most[][TSR_MAX_DEVICES])
{
    const level *at = &l->level[i];
    if (!is_second(l, i))
        return at->least;
    *l->work_left -= TSR_COST_LEVEL_WORK * l->fit.n_devices;
    return tsr_cost_level(at->times, at->of->n_granules, l->fit.n_devices, most[i - 1]);
}

/* Walk the choices of level i and of those after it. `c` has the levels so far; c->ns is the time with every
 * open level at its least alone. */
static void combine(levels *l, int i, combination *c, int64_t most[][TSR_MAX_DEVICES], double best_ns)
{
    const level *at = &l->level[i];
    const double ns = c->ns, repeats = at->of->repeats, least = least_after(l, i, most);
    if (ns + repeats * (least - at->least) >= best_ns)
        return;
    if (i == l->n_levels - 1 || i == MAX_LEVELS - 1) { /* the second tells the compiler a bound */
        *l->work_left -= FLUID_STEPS * l->fit.n_devices;
        c->level[i] = fmax(fluid_level(l, most), least);
        c->ns = ns + repeats * (c->level[i] - at->least);
        if (c->ns < best_ns || *l->work_left <= 0)
            add_combination(l, c);
        c->ns = ns;
        return;
    }
    for (int64_t k = 0; k < at->n_choices && !l->ended; k++) {
        c->level[i] = at->choices[k];
        c->ns = ns + repeats * (c->level[i] - at->least);
        if (c->ns >= best_ns)
            break;
        if (c->level[i] < least)
            continue;
        most_within(l, i, c->level[i], most);
        combine(l, i + 1, c, most, best_ns);
    }
    c->ns = ns;
}

/* Whether whole granules fit at the given levels. */
static tsr_status place(levels *l, const double *ns, int64_t *work_left, bool *fits_out,
                        int64_t placed[][TSR_MAX_DEVICES])
{
    int64_t most[MAX_LEVELS][TSR_MAX_DEVICES], of_rank[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    for (int i = 0; i < l->n_levels; i++)
        most_within(l, i, ns[i], most);
    most_by_rank(l, most, of_rank);
    return tsr_split_place(&l->fit, of_rank, work_left, fits_out, placed);
}

/* How many granules the last level allows, in all, at `ns`. */
static int64_t last_within(const levels *l, double ns)
{
    const level *last = &l->level[l->n_levels - 1];
    int64_t sum = 0;
    for (int d = 0; d < l->fit.n_devices; d++)
        sum += tsr_cost_most(last->times, d, ns, last->cap[d]);
    return sum;
}

/* Find counts at the levels of one combination; the last level is raised as little as whole granules need.
 * *found_out is false if no counts beat best_ns. */
static tsr_status search_combination(levels *l, combination *c, int64_t *work_left, double best_ns,
                                     bool *found_out, int64_t found[][TSR_MAX_DEVICES])
{
    tsr_status status = TSR_OK;
    int64_t placed[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    const int last = l->n_levels - 1;
    double fails = c->level[last], works = fails;
    bool fits;
    TSR_TRY(place(l, c->level, work_left, found_out, found));
    if (!*found_out) {
        works = fails + (best_ns - c->ns) / l->level[last].of->repeats;
        works = c->level[last] = fmin(works, longest_level(&l->level[last], l->fit.n_devices));
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
    if (l->n_combinations > 0)
        qsort(l->list, (size_t)l->n_combinations, sizeof *l->list, compare_combinations);
    for (int i = 0; i < l->n_combinations && l->list[i].ns < *best_ns && status == TSR_OK; i++) {
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

static void add_levels(levels *l, int rank)
{
    const tsr_cost_class *c = &l->set->problem->classes[l->order[rank]];
    const int64_t *cap = l->set->cap[l->order[rank]];
    for (int part = 0; part < tsr_cost_n_parts(c); part++) {
        const tsr_cost_times times = tsr_cost_part(c, part);
        l->level[l->n_levels++] =
            (level){.rank = rank,
                    .part = part,
                    .of = c,
                    .times = times,
                    .cap = cap,
                    .least = tsr_cost_level(times, c->n_granules, l->set->problem->n_devices, cap)};
    }
    l->fit.n_granules[rank] = c->n_granules;
    l->fit.granule_bytes[rank] = (int64_t)c->granule_bytes;
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
    for (int i = 0; i < l->n; i++)
        add_levels(l, i);
}

tsr_status tsr_cost_under_memory(const tsr_cost_set *set, int64_t *work_left, double *best_ns,
                                 bool *found_out, int64_t count_out[][TSR_MAX_DEVICES], bool *proven_inout)
{
    tsr_status status = TSR_OK;
    levels *l = NULL;
    combination first = {.ns = set->sync_ns};
    int64_t most[MAX_LEVELS][TSR_MAX_DEVICES];
    TSR_TRY(TSR_NEW(&l, "the search for a split"));
    l->set = set;
    l->work_left = work_left;
    l->complete = true;
    set_up(l);
    for (int i = 0; i < l->n_levels; i++)
        first.ns += l->level[i].of->repeats * l->level[i].least;
    for (int i = 0; i < l->n_levels - 1; i++) {
        double slack = (*best_ns - first.ns) / l->level[i].of->repeats; /* infinite until a split is found */
        TSR_TRY(list_choices(l, &l->level[i], l->level[i].least + slack));
    }
    combine(l, 0, &first, most, *best_ns);
    TSR_TRY(l->status);
    *found_out = false;
    TSR_TRY(search_all(l, work_left, best_ns, found_out, count_out));
    *proven_inout = *proven_inout && l->complete;
out:
    if (l) {
        for (int i = 0; i < l->n_levels; i++)
            tsr_mem_free(l->level[i].choices);
        tsr_mem_free(l->list);
    }
    tsr_mem_free(l);
    return status;
}
