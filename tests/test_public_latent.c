/* Latent attention, selected positions, norms of heads and the largest elements by the public headers alone:
 * against loops in double over what the graph itself gives, the same bits for every division over devices;
 * and what the calls refuse. */
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

enum {
    N_EMBD = 64,
    N_HEADS = 6,
    N_PLAIN = 24,
    N_ROT = 16,
    Q_DIM = N_PLAIN + N_ROT,
    RANK = 32,
    K_DIM = RANK + N_ROT, /* of a stored row */
    V_DIM = 8,
    N_INDEX = 3, /* heads of index queries */
    INDEX_DIM = 16,
    BLOCK = 2,
    N_BLOCKS = 2,
    N_TOKENS = 6,
    N_STEPS = 2,
    N_SEQ = 2,
    N_VOCAB = 90,
    K = 7
};
static const float eps = 1e-5f;

/* In which graph an output is wanted; what every graph has comes first. */
enum { Q, C, R, Y, INDEX_Q, INDEX_K, INDEX_WEIGHTS, SELECTED_Y, HEADS, CENTERED, X_OUT, LOGITS, N_OUTPUTS };

typedef struct bench {
    public_weights w;
    tsr_tensor *wq, *wc, *c_norm, *wr, *k_of_head, *v_of_head, *wo, *index_q, *index_k, *index_w, *heads,
        *out;
    tsr_kv *kv;
    tsr_graph *graph;
    tsr_tensor *x, *q_table, *r_table, *outputs[N_OUTPUTS], *top;
    tsr_kv_inputs *inputs;
    tsr_program *program;
} bench;

static const int32_t seqs[N_STEPS][N_TOKENS] = {{0, 1, 0, 0, 1, 0}, {1, 0, 0, 1, 0, 0}};

static void open_region(bench *b)
{
    const tsr_kv_layer_config layers[] = {
        {.wk = b->wq, .k_dim = K_DIM, .v_dim = RANK, .whole = true, .v_in_k = true},
        {.wk = b->wq, .k_dim = INDEX_DIM, .whole = true}};
    tsr_kv_config config = tsr_kv_config_default();
    config.layers = layers;
    config.n_layers = 2;
    config.type_k = config.type_v = TSR_TYPE_F32;
    config.n_ctx = 64;
    config.n_seq_max = N_SEQ;
    runner_ok(tsr_kv_create(b->w.rt, &config, &b->kv), "region");
}

/* `rows_axis`: where the weights of the stored rows are. */
static void open_bench(bench *b, const float *split, int rows_axis)
{
    *b = (bench){0};
    public_weights *w = &b->w;
    public_weights_open(w, split);
    b->wq = public_weight(w, 1, Q_DIM, N_EMBD, N_HEADS * Q_DIM, 0.2f, 1);
    b->wc = public_weight(w, rows_axis, 0, N_EMBD, RANK, 0.2f, 2);
    b->c_norm = public_weight(w, rows_axis, 0, RANK, 1, 1, 3);
    b->wr = public_weight(w, rows_axis, 0, N_EMBD, N_ROT, 0.2f, 4);
    b->k_of_head = public_weight(w, 1, RANK, N_PLAIN, RANK * N_HEADS, 0.2f, 5);
    b->v_of_head = public_weight(w, 1, V_DIM, RANK, V_DIM * N_HEADS, 0.2f, 6);
    b->wo = public_weight(w, 0, V_DIM, V_DIM * N_HEADS, N_EMBD, 0.2f, 7);
    b->index_q = public_weight(w, -1, 0, N_EMBD, N_INDEX * INDEX_DIM, 0.2f, 8);
    b->index_k = public_weight(w, rows_axis, 0, N_EMBD, INDEX_DIM, 0.2f, 9);
    b->index_w = public_weight(w, -1, 0, N_EMBD, N_INDEX, 0.2f, 10);
    b->heads = public_weight(w, 0, Q_DIM, N_HEADS * Q_DIM, 1, 1, 11);
    b->out = public_weight(w, 1, 1, N_EMBD, N_VOCAB, 0.2f, 12);
    open_region(b);
    runner_ok(tsr_graph_create(w->rt, &b->graph), "graph");
    b->x = tsr_graph_input(b->graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    b->q_table = tsr_graph_input(b->graph, TSR_TYPE_F32, Q_DIM, N_TOKENS, "table");
    b->r_table = tsr_graph_input(b->graph, TSR_TYPE_F32, N_ROT, N_TOKENS, "table");
    b->inputs = tsr_graph_kv_inputs(b->graph, b->kv, N_TOKENS);
}

static void close_bench(bench *b)
{
    tsr_program_destroy(b->program);
    tsr_graph_destroy(b->graph);
    tsr_kv_destroy(b->kv);
    public_weights_close(&b->w);
}

static tsr_tensor *latent(bench *b, tsr_tensor *q, tsr_tensor *selection)
{
    tsr_graph *g = b->graph;
    tsr_attention_config config = tsr_attention_config_default();
    config.scale = 0.2f;
    config.selection = selection;
    q = tsr_mul_heads(g, b->k_of_head, q, N_HEADS);
    return tsr_mul_heads(g, b->v_of_head, tsr_attention(g, b->inputs, 0, q, &config), N_HEADS);
}

static void build(bench *b)
{
    tsr_graph *g = b->graph;
    tsr_tensor **o = b->outputs;
    const tsr_select_rule rule = {.n_blocks = N_BLOCKS, .block = BLOCK, .n_local = 1};
    o[Q] = tsr_rope(g, tsr_mul_mat(g, b->wq, b->x), b->q_table, Q_DIM, true);
    o[C] = tsr_rms_norm(g, tsr_mul_mat(g, b->wc, b->x), b->c_norm, eps);
    o[R] = tsr_rope(g, tsr_mul_mat(g, b->wr, b->x), b->r_table, N_ROT, true);
    tsr_kv_store(g, b->inputs, 0, o[R], o[C]);
    o[Y] = latent(b, o[Q], NULL);
    o[INDEX_Q] = tsr_mul_mat(g, b->index_q, b->x);
    o[INDEX_K] = tsr_mul_mat(g, b->index_k, b->x);
    o[INDEX_WEIGHTS] = tsr_mul_mat(g, b->index_w, b->x);
    tsr_kv_store(g, b->inputs, 1, o[INDEX_K], o[INDEX_K]);
    o[SELECTED_Y] = latent(b, o[Q], tsr_select(g, b->inputs, 1, o[INDEX_Q], o[INDEX_WEIGHTS], &rule));
    o[HEADS] = tsr_heads_norm(g, o[Q], b->heads, Q_DIM, false, eps);
    o[CENTERED] = tsr_heads_norm(g, o[Q], b->heads, Q_DIM, true, eps);
    o[X_OUT] = tsr_add(g, tsr_mul_mat(g, b->wo, o[Y]), tsr_mul_mat(g, b->wo, o[SELECTED_Y]));
    o[LOGITS] = tsr_mul_mat(g, b->out, o[X_OUT]);
    b->top = tsr_top_k(g, o[LOGITS], K);
    for (int i = 0; i < N_OUTPUTS; i++)
        tsr_graph_output(g, o[i]);
    runner_ok(tsr_program_compile(g, NULL, &b->program), "compile");
}

/* The table of queries begins with pairs of angle 0. */
static void set_tables(bench *b, const int32_t *positions)
{
    float r[N_TOKENS][N_ROT], q[N_TOKENS][Q_DIM];
    tsr_rope_config rope = tsr_rope_config_default();
    rope.n_rot = N_ROT;
    runner_ok(tsr_rope_fill(&rope, positions, N_TOKENS, r[0]), "angles");
    for (int t = 0; t < N_TOKENS; t++)
        for (int i = 0; i < Q_DIM; i++)
            q[t][i] = i >= N_PLAIN ? r[t][i - N_PLAIN] : i % 2 == 0;
    runner_ok(tsr_tensor_set(b->r_table, r, 0, sizeof r), "table");
    runner_ok(tsr_tensor_set(b->q_table, q, 0, sizeof q), "table");
}

static void run(bench *b, int step, int32_t *positions)
{
    float x[N_TOKENS][N_EMBD];
    uint64_t seed = 100 + (uint64_t)step;
    for (int t = 0; t < N_TOKENS; t++)
        for (int i = 0; i < N_EMBD; i++)
            x[t][i] = random_normal(&seed);
    runner_ok(tsr_kv_inputs_append(b->inputs, seqs[step], positions), "append");
    runner_ok(tsr_tensor_set(b->x, x, 0, sizeof x), "x");
    set_tables(b, positions);
    runner_ok(tsr_program_run(b->program), "run");
}

/* -- the reference -- */

enum { MAX_LENGTH = N_STEPS * N_TOKENS };
typedef struct history {
    double rows[N_SEQ][MAX_LENGTH][K_DIM], index[N_SEQ][MAX_LENGTH][INDEX_DIM];
    float *k_of_head, *v_of_head, *heads;
} history;

/* Whether a token at `position` sees each position: those of its blocks with the largest scores. */
static void reference_selection(const history *h, int seq, int position, const float *q, const float *weights,
                                bool *seen)
{
    double scores[MAX_LENGTH];
    const int n = position / BLOCK + 1;
    memset(seen, 0, MAX_LENGTH * sizeof *seen);
    for (int b = 0; b < n; b++)
        scores[b] = b == n - 1 ? INFINITY : -INFINITY;
    for (int p = 0; p < (n - 1) * BLOCK; p++) {
        double score = 0;
        for (int head = 0; head < N_INDEX; head++) {
            double dot = 0;
            for (int i = 0; i < INDEX_DIM; i++)
                dot += (double)q[head * INDEX_DIM + i] * h->index[seq][p][i];
            score += (double)weights[head] * fmax(dot, 0);
        }
        scores[p / BLOCK] = fmax(scores[p / BLOCK], score);
    }
    for (int b = 0; b < n; b++) {
        int before = 0;
        for (int c = 0; c < n; c++)
            before += scores[c] > scores[b] || (scores[c] >= scores[b] && c < b);
        for (int p = b * BLOCK; p <= position && p < (b + 1) * BLOCK; p++)
            seen[p] = before < N_BLOCKS;
    }
}

static void reference_head(const history *h, int seq, int position, const float *q, int head,
                           const bool *seen, const float *y)
{
    double key[K_DIM], sum = 0, c[RANK] = {0};
    for (int i = 0; i < RANK; i++) {
        key[i] = 0;
        for (int k = 0; k < N_PLAIN; k++)
            key[i] += (double)h->k_of_head[(head * RANK + i) * N_PLAIN + k] * (double)q[k];
    }
    for (int i = 0; i < N_ROT; i++)
        key[RANK + i] = (double)q[N_PLAIN + i];
    for (int p = 0; p <= position; p++) {
        double dot = 0;
        for (int i = 0; i < K_DIM; i++)
            dot += key[i] * h->rows[seq][p][i];
        const double weight = seen[p] ? exp(0.2 * dot) : 0;
        sum += weight;
        for (int i = 0; i < RANK; i++)
            c[i] += weight * h->rows[seq][p][i];
    }
    for (int v = 0; v < V_DIM; v++) {
        double value = 0;
        for (int i = 0; i < RANK; i++)
            value += (double)h->v_of_head[(head * V_DIM + v) * RANK + i] * c[i] / sum;
        public_near("an attention", y[v], value);
    }
}

static void check_norm(const float *x, const float *weight, bool center, const float *y)
{
    double mean = 0, squares = 0;
    for (int i = 0; i < Q_DIM && center; i++)
        mean += (double)x[i] / Q_DIM;
    for (int i = 0; i < Q_DIM; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean) / Q_DIM;
    for (int i = 0; i < Q_DIM; i++)
        public_near("a norm", y[i], ((double)x[i] - mean) / sqrt(squares + (double)eps) * (double)weight[i]);
}

static void check_top(const float *logits, const tsr_candidate *top)
{
    for (int i = 0; i < K; i++) {
        int before = 0;
        assert_true(top[i].id >= 0 && top[i].id < N_VOCAB && top[i].logit == logits[top[i].id]);
        for (int c = 0; c < N_VOCAB; c++)
            before += logits[c] > top[i].logit || (logits[c] == top[i].logit && c < top[i].id);
        assert_int_equal(before, i);
    }
}

static void check_token(history *h, const float *const *o, int t, int seq, int position)
{
    bool all[MAX_LENGTH], selected[MAX_LENGTH];
    for (int i = 0; i < RANK; i++)
        h->rows[seq][position][i] = (double)o[C][t * RANK + i];
    for (int i = 0; i < N_ROT; i++)
        h->rows[seq][position][RANK + i] = (double)o[R][t * N_ROT + i];
    for (int i = 0; i < INDEX_DIM; i++)
        h->index[seq][position][i] = (double)o[INDEX_K][t * INDEX_DIM + i];
    memset(all, true, sizeof all);
    reference_selection(h, seq, position, &o[INDEX_Q][t * N_INDEX * INDEX_DIM],
                        &o[INDEX_WEIGHTS][t * N_INDEX], selected);
    for (int head = 0; head < N_HEADS; head++) {
        const int64_t at = t * N_HEADS + head;
        const float *q = &o[Q][at * Q_DIM];
        reference_head(h, seq, position, q, head, all, &o[Y][at * V_DIM]);
        reference_head(h, seq, position, q, head, selected, &o[SELECTED_Y][at * V_DIM]);
        check_norm(q, &h->heads[head * Q_DIM], false, &o[HEADS][at * Q_DIM]);
        check_norm(q, &h->heads[head * Q_DIM], true, &o[CENTERED][at * Q_DIM]);
    }
}

/* -- tests -- */

static void every_division_gives_the_same_bits(void **state)
{
    (void)state;
    static float *first[N_STEPS][N_OUTPUTS];
    static tsr_candidate tops[N_STEPS][N_TOKENS][K];
    for (int s = 0; s < PUBLIC_SPLITS + 1; s++) { /* the last time, one device has the weights of the rows */
        static history h;
        bench b;
        open_bench(&b, public_splits[s % PUBLIC_SPLITS], s < PUBLIC_SPLITS ? -1 : -2);
        build(&b);
        h.k_of_head = public_read(b.k_of_head);
        h.v_of_head = public_read(b.v_of_head);
        h.heads = public_read(b.heads);
        for (int step = 0; step < N_STEPS; step++) {
            int32_t positions[N_TOKENS];
            tsr_candidate top[N_TOKENS][K];
            float *o[N_OUTPUTS];
            run(&b, step, positions);
            runner_ok(tsr_top_k_get(b.top, top[0]), "top");
            for (int i = 0; i < N_OUTPUTS; i++)
                o[i] = public_read(b.outputs[i]);
            for (int t = 0; t < N_TOKENS && s == 0; t++) {
                check_token(&h, (const float *const *)o, t, seqs[step][t], positions[t]);
                check_top(&o[LOGITS][t * N_VOCAB], top[t]);
            }
            for (int i = 0; i < N_OUTPUTS; i++) {
                if (s == 0)
                    first[step][i] = o[i];
                else
                    assert_memory_equal(o[i], first[step][i], tsr_tensor_bytes(b.outputs[i]));
                if (s > 0)
                    free(o[i]);
            }
            if (s == 0)
                memcpy(tops[step], top, sizeof top);
            assert_memory_equal(top, tops[step], sizeof top);
        }
        free(h.k_of_head);
        free(h.v_of_head);
        free(h.heads);
        close_bench(&b);
    }
    for (int i = 0; i < N_STEPS * N_OUTPUTS; i++)
        free(first[i / N_OUTPUTS][i % N_OUTPUTS]);
}

/* Rows are kept once on a device with heads: the sizes do not depend on the number of heads. */
static void devices_without_heads_keep_no_rows(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, public_splits[3], -1);
    assert_int_equal(tsr_kv_reserved_bytes(b.kv, 0), 0);
    assert_true(tsr_kv_reserved_bytes(b.kv, 1) > 0);
    assert_int_equal(tsr_kv_reserved_bytes(b.kv, 1), tsr_kv_reserved_bytes(b.kv, 2));
    close_bench(&b);
}

static void refused(bench *b, const tsr_tensor *result, const char *words)
{
    assert_null(result);
    public_says(words);
    close_bench(b);
    open_bench(b, public_splits[1], -1);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, public_splits[1], -1);
#define HEADS_OF(b) tsr_mul_mat((b).graph, (b).wq, (b).x)
    const tsr_select_rule rule = {.n_blocks = 2, .block = 2};
    tsr_attention_config config = tsr_attention_config_default();
    refused(&b, tsr_mul_heads(b.graph, b.k_of_head, HEADS_OF(b), 5), "the heads must divide");
    refused(&b, tsr_mul_heads(b.graph, b.k_of_head, b.wq, N_HEADS), "a computed F32");
    refused(&b, tsr_heads_norm(b.graph, HEADS_OF(b), b.heads, 7, false, eps), "head_dim must divide");
    refused(&b, tsr_top_k(b.graph, b.x, N_EMBD + 1), "TSR_MAX_CANDIDATES");
    refused(&b, tsr_top_k(b.graph, b.wq, 1), "must be F32");
    refused(&b, tsr_attention(b.graph, b.inputs, 1, tsr_mul_mat(b.graph, b.index_k, b.x), NULL), "keys only");
    refused(&b, tsr_select(b.graph, b.inputs, 0, HEADS_OF(b), NULL, &rule), "keys only");
    refused(&b, tsr_select(b.graph, b.inputs, 1, b.x, NULL, &(tsr_select_rule){1, 0, 0}), "1 to TSR_MAX");
    refused(&b, tsr_kv_store(b.graph, b.inputs, 1, HEADS_OF(b), HEADS_OF(b)), "k_dim and");
    for (int i = 0; i < 3; i++) { /* four lists for one KV head; no selection; a layer of other sizes */
        tsr_tensor *q = tsr_mul_heads(b.graph, b.k_of_head, HEADS_OF(b), N_HEADS);
        config.selection = i == 0 ? tsr_select(b.graph, b.inputs, 1, b.x, NULL, &rule) : i == 1 ? b.x : NULL;
        config.sees_more = i == 2;
        config.more_layer = 1;
        refused(&b, tsr_attention(b.graph, b.inputs, 0, q, &config),
                i == 0   ? "one for each KV head"
                : i == 1 ? "must be a tsr_select()"
                         : "of the sizes of");
    }
    tsr_candidate top[K];
    assert_int_equal(tsr_top_k_get(b.x, top), TSR_ERR_INVALID);
    assert_int_equal(tsr_top_k_get(tsr_top_k(b.graph, b.x, 1), top), TSR_ERR_INVALID);
    public_says("a graph that is compiled");
    close_bench(&b);
}

static void regions_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    bench b;
    tsr_kv *kv = NULL;
    open_bench(&b, public_splits[1], -1);
    const struct {
        tsr_kv_layer_config layer;
        tsr_status status;
        const char *words;
    } cases[] = {
        {{.wk = b.wq, .k_dim = 8, .v_dim = 0}, TSR_ERR_INVALID, "v_dim of at least 1"},
        {{.wk = b.wq, .k_dim = 8, .v_in_k = true, .whole = true}, TSR_ERR_INVALID, "v_dim of at least 1"},
        {{.wk = b.wq, .k_dim = 8, .v_dim = 9, .v_in_k = true, .whole = true}, TSR_ERR_INVALID, "inside keys"},
        {{.wk = b.wq, .k_dim = 8, .v_dim = 8, .v_in_k = true, .whole = true},
         TSR_ERR_UNSUPPORTED,
         "same type"},
        {{.wk = b.wq, .k_dim = 8, .v_dim = 8, .whole = true, .ratio = 2, .window = 3},
         TSR_ERR_INVALID,
         "1 with a window"},
        {{.wk = b.wq, .k_dim = 8, .v_dim = 8, .whole = true, .ratio = -1}, TSR_ERR_INVALID, "1 to 65536"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_kv_config config = tsr_kv_config_default();
        config.layers = &cases[i].layer;
        config.n_layers = 1;
        config.type_v = i == 3 ? TSR_TYPE_F32 : config.type_v;
        config.n_ctx = 32;
        assert_int_equal(tsr_kv_create(b.w.rt, &config, &kv), cases[i].status);
        public_says(cases[i].words);
    }
    close_bench(&b);
}

/* Weights whose rows may be cut anywhere, and are cut between heads, with results of another length. */
static void heads_of_single_rows_have_the_same_bits(void **state)
{
    (void)state;
    enum { HEADS_N = 4, X_DIM = 10, K_ROWS = 7, ROWS = 3, Y_DIM = ROWS + X_DIM - K_ROWS };
    static const float split_of[][PUBLIC_DEVICES] = {{1, 0, 0}, {1, 0, 1}, {2, 1, 1}};
    float first[N_TOKENS * HEADS_N * Y_DIM], y[N_TOKENS * HEADS_N * Y_DIM], x[N_TOKENS * N_EMBD];
    uint64_t seed = 4;
    for (int i = 0; i < N_TOKENS * N_EMBD; i++)
        x[i] = random_normal(&seed);
    for (int s = 0; s < 3; s++) {
        public_weights w;
        tsr_graph *g;
        tsr_program *program;
        public_weights_open(&w, split_of[s]);
        tsr_tensor *rows = public_weight(&w, 1, 1, N_EMBD, HEADS_N * X_DIM, 0.2f, 1);
        tsr_tensor *of_head = public_weight(&w, 1, 1, K_ROWS, HEADS_N * ROWS, 0.2f, 2);
        runner_ok(tsr_graph_create(w.rt, &g), "graph");
        tsr_tensor *in = tsr_graph_input(g, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
        tsr_tensor *out = tsr_mul_heads(g, of_head, tsr_mul_mat(g, rows, in), HEADS_N);
        tsr_graph_output(g, out);
        runner_ok(tsr_program_compile(g, NULL, &program), "compile");
        runner_ok(tsr_tensor_set(in, x, 0, sizeof x), "x");
        runner_ok(tsr_program_run(program), "run");
        assert_int_equal(tsr_tensor_bytes(out), sizeof y);
        runner_ok(tsr_tensor_get(out, y, 0, sizeof y), "y");
        if (s == 0)
            memcpy(first, y, sizeof y);
        assert_memory_equal(y, first, sizeof y);
        tsr_program_destroy(program);
        tsr_graph_destroy(g);
        public_weights_close(&w);
    }
}

/* Every device with a part of the queries has the rows, but not the same number of elements of each head. */
static void queries_that_are_cut_inside_heads_are_refused(void **state)
{
    (void)state;
    tsr_program *program = NULL;
    bench b;
    open_bench(&b, (const float[PUBLIC_DEVICES]){7, 0, 4}, -1);
    tsr_tensor *wq = public_weight(&b.w, 1, 1, N_EMBD, N_HEADS * K_DIM, 0.2f, 1);
    tsr_tensor *q = tsr_mul_mat(b.graph, wq, b.x);
    tsr_graph_output(b.graph, tsr_attention(b.graph, b.inputs, 0, q, NULL));
    assert_int_equal(tsr_program_compile(b.graph, NULL, &program), TSR_ERR_INVALID);
    public_says("divided inside heads; its weight needs granules of whole heads, 48 rows each");
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_that_are_cut_inside_heads_are_refused),
        cmocka_unit_test(heads_of_single_rows_have_the_same_bits),
        cmocka_unit_test(every_division_gives_the_same_bits),
        cmocka_unit_test(devices_without_heads_keep_no_rows),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(regions_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
