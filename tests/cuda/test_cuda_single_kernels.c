/* Kernels that programs reach only through whole models, uploads or probes, each by itself: the gate of a
 * shared expert, the checksum, and the barrier of devices without a sum. */
#include "gpu_run.h"

#include <math.h>

#include "core/checksum.h"
#include "cuda/comm/device_barrier.h"
#include "cuda/memory/checksum.h"

/* Rows are scaled by a sigmoid of their own gate; also where y is x. */
static void gates_scale_rows(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {37, 5}, {128, 3}, {1000, 2}};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i][0], n_rows = sizes[i][1];
        float *x = random_floats(n * n_rows, -4, 4, i), *gate = random_floats(n_rows, -20, 20, i + 9);
        float *y = malloc((size_t)(n * n_rows) * sizeof(float));
        tsr_op op = {.kind = TSR_OP_GATE,
                     .gate = {.x = gpu_put(&g, x, (size_t)(n * n_rows) * sizeof(float), false),
                              .gate = gpu_put(&g, gate, (size_t)n_rows * sizeof(float), false),
                              .y = gpu_alloc(&g, (size_t)(n * n_rows) * sizeof(float), false),
                              .n = n,
                              .n_rows = n_rows}};
        for (int in_place = 0; in_place < 2; in_place++) {
            if (in_place)
                op.gate.y = (float *)op.gate.x;
            assert_false(gpu_run(&g, &op));
            gpu_get(y, op.gate.y, (size_t)(n * n_rows) * sizeof(float));
            for (int64_t j = 0; j < n * n_rows; j++) {
                const double expected = (double)x[j] / (1 + exp(-(double)gate[j / n]));
                /* the exponential has 2 ulp; a sum, a division and a product round once each */
                assert_true(fabs((double)y[j] - expected) <= 6 * 0x1p-24 * fabs(expected));
            }
        }
        free(x);
        free(gate);
        free(y);
        gpu_clear(&g);
    }
    gpu_close(&g);
}

/* At any alignment, and onto an earlier sum. */
static void checksums_equal_the_hosts(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 7, 8, 9, 64, 1000, 4099};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char bytes[8192];
        uint64_t seed = i, sum = 5, *there = gpu_put(&g, &sum, sizeof sum, true);
        tsr_checksum here = {0};
        for (size_t j = 0; j < sizes[i]; j++)
            bytes[j] = (unsigned char)random_below(&seed, 256);
        tsr_checksum_add(&here, bytes, sizes[i]);
        for (int aligned = 0; aligned < 2; aligned++) {
            const tsr_cuda_stream s = gpu_stream(&g, NULL);
            const void *data = gpu_put(&g, bytes, sizes[i], aligned);
            assert_int_equal(tsr_cuda_checksum_launch(data, sizes[i], there, &s), TSR_OK);
            assert_false(gpu_fault(&g)); /* waits for the stream */
            gpu_get(&sum, there, sizeof sum);
            assert_true(sum == 5 + (uint64_t)(aligned + 1) * tsr_checksum_end(&here));
        }
        gpu_clear(&g);
    }
    gpu_close(&g);
}

enum { DEVICES = 3, ROUNDS = 4, BARRIER_BYTES = DEVICES * sizeof(uint64_t) };

/* Streams of one GPU as devices: what a device wrote before the barrier is read by all others behind it. */
static void barriers_order_writes_of_all_devices(void **state)
{
    (void)state;
    gpu g = gpu_open();
    cudaStream_t streams[DEVICES];
    tsr_cuda_barrier barriers[DEVICES];
    uint64_t *received[DEVICES], zeros[DEVICES] = {0}, *progress;
    uint32_t *aborted;
    unsigned char *written[DEVICES], *copies[DEVICES], back[DEVICES];
    GPU_OK(cudaMallocHost((void **)&progress, sizeof(uint64_t) * DEVICES * DEVICES));
    GPU_OK(cudaMallocHost((void **)&aborted, sizeof *aborted));
    *aborted = 0;
    for (int d = 0; d < DEVICES; d++) {
        GPU_OK(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
        received[d] = gpu_put(&g, zeros, BARRIER_BYTES, true);
        written[d] = gpu_alloc(&g, 1, true);
        copies[d] = gpu_alloc(&g, DEVICES, true);
    }
    for (int d = 0; d < DEVICES; d++) {
        barriers[d] = (tsr_cuda_barrier){.self = d,
                                         .n_devices = DEVICES,
                                         .max_blocks = 1,
                                         .participants = (1 << DEVICES) - 1,
                                         .sent = gpu_put(&g, zeros, BARRIER_BYTES, true),
                                         .received = received[d],
                                         .progress = progress + (ptrdiff_t)d * DEVICES,
                                         .aborted = aborted};
        for (int other = 0; other < DEVICES; other++)
            barriers[d].announce[other] = received[other] + d;
    }
    for (int round = 1; round <= ROUNDS; round++) {
        for (int d = 0; d < DEVICES; d++) {
            GPU_OK(cudaMemsetAsync(written[d], 16 * round + d, 1, streams[d]));
            assert_int_equal(tsr_cuda_barrier_wait(&barriers[d], streams[d]), TSR_OK);
            for (int other = 0; other < DEVICES; other++)
                GPU_OK(cudaMemcpyAsync(copies[d] + other, written[other], 1, cudaMemcpyDeviceToDevice,
                                       streams[d]));
            /* the next round must not write before all have read */
            assert_int_equal(tsr_cuda_barrier_wait(&barriers[d], streams[d]), TSR_OK);
        }
        for (int d = 0; d < DEVICES; d++)
            GPU_OK(cudaStreamSynchronize(streams[d]));
        for (int d = 0; d < DEVICES; d++) {
            uint64_t counts[DEVICES];
            gpu_get(back, copies[d], DEVICES);
            gpu_get(counts, received[d], BARRIER_BYTES);
            for (int other = 0; other < DEVICES; other++) {
                assert_int_equal(back[other], 16 * round + other);
                assert_int_equal(counts[other], other == d ? 0 : 2 * round);
            }
        }
    }
    for (int d = 0; d < DEVICES; d++)
        GPU_OK(cudaStreamDestroy(streams[d]));
    GPU_OK(cudaFreeHost(progress));
    GPU_OK(cudaFreeHost(aborted));
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_scale_rows),
        cmocka_unit_test(checksums_equal_the_hosts),
        cmocka_unit_test(barriers_order_writes_of_all_devices),
    };
    return cmocka_run_group_tests_name("kernels by themselves", tests, NULL, NULL);
}
