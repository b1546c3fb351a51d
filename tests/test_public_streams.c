/* Residual streams by the public headers alone: against the formulas in double, the same bits wherever the
 * weights are; and what the calls refuse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "support/public_weights.h"
#include "support/random.h"
#include "support/runner.h"

enum { N_EMBD = 48, DIM = 16, N_STREAMS = 3, MIXES = N_STREAMS * (2 + N_STREAMS), N_TOKENS = 5 };
static const float eps = 1e-6f;

enum { MIX_IN, KEYS, VALUES, MIX, MIXED, N_OUTPUTS };
enum { SCALE, BASE, N_READ };

typedef struct bench {
    public_weights w;
    tsr_tensor *products[3], *read[N_READ]; /* of the first three outputs; of the rule */
    tsr_graph *graph;
    tsr_tensor *x, *outputs[N_OUTPUTS];
    tsr_program *program;
} bench;

/* `rows`: how the matrices are divided. */
static void open_bench(bench *b, const float *split, int rows)
{
    *b = (bench){0};
    public_weights_open(&b->w, split);
    for (int i = 0; i < 3; i++)
        b->products[i] =
            public_weight(&b->w, rows, 1, N_EMBD, i == MIX_IN ? MIXES : DIM, 0.2f, 1 + (uint64_t)i);
    b->read[SCALE] = public_weight(&b->w, -1, 0, 3, 1, 0.5f, 10);
    b->read[BASE] = public_weight(&b->w, -1, 0, MIXES, 1, 0.5f, 11);
    runner_ok(tsr_graph_create(b->w.rt, &b->graph), "graph");
    b->x = tsr_graph_input(b->graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    for (int i = 0; i < 3; i++)
        b->outputs[i] = tsr_mul_mat(b->graph, b->products[i], b->x);
}

static void close_bench(bench *b)
{
    tsr_program_destroy(b->program);
    tsr_graph_destroy(b->graph);
    public_weights_close(&b->w);
}

static tsr_stream_rule rule_of(const bench *b)
{
    return (tsr_stream_rule){.n = N_STREAMS,
                             .iterations = 3,
                             .mixes = true,
                             .eps = eps,
                             .scale = b->read[SCALE],
                             .base = b->read[BASE]};
}

static void run(bench *b)
{
    float x[N_TOKENS][N_EMBD];
    uint64_t seed = 100;
    tsr_graph *g = b->graph;
    tsr_tensor **o = b->outputs;
    const tsr_stream_rule rule = rule_of(b);
    const tsr_mix_rule copies = {.n_in = 1, .n_out = N_STREAMS}, mix = {.n_in = N_STREAMS,
                                                                        .n_out = N_STREAMS,
                                                                        .first = 2 * N_STREAMS,
                                                                        .add_first = N_STREAMS};
    o[MIX] = tsr_stream_weights(g, o[MIX_IN], &rule);
    o[MIXED] = tsr_stream_mix(g, tsr_stream_mix(g, o[KEYS], NULL, NULL, &copies), o[MIX], o[VALUES], &mix);
    for (int i = 0; i < N_OUTPUTS; i++)
        tsr_graph_output(g, o[i]);
    for (int t = 0; t < N_TOKENS; t++)
        for (int i = 0; i < N_EMBD; i++)
            x[t][i] = random_normal(&seed);
    runner_ok(tsr_program_compile(g, NULL, &b->program), "compile");
    runner_ok(tsr_tensor_set(b->x, x, 0, sizeof x), "x");
    runner_ok(tsr_program_run(b->program), "run");
}

/* -- the reference -- */

static const float *weights[N_READ];

static void reference_mixing(const float *m, double c[N_STREAMS][N_STREAMS])
{
    for (int j = 0; j < N_STREAMS; j++) {
        double sum = 0;
        for (int k = 0; k < N_STREAMS; k++) {
            const int at = 2 * N_STREAMS + j * N_STREAMS + k;
            sum += c[j][k] = exp((double)weights[SCALE][2] * (double)m[at] + (double)weights[BASE][at]);
        }
        for (int k = 0; k < N_STREAMS; k++)
            c[j][k] = c[j][k] / sum + (double)eps;
    }
    for (int i = 0; i < 5; i++) /* columns, rows, columns, rows, columns */
        for (int a = 0; a < N_STREAMS; a++) {
            double sum = (double)eps;
            for (int e = 0; e < N_STREAMS; e++)
                sum += i % 2 ? c[a][e] : c[e][a];
            for (int e = 0; e < N_STREAMS; e++)
                *(i % 2 ? &c[a][e] : &c[e][a]) /= sum;
        }
}

static void check_streams(const float *m, const float *mix, const float *x, const float *add, const float *y)
{
    double c[N_STREAMS][N_STREAMS];
    reference_mixing(m, c);
    for (int k = 0; k < N_STREAMS; k++) {
        const double pre = (double)weights[SCALE][0] * (double)m[k] + (double)weights[BASE][k],
                     post = (double)weights[SCALE][1] * (double)m[N_STREAMS + k] +
                            (double)weights[BASE][N_STREAMS + k];
        public_near("pre", mix[k], 1 / (1 + exp(-pre)) + (double)eps);
        public_near("post", mix[N_STREAMS + k], 2 / (1 + exp(-post)));
        for (int i = 0; i < DIM; i++) {
            double sum = 2 / (1 + exp(-post)) * (double)add[i];
            for (int j = 0; j < N_STREAMS; j++)
                sum += c[j][k] * (double)x[i];
            public_near("a stream", y[k * DIM + i], sum);
        }
    }
}

/* -- tests -- */

static void every_division_gives_the_same_bits(void **state)
{
    (void)state;
    float *first[N_OUTPUTS];
    for (int s = 0; s <= PUBLIC_SPLITS; s++) { /* the last time, the matrices are on one device */
        bench b;
        float *o[N_OUTPUTS];
        open_bench(&b, public_splits[s % PUBLIC_SPLITS], s < PUBLIC_SPLITS ? 1 : -2);
        run(&b);
        for (int i = 0; i < N_OUTPUTS; i++)
            o[i] = public_read(b.outputs[i]);
        for (int i = 0; i < N_READ; i++)
            weights[i] = public_read(b.read[i]);
        for (int t = 0; t < N_TOKENS && s == 0; t++)
            check_streams(&o[MIX_IN][t * MIXES], &o[MIX][t * MIXES], &o[KEYS][t * DIM], &o[VALUES][t * DIM],
                          &o[MIXED][t * N_STREAMS * DIM]);
        for (int i = 0; i < N_OUTPUTS; i++) {
            if (s > 0) {
                assert_memory_equal(o[i], first[i], tsr_tensor_bytes(b.outputs[i]));
                free(first[i]);
            }
            first[i] = o[i];
        }
        for (int i = 0; i < N_READ; i++)
            free((void *)(uintptr_t)weights[i]);
        close_bench(&b);
    }
    for (int i = 0; i < N_OUTPUTS; i++)
        free(first[i]);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const tsr_mix_rule mixes[] = {{.n_in = 4, .n_out = 4},
                                         {.n_in = 2, .n_out = 1, .first = -1},
                                         {.n_in = 0, .n_out = 1},
                                         {.n_in = 2, .n_out = 9}};
    for (int i = 0; i < 8; i++) {
        bench b;
        open_bench(&b, public_splits[1], -1);
        tsr_stream_rule rule = rule_of(&b);
        rule.n = i == 4 ? TSR_MAX_STREAMS + 1 : rule.n;
        rule.iterations = i == 5 ? 0 : rule.iterations;
        rule.scale = i == 6 ? b.read[BASE] : rule.scale;
        rule.mixes = i != 7;
        assert_null(i < 4 ? tsr_stream_mix(b.graph, b.outputs[KEYS], b.outputs[MIX_IN], NULL, &mixes[i])
                          : tsr_stream_weights(b.graph, b.outputs[MIX_IN], &rule));
        public_says(i < 4 ? "one length, and each a weight" : "at least one iteration");
        close_bench(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_division_gives_the_same_bits),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
