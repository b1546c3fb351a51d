/* Mixtures of experts by the public headers alone: routing and experts against a reference in double, the
 * same bits for every division over devices, and what the constructors refuse. */
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

enum { N_EMBD = 64, N_FF = 96, N_EXPERTS = 8, N_USED = 3, N_TOKENS = 11, GRANULE = 32, N_IDS = 5 };

static const float splits[][3] = {{1, 0, 0}, {1, 1, 1}, {0, 2, 1}, {1, 5, 2}};
enum { N_SPLITS = sizeof splits / sizeof *splits };

/* The ways in which tensors are divided; each has a context. */
enum { WHOLE, ROWS, COLUMNS, BY_EXPERT, BIASES, OUTPUT, N_WAYS };
/* The weights: of the experts, of the router, and of shared experts. */
enum {
    GATE,
    UP,
    DOWN,
    GATE_BIAS,
    UP_BIAS,
    DOWN_BIAS,
    ROUTER,
    CHOICE_BIAS,
    FACTORS,
    TABLE,
    SHARED,
    N_WEIGHTS
};

typedef struct model {
    tsr_runtime *rt;
    tsr_context *contexts[N_WAYS];
    tsr_buffer *buffers[N_WAYS];
    tsr_tensor *w[N_WEIGHTS];
    tsr_graph *graph;
    tsr_tensor *x, *ids, *logits;
} model;

static float values[N_WEIGHTS][N_EMBD * N_FF * N_EXPERTS], tokens[N_TOKENS * N_EMBD];
static const int32_t ids_of_tokens[N_TOKENS] = {0, 4, 1, 3, 2, 0, -7, 5, 1000000000, 2, 1};
static int32_t table[N_IDS][N_USED];

static void make_values(void)
{
    uint64_t seed = 1;
    for (int i = 0; i < N_WEIGHTS; i++)
        for (size_t k = 0; k < sizeof values[i] / sizeof(float); k++)
            values[i][k] = (i == CHOICE_BIAS ? 0.5f : 0.2f) * random_normal(&seed);
    for (size_t k = 0; k < sizeof tokens / sizeof(float); k++)
        tokens[k] = random_normal(&seed);
    for (int i = 0; i < N_IDS; i++)
        for (int j = 0; j < N_USED; j++)
            table[i][j] = (3 * i + 2 * j) % N_EXPERTS;
}

static void place(model *m, int way, int axis, int64_t granule, const float *split)
{
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    config.axis = axis;
    config.granule = granule;
    config.tensor_split = split;
    config.n_tensor_split = 3;
    const tsr_buffer_type *type =
        way == WHOLE ? tsr_replicated_buffer_type(m->rt) : tsr_split_buffer_type_ex(m->rt, &config);
    runner_ok(tsr_tensors_alloc(m->contexts[way], type, &m->buffers[way]), "alloc");
}

static void new_graph(model *m)
{
    tsr_graph_destroy(m->graph);
    runner_ok(tsr_graph_create(m->rt, &m->graph), "graph");
    m->x = tsr_graph_input(m->graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    m->ids = tsr_graph_input(m->graph, TSR_TYPE_I32, N_TOKENS, 1, "ids");
    m->logits = tsr_mul_mat(m->graph, m->w[ROUTER], m->x);
}

/* By columns with granules of `granule`, or by experts. */
static void open_model(model *m, const float *split, bool by_expert, int64_t granule)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    *m = (model){0};
    config.devices = "host:3,threads=1";
    runner_ok(tsr_runtime_open(&config, &m->rt), "runtime");
    for (int way = 0; way < N_WAYS; way++)
        runner_ok(tsr_context_create(m->rt, &m->contexts[way]), "context");
    const struct {
        int way;
        int64_t ne0, ne1;
    } shapes[N_WEIGHTS] = {
        [GATE] = {by_expert ? BY_EXPERT : ROWS, N_EMBD * N_FF, N_EXPERTS},
        [UP] = {by_expert ? BY_EXPERT : ROWS, N_EMBD * N_FF, N_EXPERTS},
        [DOWN] = {by_expert ? BY_EXPERT : COLUMNS, by_expert ? N_EMBD * N_FF : N_FF,
                  by_expert ? N_EXPERTS : N_EMBD * N_EXPERTS},
        [GATE_BIAS] = {by_expert ? BY_EXPERT : COLUMNS, N_FF, N_EXPERTS},
        [UP_BIAS] = {by_expert ? BY_EXPERT : COLUMNS, N_FF, N_EXPERTS},
        [DOWN_BIAS] = {by_expert ? BY_EXPERT : BIASES, N_EMBD, N_EXPERTS},
        [ROUTER] = {OUTPUT, N_EMBD, N_EXPERTS}, /* divided: its logits are gathered */
        [CHOICE_BIAS] = {WHOLE, N_EXPERTS, 1},
        [FACTORS] = {WHOLE, N_EXPERTS, 1},
        [TABLE] = {WHOLE, N_USED, N_IDS},
        [SHARED] = {COLUMNS, N_EMBD, N_EMBD},
    };
    for (int i = 0; i < N_WEIGHTS; i++)
        m->w[i] = tsr_tensor_2d(m->contexts[shapes[i].way], i == TABLE ? TSR_TYPE_I32 : TSR_TYPE_F32,
                                shapes[i].ne0, shapes[i].ne1, "w");
    place(m, WHOLE, 0, 0, split);
    place(m, ROWS, 0, granule * N_EMBD, split);
    place(m, COLUMNS, 0, granule, split);
    place(m, BY_EXPERT, 1, 1, split);
    place(m, OUTPUT, 1, 1, split);
    float bytes[3];
    for (int d = 0; d < 3; d++)
        bytes[d] = (float)tsr_tensor_device_bytes(m->w[DOWN], d);
    place(m, BIASES, 1, 1, bytes);
    for (int i = 0; i < N_WEIGHTS; i++)
        runner_ok(tsr_tensor_set(m->w[i], i == TABLE ? (void *)table : (void *)values[i], 0,
                                 tsr_tensor_bytes(m->w[i])),
                  "weight");
    new_graph(m);
}

static void close_model(model *m)
{
    tsr_graph_destroy(m->graph);
    for (int way = 0; way < N_WAYS; way++) {
        tsr_buffer_destroy(m->buffers[way]);
        tsr_context_destroy(m->contexts[way]);
    }
    tsr_runtime_close(m->rt);
}

/* -- routers -- */

enum { PLAIN, NOT_NORMALIZED, SIGMOIDS, GROUPS, ROOTS, TABLED, N_ROUTERS };

static tsr_routing_config router_of(const model *m, int kind)
{
    tsr_routing_config c = tsr_routing_config_default();
    c.n_used = N_USED;
    c.normalize = kind != NOT_NORMALIZED;
    c.scale = kind == PLAIN ? 1 : 1.5f;
    c.gating = kind == SIGMOIDS || kind == GROUPS ? TSR_GATING_SIGMOID
               : kind == ROOTS                    ? TSR_GATING_SQRT_SOFTPLUS
                                                  : TSR_GATING_SOFTMAX;
    c.bias = kind == SIGMOIDS || kind == GROUPS ? m->w[CHOICE_BIAS] : NULL;
    c.factors = kind == ROOTS ? m->w[FACTORS] : NULL;
    c.n_groups = kind == GROUPS ? 4 : 0;
    c.n_groups_used = kind == GROUPS ? 2 : 0;
    c.table = kind == TABLED ? m->w[TABLE] : NULL;
    c.ids = kind == TABLED ? m->ids : NULL;
    return c;
}

/* The experts that take part: all, or those of the two groups with the largest sums of two keys. */
static void open_groups(const double *keys, bool *open)
{
    double scores[4], best;
    for (int g = 0; g < 4; g++)
        scores[g] = keys[2 * g] + keys[2 * g + 1];
    for (int n = 0; n < 2; n++) {
        int at = 0;
        best = -INFINITY;
        for (int g = 0; g < 4; g++)
            if (scores[g] > best)
                best = scores[at = g];
        scores[at] = -INFINITY;
        open[2 * at] = open[2 * at + 1] = true;
    }
}

static void reference_route(int kind, int t, const float *logits, int *chosen, double *weight)
{
    double p[N_EXPERTS], keys[N_EXPERTS], sum = 0, used = 0;
    bool open[N_EXPERTS] = {false};
    const int id = ids_of_tokens[t] >= 0 && ids_of_tokens[t] < N_IDS ? ids_of_tokens[t] : 0;
    for (int e = 0; e < N_EXPERTS; e++)
        sum += exp((double)logits[e]);
    for (int e = 0; e < N_EXPERTS; e++) {
        const double x = (double)logits[e];
        p[e] = kind == SIGMOIDS || kind == GROUPS ? 1 / (1 + exp(-x))
               : kind == ROOTS                    ? sqrt(log1p(exp(x)))
                                                  : exp(x) / sum;
        keys[e] = p[e] + (kind == SIGMOIDS || kind == GROUPS ? (double)values[CHOICE_BIAS][e] : 0);
        open[e] = kind != GROUPS;
    }
    if (kind == GROUPS)
        open_groups(keys, open);
    for (int j = 0; j < N_USED; j++) {
        chosen[j] = -1;
        for (int e = 0; e < N_EXPERTS; e++)
            if (open[e] && (chosen[j] < 0 || keys[e] > keys[chosen[j]]))
                chosen[j] = e;
        open[chosen[j]] = false;
        if (kind == TABLED)
            chosen[j] = table[id][j];
        used += p[chosen[j]];
    }
    for (int j = 0; j < N_USED; j++)
        weight[j] = p[chosen[j]] * (kind == PLAIN ? 1 : 1.5) / (kind == NOT_NORMALIZED ? 1 : used) *
                    (kind == ROOTS ? (double)values[FACTORS][chosen[j]] : 1);
}

/* y += weight * (down (silu(gate x + b) * (up x + b)) + b) of expert e. */
static void reference_expert(int e, double weight, const float *x, bool biased, double *y)
{
    double hidden[N_FF];
    for (int f = 0; f < N_FF; f++) {
        double g = biased ? (double)values[GATE_BIAS][e * N_FF + f] : 0;
        double u = biased ? (double)values[UP_BIAS][e * N_FF + f] : 0;
        for (int i = 0; i < N_EMBD; i++) {
            g += (double)values[GATE][(e * N_FF + f) * N_EMBD + i] * (double)x[i];
            u += (double)values[UP][(e * N_FF + f) * N_EMBD + i] * (double)x[i];
        }
        hidden[f] = g / (1 + exp(-g)) * u;
    }
    for (int r = 0; r < N_EMBD; r++) {
        double sum = biased ? (double)values[DOWN_BIAS][e * N_EMBD + r] : 0;
        for (int f = 0; f < N_FF; f++)
            sum += (double)values[DOWN][(e * N_EMBD + r) * N_FF + f] * hidden[f];
        y[r] += weight * sum;
    }
}

static void check(int kind, bool biased, const float *logits, const float *y)
{
    for (int t = 0; t < N_TOKENS; t++) {
        const float *x = tokens + (size_t)t * N_EMBD;
        int chosen[N_USED];
        double weight[N_USED], expected[N_EMBD] = {0};
        reference_route(kind, t, logits + (size_t)t * N_EXPERTS, chosen, weight);
        for (int j = 0; j < N_USED; j++)
            reference_expert(chosen[j], weight[j], x, biased, expected);
        for (int r = 0; r < N_EMBD && !biased; r++) /* with biases there are shared experts */
            for (int i = 0; i < N_EMBD; i++)
                expected[r] += (double)values[SHARED][r * N_EMBD + i] * (double)x[i];
        for (int r = 0; r < N_EMBD; r++) /* sums of a few hundred terms of about 1, in F32 */
            assert_true(fabs((double)y[t * N_EMBD + r] - expected[r]) < 2e-4);
    }
}

/* All routers, with biases, and with shared experts in the same all-reduce. */
static void run(const float *split, bool by_expert, int64_t granule, float *out)
{
    static float logits[N_TOKENS * N_EXPERTS];
    model m;
    open_model(&m, split, by_expert, granule);
    tsr_tensor *y[2 * N_ROUTERS];
    tsr_graph_output(m.graph, m.logits);
    for (int i = 0; i < 2 * N_ROUTERS; i++) {
        const tsr_routing_config router = router_of(&m, i / 2);
        tsr_experts_config experts = tsr_experts_config_default();
        experts.gate = m.w[GATE];
        experts.up = m.w[UP];
        experts.down = m.w[DOWN];
        experts.gate_bias = i % 2 ? m.w[GATE_BIAS] : NULL;
        experts.up_bias = i % 2 ? m.w[UP_BIAS] : NULL;
        experts.down_bias = i % 2 ? m.w[DOWN_BIAS] : NULL;
        experts.granule = GRANULE;
        tsr_tensor *routing = tsr_route(m.graph, m.logits, &router);
        tsr_tensor *shared = i % 2 ? NULL : tsr_mul_mat(m.graph, m.w[SHARED], m.x);
        tsr_tensor *sum = tsr_experts(m.graph, m.x, routing, &experts);
        y[i] = tsr_graph_output(m.graph, tsr_experts_onto(m.graph, sum, shared));
    }
    tsr_program *program;
    tsr_program_info info;
    runner_ok(tsr_program_compile(m.graph, NULL, &program), "compile");
    tsr_program_get_info(program, &info);
    assert_int_equal(info.n_all_reduces, 2 * N_ROUTERS); /* shared experts add none */
    runner_ok(tsr_tensor_set(m.x, tokens, 0, sizeof tokens), "x");
    runner_ok(tsr_tensor_set(m.ids, ids_of_tokens, 0, sizeof ids_of_tokens), "ids");
    runner_ok(tsr_program_run(program), "run");
    runner_ok(tsr_tensor_get(m.logits, logits, 0, sizeof logits), "logits");
    for (int i = 0; i < 2 * N_ROUTERS; i++, out += N_TOKENS * N_EMBD) {
        runner_ok(tsr_tensor_get(y[i], out, 0, tsr_tensor_bytes(y[i])), "y");
        check(i / 2, i % 2, logits, out);
    }
    tsr_program_destroy(program);
    close_model(&m);
}

static void experts_are_right_for_every_split(void **state)
{
    (void)state;
    static float first[2 * N_ROUTERS * N_TOKENS * N_EMBD], other[2 * N_ROUTERS * N_TOKENS * N_EMBD];
    make_values();
    run(splits[0], false, GRANULE, first);
    for (int i = 1; i < 2 * N_SPLITS; i++) {
        run(splits[i % N_SPLITS], i >= N_SPLITS, GRANULE, other);
        assert_memory_equal(first, other, sizeof first);
    }
}

/* -- what is refused -- */

static void assert_says(const char *words)
{
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}

static void routers_that_cannot_be(void **state)
{
    (void)state;
    model m;
    open_model(&m, splits[1], false, GRANULE);
    for (int i = 0; i < 9; i++) {
        static const char *const words[] = {"n_used", "n_used",    "gating",    "bias",     "groups",
                                            "groups", "the table", "the scale", "no config"};
        new_graph(&m);
        tsr_routing_config c = router_of(&m, GROUPS);
        c.n_used = i == 0 ? 0 : i == 1 ? N_EXPERTS + 1 : 2;
        c.gating = i == 2 ? (tsr_gating)3 : TSR_GATING_SIGMOID;
        c.bias = i == 3 ? m.w[ROUTER] : NULL;
        c.n_groups = i == 4 ? 3 : 4;
        c.n_groups_used = i == 5 ? 5 : 2;
        c.table = i == 6 ? m.w[CHOICE_BIAS] : NULL;
        c.ids = i == 6 ? m.ids : NULL;
        c.scale = i == 7 ? NAN : 1;
        assert_null(tsr_route(m.graph, m.logits, i == 8 ? NULL : &c));
        assert_says(i == 8 ? "n_used" : words[i]);
    }
    close_model(&m);
}

static void experts_that_cannot_be(void **state)
{
    (void)state;
    static const char *const words[] = {"weights of two dimensions",
                                        "weights of two dimensions",
                                        "biases must be",
                                        "biases must be",
                                        "whole blocks",
                                        "tsr_glu_kind",
                                        "its limit",
                                        "an operand is NULL",
                                        "of as many tokens",
                                        "another graph"};
    model m;
    tsr_graph *other;
    open_model(&m, splits[1], false, GRANULE);
    runner_ok(tsr_graph_create(m.rt, &other), "another graph");
    for (int i = 0; i < 10; i++) {
        const tsr_routing_config router = router_of(&m, PLAIN);
        tsr_experts_config c = tsr_experts_config_default();
        new_graph(&m);
        tsr_tensor *foreign = tsr_graph_input(other, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
        tsr_tensor *routing = tsr_route(m.graph, m.logits, &router);
        c.gate = i == 0 ? m.w[ROUTER] : m.w[GATE];
        c.up = m.w[UP];
        c.down = i == 1 ? m.x : i == 7 ? NULL : m.w[DOWN];
        c.gate_bias = i == 2 ? m.w[DOWN_BIAS] : NULL;
        c.down_bias = i == 3 ? m.w[CHOICE_BIAS] : NULL;
        c.granule = i == 4 ? -1 : 0;
        c.glu = i == 5 ? (tsr_glu_kind)99 : i == 6 ? TSR_GLU_CAPPED : TSR_GLU_SILU;
        tsr_tensor *x = i == 9 ? foreign : m.x;
        assert_null(tsr_experts(m.graph, x, i == 8 ? m.logits : routing, &c));
        assert_says(words[i]);
    }
    tsr_graph_destroy(other);
    close_model(&m);
}

/* What only the places of the weights tell. */
static void places_that_do_not_fit(void **state)
{
    (void)state;
    static const char *const words[] = {"divided inside its experts' rows",
                                        "are divided differently",
                                        "no multiple of the granule",
                                        "is used by another op",
                                        "missing on a device",
                                        "is not divided by rows"};
    model m;
    open_model(&m, splits[3], false, GRANULE);
    for (int i = 0; i < 6; i++) {
        tsr_routing_config router = router_of(&m, PLAIN);
        tsr_experts_config c = tsr_experts_config_default();
        tsr_program *program = NULL;
        new_graph(&m);
        if (i == 4) { /* a bias on one device only, of logits that all have */
            tsr_context_destroy(m.contexts[WHOLE]);
            runner_ok(tsr_context_create(m.rt, &m.contexts[WHOLE]), "context");
            router.bias = tsr_tensor_1d(m.contexts[WHOLE], TSR_TYPE_F32, N_EXPERTS, "bias");
            tsr_buffer_destroy(m.buffers[WHOLE]);
            runner_ok(
                tsr_tensors_alloc(m.contexts[WHOLE], tsr_device_buffer_type(m.rt, 0), &m.buffers[WHOLE]),
                "bias");
        }
        c.gate = m.w[GATE];
        c.up = i == 1 ? m.w[DOWN] : m.w[UP];
        c.down = i == 0 ? m.w[UP] : m.w[DOWN];
        c.granule = i == 2 ? 2 * GRANULE : 0;
        c.down_bias = i == 5 ? m.w[ROUTER] : NULL; /* a row on device 0, which has no columns */
        tsr_tensor *shared = tsr_mul_mat(m.graph, m.w[SHARED], m.x);
        tsr_tensor *sum = tsr_experts(m.graph, m.x, tsr_route(m.graph, m.logits, &router), &c);
        tsr_graph_output(m.graph, tsr_experts_onto(m.graph, sum, shared));
        if (i == 3)
            tsr_graph_output(m.graph, tsr_add(m.graph, shared, m.x));
        assert_int_equal(tsr_program_compile(m.graph, NULL, &program), TSR_ERR_INVALID);
        assert_says(words[i]);
    }
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_right_for_every_split),
        cmocka_unit_test(routers_that_cannot_be),
        cmocka_unit_test(experts_that_cannot_be),
        cmocka_unit_test(places_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
