/* 09: weights in memory of one's own.
 *
 * An engine that has its weights in memory already (a mapped file, a cache, a shared segment) lends them to
 * the library, which copies no byte. Here two matrices are in one block of memory; the first is used by
 * device 0 and the second by device 1, and the activations between them are transferred. The result is
 * compared with a loop over the same memory.
 *
 *     build/bin/09_own_memory
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tsr/tsr.h>

#define TRY(call)                                                        \
    do {                                                                 \
        if ((call) != TSR_OK) {                                          \
            fprintf(stderr, "%s failed: %s\n", #call, tsr_last_error()); \
            goto out;                                                    \
        }                                                                \
    } while (0)

enum { N = 64, N_HIDDEN = 160, N_WEIGHTS = 2 * N * N_HIDDEN };

/* The first element of W_2 W_1 x. */
static double expected(const float *weights, const float *x)
{
    double y = 0;
    for (int h = 0; h < N_HIDDEN; h++) {
        double hidden = 0;
        for (int i = 0; i < N; i++)
            hidden += (double)weights[h * N + i] * (double)x[i];
        y += (double)weights[N * N_HIDDEN + h] * hidden;
    }
    return y;
}

/* Run once, and compare; 0: equal, but for the rounding of F32 sums. */
static int run(tsr_program *program, const tsr_tensor *y, const float *weights, const float *x)
{
    float out[N];
    TRY(tsr_program_run(program));
    TRY(tsr_tensor_get(y, out, 0, sizeof out));
    printf("y[0] = %.6f, by a loop %.6f\n", (double)out[0], expected(weights, x));
    return fabs((double)out[0] - expected(weights, x)) > 1e-3;
out:
    return 1;
}

int main(void)
{
    int failed = 1;
    float x[N];
    float *weights = malloc(N_WEIGHTS * sizeof *weights); /* the engine's; outlives the buffers */
    tsr_runtime *rt = NULL;
    tsr_context *context = NULL;
    tsr_buffer *buffers[2] = {NULL, NULL};
    tsr_graph *graph = NULL;
    tsr_program *program = NULL;
    tsr_device_memory memory;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:2,threads=1";
    if (!weights)
        return 1;
    for (int i = 0; i < N_WEIGHTS; i++)
        weights[i] = (float)(i * 7 % 31 - 15) / 31;
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 5) - 2;
    TRY(tsr_runtime_open(&config, &rt));
    TRY(tsr_context_create(rt, &context));
    tsr_tensor *w[2] = {tsr_tensor_2d(context, TSR_TYPE_F32, N, N_HIDDEN, "w1"),
                        tsr_tensor_2d(context, TSR_TYPE_F32, N_HIDDEN, N, "w2")};
    TRY(tsr_context_status(context));
    for (int i = 0; i < 2; i++) { /* each device uses the whole block, and has one matrix of it */
        TRY(tsr_buffer_from_ptr(rt, i, weights, N_WEIGHTS * sizeof *weights, &buffers[i]));
        TRY(tsr_tensor_place(w[i], buffers[i], (size_t)i * N * N_HIDDEN * sizeof *weights));
    }
    TRY(tsr_graph_create(rt, &graph));
    tsr_tensor *in = tsr_graph_input(graph, TSR_TYPE_F32, N, 1, "x");
    tsr_tensor *y = tsr_graph_output(graph, tsr_mul_mat(graph, w[1], tsr_mul_mat(graph, w[0], in)));
    TRY(tsr_program_compile(graph, NULL, &program));
    TRY(tsr_tensor_set(in, x, 0, sizeof x));
    failed = run(program, y, weights, x);
    TRY(tsr_runtime_memory(rt, 0, &memory));
    printf("device 0 uses %zu bytes of the engine's memory\n", memory.viewed);
    failed |= memory.viewed != N_WEIGHTS * sizeof *weights;
    if (tsr_tensor_set(w[0], x, 0, sizeof x) != TSR_ERR_INVALID) /* the library writes none of it */
        failed = 1;
out:
    tsr_program_destroy(program);
    tsr_graph_destroy(graph);
    for (int i = 0; i < 2; i++)
        tsr_buffer_destroy(buffers[i]);
    tsr_context_destroy(context);
    tsr_runtime_close(rt);
    free(weights);
    return failed;
}
