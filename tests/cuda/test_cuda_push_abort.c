/* An abort in the middle of a sum that goes through inboxes in several rounds, after words of rounds that
 * never end have been written: the kernels end, and the next run is as if nothing had been. */
#include "cuda/nccl_run.h"

static const tsr_peer_form forms[] = {TSR_PEER_PUSH, TSR_PEER_PINNED};

/* 4 blocks of the simulated GPUs that receive a third of an inbox of words, four elements each, in a round:
 * the last device stops after one of three rounds. */
enum { DEVICES = 3, ROUND = 4 * (16384 / 3) * 4, ELEMENTS = 3 * ROUND, FEWER = ROUND };

static group open_form(tsr_peer_form form)
{
    tsr_device_set reach[MAX_RANKS];
    group g = {.n = DEVICES};
    for (int i = 0; i < DEVICES; i++) { /* with time to end rounds on a busy machine */
        const tsr_cuda_device_config config = {
            .name = "cuda", .index = i, .ordinal = i, .grace_ns = 20000 * (uint64_t)MS};
        ok(tsr_cuda_device_create(&config, &g.devices[i]));
    }
    ok(tsr_cuda_peers_test(g.devices, DEVICES, NULL, reach));
    ok(tsr_comm_peer_create(g.devices, DEVICES, reach, form, &g.comm));
    g.timeout_ns = 60000 * (uint64_t)MS;
    return g;
}

static void compile_last(group *g, int64_t n)
{
    tsr_device *last = g->devices[DEVICES - 1];
    g->ops[DEVICES - 1][0].all_reduce.n = n;
    last->ops->program_destroy(last, g->programs[DEVICES - 1]);
    ok(last->ops->program_create(last, g->ops[DEVICES - 1], 1, &g->programs[DEVICES - 1]));
    g->is_prepared = false;
}

static void an_abort_between_rounds_ends_all_of_them(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        sum s = {TSR_REDUCE_BF16, 0x7, 0x7, ELEMENTS, false};
        machine(DEVICES, (uint64_t)k);
        group g = open_form(forms[k]);
        sum_make(&g, &s);
        sum_fill(&g, &s, 1);
        group_compile(&g);
        compile_last(&g, FEWER);
        g.timeout_ns = 500 * MS;
        assert_int_equal(group_run(&g), TSR_ERR_TIMEOUT);
        g.timeout_ns = 60000 * (uint64_t)MS;
        compile_last(&g, ELEMENTS);
        for (uint64_t run = 0; run < 2; run++) {
            sum_fill(&g, &s, run);
            ok(group_run(&g));
            sum_check(&g, &s, run);
        }
        group_close(&g);
        nothing_is_left();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_abort_between_rounds_ends_all_of_them)};
    return cmocka_run_group_tests_name("aborted rounds", tests, NULL, NULL);
}
