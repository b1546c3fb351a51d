/* 01: matrices divided over two devices, without a model.
 *
 * First one Q8_0 matrix in a split buffer type, which takes the tensor_split array that engine authors know:
 * its rows are on two devices, and W x is computed by both and gathered. Then the pair of products at the
 * heart of every transformer: an FFN whose first matrices are divided by rows and whose last is divided by
 * columns, so that nothing is exchanged between them and each device ends with a partial sum. The library
 * sums those up in an all-reduce that is exact: the result has the same bits for every ratio, which this
 * program checks with memcmp.
 *
 *     build/bin/01_split_mul_mat
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/tsr.h>

/* Leave through `out` on failure, and say why. */
#define TRY(call)                                                        \
    do {                                                                 \
        if ((call) != TSR_OK) {                                          \
            fprintf(stderr, "%s failed: %s\n", #call, tsr_last_error()); \
            goto out;                                                    \
        }                                                                \
    } while (0)

enum {
    N_EMBD = 1024,
    N_FF = 1536,
    N_TOKENS = 4,
    GRANULE = 128, /* FFN columns that stay together; a multiple of Q8_0's block of 32 */
    X_ELEMS = N_EMBD * N_TOKENS
};

/* Small numbers that are the same everywhere. */
static void fill(float *values, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u; /* Numerical Recipes, section 7.1 */
        values[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
}

/* Give a tensor that is already allocated quantized values. The library scatters the rows, or the columns, to
 * the devices that hold them. */
static tsr_status set_random(tsr_tensor *w, unsigned seed)
{
    size_t n = (size_t)tsr_tensor_n_elements(w);
    float *values = malloc(n * sizeof *values);
    void *blocks = malloc(tsr_tensor_bytes(w));
    tsr_status status = TSR_ERR_MEMORY;
    if (values && blocks) {
        fill(values, n, seed);
        status = tsr_type_from_f32(tsr_tensor_type(w), values, blocks, (int64_t)n);
        if (status == TSR_OK)
            status = tsr_tensor_set(w, blocks, 0, tsr_tensor_bytes(w));
    }
    free(values);
    free(blocks);
    return status;
}

/* -- one matrix -- */

/* y[N_FF * N_TOKENS] = W x, with the rows of W divided as `split` says. 0 if all went well. */
static int mul_mat(tsr_runtime *rt, const float split[2], const float *x, float *y)
{
    int failed = 1;
    tsr_context *ctx = NULL;
    tsr_buffer *weights = NULL;
    tsr_graph *graph = NULL;
    tsr_program *program = NULL;

    /* Describe the tensors of a context, then allocate all of them at once. */
    TRY(tsr_context_create(rt, &ctx));
    tsr_tensor *w = tsr_tensor_2d(ctx, TSR_TYPE_Q8_0, N_EMBD, N_FF, "w");
    const tsr_buffer_type *type = tsr_split_buffer_type(rt, /* main_device */ 0, split, 2);
    TRY(tsr_tensors_alloc(ctx, type, &weights));
    TRY(set_random(w, 1));

    /* The graph mentions no device: the place of W decides what each computes. */
    TRY(tsr_graph_create(rt, &graph));
    tsr_tensor *input = tsr_graph_input(graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *output = tsr_graph_output(graph, tsr_mul_mat(graph, w, input));
    TRY(tsr_program_compile(graph, NULL, &program));

    TRY(tsr_tensor_set(input, x, 0, tsr_tensor_bytes(input)));
    TRY(tsr_program_run(program));
    TRY(tsr_tensor_get(output, y, 0, tsr_tensor_bytes(output)));

    printf("  tensor_split %g,%g: %zu bytes of W on device 0, %zu on device 1; y is %s\n", (double)split[0],
           (double)split[1], tsr_tensor_device_bytes(w, 0), tsr_tensor_device_bytes(w, 1),
           tsr_sharding_name(tsr_tensor_sharding(output)));
    failed = 0;
out:
    tsr_program_destroy(program);
    tsr_graph_destroy(graph);
    tsr_buffer_destroy(weights);
    tsr_context_destroy(ctx);
    return failed;
}

static int compare_mul_mats(tsr_runtime *rt, const float *x)
{
    static float whole[N_FF * N_TOKENS], divided[N_FF * N_TOKENS];
    printf("W x, W of %d rows and %d columns in Q8_0\n", N_FF, N_EMBD);
    if (mul_mat(rt, (float[]){1, 0}, x, whole) || mul_mat(rt, (float[]){3, 1}, x, divided))
        return 1;
    int different = memcmp(whole, divided, sizeof whole);
    printf("  one device and two: %s\n\n", different ? "DIFFERENT" : "the same bits");
    return different != 0;
}

/* -- an FFN -- */

/* The buffer type for matrices divided by rows (axis 1) or columns (axis 0). Both halves of the FFN are cut
 * at the same granules, so that a device's columns of W_down meet exactly the rows of W_gate and W_up that it
 * holds. */
static const tsr_buffer_type *ffn_buffer_type(tsr_runtime *rt, int axis, const float split[2])
{
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    config.axis = axis;
    config.granule = GRANULE;
    config.tensor_split = split;
    config.n_tensor_split = 2;
    return tsr_split_buffer_type_ex(rt, &config);
}

/* y[X_ELEMS] = W_down (silu(W_gate x) * W_up x). */
static int ffn(tsr_runtime *rt, const float split[2], const float *x, float *y)
{
    int failed = 1;
    tsr_context *by_rows = NULL, *by_columns = NULL;
    tsr_buffer *rows = NULL, *columns = NULL;
    tsr_graph *graph = NULL;
    tsr_program *program = NULL;
    tsr_program_info info;

    TRY(tsr_context_create(rt, &by_rows));
    TRY(tsr_context_create(rt, &by_columns));
    tsr_tensor *w_gate = tsr_tensor_2d(by_rows, TSR_TYPE_Q8_0, N_EMBD, N_FF, "w_gate");
    tsr_tensor *w_up = tsr_tensor_2d(by_rows, TSR_TYPE_Q8_0, N_EMBD, N_FF, "w_up");
    tsr_tensor *w_down = tsr_tensor_2d(by_columns, TSR_TYPE_Q8_0, N_FF, N_EMBD, "w_down");
    TRY(tsr_tensors_alloc(by_rows, ffn_buffer_type(rt, 1, split), &rows));
    TRY(tsr_tensors_alloc(by_columns, ffn_buffer_type(rt, 0, split), &columns));
    TRY(set_random(w_gate, 2));
    TRY(set_random(w_up, 3));
    TRY(set_random(w_down, 4));

    /* A constructor that fails gives NULL, which later ones pass on; compiling reports the first failure. */
    TRY(tsr_graph_create(rt, &graph));
    tsr_tensor *input = tsr_graph_input(graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *gate = tsr_mul_mat(graph, w_gate, input);
    tsr_tensor *up = tsr_mul_mat(graph, w_up, input);
    tsr_tensor *down = tsr_mul_mat(graph, w_down, tsr_swiglu(graph, gate, up));
    tsr_graph_output(graph, down);
    TRY(tsr_program_compile(graph, NULL, &program));

    TRY(tsr_tensor_set(input, x, 0, tsr_tensor_bytes(input)));
    TRY(tsr_program_run(program));
    TRY(tsr_tensor_get(down, y, 0, tsr_tensor_bytes(down)));

    tsr_program_get_info(program, &info);
    printf("  tensor_split %g,%g: %d all-reduce, %d all-gathers; y[0] = %.9g", (double)split[0],
           (double)split[1], info.n_all_reduces, info.n_all_gathers, (double)y[0]);
    failed = 0;
out:
    tsr_program_destroy(program);
    tsr_graph_destroy(graph);
    tsr_buffer_destroy(columns);
    tsr_buffer_destroy(rows);
    tsr_context_destroy(by_columns);
    tsr_context_destroy(by_rows);
    return failed;
}

static int compare_ffns(tsr_runtime *rt, const float *x)
{
    static const float splits[][2] = {{1, 0}, {1, 1}, {3, 1}, {2, 7}, {0, 1}};
    static float first[X_ELEMS], y[X_ELEMS];
    int n_different = 0;
    printf("An FFN of %d -> %d -> %d in Q8_0, W_gate and W_up divided by rows, W_down by columns\n", N_EMBD,
           N_FF, N_EMBD);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        if (ffn(rt, splits[i], x, i ? y : first))
            return 1;
        int different = i && memcmp(first, y, sizeof y) != 0;
        printf("%s\n", i == 0 ? "" : different ? "  DIFFERENT" : "  the same bits");
        n_different += different;
    }
    return n_different != 0;
}

int main(void)
{
    static float x[X_ELEMS];
    int failed = 1;
    tsr_runtime *rt = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:2,threads=1"; /* two devices of one core each; cards would do as well */
    fill(x, X_ELEMS, 5);
    TRY(tsr_runtime_open(&config, &rt));
    failed = compare_mul_mats(rt, x) || compare_ffns(rt, x);
out:
    tsr_runtime_close(rt);
    return failed;
}
