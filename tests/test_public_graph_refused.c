/* What the public calls of KV regions, their inputs and attention refuse: each with a sentence, none with a
 * crash, and with nothing changed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "support/runner.h"

enum { N_EMBD = 64, N_KV = 2, GROUP = 2, DIM = 32, N_TOKENS = 4, N_CTX = 64 };

/* Weights that are divided in several ways; one context each. */
enum { Q_ROWS, KV_ROWS, ONE_DEVICE, EVERYWHERE, CUT_HEADS, COLUMNS, UNPLACED, N_WAYS };

typedef struct fixture {
    tsr_runtime *rt, *other;
    tsr_context *contexts[N_WAYS];
    tsr_buffer *buffers[N_WAYS];
    tsr_tensor *w[N_WAYS]; /* of N_KV heads; Q_ROWS: of N_KV * GROUP */
    tsr_tensor *sinks, *few_sinks, *factor, *ids;
    tsr_kv *kv;
    tsr_graph *graph;
    tsr_kv_inputs *inputs;
    tsr_tensor *x, *k, *q;
} fixture;

static const tsr_buffer_type *buffer_type(tsr_runtime *rt, int way)
{
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    config.axis = way == COLUMNS ? 0 : 1;
    config.granule = way == Q_ROWS ? GROUP * DIM : way == KV_ROWS ? DIM : DIM / 2;
    return way == ONE_DEVICE   ? tsr_device_buffer_type(rt, 1)
           : way == EVERYWHERE ? tsr_replicated_buffer_type(rt)
                               : tsr_split_buffer_type_ex(rt, &config);
}

static tsr_kv_config kv_config(tsr_kv_layer_config *layer, tsr_tensor *wk)
{
    tsr_kv_config config = tsr_kv_config_default();
    *layer = (tsr_kv_layer_config){.wk = wk, .k_dim = DIM, .v_dim = DIM, .window = 8};
    config.layers = layer;
    config.n_layers = 1;
    config.n_ctx = N_CTX;
    config.n_seq_max = 2;
    config.n_batch = 8;
    return config;
}

/* A new graph in place of one that has failed. */
static void new_graph(fixture *f)
{
    tsr_graph_destroy(f->graph);
    runner_ok(tsr_graph_create(f->rt, &f->graph), "graph");
    f->inputs = tsr_graph_kv_inputs(f->graph, f->kv, N_TOKENS);
    f->x = tsr_graph_input(f->graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    f->k = tsr_mul_mat(f->graph, f->w[KV_ROWS], f->x);
    f->q = tsr_mul_mat(f->graph, f->w[Q_ROWS], f->x);
    assert_non_null(f->q);
}

static int set_up(void **state)
{
    static fixture f;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_kv_layer_config layer;
    f = (fixture){0};
    config.devices = "host:2,threads=1";
    runner_ok(tsr_runtime_open(&config, &f.rt), "runtime");
    runner_ok(tsr_runtime_open(&config, &f.other), "another runtime");
    for (int way = 0; way < N_WAYS; way++) {
        runner_ok(tsr_context_create(f.rt, &f.contexts[way]), "context");
        f.w[way] = tsr_tensor_2d(f.contexts[way], TSR_TYPE_F32, N_EMBD,
                                 (way == Q_ROWS ? GROUP : 1) * N_KV * DIM, "w");
        if (way == Q_ROWS) {
            f.sinks = tsr_tensor_1d(f.contexts[way], TSR_TYPE_F32, GROUP * N_KV, "sinks");
            f.factor = tsr_tensor_1d(f.contexts[way], TSR_TYPE_F32, 1, "factor");
            f.ids = tsr_tensor_1d(f.contexts[way], TSR_TYPE_I32, 4, "ids");
            f.few_sinks = tsr_tensor_1d(f.contexts[way], TSR_TYPE_F32, GROUP, "few sinks");
        }
        if (way != UNPLACED)
            runner_ok(tsr_tensors_alloc(f.contexts[way], buffer_type(f.rt, way), &f.buffers[way]), "alloc");
    }
    const tsr_kv_config kv = kv_config(&layer, f.w[KV_ROWS]);
    runner_ok(tsr_kv_create(f.rt, &kv, &f.kv), "KV region");
    new_graph(&f);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tsr_graph_destroy(f->graph);
    tsr_kv_destroy(f->kv);
    for (int way = 0; way < N_WAYS; way++) {
        tsr_buffer_destroy(f->buffers[way]);
        tsr_context_destroy(f->contexts[way]);
    }
    tsr_runtime_close(f->other);
    tsr_runtime_close(f->rt);
    return 0;
}

static void assert_says(const char *words)
{
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}

/* -- regions -- */

static void refuse_region(fixture *f, const tsr_kv_config *config, tsr_status status, const char *words)
{
    tsr_kv *kv = NULL;
    assert_int_equal(tsr_kv_create(f->rt, config, &kv), status);
    assert_says(words);
    assert_null(kv);
}

static void regions_of_impossible_places(void **state)
{
    fixture *f = *state;
    static const struct {
        int way;
        const char *words;
    } cases[] = {{EVERYWHERE, "neither divided by rows nor on one device"},
                 {CUT_HEADS, "divided inside heads"},
                 {COLUMNS, "neither divided by rows"},
                 {UNPLACED, "is not allocated"}};
    tsr_kv_layer_config layer;
    tsr_kv *kv = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tsr_kv_config config = kv_config(&layer, f->w[cases[i].way]);
        refuse_region(f, &config, TSR_ERR_INVALID, cases[i].words);
    }
    tsr_kv_config config = kv_config(&layer, NULL);
    refuse_region(f, &config, TSR_ERR_INVALID, "wk) is NULL");
    config = kv_config(&layer, f->x);
    refuse_region(f, &config, TSR_ERR_INVALID, "a tensor of a graph");
    config = kv_config(&layer, f->w[KV_ROWS]);
    assert_int_equal(tsr_kv_create(f->other, &config, &kv), TSR_ERR_INVALID);
    assert_says("of another runtime");
    assert_int_equal(tsr_kv_create(NULL, &config, &kv), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_create(f->rt, &config, NULL), TSR_ERR_INVALID);
    assert_says("must not be NULL");
}

static void regions_of_impossible_sizes(void **state)
{
    fixture *f = *state;
    tsr_kv_layer_config layer;
    const tsr_kv_config good = kv_config(&layer, f->w[KV_ROWS]);
    const tsr_kv_layer_config good_layer = layer;
    tsr_kv_config config = good;
#define REFUSE(field, value, status, words)       \
    do {                                          \
        config.field = value;                     \
        refuse_region(f, &config, status, words); \
        config = good;                            \
    } while (0)
#define REFUSE_LAYER(field, value, status, words) \
    do {                                          \
        layer.field = value;                      \
        refuse_region(f, &config, status, words); \
        layer = good_layer;                       \
    } while (0)
    REFUSE(size, 3, TSR_ERR_INVALID, "tsr_kv_config");
    REFUSE(layers, NULL, TSR_ERR_INVALID, "at least one is needed");
    REFUSE(n_layers, 0, TSR_ERR_INVALID, "at least one is needed");
    REFUSE(n_ctx, 0, TSR_ERR_INVALID, "n_ctx 0");
    REFUSE(n_seq_max, 0, TSR_ERR_INVALID, "0 sequences");
    REFUSE(n_batch, 0, TSR_ERR_INVALID, "n_batch 0");
    REFUSE(type_k, TSR_TYPE_Q4_K, TSR_ERR_UNSUPPORTED, "type_k");
    REFUSE_LAYER(k_dim, 0, TSR_ERR_INVALID, "at least 1");
    REFUSE_LAYER(v_dim, 0, TSR_ERR_INVALID, "at least 1");
    REFUSE_LAYER(k_dim, DIM - 1, TSR_ERR_INVALID, "no whole number of heads");
    REFUSE_LAYER(window, -1, TSR_ERR_INVALID, "a window of -1");
    refuse_region(f, NULL, TSR_ERR_INVALID, "at least one is needed");
}

/* A weight that one device has whole gives that device all heads. */
static void heads_on_one_device(void **state)
{
    fixture *f = *state;
    tsr_kv_layer_config layer;
    tsr_kv *kv;
    tsr_program *program;
    const tsr_kv_config config = kv_config(&layer, f->w[ONE_DEVICE]);
    runner_ok(tsr_kv_create(f->rt, &config, &kv), "region");
    assert_int_equal(tsr_kv_reserved_bytes(kv, 0), 0);
    assert_true(tsr_kv_reserved_bytes(kv, 1) > 0);
    tsr_kv_inputs *inputs = tsr_graph_kv_inputs(f->graph, kv, N_TOKENS);
    tsr_tensor *k = tsr_mul_mat(f->graph, f->w[ONE_DEVICE], f->x);
    tsr_kv_store(f->graph, inputs, 0, k, k);
    tsr_graph_output(f->graph, tsr_attention(f->graph, inputs, 0, k, NULL));
    runner_ok(tsr_program_compile(f->graph, NULL, &program), "compile");
    runner_ok(tsr_kv_inputs_append(inputs, NULL, NULL), "append");
    runner_ok(tsr_program_run(program), "run");
    tsr_program_destroy(program);
    tsr_kv_destroy(kv);
}

static void sequences_that_do_not_exist(void **state)
{
    fixture *f = *state;
    for (int seq = -1; seq <= 2; seq += 3) {
        assert_int_equal(tsr_kv_trim(f->kv, seq, 0), TSR_ERR_INVALID);
        assert_says("does not exist");
        assert_int_equal(tsr_kv_remove(f->kv, seq), TSR_ERR_INVALID);
        assert_int_equal(tsr_kv_fork(f->kv, seq, 0), TSR_ERR_INVALID);
        assert_int_equal(tsr_kv_fork(f->kv, 0, seq), TSR_ERR_INVALID);
        assert_int_equal(tsr_kv_length(f->kv, seq), 0);
        assert_int_equal(tsr_kv_min_length(f->kv, seq), 0);
    }
    assert_int_equal(tsr_kv_trim(f->kv, 0, 1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_trim(NULL, 0, 0), TSR_ERR_INVALID);
    assert_says("KV region is NULL");
    assert_int_equal(tsr_kv_remove(NULL, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_fork(NULL, 0, 1), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_compact(NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_length(NULL, 0), 0);
    assert_int_equal(tsr_kv_min_length(NULL, 0), 0);
    tsr_kv_destroy(NULL);
}

/* -- inputs -- */

static void inputs_of_impossible_steps(void **state)
{
    fixture *f = *state;
    tsr_graph *graph;
    assert_null(tsr_graph_kv_inputs(f->graph, f->kv, 0));
    assert_says("a step of 0 tokens");
    assert_null(tsr_graph_kv_inputs(f->graph, f->kv, N_TOKENS)); /* the graph has failed */
    new_graph(f);
    assert_null(tsr_graph_kv_inputs(f->graph, f->kv, 9)); /* more than n_batch, with a window */
    assert_says("1 to 8 are possible");
    new_graph(f);
    assert_null(tsr_graph_kv_inputs(f->graph, NULL, 1));
    assert_says("KV region is NULL");
    runner_ok(tsr_graph_create(f->other, &graph), "graph");
    assert_null(tsr_graph_kv_inputs(graph, f->kv, 1));
    assert_says("of another runtime");
    tsr_graph_destroy(graph);
}

static void appends_that_fail_change_nothing(void **state)
{
    fixture *f = *state;
    const int32_t unknown[N_TOKENS] = {0, 0, 1, 2}, both[N_TOKENS] = {0, 1, 0, 1};
    int32_t positions[N_TOKENS];
    tsr_program *program;
    assert_int_equal(tsr_kv_inputs_append(NULL, NULL, NULL), TSR_ERR_INVALID);
    assert_says("the inputs are NULL");
    assert_int_equal(tsr_kv_inputs_append(f->inputs, NULL, NULL), TSR_ERR_INVALID);
    assert_says("has no program");
    tsr_kv_store(f->graph, f->inputs, 0, f->k, f->k);
    tsr_graph_output(f->graph, tsr_attention(f->graph, f->inputs, 0, f->q, NULL));
    runner_ok(tsr_program_compile(f->graph, NULL, &program), "compile");
    assert_int_equal(tsr_kv_inputs_append(f->inputs, unknown, positions), TSR_ERR_INVALID);
    assert_says("token 3 is for sequence 2");
    assert_int_equal(tsr_kv_length(f->kv, 0) + tsr_kv_length(f->kv, 1), 0);
    runner_ok(tsr_kv_inputs_append(f->inputs, both, positions), "append");
    assert_memory_equal(positions, ((int32_t[]){0, 0, 1, 1}), sizeof positions);
    for (int i = 2; i + N_TOKENS <= N_CTX; i += N_TOKENS) /* sequence 1 grows until there is no room */
        runner_ok(tsr_kv_inputs_append(f->inputs, (int32_t[]){1, 1, 1, 1}, positions), "append");
    const int64_t length = tsr_kv_length(f->kv, 1);
    assert_int_equal(tsr_kv_inputs_append(f->inputs, (int32_t[]){0, 1, 1, 1}, positions), TSR_ERR_FULL);
    assert_int_equal(tsr_kv_length(f->kv, 0), 2); /* the token that had room is cut off again */
    assert_int_equal(tsr_kv_length(f->kv, 1), length);
    tsr_program_destroy(program);
}

/* -- ops -- */

static void stores_that_do_not_fit(void **state)
{
    fixture *f = *state;
    tsr_graph *first = f->graph;
    tsr_kv_inputs *of_first = f->inputs;
    f->graph = NULL;
#define NO_STORE(graph_inputs, layer, k, v, words)                      \
    do {                                                                \
        new_graph(f);                                                   \
        assert_null(tsr_kv_store(f->graph, graph_inputs, layer, k, v)); \
        assert_says(words);                                             \
    } while (0)
    NO_STORE(NULL, 0, f->k, f->k, "of the same graph");
    NO_STORE(of_first, 0, f->k, f->k, "of the same graph");
    NO_STORE(f->inputs, -1, f->k, f->k, "no such KV layer");
    NO_STORE(f->inputs, 1, f->k, f->k, "no such KV layer");
    NO_STORE(f->inputs, 0, NULL, f->k, "an operand is NULL");
    NO_STORE(f->inputs, 0, f->k, NULL, "an operand is NULL");
    NO_STORE(f->inputs, 0, f->q, f->k, "all heads of the KV layer");
    NO_STORE(f->inputs, 0, f->k, f->q, "all heads of the KV layer");
    tsr_tensor *one = NULL;
    new_graph(f);
    one = tsr_graph_input(f->graph, TSR_TYPE_F32, N_KV * DIM, 1, "one token");
    assert_null(tsr_kv_store(f->graph, f->inputs, 0, one, one));
    assert_says("a row for each token");
    tsr_graph_destroy(first);
}

static void attentions_that_do_not_fit(void **state)
{
    fixture *f = *state;
    tsr_attention_config config;
#define NO_ATTENTION(graph_inputs, layer, q, field, value, words)              \
    do {                                                                       \
        new_graph(f);                                                          \
        config = tsr_attention_config_default();                               \
        config.field = value;                                                  \
        assert_null(tsr_attention(f->graph, graph_inputs, layer, q, &config)); \
        assert_says(words);                                                    \
    } while (0)
    NO_ATTENTION(NULL, 0, f->q, scale, 1, "of the same graph");
    NO_ATTENTION(f->inputs, 7, f->q, scale, 1, "no such KV layer");
    NO_ATTENTION(f->inputs, 0, NULL, scale, 1, "an operand is NULL");
    NO_ATTENTION(f->inputs, 0, f->q, scale, NAN, "the scale must be finite");
    NO_ATTENTION(f->inputs, 0, f->q, softcap, -1, "the cap");
    NO_ATTENTION(f->inputs, 0, f->q, sinks, f->few_sinks, "an element per head");
    NO_ATTENTION(f->inputs, 0, f->q, sinks, f->x, "an element per head");
    NO_ATTENTION(f->inputs, 0, f->q, size, 1, "tsr_attention_config");
    new_graph(f);
    tsr_tensor *odd = tsr_graph_input(f->graph, TSR_TYPE_F32, 3 * DIM, N_TOKENS, "three heads");
    assert_null(tsr_attention(f->graph, f->inputs, 0, odd, NULL));
    assert_says("as many heads for each KV head");
}

static void parts_that_do_not_fit(void **state)
{
    fixture *f = *state;
#define NO_PART(call, words) \
    do {                     \
        new_graph(f);        \
        assert_null(call);   \
        assert_says(words);  \
    } while (0)
    NO_PART(tsr_glu(f->graph, (tsr_glu_kind)9, 1, f->q, f->q), "must be a tsr_glu_kind");
    NO_PART(tsr_glu(f->graph, TSR_GLU_CAPPED, 0, f->q, f->q), "its limit more than 0");
    NO_PART(tsr_glu(f->graph, TSR_GLU_PLAIN, 0, f->q, f->k), "of one shape");
    NO_PART(tsr_glu(f->graph, TSR_GLU_PLAIN, 0, NULL, f->k), "an operand is NULL");
    NO_PART(tsr_gate(f->graph, f->k, f->q), "divide that of the first");
    NO_PART(tsr_gate(f->graph, f->k, NULL), "an operand is NULL");
    NO_PART(tsr_gate(f->graph, f->k, tsr_graph_input(f->graph, TSR_TYPE_F32, 0, N_TOKENS, "none")),
            "divide that of the first");
    NO_PART(tsr_rms_norm_plain(f->graph, f->k, 0, 1), "the length must divide");
    NO_PART(tsr_rms_norm_plain(f->graph, f->k, 7, 1), "the length must divide");
    NO_PART(tsr_scale_by(f->graph, f->k, f->sinks), "of one element");
    NO_PART(tsr_take_columns(f->graph, f->k, (tsr_columns){0, 0, 1}), "multiple of the period");
    NO_PART(tsr_take_columns(f->graph, f->k, (tsr_columns){DIM, DIM, 1}), "multiple of the period");
    NO_PART(tsr_take_columns(f->graph, f->k, (tsr_columns){DIM, 1, INT64_MAX}), "multiple of the period");
    NO_PART(tsr_take_columns(f->graph, f->k, (tsr_columns){7, 0, 1}), "multiple of the period");
#define JOIN(n, n_heads, ...) tsr_concat(f->graph, (tsr_tensor *[]){__VA_ARGS__}, n, n_heads)
    NO_PART(JOIN(1, 1, f->q), "1 operands of 1 heads; 2 to 8");
    NO_PART(JOIN(9, 1, f->q), "9 operands of 1 heads");
    NO_PART(JOIN(2, 0, f->q, f->k), "2 operands of 0 heads");
    NO_PART(tsr_concat(f->graph, NULL, 2, 1), "0 operands of 1 heads");
    NO_PART(JOIN(2, 1, f->q, NULL), "an operand is NULL");
    NO_PART(JOIN(2, 3, f->q, f->k), "the heads divide ne[0] of each");
    NO_PART(JOIN(2, 1, f->q, f->w[KV_ROWS]), "inputs or computed");
    NO_PART(JOIN(2, 1, f->q, tsr_graph_input(f->graph, TSR_TYPE_F32, DIM, 1, "one token")), "for each token");
    NO_PART(JOIN(2, 1, f->q, tsr_graph_input(f->graph, TSR_TYPE_I32, DIM, N_TOKENS, "ids")), "must be F32");
    NO_PART(JOIN(2, 1, f->q, tsr_graph_input(f->graph, TSR_TYPE_F32, 0, N_TOKENS, "none")), "ne[0] of each");
}

/* A weight has no row for each token, and no place in the order of ops. */
static void weights_in_place_of_activations(void **state)
{
    fixture *f = *state;
    tsr_tensor *w = f->w[EVERYWHERE], *v = f->factor;
    const tsr_columns one = {1, 0, 1};
    const tsr_mix_rule mix = {.n_in = 1, .n_out = 1};
    NO_PART(tsr_mul_mat(f->graph, w, w), "the second operand must be F32 of at most two dimensions, and an");
    NO_PART(tsr_mul_heads(f->graph, w, w, 1), "a weight and a computed F32");
    NO_PART(tsr_rms_norm(f->graph, v, v, 1), "an input or computed");
    NO_PART(tsr_rms_norm_plain(f->graph, w, 1, 1), "an input or computed");
    NO_PART(tsr_rope(f->graph, w, f->k, DIM, true), "F32 input");
    NO_PART(tsr_glu(f->graph, TSR_GLU_SILU, 0, w, w), "both must be F32");
    NO_PART(tsr_gelu(f->graph, w), "both must be F32");
    NO_PART(tsr_gate(f->graph, f->k, w), "the second operand must be F32 with as many rows");
    NO_PART(tsr_add(f->graph, v, v), "an input or computed");
    NO_PART(tsr_scale(f->graph, w, 2), "an input or computed");
    NO_PART(tsr_scale_by(f->graph, w, v), "an input or computed");
    NO_PART(tsr_softcap(f->graph, w, 2), "an input or computed");
    NO_PART(tsr_softmax(f->graph, w, 1), "an input or computed");
    NO_PART(tsr_argmax(f->graph, w), "an input or computed");
    NO_PART(tsr_top_k(f->graph, w, 1), "it must be F32");
    NO_PART(tsr_take_columns(f->graph, w, one), "multiple of the period");
    NO_PART(tsr_stream_mix(f->graph, w, NULL, NULL, &mix), "must have one length");
    NO_PART(tsr_get_rows(f->graph, w, f->ids), "an input or computed");
    NO_PART(tsr_graph_output(f->graph, w), "it is a weight, or of another graph");
    /* Both meanings of a weight with as many rows as there are tokens would be possible. */
    NO_PART(tsr_add(f->graph, tsr_graph_input(f->graph, TSR_TYPE_F32, N_EMBD, N_KV * DIM, "x"), w),
            "must have one row");
    NO_PART(tsr_get_rows(f->graph, tsr_graph_input(f->graph, TSR_TYPE_I32, 4, 4, "ids"),
                         tsr_graph_input(f->graph, TSR_TYPE_I32, 4, 1, "id")),
            "a table that is no weight must be F32");
    tsr_graph *of_other;
    runner_ok(tsr_graph_create(f->other, &of_other), "graph");
    tsr_tensor *x = tsr_graph_input(of_other, TSR_TYPE_F32, N_EMBD, 1, "x");
    assert_null(tsr_mul_mat(of_other, w, x));
    assert_says("a weight of another runtime");
    NO_PART(tsr_graph_output(f->graph, x), "of another graph");
    tsr_graph_destroy(of_other);
}

static void refuse_compile(fixture *f, const char *words)
{
    tsr_program *program = NULL;
    assert_int_equal(tsr_program_compile(f->graph, NULL, &program), TSR_ERR_INVALID);
    assert_says(words);
    assert_null(program);
    new_graph(f);
}

/* Queries, keys or values whose heads are elsewhere than those of the region. */
static void heads_on_other_devices(void **state)
{
    fixture *f = *state;
    tsr_tensor *whole = tsr_mul_mat(f->graph, f->w[EVERYWHERE], f->x);
    tsr_graph_output(f->graph, tsr_attention(f->graph, f->inputs, 0, whole, NULL));
    refuse_compile(f, "divide the weights of queries, keys and values between the same heads");
    tsr_kv_store(f->graph, f->inputs, 0, f->k, tsr_mul_mat(f->graph, f->w[ONE_DEVICE], f->x));
    refuse_compile(f, "must be divided by the same heads");
    whole = tsr_mul_mat(f->graph, f->w[ONE_DEVICE], f->x);
    tsr_kv_store(f->graph, f->inputs, 0, whole, whole);
    refuse_compile(f, "kv_store: device 1 has 64 of 64 elements");
    whole = tsr_mul_mat(f->graph, f->w[COLUMNS], f->x);
    tsr_kv_store(f->graph, f->inputs, 0, whole, whole);
    refuse_compile(f, "must be divided by the same heads");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(regions_of_impossible_places),
        CASE(regions_of_impossible_sizes),
        CASE(heads_on_one_device),
        CASE(sequences_that_do_not_exist),
        CASE(inputs_of_impossible_steps),
        CASE(appends_that_fail_change_nothing),
        CASE(stores_that_do_not_fit),
        CASE(attentions_that_do_not_fit),
        CASE(heads_on_other_devices),
        CASE(parts_that_do_not_fit),
        CASE(weights_in_place_of_activations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
