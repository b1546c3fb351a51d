/* Attention over a KV region by the public headers alone: against a double-precision loop over the products
 * that the graph itself gives, for every way of dividing the heads; sequences that grow, fork and are cut;
 * and what every call refuses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "support/random.h"
#include "support/runner.h"

enum {
    N_EMBD = 64,
    N_KV = 3,
    GROUP = 2,
    N_HEADS = N_KV * GROUP,
    K_DIM = 32,
    V_DIM = 16,
    N_LAYERS = 2, /* the first sees all positions and has sinks, the second has a window and a cap */
    WINDOW = 5,
    N_CTX = 200,
    N_SEQ = 3,
    N_BATCH = 9,
    MAX_LENGTH = 64,
    N_OUT = N_HEADS * V_DIM
};

static const float softcap = 3;

/* -- a model of two attentions -- */

enum { Q_ROWS, KV_ROWS, WHOLE, N_WAYS };

typedef struct model {
    tsr_runtime *rt;
    tsr_context *contexts[N_WAYS];
    tsr_buffer *buffers[N_WAYS];
    tsr_tensor *wq[N_LAYERS], *wk[N_LAYERS], *wv[N_LAYERS], *sinks, *factor;
    tsr_kv *kv;
} model;

static void fill(tsr_tensor *w, uint64_t seed, float size)
{
    const int64_t n = tsr_tensor_n_elements(w);
    float *data = malloc((size_t)n * sizeof *data);
    assert_non_null(data);
    for (int64_t i = 0; i < n; i++)
        data[i] = size * random_normal(&seed);
    runner_ok(tsr_tensor_set(w, data, 0, tsr_tensor_bytes(w)), "weight");
    free(data);
}

static const tsr_buffer_type *rows(tsr_runtime *rt, int64_t granule, const float *split)
{
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    config.granule = granule;
    config.tensor_split = split;
    config.n_tensor_split = 3;
    return tsr_split_buffer_type_ex(rt, &config);
}

static tsr_kv_config kv_config(const model *m, tsr_kv_layer_config layers[N_LAYERS])
{
    tsr_kv_config config = tsr_kv_config_default();
    for (int l = 0; l < N_LAYERS; l++)
        layers[l] = (tsr_kv_layer_config){
            .wk = m->wk[l], .k_dim = K_DIM, .v_dim = V_DIM, .window = l == 1 ? WINDOW : 0};
    config.layers = layers;
    config.n_layers = N_LAYERS;
    config.type_k = config.type_v = TSR_TYPE_F32;
    config.n_ctx = N_CTX;
    config.n_seq_max = N_SEQ;
    config.n_batch = N_BATCH;
    return config;
}

/* On the device that has all of the split, or over all three. */
static void open_model(model *m, const float *split)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_kv_layer_config layers[N_LAYERS];
    const int64_t granules[N_WAYS] = {GROUP * K_DIM, K_DIM, 1};
    *m = (model){0};
    config.devices = "host:3,threads=1";
    runner_ok(tsr_runtime_open(&config, &m->rt), "runtime");
    for (int way = 0; way < N_WAYS; way++)
        runner_ok(tsr_context_create(m->rt, &m->contexts[way]), "context");
    for (int l = 0; l < N_LAYERS; l++) {
        m->wq[l] = tsr_tensor_2d(m->contexts[Q_ROWS], TSR_TYPE_F32, N_EMBD, N_HEADS * K_DIM, "wq");
        m->wk[l] = tsr_tensor_2d(m->contexts[KV_ROWS], TSR_TYPE_F32, N_EMBD, N_KV * K_DIM, "wk");
    }
    tsr_context *of_values = m->contexts[KV_ROWS];
    runner_ok(tsr_tensors_alloc(of_values, rows(m->rt, K_DIM, split), &m->buffers[KV_ROWS]), "keys");
    for (int l = 0; l < N_LAYERS; l++)
        m->wv[l] = tsr_tensor_2d(m->contexts[WHOLE], TSR_TYPE_F32, N_EMBD, N_KV * V_DIM, "wv");
    runner_ok(tsr_tensors_alloc(m->contexts[WHOLE], rows(m->rt, V_DIM, split), &m->buffers[WHOLE]), "values");
    m->factor = tsr_tensor_1d(m->contexts[Q_ROWS], TSR_TYPE_F32, 1, "factor");
    m->sinks = tsr_tensor_1d(m->contexts[Q_ROWS], TSR_TYPE_F32, N_HEADS, "sinks");
    runner_ok(
        tsr_tensors_alloc(m->contexts[Q_ROWS], rows(m->rt, granules[Q_ROWS], split), &m->buffers[Q_ROWS]),
        "queries");
    for (int l = 0; l < N_LAYERS; l++) {
        fill(m->wq[l], 10 + (uint64_t)l, 0.3f);
        fill(m->wk[l], 20 + (uint64_t)l, 0.3f);
        fill(m->wv[l], 30 + (uint64_t)l, 0.3f);
    }
    fill(m->sinks, 40, 1);
    fill(m->factor, 50, 1);
    const tsr_kv_config kv = kv_config(m, layers);
    runner_ok(tsr_kv_create(m->rt, &kv, &m->kv), "KV region");
}

static void close_model(model *m)
{
    tsr_kv_destroy(m->kv);
    for (int way = 0; way < N_WAYS; way++) {
        tsr_buffer_destroy(m->buffers[way]);
        tsr_context_destroy(m->contexts[way]);
    }
    tsr_runtime_close(m->rt);
}

typedef struct step {
    int n_tokens;
    tsr_graph *graph;
    tsr_program *program;
    tsr_kv_inputs *inputs;
    tsr_tensor *x, *q[N_LAYERS], *k[N_LAYERS], *v[N_LAYERS], *y[N_LAYERS];
} step;

static void build(const model *m, int n_tokens, step *s)
{
    *s = (step){.n_tokens = n_tokens};
    runner_ok(tsr_graph_create(m->rt, &s->graph), "graph");
    tsr_graph *g = s->graph;
    s->x = tsr_graph_input(g, TSR_TYPE_F32, N_EMBD, n_tokens, "x");
    s->inputs = tsr_graph_kv_inputs(g, m->kv, n_tokens);
    for (int l = 0; l < N_LAYERS; l++) {
        tsr_attention_config config = tsr_attention_config_default();
        config.sinks = l == 0 ? m->sinks : NULL;
        config.softcap = l == 1 ? softcap : 0;
        config.scale = l == 1 ? 0.25f : 0;
        s->q[l] = tsr_graph_output(g, tsr_mul_mat(g, m->wq[l], s->x));
        s->k[l] = tsr_graph_output(g, tsr_mul_mat(g, m->wk[l], s->x));
        s->v[l] = tsr_graph_output(g, tsr_mul_mat(g, m->wv[l], s->x));
        tsr_kv_store(g, s->inputs, l, s->k[l], s->v[l]);
        s->y[l] = tsr_graph_output(g, tsr_attention(g, s->inputs, l, s->q[l], &config));
    }
    runner_ok(tsr_program_compile(g, NULL, &s->program), "compile");
}

static void free_step(step *s)
{
    tsr_program_destroy(s->program);
    tsr_graph_destroy(s->graph);
}

/* -- the reference -- */

/* Keys and values of every sequence as the test has them. */
typedef struct history {
    int64_t lengths[N_SEQ];
    float k[N_LAYERS][N_SEQ][MAX_LENGTH][N_KV * K_DIM];
    float v[N_LAYERS][N_SEQ][MAX_LENGTH][N_KV * V_DIM];
    float sinks[N_HEADS];
} history;

/* Head `head` of layer `l` of a token at `position`. */
static void reference_head(const history *h, int l, int seq, int64_t position, const float *q, int head,
                           double y[V_DIM])
{
    const int64_t first = l == 1 && position >= WINDOW ? position - WINDOW + 1 : 0;
    const int kv_head = head / GROUP;
    double scores[MAX_LENGTH], most = l == 0 ? (double)h->sinks[head] : -1e30, sum = 0;
    for (int64_t p = first; p <= position; p++) {
        double dot = 0;
        for (int i = 0; i < K_DIM; i++)
            dot += (double)q[head * K_DIM + i] * (double)h->k[l][seq][p][kv_head * K_DIM + i];
        scores[p] = l == 1 ? (double)softcap * tanh(0.25 * dot / (double)softcap) : dot / sqrt(K_DIM);
        most = fmax(most, scores[p]);
    }
    memset(y, 0, V_DIM * sizeof *y);
    for (int64_t p = first; p <= position; p++) {
        const double weight = exp(scores[p] - most);
        sum += weight;
        for (int i = 0; i < V_DIM; i++)
            y[i] += weight * (double)h->v[l][seq][p][kv_head * V_DIM + i];
    }
    sum += l == 0 ? exp((double)h->sinks[head] - most) : 0;
    for (int i = 0; i < V_DIM; i++)
        y[i] /= sum;
}

static void get(const tsr_tensor *tensor, float *out)
{
    runner_ok(tsr_tensor_get(tensor, out, 0, tsr_tensor_bytes(tensor)), tsr_tensor_name(tensor));
}

/* Run a step with random x, keep its keys and values, and compare. out: where results are appended. */
static void run_and_check(const model *m, step *s, const int32_t *seqs, uint64_t seed, history *h,
                          float **out)
{
    static float x[N_BATCH * N_EMBD], q[N_BATCH][N_HEADS * K_DIM], y[N_BATCH][N_OUT];
    static float k[N_BATCH][N_KV * K_DIM], v[N_BATCH][N_KV * V_DIM];
    int32_t positions[N_BATCH];
    for (int i = 0; i < s->n_tokens * N_EMBD; i++)
        x[i] = random_normal(&seed);
    runner_ok(tsr_tensor_set(s->x, x, 0, tsr_tensor_bytes(s->x)), "x");
    runner_ok(tsr_kv_inputs_append(s->inputs, seqs, positions), "append");
    runner_ok(tsr_program_run(s->program), "run");
    for (int t = 0; t < s->n_tokens; t++)
        assert_int_equal(positions[t], h->lengths[seqs ? seqs[t] : 0]++);
    for (int i = 0; i < N_SEQ; i++)
        assert_int_equal(tsr_kv_length(m->kv, i), h->lengths[i]);
    for (int l = 0; l < N_LAYERS; l++) {
        get(s->q[l], q[0]);
        get(s->k[l], k[0]);
        get(s->v[l], v[0]);
        get(s->y[l], y[0]);
        for (int t = 0; t < s->n_tokens; t++) {
            memcpy(h->k[l][seqs ? seqs[t] : 0][positions[t]], k[t], sizeof k[t]);
            memcpy(h->v[l][seqs ? seqs[t] : 0][positions[t]], v[t], sizeof v[t]);
        }
        for (int t = 0; t < s->n_tokens; t++)
            for (int head = 0; head < N_HEADS; head++) {
                double expected[V_DIM];
                reference_head(h, l, seqs ? seqs[t] : 0, positions[t], q[t], head, expected);
                for (int i = 0; i < V_DIM; i++) /* sums of up to 64 terms around 10, in F32 */
                    assert_true(fabs((double)y[t][head * V_DIM + i] - expected[i]) < 1e-4);
            }
        memcpy(*out, y, (size_t)s->n_tokens * sizeof y[0]);
        *out += s->n_tokens * N_OUT;
    }
}

/* Sequences in turns, one alone, a fork that goes on by itself, and a cut that is undone. */
static size_t run_all(const float *split, float *out)
{
    static const int32_t mixed[N_BATCH] = {1, 0, 0, 1, 1, 0, 1, 0, 1},
                         forked[N_BATCH] = {2, 0, 2, 2, 2, 1, 2, 2, 0};
    static history h;
    float *end = out;
    model m;
    step many, one;
    memset(&h, 0, sizeof h);
    open_model(&m, split);
    get(m.sinks, h.sinks);
    build(&m, N_BATCH, &many);
    build(&m, 1, &one);
    for (int i = 0; i < 9; i++)
        run_and_check(&m, &many, i % 2 ? NULL : mixed, 100 + (uint64_t)i, &h, &end);
    run_and_check(&m, &one, NULL, 200, &h, &end);
    runner_ok(tsr_kv_fork(m.kv, 0, 2), "fork");
    h.lengths[2] = h.lengths[0];
    for (int l = 0; l < N_LAYERS; l++) {
        memcpy(h.k[l][2], h.k[l][0], sizeof h.k[l][0]);
        memcpy(h.v[l][2], h.v[l][0], sizeof h.v[l][0]);
    }
    run_and_check(&m, &many, forked, 300, &h, &end);
    h.lengths[0] -= 2;
    runner_ok(tsr_kv_trim(m.kv, 0, h.lengths[0]), "trim");
    assert_true(tsr_kv_min_length(m.kv, 0) > 0); /* pages before the window are gone */
    runner_ok(tsr_kv_compact(m.kv), "compact");
    run_and_check(&m, &one, NULL, 301, &h, &end);
    runner_ok(tsr_kv_remove(m.kv, 1), "remove");
    h.lengths[1] = 0;
    run_and_check(&m, &many, mixed, 302, &h, &end);
    free_step(&one);
    free_step(&many);
    close_model(&m);
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
    model m;
    tsr_graph *g;
    tsr_program *program;
    tsr_program_info info;
    tsr_tensor *y[N_PARTS];
    open_model(&m, split);
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
    get(a, q[0]);
    get(b, r[0]);
    get(m.factor, &factor);
    for (int part = 0; part < N_PARTS; part++, out += N_BATCH * N_Q) {
        const int n = (int)tsr_tensor_ne(y[part])[0];
        get(y[part], out);
        for (int t = 0; t < N_BATCH; t++)
            for (int i = 0; i < n; i++) {
                const double expected = part_of(part, q[t], r[t], (double)factor, i);
                assert_true(fabs((double)out[t * n + i] - expected) < 1e-5 * (1 + fabs(expected)));
            }
    }
    tsr_program_destroy(program);
    tsr_graph_destroy(g);
    close_model(&m);
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
    model m;
    step s;
    size_t bytes[3];
    open_model(&m, (const float[]){2, 0, 1});
    for (int d = 0; d < 3; d++)
        bytes[d] = tsr_kv_reserved_bytes(m.kv, d);
    assert_true(bytes[0] <= 2 * bytes[2] && bytes[0] > 3 * bytes[2] / 2); /* in whole pages of memory */
    assert_int_equal(bytes[1], 0);
    build(&m, N_BATCH, &s);
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
    free_step(&s);
    close_model(&m);
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
