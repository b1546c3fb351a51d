/* The measuring device: accounts for everything, allocates nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/buffer/dry_device.h"
#include "core/mem.h"
#include "support/failing_alloc.h"

static tsr_device *create(int index, size_t memory_cap, size_t max_alloc)
{
    tsr_device *device = NULL;
    assert_int_equal(tsr_measure_device_create("card", index, memory_cap, 256, max_alloc, 65536, &device),
                     TSR_OK);
    return device;
}

static void addresses_are_unique_and_aligned(void **state)
{
    (void)state;
    tsr_device *devices[2] = {create(0, SIZE_MAX, SIZE_MAX), create(1, SIZE_MAX, SIZE_MAX)};
    uintptr_t ends[2] = {0, 0}, first[2];
    for (int i = 0; i < 1000; i++)
        for (int d = 0; d < 2; d++) {
            void *pointer = NULL;
            size_t bytes = (size_t)1 + (size_t)i * 7919;
            if (i % 2)
                assert_int_equal(tsr_device_alloc(devices[d], TSR_MEMORY_OTHER, bytes, "test", &pointer),
                                 TSR_OK);
            else
                assert_int_equal(devices[d]->ops->reserve(devices[d], bytes, &pointer), TSR_OK);
            assert_non_null(pointer);
            assert_int_equal((uintptr_t)pointer % 256, 0);
            assert_true((uintptr_t)pointer > ends[d]);
            ends[d] = (uintptr_t)pointer + bytes;
            if (i == 0)
                first[d] = (uintptr_t)pointer;
        }
    assert_true(ends[0] < first[1]); /* nor do two devices share any */
    for (int d = 0; d < 2; d++)
        tsr_device_destroy(devices[d]);
}

static void limits_hold_as_on_a_real_device(void **state)
{
    (void)state;
    tsr_device *device = create(0, 1000, 600);
    void *a = NULL, *b = NULL;
    size_t free_bytes, total;
    assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_ARENA, 601, "test", &a), TSR_ERR_MEMORY);
    assert_int_equal(tsr_device_used(device), 0);
    assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_ARENA, 600, "test", &a), TSR_OK);
    assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_KV, 401, "test", &b), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "card"));
    assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_KV, 400, "test", &b), TSR_OK);
    assert_int_equal(device->used[TSR_MEMORY_KV], 400);
    assert_int_equal(tsr_device_memory_info(device, &free_bytes, &total), TSR_OK);
    assert_int_equal(free_bytes, 0);
    assert_int_equal(total, 1000);
    tsr_device_free(device, TSR_MEMORY_ARENA, a, 600);
    assert_int_equal(tsr_device_used(device), 400);
    tsr_device_free(device, TSR_MEMORY_KV, b, 400);
    assert_int_equal(device->ops->reserve(device, SIZE_MAX, &a), TSR_ERR_MEMORY);
    tsr_device_destroy(device);
}

static void programs_are_accepted_but_do_not_run(void **state)
{
    (void)state;
    tsr_device *device = create(0, SIZE_MAX, SIZE_MAX);
    tsr_device_program *program = NULL;
    const void *wrapped = NULL;
    char text[] = "abc", same[] = "abc";
    assert_int_equal(device->ops->program_create(device, NULL, 0, &program), TSR_OK);
    assert_non_null(program);
    assert_int_equal(device->ops->launch(device, program), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "card"));
    assert_int_equal(device->ops->synchronize(device, 0), TSR_OK);
    device->ops->program_destroy(device, program);
    assert_int_equal(device->ops->wrap(device, text, 4, &wrapped), TSR_OK);
    assert_ptr_equal(wrapped, text);
    device->ops->unwrap(device, wrapped, 4);
    assert_int_equal(tsr_device_upload(device, (void *)(uintptr_t)64, text, 4), TSR_OK); /* touches nothing */
    assert_int_equal(tsr_device_download(device, text, (void *)(uintptr_t)64, 4), TSR_OK);
    assert_int_equal(tsr_device_copy(device, (void *)(uintptr_t)64, (void *)(uintptr_t)128, 4), TSR_OK);
    assert_string_equal(text, same);
    tsr_device_destroy(device);
    tsr_device_destroy(NULL);
}

static void creation_can_fail(void **state)
{
    (void)state;
    tsr_device *device = NULL;
    failing_alloc_set(1);
    tsr_status status = tsr_measure_device_create("card", 0, SIZE_MAX, 256, SIZE_MAX, 4096, &device);
    failing_alloc_set(0);
    assert_int_equal(status, TSR_ERR_MEMORY);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_unique_and_aligned),
        cmocka_unit_test(limits_hold_as_on_a_real_device),
        cmocka_unit_test(programs_are_accepted_but_do_not_run),
        cmocka_unit_test(creation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
