/* Items that share their memory, and chunks of limited size: small random problems against every way to
 * answer which items share, to divide them into chunks and to order them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/pack/pack.h"
#include "support/failing_alloc.h"
#include "support/message.h"
#include "support/random.h"

enum { MOST = 6, NONE = -1 };

static void solve(const tsr_pack_problem *problem, const tsr_pack_limits *limits, tsr_pack_solution *solution)
{
    if (tsr_pack_solve(problem, limits, solution) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    if (tsr_pack_check(problem, solution) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    assert_true(solution->total_bytes >= solution->bound_bytes);
    assert_true(solution->optimal || solution->total_bytes > solution->bound_bytes);
}

/* -- exhaustive -- */

static bool meet(const tsr_pack_item *a, const tsr_pack_item *b)
{
    return a->lower < b->upper && b->lower < a->upper;
}

/* Lowest place of `item` beside the placed items of its chunk. */
static size_t lowest_free(const tsr_pack_item *items, const size_t *offset, unsigned placed, int item)
{
    size_t at = 0, mask = items[item].alignment - 1;
    for (bool moved = true; moved;) {
        moved = false;
        for (int j = 0; j < MOST; j++)
            if ((placed >> j & 1) && meet(&items[j], &items[item]) && at < offset[j] + items[j].size &&
                offset[j] < at + items[item].size) {
                at = (offset[j] + items[j].size + mask) & ~mask;
                moved = true;
            }
    }
    return at;
}

/* The smallest peak of the items in `all`, over every order of insertion at the lowest free place. */
static void try_orders(const tsr_pack_item *items, unsigned all, unsigned placed, size_t *offset, size_t peak,
                       size_t *best)
{
    if (peak >= *best)
        return;
    if (placed == all)
        *best = peak;
    for (int i = 0; i < MOST; i++) {
        if (!((all & ~placed) >> i & 1))
            continue;
        offset[i] = lowest_free(items, offset, placed, i);
        size_t end = offset[i] + items[i].size;
        try_orders(items, all, placed | 1u << i, offset, end > peak ? end : peak, best);
    }
}

static size_t smallest_peak(const tsr_pack_item *items, unsigned all)
{
    size_t offset[MOST], best = SIZE_MAX, peak = 0;
    unsigned placed = 0;
    for (int i = 0; i < MOST; i++)
        if ((all >> i & 1) && items[i].fixed_offset != TSR_PACK_FREE) {
            offset[i] = (size_t)items[i].fixed_offset;
            peak = offset[i] + items[i].size > peak ? offset[i] + items[i].size : peak;
            placed |= 1u << i;
        }
    try_orders(items, all, placed, offset, peak, &best);
    return best;
}

/* Every division of pieces into chunks; those that are fixed are in the first. */
static size_t smallest_division(const tsr_pack_item *items, int n, size_t limit)
{
    size_t best = SIZE_MAX;
    int n_ways = 1;
    if (limit == 0)
        return smallest_peak(items, (1u << n) - 1);
    for (int i = 0; i < n; i++)
        n_ways *= n;
    for (int way = 0; way < n_ways; way++) {
        unsigned chunk[MOST] = {0};
        bool good = true, used = true;
        size_t total = 0;
        for (int i = 0, rest = way; i < n; i++, rest /= n) {
            chunk[rest % n] |= 1u << i;
            good = good && (items[i].fixed_offset == TSR_PACK_FREE || rest % n == 0);
        }
        for (int c = 1; c < n; c++) { /* chunks are alike: none is used behind an empty one, but the first */
            good = good && (used || !chunk[c]);
            used = chunk[c];
        }
        for (int c = 0; c < n && good; c++) {
            size_t peak = chunk[c] ? smallest_peak(items, chunk[c]) : 0;
            good = peak <= limit;
            total += peak;
        }
        best = good && total < best ? total : best;
    }
    return best;
}

/* From the first begin to the last end of what must share with item i. */
static tsr_pack_item life_of(const tsr_pack_problem *problem, const int *must, int i)
{
    tsr_pack_item life = problem->items[i];
    for (int j = 0; j < problem->n_items; j++)
        if (must[j] == must[i]) {
            life.lower = problem->items[j].lower < life.lower ? problem->items[j].lower : life.lower;
            life.upper = problem->items[j].upper > life.upper ? problem->items[j].upper : life.upper;
        }
    return life;
}

static bool partners(const tsr_pack_problem *problem, const int *must, int i, int j)
{
    for (int x = 0; x < problem->n_items; x++) {
        int y = problem->items[x].partner;
        if (problem->items[x].share &&
            ((must[x] == must[i] && must[y] == must[j]) || (must[x] == must[j] && must[y] == must[i])))
            return true;
    }
    return false;
}

/* A piece of items as one item; false where some are in others' way. */
static bool make_piece(const tsr_pack_problem *problem, unsigned members, const int *must,
                       tsr_pack_item *piece)
{
    bool any = false;
    for (int i = 0; i < problem->n_items; i++) {
        const tsr_pack_item *item = &problem->items[i];
        if (!(members >> i & 1))
            continue;
        tsr_pack_item life = life_of(problem, must, i);
        for (int j = 0; j < i; j++) {
            tsr_pack_item other = life_of(problem, must, j);
            if ((members >> j & 1) && must[i] != must[j] && meet(&life, &other) &&
                !partners(problem, must, i, j))
                return false;
        }
        if (!any) {
            *piece = *item;
            any = true;
            continue;
        }
        if (item->fixed_offset != TSR_PACK_FREE) {
            if (piece->fixed_offset != TSR_PACK_FREE && piece->fixed_offset != item->fixed_offset)
                return false;
            piece->fixed_offset = item->fixed_offset;
        }
        piece->lower = item->lower < piece->lower ? item->lower : piece->lower;
        piece->upper = item->upper > piece->upper ? item->upper : piece->upper;
        piece->size = item->size > piece->size ? item->size : piece->size;
        piece->alignment = item->alignment > piece->alignment ? item->alignment : piece->alignment;
    }
    return piece->fixed_offset == TSR_PACK_FREE || piece->fixed_offset % (int64_t)piece->alignment == 0;
}

/* Labels of what is connected by the links in `links`; the least number of each. */
static void connect(const tsr_pack_problem *problem, unsigned links, int *label)
{
    for (int i = 0; i < problem->n_items; i++)
        label[i] = i;
    for (int round = 0; round < problem->n_items; round++)
        for (int i = 0; i < problem->n_items; i++)
            if (links >> i & 1) {
                int partner = problem->items[i].partner;
                int least = label[i] < label[partner] ? label[i] : label[partner];
                label[i] = label[partner] = least;
            }
}

static size_t smallest_total(const tsr_pack_problem *problem)
{
    unsigned must = 0, may = 0;
    int must_label[MOST], label[MOST], n = problem->n_items;
    size_t best = SIZE_MAX;
    for (int i = 0; i < n; i++) {
        must |= (unsigned)(problem->items[i].share == TSR_PACK_MUST_SHARE) << i;
        may |= (unsigned)(problem->items[i].share == TSR_PACK_MAY_SHARE) << i;
    }
    connect(problem, must, must_label);
    for (unsigned shared = may;; shared = (shared - 1) & may) {
        tsr_pack_item pieces[MOST];
        int n_pieces = 0;
        bool good = true;
        connect(problem, must | shared, label);
        for (int i = 0; i < n && good; i++) {
            unsigned members = 0;
            for (int j = 0; j < n; j++)
                members |= (unsigned)(label[j] == i) << j;
            if (label[i] == i)
                good = make_piece(problem, members, must_label, &pieces[n_pieces++]);
        }
        for (int a = 0; a < n_pieces && good; a++) /* fixed pieces over one another */
            for (int b = 0; b < a; b++)
                if (pieces[a].fixed_offset != TSR_PACK_FREE && pieces[b].fixed_offset != TSR_PACK_FREE &&
                    meet(&pieces[a], &pieces[b]) &&
                    pieces[a].fixed_offset < pieces[b].fixed_offset + (int64_t)pieces[b].size &&
                    pieces[b].fixed_offset < pieces[a].fixed_offset + (int64_t)pieces[a].size)
                    good = false;
        size_t total = good ? smallest_division(pieces, n_pieces, problem->max_chunk_bytes) : SIZE_MAX;
        best = total < best ? total : best;
        if (shared == 0)
            return best;
    }
}

/* -- random problems -- */

static void random_problem(uint64_t *seed, bool chunked, tsr_pack_item *items, tsr_pack_problem *problem)
{
    int n = 3 + (int)random_below(seed, MOST - 2);
    bool aligned = random_below(seed, 3) == 0, fix = random_below(seed, 3) == 0;
    size_t limit = chunked ? 8 + (size_t)random_below(seed, 10) : 0;
    int64_t fixed_end = 0;
    for (int i = 0; i < n; i++) {
        int64_t lower = (int64_t)random_below(seed, 6);
        items[i] = (tsr_pack_item){.lower = lower,
                                   .upper = lower + 1 + (int64_t)random_below(seed, 4),
                                   .size = 1 + (size_t)random_below(seed, 8),
                                   .alignment = aligned ? (size_t)1 << random_below(seed, 3) : 1,
                                   .fixed_offset = TSR_PACK_FREE};
        int64_t alignment = (int64_t)items[i].alignment, size = (int64_t)items[i].size;
        int64_t at = (fixed_end + alignment - 1) / alignment * alignment;
        if (fix && random_below(seed, 3) == 0 && (!limit || at + size <= (int64_t)limit)) {
            items[i].fixed_offset = at;
            fixed_end = at + size;
        }
    }
    for (int i = 0; i < n; i++) {
        uint64_t kind = random_below(seed, 6);
        items[i].partner = (i + 1 + (int)random_below(seed, (uint64_t)n - 1)) % n;
        items[i].share = kind < 3 ? TSR_PACK_APART : kind < 5 ? TSR_PACK_MAY_SHARE : TSR_PACK_MUST_SHARE;
    }
    *problem = (tsr_pack_problem){items, n, limit};
}

typedef struct tally {
    int shared, apart, above_bound, several_chunks, refused;
} tally;

/* How many pairs that may share do, and do not. */
static void count(const tsr_pack_problem *problem, const tsr_pack_solution *s, tally *t)
{
    for (int i = 0; i < problem->n_items; i++) {
        int partner = problem->items[i].partner;
        bool same = s->places[i].chunk == s->places[partner].chunk &&
                    s->places[i].offset == s->places[partner].offset;
        if (problem->items[i].share == TSR_PACK_MAY_SHARE) {
            t->shared += same;
            t->apart += !same;
        }
    }
    t->above_bound += s->total_bytes > s->bound_bytes;
    t->several_chunks += s->n_chunks > 1;
}

static void check_random(uint64_t first, int n_rounds, bool chunked, tally *t)
{
    uint64_t seed = first;
    for (int round = 0; round < n_rounds; round++) {
        tsr_pack_item items[MOST];
        tsr_pack_problem problem;
        tsr_pack_solution s;
        random_problem(&seed, chunked, items, &problem);
        size_t smallest = smallest_total(&problem);
        if (smallest == SIZE_MAX) {
            tsr_status status = tsr_pack_solve(&problem, NULL, &s);
            assert_true(status == TSR_ERR_INVALID || status == TSR_ERR_MEMORY);
            t->refused++;
            continue;
        }
        solve(&problem, NULL, &s);
        assert_true(s.optimal);
        assert_int_equal(s.total_bytes, smallest);
        count(&problem, &s, t);
        tsr_pack_solution_free(&s);
    }
}

static void shared_items_are_packed_to_the_proven_optimum(void **state)
{
    (void)state;
    tally t = {0};
    check_random(31, 1500, false, &t);
    assert_true(t.shared > 300 && t.apart > 300 && t.above_bound > 50 && t.refused > 0);
}

static void chunks_are_filled_to_the_proven_optimum(void **state)
{
    (void)state;
    tally t = {0};
    check_random(32, 200, true, &t);
    assert_true(t.several_chunks > 50 && t.shared > 30 && t.apart > 30);
}

/* -- by hand -- */

static tsr_pack_item item_of(int64_t lower, int64_t upper, size_t size)
{
    return (tsr_pack_item){lower, upper, size, 1, TSR_PACK_FREE, NULL, TSR_PACK_APART, NONE};
}

/* A chain of results, each over the one before: one piece of memory. */
static void a_chain_of_results_is_one_piece(void **state)
{
    (void)state;
    enum { N = 40 };
    tsr_pack_item items[N];
    tsr_pack_problem problem = {items, N, 0};
    tsr_pack_solution s;
    for (int i = 0; i < N; i++) {
        items[i] = item_of(i, i + 2, 100);
        items[i].share = i > 0 ? TSR_PACK_MAY_SHARE : TSR_PACK_APART;
        items[i].partner = i - 1;
    }
    solve(&problem, NULL, &s);
    assert_int_equal(s.total_bytes, 100);
    assert_true(s.optimal);
    tsr_pack_solution_free(&s);
}

/* Two results over one operand: only one of them can have it. */
static void one_of_two_results_gets_the_operand(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 2, 100), item_of(1, 5, 100), item_of(1, 5, 100)};
    tsr_pack_problem problem = {items, 3, 0};
    tsr_pack_solution s;
    items[1].share = items[2].share = TSR_PACK_MAY_SHARE;
    items[1].partner = items[2].partner = 0;
    solve(&problem, NULL, &s);
    assert_int_equal(s.total_bytes, 200);
    assert_true(s.optimal);
    tsr_pack_solution_free(&s);
}

/* Sharing would keep a large operand's bytes for the sake of a small result. */
static void sharing_is_left_where_it_costs_more_than_it_saves(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 3, 100), item_of(2, 9, 10), item_of(4, 8, 100)};
    tsr_pack_problem problem = {items, 3, 0};
    tsr_pack_solution s;
    items[1].share = TSR_PACK_MAY_SHARE;
    items[1].partner = 0;
    solve(&problem, NULL, &s);
    assert_int_equal(s.total_bytes, 110);
    assert_true(s.optimal);
    items[1].share = TSR_PACK_MUST_SHARE;
    tsr_pack_solution_free(&s);
    solve(&problem, NULL, &s);
    assert_int_equal(s.total_bytes, 200);
    assert_true(s.optimal);
    tsr_pack_solution_free(&s);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 2, 8), item_of(1, 3, 8)};
    tsr_pack_problem problem = {items, 2, 0};
    tsr_pack_solution s;
    items[0].share = TSR_PACK_MAY_SHARE;
    items[0].partner = 0;
    assert_int_equal(tsr_pack_solve(&problem, NULL, &s), TSR_ERR_INVALID);
    assert_message_has("item 0 shares with item 0 of 2");
    items[0].partner = 2;
    assert_int_equal(tsr_pack_solve(&problem, NULL, &s), TSR_ERR_INVALID);
    items[0].share = TSR_PACK_MUST_SHARE;
    items[0].partner = 1;
    items[0].fixed_offset = 0;
    items[1].fixed_offset = 64;
    assert_int_equal(tsr_pack_solve(&problem, NULL, &s), TSR_ERR_INVALID);
    assert_message_has("items 0 and 1 must share but are fixed at 0 and 64");
}

/* The validator finds what is wrong with a solution that was tampered with. */
static void the_validator_knows_who_may_share(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 2, 8), item_of(1, 3, 8), item_of(1, 4, 8)};
    tsr_pack_place places[] = {{0, 0}, {0, 0}, {0, 8}};
    tsr_pack_problem problem = {items, 3, 0};
    tsr_pack_solution s = {
        .places = places, .n_items = 3, .chunk_bytes = (size_t[]){16}, .n_chunks = 1, .total_bytes = 16};
    assert_int_equal(tsr_pack_check(&problem, &s), TSR_ERR_INVALID);
    items[1].share = TSR_PACK_MAY_SHARE;
    items[1].partner = 0;
    assert_int_equal(tsr_pack_check(&problem, &s), TSR_OK);
    places[1].offset = 4; /* over the operand, but not at its start */
    assert_int_equal(tsr_pack_check(&problem, &s), TSR_ERR_INVALID);
    places[1].offset = 0;
    items[2].share = TSR_PACK_MUST_SHARE;
    items[2].partner = 0;
    assert_int_equal(tsr_pack_check(&problem, &s), TSR_ERR_INVALID);
    assert_message_has("items 2 and 0 must share but are at 8 and 0");
    items[2] = item_of(3, 4, 8); /* behind the operand's life, so free to take its place, */
    places[2].offset = 0;
    assert_int_equal(tsr_pack_check(&problem, &s), TSR_OK);
    items[1] = item_of(5, 6, 8); /* but not if that must last */
    items[1].share = TSR_PACK_MUST_SHARE;
    items[1].partner = 0;
    assert_int_equal(tsr_pack_check(&problem, &s), TSR_ERR_INVALID);
    assert_message_has("items 2 and 0");
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (int k = 1;; k++) {
        tsr_pack_item items[] = {item_of(0, 3, 5), item_of(2, 9, 3), item_of(4, 8, 5), item_of(1, 7, 4)};
        tsr_pack_problem problem = {items, 4, 9};
        tsr_pack_solution s = {0};
        int64_t blocks = failing_alloc_live();
        items[1].share = TSR_PACK_MAY_SHARE;
        items[1].partner = 0;
        failing_alloc_set(k);
        tsr_status status = tsr_pack_solve(&problem, NULL, &s);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            tsr_pack_solution_free(&s);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_null(s.places);
        assert_int_equal(failing_alloc_live(), blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_items_are_packed_to_the_proven_optimum),
        cmocka_unit_test(chunks_are_filled_to_the_proven_optimum),
        cmocka_unit_test(a_chain_of_results_is_one_piece),
        cmocka_unit_test(one_of_two_results_gets_the_operand),
        cmocka_unit_test(sharing_is_left_where_it_costs_more_than_it_saves),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(the_validator_knows_who_may_share),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
