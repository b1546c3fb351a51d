/* Memory is given back only when the copies into it are done, which the driver does not wait for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cuda/memory_run.h"

enum { BYTES = 4 * GRANULE, N_PAGES = 4 };

static unsigned char data[BYTES];

static void memory_is_freed_after_its_copies(void **state)
{
    (void)state;
    plain_machine(1);
    tsr_device *device = open_device(0, 0);
    void *there = alloc(device, BYTES);
    ok(tsr_device_upload(device, there, data, BYTES));
    drop(device, there, BYTES);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void pages_are_unmapped_after_their_copies(void **state)
{
    (void)state;
    void *base;
    plain_machine(1);
    tsr_device *device = open_device(0, 0);
    const size_t page = device->granularity, bytes = N_PAGES * page;
    unsigned char *pages = calloc(1, bytes);
    ok(device->ops->reserve(device, bytes, &base));
    ok(device->ops->commit(device, base, 0, bytes));
    ok(tsr_device_upload(device, base, pages, bytes));
    ok(device->ops->decommit(device, base, page, page));
    device->ops->release(device, base, bytes);
    free(pages);
    tsr_device_destroy(device);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_freed_after_its_copies),
        cmocka_unit_test(pages_are_unmapped_after_their_copies),
    };
    return cmocka_run_group_tests_name("memory with copies under way", tests, NULL, NULL);
}
