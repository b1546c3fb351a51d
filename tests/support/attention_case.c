/* See attention_case.h. */
#include "support/attention_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void attention_case_layout(attention_case *c, attention_setup s, int n_sequences, int64_t max_positions)
{
    tsr_kv_view *kv = &c->kv;
    const size_t rows = (size_t)(s.kv_heads * s.page_tokens);
    c->s = s;
    c->n_sequences = n_sequences;
    assert_true(s.kv_heads * s.group <= ATTENTION_MAX_HEADS);
    for (int64_t i = 0; i < s.kv_heads * s.group; i++)
        c->sinks[i] = (float)(i % 5) * 4 - 8;
    kv->type_k = s.type_k, kv->type_v = s.type_v;
    kv->n_heads = s.kv_heads, kv->page_tokens = s.page_tokens, kv->ratio = s.ratio;
    kv->k_dim = s.head_dim, kv->v_dim = s.value_dim ? s.value_dim : s.head_dim, kv->v_in_k = s.v_in_k;
    kv->k_row_bytes = tsr_type_row_bytes(kv->type_k, kv->k_dim);
    kv->v_row_bytes = s.v_in_k ? kv->k_row_bytes : tsr_type_row_bytes(kv->type_v, kv->v_dim);
    kv->k_offset = 0;
    kv->v_offset = s.v_in_k ? 0 : rows * kv->k_row_bytes;
    kv->page_bytes = rows * (kv->k_row_bytes + (s.v_in_k ? 0 : kv->v_row_bytes));
    c->pages_per_sequence = (max_positions + s.page_tokens - 1) / s.page_tokens;
    const int64_t pages = n_sequences * c->pages_per_sequence;
    c->bytes = (size_t)pages * kv->page_bytes;
    c->page_table = calloc((size_t)pages, sizeof(int32_t));
    for (int64_t i = 0; i < pages; i++)
        c->page_table[i] = (int32_t)(pages - 1 - (i % n_sequences) * c->pages_per_sequence - i / n_sequences);
}

void attention_case_batch(attention_case *c, int64_t past, int64_t n)
{
    c->n_tokens = 0;
    for (int row = 0; row < c->n_sequences; row++)
        for (int64_t i = 0; i < n; i++, c->n_tokens++) {
            c->seq_row[c->n_tokens] = row;
            c->position[c->n_tokens] = (int32_t)(past + i);
        }
}

int64_t attention_case_widest(const attention_case *c)
{
    return c->kv.k_dim > c->kv.v_dim ? c->kv.k_dim : c->kv.v_dim;
}

int64_t attention_case_kv_floats(const attention_case *c)
{
    return c->n_tokens * c->s.kv_heads * attention_case_widest(c);
}

int64_t attention_case_q_floats(const attention_case *c)
{
    return c->s.kv_heads * c->s.group * c->kv.k_dim;
}

int64_t attention_case_y_floats(const attention_case *c)
{
    return c->s.kv_heads * c->s.group * c->kv.v_dim;
}

const unsigned char *attention_case_at(const attention_case *c, bool value, int64_t row, int64_t position,
                                       int64_t head)
{
    const tsr_kv_view *kv = &c->kv;
    const int64_t page = c->page_table[row * c->pages_per_sequence + position / kv->page_tokens];
    const int64_t slot = head * kv->page_tokens + position % kv->page_tokens;
    return c->cache + (size_t)page * kv->page_bytes +
           (value ? kv->v_offset + (size_t)slot * kv->v_row_bytes : (size_t)slot * kv->k_row_bytes);
}

void attention_case_get(const attention_case *c, bool value, int64_t row, int64_t position, int64_t head,
                        float *out)
{
    assert_int_equal(tsr_type_to_f32(value ? c->kv.type_v : c->kv.type_k,
                                     attention_case_at(c, value, row, position, head), out,
                                     value ? c->kv.v_dim : c->kv.k_dim),
                     TSR_OK);
}

tsr_op attention_case_op(const attention_case *c, tsr_kv_index index, const float *q, float *y)
{
    return (tsr_op){.kind = TSR_OP_ATTENTION,
                    .attention = {.kv = c->kv,
                                  .index = index,
                                  .q = q,
                                  .y = y,
                                  .n_tokens = c->n_tokens,
                                  .n_heads = c->s.kv_heads * c->s.group,
                                  .scale = 1.0f / sqrtf((float)c->s.head_dim),
                                  .softcap = c->s.softcap,
                                  .window = c->s.window,
                                  .chunked = c->s.chunked,
                                  .sinks = c->s.sinks ? c->sinks : NULL,
                                  .selected = c->selected}};
}

static int64_t first_seen(const attention_case *c, int64_t position)
{
    if (c->s.window == 0)
        return 0;
    if (c->s.chunked)
        return position - position % c->s.window;
    return position + 1 > c->s.window ? position + 1 - c->s.window : 0;
}

static bool is_seen(const attention_case *c, int64_t t, int64_t head, int64_t position)
{
    const tsr_selection *s = &c->selected;
    if (!s->blocks)
        return true;
    const int64_t list = t * s->n_lists + (s->n_lists > 1 ? head / c->s.group : 0);
    for (int64_t i = 0; i < s->n_blocks; i++)
        if (s->blocks[list * s->n_blocks + i] == position / s->block)
            return true;
    return false;
}

/* What a softmax over keys has so far: the top score, the sum of the weights, the weighted sum of values. */
typedef struct exact_sum {
    double top, sum, out[1024];
} exact_sum;

static void add_key(exact_sum *s, double score, const float *value, int64_t n)
{
    const double top = fmax(s->top, score), keep = exp(s->top - top), weight = exp(score - top);
    for (int64_t i = 0; i < n; i++)
        s->out[i] = s->out[i] * keep + weight * (double)value[i];
    s->sum = s->sum * keep + weight;
    s->top = top;
}

/* The keys of `part` that one head of one token of c sees. */
static void add_keys(const attention_case *c, const attention_case *part, int64_t t, int64_t head,
                     exact_sum *s)
{
    const int64_t dim = part->kv.k_dim, n = tsr_kv_seen(&part->kv, c->position[t]);
    const float *q = c->q + (t * c->s.kv_heads * c->s.group + head) * dim;
    float row[1024];
    for (int64_t p = first_seen(part, c->position[t]); p < n; p++) {
        double score = 0;
        if (!is_seen(part, t, head, p))
            continue;
        attention_case_get(part, false, c->seq_row[t], p, head / c->s.group, row);
        for (int64_t i = 0; i < dim; i++)
            score += (double)q[i] * (double)row[i];
        score /= sqrt((double)dim);
        if (c->s.softcap > 0)
            score = (double)c->s.softcap * tanh(score / (double)c->s.softcap);
        attention_case_get(part, true, c->seq_row[t], p, head / c->s.group, row);
        add_key(s, score, row, part->kv.v_dim);
    }
}

/* Softmax of one head of one token, straight from the definition. */
static void attention_exact(const attention_case *c, int64_t t, int64_t head, double *out)
{
    exact_sum s = {.top = -INFINITY};
    add_keys(c, c, t, head, &s);
    if (c->more)
        add_keys(c, c->more, t, head, &s);
    for (int64_t i = 0; i < c->kv.v_dim; i++)
        out[i] = s.out[i] / (s.sum + (c->s.sinks ? exp((double)c->sinks[head] - s.top) : 0));
}

void attention_case_check(const attention_case *c, const float *y, double floor)
{
    const int64_t dim = c->kv.v_dim, heads = c->s.kv_heads * c->s.group;
    const double bound = floor + 6e-7 * sqrt((double)c->kv.k_dim);
    double exact[1024];
    for (int64_t t = 0; t < c->n_tokens; t++)
        for (int64_t head = 0; head < heads; head++) {
            attention_exact(c, t, head, exact);
            for (int64_t i = 0; i < dim; i++) {
                const double got = (double)y[(t * heads + head) * dim + i];
                if (!(fabs(got - exact[i]) <= bound))
                    fail_msg("token %d head %d element %d: %.9g, exact %.9g, bound %.3g", (int)t, (int)head,
                             (int)i, got, exact[i], bound);
            }
        }
}
