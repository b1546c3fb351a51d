/* Matrix products on a GPU against what its memory and arithmetic can do:
 *
 *     build/bench/cuda_kernels [--small] [TYPE ...]        (default: every weight type)
 *
 * The shapes are those of an 8B model, rows x columns; the third is a partial sum in exact reduction, as when
 * it is divided. For 1, 4 and 8 tokens: bytes of weights per second and their share of the copy bandwidth
 * that was measured just before (bytes read plus bytes written by a device-to-device copy). For 512 tokens:
 * floating point operations per second, two per weight and token.
 *
 * As in decoding, launches are nodes of a CUDA graph, and every launch of it multiplies with another copy of
 * the matrix, from which the second-level cache holds none when its turn comes again. Times are medians of
 * N_ROUNDS launches of the graph, with the smallest and largest; the first ones are not counted. --small: a
 * hundredth of the shapes, to see that everything works. Without a GPU it says so and ends. */
#include <stdio.h>

#ifdef TSR_WITH_CUDA

#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include <tsr/types.h>

#include "core/gpu.h"
#include "core/quant/fixed.h"
#include "cuda/kernels/kernels.h"
#include "support/measured.h"
#include "support/opened.h"

enum {
    N_ROUNDS = 21,
    N_WARM_UP = 3,
    N_SHAPES = 4,
    SOURCE_ROWS = 64,      /* different rows of a matrix */
    COLD_BYTES = 512 << 20 /* of copies of a matrix: several times any card's second-level cache */
};

typedef struct shape {
    int64_t rows, k;
    bool partial;
} shape;

typedef struct card {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    tsr_cuda_props props;
    int *fault;
    void *scratch;
    bool small;
    double copy_bytes_per_s;
} card;

typedef struct spread {
    double median, least, most; /* seconds */
} spread;

static void check_cuda(cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "cuda_kernels: %s: %s\n", call, cudaGetErrorString(error));
    exit(1);
}
#define CHECK_CUDA(call) check_cuda((call), #call)

static spread spread_of(double *seconds)
{
    const double median = bench_median(seconds, N_ROUNDS);
    return (spread){median, seconds[0], seconds[N_ROUNDS - 1]};
}

/* -- the card -- */

static double seconds_between(card *c)
{
    float ms;
    CHECK_CUDA(cudaEventSynchronize(c->end));
    CHECK_CUDA(cudaEventElapsedTime(&ms, c->begin, c->end));
    return (double)ms / 1e3;
}

static double copy_bandwidth(card *c)
{
    const size_t bytes = c->small ? (size_t)1 << 20 : (size_t)1 << 30;
    void *from, *to;
    double seconds[N_ROUNDS];
    CHECK_CUDA(cudaMalloc(&from, bytes));
    CHECK_CUDA(cudaMalloc(&to, bytes));
    CHECK_CUDA(cudaMemset(from, 1, bytes));
    for (int i = -N_WARM_UP; i < N_ROUNDS; i++) {
        CHECK_CUDA(cudaEventRecord(c->begin, c->stream));
        CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->stream));
        CHECK_CUDA(cudaEventRecord(c->end, c->stream));
        const double s = seconds_between(c);
        if (i >= 0)
            seconds[i] = s;
    }
    CHECK_CUDA(cudaFree(from));
    CHECK_CUDA(cudaFree(to));
    return 2 * (double)bytes / spread_of(seconds).median;
}

static int attribute(enum cudaDeviceAttr which)
{
    int value;
    CHECK_CUDA(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

static void card_open(card *c)
{
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaEventCreate(&c->begin));
    CHECK_CUDA(cudaEventCreate(&c->end));
    CHECK_CUDA(cudaMalloc((void **)&c->fault, sizeof *c->fault));
    CHECK_CUDA(cudaMemset(c->fault, 0, sizeof *c->fault));
    CHECK_CUDA(cudaMalloc(&c->scratch, TSR_GPU_SCRATCH_BYTES));
    c->props.n_sms = attribute(cudaDevAttrMultiProcessorCount);
    c->props.compute_capability =
        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    c->props.shared_bytes = (size_t)attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (tsr_cuda_kernels_load(&c->props.early) != TSR_OK) {
        fprintf(stderr, "cuda_kernels: %s\n", tsr_last_error());
        exit(EXIT_FAILURE);
    }
    c->copy_bytes_per_s = copy_bandwidth(c);
}

static void card_close(card *c)
{
    CHECK_CUDA(cudaFree(c->scratch));
    CHECK_CUDA(cudaFree(c->fault));
    CHECK_CUDA(cudaEventDestroy(c->begin));
    CHECK_CUDA(cudaEventDestroy(c->end));
    CHECK_CUDA(cudaStreamDestroy(c->stream));
}

/* -- one shape -- */

/* Device memory filled with copies of the `bytes` at `pattern`. */
static void *filled(size_t total, const void *pattern, size_t bytes)
{
    char *memory;
    CHECK_CUDA(cudaMalloc((void **)&memory, total));
    CHECK_CUDA(cudaMemcpy(memory, pattern, bytes < total ? bytes : total, cudaMemcpyHostToDevice));
    for (size_t done = bytes; done < total; done *= 2)
        CHECK_CUDA(cudaMemcpy(memory + done, memory, done < total - done ? done : total - done,
                              cudaMemcpyDeviceToDevice));
    return memory;
}

static float random_float(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u; /* Numerical Recipes, "quick and dirty" */
    return (float)(*seed >> 8) * 0x1p-23f - 1.0f;
}

static void *random_weights(tsr_type type, int64_t k, size_t total)
{
    const size_t row_bytes = tsr_type_row_bytes(type, k);
    char *rows = malloc(SOURCE_ROWS * row_bytes);
    float *values = malloc((size_t)k * sizeof *values);
    uint32_t seed = 1;
    for (int r = 0; r < SOURCE_ROWS; r++) {
        for (int64_t i = 0; i < k; i++)
            values[i] = 0.05f * random_float(&seed);
        bench_check(tsr_type_from_f32(type, values, rows + (size_t)r * row_bytes, k));
    }
    void *memory = filled(total, rows, SOURCE_ROWS * row_bytes);
    free(values);
    free(rows);
    return memory;
}

static void *random_activations(int64_t n)
{
    float *values = malloc((size_t)n * sizeof *values);
    uint32_t seed = 2;
    for (int64_t i = 0; i < n; i++)
        values[i] = random_float(&seed);
    void *memory = filled((size_t)n * sizeof *values, values, (size_t)n * sizeof *values);
    free(values);
    return memory;
}

/* Seconds of one product, from graphs of one product per copy of the matrix. */
static spread measure(card *c, const tsr_op_mul_mat *op, int copies, size_t matrix_bytes)
{
    const tsr_cuda_stream s = {.stream = c->stream,
                               .fault = c->fault,
                               .scratch = c->scratch,
                               .scratch_bytes = TSR_GPU_SCRATCH_BYTES,
                               .props = &c->props};
    tsr_op_mul_mat one = *op;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    double seconds[N_ROUNDS];
    CHECK_CUDA(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < copies; i++) {
        one.w = (const char *)op->w + (size_t)i * matrix_bytes;
        bench_check(tsr_cuda_mul_mat(&one, &s));
    }
    CHECK_CUDA(cudaStreamEndCapture(c->stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
    for (int i = -N_WARM_UP; i < N_ROUNDS; i++) {
        CHECK_CUDA(cudaEventRecord(c->begin, c->stream));
        CHECK_CUDA(cudaGraphLaunch(ready, c->stream));
        CHECK_CUDA(cudaEventRecord(c->end, c->stream));
        const double total = seconds_between(c);
        if (i >= 0)
            seconds[i] = total / copies;
    }
    CHECK_CUDA(cudaGraphExecDestroy(ready));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return spread_of(seconds);
}

static void print_line(const card *c, const tsr_op_mul_mat *op, size_t matrix_bytes, spread s)
{
    printf("| %-4s | %6lld x %5lld%s | %3lld | %9.2f [%.2f, %.2f] ", tsr_type_name(op->type),
           (long long)op->n_rows, (long long)op->k, op->partial ? " exact" : "      ",
           (long long)op->n_tokens, s.median * 1e6, s.least * 1e6, s.most * 1e6);
    if (op->n_tokens <= 8) {
        const double rate = (double)matrix_bytes / s.median;
        printf("| %7.1f | %4.2f | |\n", rate / 1e9, rate / c->copy_bytes_per_s);
        return;
    }
    const double work = 2.0 * (double)op->n_rows * (double)op->k * (double)op->n_tokens;
    printf("| | | %6.1f |\n", work / s.median / 1e12);
}

static void run_shape(card *c, tsr_type type, shape size)
{
    static const int64_t n_tokens[] = {1, 4, 8, 512};
    const int64_t most = c->small ? 16 : 512;
    const size_t matrix_bytes = (size_t)size.rows * tsr_type_row_bytes(type, size.k);
    const int copies = c->small ? 2 : (int)(COLD_BYTES / matrix_bytes) + 1;
    const int64_t granule = tsr_type_block_elems(type) > 128 ? tsr_type_block_elems(type) : 128;
    tsr_op_mul_mat op = {.type = type,
                         .w = random_weights(type, size.k, (size_t)copies * matrix_bytes),
                         .w_stride = tsr_type_row_bytes(type, size.k),
                         .n_rows = size.rows,
                         .k = size.k,
                         .x = random_activations(most * size.k),
                         .x_stride = size.k,
                         .partial = size.partial,
                         .reduce = TSR_REDUCE_EXACT,
                         .granule = granule,
                         .limit = tsr_fixed_limit((size.k + granule - 1) / granule),
                         .y_stride = size.rows};
    CHECK_CUDA(cudaMalloc(&op.y, (size_t)(most * size.rows) * sizeof(int64_t)));
    for (int i = 0; i < 4; i++) {
        op.n_tokens = n_tokens[i] < most ? n_tokens[i] : most;
        print_line(c, &op, matrix_bytes, measure(c, &op, op.n_tokens <= 8 ? copies : 1, matrix_bytes));
    }
    CHECK_CUDA(cudaFree((void *)(uintptr_t)op.w));
    CHECK_CUDA(cudaFree((void *)(uintptr_t)op.x));
    CHECK_CUDA(cudaFree(op.y));
}

static void run_type(card *c, tsr_type type)
{
    static const shape shapes[N_SHAPES] = {
        {4096, 4096, false}, {14336, 4096, false}, {4096, 14336, true}, {128256, 4096, false}};
    for (int i = 0; i < N_SHAPES; i++) {
        const shape small = {shapes[i].rows / 256, shapes[i].k / 8, shapes[i].partial};
        run_shape(c, type, c->small ? small : shapes[i]);
    }
}

static bool wanted(const char *name, int argc, char **argv)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        any = any || strcmp(argv[i], "--small") != 0;
        if (strcmp(argv[i], name) == 0)
            return true;
    }
    return !any;
}

int main(int argc, char **argv)
{
    static const tsr_type types[] = {TSR_TYPE_F16,  TSR_TYPE_BF16, TSR_TYPE_F32,  TSR_TYPE_Q8_0,
                                     TSR_TYPE_Q4_0, TSR_TYPE_Q4_K, TSR_TYPE_Q5_K, TSR_TYPE_Q6_K};
    struct cudaDeviceProp properties;
    card c = {0};
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("cuda_kernels: this machine has no usable GPU; nothing was measured\n");
        return 0;
    }
    for (int i = 1; i < argc; i++)
        c.small = c.small || strcmp(argv[i], "--small") == 0;
    card_open(&c);
    CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d SMs; copies: %.0f GB/s read and written\n\n", properties.name, c.props.n_sms,
           c.copy_bytes_per_s / 1e9);
    printf("| type | rows x columns | tokens | us [min, max] | GB/s | share | TFLOPS |\n"
           "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (wanted(tsr_type_name(types[i]), argc, argv))
            run_type(&c, types[i]);
    card_close(&c);
    return 0;
}

#else

int main(void)
{
    printf("cuda_kernels: this build has no CUDA device; configure with a CUDA toolkit (-DTSR_CUDA=ON)\n");
    return 0;
}

#endif
