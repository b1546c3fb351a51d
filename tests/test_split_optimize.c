/* The fastest split: compared with trying every split, and with what can be said by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "split/search/optimize.h"
#include "support/failing_alloc.h"
#include "support/random.h"

/* -- all splits, one by one -- */

typedef struct brute {
    const tsr_cost_problem *p;
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    double best_ns;
} brute;

static bool fits(const tsr_cost_problem *p, int64_t counts[][TSR_MAX_DEVICES], int n_classes, int d)
{
    size_t bytes = p->rooms[d].fixed_bytes, held = 0;
    for (int c = 0; c < n_classes; c++)
        held += (size_t)counts[c][d] * p->classes[c].granule_bytes;
    return held == 0 || bytes + held <= p->rooms[d].capacity_bytes;
}

static void try_all(brute *b, int c, int d, int64_t left)
{
    const tsr_cost_problem *p = b->p;
    if (c == p->n_classes || c == TSR_SPLIT_MAX_CLASSES) {
        tsr_cost_result result;
        tsr_cost_evaluate(p, b->counts, &result);
        b->best_ns = fmin(b->best_ns, result.total_ns);
        return;
    }
    bool last = d == p->n_devices - 1, allowed = p->allowed >> d & 1;
    for (int64_t n = last ? left : 0; n <= (allowed ? left : 0); n++) {
        b->counts[c][d] = n;
        if (!fits(p, b->counts, c + 1, d))
            break;
        if (last)
            try_all(b, c + 1, 0, c + 1 < p->n_classes ? p->classes[c + 1].n_granules : 0);
        else
            try_all(b, c, d + 1, left - n);
    }
    b->counts[c][d] = 0;
}

/* -- random problems -- */

typedef struct problem {
    tsr_cost_problem p;
    tsr_cost_class classes[3];
    tsr_split_room rooms[TSR_MAX_DEVICES];
    double sync_per_device;
} problem;

static double sync_by_count(void *user, uint64_t devices, int class_index)
{
    const problem *q = user;
    int n = __builtin_popcountll(devices);
    return n > 1 ? q->sync_per_device * (n + class_index) : 0;
}

/* Two walks with the same counts, in which devices differ in other ways. */
static void add_parts(uint64_t *r, int n_devices, tsr_cost_class *c)
{
    c->has_parts = true;
    for (int d = 0; d < n_devices; d++) {
        double slower = (double)(1 + random_below(r, 12)) / 4;
        for (int i = 0; i < TSR_COST_PARTS; i++) {
            c->part_granule_ns[i][d] = c->granule_ns[d] * (i ? slower : 1);
            c->part_fixed_ns[i][d] = i ? (double)random_below(r, 3) * 2 : c->fixed_ns[d];
        }
        c->granule_ns[d] = c->part_granule_ns[0][d] + c->part_granule_ns[1][d];
        c->fixed_ns[d] = c->part_fixed_ns[0][d] + c->part_fixed_ns[1][d];
    }
}

/* Small enough for try_all(). `tightness` 0: memory does not matter; 1: it hardly suffices. */
static void random_problem(uint64_t *r, problem *q, double tightness, bool parts)
{
    size_t all = 0;
    memset(q, 0, sizeof *q);
    q->p = (tsr_cost_problem){.n_devices = 1 + (int)random_below(r, 4),
                              .n_classes = 1 + (int)random_below(r, 3),
                              .classes = q->classes,
                              .rooms = q->rooms,
                              .allowed = ~UINT64_C(0),
                              .sync_ns = sync_by_count,
                              .user = q};
    q->sync_per_device = (double)random_below(r, 60);
    for (int c = 0; c < q->p.n_classes; c++) {
        q->classes[c] = (tsr_cost_class){.name = "some",
                                         .n_granules = c == 0 ? 1 + (int64_t)random_below(r, 5)
                                                              : (int64_t)random_below(r, c == 2 ? 9 : 6),
                                         .granule_bytes = 1 + random_below(r, c == 2 ? 9 : 40),
                                         .repeats = 1 + (double)random_below(r, 3)};
        all += (size_t)q->classes[c].n_granules * q->classes[c].granule_bytes;
    }
    for (int d = 0; d < q->p.n_devices; d++) {
        double speed = 1 + (double)random_below(r, 5);
        for (int c = 0; c < q->p.n_classes; c++) {
            q->classes[c].granule_ns[d] = speed * (double)(5 + c);
            q->classes[c].fixed_ns[d] = (double)random_below(r, 3) * 4;
        }
        double even = (double)all / q->p.n_devices, most = even * (1.05 + random_below(r, 100) * 0.01);
        q->rooms[d].fixed_bytes = random_below(r, 20);
        q->rooms[d].capacity_bytes =
            tightness > 0 ? (size_t)(most / tightness) + random_below(r, 20) : SIZE_MAX;
    }
    for (int c = 0; c < q->p.n_classes && parts; c++)
        if (random_below(r, 4))
            add_parts(r, q->p.n_devices, &q->classes[c]);
}

static void compare_with_all(bool parts)
{
    static const double tightness[] = {0, 0.7, 0.9, 1};
    uint64_t r = 11;
    int n_solved = 0, n_bound_by_memory = 0;
    for (int i = 0; i < 1200; i++) {
        static problem q;
        tsr_cost_result result;
        brute b = {.p = &q.p, .best_ns = INFINITY};
        random_problem(&r, &q, tightness[i % 4], parts);
        try_all(&b, 0, 0, q.classes[0].n_granules);
        tsr_status status = tsr_split_optimize(&q.p, &result);
        if (status != (isinf(b.best_ns) ? TSR_ERR_MEMORY : TSR_OK))
            fail_msg("problem %d: %s, but %g is possible", i, status ? tsr_last_error() : "solved",
                     b.best_ns);
        if (status != TSR_OK)
            continue;
        assert_true(result.proven);
        if (fabs(result.total_ns - b.best_ns) > 1e-9 * b.best_ns)
            fail_msg("problem %d: %g, but %g is possible", i, result.total_ns, b.best_ns);
        assert_true(result.bound_ns <= result.total_ns);
        for (int c = 0; c < q.p.n_classes; c++) {
            int64_t sum = 0;
            for (int d = 0; d < q.p.n_devices; d++)
                sum += result.counts[c][d];
            assert_int_equal(sum, q.classes[c].n_granules);
        }
        for (int d = 0; d < q.p.n_devices; d++)
            assert_true(fits(&q.p, result.counts, q.p.n_classes, d));
        n_solved++;
        for (int d = 0; d < q.p.n_devices; d++)
            q.rooms[d].capacity_bytes = SIZE_MAX;
        tsr_cost_result free_result;
        assert_int_equal(tsr_split_optimize(&q.p, &free_result), TSR_OK);
        n_bound_by_memory += free_result.total_ns < result.total_ns;
    }
    print_message("%d problems solved, memory decides %d of them\n", n_solved, n_bound_by_memory);
    assert_true(n_solved > 600 && n_bound_by_memory > 100);
}

static void no_split_of_all_is_faster(void **state)
{
    (void)state;
    compare_with_all(false);
}

/* The time of a walk is the sum of two maxima. */
static void no_split_of_all_is_faster_in_two_parts(void **state)
{
    (void)state;
    compare_with_all(true);
}

/* -- by hand -- */

/* Attention, FFN and output of a large dense model:
 * 80 layers, 8 KV heads, FFN in 112 granules, 128256 rows. */
static void large_model(problem *q, int n_devices, const double *bytes_per_ns)
{
    static const double granule_bytes[] = {18.9e6, 6.3e6, 4608}; /* of one layer */
    memset(q, 0, sizeof *q);
    q->p = (tsr_cost_problem){.n_devices = n_devices,
                              .n_classes = 3,
                              .classes = q->classes,
                              .rooms = q->rooms,
                              .allowed = ~UINT64_C(0),
                              .sync_ns = sync_by_count,
                              .user = q};
    for (int c = 0; c < 3; c++) {
        static const char *const names[] = {"attention", "ffn", "output"};
        static const int64_t n[] = {8, 112, 128256};
        double repeats = c == 2 ? 1 : 80;
        q->classes[c] = (tsr_cost_class){.name = names[c],
                                         .n_granules = n[c],
                                         .granule_bytes = (size_t)(granule_bytes[c] * repeats),
                                         .repeats = repeats};
        for (int d = 0; d < n_devices; d++) {
            q->classes[c].granule_ns[d] = granule_bytes[c] / bytes_per_ns[d];
            q->classes[c].fixed_ns[d] = 5000;
        }
    }
    for (int d = 0; d < n_devices; d++)
        q->rooms[d].capacity_bytes = SIZE_MAX;
}

static void work_goes_by_speed(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result;
    large_model(&q, 2, (double[]){900, 300});
    assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_OK);
    assert_int_equal(result.counts[0][0], 6);
    assert_int_equal(result.counts[1][0], 84);
    assert_int_equal(result.devices, 3);
}

static void a_slow_device_is_left_out_where_exchanges_cost_more(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result;
    large_model(&q, 3, (double[]){900, 900, 40});
    q.sync_per_device = 40000;
    assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_OK);
    assert_int_equal(result.devices, 3);
    for (int c = 0; c < 3; c++)
        assert_int_equal(result.counts[c][2], 0);
    q.p.allowed = 4; /* unless there is no other */
    assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_OK);
    assert_int_equal(result.devices, 4);
}

/* The fast card is small: it is filled, and the slow one takes the rest. */
static void memory_overrules_speed(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result;
    large_model(&q, 2, (double[]){900, 300});
    q.rooms[0] = (tsr_split_room){.capacity_bytes = (size_t)24e9, .fixed_bytes = (size_t)1e9};
    q.rooms[1].capacity_bytes = (size_t)48e9;
    assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_OK);
    size_t held = 0;
    for (int c = 0; c < 3; c++)
        held += (size_t)result.counts[c][0] * q.classes[c].granule_bytes;
    assert_true(held <= (size_t)23e9);
    assert_true(held > (size_t)22e9);
    assert_true(result.proven);
}

static void too_little_memory_is_said(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result;
    large_model(&q, 2, (double[]){900, 300});
    q.rooms[0] = (tsr_split_room){.capacity_bytes = (size_t)24e9, .name = "cuda0"};
    q.rooms[1] = (tsr_split_room){.capacity_bytes = (size_t)24e9, .name = "cuda1"};
    assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "short"));
}

static void eight_unequal_devices_are_proven(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result;
    large_model(&q, 8, (double[]){936, 936, 760, 288, 936, 448, 1008, 300});
    q.sync_per_device = 3000;
    for (int d = 0; d < 8; d++)
        q.rooms[d].capacity_bytes = (size_t)(d % 2 ? 8e9 : 12e9);
    q.rooms[3].capacity_bytes = (size_t)16e9;
    assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_OK);
    assert_true(result.proven);
    assert_true(result.bound_ns <= result.total_ns);
}

/* Prompts are slow on the cards that decode fast. */
static void unequal_phases_of_eight_devices_are_proven(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result;
    large_model(&q, 8, (double[]){936, 930, 760, 288, 950, 448, 1008, 300});
    q.sync_per_device = 3000;
    for (int c = 0; c < 3; c++) {
        q.classes[c].has_parts = true;
        for (int d = 0; d < 8; d++) {
            const double slower = (double)(1 + 5 * d % 8) / 4;
            for (int i = 0; i < TSR_COST_PARTS; i++) {
                q.classes[c].part_granule_ns[i][d] = q.classes[c].granule_ns[d] * (i ? slower : 1);
                q.classes[c].part_fixed_ns[i][d] = q.classes[c].fixed_ns[d];
            }
            q.classes[c].granule_ns[d] *= 1 + slower;
            q.classes[c].fixed_ns[d] *= 2;
        }
    }
    for (int tight = 0; tight < 2; tight++) {
        for (int d = 0; d < 8 && tight; d++)
            q.rooms[d].capacity_bytes = (size_t)(d % 2 ? 8e9 : 16e9);
        assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_OK);
        assert_true(result.bound_ns <= result.total_ns);
        assert_true(result.proven || tight);
        if (tight)
            print_message("short of memory: %.4f of the bound, proven %d\n",
                          result.total_ns / result.bound_ns, result.proven);
    }
}

static void the_bound_of_many_devices_holds(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result;
    double speed[20];
    for (int d = 0; d < 20; d++)
        speed[d] = 200 + 37 * d;
    large_model(&q, 20, speed);
    assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_OK);
    assert_true(result.bound_ns > 0 && result.bound_ns <= result.total_ns);
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result = {.total_ns = -1};
    for (int i = 0; i < 5; i++) {
        large_model(&q, 2, (double[]){900, 300});
        if (i == 0)
            q.classes[1].granule_ns[1] = 0;
        if (i == 1)
            q.classes[1].fixed_ns[0] = NAN;
        if (i == 2)
            q.classes[1].granule_bytes = SIZE_MAX / 2;
        if (i == 3)
            q.classes[1].n_granules = -1;
        if (i == 4)
            q.classes[1].repeats = 0;
        assert_int_equal(tsr_split_optimize(&q.p, &result), TSR_ERR_INVALID);
        assert_non_null(strstr(tsr_last_error(), "ffn"));
        assert_true(result.total_ns == -1);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static problem q;
    tsr_cost_result result;
    large_model(&q, 2, (double[]){900, 300});
    q.rooms[0].capacity_bytes = (size_t)23e9;
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = tsr_split_optimize(&q.p, &result);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        if (!fired)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_split_of_all_is_faster),
        cmocka_unit_test(no_split_of_all_is_faster_in_two_parts),
        cmocka_unit_test(work_goes_by_speed),
        cmocka_unit_test(a_slow_device_is_left_out_where_exchanges_cost_more),
        cmocka_unit_test(memory_overrules_speed),
        cmocka_unit_test(too_little_memory_is_said),
        cmocka_unit_test(eight_unequal_devices_are_proven),
        cmocka_unit_test(unequal_phases_of_eight_devices_are_proven),
        cmocka_unit_test(the_bound_of_many_devices_holds),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
