/* Op records with the states of sequences, and of columns that repeat or are joined; like emit.c. */
#include "alloc/kv/kv.h"
#include "graph/emit/emit.h"

/* Each period is a row of the copy. */
bool tsr_emit_columns(const tsr_emission *e, tsr_op *op)
{
    const tsr_columns *c = &e->instr->args->columns;
    const float *x = tsr_emit_in(e, 0);
    op->copy =
        (tsr_op_copy){.x = x ? x + c->first : NULL,
                      .x_stride = c->period,
                      .dst_type = TSR_TYPE_F32,
                      .y = tsr_emit_out(e),
                      .y_stride = (size_t)c->n * sizeof(float),
                      .n = c->n,
                      .n_rows = tsr_value_cols(tsr_emit_in_value(e, 0), e->d) / c->period * e->out->ne1};
    return op->copy.n_rows > 0;
}

/* The instruction's operand: a head of a token is a row of the copy. */
bool tsr_emit_concat(const tsr_emission *e, tsr_op *op)
{
    const int64_t n_heads = e->instr->args->n_heads, n_joined = e->out->ne0 / n_heads;
    const tsr_value *x = tsr_emit_in_value(e, e->instr->part);
    float *y = tsr_emit_out(e);
    for (int k = 0; y && k < e->instr->part; k++)
        y += tsr_emit_in_value(e, k)->ne0 / n_heads;
    op->copy = (tsr_op_copy){.x = tsr_emit_in(e, e->instr->part),
                             .x_stride = x->ne0 / n_heads,
                             .dst_type = TSR_TYPE_F32,
                             .y = y,
                             .y_stride = (size_t)n_joined * sizeof(float),
                             .n = x->ne0 / n_heads,
                             .n_rows = tsr_value_cols(e->out, e->d) / n_joined * e->out->ne1};
    return op->copy.n_rows > 0;
}

tsr_state_index tsr_emit_state_index(const tsr_emission *e, int first)
{
    return (tsr_state_index){.rows = tsr_emit_in(e, first),
                             .n_rows = tsr_emit_in_value(e, first)->ne1,
                             .next = tsr_emit_in(e, first + 1)};
}

tsr_state_view tsr_emit_state_view(const tsr_emission *e)
{
    const tsr_state_part *part = &e->instr->args->state;
    tsr_state_view view;
    tsr_kv_state_view_of(part->kv, e->d, part->layer, part->part + e->instr->part, &view);
    return view;
}

/* The instruction's part of a value, of n columns on this device. */
static float *part_of(const tsr_emission *e, void *value, int64_t n)
{
    return value ? (float *)value + e->instr->part * n : NULL;
}

/* What a device needs of a vector with `per` elements for every `per_value` elements of the result; NULL: no
 * vector. */
static const float *vector_here(const tsr_emission *e, const tsr_tensor *w, int64_t per, int64_t per_value)
{
    const float *data = w ? w->shards[e->d].data : NULL;
    const bool all = w && w->placement.sharding == TSR_SHARDING_REPLICATED;
    return data && all && e->out->sharding == TSR_SHARDING_SPLIT
               ? data + tsr_shard_map_first(e->out->map, e->d) / per_value * per
               : data;
}

bool tsr_emit_conv(const tsr_emission *e, tsr_op *op)
{
    const tsr_node_args *args = e->instr->args;
    const tsr_tensor *weight = e->instr->weight;
    const int64_t n = tsr_value_cols(e->out, e->d);
    op->conv = (tsr_op_conv){.state = tsr_emit_state_view(e),
                             .index = tsr_emit_state_index(e, 1),
                             .x = part_of(e, tsr_emit_in(e, 0), n),
                             .w = weight->shards[e->d].data,
                             .bias = vector_here(e, args->bias, 1, 1),
                             .y = part_of(e, tsr_emit_out(e), n),
                             .n_tokens = e->out->ne1 / args->parts.n,
                             .n = n,
                             .kernel = weight->ne[0],
                             .stride = args->parts.n * n,
                             .silu = args->silu};
    return op->conv.n > 0 && op->conv.n_tokens > 0;
}

bool tsr_emit_recurrence(const tsr_emission *e, tsr_op *op)
{
    const tsr_recurrence_operands *o = &e->instr->args->recurrence;
    const int64_t dk = o->q->ne[0] / o->n_key_heads, dv = o->v->ne[0] / o->n_heads;
    const int64_t n_heads = tsr_value_cols(e->out, e->d) / dv, n_decay = o->alpha->ne[0] / o->n_heads;
    const bool whole_keys = tsr_recurrence_keys_are_whole(tsr_emit_in_value(e, 0), e->out);
    op->recurrence =
        (tsr_op_recurrence){.state = tsr_emit_state_view(e),
                            .index = tsr_emit_state_index(e, 4),
                            .q = tsr_emit_in(e, 0),
                            .k = tsr_emit_in(e, 1),
                            .v = part_of(e, tsr_emit_in(e, 2), n_heads * dv),
                            .alpha = part_of(e, tsr_emit_in(e, 3), n_heads * n_decay),
                            .beta = o->beta ? part_of(e, tsr_emit_in(e, 6), n_heads) : NULL,
                            .a = vector_here(e, o->a.at[e->instr->part], 1, dv),
                            .dt_bias = vector_here(e, o->dt_bias.at[e->instr->part], n_decay, dv),
                            .y = part_of(e, tsr_emit_out(e), n_heads * dv),
                            .n_tokens = e->out->ne1 / o->a.n,
                            .n_heads = n_heads,
                            .n_key_heads = tsr_value_cols(tsr_emit_in_value(e, 0), e->d) / dk,
                            .dk = dk,
                            .dv = dv,
                            .heads_stride = o->a.n * n_heads,
                            .n_decay = n_decay,
                            .eps = o->eps,
                            .scale = e->instr->args->factor,
                            .group = o->n_heads / o->n_key_heads,
                            .first_head = whole_keys ? tsr_shard_map_first(e->out->map, e->d) / dv : 0,
                            .rule = o->skip ? TSR_RECURRENCE_MAMBA : TSR_RECURRENCE_DELTA,
                            .skip = vector_here(e, o->skip, 1, dv)};
    return op->recurrence.n_heads > 0 && op->recurrence.n_tokens > 0;
}
