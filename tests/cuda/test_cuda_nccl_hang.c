/* NCCL's first sum hangs a GPU: the sentence names the device, and says that it is lost. */
#include "cuda/comm/nccl_probe.h"
#include "cuda/nccl_run.h"

static void a_device_that_the_first_sum_hangs_is_lost(void **state)
{
    (void)state;
    tsr_nccl_library nccl;
    tsr_nccl_clique *clique;
    ncclUniqueId id;
    machine(3, 7);
    group g = group_of(3, false);
    tsr_cuda_device *const devices[] = {tsr_cuda(g.devices[0]), tsr_cuda(g.devices[1]),
                                        tsr_cuda(g.devices[2])};
    ok(tsr_nccl_library_load(&nccl));
    ok(tsr_nccl_clique_id(&nccl, &id));
    ok(tsr_nccl_clique_create(&nccl, devices, 0x7, &id, 1000 * MS, &clique));
    cudasim_stall_device(1, true);
    assert_int_equal(tsr_nccl_probe(clique, devices, 0x7, 100 * MS), TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(tsr_last_error(), "device cuda1"));
    assert_non_null(strstr(tsr_last_error(), "until the process restarts"));
    cudasim_stall_device(1, false); /* what is abandoned may end */
    tsr_nccl_clique_destroy(clique, 1000 * MS);
    group_close(&g);
    assert_string_equal(cudasim_violation(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_device_that_the_first_sum_hangs_is_lost)};
    return cmocka_run_group_tests_name("a hang of NCCL", tests, NULL, NULL);
}
