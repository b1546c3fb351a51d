/* The fastest pipeline, as the shortest path over states (devices used, the last set, layers done) whose
 * prices are bounds until exact prices are needed: see pipeline.h. */
#include "split/search/pipeline.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "split/search/optimize.h"
#include "split/search/optimize_level.h"
#include "split/search/pipeline_stage.h"

enum { MAX_SETS = 1 << TSR_PIPELINE_ALL_SETS };

/* Work of tsr_cost_optimize_set() and transitions between states over the whole search: tens of milliseconds
 * each, on an idle machine. */
static const int64_t MOST_WORK = INT64_C(1) << 22, MOST_TRANSITIONS = INT64_C(1) << 25;
/* Times that differ by rounding only are equal. */
static const double SAME = 1 + 1e-12;

/* Sets are bits of units. A unit is a device, or several neighbouring devices if there are many. */
typedef struct search {
    const tsr_pipeline_problem *p;
    int n_units, n_sets;
    tsr_device_set unit[TSR_PIPELINE_ALL_SETS];
    bool alike_before[TSR_PIPELINE_ALL_SETS]; /* a unit is equal to the one before it */
    tsr_device_set devices[MAX_SETS];
    int64_t room[MAX_SETS];
    int64_t layer_bytes, end_bytes[TSR_STAGE_ROLES];
    double speed[TSR_MAX_DEVICES]; /* most bytes of any class per ns */
    int64_t device_room[TSR_MAX_DEVICES];
    double least_fixed_ns; /* of a layer, on any device */
    double layer_sync_ns[MAX_SETS];
    double layer_ns[MAX_SETS]; /* one layer, without regard to memory; of two parts, a bound */
    double end_ns[TSR_STAGE_ROLES][MAX_SETS];
    double least_layer[MAX_SETS], least_output[MAX_SETS]; /* over all subsets */
    double hand_ns[TSR_PIPELINE_ALL_SETS][MAX_SETS], hand_output_ns[TSR_PIPELINE_ALL_SETS][MAX_SETS];
    double least_hand[TSR_PIPELINE_ALL_SETS][MAX_SETS]; /* to any unit of a set */
    int row[MAX_SETS];                                  /* index of a set in the base-3 numbering of states */
    double *price; /* [n_sets][roles][n_layers + 1] of a stage: exact or a bound */
    bool *exact;   /* [n_sets][roles][n_layers + 1] the price is exact, not a bound */
    double *done;  /* [3^n_units][n_layers + 1]: by state and number of layers done, the least time so far */
    bool *alive;   /* [3^n_units] */
    double *arrived; /* [n_layers + 1]: the least time until a set has the activations, before its layers */
    int *from;       /* [n_layers + 1]: the previous set */
    int64_t work_left, transitions_left;
    bool proven;
    tsr_pipeline best; /* total_ns INFINITY: none yet */
} search;

/* A path, last stage first. */
typedef struct path {
    int n;
    double ns;
    int sets[TSR_PIPELINE_ALL_SETS];
    int64_t layers[TSR_PIPELINE_ALL_SETS];
    int used; /* by all stages but the last */
} path;

static size_t price_at(const search *s, int set, tsr_stage_role role, int64_t n_layers)
{
    return ((size_t)set * TSR_STAGE_ROLES + role) * (size_t)(s->p->n_layers + 1) + (size_t)n_layers;
}

/* A state is three kinds of units: unused, used, used by the last set (`last` is part of `used`). */
static size_t state_of(const search *s, int used, int last)
{
    return (size_t)(s->row[used] + s->row[last]);
}

static double *done_at(const search *s, int used, int last)
{
    return s->done + state_of(s, used, last) * (size_t)(s->p->n_layers + 1);
}

static int first_unit(int set)
{
    return __builtin_ctz((unsigned)set);
}

/* -- units -- */

static uint64_t swapped(uint64_t set, int a, int b)
{
    uint64_t bits = ((set >> a) ^ (set >> b)) & 1;
    return set ^ (bits << a | bits << b);
}

/* Whether two neighbours may change places in any pipeline: their speeds, rooms, all-reduces and transfers
 * are the same. Since they are neighbours, the exchange does not change which device sends. */
static bool interchangeable(const search *s, int a, int b)
{
    const tsr_pipeline_problem *p = s->p;
    bool same = tsr_pipeline_room(p, a) == tsr_pipeline_room(p, b);
    for (int c = 0; c < TSR_PIPELINE_CLASSES; c++)
        same = same && tsr_cost_alike(&p->classes[c], a, b);
    for (int set = 1; same && p->sync_ns && set < s->n_sets; set++)
        for (int c = 0; c < TSR_PIPELINE_CLASSES; c++)
            same = same && p->sync_ns(p->user, s->devices[set], c) ==
                               p->sync_ns(p->user, swapped(s->devices[set], a, b), c);
    same = same && (!p->machine || p->machine[a] == p->machine[b]);
    for (int i = 0; i < 2; i++) {
        const double(*ns)[TSR_MAX_DEVICES] = i ? p->output_transfer_ns : p->transfer_ns;
        same = same && (!ns || ns[a][b] == ns[b][a]);
        for (int d = 0; same && ns && d < p->n_devices; d++)
            same = d == a || d == b || (ns[a][d] == ns[b][d] && ns[d][a] == ns[d][b]);
    }
    return same;
}

/* Make units of the devices with room: one device per unit if there are few enough, so that the search over
 * paths is not too long. */
static void find_units(search *s)
{
    const tsr_pipeline_problem *p = s->p;
    int usable[TSR_MAX_DEVICES], n = 0, most = TSR_PIPELINE_ALL_SETS;
    for (int d = 0; d < p->n_devices; d++)
        if (tsr_pipeline_room(p, d) > 0)
            usable[n++] = d;
    for (double work = pow(3, most), layers = (double)p->n_layers;
         most > 1 && work * layers * layers > 4 * (double)MOST_TRANSITIONS; work /= 3)
        most--;
    s->n_units = TSR_MIN(n, most);
    s->n_sets = 1 << s->n_units;
    s->proven = n <= most;
    for (int i = 0; i < n; i++)
        s->unit[i * s->n_units / n] |= tsr_device_set_one(usable[i]);
    for (int u = 0, digit = 1; u < s->n_units; u++, digit *= 3)
        s->row[1 << u] = digit;
    for (int set = 1; set < s->n_sets; set++) {
        s->devices[set] = s->devices[set & (set - 1)] | s->unit[first_unit(set)];
        if (set & (set - 1))
            s->row[set] = s->row[set & (set - 1)] + s->row[set & -set];
    }
    for (int u = 1; s->proven && u < s->n_units; u++)
        s->alike_before[u] = interchangeable(s, usable[u - 1], usable[u]);
}

/* Of equal units the first ones are used first. */
static bool is_first_choice(const search *s, int used, int set)
{
    for (int u = 1; u < s->n_units; u++)
        if (s->alike_before[u] && set >> u & 1 && !((used | set) >> (u - 1) & 1))
            return false;
    return true;
}

/* -- prices -- */

/* Times of sets without regard to memory, or what these times are at least. */
static void find_bounds(search *s, int set)
{
    const tsr_pipeline_problem *p = s->p;
    double level[TSR_PIPELINE_CLASSES], sync[TSR_PIPELINE_CLASSES];
    for (int c = 0; c < TSR_PIPELINE_CLASSES; c++) {
        int64_t cap[TSR_MAX_DEVICES];
        for (int d = 0; d < p->n_devices; d++)
            cap[d] = tsr_device_set_has(s->devices[set], d) ? p->classes[c].n_granules : 0;
        level[c] = tsr_cost_walk_bound(&p->classes[c], p->n_devices, cap);
        sync[c] = p->sync_ns && p->classes[c].n_granules ? p->sync_ns(p->user, s->devices[set], c) : 0;
    }
    TSR_FOR_DEVICES(d, s->devices[set])
        s->room[set] = TSR_MIN(s->room[set] + tsr_pipeline_room(p, d), INT64_MAX / 2);
    s->layer_sync_ns[set] = sync[TSR_PIPELINE_ATTENTION] + sync[TSR_PIPELINE_FFN];
    s->layer_ns[set] = level[TSR_PIPELINE_ATTENTION] + level[TSR_PIPELINE_FFN] + s->layer_sync_ns[set];
    s->end_ns[TSR_STAGE_FIRST][set] = sync[TSR_PIPELINE_OUTPUT];
    s->end_ns[TSR_STAGE_LAST][set] = level[TSR_PIPELINE_OUTPUT];
    s->end_ns[TSR_STAGE_ONLY][set] = level[TSR_PIPELINE_OUTPUT] + sync[TSR_PIPELINE_OUTPUT];
}

/* Bounds over all subsets of a set; smaller sets are already done. */
static void find_least(search *s, int set)
{
    s->least_layer[set] = s->layer_ns[set];
    s->least_output[set] = s->end_ns[TSR_STAGE_LAST][set];
    for (int rest = set; rest; rest &= rest - 1) {
        int without = set & ~(rest & -rest);
        s->least_layer[set] = fmin(s->least_layer[set], s->least_layer[without]);
        s->least_output[set] = fmin(s->least_output[set], s->least_output[without]);
    }
    for (int u = 0; u < s->n_units; u++) {
        int sender = tsr_device_set_first(s->unit[u]);
        tsr_device_set from = tsr_device_set_one(sender), to = s->devices[set];
        s->hand_ns[u][set] = tsr_pipeline_transfer(s->p, false, from, to);
        s->hand_output_ns[u][set] = tsr_pipeline_transfer(s->p, true, from, to);
        s->least_hand[u][set] = fmin(s->hand_ns[u][set], s->hand_output_ns[u][set]);
        if (set & (set - 1)) /* several units: a copy to all is at least as long as one to the nearest */
            s->least_hand[u][set] = fmin(s->least_hand[u][set & -set], s->least_hand[u][set & (set - 1)]);
    }
}

/* A bound under memory, with bytes as a fluid: no device does more than its room holds, and no device does
 * more bytes per time than in the class in which it is fastest. INFINITY: all rooms together are too
 * small. */
static double fluid_ns(const search *s, int set, tsr_stage_role role, int64_t n_layers)
{
    int64_t bytes = n_layers * s->layer_bytes + s->end_bytes[role];
    if (bytes > s->room[set])
        return INFINITY;
    double left = (double)(role == TSR_STAGE_FIRST ? n_layers * s->layer_bytes : bytes), ns = 0;
    for (tsr_device_set full = 0, before = 1; full != before;) {
        double speed = 0;
        for (int d = 0; d < s->p->n_devices; d++)
            speed += tsr_device_set_has(s->devices[set] & ~full, d) ? s->speed[d] : 0;
        ns = speed > 0 ? left / speed : ns;
        before = full;
        TSR_FOR_DEVICES(d, s->devices[set] & ~full)
            if (s->speed[d] * ns > (double)s->device_room[d]) {
                full |= tsr_device_set_one(d);
                left -= (double)s->device_room[d];
            }
    }
    return ns + (double)n_layers * (s->layer_sync_ns[set] + s->least_fixed_ns) +
           (role & TSR_STAGE_FIRST ? s->end_ns[TSR_STAGE_FIRST][set] : 0);
}

static void find_speeds(search *s)
{
    const tsr_pipeline_problem *p = s->p;
    s->least_fixed_ns = INFINITY;
    for (int d = 0; d < p->n_devices; d++) {
        s->device_room[d] = tsr_pipeline_room(p, d);
        for (int c = 0; c < TSR_PIPELINE_CLASSES; c++) {
            const tsr_cost_class *k = &p->classes[c];
            size_t bytes =
                c == TSR_PIPELINE_OUTPUT ? TSR_MAX(k->granule_bytes, p->shared_bytes) : k->granule_bytes;
            if (k->n_granules > 0 && s->device_room[d] > 0)
                s->speed[d] = fmax(s->speed[d], (double)bytes / k->granule_ns[d]);
            if (c != TSR_PIPELINE_OUTPUT && s->device_room[d] > 0)
                s->least_fixed_ns = fmin(s->least_fixed_ns, k->fixed_ns[d]);
        }
    }
}

/* The set with the same number of devices of each kind that has the first devices: it takes the same time. */
static int first_like(const search *s, int set)
{
    int like = 0;
    for (int u = 0, next = 0; u < s->n_units; u++) {
        if (!s->alike_before[u])
            next = u;
        if (set >> u & 1)
            like |= 1 << next++;
    }
    return like;
}

static void copy_bounds(search *s, int set, int like)
{
    s->room[set] = s->room[like];
    s->layer_ns[set] = s->layer_ns[like];
    s->layer_sync_ns[set] = s->layer_sync_ns[like];
    for (int role = 0; role < TSR_STAGE_ROLES; role++)
        s->end_ns[role][set] = s->end_ns[role][like];
    memcpy(&s->price[price_at(s, set, TSR_STAGE_INNER, 0)], &s->price[price_at(s, like, TSR_STAGE_INNER, 0)],
           (price_at(s, 1, TSR_STAGE_INNER, 0)) * sizeof *s->price);
}

static void find_prices(search *s)
{
    find_speeds(s);
    s->layer_bytes = tsr_pipeline_layer_bytes(s->p);
    s->least_layer[0] = s->least_output[0] = INFINITY;
    for (int role = 0; role < TSR_STAGE_ROLES; role++)
        s->end_bytes[role] = tsr_stage_end_bytes(s->p, role);
    for (int set = 1; set < s->n_sets; set++) {
        int like = first_like(s, set);
        if (like != set) {
            copy_bounds(s, set, like);
            find_least(s, set);
            continue;
        }
        find_bounds(s, set);
        find_least(s, set);
        for (int role = 0; role < TSR_STAGE_ROLES; role++)
            for (int64_t l = 0; l <= s->p->n_layers; l++)
                s->price[price_at(s, set, role, l)] =
                    fmax((double)l * s->layer_ns[set] + s->end_ns[role][set], fluid_ns(s, set, role, l));
    }
}

/* Enter the price of a stage: it takes `ns`, or at least `ns`. The price also bounds the same stage with more
 * layers, each of which has no more room, and, if memory is not short, with fewer layers, for which it is not
 * short either. */
static void set_price(search *s, int set, tsr_stage_role role, int64_t n_layers, double ns, bool is_exact)
{
    double *price = &s->price[price_at(s, set, role, 0)];
    bool *exact = &s->exact[price_at(s, set, role, 0)];
    bool is_bound = ns <= ((double)n_layers * s->layer_ns[set] + s->end_ns[role][set]) * SAME;
    for (int64_t l = n_layers; l <= s->p->n_layers; l++)
        if (!exact[l])
            price[l] = fmax(price[l], ns + (double)(l - n_layers) * s->layer_ns[set]);
    if (!is_exact)
        return;
    price[n_layers] = ns;
    for (int64_t l = 0; is_bound && l < n_layers; l++)
        exact[l] = true;
    exact[n_layers] = true;
}

/* -- paths -- */

/* The least time of the rest, after `n_layers` layers of which `last` did the last. */
static double rest_of(const search *s, int unused, int last, int64_t n_layers)
{
    int64_t left = s->p->n_layers - n_layers;
    if (!unused || s->end_bytes[TSR_STAGE_LAST] + left * s->layer_bytes > s->room[unused])
        return INFINITY;
    return (double)left * s->least_layer[unused] + s->least_output[unused] +
           s->least_hand[first_unit(last)][unused];
}

/* Set s->arrived and s->from for `set` after the units in `used`. False: no state leads there. */
static bool arrive(search *s, int used, int set)
{
    int64_t n = s->p->n_layers;
    bool any = used == 0;
    for (int64_t m = 0; m <= n; m++) {
        s->arrived[m] = used == 0 && m == 0 ? 0 : INFINITY;
        s->from[m] = 0;
    }
    for (int last = used; last; last = (last - 1) & used) {
        if (!s->alive[state_of(s, used, last)])
            continue;
        const double *done = done_at(s, used, last);
        for (int64_t m = 1; m <= n; m++) {
            double ns = done[m] + (m < n ? s->hand_ns : s->hand_output_ns)[first_unit(last)][set];
            if (ns < s->arrived[m]) {
                s->arrived[m] = ns;
                s->from[m] = last;
                any = true;
            }
        }
    }
    return any;
}

/* End paths: `set` is the last stage after the units in `used`. */
static void finish(const search *s, int used, int set, path *shortest)
{
    int64_t n = s->p->n_layers;
    const double *price = &s->price[price_at(s, set, used ? TSR_STAGE_LAST : TSR_STAGE_ONLY, 0)];
    for (int64_t m = 0; m <= n; m++) {
        double ns = s->arrived[m] + price[n - m];
        if (ns * SAME < shortest->ns) {
            shortest->ns = ns;
            shortest->used = used;
            shortest->sets[0] = set;
            shortest->layers[0] = n - m;
        }
    }
}

/* Extend paths: more stages follow `set`. */
static void go_on(search *s, int used, int set)
{
    int64_t n = s->p->n_layers;
    double *done = done_at(s, used | set, set);
    const double *price = &s->price[price_at(s, set, used ? TSR_STAGE_INNER : TSR_STAGE_FIRST, 0)];
    int unused = (s->n_sets - 1) & ~(used | set);
    bool alive = false;
    for (int64_t m = 0; m <= n; m++)
        done[m] = INFINITY;
    for (int64_t m = 0; m < n; m++) {
        if (isinf(s->arrived[m]))
            continue;
        for (int64_t l = 1; l <= n - m; l++)
            done[m + l] = TSR_MIN(done[m + l], s->arrived[m] + price[l]);
        s->transitions_left -= n - m;
    }
    for (int64_t m = 1; m <= n; m++) {
        if (!tsr_pipeline_may_end(s->p, m) || done[m] + rest_of(s, unused, set, m) >= s->best.total_ns)
            done[m] = INFINITY;
        alive = alive || !isinf(done[m]);
    }
    s->alive[state_of(s, used | set, set)] = alive;
}

/* Find the stages before the last one, from the states that led to it. */
static void trace(search *s, path *shortest)
{
    int used = shortest->used, set = shortest->sets[0];
    int64_t end = s->p->n_layers - shortest->layers[0];
    shortest->n = 1;
    while (used) {
        arrive(s, used, set);
        set = s->from[end];
        used &= ~set;
        double ns = done_at(s, used | set, set)[end];
        const double *price = &s->price[price_at(s, set, used ? TSR_STAGE_INNER : TSR_STAGE_FIRST, 0)];
        int64_t l = 1;
        arrive(s, used, set);
        while (l < end && s->arrived[end - l] + price[l] != ns)
            l++;
        shortest->sets[shortest->n] = set;
        shortest->layers[shortest->n++] = l;
        end -= l;
    }
}

static void find_path(search *s, path *shortest)
{
    int all = s->n_sets - 1;
    size_t n_states = (size_t)s->row[all] * 2 + 1;
    *shortest = (path){.ns = s->best.total_ns};
    memset(s->alive, 0, n_states * sizeof *s->alive);
    for (int used = 0; used < all; used++)
        for (int set = all & ~used; set; set = (set - 1) & all & ~used) {
            if (!is_first_choice(s, used, set) || !arrive(s, used, set))
                continue;
            finish(s, used, set, shortest);
            go_on(s, used, set);
        }
    if (shortest->sets[0])
        trace(s, shortest);
}

/* -- the whole -- */

/* Make the prices along a path exact, until it can no longer be the best. *all_exact_out: whether they were
 * exact before. A path whose stages all fit is a pipeline, and the best so far is kept. */
static tsr_status try_path(search *s, const path *shortest, bool *all_exact_out)
{
    tsr_status status = TSR_OK;
    tsr_pipeline *new = NULL;
    bool fits = true, proven = true;
    *all_exact_out = true;
    TSR_TRY(TSR_NEW(&new, "the search for stages"));
    for (int i = shortest->n - 1; i >= 0 && fits; i--) {
        tsr_stage_role role = (i == shortest->n - 1) * TSR_STAGE_FIRST + (i == 0) * TSR_STAGE_LAST;
        tsr_stage_problem stage;
        tsr_cost_result result;
        int set = shortest->sets[i];
        size_t at = price_at(s, set, role, shortest->layers[i]);
        double slack = s->best.total_ns - shortest->ns, limit = s->price[at] * SAME + slack;
        *all_exact_out = *all_exact_out && s->exact[at];
        tsr_stage_problem_init(s->p, shortest->layers[i], role, &stage);
        TSR_TRY(tsr_cost_optimize_set(&stage.cost, s->devices[set], limit, &s->work_left, &result));
        proven = proven && result.proven;
        fits = result.devices != 0;
        set_price(s, set, role, shortest->layers[i], result.total_ns, fits || isinf(limit));
        tsr_pipeline_stage *to = &new->stages[new->n_stages++];
        to->devices = result.devices;
        to->n_layers = shortest->layers[i];
        memcpy(to->counts, result.counts, sizeof to->counts);
    }
    s->proven = s->proven && proven;
    if (fits) {
        new->total_ns = tsr_pipeline_evaluate(s->p, new);
        if (new->total_ns * SAME < s->best.total_ns)
            s->best = *new;
    }
out:
    tsr_mem_free(new);
    return status;
}

/* Try pipelines of one stage, so that the search starts with a good result: the sets are tried in the order
 * of their bounds. */
static tsr_status try_single_stages(search *s)
{
    tsr_status status = TSR_OK;
    bool exact = false;
    while (!exact && s->work_left > 0) {
        path single = {.n = 1, .ns = s->best.total_ns, .layers = {s->p->n_layers}};
        for (int set = 1; set < s->n_sets; set++) {
            double ns = s->price[price_at(s, set, TSR_STAGE_ONLY, s->p->n_layers)];
            if (is_first_choice(s, 0, set) && ns * SAME < single.ns) {
                single.ns = ns;
                single.sets[0] = set;
            }
        }
        if (!single.sets[0])
            break;
        TSR_TRY(try_path(s, &single, &exact));
    }
out:
    return status;
}

static tsr_status search_create(const tsr_pipeline_problem *p, search **search_out)
{
    tsr_status status = TSR_OK;
    search *s = NULL;
    TSR_TRY(TSR_NEW(&s, "the search for stages"));
    s->p = p;
    s->work_left = MOST_WORK;
    s->transitions_left = MOST_TRANSITIONS;
    s->best.total_ns = INFINITY;
    find_units(s);
    size_t n_prices = (size_t)s->n_sets * TSR_STAGE_ROLES, n_states = (size_t)s->row[s->n_sets - 1] * 2 + 1,
           n_layers = (size_t)p->n_layers + 1;
    TSR_TRY(tsr_mem_array(n_prices * n_layers, sizeof *s->price, "prices of stages", &s->price));
    TSR_TRY(tsr_mem_array(n_prices * n_layers, sizeof *s->exact, "prices of stages", &s->exact));
    TSR_TRY(tsr_mem_array(n_states * n_layers, sizeof *s->done, "the search for stages", &s->done));
    TSR_TRY(tsr_mem_array(n_states, sizeof *s->alive, "the search for stages", &s->alive));
    TSR_TRY(tsr_mem_array(n_layers, sizeof *s->arrived, "the search for stages", &s->arrived));
    TSR_TRY(tsr_mem_array(n_layers, sizeof *s->from, "the search for stages", &s->from));
    find_prices(s);
out:
    *search_out = s;
    return status;
}

static void search_free(search *s)
{
    if (!s)
        return;
    tsr_mem_free(s->price);
    tsr_mem_free(s->exact);
    tsr_mem_free(s->done);
    tsr_mem_free(s->alive);
    tsr_mem_free(s->arrived);
    tsr_mem_free(s->from);
    tsr_mem_free(s);
}

/* Start with the results of the specialised searches. The search over single stages tries more sets if there
 * are many devices. */
static tsr_status try_other_shapes(search *s)
{
    tsr_status status = TSR_OK;
    bool no_room = false;
    tsr_pipeline *layers = NULL;
    tsr_pipeline_problem without_caller = *s->p;
    tsr_stage_problem stage;
    tsr_cost_result result;
    TSR_TRY(TSR_NEW(&layers, "the search for stages"));
    without_caller.no_room = &no_room;
    tsr_stage_problem_init(s->p, s->p->n_layers, TSR_STAGE_ONLY, &stage);
    stage.cost.no_room = &no_room;
    if (!s->proven) {
        status = tsr_split_optimize(&stage.cost, &result);
        if (status == TSR_OK && result.total_ns < s->best.total_ns) {
            s->best = (tsr_pipeline){.n_stages = 1, .total_ns = result.total_ns};
            s->best.stages[0].devices = result.devices;
            s->best.stages[0].n_layers = s->p->n_layers;
            memcpy(s->best.stages[0].counts, result.counts, sizeof s->best.stages[0].counts);
        }
        TSR_TRY(no_room ? TSR_OK : status);
    }
    no_room = false;
    status = tsr_pipeline_layers(&without_caller, layers);
    if (status == TSR_OK && layers->total_ns < s->best.total_ns)
        s->best = *layers;
    if (no_room)
        status = TSR_OK;
out:
    tsr_mem_free(layers);
    return status;
}

/* As if walks had one part: both on the same device, or one of the two. Prices are exact sooner then. */
static tsr_status try_as_one_part(search *s)
{
    tsr_status status = TSR_OK;
    tsr_pipeline_problem one = *s->p;
    tsr_cost_class classes[TSR_PIPELINE_CLASSES];
    tsr_pipeline *best = NULL;
    bool any = false, no_room = false;
    one.classes = classes;
    one.no_room = &no_room;
    TSR_TRY(TSR_NEW(&best, "the search for stages"));
    for (int c = 0; c < TSR_PIPELINE_CLASSES; c++)
        any = any || s->p->classes[c].has_parts;
    for (int part = TSR_COST_PARTS; any && part >= 0 && !no_room; part--) {
        for (int c = 0; c < TSR_PIPELINE_CLASSES; c++)
            classes[c] = tsr_cost_as_one_part(&s->p->classes[c], part);
        status = tsr_pipeline_optimize(&one, best);
        TSR_TRY(no_room ? TSR_OK : status);
        if (!no_room)
            best->total_ns = tsr_pipeline_evaluate(s->p, best);
        if (!no_room && best->total_ns < s->best.total_ns)
            s->best = *best;
    }
out:
    tsr_mem_free(best);
    return status;
}

tsr_status tsr_pipeline_optimize(const tsr_pipeline_problem *p, tsr_pipeline *pipeline_out)
{
    tsr_status status = TSR_OK;
    search *s = NULL;
    path shortest;
    bool exact = false;
    tsr_pipeline_problem apart = *p; /* prices of stages bound sums of times, without what chunks save */
    apart.chunked = NULL;
    TSR_TRY(tsr_pipeline_check(p));
    TSR_TRY(search_create(&apart, &s));
    TSR_TRY(try_other_shapes(s));
    TSR_TRY(try_as_one_part(s));
    TSR_TRY(try_single_stages(s));
    while (!exact) {
        find_path(s, &shortest);
        if (!shortest.sets[0])
            break; /* no path can be shorter than the best pipeline */
        if (s->work_left <= 0 || s->transitions_left <= 0) {
            s->proven = false;
            break;
        }
        TSR_TRY(try_path(s, &shortest, &exact));
    }
    if (isinf(s->best.total_ns))
        TSR_TRY(tsr_pipeline_fail(p));
    /* A path over a set in which some device got no work may assume a transfer that does not happen. */
    if (exact && s->best.total_ns > shortest.ns * SAME)
        s->proven = false;
    s->best.proven = s->proven && !p->walk_ns;
    *pipeline_out = s->best;
out:
    search_free(s);
    return status;
}
