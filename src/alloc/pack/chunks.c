/* Exact packing into chunks of limited size: assigning items to chunks.
 *
 * Items are assigned one after another, largest first, to a chunk in use or to a new one. When all items are
 * assigned, the exact packer packs each chunk. An assignment is abandoned as soon as the bounds of its
 * chunks add up to at least the best total, or one bound exceeds the size of a chunk. All chunks except the
 * first, which has the fixed items, are alike, so only one new chunk is tried.
 *
 * First the items are packed into one chunk without a limit. If all sizes are multiples of the largest
 * alignment, chunks can be joined end to end, so no division into chunks is smaller. */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/work.h"
#include "core/mem.h"

/* Above this many items there are too many assignments to search. */
enum { MOST_ITEMS = 128, MOST_LIVE = 1 << 20 };

typedef struct chunks {
    tsr_pack_work *w;
    int *order;           /* [n] items in the order of assignment: fixed ones first, then by size */
    int *chunk;           /* [n] by place in that order: the item's chunk, -1: none yet */
    int *n_open;          /* [n + 1] chunks in use before that place */
    int64_t *live;        /* [n][n_steps] of a chunk: bytes alive at each step */
    int64_t *bound;       /* [n] of a chunk: the most live bytes of any step */
    int64_t *undo;        /* [n] by place: the chunk's bound before */
    int64_t total;        /* sum of the bounds */
    int64_t best;         /* bytes of the best packing so far */
    int64_t least;        /* proven for all assignments that were visited */
    int64_t *offset;      /* [n] of the best packing */
    int64_t *candidate;   /* [n] */
    tsr_pack_item *items; /* [n] of one chunk */
    int *members;         /* [n] item numbers */
    tsr_pack_budget *budget;
} chunks;

/* -- assigning -- */

static void assign(chunks *c, int place, int chunk)
{
    int item = c->order[place];
    int64_t *live = c->live + (size_t)chunk * (size_t)c->w->n_steps, most = c->bound[chunk];
    for (int t = c->w->lower[item]; t < c->w->upper[item]; t++) {
        live[t] += c->w->size[item];
        most = TSR_MAX(most, live[t]);
    }
    c->undo[place] = c->bound[chunk];
    c->total += most - c->bound[chunk];
    c->bound[chunk] = most;
    c->chunk[place] = chunk;
    c->n_open[place + 1] = TSR_MAX(c->n_open[place], chunk + 1);
}

static void take_back(chunks *c, int place)
{
    int item = c->order[place], chunk = c->chunk[place];
    int64_t *live = c->live + (size_t)chunk * (size_t)c->w->n_steps;
    for (int t = c->w->lower[item]; t < c->w->upper[item]; t++)
        live[t] -= c->w->size[item];
    c->total -= c->bound[chunk] - c->undo[place];
    c->bound[chunk] = c->undo[place];
    c->chunk[place] = -1;
}

/* Move the item at `place` to its next possible chunk that could improve the best; false: there is none. */
static bool assign_next(chunks *c, int place)
{
    const tsr_pack_work *w = c->w;
    int item = c->order[place], chunk = c->chunk[place];
    bool first_only = w->fixed_at[item] != TSR_PACK_FREE || w->size[item] == 0;
    int end = first_only ? 1 : TSR_MIN(c->n_open[place] + 1, w->n);
    if (chunk >= 0)
        take_back(c, place);
    for (chunk++; chunk < end; chunk++) {
        assign(c, place, chunk);
        if (c->bound[chunk] <= w->chunk_bytes && c->total < c->best)
            return true;
        take_back(c, place);
    }
    return false;
}

/* -- packing an assignment -- */

/* Pack one chunk; returns its size and the proven lower bound of its size. */
static tsr_status pack_chunk(chunks *c, int chunk, size_t *bytes_out, size_t *least_out)
{
    tsr_status status = TSR_OK;
    const tsr_pack_work *w = c->w;
    tsr_pack_solution s = {0};
    int n = 0;
    for (int place = 0; place < w->n; place++) {
        int i = c->order[place];
        if (c->chunk[place] != chunk)
            continue;
        c->items[n] = (tsr_pack_item){
            w->lower[i], w->upper[i], (size_t)w->size[i], (size_t)w->alignment[i], w->fixed_at[i], NULL};
        c->members[n++] = i;
    }
    tsr_pack_problem problem = {.items = c->items, .n_items = n};
    tsr_pack_budget part = tsr_pack_budget_half(c->budget);
    int64_t nodes = part.nodes;
    TSR_TRY(tsr_pack_apart(&problem, 0, &part, &s));
    tsr_pack_spend(c->budget, nodes - part.nodes);
    for (int k = 0; k < n; k++)
        c->candidate[c->members[k]] = chunk * w->chunk_bytes + (int64_t)s.places[k].offset;
    *bytes_out = s.total_bytes;
    *least_out = s.optimal ? s.total_bytes : s.bound_bytes;
out:
    tsr_pack_solution_free(&s);
    return status;
}

/* Pack every chunk, when all items are assigned. */
static tsr_status pack_assignment(chunks *c)
{
    tsr_status status = TSR_OK;
    int64_t total = 0, least = 0;
    bool fits = true, can_fit = true;
    for (int chunk = 0; chunk < c->n_open[c->w->n]; chunk++) {
        size_t bytes, proven;
        TSR_TRY(pack_chunk(c, chunk, &bytes, &proven));
        total += (int64_t)bytes;
        least += (int64_t)proven;
        fits = fits && (int64_t)bytes <= c->w->chunk_bytes;
        can_fit = can_fit && (int64_t)proven <= c->w->chunk_bytes;
    }
    if (fits && total < c->best) {
        c->best = total;
        memcpy(c->offset, c->candidate, (size_t)c->w->n * sizeof *c->offset);
    }
    if (can_fit)
        c->least = TSR_MIN(c->least, least);
out:
    return status;
}

/* Enumerate the assignments. Raises w->least if the enumeration is complete. */
static tsr_status go_through(chunks *c, int64_t good_enough)
{
    tsr_status status = TSR_OK;
    int place = 0, n = c->w->n;
    c->least = INT64_MAX;
    c->chunk[0] = -1;
    while (place >= 0 && c->best > good_enough && !tsr_pack_budget_is_over(c->budget)) {
        tsr_pack_spend(c->budget, 1);
        if (!assign_next(c, place)) {
            place--;
        } else if (place + 1 < n) {
            c->chunk[++place] = -1;
        } else {
            TSR_TRY(pack_assignment(c));
        }
    }
    if (place < 0)
        c->w->least = TSR_MAX(c->w->least, TSR_MIN(c->least, c->best));
out:
    return status;
}

/* -- setting up -- */

typedef struct key {
    bool fixed;
    int64_t size;
    int item;
} key;

static int compare_keys(const void *a, const void *b)
{
    const key *x = a, *y = b;
    if (x->fixed != y->fixed)
        return x->fixed ? -1 : 1;
    if (x->size != y->size)
        return x->size > y->size ? -1 : 1;
    return x->item - y->item;
}

static tsr_status set_order(chunks *c)
{
    key *keys = NULL;
    tsr_status status = tsr_mem_array((size_t)c->w->n, sizeof *keys, "packing", &keys);
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < c->w->n; i++)
        keys[i] = (key){c->w->fixed_at[i] != TSR_PACK_FREE, c->w->size[i], i};
    qsort(keys, (size_t)c->w->n, sizeof *keys, compare_keys);
    for (int i = 0; i < c->w->n; i++)
        c->order[i] = keys[i].item;
    tsr_mem_free(keys);
    return TSR_OK;
}

/* Raise w->least to the size of one chunk without a limit. */
static tsr_status ask_one_chunk(chunks *c)
{
    tsr_status status = TSR_OK;
    size_t bytes, least;
    if (!c->w->is_tight)
        return TSR_OK;
    for (int place = 0; place < c->w->n; place++)
        c->chunk[place] = 0;
    TSR_TRY(pack_chunk(c, 0, &bytes, &least));
    c->w->least = TSR_MAX(c->w->least, (int64_t)least);
out:
    return status;
}

tsr_status tsr_pack_chunks(tsr_pack_work *w, size_t capacity, tsr_pack_budget *budget, int64_t *offset)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)w->n;
    int64_t nodes = budget->nodes;
    chunks c = {.w = w, .best = tsr_pack_total(w, offset), .offset = offset, .budget = budget};

    TSR_TRY(tsr_mem_array(n, sizeof *c.order, "packing", &c.order));
    TSR_TRY(tsr_mem_array(n, sizeof *c.chunk, "packing", &c.chunk));
    TSR_TRY(tsr_mem_array(n, sizeof *c.candidate, "packing", &c.candidate));
    TSR_TRY(tsr_mem_array(n, sizeof *c.items, "packing", &c.items));
    TSR_TRY(tsr_mem_array(n, sizeof *c.members, "packing", &c.members));
    TSR_TRY(set_order(&c));
    TSR_TRY(ask_one_chunk(&c));
    int64_t good_enough = TSR_MAX(w->least, (int64_t)TSR_MIN(capacity, (size_t)INT64_MAX));
    if (c.best > good_enough && n <= MOST_ITEMS && n * (size_t)w->n_steps <= MOST_LIVE) {
        TSR_TRY(tsr_mem_array(n + 1, sizeof *c.n_open, "packing", &c.n_open));
        TSR_TRY(tsr_mem_array(n * (size_t)w->n_steps, sizeof *c.live, "packing", &c.live));
        TSR_TRY(tsr_mem_array(n, sizeof *c.bound, "packing", &c.bound));
        TSR_TRY(tsr_mem_array(n, sizeof *c.undo, "packing", &c.undo));
        TSR_TRY(go_through(&c, good_enough));
    }
    w->n_nodes += nodes - budget->nodes;
out:
    tsr_mem_free(c.undo);
    tsr_mem_free(c.bound);
    tsr_mem_free(c.live);
    tsr_mem_free(c.n_open);
    tsr_mem_free(c.members);
    tsr_mem_free(c.items);
    tsr_mem_free(c.candidate);
    tsr_mem_free(c.chunk);
    tsr_mem_free(c.order);
    return status;
}
