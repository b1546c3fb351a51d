/* An upload of more than the pinned buffers hold, to a GPU that has not copied any of them yet: a buffer is
 * filled again only when its copy is done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "cuda/context/ring.h"
#include "cuda/memory_run.h"

static void *wake_up(void *argument)
{
    (void)argument;
    usleep(100000);
    cudasim_stall_device(0, false);
    return NULL;
}

static void buffers_are_waited_for(void **state)
{
    (void)state;
    const size_t bytes = (size_t)(TSR_CUDA_RING_SLOTS + 3) * TSR_CUDA_SLOT_BYTES;
    uint32_t *data = malloc(bytes), *back = malloc(bytes);
    pthread_t waker;
    plain_machine(1);
    tsr_device *device = open_device(0, 0);
    void *there = alloc(device, bytes);
    for (size_t i = 0; i < bytes / sizeof *data; i++)
        data[i] = (uint32_t)(i * 2654435761u);
    cudasim_stall_device(0, true);
    assert_int_equal(pthread_create(&waker, NULL, wake_up, NULL), 0);
    ok(tsr_device_upload(device, there, data, bytes));
    pthread_join(waker, NULL);
    ok(tsr_device_download(device, back, there, bytes));
    assert_memory_equal(back, data, bytes);
    drop(device, there, bytes);
    tsr_device_destroy(device);
    free(data);
    free(back);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(buffers_are_waited_for)};
    return cmocka_run_group_tests_name("uploads to a busy GPU", tests, NULL, NULL);
}
