/* Running single CUDA ops from tests: device memory that ends at the end of a page, so that what reads or
 * writes past it leaves the allocation, and copies there and back. Nothing here is special to the simulated
 * machine. */
#ifndef TSR_TESTS_GPU_RUN_H
#define TSR_TESTS_GPU_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <cuda_runtime.h>
#include <tsr/types.h>

#include "cuda/kernels/kernels.h"
#include "support/random.h"

enum { GPU_BLOCKS = 256, GPU_PAGE = 4096, GPU_OP_INDEX = 6 };

typedef struct gpu {
    cudaStream_t stream;
    tsr_cuda_props props;
    tsr_cuda_words *words;
    size_t scratch_bytes; /* given to ops; 0 to make them do without */
    void *blocks[GPU_BLOCKS];
    int n_blocks;
} gpu;

#define GPU_OK(call) assert_int_equal((call), cudaSuccess)

static inline int gpu_attribute(enum cudaDeviceAttr attribute)
{
    int value;
    GPU_OK(cudaDeviceGetAttribute(&value, attribute, 0));
    return value;
}

/* The stream of ops does not wait for the default stream, so the host does. */
static inline void gpu_fill(void *there, int value, size_t bytes)
{
    GPU_OK(cudaMemset(there, value, bytes));
    GPU_OK(cudaDeviceSynchronize());
}

static inline gpu gpu_open(void)
{
    gpu g = {.scratch_bytes = (size_t)8 << 20};
    GPU_OK(cudaSetDevice(0));
    g.props.n_sms = gpu_attribute(cudaDevAttrMultiProcessorCount);
    g.props.compute_capability = 10 * gpu_attribute(cudaDevAttrComputeCapabilityMajor) +
                                 gpu_attribute(cudaDevAttrComputeCapabilityMinor);
    g.props.shared_bytes = (size_t)gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    assert_int_equal(tsr_cuda_kernels_load(&g.props.early), TSR_OK);
    GPU_OK(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
    GPU_OK(cudaMalloc((void **)&g.words, sizeof *g.words));
    gpu_fill(g.words, 0, sizeof *g.words);
    return g;
}

/* Free everything that was allocated or put. */
static inline void gpu_clear(gpu *g)
{
    while (g->n_blocks > 0)
        GPU_OK(cudaFree(g->blocks[--g->n_blocks]));
}

static inline void gpu_close(gpu *g)
{
    gpu_clear(g);
    GPU_OK(cudaFree(g->words));
    GPU_OK(cudaStreamDestroy(g->stream));
}

/* Bytes that read as NaN. At the start of an allocation if `aligned`, else at the end of a page. */
static inline void *gpu_alloc(gpu *g, size_t bytes, bool aligned)
{
    const size_t whole = (bytes + GPU_PAGE - 1) / GPU_PAGE * GPU_PAGE + (bytes == 0 ? GPU_PAGE : 0);
    assert_true(g->n_blocks < GPU_BLOCKS);
    GPU_OK(cudaMalloc(&g->blocks[g->n_blocks], whole));
    char *base = g->blocks[g->n_blocks++];
    gpu_fill(base, 0xff, whole);
    return aligned ? base : base + (whole - bytes);
}

static inline void *gpu_put(gpu *g, const void *from, size_t bytes, bool aligned)
{
    void *copy = gpu_alloc(g, bytes, aligned);
    if (bytes > 0)
        GPU_OK(cudaMemcpy(copy, from, bytes, cudaMemcpyHostToDevice));
    GPU_OK(cudaDeviceSynchronize()); /* a copy from pageable memory may return before its end is there */
    return copy;
}

static inline void gpu_get(void *to, const void *from, size_t bytes)
{
    GPU_OK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

static inline tsr_cuda_stream gpu_stream(gpu *g, void *scratch)
{
    return (tsr_cuda_stream){.stream = g->stream,
                             .fault = &g->words->fault,
                             .op_index = GPU_OP_INDEX,
                             .scratch = scratch,
                             .scratch_bytes = scratch ? g->scratch_bytes : 0,
                             .props = &g->props,
                             .counters = g->words->counters};
}

/* Whether the fault word was raised since it was last asked for. All counters are zeros again. */
static inline bool gpu_fault(gpu *g)
{
    tsr_cuda_words words;
    GPU_OK(cudaStreamSynchronize(g->stream));
    gpu_get(&words, g->words, sizeof words);
    gpu_fill(&g->words->fault, 0, sizeof words.fault);
    for (int i = 0; i < TSR_CUDA_COUNTERS; i++)
        assert_int_equal(words.counters[i], 0);
    if (words.fault != 0)
        assert_int_equal(words.fault, GPU_OP_INDEX + 1);
    return words.fault != 0;
}

/* Run one op to its end. The value tells whether it raised the range fault. */
static inline bool gpu_run(gpu *g, const tsr_op *op)
{
    void *scratch = NULL;
    assert_int_equal(tsr_cuda_op_check(op), TSR_OK);
    if (tsr_cuda_op_scratch(op) > 0 && g->scratch_bytes > 0) {
        assert_true(tsr_cuda_op_scratch(op) <= g->scratch_bytes);
        GPU_OK(cudaMalloc(&scratch, g->scratch_bytes));
    }
    const tsr_cuda_stream s = gpu_stream(g, scratch);
    assert_int_equal(tsr_cuda_op_launch(op, &s), TSR_OK);
    const bool fault = gpu_fault(g);
    if (scratch)
        GPU_OK(cudaFree(scratch));
    return fault;
}

/* Uniform in [low, high). */
static inline float *random_floats(int64_t n, float low, float high, uint64_t seed)
{
    float *x = malloc((size_t)n * sizeof(float) + 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = low + (high - low) * ((float)(random_u64(&seed) >> 40) * 0x1p-24f);
    return x;
}

/* The same on the device, at the end of a page; *copy_out (if asked for) is the caller's to free. */
static inline float *gpu_random(gpu *g, int64_t n, float low, float high, uint64_t seed, float **copy_out)
{
    float *x = random_floats(n, low, high, seed);
    float *device = gpu_put(g, x, (size_t)n * sizeof(float), false);
    if (copy_out)
        *copy_out = x;
    else
        free(x);
    return device;
}

/* A matrix of random weights on the device, its rows dense, at the end of a page. */
static inline const void *gpu_weights(gpu *g, tsr_type type, int64_t n_rows, int64_t k, uint64_t seed)
{
    const size_t row_bytes = tsr_type_row_bytes(type, k), bytes = row_bytes * (size_t)n_rows;
    unsigned char *rows = malloc(bytes);
    float *values = random_floats(n_rows * k, -1, 1, seed);
    for (int64_t r = 0; r < n_rows; r++)
        assert_int_equal(tsr_type_from_f32(type, values + r * k, rows + (size_t)r * row_bytes, k), TSR_OK);
    const void *there = gpu_put(g, rows, bytes, false);
    free(values);
    free(rows);
    return there;
}

#endif
