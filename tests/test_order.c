/* The order of ops: small random graphs against every order that their dependencies allow. The bytes of an
 * order are counted from the layout that it gets, which is what is allocated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/runtime.h"
#include "graph/graph.h"
#include "graph/emit/layout.h"
#include "support/random.h"

enum { MOST_INSTRS = 9, MOST_VALUES = 2 * MOST_INSTRS + 2, N_DEVICES = 2 };

/* A lowered graph in arrays of its own. */
typedef struct sample {
    tsr_value values[MOST_VALUES];
    tsr_instr instrs[MOST_INSTRS];
    tsr_node_args args[MOST_INSTRS];
    tsr_lowered low;
    tsr_device devices[N_DEVICES];
    tsr_device *device_pointers[N_DEVICES];
    tsr_runtime rt;
} sample;

static void set_up(sample *s, int n_devices)
{
    *s = (sample){.low = {.values = s->values, .instrs = s->instrs}};
    for (int d = 0; d < n_devices; d++) {
        s->devices[d] = (tsr_device){.index = d, .alignment = 4, .max_alloc = SIZE_MAX};
        s->device_pointers[d] = &s->devices[d];
    }
    s->rt = (tsr_runtime){.n_devices = n_devices, .devices = s->device_pointers};
}

static int add_value(sample *s, tsr_sharding sharding, uint64_t devices, int64_t words, unsigned flags)
{
    s->values[s->low.n_values] = (tsr_value){.name = "v",
                                             .ne0 = words,
                                             .ne1 = 1,
                                             .sharding = sharding,
                                             .devices = devices,
                                             .contributors = devices,
                                             .whole = -1,
                                             .flags = flags};
    return s->low.n_values++;
}

/* An instruction that reads a and b (-1: no operand) and makes `out` (-1: nothing). */
static tsr_instr *add_instr(sample *s, tsr_op_kind kind, int a, int b, int out, uint64_t devices)
{
    int i = s->low.n_instrs++;
    tsr_instr *instr = &s->instrs[i];
    *instr = (tsr_instr){.kind = kind, .args = &s->args[i], .out = out, .devices = devices, .collective = -1};
    if (a >= 0)
        instr->in[instr->n_in++] = a;
    if (b >= 0)
        instr->in[instr->n_in++] = b;
    return instr;
}

/* A value that a new instruction may read on all of `devices`. */
static int some_value(const sample *s, uint64_t *seed, uint64_t devices)
{
    int first = (int)random_below(seed, (uint64_t)s->low.n_values);
    for (int k = 0; k < s->low.n_values; k++) {
        int v = (first + k) % s->low.n_values;
        if (s->values[v].sharding != TSR_SHARDING_PARTIAL && !(devices & ~s->values[v].devices))
            return v;
    }
    return 0;
}

/* A partial sum and the all-reduce of it. */
static void add_reduction(sample *s, uint64_t *seed, uint64_t all)
{
    int64_t words = 1 + (int64_t)random_below(seed, 9);
    int part = add_value(s, TSR_SHARDING_PARTIAL, all, words, 0);
    add_instr(s, TSR_OP_MUL_MAT, some_value(s, seed, all), -1, part, all);
    int sum = add_value(s, TSR_SHARDING_REPLICATED, all, words, 0);
    add_instr(s, TSR_OP_ALL_REDUCE, part, -1, sum, all)->collective = s->low.n_collectives++;
}

static void add_random(sample *s, uint64_t *seed, uint64_t all)
{
    static const tsr_op_kind kinds[] = {TSR_OP_MUL_MAT, TSR_OP_MUL_MAT, TSR_OP_RMS_NORM,
                                        TSR_OP_GLU,     TSR_OP_ADD,     TSR_OP_ATTENTION};
    uint64_t devices = all == 1 || random_below(seed, 2) ? all : 1 + random_below(seed, 2);
    tsr_op_kind kind = kinds[random_below(seed, 6)];
    int a = some_value(s, seed, devices), b = -1;
    if (kind == TSR_OP_ATTENTION && random_below(seed, 2)) {
        s->args[s->low.n_instrs].layer = (int)random_below(seed, 2);
        add_instr(s, TSR_OP_KV_WRITE, a, some_value(s, seed, devices), -1, devices);
        return;
    }
    if (kind == TSR_OP_GLU || kind == TSR_OP_ADD)
        b = some_value(s, seed, devices);
    bool in_place = kind != TSR_OP_MUL_MAT && kind != TSR_OP_ATTENTION;
    int64_t words = in_place ? s->values[a].ne0 : 1 + (int64_t)random_below(seed, 9);
    if (kind == TSR_OP_GLU && s->values[b].ne0 != words)
        b = a;
    s->args[s->low.n_instrs].layer = (int)random_below(seed, 2);
    unsigned flags = random_below(seed, 6) == 0 ? TSR_TENSOR_OUTPUT : 0;
    add_instr(s, kind, a, b, add_value(s, TSR_SHARDING_REPLICATED, devices, words, flags), devices);
}

static void random_sample(sample *s, uint64_t *seed)
{
    int n_devices = 1 + (int)random_below(seed, N_DEVICES);
    uint64_t all = (UINT64_C(1) << n_devices) - 1;
    int n = 4 + (int)random_below(seed, MOST_INSTRS - 4);
    set_up(s, n_devices);
    for (int i = 1 + (int)random_below(seed, 2); i > 0; i--)
        add_value(s, TSR_SHARDING_REPLICATED, all, 1 + (int64_t)random_below(seed, 9), TSR_TENSOR_INPUT);
    while (s->low.n_instrs < n) {
        if (random_below(seed, 4) == 0 && s->low.n_instrs + 2 <= MOST_INSTRS)
            add_reduction(s, seed, all);
        else
            add_random(s, seed, all);
    }
}

/* -- every order -- */

static bool touches_kv(const tsr_instr *instr)
{
    return instr->kind == TSR_OP_KV_WRITE || instr->kind == TSR_OP_ATTENTION;
}

/* Whether j, which comes after i as lowered, must do so in every order. */
static bool must_follow(const sample *s, int i, int j)
{
    const tsr_instr *a = &s->instrs[i], *b = &s->instrs[j];
    bool partial = b->out >= 0 && s->values[b->out].sharding == TSR_SHARDING_PARTIAL;
    for (int k = 0; k < b->n_in; k++)
        if (a->out == b->in[k])
            return true;
    return (a->collective >= 0 && (b->collective >= 0 || partial)) ||
           (touches_kv(a) && touches_kv(b) && a->args->layer == b->args->layer);
}

static void count_peaks(const sample *s, const int *order, size_t *peak)
{
    tsr_layout layout = {0};
    tsr_instr instrs[MOST_INSTRS];
    tsr_lowered low = s->low;
    for (int i = 0; i < low.n_instrs; i++)
        instrs[i] = s->instrs[order[i]];
    low.instrs = instrs;
    assert_int_equal(tsr_layout_create(&s->rt, &low, TSR_REDUCE_EXACT, &layout), TSR_OK);
    for (int d = 0; d < s->rt.n_devices; d++) {
        peak[d] = 0;
        for (int t = 0; t < low.n_instrs; t++) {
            size_t live = 0;
            for (int k = 0; k < layout.devices[d].n_items; k++) {
                const tsr_item *item = &layout.devices[d].items[k];
                bool over = item->over >= 0 && t == item->lower; /* where its operand lies */
                live += item->lower <= t && t < item->upper && !over ? item->bytes : 0;
            }
            peak[d] = live > peak[d] ? live : peak[d];
        }
    }
    tsr_layout_free(&layout);
}

typedef struct enumeration {
    const sample *s;
    const size_t *peak; /* of the order that was chosen */
    int order[MOST_INSTRS];
    bool used[MOST_INSTRS];
    int n_orders;
    bool better; /* some order is lower on one device and higher on none */
} enumeration;

static void judge(enumeration *e)
{
    size_t peak[N_DEVICES];
    bool lower = false, higher = false;
    count_peaks(e->s, e->order, peak);
    for (int d = 0; d < e->s->rt.n_devices; d++) {
        lower = lower || peak[d] < e->peak[d];
        higher = higher || peak[d] > e->peak[d];
    }
    e->better = e->better || (lower && !higher);
    e->n_orders++;
}

static void enumerate(enumeration *e, int depth)
{
    enum { MOST_ORDERS = 3000 }; /* of one sample; beyond that those that begin like the given one */
    int n = e->s->low.n_instrs;
    if (depth == n) {
        judge(e);
        return;
    }
    for (int i = 0; i < n && e->n_orders < MOST_ORDERS; i++) {
        bool ready = !e->used[i];
        for (int j = 0; j < i && ready; j++)
            ready = e->used[j] || !must_follow(e->s, j, i);
        if (!ready)
            continue;
        e->used[i] = true;
        e->order[depth] = i;
        enumerate(e, depth + 1);
        e->used[i] = false;
    }
}

static void check_order(const sample *s, const tsr_order *order)
{
    int place[MOST_INSTRS], given[MOST_INSTRS], n_moved = 0;
    size_t peak[N_DEVICES];
    memset(place, -1, sizeof place);
    for (int i = 0; i < s->low.n_instrs; i++) {
        place[order->instrs[i]] = i;
        given[i] = i;
        n_moved += order->instrs[i] != i;
    }
    assert_int_equal(order->n_moved, n_moved);
    for (int j = 0; j < s->low.n_instrs; j++)
        for (int i = 0; i < j; i++)
            assert_true(place[i] >= 0 && (!must_follow(s, i, j) || place[i] < place[j]));
    count_peaks(s, given, peak);
    assert_memory_equal(peak, order->given_bytes, (size_t)s->rt.n_devices * sizeof *peak);
    count_peaks(s, order->instrs, peak);
    assert_memory_equal(peak, order->peak_bytes, (size_t)s->rt.n_devices * sizeof *peak);
    for (int d = 0; d < s->rt.n_devices; d++)
        assert_true(order->peak_bytes[d] <= order->given_bytes[d]);
}

static void no_order_of_a_small_graph_needs_less(void **state)
{
    (void)state;
    uint64_t seed = 41;
    int n_lowered = 0, n_choices = 0;
    for (int round = 0; round < 1500; round++) {
        sample s;
        tsr_order order;
        random_sample(&s, &seed);
        assert_int_equal(tsr_order_choose(&s.rt, &s.low, NULL, &order), TSR_OK);
        check_order(&s, &order);
        enumeration e = {.s = &s, .peak = order.peak_bytes};
        enumerate(&e, 0);
        assert_true(order.least && !e.better);
        n_choices += e.n_orders > 1;
        bool lowered = memcmp(order.peak_bytes, order.given_bytes, (size_t)s.rt.n_devices * sizeof(size_t));
        assert_true(lowered == (order.n_moved > 0));
        n_lowered += lowered;
        tsr_order_free(&order);
    }
    assert_true(n_choices > 1000 && n_lowered > 100);
}

/* -- what is asked of it besides -- */

/* norm, then small and large branches written in the worst order: large results first, used last. */
static void branches(sample *s, int64_t large, int64_t small)
{
    set_up(s, 1);
    int x = add_value(s, TSR_SHARDING_REPLICATED, 1, small, TSR_TENSOR_INPUT);
    int h = add_value(s, TSR_SHARDING_REPLICATED, 1, small, 0);
    int a = add_value(s, TSR_SHARDING_REPLICATED, 1, large, 0);
    int b = add_value(s, TSR_SHARDING_REPLICATED, 1, large, 0);
    int c = add_value(s, TSR_SHARDING_REPLICATED, 1, small, 0);
    int d = add_value(s, TSR_SHARDING_REPLICATED, 1, small, 0);
    int y = add_value(s, TSR_SHARDING_REPLICATED, 1, small, TSR_TENSOR_OUTPUT);
    add_instr(s, TSR_OP_MUL_MAT, x, -1, h, 1);
    add_instr(s, TSR_OP_MUL_MAT, h, -1, a, 1);
    add_instr(s, TSR_OP_MUL_MAT, h, -1, b, 1);
    add_instr(s, TSR_OP_MUL_MAT, a, -1, c, 1);
    add_instr(s, TSR_OP_MUL_MAT, b, -1, d, 1);
    add_instr(s, TSR_OP_MUL_MAT, c, d, y, 1);
}

static void large_branches_run_one_after_another(void **state)
{
    (void)state;
    sample s;
    tsr_order order;
    branches(&s, 1000, 10);
    assert_int_equal(tsr_order_choose(&s.rt, &s.low, NULL, &order), TSR_OK);
    check_order(&s, &order);
    assert_true(order.least);
    assert_int_equal(order.given_bytes[0], 4 * (2000 + 20));
    assert_int_equal(order.peak_bytes[0], 4 * (1000 + 30));
    assert_int_equal(order.n_moved, 2);
    tsr_order_free(&order);
}

static void an_order_that_saves_nothing_stays_as_it_was_written(void **state)
{
    (void)state;
    sample s;
    tsr_order order;
    branches(&s, 10, 1000);
    assert_int_equal(tsr_order_choose(&s.rt, &s.low, NULL, &order), TSR_OK);
    assert_int_equal(order.n_moved, 0);
    tsr_order_free(&order);
}

/* A program of fewer tokens must find its values where the larger one has them. */
static void a_smaller_program_takes_the_order_over(void **state)
{
    (void)state;
    sample large, small;
    tsr_order order, same, other;
    branches(&large, 1000, 10);
    branches(&small, 10, 1000);
    assert_int_equal(tsr_order_choose(&large.rt, &large.low, NULL, &order), TSR_OK);
    assert_int_equal(tsr_order_choose(&small.rt, &small.low, &order, &same), TSR_OK);
    assert_memory_equal(order.instrs, same.instrs, 6 * sizeof *order.instrs);
    small.instrs[3].in[0] = 3; /* c is now made of b: another graph, of which it is no order */
    assert_int_equal(tsr_order_choose(&small.rt, &small.low, &order, &other), TSR_OK);
    check_order(&small, &other);
    tsr_order_free(&order);
    tsr_order_free(&same);
    tsr_order_free(&other);
}

/* Many independent branches: more sets than the search may look at. It says so and keeps what it has. */
static void a_search_that_gives_up_says_so(void **state)
{
    enum { N_BRANCHES = 60, N = 2 * N_BRANCHES + 1 };
    (void)state;
    sample s;
    tsr_order order;
    uint64_t seed = 42;
    tsr_value *values = calloc(2 * N_BRANCHES + 2, sizeof *values);
    tsr_instr *instrs = calloc(N, sizeof *instrs);
    assert_true(values && instrs);
    set_up(&s, 1);
    s.low = (tsr_lowered){.values = values, .n_values = 2 * N_BRANCHES + 2, .instrs = instrs, .n_instrs = N};
    for (int v = 0; v < s.low.n_values; v++)
        values[v] = (tsr_value){.ne0 = 1 + (int64_t)random_below(&seed, 1000),
                                .ne1 = 1,
                                .sharding = TSR_SHARDING_REPLICATED,
                                .devices = 1,
                                .flags = v == 0 ? TSR_TENSOR_INPUT : 0};
    for (int i = 0; i < N; i++) {
        instrs[i] =
            (tsr_instr){.kind = TSR_OP_MUL_MAT, .devices = 1, .collective = -1, .n_in = 1, .out = i + 1};
        instrs[i].in[0] = i < N_BRANCHES ? 0 : i == N - 1 ? 2 * N_BRANCHES : i - N_BRANCHES + 1;
    }
    values[2 * N_BRANCHES + 1].flags = TSR_TENSOR_OUTPUT;
    for (int v = N_BRANCHES + 1; v <= 2 * N_BRANCHES; v++)
        values[v].flags = TSR_TENSOR_OUTPUT;
    assert_int_equal(tsr_order_choose(&s.rt, &s.low, NULL, &order), TSR_OK);
    assert_false(order.least);
    assert_true(order.peak_bytes[0] < order.given_bytes[0]);
    tsr_order_free(&order);
    free(instrs);
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_of_a_small_graph_needs_less),
        cmocka_unit_test(large_branches_run_one_after_another),
        cmocka_unit_test(an_order_that_saves_nothing_stays_as_it_was_written),
        cmocka_unit_test(a_smaller_program_takes_the_order_over),
        cmocka_unit_test(a_search_that_gives_up_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
