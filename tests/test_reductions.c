/* --reduction f32 and bf16 on host devices: near the exact reduction, whatever the weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/reductions.h"

static void logits_are_near_those_of_the_exact_reduction(void **state)
{
    (void)state;
    reductions_check(TSR_TYPE_F16, "host:1,threads=2", NULL, NULL);
    reductions_check(TSR_TYPE_F32, "host:2,threads=1", NULL, "3,1");
    reductions_check(TSR_TYPE_BF16, "host:3,threads=1", NULL, "1,2,1");
    reductions_check(TSR_TYPE_Q4_K, "host:4,threads=1", NULL, NULL); /* the sum in two steps */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near_those_of_the_exact_reduction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
