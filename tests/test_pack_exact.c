/* Exact packing: against exhaustive enumeration where that is possible, and on the published hard instances.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/pack.h"
#include "support/random.h"

enum { SMALL = 7 };

static void solve(const tsr_pack_problem *problem, const tsr_pack_limits *limits, tsr_pack_solution *solution)
{
    if (tsr_pack_solve(problem, limits, solution) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    if (tsr_pack_check(problem, solution) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    assert_true(solution->total_bytes >= solution->bound_bytes);
    if (solution->total_bytes == solution->bound_bytes)
        assert_true(solution->optimal);
}

/* ---- exhaustive ------------------------------------------------------------------------------------ */

static size_t lowest_free(const tsr_pack_item *items, int n, const size_t *offset, unsigned placed, int item)
{
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int j = 0; j < n; j++)
            if ((placed >> j & 1) && items[j].lower < items[item].upper &&
                items[item].lower < items[j].upper && at < offset[j] + items[j].size &&
                offset[j] < at + items[item].size) {
                at = (offset[j] + items[j].size + items[item].alignment - 1) & ~(items[item].alignment - 1);
                moved = true;
            }
    }
    return at;
}

/* The best of all orders of insertion at the lowest free place. Some order reaches the optimum: take an
 * optimal packing from the lowest offset up, and no item ends higher than it was. */
static void best_of_all_orders(const tsr_pack_problem *problem, size_t *offset, unsigned placed, size_t peak,
                               size_t *best)
{
    if (peak >= *best)
        return;
    if (placed == (1u << problem->n_items) - 1)
        *best = peak;
    for (int i = 0; i < problem->n_items; i++) {
        if (placed >> i & 1)
            continue;
        offset[i] = lowest_free(problem->items, problem->n_items, offset, placed, i);
        size_t end = offset[i] + problem->items[i].size;
        best_of_all_orders(problem, offset, placed | 1u << i, end > peak ? end : peak, best);
    }
}

static size_t smallest_total(const tsr_pack_problem *problem)
{
    size_t offset[SMALL], best = SIZE_MAX, peak = 0;
    unsigned placed = 0;
    for (int i = 0; i < problem->n_items; i++)
        if (problem->items[i].fixed_offset != TSR_PACK_FREE) {
            offset[i] = (size_t)problem->items[i].fixed_offset;
            size_t end = offset[i] + problem->items[i].size;
            peak = end > peak ? end : peak;
            placed |= 1u << i;
        }
    best_of_all_orders(problem, offset, placed, peak, &best);
    return best;
}

/* Few sizes and lives, so that bounds are missed often and equal items occur. */
static void small_problem(uint64_t *seed, tsr_pack_item *items, tsr_pack_problem *problem)
{
    size_t grain = (size_t)1 << random_below(seed, 4);
    int64_t steps = 3 + (int64_t)random_below(seed, 8), fixed_end = 0;
    bool aligned = random_below(seed, 2), fix = random_below(seed, 3) == 0;
    for (int i = 0; i < SMALL; i++) {
        int64_t lower = (int64_t)random_below(seed, (uint64_t)steps);
        int64_t upper = lower + 1 + (int64_t)random_below(seed, (uint64_t)steps / 2);
        items[i] = (tsr_pack_item){lower, upper, 1 + (size_t)random_below(seed, 9), 1, TSR_PACK_FREE, NULL};
        items[i].alignment = aligned ? grain << random_below(seed, 2) : 1;
        if (fix && random_below(seed, 3) == 0) {
            int64_t alignment = (int64_t)items[i].alignment;
            fixed_end = (fixed_end + (int64_t)random_below(seed, 8) + alignment - 1) / alignment * alignment;
            items[i].fixed_offset = fixed_end;
            fixed_end += (int64_t)items[i].size;
        }
    }
    *problem = (tsr_pack_problem){items, SMALL, 0};
}

static void small_problems_are_solved_to_the_proven_optimum(void **state)
{
    (void)state;
    uint64_t seed = 21;
    int searched = 0, above_bound = 0;

    for (int round = 0; round < 1500; round++) {
        tsr_pack_item items[SMALL];
        tsr_pack_problem problem;
        tsr_pack_solution s;
        small_problem(&seed, items, &problem);
        solve(&problem, NULL, &s);
        assert_true(s.optimal);
        assert_int_equal(s.total_bytes, smallest_total(&problem));
        searched += !strcmp(s.method, "exact");
        above_bound += s.total_bytes > s.bound_bytes;
        tsr_pack_solution_free(&s);
    }
    assert_true(searched > 10 && above_bound > 100);
}

/* A limit on chunks never lets a packing be smaller than one without (but for alignment, absent here). */
static void chunks_cost_bytes_at_most(void **state)
{
    (void)state;
    uint64_t seed = 22;
    int several = 0;

    for (int round = 0; round < 300; round++) {
        tsr_pack_item items[SMALL];
        tsr_pack_problem problem;
        tsr_pack_solution one, many;
        small_problem(&seed, items, &problem);
        for (int i = 0; i < SMALL; i++) {
            items[i].alignment = 1;
            items[i].fixed_offset = TSR_PACK_FREE;
        }
        solve(&problem, NULL, &one);
        problem.max_chunk_bytes = 9 + (size_t)random_below(&seed, 8);
        solve(&problem, NULL, &many);
        assert_true(one.optimal && many.total_bytes >= one.total_bytes);
        if (one.total_bytes <= problem.max_chunk_bytes)
            assert_int_equal(many.total_bytes, one.total_bytes);
        several += many.n_chunks > 1;
        tsr_pack_solution_free(&many);
        tsr_pack_solution_free(&one);
    }
    assert_true(several > 30);
}

/* ---- limits ---------------------------------------------------------------------------------------- */

enum { MEDIUM = 120 };

static void medium_problem(uint64_t seed, tsr_pack_item *items, tsr_pack_problem *problem)
{
    for (int i = 0; i < MEDIUM; i++) {
        int64_t lower = (int64_t)random_below(&seed, 300);
        int64_t upper = lower + 1 + (int64_t)random_below(&seed, 60);
        items[i] =
            (tsr_pack_item){lower, upper, 1 + (size_t)random_below(&seed, 1000), 1, TSR_PACK_FREE, NULL};
    }
    *problem = (tsr_pack_problem){items, MEDIUM, 0};
}

static void a_spent_budget_leaves_the_greedy_packing_unproven(void **state)
{
    (void)state;
    int improved = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        tsr_pack_item items[MEDIUM];
        tsr_pack_problem problem;
        tsr_pack_limits none = {.max_nodes = 0}, one = {.max_nodes = 1}, many = {.max_nodes = 3000};
        tsr_pack_solution greedy, hardly, exact;
        medium_problem(seed, items, &problem);
        solve(&problem, &none, &greedy);
        solve(&problem, &one, &hardly);
        solve(&problem, &many, &exact);
        assert_true(strcmp(greedy.method, "exact") != 0);
        assert_true(greedy.optimal == (greedy.total_bytes == greedy.bound_bytes));
        assert_int_equal(hardly.total_bytes, greedy.total_bytes);
        assert_true(hardly.n_nodes <= greedy.n_nodes + 1);
        assert_true(exact.n_nodes <= greedy.n_nodes + 3000);
        assert_true(exact.total_bytes <= greedy.total_bytes);
        improved += exact.total_bytes < greedy.total_bytes;
        tsr_pack_solution_free(&exact);
        tsr_pack_solution_free(&hardly);
        tsr_pack_solution_free(&greedy);
    }
    assert_true(improved > 5);
}

static void a_capacity_is_met_where_that_is_possible(void **state)
{
    (void)state;
    uint64_t seed = 23;
    int searched = 0;
    for (int round = 0; round < 500; round++) {
        tsr_pack_item items[SMALL];
        tsr_pack_problem problem;
        tsr_pack_solution s;
        small_problem(&seed, items, &problem);
        size_t smallest = smallest_total(&problem);
        tsr_pack_limits limits = {.max_nodes = 20000, .capacity = smallest + (size_t)random_below(&seed, 2)};
        solve(&problem, &limits, &s);
        assert_true(smallest <= s.total_bytes && s.total_bytes <= limits.capacity);
        assert_true(!s.optimal || s.total_bytes == smallest);
        searched += !strcmp(s.method, "exact");
        tsr_pack_solution_free(&s);
    }
    assert_true(searched > 0);
}

/* ---- published instances --------------------------------------------------------------------------- */

enum { MOST_ITEMS = 512 };

/* Lines of id,lower,upper,size behind a header; -1 where the file is missing. */
static int read_instance(char letter, tsr_pack_item *items)
{
    char path[64];
    long long lower, upper, size;
    int n = 0;
    snprintf(path, sizeof path, "../shared/packing/%c.1048576.csv", letter);
    FILE *file = fopen(path, "r");
    if (!file)
        return -1;
    if (fscanf(file, "%*[^\n]") == 0)
        while (n < MOST_ITEMS && fscanf(file, "%*d,%lld,%lld,%lld", &lower, &upper, &size) == 3)
            items[n++] = (tsr_pack_item){lower, upper, (size_t)size, 1, TSR_PACK_FREE, NULL};
    fclose(file);
    return n;
}

/* Those that take few nodes; bench/pack solves the others in seconds. */
static void hard_instances_are_packed_into_their_capacity(void **state)
{
    (void)state;
    static tsr_pack_item items[MOST_ITEMS];
    for (const char *letter = "ABCEFGK"; *letter; letter++) {
        tsr_pack_problem problem = {.items = items, .n_items = read_instance(*letter, items)};
        tsr_pack_limits limits = {.max_nodes = 15000, .capacity = 1048576};
        tsr_pack_solution s;
        if (problem.n_items < 0) {
            print_message("skipped: ../shared/packing/%c.1048576.csv is not there\n", *letter);
            skip();
        }
        solve(&problem, &limits, &s);
        print_message("%c: %d items, %zu bytes, bound %zu, %lld nodes\n", *letter, s.n_items, s.total_bytes,
                      s.bound_bytes, (long long)s.n_nodes);
        assert_int_equal(s.total_bytes, s.bound_bytes);
        assert_true(s.optimal);
        tsr_pack_solution_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_problems_are_solved_to_the_proven_optimum),
        cmocka_unit_test(chunks_cost_bytes_at_most),
        cmocka_unit_test(a_spent_budget_leaves_the_greedy_packing_unproven),
        cmocka_unit_test(a_capacity_is_met_where_that_is_possible),
        cmocka_unit_test(hard_instances_are_packed_into_their_capacity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
