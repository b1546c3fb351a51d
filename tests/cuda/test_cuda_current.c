/* The caller's current CUDA device, which no function of a device may change, also where it fails. */
#include "cuda/memory_run.h"

static void expect_current(int expected, const char *after)
{
    int current = -1;
    assert_int_equal(cudaGetDevice(&current), cudaSuccess);
    if (current != expected)
        fail_msg("the current device is %d after %s", current, after);
}

#define STAYS(call)                        \
    do {                                   \
        tsr_status stays_status = (call);  \
        assert_int_equal(stays_status, 0); \
        expect_current(1, #call);          \
    } while (0)

#define STAYS_VOID(call)          \
    do {                          \
        call;                     \
        expect_current(1, #call); \
    } while (0)

static void the_callers_device_stays_current(void **state)
{
    (void)state;
    float *file = map_file(PAGE), value = 1;
    const void *wrapped;
    void *x = NULL, *base = NULL;
    size_t left, total;
    tsr_device *device = NULL;
    tsr_device_program *program = NULL;
    machine_that_wraps(2, true, true);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    tsr_cuda_device_config config = {.name = "cuda0"};
    STAYS(tsr_cuda_device_create(&config, &device));
    const struct tsr_device_ops *ops = device->ops;
    STAYS(ops->alloc(device, TSR_MEMORY_OTHER, MIB, &x));
    STAYS(ops->reserve(device, 4 * GRANULE, &base));
    STAYS(ops->commit(device, base, 0, GRANULE));
    STAYS(ops->decommit(device, base, 0, GRANULE));
    STAYS_VOID(ops->release(device, base, 4 * GRANULE));
    STAYS(tsr_device_memory_info(device, &left, &total));
    STAYS(ops->wrap(device, file, 100, &wrapped));
    STAYS_VOID(ops->unwrap(device, wrapped, 100));
    STAYS(tsr_device_upload(device, x, &value, 4));
    STAYS(tsr_device_download(device, &value, x, 4));
    STAYS(tsr_device_copy(device, (char *)x + 64, x, 4));
    const tsr_op op = {.kind = TSR_OP_SCALE, .name = "doubled", .scale = {x, x, 1, 2.0f}};
    STAYS(ops->program_create(device, &op, 1, &program));
    STAYS(ops->launch(device, program));
    STAYS(ops->synchronize(device, 0));
    STAYS_VOID(ops->program_destroy(device, program));
    STAYS_VOID(ops->free(device, x, MIB));
    /* and where they fail */
    assert_int_equal(ops->alloc(device, TSR_MEMORY_OTHER, (size_t)1 << 40, &x), TSR_ERR_MEMORY);
    expect_current(1, "a failed allocation");
    config.memory_cap = 1;
    cudasim_fail_named("cudaMemGetInfo", 1, 0);
    tsr_device *none = NULL;
    assert_true(tsr_cuda_device_create(&config, &none) != TSR_OK);
    expect_current(1, "a failed open");
    STAYS_VOID(tsr_device_destroy(device));
    munmap(file, PAGE);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_callers_device_stays_current),
    };
    return cmocka_run_group_tests_name("the caller's current device", tests, NULL, NULL);
}
