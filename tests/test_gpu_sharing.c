/* Devices of a described machine on one with fewer GPUs (tests/cuda/gpu/sharing.h), as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cuda/gpu/sharing.h"

static void check(int n_described, int n_real, const char *devices, const char *expected)
{
    const gpu_sharing_state state = {n_described, n_real};
    char text[GPU_SHARING_TEXT];
    assert_string_equal(gpu_sharing_devices(&state, devices, text), expected);
}

static void missing_gpus_are_others_again(void **state)
{
    (void)state;
    check(3, 1, "cuda:0,cuda:1,cuda:2", "cuda:0,cuda:0,cuda:0");
    check(3, 2, "cuda:2,cuda:1", "cuda:0,cuda:1");
    check(2, 1, "cuda:1,mem=40MiB,host:1,threads=2,cuda:0,mem=1GiB",
          "cuda:0,mem=40MiB,host:1,threads=2,cuda:0,mem=1GiB");
}

static void all_gpus_are_all_that_are_described(void **state)
{
    (void)state;
    check(3, 1, "cuda", "cuda:0,cuda:0,cuda:0");
    check(3, 2, "host:1,cuda", "host:1,cuda:0,cuda:1,cuda:0");
}

static void nothing_changes_where_there_are_enough(void **state)
{
    (void)state;
    check(2, 2, "cuda", "cuda");
    check(1, 4, "cuda:0", "cuda:0");
    const gpu_sharing_state few = {2, 1};
    char text[GPU_SHARING_TEXT];
    assert_null(gpu_sharing_devices(&few, NULL, text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_gpus_are_others_again),
        cmocka_unit_test(all_gpus_are_all_that_are_described),
        cmocka_unit_test(nothing_changes_where_there_are_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
