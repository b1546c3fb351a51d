/* The smallest packing, by asking the search whether there is a packing of at most N bytes.
 *
 * N is first the bound, which is usually the answer, then halfway between the largest impossible and the
 * smallest known size. Every N gets the same effort; the rest of the budget goes into further rounds with
 * four times the effort. Attempts for one N follow the sequence of Luby, Sinclair and Zuckerman ("Optimal
 * speedup of Las Vegas algorithms", 1993): 1, 1, 2, 1, 1, 2, 4, ... */
#include "alloc/pack/search.h"
#include "core/mem.h"
#include "core/status.h"

typedef struct exact {
    const tsr_pack_work *w;
    tsr_pack_search search;
    tsr_pack_budget *budget;
    int64_t capacity;
    int64_t grain; /* every total is a multiple of it */
    int64_t lower; /* proven: no packing is smaller */
    int64_t *best, best_total;
    int64_t *candidate;
} exact;

static int64_t luby(int64_t i) /* i = 1, 2, ... */
{
    for (;;) {
        int bits = 64 - __builtin_clzll((unsigned long long)i);
        if (i == (INT64_C(1) << bits) - 1)
            return INT64_C(1) << (bits - 1);
        i -= (INT64_C(1) << (bits - 1)) - 1;
    }
}

/* Search a packing of `target` bytes with about `most_nodes` placements; a packing that is found is kept. */
static tsr_pack_answer ask(exact *e, int64_t target, int64_t most_nodes)
{
    int64_t least = e->budget->nodes - TSR_MIN(most_nodes, e->budget->nodes);
    tsr_pack_answer answer = TSR_PACK_GAVE_UP;

    for (int attempt = 0;
         answer == TSR_PACK_GAVE_UP && e->budget->nodes > least && !tsr_pack_budget_is_over(e->budget);
         attempt++) {
        /* Twice the items: a dive places each item once, and some backtracking pays. */
        int64_t nodes = TSR_MIN(luby(attempt + 1) * 2 * e->search.n, e->budget->nodes - least);
        answer = tsr_pack_search_run(&e->search, target, attempt, nodes, e->budget, e->candidate);
    }
    if (answer == TSR_PACK_FOUND) {
        int64_t *swap = e->best;
        e->best = e->candidate;
        e->candidate = swap;
        e->best_total = tsr_pack_total(e->w, e->best);
    }
    /* With limited chunks `target` is the end of the last chunk, and other chunks may be partly empty, so
     * nothing is proven about the total. */
    if (answer == TSR_PACK_IMPOSSIBLE && e->w->chunk_bytes == INT64_MAX)
        e->lower = TSR_MAX(e->lower, target + e->grain);
    return answer;
}

/* Bisect until no size is left between the proven bound and the best packing. True: the search gave up on
 * some sizes at this effort. */
static bool close_gap(exact *e, int64_t effort, int64_t bound_effort)
{
    bool gave_up = false;
    int64_t floor = e->lower, target = floor; /* below `floor` nothing was found in this round */
    while (floor < e->best_total && !tsr_pack_budget_is_over(e->budget)) {
        tsr_pack_answer answer = ask(e, target, target == e->lower ? bound_effort : effort);
        gave_up = gave_up || answer == TSR_PACK_GAVE_UP;
        if (answer != TSR_PACK_FOUND)
            floor = target + e->grain;
        target = floor + (e->best_total - e->grain - floor) / 2 / e->grain * e->grain;
    }
    return gave_up;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void set_grain(exact *e)
{
    const tsr_pack_work *w = e->w;
    int64_t grain = 0;
    for (int i = 0; i < w->n; i++) {
        grain = common_divisor(grain, w->size[i]);
        grain = common_divisor(grain, w->alignment[i]);
        if (w->fixed_at[i] != TSR_PACK_FREE)
            grain = common_divisor(grain, w->fixed_at[i]);
    }
    if (w->chunk_bytes != INT64_MAX)
        grain = common_divisor(grain, w->chunk_bytes);
    e->grain = grain;
    e->lower = (w->bound + grain - 1) / grain * grain;
}

static void minimise(exact *e)
{
    int64_t effort = 8 * e->search.n;
    if (e->capacity >= e->lower) {
        if (e->capacity > e->lower)
            (void)ask(e, e->lower, effort);
        if (e->best_total > e->capacity)
            (void)ask(e, e->capacity / e->grain * e->grain, INT64_MAX);
        if (e->best_total <= e->capacity)
            (void)close_gap(e, effort / 4, effort / 4);
        return;
    }
    for (bool open = close_gap(e, effort / 4, effort / 4); open && !tsr_pack_budget_is_over(e->budget);
         effort *= 4)
        open = close_gap(e, effort, 16 * effort);
}

tsr_status tsr_pack_exact(tsr_pack_work *w, int64_t capacity, tsr_pack_budget *budget, int64_t *offset)
{
    tsr_status status = TSR_OK;
    exact e = {.w = w, .budget = budget, .capacity = capacity, .best_total = tsr_pack_total(w, offset)};
    int64_t nodes = budget->nodes;

    if (w->n > TSR_PACK_SEARCH_MOST_ITEMS || budget->nodes == 0)
        return TSR_OK;
    TSR_TRY(tsr_pack_search_init(w, &e.search));
    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *e.best, "packing", &e.best));
    TSR_TRY(tsr_mem_array((size_t)w->n, sizeof *e.candidate, "packing", &e.candidate));
    for (int i = 0; i < w->n; i++)
        e.best[i] = offset[i];
    set_grain(&e);
    minimise(&e);
    for (int i = 0; i < w->n; i++)
        offset[i] = e.best[i];
    w->n_nodes += nodes - budget->nodes;
    w->least = TSR_MAX(w->least, e.lower);
out:
    tsr_mem_free(e.candidate);
    tsr_mem_free(e.best);
    tsr_pack_search_free(&e.search);
    return status;
}
