/* Weights go to several GPUs at the same time: a GPU that copies nothing does not keep the others from their
 * parts, and takes no more host memory than its pinned buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>
#include <pthread.h>

#include "alloc/buffer/buffer.h"
#include "alloc/buffer/tensor.h"
#include "cuda/context/ring.h"
#include "cuda/memory_run.h"

enum { COLUMNS = 1024, ROWS = 24 << 10, N_GPUS = 3, MAX_MS = 60000 };

/* Of one GPU: more than its pinned buffers hold. */
#define PART_BYTES ((size_t)(ROWS / N_GPUS) * COLUMNS * sizeof(float))

static _Atomic bool others_are_done, gave_up;

/* All GPUs but the stalled one have their parts, and its pinned buffers are full. */
static void note_progress(size_t done, size_t total, void *user)
{
    const size_t ring_bytes = (size_t)TSR_CUDA_RING_SLOTS * TSR_CUDA_SLOT_BYTES;
    (void)total;
    if (done < (N_GPUS - 1) * PART_BYTES + ring_bytes || atomic_load(&gave_up))
        return;
    atomic_store(&others_are_done, true);
    cudasim_stall_device(*(const int *)user, false);
}

/* If the others wait for the stalled GPU, it has to go on for the test to end. */
static void *give_up_late(void *argument)
{
    for (int ms = 0; ms < MAX_MS && !atomic_load(&others_are_done); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (!atomic_load(&others_are_done)) {
        atomic_store(&gave_up, true);
        cudasim_stall_device(*(const int *)argument, false);
    }
    return NULL;
}

static void check_stalled(int stalled)
{
    const int64_t ne[4] = {COLUMNS, ROWS, 1, 1};
    int64_t counts[N_GPUS] = {ROWS / N_GPUS, ROWS / N_GPUS, ROWS / N_GPUS};
    tsr_device *devices[N_GPUS];
    tsr_runtime rt = {.n_devices = N_GPUS, .devices = devices};
    tsr_tensor tensor, *pointer = &tensor;
    tsr_shard_map map;
    tsr_buffer *buffer = NULL;
    size_t pinned = 0;
    pthread_t waker;
    float *data = malloc(N_GPUS * PART_BYTES), *back = malloc(N_GPUS * PART_BYTES);
    plain_machine(N_GPUS);
    for (int d = 0; d < N_GPUS; d++)
        devices[d] = open_device(d, d);
    for (size_t i = 0; i < N_GPUS * PART_BYTES / sizeof *data; i++)
        data[i] = (float)(i % 1000003);
    ok(tsr_shard_map_init(ROWS, 1, N_GPUS, counts, &map));
    ok(tsr_tensor_init(&tensor, &rt, TSR_TYPE_F32, ne, "w"));
    const tsr_placement placement = {
        .sharding = TSR_SHARDING_SPLIT, .axis = 1, .devices = (1 << N_GPUS) - 1, .map = &map};
    const void *source = data;
    const tsr_buffer_load_config config = {
        .owner = TSR_MEMORY_WEIGHTS, .progress = note_progress, .user = &stalled};
    for (int d = 0; d < N_GPUS; d++)
        pinned += devices[d]->accounting.pinned;
    atomic_store(&others_are_done, false);
    atomic_store(&gave_up, false);
    cudasim_stall_device(stalled, true);
    assert_int_equal(pthread_create(&waker, NULL, give_up_late, &stalled), 0);
    ok(tsr_buffer_load(&rt, &pointer, &placement, &source, 1, &config, &buffer));
    pthread_join(waker, NULL);
    assert_true(others_are_done);
    for (int d = 0; d < N_GPUS; d++)
        pinned -= devices[d]->accounting.pinned_peak;
    assert_int_equal(pinned, 0);
    ok(tsr_tensor_get(&tensor, back, 0, N_GPUS * PART_BYTES));
    assert_memory_equal(back, data, N_GPUS * PART_BYTES);
    tsr_buffer_destroy(buffer);
    for (int d = 0; d < N_GPUS; d++)
        tsr_device_destroy(devices[d]);
    free(data);
    free(back);
    nothing_is_left();
}

static void a_stalled_gpu_does_not_hold_up_the_others(void **state)
{
    (void)state;
    assert_true(PART_BYTES > (size_t)TSR_CUDA_RING_SLOTS * TSR_CUDA_SLOT_BYTES);
    for (int stalled = 0; stalled < N_GPUS; stalled++)
        check_stalled(stalled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stalled_gpu_does_not_hold_up_the_others)};
    return cmocka_run_group_tests_name("uploads to several GPUs", tests, NULL, NULL);
}
