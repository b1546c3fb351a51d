/* In-place groups: deciding which items share one piece of memory.
 *
 * Items that must share are first merged into blocks. Each item that may share is a question: share, or stay
 * apart. When every question is answered, the pieces are the items of a problem without groups. The first
 * answer tried is to share everywhere: if sizes are equal and lives meet, as in graphs, no other answer has
 * fewer live bytes at any step, so it nearly always meets the bound and ends the search. Otherwise answers
 * are enumerated, the last question changing first. An answer is skipped if its bound, with open questions
 * taken as shared at no cost, is at least the best total. */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/work.h"
#include "core/mem.h"
#include "core/status.h"

/* Whether two blocks share. */
typedef struct question {
    int a, b;
    bool apart; /* the answer */
} question;

/* A block is a merged set of items that must share. Blocks ascend by the start of their lives. */
typedef struct sharing {
    const tsr_pack_problem *problem;
    tsr_pack_item *blocks; /* [n_blocks] */
    int n_blocks;
    int *block_of;       /* [n_items] */
    question *questions; /* [n_questions] */
    int n_questions;
    int *piece;            /* [n_blocks] the piece's least block under the current answers */
    int *next;             /* [n_blocks] ring of the piece's blocks */
    tsr_pack_item *pieces; /* [n_pieces] as items of the merged problem */
    int n_pieces;
    int *index;     /* [n_blocks] of the block's piece in `pieces` */
    int *component; /* [n_pieces] scratch */
    int64_t *most;  /* [n_pieces] scratch */
    int *alive;     /* [n_pieces] scratch */
} sharing;

/* -- merging -- */

static bool are_partners(const sharing *s, int a, int b)
{
    for (int q = 0; q < s->n_questions; q++)
        if ((s->questions[q].a == a && s->questions[q].b == b) ||
            (s->questions[q].a == b && s->questions[q].b == a))
            return true;
    return false;
}

static bool are_fixed_apart(const tsr_pack_item *a, const tsr_pack_item *b)
{
    return a->fixed_offset != TSR_PACK_FREE && b->fixed_offset != TSR_PACK_FREE &&
           a->fixed_offset != b->fixed_offset;
}

/* Whether two pieces can be merged: blocks that are live at the same time must be partners. */
static bool can_merge(const sharing *s, int a, int b)
{
    int x = a, y = b;
    do {
        do {
            const tsr_pack_item *p = &s->blocks[x], *q = &s->blocks[y];
            bool together = p->lower < q->upper && q->lower < p->upper;
            if (are_fixed_apart(p, q) || (together && !are_partners(s, x, y)))
                return false;
            y = s->next[y];
        } while (y != b);
        x = s->next[x];
    } while (x != a);
    return true;
}

/* Merge two pieces. */
static void merge(sharing *s, int a, int b)
{
    int least = TSR_MIN(s->piece[a], s->piece[b]), swap = s->next[a], i = a;
    s->next[a] = s->next[b];
    s->next[b] = swap;
    do {
        s->piece[i] = least;
        i = s->next[i];
    } while (i != a);
}

/* Extend a piece by an item. */
static void extend(tsr_pack_item *piece, const tsr_pack_item *item)
{
    piece->lower = TSR_MIN(piece->lower, item->lower);
    piece->upper = TSR_MAX(piece->upper, item->upper);
    piece->size = TSR_MAX(piece->size, item->size);
    piece->alignment = TSR_MAX(piece->alignment, item->alignment);
    if (item->fixed_offset != TSR_PACK_FREE)
        piece->fixed_offset = item->fixed_offset;
}

/* Make pieces of the blocks according to the first n answers. */
static void answer(sharing *s, int n)
{
    for (int i = 0; i < s->n_blocks; i++)
        s->piece[i] = s->next[i] = i;
    for (int q = 0; q < n; q++) {
        const question *ask = &s->questions[q];
        if (!ask->apart && s->piece[ask->a] != s->piece[ask->b] && can_merge(s, ask->a, ask->b))
            merge(s, ask->a, ask->b);
    }
    s->n_pieces = 0;
    for (int i = 0; i < s->n_blocks; i++) {
        if (s->piece[i] == i) {
            s->index[i] = s->n_pieces;
            s->pieces[s->n_pieces++] = s->blocks[i];
        } else {
            s->index[i] = s->index[s->piece[i]];
            extend(&s->pieces[s->index[i]], &s->blocks[i]);
        }
    }
}

/* -- the bound -- */

/* The most live bytes of a step, with sizes rounded up to `grain`, counting only the largest piece of each
 * component. The maximum is at the start of a piece; pieces ascend by start. */
static int64_t most_alive(sharing *s, size_t grain)
{
    int64_t result = 0;
    int n = 0;
    for (int k = 0; k < s->n_pieces; k++) {
        int64_t sum = 0;
        int n_left = 0;
        s->alive[n++] = k;
        for (int i = 0; i < n; i++)
            if (s->pieces[s->alive[i]].upper > s->pieces[k].lower)
                s->alive[n_left++] = s->alive[i];
        n = n_left;
        for (int i = 0; i < n; i++)
            s->most[s->component[s->alive[i]]] = 0;
        for (int i = 0; i < n; i++) {
            int64_t bytes = (int64_t)((s->pieces[s->alive[i]].size + grain - 1) & ~(grain - 1));
            int64_t *most = &s->most[s->component[s->alive[i]]];
            sum += TSR_MAX(bytes - *most, 0);
            *most = TSR_MAX(*most, bytes);
        }
        result = TSR_MAX(result, sum);
    }
    return result;
}

static int component_of(const sharing *s, int k)
{
    while (s->component[k] != k)
        k = s->component[k];
    return k;
}

/* Join the pieces of the questions from `first` on into components. */
static void find_components(sharing *s, int first)
{
    for (int k = 0; k < s->n_pieces; k++)
        s->component[k] = k;
    for (int q = first; q < s->n_questions; q++) {
        int a = component_of(s, s->index[s->questions[q].a]),
            b = component_of(s, s->index[s->questions[q].b]);
        s->component[TSR_MAX(a, b)] = TSR_MIN(a, b);
    }
    for (int k = 0; k < s->n_pieces; k++)
        s->component[k] = component_of(s, k);
}

/* A lower bound of all packings with the first n answers. Sizes are rounded up as in bound.c. */
static size_t bound_of(sharing *s, int n)
{
    size_t grain = SIZE_MAX / 2 + 1, padding = 0;
    int64_t bound = 0;
    answer(s, n);
    find_components(s, n);
    for (int k = 0; k < s->n_pieces; k++)
        grain = TSR_MIN(grain, TSR_MAX(s->pieces[k].alignment, 1));
    for (int k = 0; k < s->n_pieces; k++) {
        const tsr_pack_item *piece = &s->pieces[k];
        padding = TSR_MAX(padding, -piece->size & (grain - 1));
        if (piece->fixed_offset != TSR_PACK_FREE)
            bound = TSR_MAX(bound, piece->fixed_offset + (int64_t)piece->size);
    }
    bound = TSR_MAX(bound, most_alive(s, 1));
    if (s->problem->max_chunk_bytes == 0 && padding > 0)
        bound = TSR_MAX(bound, most_alive(s, grain) - (int64_t)padding);
    return (size_t)bound;
}

/* -- the search -- */

/* Set the places of items to those of their pieces. */
static tsr_status spread(const sharing *s, tsr_pack_solution *solution)
{
    tsr_pack_place *places;
    int n = s->problem->n_items;
    tsr_status status = tsr_mem_array((size_t)n, sizeof *places, "packing", &places);
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < n; i++)
        places[i] = solution->places[s->index[s->block_of[i]]];
    tsr_mem_free(solution->places);
    solution->places = places;
    solution->n_items = n;
    return TSR_OK;
}

/* Pack the pieces of the current answers with half of the budget, and keep the result if it is the smallest
 * so far. *least is lowered to the bound proven for these answers. TSR_ERR_INVALID: sharing makes fixed
 * items overlap. */
static tsr_status pack_pieces(sharing *s, size_t capacity, tsr_pack_budget *budget, tsr_pack_solution *best,
                              size_t *least)
{
    tsr_status status = TSR_OK;
    tsr_pack_solution candidate = {0};
    tsr_pack_budget part = tsr_pack_budget_half(budget);
    int64_t nodes = part.nodes;

    answer(s, s->n_questions);
    tsr_pack_problem pieces = {s->pieces, s->n_pieces, s->problem->max_chunk_bytes};
    TSR_TRY(tsr_pack_apart(&pieces, capacity, &part, &candidate));
    tsr_pack_spend(budget, nodes - part.nodes + 1);
    *least = TSR_MIN(*least, candidate.optimal ? candidate.total_bytes : candidate.bound_bytes);
    candidate.n_nodes += best->n_nodes;
    if (candidate.total_bytes >= best->total_bytes) {
        best->n_nodes = candidate.n_nodes;
    } else {
        TSR_TRY(spread(s, &candidate));
        tsr_pack_solution_free(best);
        *best = candidate;
        candidate = (tsr_pack_solution){0};
    }
out:
    tsr_pack_solution_free(&candidate);
    return status;
}

/* The next answers with a bound below `total`; false: there are none. */
static bool next_answers(sharing *s, size_t total, tsr_pack_budget *budget)
{
    for (int q = s->n_questions - 1; q >= 0; q--) {
        bool *apart = &s->questions[q].apart;
        *apart = !*apart;
        if (!*apart)
            continue;
        tsr_pack_spend(budget, 1 + s->n_blocks / 8); /* a bound costs about as much as this many
                                                      * placements */
        if (bound_of(s, q + 1) < total)
            return true;
        *apart = false;
    }
    return false;
}

static tsr_status search(sharing *s, size_t capacity, tsr_pack_budget *budget, tsr_pack_solution *best)
{
    tsr_status status = TSR_OK;
    size_t bound = bound_of(s, 0), least = SIZE_MAX; /* proven for the answers so far */
    bool open = true;
    best->total_bytes = SIZE_MAX;
    do {
        status = pack_pieces(s, capacity, budget, best, &least);
        if (status != TSR_OK && status != TSR_ERR_INVALID)
            return status;
        open = best->total_bytes > TSR_MAX(bound, capacity) && next_answers(s, best->total_bytes, budget);
    } while (open && !tsr_pack_budget_is_over(budget));
    if (!best->places) { /* with nothing shared, a failure is the problem's own */
        for (int q = 0; q < s->n_questions; q++)
            s->questions[q].apart = true;
        TSR_TRY(pack_pieces(s, capacity, budget, best, &least));
    }
    best->bound_bytes = bound;
    best->optimal = best->total_bytes == bound || (!open && least >= best->total_bytes);
    status = TSR_OK;
out:
    return status;
}

/* -- setting up -- */

static int least_of(const int *least, int i)
{
    while (least[i] != i)
        i = least[i];
    return i;
}

/* Join items that must share. least[i] leads to the least item of i's block. */
static tsr_status join_items(const tsr_pack_problem *problem, int *least)
{
    for (int i = 0; i < problem->n_items; i++)
        least[i] = i;
    for (int i = 0; i < problem->n_items; i++) {
        const tsr_pack_item *item = &problem->items[i];
        if (item->share == TSR_PACK_APART)
            continue;
        if (item->partner < 0 || item->partner >= problem->n_items || item->partner == i)
            return tsr_fail(TSR_ERR_INVALID, "packing: item %d shares with item %d of %d", i, item->partner,
                            problem->n_items);
        if (item->share == TSR_PACK_MUST_SHARE) {
            int a = least_of(least, i), b = least_of(least, item->partner);
            least[TSR_MAX(a, b)] = TSR_MIN(a, b);
        }
    }
    return TSR_OK;
}

/* Merge items that must share into one item, stored in s->pieces at the least item's number. */
static tsr_status merge_items(sharing *s, const int *least)
{
    const tsr_pack_item *items = s->problem->items;
    for (int i = 0; i < s->problem->n_items; i++) {
        int first = least_of(least, i);
        s->pieces[i] = items[i];
        s->pieces[i].share = TSR_PACK_APART;
        if (first != i && are_fixed_apart(&s->pieces[first], &items[i]))
            return tsr_fail(TSR_ERR_INVALID,
                            "packing: items %d and %d must share but are fixed at %lld and %lld", first, i,
                            (long long)s->pieces[first].fixed_offset, (long long)items[i].fixed_offset);
        if (first != i)
            extend(&s->pieces[first], &items[i]);
    }
    return TSR_OK;
}

typedef struct begin {
    int64_t lower;
    int item;
} begin;

static int compare_begins(const void *a, const void *b)
{
    const begin *x = a, *y = b;
    if (x->lower != y->lower)
        return x->lower < y->lower ? -1 : 1;
    return x->item - y->item;
}

/* Make the blocks, in order, and the questions about them. */
static tsr_status make_blocks(sharing *s)
{
    tsr_status status = TSR_OK;
    const tsr_pack_problem *problem = s->problem;
    int *least = s->piece; /* not yet in use */
    begin *begins = NULL;
    TSR_TRY(join_items(problem, least));
    TSR_TRY(merge_items(s, least));
    TSR_TRY(tsr_mem_array((size_t)problem->n_items, sizeof *begins, "packing", &begins));
    for (int i = 0; i < problem->n_items; i++)
        if (least[i] == i)
            begins[s->n_blocks++] = (begin){s->pieces[i].lower, i};
    qsort(begins, (size_t)s->n_blocks, sizeof *begins, compare_begins);
    for (int k = 0; k < s->n_blocks; k++) {
        s->blocks[k] = s->pieces[begins[k].item];
        s->block_of[begins[k].item] = k;
    }
    for (int i = 0; i < problem->n_items; i++)
        s->block_of[i] = s->block_of[least_of(least, i)];
    for (int i = 0; i < problem->n_items; i++) {
        const tsr_pack_item *item = &problem->items[i];
        int a = s->block_of[i];
        if (item->share == TSR_PACK_MAY_SHARE && a != s->block_of[item->partner])
            s->questions[s->n_questions++] = (question){a, s->block_of[item->partner], false};
    }
out:
    tsr_mem_free(begins);
    return status;
}

tsr_status tsr_pack_shared(const tsr_pack_problem *problem, size_t capacity, tsr_pack_budget *budget,
                           tsr_pack_solution *solution_out)
{
    tsr_status status = TSR_OK;
    tsr_pack_solution best = {0};
    sharing s = {.problem = problem};
    size_t n = (size_t)problem->n_items;

    TSR_TRY(tsr_pack_check_items(problem));
    TSR_TRY(tsr_mem_array(n, sizeof *s.blocks, "packing", &s.blocks));
    TSR_TRY(tsr_mem_array(n, sizeof *s.block_of, "packing", &s.block_of));
    TSR_TRY(tsr_mem_array(n, sizeof *s.questions, "packing", &s.questions));
    TSR_TRY(tsr_mem_array(n, sizeof *s.piece, "packing", &s.piece));
    TSR_TRY(tsr_mem_array(n, sizeof *s.next, "packing", &s.next));
    TSR_TRY(tsr_mem_array(n, sizeof *s.pieces, "packing", &s.pieces));
    TSR_TRY(tsr_mem_array(n, sizeof *s.index, "packing", &s.index));
    TSR_TRY(tsr_mem_array(n, sizeof *s.component, "packing", &s.component));
    TSR_TRY(tsr_mem_array(n, sizeof *s.most, "packing", &s.most));
    TSR_TRY(tsr_mem_array(n, sizeof *s.alive, "packing", &s.alive));
    TSR_TRY(make_blocks(&s));
    TSR_TRY(search(&s, capacity, budget, &best));
    *solution_out = best;
    best = (tsr_pack_solution){0};
out:
    tsr_pack_solution_free(&best);
    tsr_mem_free(s.alive);
    tsr_mem_free(s.most);
    tsr_mem_free(s.component);
    tsr_mem_free(s.index);
    tsr_mem_free(s.pieces);
    tsr_mem_free(s.next);
    tsr_mem_free(s.piece);
    tsr_mem_free(s.questions);
    tsr_mem_free(s.block_of);
    tsr_mem_free(s.blocks);
    return status;
}
