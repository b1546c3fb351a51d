/* route, experts_glu, experts_down: the FFN of a mixture of experts.
 *
 * The ops over experts go expert by expert, so that the weights of an expert are read once for all tokens
 * that use it, and never if no token does. Products are computed in f32, a batch of slots times a chunk of
 * rows at a time, by experts_product(), the only function that depends on how products are computed. The
 * additions after it follow the op's definition. */
#ifndef TSR_HOST_KERNELS_OPS_EXPERTS_H
#define TSR_HOST_KERNELS_OPS_EXPERTS_H

#include "core/routing.h"
#include "host/kernels/ops/elementwise.h"
#include "host/kernels/mul_mat/mul_mat.h"

enum {
    EXPERT_ROWS = 256,      /* most rows of a chunk */
    EXPERT_LEAST_ROWS = 16, /* a multiple of the register tiles */
    EXPERT_SLOTS = 128      /* most slots of a batch */
};

typedef struct experts_scratch {
    mul_mat_scratch product; /* first: products expect their scratch here */
    float gate[EXPERT_SLOTS * EXPERT_ROWS], up[EXPERT_SLOTS * EXPERT_ROWS];
} experts_scratch;

/* -- route -- */

/* The key by which experts are chosen; a NaN is less than any number. */
static float route_key(float key)
{
    return key == key ? key : -__builtin_inff();
}

/* Whether a list contains a number. */
static bool route_has(const int32_t *list, int64_t n, int64_t number)
{
    int64_t i = 0;
    while (i < n && list[i] != number)
        i++;
    return i < n;
}

/* The groups of `size` experts that compete; size 1: every expert is a group, and all compete. */
typedef struct route_groups {
    int64_t size, n_open;
    int32_t open[TSR_MAX_EXPERT_GROUPS];
} route_groups;

/* The n_used best of keys[n], best first, of the groups that compete. */
static void route_choose(const float *keys, int64_t n, const route_groups *groups, int64_t n_used,
                         int32_t *chosen)
{
    for (int64_t j = 0; j < n_used; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n; e++) {
            if (best >= 0 && !(keys[e] > keys[best]))
                continue;
            if (!route_has(chosen, j, e) &&
                (groups->size == 1 || route_has(groups->open, groups->n_open, e / groups->size)))
                best = e;
        }
        chosen[j] = (int32_t)best;
    }
}

/* The score of a group of `size` experts, at least two where `pair` is set: its largest key, or the sum of
 * its two largest. Infinity and -infinity have none, and the group is among the worst. */
static float route_score(const float *keys, int64_t size, bool pair)
{
    float first = -__builtin_inff(), second = first;
    for (int64_t e = 0; e < size; e++) {
        const float lower = keys[e] > first ? first : keys[e];
        second = lower > second ? lower : second;
        first = keys[e] > first ? keys[e] : first;
    }
    return route_key(pair ? first + second : first);
}

/* Choose the groups that compete. */
static void route_open(const tsr_op_route *op, const float *keys, route_groups *groups)
{
    const route_groups all = {.size = 1};
    float scores[TSR_MAX_EXPERT_GROUPS];
    groups->size = op->n_groups > 1 ? op->routing.n_experts / op->n_groups : 1;
    groups->n_open = op->n_groups_used;
    if (op->n_groups <= 1)
        return;
    for (int64_t g = 0; g < op->n_groups; g++)
        scores[g] = route_score(keys + g * groups->size, groups->size,
                                groups->size > 1 && op->gating != TSR_GATING_SOFTMAX);
    route_choose(scores, op->n_groups, &all, op->n_groups_used, groups->open);
}

/* A probability before the division by a softmax's sum. Beyond 20, ln(1 + exp(x)) is x in f32. */
static float route_part(tsr_gating gating, float logit, float top)
{
    if (gating == TSR_GATING_SQRT_SOFTPLUS)
        return __builtin_sqrtf(f32_softplus(logit));
    return gating == TSR_GATING_SIGMOID ? 1.0f / (1.0f + f32_exp(-logit)) : f32_exp(logit - top);
}

/* Whether experts are chosen by probabilities instead of logits, which have the same order. */
static bool route_by_probability(const tsr_op_route *op)
{
    return op->bias || (op->n_groups > 1 && op->gating != TSR_GATING_SOFTMAX);
}

/* The largest logit, and the divisor that turns parts into probabilities. */
static float route_sum(const tsr_op_route *op, const float *x, float *top_out)
{
    float top = -__builtin_inff(), sum = 0.0f;
    for (int64_t e = 0; e < op->routing.n_experts; e++)
        top = x[e] > top ? x[e] : top;
    *top_out = top;
    if (op->gating != TSR_GATING_SOFTMAX || (op->normalize && !op->bias))
        return 1.0f;
    for (int64_t e = 0; e < op->routing.n_experts; e++)
        sum += f32_exp(x[e] - top);
    return sum;
}

static void route_token(const tsr_op_route *op, int64_t t)
{
    const tsr_routing *r = &op->routing;
    const float *x = op->logits + t * r->n_experts;
    int32_t *chosen = r->expert + t * r->n_used;
    float *weight = r->weight + t * r->n_used, keys[TSR_MAX_EXPERTS], top, sum = route_sum(op, x, &top);
    route_groups groups;
    for (int64_t e = 0; e < r->n_experts; e++) {
        const float key = route_by_probability(op) ? route_part(op->gating, x[e], top) / sum : x[e];
        keys[e] = route_key(op->bias ? key + op->bias[e] : key);
    }
    route_open(op, keys, &groups);
    const int64_t id = op->table && op->ids[t] >= 0 && op->ids[t] < op->n_ids ? op->ids[t] : 0;
    for (int64_t j = 0; op->table && j < r->n_used; j++) {
        const int32_t e = op->table[id * r->n_used + j];
        chosen[j] = e >= 0 && e < r->n_experts ? e : 0;
    }
    if (!op->table)
        route_choose(keys, r->n_experts, &groups, r->n_used, chosen);
    for (int64_t j = 0; j < r->n_used; j++)
        weight[j] = route_part(op->gating, x[chosen[j]], top);
    if (op->normalize) {
        sum = TSR_ROUTE_LEAST_SUM;
        for (int64_t j = 0; j < r->n_used; j++)
            sum += weight[j];
    }
    const float factor = op->scale / sum;
    for (int64_t j = 0; j < r->n_used; j++)
        weight[j] *= op->factors ? factor * op->factors[chosen[j]] : factor;
}

/* Counting sort of the slots by expert. begin[e + 1] is first the number of e's slots, then the place of its
 * next slot. */
static void route_group(const tsr_routing *r)
{
    const int64_t n_slots = r->n_tokens * r->n_used;
    int32_t n_touched = 0, sum = 0;
    memset(r->begin, 0, (size_t)(r->n_experts + 1) * sizeof *r->begin);
    for (int64_t s = 0; s < n_slots; s++)
        r->begin[r->expert[s] + 1]++;
    for (int64_t e = 0; e < r->n_experts; e++) {
        const int32_t n = r->begin[e + 1];
        if (n > 0)
            r->touched[n_touched++] = (int32_t)e;
        r->begin[e + 1] = sum;
        sum += n;
    }
    for (int64_t s = 0; s < n_slots; s++)
        r->order[r->begin[r->expert[s] + 1]++] = (int32_t)s;
    *r->n_touched = n_touched;
}

/* A thread that finds no token left has finished; the last thread to finish groups the slots. */
static void kernel_route(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_route *op = &record->route;
    const int64_t n = op->routing.n_tokens;
    int64_t t;
    while ((t = atomic_fetch_add_explicit(env->next, 1, memory_order_acq_rel)) < n)
        route_token(op, t);
    if (t == n + env->n_threads - 1)
        route_group(&op->routing);
}

/* -- products -- */

/* The activations of all tokens, or of all slots, as a product; a product with one expert reads some of its
 * rows. */
static tsr_op_mul_mat experts_glu_x(const tsr_op_experts_glu *op)
{
    return (tsr_op_mul_mat){.type = op->gate.type,
                            .x_bits = op->x_bits,
                            .k = op->k,
                            .x = op->x,
                            .x_stride = op->k,
                            .n_tokens = op->routing.n_tokens};
}

static tsr_op_mul_mat experts_down_x(const tsr_op_experts_down *op)
{
    return (tsr_op_mul_mat){.type = op->down.type,
                            .x_bits = op->x_bits,
                            .k = op->k,
                            .x = op->x,
                            .x_stride = op->k,
                            .n_tokens = op->routing.n_tokens * op->routing.n_used,
                            .partial = op->reduce != TSR_REDUCE_BF16,
                            .reduce = op->reduce,
                            .granule = op->granule,
                            .limit = op->limit,
                            .y_stride = op->n_rows};
}

/* The product of rows [row, row + n_rows) of one expert's matrix with activations x, without tokens yet. */
static tsr_op_mul_mat experts_part(tsr_op_mul_mat x, const tsr_expert_matrix *m, int64_t expert, int64_t row,
                                   int64_t n_rows)
{
    x.type = m->type;
    x.w = (const unsigned char *)m->data + (size_t)expert * m->expert_stride + (size_t)row * m->row_stride;
    x.w_stride = m->row_stride;
    x.n_rows = n_rows;
    return x;
}

/* Some slots of one expert; the activations of the i-th are row rows[i] of x. */
typedef struct expert_slots {
    const int32_t *slots; /* [n] */
    int64_t n;
    int32_t rows[EXPERT_SLOTS];
} expert_slots;

/* Where activations are packed, use them in the product p with some of the rows of x. Tiles take any rows;
 * the path for few tokens takes a single row as if it were the first. */
static void experts_find_packed(product *p, const tsr_op_mul_mat *x)
{
    const product all = {.op = x, .env = p->env};
    unsigned char *packed = p->env->packed;
    const bool walks = mul_mat_is_vector(p);
    if (!packed || p->op->type != x->type || walks != mul_mat_is_vector(&all))
        return;
    p->n_packed = x->n_tokens;
    if (!walks)
        p->packed = packed;
    else if (p->op->n_tokens == 1)
        p->packed = packed + (size_t)(p->x_rows[0] * x->k / X_BLOCK) * sizeof(x_block);
}

/* Compute a product with some of the rows of x, all rows of the part. */
static void experts_product(product p, const tsr_op_mul_mat *x)
{
    p.row_end = p.op->n_rows;
    p.token_end = p.op->n_tokens;
    experts_find_packed(&p, x);
    mul_mat_begin(&p, p.env->scratch);
    mul_mat_product(&p, p.env->scratch);
}

/* out[i * EXPERT_ROWS + r] = row r of the part times slot i's activations, each one sum over k. */
static void experts_sums(tsr_op_mul_mat part, const tsr_op_mul_mat *x, const expert_slots *in, float *out,
                         const tsr_kernel_env *env)
{
    bool fault = false; /* stays false with f32 sums */
    part.n_tokens = in->n;
    part.partial = false;
    part.y = out;
    part.y_stride = EXPERT_ROWS;
    experts_product((product){.op = &part, .x_rows = in->rows, .fault = &fault, .env = env}, x);
}

/* The touched experts of `held`, as indices [begin, end) of routing->touched. */
static range touched_part(const tsr_routing *r, const tsr_expert_range *held)
{
    int64_t begin = 0, end = *r->n_touched;
    while (begin < end && r->touched[begin] < held->begin)
        begin++;
    while (end > begin && r->touched[end - 1] >= held->end)
        end--;
    return (range){begin, end};
}

/* Rows of a chunk, for `n` rows in all, about four chunks per thread. */
static int64_t expert_chunk(int64_t n, int n_threads)
{
    const int64_t even = n / ((int64_t)n_threads * 4) / EXPERT_LEAST_ROWS * EXPERT_LEAST_ROWS;
    return even < EXPERT_LEAST_ROWS ? EXPERT_LEAST_ROWS : even < EXPERT_ROWS ? even : EXPERT_ROWS;
}

/* The slots of an expert from its i-th on, a batch at most. Their activations are stored in x by slot, or
 * (divisor n_used) by token. */
static expert_slots expert_batch(const tsr_routing *r, int64_t expert, int64_t i, int64_t divisor)
{
    const int64_t left = r->begin[expert + 1] - r->begin[expert] - i;
    expert_slots in = {.slots = r->order + r->begin[expert] + i,
                       .n = left < EXPERT_SLOTS ? left : EXPERT_SLOTS};
    for (int64_t j = 0; j < in.n; j++)
        in.rows[j] = (int32_t)(in.slots[j] / divisor);
    return in;
}

/* Elements of an expert's bias from `row` on; NULL without a bias or where another device adds it. */
static const float *expert_bias_at(const tsr_expert_bias *bias, int64_t expert, int64_t row)
{
    if (!bias->data || expert < bias->held.begin || expert >= bias->held.end)
        return NULL;
    return bias->data + (expert - bias->held.begin) * bias->stride + row;
}

/* -- experts_glu -- */

/* Multiply the sums of each slot by the slot's weight, as if its activations had been. */
static void experts_weigh(const tsr_routing *r, const expert_slots *in, int64_t n_rows, float *sums)
{
    for (int64_t j = 0; j < in->n; j++)
        for (int64_t row = 0; row < n_rows; row++)
            sums[j * EXPERT_ROWS + row] *= r->weight[in->slots[j]];
}

/* Add the bias to the sums of n slots. */
static void experts_add_bias(const tsr_expert_bias *bias, int64_t expert, int64_t row, int64_t n_rows,
                             int64_t n, float *sums)
{
    const float *b = expert_bias_at(bias, expert, row);
    for (int64_t j = 0; b && j < n; j++)
        for (int64_t r = 0; r < n_rows; r++)
            sums[j * EXPERT_ROWS + r] += b[r];
}

static void experts_glu_chunk(const tsr_op_experts_glu *op, int64_t expert, int64_t row, int64_t n_rows,
                              const tsr_kernel_env *env)
{
    const bool gated = op->gate.data != op->up.data; /* otherwise both products are one */
    float *gate = ((experts_scratch *)env->scratch)->gate;
    float *up = gated ? ((experts_scratch *)env->scratch)->up : gate;
    const int64_t local = expert - op->held.begin;
    const tsr_op_mul_mat x = experts_glu_x(op);
    const tsr_op_mul_mat of_gate = experts_part(x, &op->gate, local, row, n_rows);
    const tsr_op_mul_mat of_up = experts_part(x, &op->up, local, row, n_rows);
    const int64_t n_slots = op->routing.begin[expert + 1] - op->routing.begin[expert];
    for (int64_t i = 0; i < n_slots; i += EXPERT_SLOTS) {
        const expert_slots in = expert_batch(&op->routing, expert, i, op->routing.n_used);
        experts_sums(of_gate, &x, &in, gate, env);
        if (op->routing.weigh_inputs)
            experts_weigh(&op->routing, &in, n_rows, gate);
        experts_add_bias(&op->gate_bias, expert, row, n_rows, in.n, gate);
        if (gated) {
            experts_sums(of_up, &x, &in, up, env);
            if (op->routing.weigh_inputs)
                experts_weigh(&op->routing, &in, n_rows, up);
            experts_add_bias(&op->up_bias, expert, row, n_rows, in.n, up);
        }
        for (int64_t j = 0; j < in.n; j++) {
            const tsr_op_glu glu = {.gate = gate + j * EXPERT_ROWS,
                                    .up = up + j * EXPERT_ROWS,
                                    .y = op->y + in.slots[j] * op->n_rows + row,
                                    .limit = op->limit};
            glu_part(op->kind, &glu, (range){0, n_rows});
        }
    }
}

static void kernel_experts_glu(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_experts_glu *op = &record->experts_glu;
    const range touched = touched_part(&op->routing, &op->held);
    const int64_t n_experts = touched.end - touched.begin;
    const int64_t chunk = expert_chunk(n_experts * op->n_rows, env->n_threads);
    const int64_t chunks = (op->n_rows + chunk - 1) / chunk;
    for (int64_t i; (i = tsr_kernel_next_piece(env, n_experts * chunks)) >= 0;) {
        const int64_t row = i % chunks * chunk, left = op->n_rows - row;
        experts_glu_chunk(op, op->routing.touched[touched.begin + i / chunks], row,
                          left < chunk ? left : chunk, env);
    }
}

/* -- experts_down -- */

/* The factor on the result of a slot's expert. */
static float experts_factor(const tsr_routing *r, int64_t slot)
{
    return r->weigh_inputs ? 1.0f : r->weight[slot];
}

/* Add weight * bias to the outputs of a batch. */
static void experts_down_bias(const product *p, const expert_slots *in, const float *bias)
{
    for (int64_t j = 0; j < in->n; j++)
        fold_weighted(p, p->weights[j], bias, (int)p->op->n_rows, p->y_rows[j] * p->op->y_stride);
}

/* Compute all tokens of one expert, granule by granule, then add its bias. */
static void experts_down_expert(const tsr_op_experts_down *op, int64_t expert, int64_t row, int64_t n_rows,
                                bool *fault, const tsr_kernel_env *env)
{
    const float *bias = expert_bias_at(&op->bias, expert, row);
    const int64_t n_slots = op->routing.begin[expert + 1] - op->routing.begin[expert];
    const tsr_op_mul_mat x = experts_down_x(op);
    tsr_op_mul_mat part = experts_part(x, &op->down, expert - op->held.begin, row, n_rows);
    part.y = (unsigned char *)op->y + (size_t)row * tsr_reduce_bytes(op->reduce);
    for (int64_t i = 0; i < n_slots; i += EXPERT_SLOTS) {
        const expert_slots in = expert_batch(&op->routing, expert, i, 1);
        int32_t tokens[EXPERT_SLOTS];
        float weights[EXPERT_SLOTS];
        for (int64_t j = 0; j < in.n; j++) {
            tokens[j] = (int32_t)(in.slots[j] / op->routing.n_used);
            weights[j] = experts_factor(&op->routing, in.slots[j]);
        }
        part.n_tokens = in.n;
        const product p = {
            .op = &part, .x_rows = in.rows, .y_rows = tokens, .weights = weights, .fault = fault, .env = env};
        if (op->k > 0)
            experts_product(p, &x);
        if (bias)
            experts_down_bias(&p, &in, bias);
    }
}

/* A bfloat16 output would be rounded between experts, so here a token's slots are computed one by one. */
static void experts_down_bf16(const tsr_op_experts_down *op, int64_t row, int64_t n_rows,
                              const tsr_kernel_env *env)
{
    const tsr_routing *routing = &op->routing;
    for (int64_t t = 0; t < routing->n_tokens; t++) {
        float sums[EXPERT_ROWS], total[EXPERT_ROWS] = {0};
        uint16_t *y = (uint16_t *)op->y + t * op->n_rows + row;
        for (int64_t r = 0; op->onto && r < n_rows; r++)
            total[r] = tsr_bf16_to_f32(y[r]);
        for (int32_t s = (int32_t)(t * routing->n_used); s < (t + 1) * routing->n_used; s++) {
            const int64_t expert = routing->expert[s];
            const expert_slots in = {.slots = &s, .n = 1, .rows = {s}};
            const tsr_op_mul_mat x = experts_down_x(op);
            if (expert < op->held.begin || expert >= op->held.end)
                continue;
            experts_sums(experts_part(x, &op->down, expert - op->held.begin, row, n_rows), &x, &in, sums,
                         env);
            const float *bias = expert_bias_at(&op->bias, expert, row);
            for (int64_t r = 0; r < n_rows; r++)
                total[r] += experts_factor(routing, s) * sums[r];
            for (int64_t r = 0; bias && r < n_rows; r++)
                total[r] += experts_factor(routing, s) * bias[r];
        }
        for (int64_t r = 0; r < n_rows; r++)
            y[r] = tsr_f32_to_bf16(total[r]);
    }
}

/* Threads divide the rows, since all experts add to the same outputs. */
static void kernel_experts_down(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_experts_down *op = &record->experts_down;
    const range touched = touched_part(&op->routing, &op->held);
    const int64_t chunk = expert_chunk(op->n_rows, env->n_threads);
    const size_t elem = tsr_reduce_bytes(op->reduce);
    bool fault = false;
    const int64_t chunks = (op->n_rows + chunk - 1) / chunk;
    for (int64_t piece; (piece = tsr_kernel_next_piece(env, chunks)) >= 0;) {
        const int64_t row = piece * chunk;
        const int64_t n_rows = op->n_rows - row < chunk ? op->n_rows - row : chunk;
        if (op->reduce == TSR_REDUCE_BF16) {
            experts_down_bf16(op, row, n_rows, env);
            continue;
        }
        for (int64_t t = 0; !op->onto && t < op->routing.n_tokens; t++)
            memset((char *)op->y + (size_t)(t * op->n_rows + row) * elem, 0, (size_t)n_rows * elem);
        for (int64_t i = touched.begin; i < touched.end; i++)
            experts_down_expert(op, op->routing.touched[i], row, n_rows, &fault, env);
    }
    if (fault)
        atomic_store_explicit(env->range_fault, 1, memory_order_relaxed);
}

#endif
