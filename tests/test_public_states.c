/* Convolutions, recurrences and compressed positions by the public headers alone: against loops in
 * double over what the graph itself gives, the same bits for every division over devices, steps that are
 * undone, forks; and what the calls refuse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "support/directory.h"
#include "support/public_weights.h"
#include "support/random.h"
#include "support/runner.h"

enum {
    N_EMBD = 48,
    KERNEL = 4,
    N_KEYS = 3, /* heads of queries and keys, and with GROUP heads of values each */
    GROUP = 2,
    N_HEADS = N_KEYS * GROUP,
    DK = 8,
    DV = 4,
    N_Q = N_KEYS * DK,
    N_V = N_HEADS * DV,
    RATIO = 3,
    DIM = 16, /* of a compressed row, and of heads that see rows */
    N_TOKENS = 5,
    N_STEPS = 3,
    N_SEQ = 2,
    MAX_LENGTH = N_STEPS * N_TOKENS
};
static const float eps = 1e-6f;

/* The KV layers: a gated delta rule, Mamba-2, attention to compressed rows, and these rows. */
enum { DELTA, MAMBA, COMPRESSED, ROWS, N_LAYERS };

enum {
    X_V,
    V, /* of the delta rule: before and behind a convolution with a bias */
    Q,
    K,
    ALPHA,
    BETA,
    Y,
    CC,
    BB,
    DT,
    MAMBA_Y,
    VALUES,
    GATES,
    PAIRS, /* values and gates of overlapping groups follow */
    PAIR_GATES,
    COMPACT,
    OVERLAPPED,
    KEYS,
    QUERIES,
    SEEN,
    N_OUTPUTS
};

/* Weights that the reference reads. */
enum { CONV, CONV_BIAS, A, DT_BIAS, SKIP, MAMBA_A, MAMBA_BIAS, BIAS, PAIR_BIAS, N_READ };

typedef struct bench {
    public_weights w;
    tsr_tensor *product[N_OUTPUTS]; /* weights whose products with x the outputs are; NULL: others */
    tsr_tensor *read[N_READ];
    tsr_kv *kv;
    tsr_graph *graph;
    tsr_tensor *x, *outputs[N_OUTPUTS];
    tsr_kv_inputs *inputs;
    tsr_program *program;
} bench;

static const int32_t seqs[N_STEPS][N_TOKENS] = {{0, 1, 0, 0, 1}, {0, 0, 1, 0, 0}, {1, 1, 0, 1, 0}};

static void make_weights(bench *b)
{
    public_weights *w = &b->w;
    static const struct {
        int output, axis, granule, rows;
    } products[] = {{X_V, 1, GROUP * DV, N_V}, {Q, 1, DK, N_Q},
                    {K, 1, DK, N_Q},           {ALPHA, 1, GROUP, N_HEADS},
                    {BETA, 1, GROUP, N_HEADS}, {CC, -1, 0, DK},
                    {BB, -1, 0, DK},           {DT, 1, GROUP, N_HEADS},
                    {VALUES, -1, 0, DIM},      {GATES, -1, 0, DIM},
                    {PAIRS, -1, 0, 2 * DIM},   {PAIR_GATES, -1, 0, 2 * DIM},
                    {KEYS, -1, 0, DIM},        {QUERIES, 1, GROUP * DIM, N_HEADS * DIM}};
    static const struct {
        int read, axis, granule, ne0, ne1;
        float size;
    } vectors[] = {{CONV, 1, GROUP * DV, KERNEL, N_V, 0.5f},
                   {CONV_BIAS, 0, GROUP * DV, N_V, 1, 0.3f},
                   {A, 0, GROUP, N_HEADS, 1, 0.3f},
                   {DT_BIAS, 0, GROUP, N_HEADS, 1, 0.5f},
                   {SKIP, 0, GROUP, N_HEADS, 1, 0.5f},
                   {MAMBA_A, 0, GROUP, N_HEADS, 1, 0.3f},
                   {MAMBA_BIAS, 0, GROUP, N_HEADS, 1, 0.5f},
                   {BIAS, -1, 0, RATIO * DIM, 1, 0.5f},
                   {PAIR_BIAS, -1, 0, RATIO * 2 * DIM, 1, 0.5f}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        b->product[products[i].output] =
            public_weight(w, products[i].axis, products[i].granule, N_EMBD, products[i].rows, 0.2f, 1 + i);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        b->read[vectors[i].read] = public_weight(w, vectors[i].axis, vectors[i].granule, vectors[i].ne0,
                                                 vectors[i].ne1, vectors[i].size, 100 + i);
}

/* Make the region, which reserves and charges what was measured before, states included. */
static void create_region(bench *b, const tsr_kv_config *config)
{
    size_t bytes[TSR_MAX_DEVICES];
    tsr_device_memory memory;
    runner_ok(tsr_kv_measure(b->w.rt, config, bytes), "measure");
    for (int d = 0; d < tsr_runtime_n_devices(b->w.rt); d++) {
        runner_ok(tsr_runtime_memory(b->w.rt, d, &memory), "memory");
        assert_int_equal(memory.used[TSR_MEMORY_KV], 0);
    }
    runner_ok(tsr_kv_create(b->w.rt, config, &b->kv), "region");
    for (int d = 0; d < tsr_runtime_n_devices(b->w.rt); d++) {
        runner_ok(tsr_runtime_memory(b->w.rt, d, &memory), "memory");
        assert_int_equal(tsr_kv_reserved_bytes(b->kv, d), bytes[d]);
        assert_int_equal(memory.used[TSR_MEMORY_KV], bytes[d]);
    }
}

static void open_bench(bench *b, const float *split)
{
    *b = (bench){0};
    public_weights_open(&b->w, split);
    make_weights(b);
    const tsr_kv_state_config delta[] = {{b->read[CONV], KERNEL - 1}, {b->product[X_V], DK}};
    const tsr_kv_state_config mamba[] = {{b->product[X_V], DK}};
    const tsr_kv_state_config compressed[] = {{b->read[BIAS], 1}, {b->read[PAIR_BIAS], 1}};
    const tsr_kv_layer_config layers[N_LAYERS] = {[DELTA] = {.states = delta, .n_states = 2},
                                                  [MAMBA] = {.states = mamba, .n_states = 1},
                                                  [COMPRESSED] = {.wk = b->product[QUERIES],
                                                                  .k_dim = DIM,
                                                                  .v_dim = DIM,
                                                                  .window = 2,
                                                                  .whole = true,
                                                                  .v_in_k = true,
                                                                  .states = compressed,
                                                                  .n_states = 2},
                                                  [ROWS] = {.wk = b->product[QUERIES],
                                                            .k_dim = DIM,
                                                            .v_dim = DIM,
                                                            .whole = true,
                                                            .v_in_k = true,
                                                            .ratio = RATIO}};
    tsr_kv_config config = tsr_kv_config_default();
    config.layers = layers;
    config.n_layers = N_LAYERS;
    config.type_k = config.type_v = TSR_TYPE_F32;
    config.n_ctx = 64;
    config.n_batch = N_TOKENS;
    config.n_seq_max = N_SEQ;
    create_region(b, &config);
    runner_ok(tsr_graph_create(b->w.rt, &b->graph), "graph");
    b->x = tsr_graph_input(b->graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    b->inputs = tsr_graph_kv_inputs(b->graph, b->kv, N_TOKENS);
    for (int i = 0; i < N_OUTPUTS; i++)
        if (b->product[i])
            b->outputs[i] = tsr_mul_mat(b->graph, b->product[i], b->x);
}

static void close_bench(bench *b)
{
    tsr_program_destroy(b->program);
    tsr_graph_destroy(b->graph);
    tsr_kv_destroy(b->kv);
    public_weights_close(&b->w);
}

static tsr_weight_parts one(tsr_tensor *w)
{
    return (tsr_weight_parts){.at = {w}, .n = 1};
}

static tsr_recurrence_operands delta_operands(const bench *b)
{
    return (tsr_recurrence_operands){.q = b->outputs[Q],
                                     .k = b->outputs[K],
                                     .v = b->outputs[V],
                                     .alpha = b->outputs[ALPHA],
                                     .beta = b->outputs[BETA],
                                     .a = one(b->read[A]),
                                     .dt_bias = one(b->read[DT_BIAS]),
                                     .n_heads = N_HEADS,
                                     .n_key_heads = N_KEYS,
                                     .eps = eps};
}

static void build(bench *b)
{
    tsr_graph *g = b->graph;
    tsr_tensor **o = b->outputs;
    const tsr_weight_parts conv = one(b->read[CONV]);
    const tsr_compress_rule compact = {.ratio = RATIO, .bias = b->read[BIAS]},
                            pairs = {.ratio = RATIO, .overlap = true, .bias = b->read[PAIR_BIAS]};
    tsr_attention_config config = tsr_attention_config_default();
    o[V] = tsr_conv(g, b->inputs, DELTA, 0, o[X_V], &conv, b->read[CONV_BIAS], true);
    const tsr_recurrence_operands delta = delta_operands(b);
    o[Y] = tsr_recurrence(g, b->inputs, DELTA, 1, &delta);
    const tsr_recurrence_operands mamba = {.q = o[CC],
                                           .k = o[BB],
                                           .v = o[X_V],
                                           .alpha = o[DT],
                                           .a = one(b->read[MAMBA_A]),
                                           .dt_bias = one(b->read[MAMBA_BIAS]),
                                           .skip = b->read[SKIP],
                                           .n_heads = N_HEADS,
                                           .n_key_heads = 1};
    o[MAMBA_Y] = tsr_recurrence(g, b->inputs, MAMBA, 0, &mamba);
    o[COMPACT] = tsr_compress(g, b->inputs, COMPRESSED, 0, o[VALUES], o[GATES], &compact);
    o[OVERLAPPED] = tsr_compress(g, b->inputs, COMPRESSED, 1, o[PAIRS], o[PAIR_GATES], &pairs);
    tsr_kv_store(g, b->inputs, COMPRESSED, o[KEYS], o[KEYS]);
    tsr_kv_store(g, b->inputs, ROWS, o[COMPACT], o[COMPACT]);
    config.sees_more = true;
    config.more_layer = ROWS;
    o[SEEN] = tsr_attention(g, b->inputs, COMPRESSED, o[QUERIES], &config);
    for (int i = 0; i < N_OUTPUTS; i++)
        tsr_graph_output(g, o[i]);
    runner_ok(tsr_program_compile(g, NULL, &b->program), "compile");
}

static void run(bench *b, int step, const int32_t *of_tokens, int32_t *positions)
{
    float x[N_TOKENS][N_EMBD];
    uint64_t seed = 1000 + (uint64_t)step;
    for (int t = 0; t < N_TOKENS; t++)
        for (int i = 0; i < N_EMBD; i++)
            x[t][i] = random_normal(&seed);
    runner_ok(tsr_kv_inputs_append(b->inputs, of_tokens, positions), "append");
    runner_ok(tsr_tensor_set(b->x, x, 0, sizeof x), "x");
    runner_ok(tsr_program_run(b->program), "run");
}

/* -- the reference: what every sequence has so far -- */

typedef struct history {
    int length;
    double x_v[MAX_LENGTH][N_V], keys[MAX_LENGTH][DIM], compact[MAX_LENGTH][DIM];
    double values[2][MAX_LENGTH][2 * DIM], gates[2][MAX_LENGTH][2 * DIM]; /* without and with overlap */
    double delta[N_HEADS][DK][DV], mamba[N_HEADS][DK][DV];
} history;

static const float *weights[N_READ];

static double softplus(double x)
{
    return log1p(exp(x));
}

static void check_conv(const history *h, int t, const float *y)
{
    for (int c = 0; c < N_V; c++) {
        double sum = (double)weights[CONV_BIAS][c];
        for (int k = 0; k < KERNEL; k++)
            if (t - KERNEL + 1 + k >= 0)
                sum += (double)weights[CONV][c * KERNEL + k] * h->x_v[t - KERNEL + 1 + k][c];
        public_near("a convolution", y[c], sum / (1 + exp(-sum)));
    }
}

static void check_delta(history *h, const float *q, const float *k, const float *v, const float *alpha,
                        const float *beta, const float *y)
{
    for (int head = 0; head < N_HEADS; head++) {
        const float *qh = q + head / GROUP * DK, *kh = k + head / GROUP * DK;
        double(*s)[DV] = h->delta[head], q2 = (double)eps, k2 = (double)eps;
        const double decay =
            exp((double)weights[A][head] * softplus((double)alpha[head] + (double)weights[DT_BIAS][head]));
        for (int i = 0; i < DK; i++) {
            q2 += (double)qh[i] * (double)qh[i];
            k2 += (double)kh[i] * (double)kh[i];
        }
        for (int j = 0; j < DV; j++) {
            double read = 0, out = 0;
            for (int i = 0; i < DK; i++)
                read += (s[i][j] *= decay) * (double)kh[i] / sqrt(k2);
            const double u = ((double)v[head * DV + j] - read) / (1 + exp(-(double)beta[head]));
            for (int i = 0; i < DK; i++) {
                s[i][j] += (double)kh[i] / sqrt(k2) * u;
                out += s[i][j] * (double)qh[i] / sqrt(q2) / sqrt(DK);
            }
            public_near("a delta rule", y[head * DV + j], out);
        }
    }
}

static void check_mamba(history *h, const float *c, const float *b, const float *x, const float *dts,
                        const float *y)
{
    for (int head = 0; head < N_HEADS; head++) {
        const double dt = softplus((double)dts[head] + (double)weights[MAMBA_BIAS][head]);
        for (int j = 0; j < DV; j++) {
            const double v = (double)x[head * DV + j];
            double out = (double)weights[SKIP][head] * v;
            for (int i = 0; i < DK; i++) {
                double *s = &h->mamba[head][i][j];
                *s = exp((double)weights[MAMBA_A][head] * dt) * *s + dt * (double)b[i] * v;
                out += *s * (double)c[i];
            }
            public_near("Mamba-2", y[head * DV + j], out);
        }
    }
}

/* One channel of the row that ends at position t. */
static double reference_row(const history *h, int overlap, int t, int channel)
{
    const int n = overlap ? 2 * DIM : DIM;
    double sum = 0, total = 0;
    for (int half = 0; half <= overlap; half++) {
        const int from =
            overlap && half == 0 ? t - 2 * RATIO + 1 : t - RATIO + 1; /* first half: the group before */
        const int c = half * DIM + channel;
        for (int j = from < 0 ? 0 : from; j < from + RATIO; j++) {
            const double gate =
                h->gates[overlap][j][c] + (double)weights[overlap ? PAIR_BIAS : BIAS][j % RATIO * n + c];
            total += exp(gate);
            sum += exp(gate) * h->values[overlap][j][c];
        }
    }
    return sum / total;
}

static void check_rows(const history *h, int overlap, int t, const float *y)
{
    for (int c = 0; c < DIM; c++)
        public_near("a compressed row", y[c], t % RATIO == RATIO - 1 ? reference_row(h, overlap, t, c) : 0);
}

/* A window of two positions, and the rows that are complete. */
static void check_seen(const history *h, int t, const float *q, const float *y)
{
    double sum = 0, out[DIM] = {0};
    for (int p = 0; p <= 2 * t + 1; p++) {
        const int at = p / 2;
        const double *row = p % 2 ? h->compact[at] : h->keys[at];
        if (p % 2 ? at % RATIO != RATIO - 1 : at < t - 1)
            continue;
        double dot = 0;
        for (int i = 0; i < DIM; i++)
            dot += (double)q[i] * row[i];
        sum += exp(dot / sqrt(DIM));
        for (int i = 0; i < DIM; i++)
            out[i] += exp(dot / sqrt(DIM)) * row[i];
    }
    for (int i = 0; i < DIM; i++)
        public_near("attention to rows", y[i], out[i] / sum);
}

static void check_token(history *h, float *const *o, int t)
{
    const int p = h->length++;
    for (int i = 0; i < N_V; i++)
        h->x_v[p][i] = (double)o[X_V][t * N_V + i];
    for (int i = 0; i < 2 * DIM; i++) {
        h->values[1][p][i] = (double)o[PAIRS][t * 2 * DIM + i];
        h->gates[1][p][i] = (double)o[PAIR_GATES][t * 2 * DIM + i];
    }
    for (int i = 0; i < DIM; i++) {
        h->values[0][p][i] = (double)o[VALUES][t * DIM + i];
        h->gates[0][p][i] = (double)o[GATES][t * DIM + i];
        h->keys[p][i] = (double)o[KEYS][t * DIM + i];
        h->compact[p][i] = (double)o[COMPACT][t * DIM + i];
    }
    check_conv(h, p, &o[V][t * N_V]);
    check_delta(h, &o[Q][t * N_Q], &o[K][t * N_Q], &o[V][t * N_V], &o[ALPHA][t * N_HEADS],
                &o[BETA][t * N_HEADS], &o[Y][t * N_V]);
    check_mamba(h, &o[CC][t * DK], &o[BB][t * DK], &o[X_V][t * N_V], &o[DT][t * N_HEADS],
                &o[MAMBA_Y][t * N_V]);
    check_rows(h, 0, p, &o[COMPACT][t * DIM]);
    check_rows(h, 1, p, &o[OVERLAPPED][t * DIM]);
    for (int head = 0; head < N_HEADS; head++)
        check_seen(h, p, &o[QUERIES][(t * N_HEADS + head) * DIM], &o[SEEN][(t * N_HEADS + head) * DIM]);
}

/* -- tests -- */

static void read_outputs(const bench *b, float **o)
{
    for (int i = 0; i < N_OUTPUTS; i++)
        o[i] = public_read(b->outputs[i]);
}

/* Compare with `first`, unless it is empty: then it takes the outputs. */
static void compare(const bench *b, float **o, float **first)
{
    for (int i = 0; i < N_OUTPUTS; i++) {
        if (!first[i]) {
            first[i] = o[i];
            continue;
        }
        assert_memory_equal(o[i], first[i], tsr_tensor_bytes(b->outputs[i]));
        free(o[i]);
    }
}

static void free_all(float **o)
{
    for (int i = 0; i < N_OUTPUTS; i++)
        free(o[i]);
}

static void every_division_gives_the_same_bits(void **state)
{
    (void)state;
    static float *first[N_STEPS][N_OUTPUTS];
    static history histories[N_SEQ];
    for (int s = 0; s < PUBLIC_SPLITS; s++) {
        bench b;
        float *o[N_OUTPUTS];
        int32_t positions[N_TOKENS];
        open_bench(&b, public_splits[s]);
        build(&b);
        for (int i = 0; i < N_READ; i++)
            weights[i] = public_read(b.read[i]);
        for (int step = 0; step < N_STEPS; step++) {
            run(&b, step, seqs[step], positions);
            read_outputs(&b, o);
            for (int t = 0; t < N_TOKENS && s == 0; t++)
                check_token(&histories[seqs[step][t]], o, t);
            compare(&b, o, first[step]);
        }
        for (int i = 0; i < N_READ; i++)
            free((void *)(uintptr_t)weights[i]);
        close_bench(&b);
    }
    for (int step = 0; step < N_STEPS; step++)
        free_all(first[step]);
}

/* The last step is undone and computed again; a fork goes on as its parent does. */
static void steps_are_undone_and_forked(void **state)
{
    (void)state;
    static const int32_t of_one[N_TOKENS] = {1, 1, 1, 1, 1};
    float *o[N_OUTPUTS], *first[N_OUTPUTS] = {NULL};
    int32_t positions[N_TOKENS];
    bench b;
    open_bench(&b, public_splits[2]);
    build(&b);
    run(&b, 0, NULL, positions);
    run(&b, 1, NULL, positions);
    assert_int_equal(tsr_kv_min_length(b.kv, 0), N_TOKENS);
    assert_int_equal(tsr_kv_trim(b.kv, 0, N_TOKENS + 1), TSR_ERR_INVALID);
    public_says("behind 5 tokens only");
    read_outputs(&b, o);
    compare(&b, o, first);
    runner_ok(tsr_kv_trim(b.kv, 0, N_TOKENS), "undo");
    run(&b, 1, NULL, positions);
    assert_int_equal(positions[0], N_TOKENS);
    read_outputs(&b, o);
    compare(&b, o, first);
    free_all(first);
    memset(first, 0, sizeof first);
    runner_ok(tsr_kv_fork(b.kv, 0, 1), "fork");
    for (int i = 0; i < 2; i++) {
        run(&b, 2, i == 0 ? NULL : of_one, positions);
        assert_int_equal(positions[0], 2 * N_TOKENS);
        read_outputs(&b, o);
        compare(&b, o, first);
    }
    free_all(first);
    close_bench(&b);
}

/* A recurrence over two parts, with a decay for each row of the state, is two recurrences over one part. */
static void parts_are_recurrences_of_their_own(void **state)
{
    (void)state;
    float *first = NULL;
    for (int s = 0; s < PUBLIC_SPLITS; s++) {
        bench b;
        int32_t positions[N_TOKENS];
        tsr_weight_parts v = {.n = 2}, alpha = {.n = 2}, beta = {.n = 2}, a = {.n = 2}, dt = {.n = 2};
        tsr_tensor *y[3];
        public_weights_open(&b.w, public_splits[s]);
        tsr_tensor *wq = public_weight(&b.w, 1, DK, N_EMBD, N_Q, 0.2f, 1);
        for (int i = 0; i < 2; i++) {
            const uint64_t seed = 10 * ((uint64_t)i + 1);
            v.at[i] = public_weight(&b.w, 1, GROUP * DV, N_EMBD, N_V, 0.2f, seed);
            alpha.at[i] = public_weight(&b.w, 1, GROUP * DK, N_EMBD, N_HEADS * DK, 0.2f, seed + 1);
            beta.at[i] = public_weight(&b.w, 1, GROUP, N_EMBD, N_HEADS, 0.2f, seed + 2);
            a.at[i] = public_weight(&b.w, -1, 0, N_HEADS, 1, 0.3f, seed + 3);
            dt.at[i] = public_weight(&b.w, -1, 0, N_HEADS * DK, 1, 0.3f, seed + 4);
        }
        const tsr_kv_state_config states[] = {{v.at[0], DK}, {v.at[1], DK}, {v.at[0], DK}, {v.at[1], DK}};
        const tsr_kv_layer_config layer = {.states = states, .n_states = 4};
        tsr_kv_config config = tsr_kv_config_default();
        config.layers = &layer;
        config.n_layers = 1;
        config.n_ctx = 32;
        create_region(&b, &config);
        runner_ok(tsr_graph_create(b.w.rt, &b.graph), "graph");
        b.x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
        b.inputs = tsr_graph_kv_inputs(b.graph, b.kv, N_TOKENS);
        tsr_tensor *q = tsr_mul_mat(b.graph, wq, b.x);
        for (int i = 0; i < 3; i++) { /* both parts, then each */
            const tsr_weight_parts *all[] = {&v, &alpha, &beta, &a, &dt};
            tsr_weight_parts p[5];
            for (int k = 0; k < 5; k++)
                p[k] = i == 0 ? *all[k] : one(all[k]->at[i - 1]);
            const tsr_recurrence_operands o = {.q = q,
                                               .k = q,
                                               .v = tsr_mul_mat_parts(b.graph, &p[0], b.x),
                                               .alpha = tsr_mul_mat_parts(b.graph, &p[1], b.x),
                                               .beta = tsr_mul_mat_parts(b.graph, &p[2], b.x),
                                               .a = p[3],
                                               .dt_bias = p[4],
                                               .n_heads = N_HEADS,
                                               .n_key_heads = N_KEYS,
                                               .eps = eps};
            y[i] = tsr_graph_output(b.graph, tsr_recurrence(b.graph, b.inputs, 0, i == 0 ? 0 : i + 1, &o));
        }
        runner_ok(tsr_program_compile(b.graph, NULL, &b.program), "compile");
        for (int step = 0; step < 2; step++)
            run(&b, step, NULL, positions);
        float *both = public_read(y[0]);
        for (int i = 0; i < 2; i++) {
            float *part = public_read(y[1 + i]);
            for (int t = 0; t < N_TOKENS; t++)
                assert_memory_equal(&both[(2 * t + i) * N_V], &part[t * N_V], N_V * sizeof *part);
            free(part);
        }
        if (first)
            assert_memory_equal(both, first, tsr_tensor_bytes(y[0]));
        free(first);
        first = both;
        close_bench(&b);
    }
    free(first);
}

/* States are saved whole, and loaded under every other split. */
static void saved_states_go_on_under_any_split(void **state)
{
    (void)state;
    float *o[N_OUTPUTS], *first[N_OUTPUTS] = {NULL};
    int32_t positions[N_TOKENS];
    for (int s = 0; s < PUBLIC_SPLITS; s++) {
        bench b;
        open_bench(&b, public_splits[s]);
        build(&b);
        if (s == 0) {
            run(&b, 0, seqs[0], positions);
            run(&b, 1, seqs[1], positions);
            runner_ok(tsr_kv_save(b.kv, NULL, 0, 1, directory_file("states")), "save");
        } else {
            runner_ok(tsr_kv_load(b.kv, NULL, 0, 1, directory_file("states")), "load");
        }
        run(&b, 2, seqs[2], positions);
        read_outputs(&b, o);
        compare(&b, o, first);
        close_bench(&b);
    }
    free_all(first);
}

static void refused(bench *b, const tsr_tensor *result, const char *words)
{
    assert_null(result);
    public_says(words);
    close_bench(b);
    open_bench(b, public_splits[1]);
    b->outputs[V] = b->outputs[X_V];
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, public_splits[1]);
    b.outputs[V] = b.outputs[X_V];
    tsr_tensor **o = b.outputs;
    tsr_weight_parts none = {.n = 0};
#define CONV_OF(layer, state, x, w, bias) tsr_conv(b.graph, b.inputs, layer, state, x, w, bias, true)
    for (int i = 0; i < 7; i++) {
        const tsr_weight_parts conv = one(b.read[CONV]), two = {.at = {b.read[CONV], b.read[CONV]}, .n = 2};
        refused(&b,
                i == 0   ? CONV_OF(DELTA, 2, o[X_V], &conv, NULL)
                : i == 1 ? CONV_OF(N_LAYERS, 0, o[X_V], &conv, NULL)
                : i == 2 ? CONV_OF(DELTA, 0, o[Q], &two, NULL)
                : i == 3 ? CONV_OF(DELTA, 0, o[X_V], &none, NULL)
                : i == 4 ? CONV_OF(DELTA, 0, b.x, &conv, NULL)
                : i == 5 ? CONV_OF(DELTA, 0, o[X_V], &conv, b.read[A])
                         : tsr_conv(b.graph, NULL, DELTA, 0, o[X_V], &conv, NULL, true),
                i < 2    ? "states"
                : i == 2 ? "a row for each token and part"
                : i == 3 ? "0 parts"
                : i == 4 ? "per channel"
                : i == 5 ? "the bias must be"
                         : "must be a tsr_graph_kv_inputs()");
    }
    for (int i = 0; i < 6; i++) {
        tsr_recurrence_operands operands = delta_operands(&b);
        if (i == 0)
            operands.n_heads = 0;
        if (i == 1)
            operands.n_key_heads = 0;
        if (i == 2)
            operands.n_key_heads = 4;
        if (i == 3)
            operands.skip = b.read[SKIP];
        if (i == 4)
            operands.v = o[CC];
        if (i == 5)
            operands.a.n = 2;
        refused(&b, tsr_recurrence(b.graph, b.inputs, DELTA, i == 5 ? 0 : 1, &operands),
                i == 5 ? "an operand is NULL" : "the shapes of one recurrence");
    }
    for (int i = 0; i < 3; i++) {
        const tsr_compress_rule rule = {.ratio = i == 0 ? 1 : RATIO, .bias = b.read[i == 1 ? SKIP : BIAS]};
        refused(&b, tsr_compress(b.graph, b.inputs, COMPRESSED, i == 2 ? 5 : 0, o[VALUES], o[GATES], &rule),
                i == 2 ? "states" : "at least two positions");
    }
    refused(&b, tsr_attention(b.graph, b.inputs, ROWS, o[QUERIES], NULL), "pass it as more_layer");
    close_bench(&b);
}

/* A state of another size would be written beyond its end. */
static void states_of_other_sizes_are_refused(void **state)
{
    (void)state;
    tsr_program *program = NULL;
    bench b;
    for (int i = 0; i < 3; i++) {
        open_bench(&b, public_splits[1]);
        b.outputs[V] = b.outputs[X_V];
        const tsr_weight_parts conv = one(b.read[CONV]);
        const tsr_recurrence_operands delta = delta_operands(&b);
        const tsr_compress_rule rule = {.ratio = RATIO, .bias = b.read[BIAS]};
        tsr_graph_output(b.graph, i == 0
                                      ? tsr_conv(b.graph, b.inputs, DELTA, 1, b.outputs[X_V], &conv, NULL, 0)
                                  : i == 1 ? tsr_recurrence(b.graph, b.inputs, DELTA, 0, &delta)
                                           : tsr_compress(b.graph, b.inputs, COMPRESSED, 1, b.outputs[VALUES],
                                                          b.outputs[GATES], &rule));
        assert_int_equal(tsr_program_compile(b.graph, NULL, &program), TSR_ERR_INVALID);
        public_says("numbers are needed there");
        close_bench(&b);
    }
    open_bench(&b, public_splits[1]);
    tsr_kv *kv = NULL;
    for (int i = 0; i < 4; i++) {
        const tsr_kv_state_config states[] = {{i == 0   ? NULL
                                               : i == 1 ? b.outputs[X_V]
                                                        : b.read[CONV],
                                               i == 2 ? 0 : 1}};
        const tsr_kv_layer_config layer = {.states = states, .n_states = i == 3 ? TSR_KV_MAX_STATES + 1 : 1};
        tsr_kv_config config = tsr_kv_config_default();
        config.layers = &layer;
        config.n_layers = 1;
        config.n_ctx = 32;
        assert_int_equal(tsr_kv_create(b.w.rt, &config, &kv), TSR_ERR_INVALID);
        public_says(i == 0   ? "divided like (like)"
                    : i == 1 ? "a tensor of a graph"
                    : i == 2 ? "at least 1, of its state"
                             : "0 to 18 are possible");
    }
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_division_gives_the_same_bits),
        cmocka_unit_test(steps_are_undone_and_forked),
        cmocka_unit_test(parts_are_recurrences_of_their_own),
        cmocka_unit_test(saved_states_go_on_under_any_split),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(states_of_other_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
