/* See experts_case.h. */
#include "support/experts_case.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "support/kernel_run.h"

int64_t experts_case_slots(const experts_case *c)
{
    return c->s.n_tokens * c->s.n_used;
}

experts_shard experts_case_whole(const experts_case *c)
{
    return (experts_shard){0, c->s.n_experts, 0, c->s.n_ff};
}

/* -- making one -- */

const experts_setup experts_case_choices[EXPERTS_N_CHOICES] = {
    {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 8, 3, 40, 16, TSR_GLU_SILU, true, TSR_GATING_SIGMOID,
     .biased = true, .n_groups = 4, .n_groups_used = 2},
    {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 256, 8, 9, 16, TSR_GLU_SILU, true, TSR_GATING_SIGMOID,
     .biased = true, .n_groups = 8, .n_groups_used = 4},
    {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 160, 6, 9, 16, TSR_GLU_SILU, false, TSR_GATING_SOFTMAX,
     .n_groups = 40, .n_groups_used = 3},
    {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 12, 2, 20, 16, TSR_GLU_SILU, true, TSR_GATING_SIGMOID,
     .n_groups = 4, .n_groups_used = 1},
    {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 12, 3, 20, 16, TSR_GLU_SILU, true,
     TSR_GATING_SQRT_SOFTPLUS, .biased = true},
    {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 12, 3, 1, 16, TSR_GLU_SILU, false,
     TSR_GATING_SQRT_SOFTPLUS, .n_groups = 2, .n_groups_used = 1},
    {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 12, 3, 20, 16, TSR_GLU_GELU_TANH, true,
     TSR_GATING_SOFTMAX, .scaled = true},
    {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 16, 1, 40, 16, TSR_GLU_SILU, false, TSR_GATING_SIGMOID,
     .weigh_inputs = true},
    {TSR_TYPE_F16, TSR_TYPE_F32, TSR_TYPE_F32, 24, 40, 5, 2, 3, 16, TSR_GLU_SILU, true, TSR_GATING_SIGMOID,
     .biased = true, .weigh_inputs = true},
};

static experts_matrix make_matrix(tsr_type type, int x_bits, int64_t n_experts, int64_t n_rows, int64_t k,
                                  uint64_t *seed)
{
    experts_matrix m = {.type = type, .n_rows = n_rows, .k = k, .x_bits = x_bits};
    const int64_t all = n_experts * n_rows;
    m.row_bytes = tsr_type_row_bytes(type, k);
    m.expert_bytes = m.row_bytes * (size_t)n_rows;
    m.bytes = malloc(m.expert_bytes * (size_t)n_experts);
    m.decoded = malloc((size_t)(all * k) * sizeof(float));
    assert_true(m.bytes && m.decoded);
    random_fill(seed, m.decoded, all * k, -1.0f, 1.0f);
    for (int64_t r = 0; r < all; r++) {
        unsigned char *row = m.bytes + (size_t)r * m.row_bytes;
        assert_int_equal(tsr_type_from_f32(type, m.decoded + r * k, row, k), TSR_OK);
        assert_int_equal(tsr_type_to_f32(type, row, m.decoded + r * k, k), TSR_OK);
    }
    return m;
}

experts_case experts_case_create(experts_setup s, uint64_t seed)
{
    experts_case c = {.s = s};
    c.m[EXPERTS_GATE] = make_matrix(s.gate, s.x_bits, s.n_experts, s.n_ff, s.n_embd, &seed);
    c.m[EXPERTS_UP] = make_matrix(s.up, s.x_bits, s.n_experts, s.n_ff, s.n_embd, &seed);
    c.m[EXPERTS_DOWN] = make_matrix(s.down, s.x_bits, s.n_experts, s.n_embd, s.n_ff, &seed);
    for (int i = 0; i < EXPERTS_MATRICES; i++) {
        const int64_t n = s.n_experts * c.m[i].n_rows;
        c.bias[i] = malloc((size_t)n * sizeof(float));
        assert_non_null(c.bias[i]);
        random_fill(&seed, c.bias[i], n, -4.0f, 4.0f);
    }
    c.choice_bias = malloc((size_t)s.n_experts * sizeof(float));
    assert_non_null(c.choice_bias);
    random_fill(&seed, c.choice_bias, s.n_experts, s.scaled ? 0.5f : -0.3f, s.scaled ? 1.5f : 0.3f);
    c.x = malloc((size_t)(s.n_tokens * s.n_embd) * sizeof(float));
    c.logits = malloc((size_t)(s.n_tokens * s.n_experts) * sizeof(float));
    c.expert = malloc((size_t)experts_case_slots(&c) * sizeof *c.expert);
    c.weight = malloc((size_t)experts_case_slots(&c) * sizeof *c.weight);
    assert_true(c.x && c.logits && c.expert && c.weight);
    random_fill(&seed, c.x, s.n_tokens * s.n_embd, -1.0f, 1.0f);
    random_fill(&seed, c.logits, s.n_tokens * s.n_experts, -4.0f, 4.0f);
    for (int64_t t = 0; t < s.n_tokens && s.n_experts > 2; t++)
        c.logits[t * s.n_experts + s.n_experts - 2] = -9.0f;
    experts_case_choose(&c);
    return c;
}

void experts_case_destroy(experts_case *c)
{
    for (int i = 0; i < EXPERTS_MATRICES; i++) {
        free(c->m[i].bytes);
        free(c->m[i].decoded);
        free(c->bias[i]);
    }
    free(c->choice_bias);
    free(c->x);
    free(c->logits);
    free(c->expert);
    free(c->weight);
}

/* -- the definitions -- */

/* How many keys come before key e: larger ones, and equal ones of lower index. */
static int64_t rank_of(const double *keys, int64_t n, int64_t e)
{
    const double key = isnan(keys[e]) ? -INFINITY : keys[e];
    int64_t rank = 0;
    for (int64_t i = 0; i < n; i++) {
        const double other = isnan(keys[i]) ? -INFINITY : keys[i];
        rank += other > key || (other == key && i < e);
    }
    return rank;
}

/* Probabilities, as parts of e^top. */
static double part(const experts_case *c, double logit, double top)
{
    if (c->s.gating == TSR_GATING_SQRT_SOFTPLUS)
        return sqrt((logit < 0 ? 0 : logit) + log1p(exp(-fabs(logit))));
    return c->s.gating == TSR_GATING_SIGMOID ? 1 / (1 + exp(-logit)) : exp(logit - top);
}

/* The largest key of `size`, after a softmax, or the sum of the two largest. */
static double score_of(const experts_case *c, const double *keys, int64_t size)
{
    double score = 0;
    for (int64_t e = 0; e < size; e++)
        if (rank_of(keys, size, e) < (c->s.gating == TSR_GATING_SOFTMAX ? 1 : 2))
            score += keys[e];
    return score;
}

/* Put the experts of all groups but the best last, behind those of the best without a number. */
static void close_groups(const experts_case *c, double *keys)
{
    double scores[64] = {0};
    const int64_t size = c->s.n_groups > 0 ? c->s.n_experts / c->s.n_groups : 0;
    for (int64_t g = 0; g < c->s.n_groups; g++)
        scores[g] = score_of(c, keys + g * size, size);
    for (int64_t e = 0; e < size * c->s.n_groups; e++) {
        const bool open = rank_of(scores, c->s.n_groups, e / size) < c->s.n_groups_used;
        keys[e] = !open ? -INFINITY : keys[e] > -INFINITY ? keys[e] : -DBL_MAX;
    }
}

static void choose(const experts_case *c, const float *x, double *keys, int32_t *expert, double *weight)
{
    const int64_t n = c->s.n_experts, n_used = c->s.n_used;
    double top = -INFINITY, all = 0, chosen = 0;
    for (int64_t e = 0; e < n; e++)
        top = (double)x[e] > top ? (double)x[e] : top;
    for (int64_t e = 0; e < n; e++)
        all += exp((double)x[e] - top);
    if (c->s.gating != TSR_GATING_SOFTMAX)
        all = 1;
    for (int64_t e = 0; e < n; e++) {
        const bool probable = c->s.biased || (c->s.n_groups > 0 && c->s.gating != TSR_GATING_SOFTMAX);
        keys[e] = probable ? part(c, (double)x[e], top) / all : (double)x[e];
        keys[e] += c->s.biased ? (double)c->choice_bias[e] : 0;
    }
    close_groups(c, keys);
    for (int64_t e = 0; e < n; e++)
        if (rank_of(keys, n, e) < n_used)
            expert[rank_of(keys, n, e)] = (int32_t)e;
    for (int64_t j = 0; j < n_used; j++)
        chosen += weight[j] = part(c, (double)x[expert[j]], top);
    for (int64_t j = 0; j < n_used; j++)
        weight[j] *= (c->s.scaled ? (double)c->choice_bias[expert[j]] : 1) / (c->s.normalize ? chosen : all);
}

void experts_case_choose(experts_case *c)
{
    const int64_t n = c->s.n_experts, n_used = c->s.n_used;
    double *keys = malloc((size_t)n * sizeof *keys);
    assert_non_null(keys);
    for (int64_t t = 0; t < c->s.n_tokens; t++)
        choose(c, c->logits + t * n, keys, c->expert + t * n_used, c->weight + t * n_used);
    free(keys);
}

bool experts_case_is_touched(const experts_case *c, int64_t expert)
{
    for (int64_t s = 0; s < experts_case_slots(c); s++)
        if (c->expert[s] == expert)
            return true;
    return false;
}

bool experts_case_strange_logits(int index, int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i % 3); /* ties at every level */
    switch (index) {
    case 0:
        return true;
    case 1: /* all equal */
        for (int64_t i = 0; i < n; i++)
            x[i] = -1.5f;
        return true;
    case 2: /* a NaN first, where a comparison with it could stick */
        x[0] = NAN;
        return true;
    case 3: /* nothing but NaN */
        for (int64_t i = 0; i < n; i++)
            x[i] = i % 2 ? NAN : -NAN;
        return true;
    case 4:
        x[n / 2] = INFINITY;
        return true;
    case 5: /* two infinite ones, and both zeros */
        x[0] = x[n - 1] = INFINITY;
        x[n / 2] = -0.0f;
        return true;
    case 6: /* fewer numbers than are chosen */
        for (int64_t i = 0; i < n; i++)
            x[i] = i == n - 1 ? 2.0f : -INFINITY;
        return true;
    case 7:
        for (int64_t i = 0; i < n; i++)
            x[i] = i % 2 ? NAN : -INFINITY;
        return true;
    case 8: /* differences beyond the range of exp */
        for (int64_t i = 0; i < n; i++)
            x[i] = i % 2 ? 3e38f : -3e38f;
        return true;
    case 9: /* pairs whose sum is NaN */
        for (int64_t i = 0; i < n; i++)
            x[i] = i % 2 ? NAN : INFINITY;
        return true;
    default:
        return false;
    }
}

bool experts_case_strange_router(int index, int64_t n_tokens, experts_setup *out)
{
    static const struct {
        int64_t n_experts, n_used, n_groups, n_groups_used;
        bool normalize;
    } routers[] = {{8, 3, 0, 0, false}, {8, 3, 0, 0, true},  {5, 5, 0, 0, false},   {5, 5, 0, 0, true},
                   {1, 1, 0, 0, false}, {1, 1, 0, 0, true},  {70, 33, 0, 0, false}, {70, 33, 0, 0, true},
                   {8, 3, 4, 2, true},  {8, 3, 2, 1, false}, {70, 33, 10, 5, true}, {128, 9, 64, 5, true},
                   {6, 2, 6, 3, false}};
    if (index >= (int)(sizeof routers / sizeof *routers))
        return false;
    *out =
        (experts_setup){.gate = TSR_TYPE_F32,
                        .up = TSR_TYPE_F32,
                        .down = TSR_TYPE_F32,
                        .n_embd = 1,
                        .n_ff = 1,
                        .n_experts = routers[index].n_experts,
                        .n_used = routers[index].n_used,
                        .n_tokens = n_tokens,
                        .granule = 1,
                        .glu = TSR_GLU_SILU,
                        .normalize = routers[index].normalize,
                        .gating = routers[index].n_groups > 0 ? TSR_GATING_SQRT_SOFTPLUS : TSR_GATING_SOFTMAX,
                        .n_groups = routers[index].n_groups,
                        .n_groups_used = routers[index].n_groups_used};
    return true;
}

/* -- ops -- */

tsr_op experts_case_route_op(const experts_case *c, const float *logits, const float *choice_bias,
                             void *words)
{
    return (tsr_op){.kind = TSR_OP_ROUTE,
                    .route = {.logits = logits,
                              .bias = c->s.biased ? choice_bias : NULL,
                              .gating = c->s.gating,
                              .routing = tsr_routing_at(words, c->s.n_tokens, c->s.n_used, c->s.n_experts),
                              .factors = c->s.scaled ? choice_bias : NULL,
                              .normalize = c->s.normalize,
                              .scale = 1.0f,
                              .n_groups = c->s.n_groups,
                              .n_groups_used = c->s.n_groups_used}};
}

void experts_case_table(const experts_case *c, const int32_t *expert, int shift, int32_t *table, int32_t *ids)
{
    for (int64_t t = 0; t < c->s.n_tokens; t++) {
        ids[t] = (int32_t)(c->s.n_tokens - 1 - t);
        for (int64_t j = 0; j < c->s.n_used; j++)
            table[ids[t] * c->s.n_used + j] =
                (int32_t)((expert[t * c->s.n_used + j] + shift) % c->s.n_experts);
    }
}

static tsr_expert_matrix matrix_of(const experts_case *c, const experts_memory *memory, int which,
                                   int64_t expert, int64_t row, int64_t column)
{
    const experts_matrix *m = &c->m[which];
    const size_t before = (size_t)expert * memory->expert_stride[which] + (size_t)row * m->row_bytes;
    return (tsr_expert_matrix){m->type, memory->data[which] + before + tsr_type_row_bytes(m->type, column),
                               m->row_bytes, memory->expert_stride[which]};
}

static tsr_expert_bias bias_of(const experts_case *c, const experts_memory *memory, int which, int64_t begin,
                               int64_t end, int64_t row)
{
    const int64_t stride = c->m[which].n_rows;
    if (!c->s.biased)
        return (tsr_expert_bias){.data = NULL};
    return (tsr_expert_bias){memory->bias[which] + begin * stride + row, stride, {begin, end}};
}

/* Of the shard's experts the part that it has of their columns. */
static tsr_expert_range biases_of_down(const experts_case *c, experts_shard shard)
{
    const int64_t n = shard.expert_end - shard.expert_begin;
    return (tsr_expert_range){shard.expert_begin + n * shard.column_begin / c->s.n_ff,
                              shard.expert_begin + n * shard.column_end / c->s.n_ff};
}

tsr_op experts_case_glu_op(const experts_case *c, experts_shard shard, const experts_memory *memory,
                           tsr_routing routing, const float *x, float *y)
{
    const int64_t e = shard.expert_begin, row = shard.column_begin;
    routing.weigh_inputs = c->s.weigh_inputs;
    return (tsr_op){.kind = TSR_OP_EXPERTS_GLU,
                    .experts_glu = {.kind = c->s.glu,
                                    .x_bits = c->s.x_bits,
                                    .gate = matrix_of(c, memory, EXPERTS_GATE, e, row, 0),
                                    .up = matrix_of(c, memory, EXPERTS_UP, e, row, 0),
                                    .gate_bias = bias_of(c, memory, EXPERTS_GATE, e, shard.expert_end, row),
                                    .up_bias = bias_of(c, memory, EXPERTS_UP, e, shard.expert_end, row),
                                    .held = {e, shard.expert_end},
                                    .n_rows = shard.column_end - row,
                                    .k = c->s.n_embd,
                                    .routing = routing,
                                    .x = x,
                                    .y = y}};
}

tsr_op experts_case_down_op(const experts_case *c, experts_shard shard, const experts_memory *memory,
                            tsr_routing routing, const float *hidden, tsr_reduce_type reduce, void *y)
{
    const int64_t n_granules = ((c->s.n_ff + c->s.granule - 1) / c->s.granule + c->s.biased) * c->s.n_used;
    const tsr_expert_range biases = biases_of_down(c, shard);
    routing.weigh_inputs = c->s.weigh_inputs;
    return (tsr_op){.kind = TSR_OP_EXPERTS_DOWN,
                    .experts_down = {
                        .x_bits = c->s.x_bits,
                        .down = matrix_of(c, memory, EXPERTS_DOWN, shard.expert_begin, 0, shard.column_begin),
                        .bias = bias_of(c, memory, EXPERTS_DOWN, biases.begin, biases.end, 0),
                        .held = {shard.expert_begin, shard.expert_end},
                        .n_rows = c->s.n_embd,
                        .k = shard.column_end - shard.column_begin,
                        .routing = routing,
                        .x = hidden,
                        .reduce = reduce,
                        .granule = c->s.granule,
                        .limit = tsr_fixed_limit(n_granules),
                        .y = y}};
}

/* -- checks -- */

void experts_case_check_routing(const experts_case *c, const tsr_routing *r)
{
    const int64_t n_slots = experts_case_slots(c);
    int32_t n_touched = 0, at = 0;
    for (int64_t s = 0; s < n_slots; s++) {
        assert_int_equal(r->expert[s], c->expert[s]);
        if (isnan(c->weight[s]))
            assert_true(isnan(r->weight[s]));
        else if (isinf(c->weight[s]))
            assert_true(isinf(r->weight[s]));
        else if (!(fabs(r->weight[s] - c->weight[s]) <= 2e-6 * c->weight[s] + 1e-37))
            fail_msg("slot %d: weight %.9g, exact %.9g", (int)s, (double)r->weight[s], c->weight[s]);
    }
    for (int64_t e = 0; e < c->s.n_experts; e++) {
        assert_int_equal(r->begin[e], at);
        if (experts_case_is_touched(c, e))
            assert_int_equal(r->touched[n_touched++], e);
        for (int64_t s = 0; s < n_slots; s++)
            if (c->expert[s] == e)
                assert_int_equal(r->order[at++], s);
    }
    assert_int_equal(r->begin[c->s.n_experts], n_slots);
    assert_int_equal(*r->n_touched, n_touched);
}

typedef struct bounded {
    double sum, bound;
} bounded;

/* One row times x, and what an f32 sum of k products may be off: each lane adds a part of them and a tree the
 * lanes' sums, fewer than 64 + k / 8 roundings. Beside quantized weights 32 activations (or more) may share a
 * scale of 15 bits, or where 8 are asked for of 8: half a step of the largest. */
static bounded dot(const experts_matrix *m, int64_t expert, int64_t row, int64_t column, int64_t k,
                   const float *x)
{
    const float *w = m->decoded + (expert * m->n_rows + row) * m->k + column;
    const bool quantized = tsr_type_block_elems(m->type) > 1;
    double sum = 0, magnitude = 0, weights = 0, largest = 0;
    for (int64_t i = 0; i < k; i++) {
        sum += (double)w[i] * x[i];
        magnitude += fabs((double)w[i] * x[i]);
        weights += fabs(w[i]);
        largest = fmax(largest, fabs(x[i]));
    }
    const int most = m->x_bits == 8 ? 127 : 16383;
    const double steps = quantized ? 1.001 * largest / most / 2 * weights : 0;
    return (bounded){sum, ((64 + (double)k / 8) * 0x1p-24 + m->product_error) * magnitude + steps};
}

/* gelu(x) as 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks and Gimpel, arXiv:1606.08415. */
static double activation(tsr_glu_kind kind, double x)
{
    if (kind == TSR_GLU_CLAMPED)
        return fmin(x, 7) / (1 + exp(-1.702 * fmin(x, 7)));
    return kind == TSR_GLU_SILU ? x / (1 + exp(-x))
                                : 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* A slot's sum times its weight, which is good to 2e-6 (experts_case_check_routing()), and its bias. */
static bounded biased(const experts_case *c, int which, int64_t slot, int64_t row, bounded d)
{
    const int64_t expert = c->expert[slot];
    if (c->s.weigh_inputs)
        d = (bounded){c->weight[slot] * d.sum, c->weight[slot] * (d.bound + 3e-6 * fabs(d.sum))};
    const double sum = d.sum + (c->s.biased ? (double)c->bias[which][expert * c->m[which].n_rows + row] : 0);
    return (bounded){sum, d.bound + (c->s.biased ? 0x1p-24 * fabs(sum) : 0)};
}

/* All activations' slopes are below 1.13; their kernels are good to a few units in the last place of
 * max(|x|, 1). */
void experts_case_check_glu(const experts_case *c, experts_shard shard, const float *y)
{
    const int64_t n_rows = shard.column_end - shard.column_begin;
    for (int64_t s = 0; s < experts_case_slots(c); s++) {
        const int64_t e = c->expert[s];
        const float *x = c->x + s / c->s.n_used * c->s.n_embd;
        for (int64_t r = 0; r < n_rows && e >= shard.expert_begin && e < shard.expert_end; r++) {
            const int64_t row = shard.column_begin + r;
            const bounded gate =
                biased(c, EXPERTS_GATE, s, row, dot(&c->m[EXPERTS_GATE], e, row, 0, c->s.n_embd, x));
            bounded up = biased(c, EXPERTS_UP, s, row, dot(&c->m[EXPERTS_UP], e, row, 0, c->s.n_embd, x));
            if (c->s.glu == TSR_GLU_CLAMPED)
                up = (bounded){fmax(-7, fmin(7, up.sum)) + 1, up.bound + 1e-6};
            const double act = activation(c->s.glu, gate.sum), exact = act * up.sum;
            const double act_bound = 1.13 * gate.bound + 1e-6 * fmax(fabs(gate.sum), 1);
            const double bound = act_bound * (fabs(up.sum) + up.bound) + fabs(act) * up.bound;
            if (!(fabs(y[s * n_rows + r] - exact) <= bound + 0x1p-23 * fabs(exact)))
                fail_msg("slot %d row %d: %.9g, exact %.9g, bound %.3g", (int)s, (int)r,
                         (double)y[s * n_rows + r], exact, bound);
        }
    }
}

static double partial_at(const void *y, tsr_reduce_type reduce, int64_t i)
{
    return reduce == TSR_REDUCE_EXACT ? (double)((const int64_t *)y)[i] / TSR_FIXED_ONE
           : reduce == TSR_REDUCE_F32 ? ((const float *)y)[i]
                                      : tsr_bf16_to_f32(((const uint16_t *)y)[i]);
}

void experts_case_check_down(const experts_case *c, experts_shard shard, const float *hidden,
                             const float *weight, tsr_reduce_type reduce, const void *y)
{
    const int64_t k = shard.column_end - shard.column_begin, n_used = c->s.n_used;
    const double n_granules = (double)((k + c->s.granule - 1) / c->s.granule);
    const tsr_expert_range biases = biases_of_down(c, shard);
    for (int64_t i = 0; i < c->s.n_tokens * c->s.n_embd; i++) {
        const int64_t t = i / c->s.n_embd, row = i % c->s.n_embd;
        double exact = 0, bound = 0;
        for (int64_t s = t * n_used; s < (t + 1) * n_used; s++) {
            const int64_t e = c->expert[s];
            if (e < shard.expert_begin || e >= shard.expert_end || k == 0)
                continue;
            const bounded d = dot(&c->m[EXPERTS_DOWN], e, row, shard.column_begin, k, hidden + s * k);
            const double factor = c->s.weigh_inputs ? 1 : (double)weight[s];
            exact += factor * d.sum;
            bound += factor * d.bound + n_granules / TSR_FIXED_ONE;
            if (c->s.biased && e >= biases.begin && e < biases.end) {
                const double b = factor * (double)c->bias[EXPERTS_DOWN][e * c->s.n_embd + row];
                exact += b;
                bound += 0x1p-22 * fabs(b) + 1 / TSR_FIXED_ONE;
            }
        }
        bound += reduce == TSR_REDUCE_BF16 ? 0x1p-8 * fabs(exact) : (double)n_used * 0x1p-23 * fabs(exact);
        if (!(fabs(partial_at(y, reduce, i) - exact) <= bound))
            fail_msg("token %d row %d: %.9g, exact %.9g, bound %.3g", (int)t, (int)row,
                     partial_at(y, reduce, i), exact, bound);
    }
}

void experts_case_check_twice(tsr_reduce_type reduce, int64_t n, const void *once, const void *twice)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(partial_at(once, reduce, i)));
    const double bound = largest * (reduce == TSR_REDUCE_EXACT ? 0
                                    : reduce == TSR_REDUCE_F32 ? 0x1p-20
                                                               : 0x1p-6);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(partial_at(twice, reduce, i) - 2 * partial_at(once, reduce, i)) <= bound))
            fail_msg("sum %d: %.9g, twice %.9g", (int)i, partial_at(twice, reduce, i),
                     partial_at(once, reduce, i));
}
