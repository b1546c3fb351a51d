/* --reduction f32 and bf16 on simulated GPUs: near the exact reduction, by every kind of collective. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <cudasim.h>

#include "cuda/simulated.h"
#include "support/reductions.h"

static void check(int n_gpus, tsr_type type, const char *collectives, const char *split)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_gpus;
    config.seed = (uint64_t)n_gpus;
    config.may_share = !collectives || strcmp(collectives, "nccl") != 0;
    if (!cudasim_have(&config))
        return;
    reductions_check(type, "cuda", collectives, split);
    nothing_is_left();
}

static void logits_are_near_those_of_the_exact_reduction(void **state)
{
    (void)state;
    check(1, TSR_TYPE_F16, NULL, NULL);
    check(2, TSR_TYPE_F16, "peer", "3,1");
    check(2, TSR_TYPE_BF16, "nccl", "1,3");
    check(3, TSR_TYPE_F16, "staged", "1,2,1");
    check(3, TSR_TYPE_Q4_K, "nccl", "1,1,2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near_those_of_the_exact_reduction),
    };
    return cmocka_run_group_tests_name("reductions on simulated GPUs", tests, NULL, NULL);
}
