/* Exact packing: against exhaustive enumeration where that is possible,
 * and on the published hard instances. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/pack/pack.h"
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

/* -- exhaustive -- */

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

/* -- limits -- */

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

/* -- transformer graphs -- */

enum { MOST_ITEMS = 1024, MOST_LAYERS = 16 };

typedef struct graph {
    tsr_pack_item items[MOST_ITEMS];
    int n;
} graph;

/* The result of the next operation, which reads up to two earlier ones (-1: none); its number. */
static int op(graph *g, size_t size, int a, int b)
{
    int step = g->n;
    g->items[step] = (tsr_pack_item){step, step + 1, size, 128, TSR_PACK_FREE, NULL};
    if (a >= 0)
        g->items[a].upper = step + 1;
    if (b >= 0)
        g->items[b].upper = step + 1;
    return g->n++;
}

typedef struct shape {
    size_t width, ffn, kv, scores; /* bytes */
    size_t router;                 /* bytes of a mixture's router; 0: a dense FFN */
    size_t n_used;                 /* experts per token */
    bool flash, post_norms, fused; /* fused: q, k and v in one product, gate and up in another */
} shape;

/* Values of a layer that its backward pass reads. */
typedef struct kept {
    int norm, query, ffn_norm, up;
} kept;

/* Scores, the chosen experts and their weights; each token's rows once per expert; the weighted sum. */
static int mixture(graph *g, const shape *s, int norm)
{
    int chosen = op(g, s->router / 4, op(g, s->router, op(g, s->router, norm, -1), -1), -1);
    int up = op(g, s->n_used * s->ffn, norm, chosen), gate = op(g, s->n_used * s->ffn, norm, chosen);
    int down = op(g, s->n_used * s->width, op(g, s->n_used * s->ffn, up, gate), chosen);
    return op(g, s->width, down, chosen);
}

static int layer_forward(graph *g, const shape *s, int x, int position, kept *kept_out)
{
    int norm = op(g, s->width, x, -1), all = s->fused ? op(g, s->width + 2 * s->kv, norm, -1) : norm;
    int query = op(g, s->width, all, -1), key = op(g, s->kv, all, -1), value = op(g, s->kv, all, -1);
    int keys = op(g, s->kv, key, position);
    int turned = op(g, s->width, query, position);
    int weights = s->flash ? turned : op(g, s->scores, op(g, s->scores, turned, keys), -1);
    int mixed = op(g, s->width, weights, s->flash ? keys : value);
    if (s->flash)
        g->items[value].upper = g->n;
    int attention = op(g, s->width, mixed, -1);
    if (s->post_norms)
        attention = op(g, s->width, attention, -1);
    int sum = op(g, s->width, attention, x), ffn_norm = op(g, s->width, sum, -1), up = ffn_norm, down;
    if (s->router) {
        down = mixture(g, s, ffn_norm);
    } else {
        int both = s->fused ? op(g, 2 * s->ffn, ffn_norm, -1) : ffn_norm, gate = op(g, s->ffn, both, -1);
        up = op(g, s->ffn, both, -1);
        down = op(g, s->width, op(g, s->ffn, up, gate), -1);
    }
    if (s->post_norms)
        down = op(g, s->width, down, -1);
    *kept_out = (kept){norm, turned, ffn_norm, up};
    return op(g, s->width, down, sum);
}

static int layer_backward(graph *g, const shape *s, int gradient, const kept *k)
{
    int hidden = op(g, s->ffn, gradient, k->up), inner = op(g, s->width, hidden, k->ffn_norm);
    int sum = op(g, s->width, inner, gradient), mixed = op(g, s->width, sum, k->query);
    return op(g, s->width, op(g, s->width, mixed, k->norm), sum);
}

static void random_transformer(uint64_t *seed, graph *g)
{
    size_t n_tokens = 1 + (size_t)random_below(seed, 700), row = 256 * (1 + (size_t)random_below(seed, 16));
    shape s = {.width = n_tokens * row,
               .flash = random_below(seed, 2),
               .post_norms = random_below(seed, 3) == 0,
               .fused = random_below(seed, 3) == 0,
               .router = random_below(seed, 3) == 0 ? n_tokens * 512 : 0,
               .n_used = 1 + (size_t)random_below(seed, 8)};
    s.ffn = s.width * (2 + (size_t)random_below(seed, 3));
    s.kv = s.width / (1 + (size_t)random_below(seed, 8));
    s.scores = n_tokens * 4096 * (1 + (size_t)random_below(seed, 8));
    int n_layers = 2 + (int)random_below(seed, MOST_LAYERS - 1);
    bool train = random_below(seed, 3) == 0;
    kept layers[MOST_LAYERS];

    g->n = 0;
    int position = op(g, 4 * n_tokens, -1, -1), x = op(g, s.width, position, -1);
    for (int l = 0; l < n_layers; l++)
        x = layer_forward(g, &s, x, position, &layers[l]);
    x = op(g, n_tokens * 32000, op(g, s.width, x, -1), -1);
    if (train)
        x = op(g, s.width, x, -1);
    for (int l = n_layers - 1; train && l >= 0; l--)
        x = layer_backward(g, &s, x, &layers[l]);
}

static void transformers_of_many_shapes_meet_their_bound(void **state)
{
    (void)state;
    static graph g;
    uint64_t seed = 24;
    for (int round = 0; round < 300; round++) {
        tsr_pack_solution s;
        random_transformer(&seed, &g);
        tsr_pack_problem problem = {.items = g.items, .n_items = g.n};
        solve(&problem, NULL, &s);
        assert_int_equal(s.total_bytes, s.bound_bytes);
        tsr_pack_solution_free(&s);
    }
}

/* -- published instances -- */

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
        cmocka_unit_test(transformers_of_many_shapes_meet_their_bound),
        cmocka_unit_test(hard_instances_are_packed_into_their_capacity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
