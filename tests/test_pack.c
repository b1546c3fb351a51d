/* Static memory packing: every result goes through the quadratic validator. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "alloc/pack/pack.h"
#include "support/failing_alloc.h"
#include "support/message.h"

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int64_t random_below(uint64_t *state, int64_t n)
{
    return (int64_t)(next_random(state) % (uint64_t)n);
}

static tsr_pack_item item_of(int64_t lower, int64_t upper, size_t size)
{
    return (tsr_pack_item){lower, upper, size, 1, TSR_PACK_FREE, NULL};
}

static size_t live_at(const tsr_pack_problem *problem, int64_t step)
{
    size_t sum = 0;
    for (int i = 0; i < problem->n_items; i++)
        if (problem->items[i].lower <= step && step < problem->items[i].upper)
            sum += problem->items[i].size;
    return sum;
}

static size_t naive_bound(const tsr_pack_problem *problem)
{
    size_t most = 0;
    for (int i = 0; i < problem->n_items; i++) {
        size_t live = live_at(problem, problem->items[i].lower);
        most = live > most ? live : most;
    }
    return most;
}

static const tsr_pack_limits few_nodes = {.max_nodes = 50};

/* Solve, validate, and hand the solution to the caller. */
static void solve(const tsr_pack_problem *problem, tsr_pack_solution *solution)
{
    if (tsr_pack_solve(problem, &few_nodes, solution) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    if (tsr_pack_check(problem, solution) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    assert_true(solution->total_bytes >= solution->bound_bytes);
    assert_true(solution->bound_bytes >= naive_bound(problem));
}

/* -- small, by hand -- */

static void items_that_do_not_meet_share_bytes(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 2, 100), item_of(1, 3, 50), item_of(2, 4, 100)};
    tsr_pack_problem problem = {items, 3, 0};
    tsr_pack_solution s;

    solve(&problem, &s);
    assert_int_equal(s.total_bytes, 150);
    assert_int_equal(s.bound_bytes, 150);
    assert_int_equal(s.n_chunks, 1);
    assert_int_equal(s.places[0].offset, s.places[2].offset);
    tsr_pack_solution_free(&s);
    assert_null(s.places);
    tsr_pack_solution_free(&s);
    tsr_pack_solution_free(NULL);
}

static void nothing_needs_nothing(void **state)
{
    (void)state;
    tsr_pack_problem problem = {NULL, 0, 0};
    tsr_pack_item empty = item_of(0, 1, 0);
    tsr_pack_solution s;

    solve(&problem, &s);
    assert_int_equal(s.total_bytes, 0);
    assert_int_equal(s.n_chunks, 0);
    tsr_pack_solution_free(&s);

    problem = (tsr_pack_problem){&empty, 1, 0};
    solve(&problem, &s);
    assert_int_equal(s.total_bytes, 0);
    tsr_pack_solution_free(&s);
}

/* Among random problems there are some for each. */
static void the_better_search_wins(void **state)
{
    (void)state;
    uint64_t seed = 11;
    bool best_fit = false, skyline = false;

    for (int round = 0; round < 200 && !(best_fit && skyline); round++) {
        tsr_pack_item items[40];
        for (int i = 0; i < 40; i++) {
            int64_t lower = random_below(&seed, 50);
            size_t size = (size_t)(1 + random_below(&seed, 100));
            items[i] = item_of(lower, lower + 1 + random_below(&seed, 12), size);
        }
        tsr_pack_problem problem = {items, 40, 0};
        tsr_pack_solution s;
        solve(&problem, &s);
        best_fit = best_fit || !strcmp(s.method, "best fit");
        skyline = skyline || !strcmp(s.method, "skyline");
        tsr_pack_solution_free(&s);
    }
    assert_true(best_fit && skyline);
}

static void alignment_raises_bound_and_offsets(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 1, 100), item_of(0, 1, 100), item_of(0, 1, 100)};
    for (int i = 0; i < 3; i++)
        items[i].alignment = 256;
    tsr_pack_problem problem = {items, 3, 0};
    tsr_pack_solution s;

    solve(&problem, &s);
    assert_int_equal(s.total_bytes, 612); /* 256 + 256 + 100 */
    assert_int_equal(s.bound_bytes, 612);
    tsr_pack_solution_free(&s);
}

static void fixed_items_stay_where_they_are(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 9, 100), item_of(3, 5, 50), item_of(0, 4, 60), item_of(4, 9, 60)};
    items[0].fixed_offset = 64;
    items[1].fixed_offset = 200;
    tsr_pack_problem problem = {items, 4, 0};
    tsr_pack_solution s;

    solve(&problem, &s);
    assert_int_equal(s.places[0].offset, 64);
    assert_int_equal(s.places[1].offset, 200);
    assert_int_equal(s.places[2].offset, 0); /* below the fixed item */
    assert_int_equal(s.total_bytes, 250);
    assert_int_equal(s.bound_bytes, 250);
    tsr_pack_solution_free(&s);
}

static void chunks_keep_their_limit(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 2, 60), item_of(0, 2, 60), item_of(0, 2, 40), item_of(1, 3, 40)};
    tsr_pack_problem problem = {items, 4, 100};
    tsr_pack_solution s;

    solve(&problem, &s);
    assert_int_equal(s.n_chunks, 2);
    assert_int_equal(s.total_bytes, 200);
    tsr_pack_solution_free(&s);

    problem.max_chunk_bytes = 1000000; /* no limit in effect */
    solve(&problem, &s);
    assert_int_equal(s.n_chunks, 1);
    tsr_pack_solution_free(&s);
}

/* -- what is refused -- */

static void malformed_items_are_named(void **state)
{
    (void)state;
    static const struct {
        tsr_pack_item item;
        size_t max_chunk_bytes;
        tsr_status status;
        const char *message;
    } cases[] = {
        {{3, 3, 1, 1, TSR_PACK_FREE, "kq"}, 0, TSR_ERR_INVALID, "item 1 (kq) lives in [3, 3)"},
        {{4, 3, 1, 1, TSR_PACK_FREE, NULL}, 0, TSR_ERR_INVALID, "item 1 () lives in [4, 3)"},
        {{0, INT64_MAX, 1, 1, TSR_PACK_FREE, "kq"}, 0, TSR_ERR_INVALID, "no lifetime"},
        {{0, 1, 1, 3, TSR_PACK_FREE, "kq"}, 0, TSR_ERR_INVALID, "item 1 (kq) has alignment 3"},
        {{0, 1, SIZE_MAX, 1, TSR_PACK_FREE, "kq"}, 0, TSR_ERR_INVALID, "item 1 (kq) of"},
        {{0, 1, 1, SIZE_MAX / 2 + 1, TSR_PACK_FREE, "kq"}, 0, TSR_ERR_INVALID, "item 1 (kq) of"},
        {{0, 1, 101, 1, TSR_PACK_FREE, "kq"},
         100,
         TSR_ERR_MEMORY,
         "item 1 (kq) has 101 bytes, but one allocation may have no more than 100"},
        {{0, 1, 16, 16, 8, "kq"}, 0, TSR_ERR_INVALID, "item 1 (kq) of 16 bytes is fixed at 8"},
        {{0, 1, 16, 1, -2, "kq"}, 0, TSR_ERR_INVALID, "fixed at -2"},
        {{0, 1, 16, 1, 90, "kq"}, 100, TSR_ERR_INVALID, "fixed at 90"},
        {{0, 1, 16, 1, INT64_MAX, "kq"}, 0, TSR_ERR_INVALID, "fixed at"},
        {{0, 1, 16, 1, 4, "kq"}, 0, TSR_ERR_INVALID, "items 0 (x) and 1 (kq) are fixed to the same bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_pack_item items[] = {{0, 2, 10, 0, 0, "x"}, cases[i].item};
        tsr_pack_problem problem = {items, 2, cases[i].max_chunk_bytes};
        tsr_pack_solution s = {.n_chunks = -7};
        assert_int_equal(tsr_pack_solve(&problem, &few_nodes, &s), cases[i].status);
        assert_message_has(cases[i].message);
        assert_int_equal(s.n_chunks, -7);
    }
    tsr_pack_problem problem = {NULL, 1, 0};
    tsr_pack_solution s;
    assert_int_equal(tsr_pack_solve(&problem, &few_nodes, &s), TSR_ERR_INVALID);
}

static void the_validator_sees_every_fault(void **state)
{
    (void)state;
    tsr_pack_item items[] = {item_of(0, 2, 10), {1, 3, 10, 8, TSR_PACK_FREE, NULL}, {0, 3, 10, 1, 40, NULL}};
    tsr_pack_problem problem = {items, 3, 64};
    tsr_pack_place places[3];
    size_t chunk_bytes[2];
    static const tsr_pack_place good[] = {{0, 0}, {0, 16}, {0, 40}};
    static const struct {
        int item;
        tsr_pack_place place;
        const char *message;
    } faults[] = {
        {0, {0, 7}, "share bytes"},  {0, {0, 25}, "share bytes"},  {0, {0, 31}, "share bytes"},
        {1, {0, 12}, "not aligned"}, {0, {0, 41}, "leaves chunk"}, {0, {1, 0}, "chunk 1 of 1"},
        {0, {-1, 0}, "chunk -1"},    {2, {0, 39}, "is fixed at"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults + 1; i++) {
        memcpy(places, good, sizeof good);
        chunk_bytes[0] = 50;
        tsr_pack_solution s = {places, 3, chunk_bytes, 1, 50, 0, false, 0, ""};
        if (i == sizeof faults / sizeof *faults) {
            assert_int_equal(tsr_pack_check(&problem, &s), TSR_OK);
            for (int n = 1; n <= 2; n++) {
                failing_alloc_set(n);
                tsr_status status = tsr_pack_check(&problem, &s);
                failing_alloc_set(0);
                assert_int_equal(status, TSR_ERR_MEMORY);
            }
            s.total_bytes = 49;
            assert_int_equal(tsr_pack_check(&problem, &s), TSR_ERR_INVALID);
            s.total_bytes = chunk_bytes[0] = 65;
            assert_int_equal(tsr_pack_check(&problem, &s), TSR_ERR_INVALID);
            s.n_items = 2;
            assert_int_equal(tsr_pack_check(&problem, &s), TSR_ERR_INVALID);
            break;
        }
        places[faults[i].item] = faults[i].place;
        assert_int_equal(tsr_pack_check(&problem, &s), TSR_ERR_INVALID);
        assert_message_has(faults[i].message);
    }
}

/* Items with the same offset one after another, like most of a long chain of ops. The validator compares
 * pairs; comparing a pair must not visit all items, or ten thousand items take minutes. */
static void the_validator_takes_a_moment_for_each_pair(void **state)
{
    (void)state;
    enum { N = 6000 };
    static tsr_pack_item items[N];
    static tsr_pack_place places[N];
    size_t chunk_bytes = 64;
    for (int i = 0; i < N; i++)
        items[i] = item_of(i, i + 1, 64);
    tsr_pack_problem problem = {items, N, 0};
    tsr_pack_solution s = {places, N, &chunk_bytes, 1, 64, 64, true, 0, ""};
    clock_t start = clock();
    assert_int_equal(tsr_pack_check(&problem, &s), TSR_OK);
    assert_true((double)(clock() - start) < 10.0 * CLOCKS_PER_SEC); /* 0.1 s, more with sanitizers */
}

/* -- random -- */

enum { RANDOM_ITEMS = 120 };

static void random_problem(uint64_t *seed, tsr_pack_item *items, tsr_pack_problem *problem)
{
    int64_t steps = 1 + random_below(seed, 100), sizes = 1 + random_below(seed, 2000), fixed_end = 0;
    size_t largest = 1;
    bool align = random_below(seed, 2), fix = random_below(seed, 3) == 0;
    int n = (int)random_below(seed, RANDOM_ITEMS);

    for (int i = 0; i < n; i++) {
        int64_t lower = random_below(seed, steps) - 5;
        size_t size = (size_t)random_below(seed, sizes); /* not an argument: their order is the compiler's */
        items[i] = item_of(lower, lower + 1 + random_below(seed, steps), size);
        items[i].alignment = align ? (size_t)1 << random_below(seed, 9) : (size_t)random_below(seed, 2);
        if (fix && random_below(seed, 8) == 0) {
            int64_t alignment = items[i].alignment ? (int64_t)items[i].alignment : 1;
            items[i].fixed_offset =
                (fixed_end + random_below(seed, 50) + alignment - 1) / alignment * alignment;
            fixed_end = items[i].fixed_offset + (int64_t)items[i].size;
        }
        largest = items[i].size > largest ? items[i].size : largest;
    }
    largest = largest > (size_t)fixed_end ? largest : (size_t)fixed_end;
    *problem = (tsr_pack_problem){items, n, 0};
    if (random_below(seed, 2))
        problem->max_chunk_bytes = largest + (size_t)random_below(seed, 3000);
}

static void random_problems_are_packed_validly(void **state)
{
    (void)state;
    uint64_t seed = 12;
    int several_chunks = 0, at_bound = 0;

    for (int round = 0; round < 2000; round++) {
        tsr_pack_item items[RANDOM_ITEMS];
        tsr_pack_problem problem;
        tsr_pack_solution s, again;
        random_problem(&seed, items, &problem);
        solve(&problem, &s);
        solve(&problem, &again);
        assert_int_equal(s.total_bytes, again.total_bytes);
        for (int i = 0; i < problem.n_items; i++)
            assert_true(s.places[i].chunk == again.places[i].chunk &&
                        s.places[i].offset == again.places[i].offset);
        for (int c = 0; c < s.n_chunks && problem.n_items; c++)
            assert_true(s.chunk_bytes[c] > 0 || s.total_bytes == 0);
        several_chunks += s.n_chunks > 1;
        at_bound += s.total_bytes == s.bound_bytes;
        tsr_pack_solution_free(&again);
        tsr_pack_solution_free(&s);
    }
    assert_true(several_chunks > 300);
    assert_true(at_bound > 300);
}

static void any_failing_allocation_leaves_nothing_behind(void **state)
{
    (void)state;
    uint64_t seed = 13;
    tsr_pack_item items[RANDOM_ITEMS];
    int64_t failures = 0;
    /* Hard enough to miss the bound, so that every search runs. */
    for (int i = 0; i < RANDOM_ITEMS; i++) {
        int64_t lower = random_below(&seed, 300);
        size_t size = (size_t)(1 + random_below(&seed, 1000));
        items[i] = item_of(lower, lower + 1 + random_below(&seed, 60), size);
    }
    tsr_pack_problem problem = {items, RANDOM_ITEMS, 0};
    for (int n = 1;; n++) {
        tsr_pack_solution s = {.n_chunks = -7};
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = tsr_pack_solve(&problem, &few_nodes, &s);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            assert_true(s.total_bytes > s.bound_bytes); /* with so few nodes: every search has run */
            tsr_pack_solution_free(&s);
            assert_int_equal(failing_alloc_live(), blocks);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_int_equal(s.n_chunks, -7);
        assert_int_equal(failing_alloc_live(), blocks);
        failures++;
    }
    assert_true(failures > 40);
}

/* -- published and recorded instances -- */

enum { MOST_ITEMS = 2048 };

/* Lines of id,lower,upper,size behind a header; -1 where the file is missing. */
static int read_instance(const char *name, tsr_pack_item *items)
{
    char path[256];
    long long lower, upper, size;
    int n = 0;
    snprintf(path, sizeof path, "../shared/packing/%s.csv", name);
    FILE *file = fopen(path, "r");
    if (!file)
        return -1;
    if (fscanf(file, "%*[^\n]") == 0)
        while (n < MOST_ITEMS && fscanf(file, "%*d,%lld,%lld,%lld", &lower, &upper, &size) == 3)
            items[n++] = item_of(lower, upper, (size_t)size);
    fclose(file);
    return n;
}

static double pack_instance(const char *name)
{
    static tsr_pack_item items[MOST_ITEMS];
    tsr_pack_problem problem = {.items = items, .n_items = read_instance(name, items)};
    tsr_pack_solution s;
    if (problem.n_items < 0) {
        print_message("skipped: ../shared/packing/%s.csv is not there\n", name);
        skip();
    }
    assert_true(problem.n_items > 100);
    solve(&problem, &s);
    assert_int_equal(s.bound_bytes, naive_bound(&problem));
    double ratio = (double)s.total_bytes / (double)s.bound_bytes;
    print_message("%-32s %4d items, %10zu bytes, bound %10zu, ratio %.4f by %s\n", name, s.n_items,
                  s.total_bytes, s.bound_bytes, ratio, s.method);
    tsr_pack_solution_free(&s);
    return ratio;
}

static void hard_instances_come_near_their_bound(void **state)
{
    (void)state;
    double product = 1;
    for (char letter = 'A'; letter <= 'K'; letter++) {
        char name[32];
        snprintf(name, sizeof name, "%c.1048576", letter);
        double ratio = pack_instance(name);
        assert_true(ratio <= 1.27);
        product *= ratio;
    }
    double mean = pow(product, 1.0 / 11);
    print_message("geometric mean of A..K %.4f\n", mean);
    assert_true(mean <= 1.20);
}

static void transformer_graphs_meet_their_bound(void **state)
{
    (void)state;
    static const char *const names[] = {"llama8b_T1_out1_fa1_inplace", "llama8b_T512_out1_fa0_inplace",
                                        "llama8b_T512_out1_fa1_inplace", "train_gpt_L12_T1024_inplace"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(pack_instance(names[i]) == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_that_do_not_meet_share_bytes),
        cmocka_unit_test(nothing_needs_nothing),
        cmocka_unit_test(the_better_search_wins),
        cmocka_unit_test(alignment_raises_bound_and_offsets),
        cmocka_unit_test(fixed_items_stay_where_they_are),
        cmocka_unit_test(chunks_keep_their_limit),
        cmocka_unit_test(malformed_items_are_named),
        cmocka_unit_test(the_validator_sees_every_fault),
        cmocka_unit_test(the_validator_takes_a_moment_for_each_pair),
        cmocka_unit_test(random_problems_are_packed_validly),
        cmocka_unit_test(any_failing_allocation_leaves_nothing_behind),
        cmocka_unit_test(hard_instances_come_near_their_bound),
        cmocka_unit_test(transformer_graphs_meet_their_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
