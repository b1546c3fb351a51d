/* Attention over a KV region by the public headers alone: against a double-precision loop over the products
 * that the graph itself gives, for every way of dividing the heads; sequences that grow, fork and are cut. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "support/public_attention.h"
#include "support/random.h"
#include "support/runner.h"

/* Sequences in turns, one alone, a fork that goes on by itself, and a cut that is undone. */
static size_t run_all(const float *split, float *out)
{
    static const int32_t mixed[N_BATCH] = {1, 0, 0, 1, 1, 0, 1, 0, 1},
                         forked[N_BATCH] = {2, 0, 2, 2, 2, 1, 2, 2, 0};
    static attention_history h;
    float *end = out;
    attention_model m;
    attention_step many, one;
    memset(&h, 0, sizeof h);
    attention_open(&m, split);
    attention_get(m.sinks, h.sinks);
    attention_build(&m, N_BATCH, &many);
    attention_build(&m, 1, &one);
    for (int i = 0; i < 9; i++)
        attention_run(&m, &many, i % 2 ? NULL : mixed, 100 + (uint64_t)i, &h, &end);
    attention_run(&m, &one, NULL, 200, &h, &end);
    runner_ok(tsr_kv_fork(m.kv, 0, 2), "fork");
    h.lengths[2] = h.lengths[0];
    for (int l = 0; l < N_LAYERS; l++) {
        memcpy(h.k[l][2], h.k[l][0], sizeof h.k[l][0]);
        memcpy(h.v[l][2], h.v[l][0], sizeof h.v[l][0]);
    }
    attention_run(&m, &many, forked, 300, &h, &end);
    h.lengths[0] -= 2;
    runner_ok(tsr_kv_trim(m.kv, 0, h.lengths[0]), "trim");
    assert_true(tsr_kv_min_length(m.kv, 0) > 0); /* pages before the window are gone */
    runner_ok(tsr_kv_compact(m.kv), "compact");
    attention_run(&m, &one, NULL, 301, &h, &end);
    runner_ok(tsr_kv_remove(m.kv, 1), "remove");
    h.lengths[1] = 0;
    attention_run(&m, &many, mixed, 302, &h, &end);
    attention_free(&one);
    attention_free(&many);
    attention_close(&m);
    return (size_t)(end - out);
}

static void attention_is_right_for_every_split(void **state)
{
    (void)state;
    static const float splits[][3] = {{1, 0, 0}, {0, 1, 0}, {1, 1, 1}, {2, 1, 0}, {1, 0, 2}};
    static float first[256 * N_OUT], other[256 * N_OUT];
    size_t n = 0;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        n = run_all(splits[i], i ? other : first);
        assert_true(n <= sizeof first / sizeof *first);
        assert_true(i == 0 || memcmp(first, other, n * sizeof *first) == 0);
    }
}

/* -- parts of blocks -- */

enum { N_Q = N_HEADS * K_DIM, N_PARTS = 4 + TSR_GLU_BOUNDED + 1 };

static const float limit = 0.5f;

/* act(g) * u in double. */
static double glu(tsr_glu_kind kind, double g, double u)
{
    const double l = (double)limit;
    const double gelu = 0.5 * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g)));
    switch (kind) {
    case TSR_GLU_SILU:
        return g / (1 + exp(-g)) * u;
    case TSR_GLU_GELU_TANH:
        return g * gelu * u;
    case TSR_GLU_CLAMPED:
        return fmin(g, 7) / (1 + exp(-1.702 * fmin(g, 7))) * (fmax(-7, fmin(u, 7)) + 1);
    case TSR_GLU_GELU_GATE:
        return gelu * u;
    case TSR_GLU_RELU:
        return fmax(g, 0) * u;
    case TSR_GLU_SIGMOID:
        return u / (1 + exp(-g));
    case TSR_GLU_CAPPED:
        return fmin(g / (1 + exp(-g)), l) * fmax(-l, fmin(u, l));
    case TSR_GLU_PLAIN:
        return g * u;
    case TSR_GLU_BOUNDED:
        return fmin(g, l) / (1 + exp(-fmin(g, l))) * fmax(-l, fmin(u, l));
    }
    return NAN;
}

/* Element i of part `part`, of one token's q and r. */
static double part_of(int part, const float *q, const float *r, double factor, int i)
{
    const int head = i / K_DIM;
    double squares = 0;
    for (int k = 0; k < K_DIM; k++)
        squares += (double)q[head * K_DIM + k] * (double)q[head * K_DIM + k];
    switch (part) {
    case 0:
        return (double)q[i] / (1 + exp(-(double)r[head * K_DIM + 3]));
    case 1:
        return (double)q[i] / sqrt(squares / K_DIM + 1e-5);
    case 2:
        return factor * (double)q[i];
    case 3:
        return (double)q[i / 8 * K_DIM + 4 + i % 8];
    }
    return glu((tsr_glu_kind)(part - 4), (double)q[i], (double)r[i]);
}

static void run_parts(const float *split, float *out)
{
    static float x[N_BATCH * N_EMBD], q[N_BATCH][N_Q], r[N_BATCH][N_Q];
    uint64_t seed = 7;
    float factor;
    attention_model m;
    tsr_graph *g;
    tsr_program *program;
    tsr_program_info info;
    tsr_tensor *y[N_PARTS];
    attention_open(&m, split);
    runner_ok(tsr_graph_create(m.rt, &g), "graph");
    tsr_tensor *in = tsr_graph_input(g, TSR_TYPE_F32, N_EMBD, N_BATCH, "x");
    tsr_tensor *a = tsr_graph_output(g, tsr_mul_mat(g, m.wq[0], in));
    tsr_tensor *b = tsr_graph_output(g, tsr_mul_mat(g, m.wq[1], in));
    y[0] = tsr_gate(g, a, tsr_take_columns(g, b, (tsr_columns){K_DIM, 3, 1}));
    y[1] = tsr_rms_norm_plain(g, a, K_DIM, 1e-5f);
    y[2] = tsr_scale_by(g, a, m.factor);
    y[3] = tsr_take_columns(g, a, (tsr_columns){K_DIM, 4, 8});
    for (int kind = TSR_GLU_SILU; kind <= TSR_GLU_BOUNDED; kind++)
        y[4 + kind] = tsr_glu(g, (tsr_glu_kind)kind, limit, a, b);
    for (int i = 0; i < N_PARTS; i++)
        tsr_graph_output(g, y[i]);
    runner_ok(tsr_program_compile(g, NULL, &program), "compile");
    tsr_program_get_info(program, &info);
    assert_int_equal(info.n_all_gathers + info.n_all_reduces + info.n_transfers, 0); /* all stay divided */
    for (int i = 0; i < N_BATCH * N_EMBD; i++)
        x[i] = random_normal(&seed);
    runner_ok(tsr_tensor_set(in, x, 0, sizeof x), "x");
    runner_ok(tsr_program_run(program), "run");
    attention_get(a, q[0]);
    attention_get(b, r[0]);
    attention_get(m.factor, &factor);
    for (int part = 0; part < N_PARTS; part++, out += N_BATCH * N_Q) {
        const int n = (int)tsr_tensor_ne(y[part])[0];
        attention_get(y[part], out);
        for (int t = 0; t < N_BATCH; t++)
            for (int i = 0; i < n; i++) {
                const double expected = part_of(part, q[t], r[t], (double)factor, i);
                assert_true(fabs((double)out[t * n + i] - expected) < 1e-5 * (1 + fabs(expected)));
            }
    }
    tsr_program_destroy(program);
    tsr_graph_destroy(g);
    attention_close(&m);
}

static void parts_are_right_for_every_split(void **state)
{
    (void)state;
    static float first[N_PARTS * N_BATCH * N_Q], other[N_PARTS * N_BATCH * N_Q];
    run_parts((const float[]){1, 0, 0}, first);
    run_parts((const float[]){1, 0, 2}, other);
    assert_memory_equal(first, other, sizeof first);
}

/* Each device is charged for its heads when the region is made, and for no more later. */
static void reserved_bytes_are_those_of_the_heads(void **state)
{
    (void)state;
    attention_model m;
    attention_step s;
    size_t bytes[3];
    attention_open(&m, (const float[]){2, 0, 1});
    for (int d = 0; d < 3; d++)
        bytes[d] = tsr_kv_reserved_bytes(m.kv, d);
    assert_true(bytes[0] <= 2 * bytes[2] && bytes[0] > 3 * bytes[2] / 2); /* in whole pages of memory */
    assert_int_equal(bytes[1], 0);
    attention_build(&m, N_BATCH, &s);
    runner_ok(tsr_kv_inputs_append(s.inputs, NULL, NULL), "append");
    for (int d = 0; d < 3; d++) {
        tsr_device_memory memory;
        runner_ok(tsr_runtime_memory(m.rt, d, &memory), "memory");
        assert_int_equal(memory.used[TSR_MEMORY_KV], bytes[d]);
        assert_int_equal(memory.kv_committed, tsr_kv_committed_bytes(m.kv, d));
        assert_true(tsr_kv_committed_bytes(m.kv, d) <= bytes[d]);
        assert_int_equal(tsr_kv_committed_bytes(m.kv, d) > 0, bytes[d] > 0);
    }
    assert_int_equal(tsr_kv_reserved_bytes(m.kv, 3), 0);
    assert_int_equal(tsr_kv_reserved_bytes(NULL, 0), 0);
    attention_free(&s);
    attention_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_right_for_every_split),
        cmocka_unit_test(parts_are_right_for_every_split),
        cmocka_unit_test(reserved_bytes_are_those_of_the_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
