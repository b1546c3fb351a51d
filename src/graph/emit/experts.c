/* Op records of a mixture of experts: each device's part of each matrix, and the start of its shards. */
#include "core/quant/fixed.h"
#include "graph/emit/emit.h"

static tsr_routing routing_at(const tsr_emission *e, int value, int64_t n_tokens)
{
    const tsr_node_args *args = e->instr->args;
    tsr_routing routing =
        tsr_routing_at(tsr_emit_address(e->emitter, value, e->d), n_tokens, args->n_used, args->n_experts);
    routing.weigh_inputs = args->weigh_inputs;
    return routing;
}

bool tsr_emit_route(const tsr_emission *e, tsr_op *op)
{
    int64_t n_tokens = tsr_emit_in_value(e, 0)->ne1;
    const tsr_routing_config *rule = &e->instr->args->route;
    op->route = (tsr_op_route){.logits = tsr_emit_in(e, 0),
                               .bias = rule->bias ? rule->bias->shards[e->d].data : NULL,
                               .routing = routing_at(e, e->instr->out, n_tokens),
                               .gating = rule->gating,
                               .normalize = rule->normalize,
                               .scale = rule->scale,
                               .factors = rule->factors ? rule->factors->shards[e->d].data : NULL,
                               .n_groups = rule->n_groups,
                               .n_groups_used = rule->n_groups_used,
                               .table = rule->table ? rule->table->shards[e->d].data : NULL,
                               .ids = rule->table ? tsr_emit_in(e, 1) : NULL,
                               .n_ids = rule->table ? tsr_tensor_rows(rule->table) : 0};
    return n_tokens > 0;
}

/* The experts of a device: all of them, or a range of whole experts. */
static tsr_expert_range held(const tsr_emission *e)
{
    const tsr_placement *down = &e->instr->args->experts.down->placement;
    if (down->axis == 0)
        return (tsr_expert_range){0, e->instr->args->n_experts};
    int64_t first = tsr_shard_map_first(down->map, e->d);
    return (tsr_expert_range){first, first + tsr_shard_map_count(down->map, e->d)};
}

/* A matrix whose rows have `k` elements, `n_rows` of them per expert. A row of a shard is either one such
 * row or a whole expert. In a view of a file with a tensor per expert, experts need not be adjacent. */
static tsr_expert_matrix matrix(const tsr_emission *e, const tsr_tensor *w, int64_t k, int64_t n_rows)
{
    const tsr_shard *shard = &w->shards[e->d];
    bool rows = w->ne[0] == k;
    size_t row_stride = rows ? shard->row_stride : tsr_type_row_bytes(w->type, k);
    return (tsr_expert_matrix){.type = w->type,
                               .data = shard->data,
                               .row_stride = row_stride,
                               .expert_stride = !rows                    ? shard->row_stride
                                                : shard->part_stride > 0 ? shard->part_stride
                                                                         : row_stride * (size_t)n_rows};
}

/* `held`: the experts whose biases are in the shard. */
static tsr_expert_bias bias_of(const tsr_emission *e, const tsr_tensor *b, tsr_expert_range held)
{
    if (!b || held.begin >= held.end)
        return (tsr_expert_bias){.data = NULL};
    const tsr_shard *shard = &b->shards[e->d];
    return (tsr_expert_bias){
        .data = shard->data, .stride = (int64_t)(shard->row_stride / sizeof(float)), .held = held};
}

/* Biases of down are divided by experts. */
static tsr_expert_bias bias_of_down(const tsr_emission *e, const tsr_tensor *b)
{
    int64_t first = b ? tsr_shard_map_first(b->placement.map, e->d) : 0;
    int64_t n = b ? tsr_shard_map_count(b->placement.map, e->d) : 0;
    return bias_of(e, b, (tsr_expert_range){first, first + n});
}

bool tsr_emit_experts_glu(const tsr_emission *e, tsr_op *op)
{
    const tsr_node_args *args = e->instr->args;
    const tsr_value *x = tsr_emit_in_value(e, 0);
    tsr_op_experts_glu *a = &op->experts_glu;
    *a = (tsr_op_experts_glu){.kind = args->experts.glu,
                              .limit = args->experts.limit,
                              .x_bits = e->emitter->x_bits,
                              .held = held(e),
                              .n_rows = tsr_value_cols(e->out, e->d),
                              .k = x->ne0,
                              .routing = routing_at(e, e->instr->in[1], x->ne1),
                              .x = tsr_emit_in(e, 0),
                              .y = tsr_emit_address(e->emitter, e->instr->out, e->d)};
    a->gate = matrix(e, args->experts.gate, a->k, args->n_ff);
    a->up = matrix(e, args->experts.up, a->k, args->n_ff);
    a->gate_bias = bias_of(e, args->experts.gate_bias, a->held);
    a->up_bias = bias_of(e, args->experts.up_bias, a->held);
    return x->ne1 > 0 && a->n_rows > 0 && a->held.end > a->held.begin;
}

bool tsr_emit_experts_down(const tsr_emission *e, tsr_op *op)
{
    const tsr_node_args *args = e->instr->args;
    const tsr_experts_config *w = &args->experts;
    const tsr_value *x = tsr_emit_in_value(e, 0);
    bool onto =
        e->instr->n_in > 2 && tsr_device_set_has(e->emitter->low->values[e->instr->in[2]].contributors, e->d);
    const int64_t granule = tsr_experts_granule(args);
    int64_t n_parts = (args->n_ff + granule - 1) / granule + (w->down_bias != NULL);
    tsr_op_experts_down *a = &op->experts_down;
    *a = (tsr_op_experts_down){.x_bits = e->emitter->x_bits,
                               .down = matrix(e, w->down, args->n_ff, e->out->ne0),
                               .bias = bias_of_down(e, w->down_bias),
                               .held = held(e),
                               .n_rows = e->out->ne0,
                               .k = tsr_value_cols(x, e->d),
                               .routing = routing_at(e, e->instr->in[1], e->out->ne1),
                               .x = tsr_emit_in(e, 0),
                               .reduce = e->emitter->reduce,
                               .granule = granule,
                               .limit = tsr_fixed_limit(n_parts * args->n_used),
                               .onto = onto,
                               .y = tsr_emit_address(e->emitter, e->instr->out, e->d)};
    return e->out->ne1 > 0 && a->k > 0 && a->held.end > a->held.begin;
}
