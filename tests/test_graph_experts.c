/* Which slot of the workspace the sum of experts takes, as lowered: one that is free on every device that
 * writes to it. A wrong slot is a race, which tests of results would see only now and then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/graph.h>
#include <tsr/split.h>

#include "alloc/buffer/buffer.h"
#include "graph/graph.h"
#include "graph/lower/lower.h"
#include "support/fake_device.h"

enum { N_DEVICES = 3, N_EMBD = 32, N_FF = 32, N_EXPERTS = 8, ALL = 7 };

/* A divided matrix: granules of the devices, and the set of devices that have its value. */
typedef struct division {
    int64_t counts[N_DEVICES];
    tsr_device_set devices;
} division;

enum { BEFORE, SHARED, GATE, UP, DOWN, N_WEIGHTS };

typedef struct bench {
    fake_runtime fake;
    tsr_tensor weights[N_WEIGHTS];
    tsr_buffer *buffer;
    tsr_graph *graph;
} bench;

static void load(bench *b, const division *before, const division *shared, const division *experts)
{
    static const char *const names[N_WEIGHTS] = {"before", "shared", "gate", "up", "down"};
    static float source[N_EMBD * N_FF * N_EXPERTS];
    const tsr_buffer_load_config config = {.owner = TSR_MEMORY_WEIGHTS};
    tsr_tensor *tensors[N_WEIGHTS];
    tsr_placement places[N_WEIGHTS];
    tsr_shard_map maps[N_WEIGHTS];
    const void *sources[N_WEIGHTS];
    for (int i = 0; i < N_WEIGHTS; i++) {
        const division *d = i == BEFORE ? before : i == SHARED ? shared : experts;
        const int64_t square[4] = {N_EMBD, N_EMBD, 1, 1}, mixture[4] = {N_EMBD * N_FF, N_EXPERTS, 1, 1};
        const bool whole = i >= GATE; /* experts are rows */
        assert_int_equal(
            tsr_shard_map_init(whole ? N_EXPERTS : N_EMBD, whole ? 1 : 4, N_DEVICES, d->counts, &maps[i]),
            TSR_OK);
        assert_int_equal(
            tsr_tensor_init(&b->weights[i], &b->fake.rt, TSR_TYPE_F32, whole ? mixture : square, names[i]),
            TSR_OK);
        places[i] = (tsr_placement){
            .sharding = TSR_SHARDING_SPLIT, .axis = whole, .devices = d->devices, .map = &maps[i]};
        tensors[i] = &b->weights[i];
        sources[i] = source;
    }
    assert_int_equal(tsr_buffer_load(&b->fake.rt, tensors, places, sources, N_WEIGHTS, &config, &b->buffer),
                     TSR_OK);
}

/* A product and its sum, then experts, onto a product if `shared` is not NULL. */
static tsr_status lower(const division *before, const division *shared, const division *experts,
                        tsr_lowered *lowered_out)
{
    static const division none = {.counts = {8, 0, 0}, .devices = ALL};
    bench b = {0};
    fake_runtime_open(&b.fake, N_DEVICES, NULL);
    load(&b, before, shared ? shared : &none, experts);
    assert_int_equal(tsr_graph_create(&b.fake.rt, &b.graph), TSR_OK);
    tsr_routing_config rule = tsr_routing_config_default();
    rule.n_used = 2;
    const tsr_experts_config w = {.size = sizeof w,
                                  .gate = &b.weights[GATE],
                                  .up = &b.weights[UP],
                                  .down = &b.weights[DOWN],
                                  .granule = N_FF};
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, 1, "x");
    tsr_tensor *logits = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EXPERTS, 1, "logits");
    tsr_tensor *y = tsr_add(b.graph, tsr_mul_mat(b.graph, &b.weights[BEFORE], x), x);
    tsr_tensor *product = shared ? tsr_mul_mat(b.graph, &b.weights[SHARED], y) : NULL;
    tsr_tensor *sum = tsr_experts(b.graph, y, tsr_route(b.graph, logits, &rule), &w);
    tsr_graph_output(b.graph, tsr_experts_onto(b.graph, sum, product));
    const tsr_status status = tsr_lower(b.graph, lowered_out);
    tsr_graph_destroy(b.graph);
    tsr_buffer_destroy(b.buffer);
    fake_runtime_close(&b.fake);
    return status;
}

/* The slots of all partial sums, in order. */
static void check_slots(const division *before, const division *shared, const division *experts,
                        const int *slots, int n)
{
    tsr_lowered lowered;
    int n_sums = 0;
    assert_int_equal(lower(before, shared, experts, &lowered), TSR_OK);
    for (int i = 0; i < lowered.n_values; i++)
        if (lowered.values[i].sharding == TSR_SHARDING_PARTIAL) {
            assert_true(n_sums < n);
            assert_int_equal(lowered.values[i].slot, slots[n_sums++]);
        }
    assert_int_equal(n_sums, n);
    tsr_lowered_free(&lowered);
}

static const division on_2 = {{0, 0, 8}, ALL}, on_0_and_1 = {{4, 4, 0}, ALL};

/* Device 2 alone wrote to slot 0, where the others may still read. */
static void experts_add_to_a_slot_that_is_free_on_their_devices(void **state)
{
    (void)state;
    static const int slots[] = {0, 1, 1};
    check_slots(&on_2, &on_0_and_1, &on_2, slots, 3);
}

static void a_slot_is_free_on_all_devices_of_the_experts(void **state)
{
    (void)state;
    static const int slots[] = {0, 1};
    check_slots(&on_2, NULL, &on_0_and_1, slots, 2);
}

/* Without a reader of it the first slot is used again. */
static void a_slot_that_no_device_reads_is_used_again(void **state)
{
    (void)state;
    static const division alone = {{0, 0, 8}, 1 << 2};
    static const int slots[] = {0, 0, 0};
    check_slots(&alone, &alone, &alone, slots, 3);
}

static void experts_on_devices_without_the_other_sum_are_refused(void **state)
{
    (void)state;
    static const division fewer = {{4, 4, 0}, 3};
    tsr_lowered lowered;
    assert_int_equal(lower(&on_2, &fewer, &on_2, &lowered), TSR_ERR_INVALID);
    assert_non_null(
        strstr(tsr_last_error(), "experts: weight down is on devices that have no part in shared"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_add_to_a_slot_that_is_free_on_their_devices),
        cmocka_unit_test(a_slot_is_free_on_all_devices_of_the_experts),
        cmocka_unit_test(a_slot_that_no_device_reads_is_used_again),
        cmocka_unit_test(experts_on_devices_without_the_other_sum_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
