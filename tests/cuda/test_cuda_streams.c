/* A program begins after the copies that were made before it, in whatever order a GPU carries out its two
 * streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/memory_run.h"

enum { N = 1000, SEEDS = 24 };

static void check_seed(uint64_t seed)
{
    float values[N];
    tsr_device_program *program = NULL;
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.seed = seed;
    cudasim_configure(&config);
    tsr_device *device = open_device(0, 0);
    float *x = alloc(device, sizeof values), *copy = alloc(device, sizeof values),
          *y = alloc(device, sizeof values);
    const tsr_op op = {.kind = TSR_OP_SCALE, .scale = {.x = copy, .y = y, .n = N, .factor = 2}};
    ok(device->ops->program_create(device, &op, 1, &program));
    for (int round = 1; round < 4; round++) { /* new data each time, by an upload and a copy on the GPU */
        for (int i = 0; i < N; i++)
            values[i] = (float)(i * round);
        ok(tsr_device_upload(device, x, values, sizeof values));
        ok(device->ops->copy(device, copy, sizeof values, x, sizeof values, sizeof values, 1));
        ok(device->ops->launch(device, program));
        ok(device->ops->synchronize(device, 0));
        ok(tsr_device_download(device, values, y, sizeof values));
        for (int i = 0; i < N; i++)
            if (values[i] != (float)(2 * i * round))
                fail_msg("seed %d, round %d: element %d is %g", (int)seed, round, i, (double)values[i]);
    }
    device->ops->program_destroy(device, program);
    drop(device, x, sizeof values);
    drop(device, copy, sizeof values);
    drop(device, y, sizeof values);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void programs_wait_for_copies(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        check_seed(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(programs_wait_for_copies)};
    return cmocka_run_group_tests_name("streams of a device", tests, NULL, NULL);
}
