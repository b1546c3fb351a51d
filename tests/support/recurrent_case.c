#include "support/recurrent_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/kernel_exact.h"
#include "support/kernel_run.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void add_array(recurrent_case *c, const float **field, int64_t n, float low, float high)
{
    uint64_t seed = (uint64_t)c->n_arrays + 1;
    float *x = guarded_alloc((size_t)n * sizeof *x);
    random_fill(&seed, x, n, low, high);
    *field = x;
    c->arrays[c->n_arrays++] = (recurrent_array){field, n};
}

/* Tokens 0, 3, 6, ... belong to sequence 1, the others to sequence 0. */
static int seq_of(int64_t t)
{
    return t % 3 == 0;
}

/* The index of the batch, and slots with states where `read` says so, NaNs elsewhere. */
static void add_states(recurrent_case *c, int64_t n_tokens)
{
    uint64_t seed = 99;
    int32_t last[RECURRENT_SEQS] = {-1, -1};
    c->next = guarded_alloc((size_t)n_tokens * sizeof *c->next);
    c->rows[0] = (tsr_state_row){-1, 1, -1};
    c->rows[1] = (tsr_state_row){4, 2, -1};
    c->rows[2] = (tsr_state_row){-1, -1, -1};
    for (int32_t t = 0; t < n_tokens; t++) {
        int s = seq_of(t);
        c->next[t] = -1;
        if (last[s] < 0)
            c->rows[s].first = t;
        else
            c->next[last[s]] = t;
        last[s] = t;
    }
    size_t n = (size_t)(RECURRENT_SLOTS * c->slot_elems);
    c->slots = guarded_alloc(n * sizeof *c->slots);
    random_fill(&seed, c->slots + 4 * c->slot_elems, c->slot_elems, -1, 1);
    c->exact_slots = calloc(n, sizeof *c->exact_slots);
    c->exact_y = malloc((size_t)c->n_y * sizeof *c->exact_y);
    for (int64_t i = 0; i < c->n_y; i++)
        c->exact_y[i] = NAN;
    c->y = guarded_alloc((size_t)c->n_y * sizeof *c->y);
    for (int64_t i = 0; i < c->slot_elems; i++)
        c->exact_slots[2 * c->slot_elems + i] = (double)c->slots[4 * c->slot_elems + i];
}

/* The state of token t's sequence, which the exact computation keeps in the slot that is written. */
static double *exact_state(const recurrent_case *c, int64_t t)
{
    return c->exact_slots + c->rows[seq_of(t)].write * c->slot_elems;
}

void recurrent_case_conv(recurrent_case *c, conv_setup s)
{
    tsr_op_conv *op = &c->op.conv;
    *c = (recurrent_case){
        .op.kind = TSR_OP_CONV, .n_y = s.n_tokens * (s.n + s.gap), .slot_elems = s.n * (s.kernel - 1)};
    add_array(c, &op->x, s.n_tokens * (s.n + s.gap), -2, 2);
    add_array(c, &op->w, s.n * s.kernel, -1, 1);
    if (s.biased)
        add_array(c, &op->bias, s.n, -1, 1);
    add_states(c, s.n_tokens);
    op->state = (tsr_state_view){c->slots, c->slot_elems};
    op->index = (tsr_state_index){c->rows, RECURRENT_ROWS, c->next};
    op->y = c->y;
    op->n_tokens = s.n_tokens;
    op->n = s.n;
    op->kernel = s.kernel;
    op->stride = s.n + s.gap;
    op->silu = s.silu;
    for (int64_t t = 0; t < s.n_tokens; t++)
        for (int64_t i = 0; i < s.n; i++) {
            double *kept = exact_state(c, t) + i * (s.kernel - 1), x = (double)op->x[t * op->stride + i];
            double sum = op->bias ? (double)op->bias[i] : 0;
            for (int64_t k = 0; k + 1 < s.kernel; k++)
                sum += (double)op->w[i * s.kernel + k] * kept[k];
            sum += (double)op->w[i * s.kernel + s.kernel - 1] * x;
            for (int64_t k = 0; k + 2 < s.kernel; k++)
                kept[k] = kept[k + 1];
            if (s.kernel > 1)
                kept[s.kernel - 2] = x;
            c->exact_y[t * op->stride + i] = s.silu ? sum * sigmoid(sum) : sum;
        }
}

static double unit(const float *x, int64_t n, double eps)
{
    double squares = eps;
    for (int64_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    return 1 / sqrt(squares);
}

/* One token of one head, by the formulas of the definition. */
static void exact_recurrence(const recurrent_case *c, int64_t t, int64_t h)
{
    const tsr_op_recurrence *op = &c->op.recurrence;
    int64_t dk = op->dk, dv = op->dv, at = t * op->heads_stride + h;
    int64_t key_head = (op->first_head + h) / op->group;
    const float *q = op->q + (t * op->n_key_heads + key_head) * dk;
    const float *k = op->k + (t * op->n_key_heads + key_head) * dk;
    double of_q = (double)op->scale * unit(q, dk, (double)op->eps), of_k = unit(k, dk, (double)op->eps);
    double *state = exact_state(c, t) + h * dk * dv;
    for (int64_t i = 0; i < dk; i++) {
        int64_t d = op->n_decay > 1 ? i : 0;
        double x = (double)op->alpha[at * op->n_decay + d] + (double)op->dt_bias[h * op->n_decay + d];
        for (int64_t j = 0; j < dv; j++)
            state[i * dv + j] *= exp((double)op->a[h] * log1p(exp(x)));
    }
    for (int64_t j = 0; j < dv; j++) {
        double u = (double)op->v[at * dv + j], y = 0;
        for (int64_t i = 0; i < dk; i++)
            u -= state[i * dv + j] * of_k * (double)k[i];
        u *= sigmoid((double)op->beta[at]);
        for (int64_t i = 0; i < dk; i++) {
            state[i * dv + j] += of_k * (double)k[i] * u;
            y += state[i * dv + j] * of_q * (double)q[i];
        }
        c->exact_y[at * dv + j] = y;
    }
}

static void exact_mamba(const recurrent_case *c, int64_t t, int64_t h)
{
    const tsr_op_recurrence *op = &c->op.recurrence;
    int64_t dk = op->dk, dv = op->dv, at = t * op->heads_stride + h;
    int64_t key = (t * op->n_key_heads + (op->first_head + h) / op->group) * dk;
    double dt = log1p(exp((double)op->alpha[at] + (double)op->dt_bias[h]));
    double *state = exact_state(c, t) + h * dk * dv;
    for (int64_t j = 0; j < dv; j++) {
        double v = (double)op->v[at * dv + j], y = (double)op->skip[h] * v;
        for (int64_t i = 0; i < dk; i++) {
            double *s = &state[i * dv + j];
            *s = exp((double)op->a[h] * dt) * *s + dt * (double)op->k[key + i] * v;
            y += *s * (double)op->q[key + i];
        }
        c->exact_y[at * dv + j] = y;
    }
}

static void add_recurrence_arrays(recurrent_case *c, const recurrence_setup *s, int64_t n_decay)
{
    tsr_op_recurrence *op = &c->op.recurrence;
    const bool mamba = s->rule == TSR_RECURRENCE_MAMBA;
    const int64_t n_keys = s->n_tokens * s->n_key_heads * s->dk,
                  n_heads = s->n_tokens * (s->n_heads + s->gap);
    add_array(c, &op->q, n_keys, mamba ? -0.2f : -2, mamba ? 0.2f : 2);
    add_array(c, &op->k, n_keys, mamba ? -0.2f : -2, mamba ? 0.2f : 2);
    add_array(c, &op->v, n_heads * s->dv, -2, 2);
    add_array(c, &op->alpha, n_heads * n_decay, -9, 3);
    if (mamba)
        add_array(c, &op->skip, s->n_heads, -1, 1);
    else
        add_array(c, &op->beta, n_heads, -5, 5);
    add_array(c, &op->a, s->n_heads, -2, 0);
    add_array(c, &op->dt_bias, s->n_heads * n_decay, -3, 1);
}

void recurrent_case_recurrence(recurrent_case *c, recurrence_setup s)
{
    tsr_op_recurrence *op = &c->op.recurrence;
    int64_t n_decay = s.by_row ? s.dk : 1;
    *c = (recurrent_case){.op.kind = TSR_OP_RECURRENCE,
                          .n_y = s.n_tokens * (s.n_heads + s.gap) * s.dv,
                          .slot_elems = s.n_heads * s.dk * s.dv};
    add_recurrence_arrays(c, &s, n_decay);
    add_states(c, s.n_tokens);
    op->state = (tsr_state_view){c->slots, c->slot_elems};
    op->index = (tsr_state_index){c->rows, RECURRENT_ROWS, c->next};
    op->y = c->y;
    op->n_tokens = s.n_tokens;
    op->n_heads = s.n_heads;
    op->n_key_heads = s.n_key_heads;
    op->dk = s.dk;
    op->dv = s.dv;
    op->n_decay = n_decay;
    op->group = s.group > 0 ? s.group : s.n_heads / s.n_key_heads;
    op->first_head = s.first_head;
    op->rule = s.rule;
    op->heads_stride = s.n_heads + s.gap;
    op->eps = 1e-6f;
    op->scale = 1 / sqrtf((float)s.dk);
    for (int64_t t = 0; t < s.n_tokens; t++)
        for (int64_t h = 0; h < s.n_heads; h++)
            (s.rule == TSR_RECURRENCE_MAMBA ? exact_mamba : exact_recurrence)(c, t, h);
}

/* The online softmax of one token: three numbers of every channel. */
static void exact_compress(double *state, int64_t n, double gate, double x)
{
    const double top = fmax(state[0], gate), keep = exp(state[0] - top), weight = exp(gate - top);
    state[n] = state[n] * keep + weight;
    state[2 * n] = state[2 * n] * keep + weight * x;
    state[0] = top;
}

static void exact_compress_token(const recurrent_case *c, int64_t t, int64_t i)
{
    const tsr_op_compress *op = &c->op.compress;
    const int64_t n = op->n, width = op->overlap ? 2 * n : n, second = width - n;
    const int64_t j = op->position[t] % op->ratio;
    double *open = exact_state(c, t) + i, *next = open + 3 * n;
    for (int k = 0; k < 3 && j == 0; k++) {
        const double none = k == 0 ? -INFINITY : 0;
        open[k * n] = op->overlap && op->position[t] >= op->ratio ? next[k * n] : none;
        if (op->overlap)
            next[k * n] = none;
    }
    for (int half = op->overlap ? 0 : 1; half < 2; half++) {
        const int64_t at = i + (half ? second : 0);
        exact_compress(half ? open : next, n, (double)(op->gate[t * width + at] + op->bias[j * width + at]),
                       (double)op->x[t * width + at]);
    }
    c->exact_y[t * n + i] = j + 1 == op->ratio ? open[2 * n] / open[n] : 0;
}

/* Sequence 1 goes on in the middle of its third group: the sums of its weights are positive. */
void recurrent_case_compress(recurrent_case *c, compress_setup s)
{
    tsr_op_compress *op = &c->op.compress;
    const int64_t halves = s.overlap ? 2 : 1, width = halves * s.n;
    int32_t next[RECURRENT_SEQS] = {0, (int32_t)(2 * s.ratio + 1)};
    *c =
        (recurrent_case){.op.kind = TSR_OP_COMPRESS, .n_y = s.n_tokens * s.n, .slot_elems = 3 * halves * s.n};
    add_array(c, &op->x, s.n_tokens * width, -2, 2);
    add_array(c, &op->gate, s.n_tokens * width, -4, 4);
    add_array(c, &op->bias, s.ratio * width, -1, 1);
    add_states(c, s.n_tokens);
    for (int64_t i = 0; i < c->slot_elems; i++)
        if (i / s.n % 3 == 1) {
            c->slots[4 * c->slot_elems + i] += 2;
            c->exact_slots[2 * c->slot_elems + i] = (double)c->slots[4 * c->slot_elems + i];
        }
    c->position = guarded_alloc((size_t)s.n_tokens * sizeof *c->position);
    for (int64_t t = 0; t < s.n_tokens; t++)
        c->position[t] = next[seq_of(t)]++;
    op->state = (tsr_state_view){c->slots, c->slot_elems};
    op->index = (tsr_state_index){c->rows, RECURRENT_ROWS, c->next};
    op->position = c->position;
    op->y = c->y;
    op->n_tokens = s.n_tokens;
    op->n = s.n;
    op->ratio = s.ratio;
    op->overlap = s.overlap;
    for (int64_t t = 0; t < s.n_tokens; t++)
        for (int64_t i = 0; i < s.n; i++)
            exact_compress_token(c, t, i);
}

tsr_state_view *recurrent_case_state(tsr_op *op)
{
    return op->kind == TSR_OP_CONV       ? &op->conv.state
           : op->kind == TSR_OP_COMPRESS ? &op->compress.state
                                         : &op->recurrence.state;
}

tsr_state_index *recurrent_case_index(tsr_op *op)
{
    return op->kind == TSR_OP_CONV       ? &op->conv.index
           : op->kind == TSR_OP_COMPRESS ? &op->compress.index
                                         : &op->recurrence.index;
}

float **recurrent_case_y(tsr_op *op)
{
    return op->kind == TSR_OP_CONV       ? &op->conv.y
           : op->kind == TSR_OP_COMPRESS ? &op->compress.y
                                         : &op->recurrence.y;
}

static int64_t n_tokens_of(const tsr_op *op)
{
    return op->kind == TSR_OP_CONV       ? op->conv.n_tokens
           : op->kind == TSR_OP_COMPRESS ? op->compress.n_tokens
                                         : op->recurrence.n_tokens;
}

void recurrent_case_destroy(recurrent_case *c)
{
    const size_t n_tokens = (size_t)n_tokens_of(&c->op);
    for (int i = 0; i < c->n_arrays; i++)
        guarded_free((void *)(uintptr_t)*c->arrays[i].field, (size_t)c->arrays[i].n * sizeof(float));
    guarded_free(c->slots, (size_t)(RECURRENT_SLOTS * c->slot_elems) * sizeof *c->slots);
    guarded_free(c->y, (size_t)c->n_y * sizeof *c->y);
    guarded_free(c->next, n_tokens * sizeof *c->next);
    if (c->position)
        guarded_free(c->position, n_tokens * sizeof *c->position);
    free(c->exact_slots);
    free(c->exact_y);
}

/* The largest gate of no token is -infinity. */
static void check_state(double got, double exact)
{
    if (isinf(exact))
        assert_true(got == exact);
    else
        check_near(got, exact, 4e-6, 4e-6);
}

void recurrent_case_check(const recurrent_case *c, const float *y, const float *slots)
{
    for (int64_t i = 0; i < c->n_y; i++)
        if (!isnan(c->exact_y[i]))
            check_near((double)y[i], c->exact_y[i], 4e-6, 4e-6);
        else
            assert_true(isnan(y[i])); /* of others */
    for (int s = 0; s < RECURRENT_SEQS; s++)
        for (int64_t i = 0; i < c->slot_elems && c->rows[s].first >= 0; i++)
            check_state((double)slots[c->rows[s].write * c->slot_elems + i],
                        c->exact_slots[c->rows[s].write * c->slot_elems + i]);
}
