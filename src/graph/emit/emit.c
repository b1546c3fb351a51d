/* From a laid-out graph to op records with addresses: one function per kind of op, each a transcription of
 * shapes. An op with an empty local output is omitted, but a device with an empty part still takes part in
 * collectives. */
#include "graph/emit/emit.h"

#include "alloc/kv/kv.h"
#include "core/quant/fixed.h"
#include "core/mem.h"

static const tsr_value *value_at(const tsr_emitter *emitter, int index)
{
    return &emitter->low->values[index];
}

static unsigned char *workspace(const tsr_emitter *emitter, int d, size_t offset)
{
    unsigned char *base = emitter->memory->devices[d].comm;
    return base ? base + offset : NULL;
}

/* The layout of the workspace. Programs of several lanes are in flight together and divide it alike. */
static const tsr_layout *workspace_layout(const tsr_emitter *emitter)
{
    const tsr_layout *reserved = &emitter->memory->layout;
    return reserved->n_lanes > 1 ? reserved : emitter->layout;
}

/* The inputs of the program's lane. */
static unsigned char *inputs_of(const tsr_emitter *emitter, int d)
{
    const tsr_item *item = &emitter->layout->devices[d].items[0];
    const size_t lane_bytes = emitter->memory->layout.devices[d].input_bytes;
    unsigned char *chunk = item->bytes ? emitter->memory->devices[d].chunks[item->chunk] : NULL;
    if (emitter->lane > 0 && chunk)
        return emitter->memory->devices[d].lane_inputs + (size_t)(emitter->lane - 1) * lane_bytes;
    return chunk ? chunk + item->offset : NULL;
}

static bool is_input(const tsr_emitter *emitter, int value)
{
    return value_at(emitter, value)->flags & TSR_TENSOR_INPUT;
}

void *tsr_emit_address(const tsr_emitter *emitter, int value, int d)
{
    const tsr_value *v = value_at(emitter, value);
    const tsr_layout *shared = workspace_layout(emitter);
    if (v->sharding == TSR_SHARDING_PARTIAL)
        return workspace(emitter, d,
                         tsr_layout_slots_at(shared, d, emitter->lane) +
                             (size_t)v->slot * shared->devices[d].slot_bytes);
    const int at = value * emitter->layout->n_devices + d, index = emitter->layout->item_of[at];
    if (index < 0)
        return NULL;
    if (is_input(emitter, value)) {
        unsigned char *base = inputs_of(emitter, d);
        return base ? base + emitter->layout->inside_of[at] : NULL;
    }
    const tsr_item *item = &emitter->layout->devices[d].items[index];
    unsigned char *chunk = item->bytes ? emitter->memory->devices[d].chunks[item->chunk] : NULL;
    return chunk ? chunk + item->offset : NULL;
}

/* The lane's part of the block for the inputs of the largest program, if those of this one fit into it. */
static unsigned char *pinned_block(const tsr_emitter *emitter, int d)
{
    const tsr_program_memory *memory = emitter->memory;
    const tsr_pool_block *block = memory->devices[d].pinned;
    const size_t bytes = emitter->layout->devices[d].input_bytes;
    const size_t room = tsr_program_memory_pinned_bytes(&memory->layout, memory->rt->devices[d]);
    return block && bytes > 0 && bytes <= room ? (unsigned char *)block->data + (size_t)emitter->lane * room
                                               : NULL;
}

/* With several lanes an upload would wait for the programs in flight. */
unsigned char *tsr_emit_pinned(const tsr_emitter *emitter, int value, int d)
{
    const int at = value * emitter->layout->n_devices + d;
    const tsr_device *device = emitter->memory->rt->devices[d];
    if (emitter->layout->item_of[at] < 0)
        return NULL;
    unsigned char *block = pinned_block(emitter, d);
    if (!block && emitter->memory->layout.n_lanes > 1 && device->host_writes)
        block = inputs_of(emitter, d);
    return block ? block + emitter->layout->inside_of[at] : NULL;
}

bool tsr_emit_inputs(const tsr_emitter *emitter, int d, tsr_op *op)
{
    const unsigned char *block = pinned_block(emitter, d);
    if (!block)
        return false;
    *op = (tsr_op){.kind = TSR_OP_INPUTS,
                   .name = "inputs",
                   .inputs = {.x = block,
                              .y = inputs_of(emitter, d),
                              .bytes = emitter->layout->devices[d].items[0].bytes}};
    return true;
}

void *tsr_emit_staging(const tsr_emitter *emitter, int i, int d)
{
    return workspace(emitter, d,
                     tsr_layout_staging_at(workspace_layout(emitter), d, emitter->lane) +
                         emitter->layout->staging_of[i]);
}

typedef tsr_emission emission;

static int64_t out_cols(const emission *e)
{
    return tsr_value_cols(e->out, e->d);
}

static float partial_limit(const tsr_placement *place, bool get_rows)
{
    return tsr_fixed_limit(get_rows ? 1 : tsr_shard_map_n_granules(place->map));
}

static bool emit_get_rows(const emission *e, tsr_op *op)
{
    const tsr_tensor *table = e->instr->weight;
    tsr_op_get_rows *a = &op->get_rows;
    *a = (tsr_op_get_rows){.n_cols = e->out->ne0, .n_ids = e->out->ne1, .y = tsr_emit_out(e)};
    if (!table) { /* rows of an activation */
        a->type = TSR_TYPE_F32;
        a->table = tsr_emit_in(e, 0);
        a->table_stride = (size_t)e->out->ne0 * sizeof(float);
        a->row_end = tsr_emit_in_value(e, 0)->ne1;
        a->ids = tsr_emit_in(e, 1);
        return a->n_ids > 0;
    }
    const tsr_placement *place = &table->placement;
    a->type = table->type;
    a->table = table->shards[e->d].data;
    a->table_stride = table->shards[e->d].row_stride;
    a->ids = tsr_emit_in(e, 0);
    a->row_end = table->ne[1];
    if (place->sharding == TSR_SHARDING_SPLIT) {
        a->row_begin = tsr_shard_map_first(place->map, e->d);
        a->row_end = a->row_begin + tsr_shard_map_count(place->map, e->d);
        a->partial = true;
        a->reduce = e->emitter->reduce;
        a->limit = partial_limit(place, true);
    }
    return a->n_ids > 0 && a->row_end > a->row_begin;
}

static bool emit_mul_mat(const emission *e, tsr_op *op)
{
    const tsr_tensor *w = e->instr->weight;
    const tsr_value *x = tsr_emit_in_value(e, 0);
    const tsr_placement *place = &w->placement;
    tsr_op_mul_mat *a = &op->mul_mat;
    *a = (tsr_op_mul_mat){.type = w->type,
                          .w = w->shards[e->d].data,
                          .w_stride = w->shards[e->d].row_stride,
                          .x = tsr_emit_in(e, 0),
                          .x_stride =
                              x->sharding == TSR_SHARDING_REPLICATED ? w->ne[0] : tsr_value_cols(x, e->d),
                          .n_tokens = e->out->ne1,
                          .reduce = e->emitter->reduce,
                          .x_bits = e->emitter->x_bits,
                          .y = tsr_emit_out(e)};
    tsr_tensor_local_shape(w, e->d, &a->k, &a->n_rows);
    a->y_stride = a->n_rows;
    if (e->instr->args->parts.n > 1) {
        const int n = e->instr->args->parts.n;
        a->n_tokens /= n;
        a->y_stride = n * a->n_rows;
        a->y = a->y ? (float *)a->y + e->instr->part * a->n_rows : NULL;
    }
    if (e->out->sharding == TSR_SHARDING_PARTIAL) {
        a->partial = true;
        a->granule = place->map->granule;
        a->limit = partial_limit(place, false);
        if (x->sharding == TSR_SHARDING_REPLICATED) /* the device's columns of a whole x */
            a->x += tsr_shard_map_first(place->map, e->d);
    }
    return a->n_rows > 0 && a->k > 0 && a->n_tokens > 0;
}

static bool emit_mul_heads(const emission *e, tsr_op *op)
{
    const tsr_tensor *w = e->instr->weight;
    const tsr_node_args *args = e->instr->args;
    tsr_op_mul_heads *a = &op->mul_heads;
    *a = (tsr_op_mul_heads){.type = w->type,
                            .w = w->shards[e->d].data,
                            .w_stride = w->shards[e->d].row_stride,
                            .n_rows = args->head_dim,
                            .k = w->ne[0],
                            .rest = e->out->ne0 / args->n_heads - args->head_dim,
                            .x = tsr_emit_in(e, 0),
                            .y = tsr_emit_out(e),
                            .n_tokens = e->out->ne1,
                            .reduce = e->emitter->reduce,
                            .x_bits = e->emitter->x_bits};
    a->n_heads = out_cols(e) / (a->n_rows + a->rest);
    return a->n_heads > 0 && a->n_tokens > 0;
}

static bool emit_rms_norm(const emission *e, tsr_op *op)
{
    const tsr_node_args *args = e->instr->args;
    const tsr_tensor *weight = e->instr->weight;
    const int64_t n = args->head_dim > 0 ? args->head_dim : weight->ne[0];
    op->rms_norm = (tsr_op_rms_norm){.x = tsr_emit_in(e, 0),
                                     .weight = weight ? weight->shards[e->d].data : NULL,
                                     .bias = args->bias ? args->bias->shards[e->d].data : NULL,
                                     .center = args->center,
                                     .y = tsr_emit_out(e),
                                     .n = n,
                                     .n_rows = out_cols(e) / n * e->out->ne1,
                                     .n_weights = weight && args->head_dim > 0 ? out_cols(e) / n : 1,
                                     .eps = args->eps};
    return op->rms_norm.n_rows > 0;
}

static bool emit_sum_squares(const emission *e, tsr_op *op)
{
    const tsr_shard_map *map = e->instr->weight->placement.map;
    op->sum_squares = (tsr_op_sum_squares){.x = tsr_emit_in(e, 0),
                                           .n = tsr_shard_map_count(map, e->d),
                                           .n_rows = e->out->ne1,
                                           .granule = map->granule,
                                           .reduce = e->emitter->reduce,
                                           .limit = partial_limit(&e->instr->weight->placement, false),
                                           .y = tsr_emit_out(e)};
    return op->sum_squares.n > 0 && op->sum_squares.n_rows > 0;
}

static bool emit_rms_scale(const emission *e, tsr_op *op)
{
    const tsr_tensor *weight = e->instr->weight;
    op->rms_scale = (tsr_op_rms_scale){.x = tsr_emit_in(e, 0),
                                       .squares = tsr_emit_in(e, 1),
                                       .weight = weight->shards[e->d].data,
                                       .y = tsr_emit_out(e),
                                       .n = out_cols(e),
                                       .n_rows = e->out->ne1,
                                       .n_all = weight->ne[0],
                                       .unit = partial_limit(&weight->placement, false),
                                       .eps = e->instr->args->eps};
    return op->rms_scale.n > 0 && op->rms_scale.n_rows > 0;
}

static bool emit_rope(const emission *e, tsr_op *op)
{
    op->rope = (tsr_op_rope){.x = tsr_emit_in(e, 0),
                             .table = tsr_emit_in(e, 1),
                             .y = tsr_emit_out(e),
                             .n_tokens = e->out->ne1,
                             .n_heads = out_cols(e) / e->instr->args->head_dim,
                             .head_dim = e->instr->args->head_dim,
                             .n_rot = tsr_emit_in_value(e, 1)->ne0,
                             .interleaved = e->instr->args->interleaved};
    return op->rope.n_tokens > 0 && op->rope.n_heads > 0;
}

static tsr_kv_index kv_index(const emission *e, int first)
{
    return (tsr_kv_index){.page_table = tsr_emit_in(e, first),
                          .table_stride = tsr_emit_in_value(e, first)->ne0,
                          .seq_row = tsr_emit_in(e, first + 1),
                          .position = tsr_emit_in(e, first + 2)};
}

static bool emit_kv_write(const emission *e, tsr_op *op)
{
    tsr_op_kv_write *a = &op->kv_write;
    *a = (tsr_op_kv_write){.index = kv_index(e, 2),
                           .k = tsr_emit_in(e, 0),
                           .v = tsr_emit_in(e, 1),
                           .n_tokens = tsr_emit_in_value(e, 0)->ne1};
    tsr_kv_view_of(e->instr->args->kv, e->d, e->instr->args->layer, &a->kv);
    return a->n_tokens > 0 && a->kv.n_heads > 0;
}

/* Lists for each KV head begin with that of the first one held here. */
static tsr_selection selection(const emission *e, int in)
{
    const tsr_node_args *args = e->instr->args;
    tsr_selection s = {.blocks = tsr_emit_in(e, in),
                       .n_lists = args->n_lists,
                       .n_blocks = args->select.n_blocks,
                       .block = args->select.block};
    if (s.blocks && s.n_lists > 1 && e->out->sharding == TSR_SHARDING_SPLIT)
        s.blocks += tsr_shard_map_first(e->out->map, e->d) / (e->out->ne0 / s.n_lists) * s.n_blocks;
    return s;
}

static tsr_attention_more more_keys(const emission *e)
{
    const tsr_node_args *args = e->instr->args;
    tsr_attention_more more = {.index = kv_index(e, 1)};
    more.index.page_table = tsr_emit_in(e, 4);
    more.index.table_stride = tsr_emit_in_value(e, 4)->ne0;
    tsr_kv_view_of(args->kv, e->d, args->more_layer, &more.kv);
    if (e->instr->n_in > 5)
        more.selected = selection(e, 5);
    return more;
}

/* Of the heads held here. */
static const float *sinks_here(const emission *e)
{
    const tsr_tensor *sinks = e->instr->args->sinks;
    if (!sinks)
        return NULL;
    const float *data = sinks->shards[e->d].data;
    if (sinks->placement.sharding == TSR_SHARDING_SPLIT || e->out->sharding != TSR_SHARDING_SPLIT)
        return data;
    return data + tsr_shard_map_first(e->out->map, e->d) / (e->out->ne0 / sinks->ne[0]);
}

static bool emit_attention(const emission *e, tsr_op *op)
{
    tsr_op_attention *a = &op->attention;
    *a = (tsr_op_attention){.index = kv_index(e, 1),
                            .q = tsr_emit_in(e, 0),
                            .y = tsr_emit_out(e),
                            .n_tokens = e->out->ne1,
                            .scale = e->instr->args->factor,
                            .softcap = e->instr->args->softcap,
                            .window = e->instr->args->window,
                            .chunked = e->instr->args->chunked,
                            .sinks = sinks_here(e)};
    if (e->instr->args->has_more)
        a->more = more_keys(e);
    else if (e->instr->n_in > 4)
        a->selected = selection(e, 4);
    tsr_kv_view_of(e->instr->args->kv, e->d, e->instr->args->layer, &a->kv);
    if (a->kv.n_heads == 0)
        return false;
    a->n_heads = out_cols(e) / a->kv.v_dim;
    return a->n_tokens > 0 && a->n_heads > 0;
}

static bool emit_select(const emission *e, tsr_op *op)
{
    const tsr_node_args *args = e->instr->args;
    tsr_op_select *a = &op->select;
    *a = (tsr_op_select){.index = kv_index(e, 1),
                         .q = tsr_emit_in(e, 0),
                         .weights = e->instr->n_in > 4 ? tsr_emit_in(e, 4) : NULL,
                         .y = tsr_emit_out(e),
                         .n_tokens = e->out->ne1,
                         .n_heads = args->n_heads,
                         .n_lists = args->n_lists,
                         .n_blocks = args->select.n_blocks,
                         .block = args->select.block,
                         .n_local = args->select.n_local};
    tsr_kv_view_of(args->kv, e->d, args->layer, &a->kv);
    return a->n_tokens > 0 && a->kv.n_heads > 0;
}

static bool emit_glu(const emission *e, tsr_op *op)
{
    op->glu = (tsr_op_glu){.kind = e->instr->args->glu,
                           .gate = tsr_emit_in(e, 0),
                           .up = tsr_emit_in(e, 1),
                           .y = tsr_emit_out(e),
                           .n = out_cols(e) * e->out->ne1,
                           .limit = e->instr->args->limit};
    return op->glu.n > 0;
}

static bool emit_add(const emission *e, tsr_op *op)
{
    const tsr_tensor *bias = e->instr->weight;
    tsr_op_add *a = &op->add;
    *a = (tsr_op_add){.a = tsr_emit_in(e, 0), .y = tsr_emit_out(e), .n = out_cols(e), .n_rows = e->out->ne1};
    if (bias) {
        a->b = bias->shards[e->d].data;
        a->broadcast_b = true;
        if (bias->placement.sharding == TSR_SHARDING_REPLICATED && e->out->sharding == TSR_SHARDING_SPLIT)
            a->b += tsr_shard_map_first(e->out->map, e->d);
    } else {
        a->b = tsr_emit_in(e, 1);
        a->broadcast_b = tsr_emit_in_value(e, 1)->ne1 == 1;
    }
    return a->n > 0 && a->n_rows > 0;
}

static bool emit_scale(const emission *e, tsr_op *op)
{
    op->scale = (tsr_op_scale){.x = tsr_emit_in(e, 0),
                               .y = tsr_emit_out(e),
                               .n = out_cols(e) * e->out->ne1,
                               .factor = e->instr->args->factor,
                               .by = e->instr->weight ? e->instr->weight->shards[e->d].data : NULL};
    return op->scale.n > 0;
}

static bool emit_softcap(const emission *e, tsr_op *op)
{
    op->softcap = (tsr_op_softcap){.x = tsr_emit_in(e, 0),
                                   .y = tsr_emit_out(e),
                                   .n = out_cols(e) * e->out->ne1,
                                   .cap = e->instr->args->softcap};
    return op->softcap.n > 0;
}

static bool emit_gate(const emission *e, tsr_op *op)
{
    const int64_t n_gates = tsr_emit_in_value(e, 1)->ne0;
    const int64_t n = n_gates == 1 ? out_cols(e) : e->out->ne0 / n_gates;
    op->gate = (tsr_op_gate){.x = tsr_emit_in(e, 0),
                             .gate = tsr_emit_in(e, 1),
                             .y = tsr_emit_out(e),
                             .n = n,
                             .n_rows = n > 0 ? out_cols(e) * e->out->ne1 / n : 0};
    return op->gate.n > 0 && op->gate.n_rows > 0;
}

static bool emit_softmax(const emission *e, tsr_op *op)
{
    op->softmax = (tsr_op_softmax){.x = tsr_emit_in(e, 0),
                                   .y = tsr_emit_out(e),
                                   .n = e->out->ne0,
                                   .n_rows = e->out->ne1,
                                   .scale = e->instr->args->factor};
    return op->softmax.n > 0 && op->softmax.n_rows > 0;
}

static bool emit_argmax(const emission *e, tsr_op *op)
{
    op->argmax = (tsr_op_argmax){.x = tsr_emit_in(e, 0),
                                 .y = tsr_emit_out(e),
                                 .n = tsr_emit_in_value(e, 0)->ne0,
                                 .n_rows = e->out->ne1};
    return op->argmax.n > 0 && op->argmax.n_rows > 0;
}

static bool emit_top_k(const emission *e, tsr_op *op)
{
    const tsr_value *x = tsr_emit_in_value(e, 0);
    op->top_k =
        (tsr_op_top_k){.x = tsr_emit_in(e, 0),
                       .y = tsr_emit_out(e),
                       .n = tsr_value_cols(x, e->d),
                       .n_rows = e->out->ne1,
                       .k = e->instr->args->k,
                       .first = x->sharding == TSR_SHARDING_SPLIT ? tsr_shard_map_first(x->map, e->d) : 0};
    return op->top_k.n > 0 && op->top_k.n_rows > 0 && op->top_k.k > 0;
}

/* Copy a device's columns: into its slot, for an all-gather, or out of a whole value. */
static bool emit_copy(const emission *e, tsr_op *op)
{
    const tsr_value *x = tsr_emit_in_value(e, 0);
    if (e->instr->args && e->instr->args->columns.period > 0)
        return tsr_emit_columns(e, op);
    if (e->instr->args && e->instr->args->n_heads > 0)
        return tsr_emit_concat(e, op);
    int64_t cols = tsr_shard_map_count(e->out->map, e->d);
    op->copy = (tsr_op_copy){.x = tsr_emit_in(e, 0),
                             .x_stride = tsr_value_cols(x, e->d),
                             .dst_type = TSR_TYPE_F32,
                             .y = tsr_emit_out(e),
                             .y_stride = (size_t)cols * sizeof(float),
                             .n = cols,
                             .n_rows = e->out->ne1};
    if (x->sharding == TSR_SHARDING_REPLICATED)
        op->copy.x += tsr_shard_map_first(e->out->map, e->d);
    return op->copy.n > 0 && op->copy.n_rows > 0;
}

static bool emit_collective(const emission *e, tsr_op *op)
{
    tsr_collective *collective = e->emitter->collectives[e->instr->collective];
    const tsr_value *value =
        value_at(e->emitter, e->instr->kind == TSR_OP_SEND ? e->instr->in[0] : e->instr->out);
    int64_t n = value->ne0 * value->ne1;
    if (e->instr->kind == TSR_OP_ALL_REDUCE)
        op->all_reduce = (tsr_op_all_reduce){.collective = collective,
                                             .residual = e->instr->n_in == 2 ? tsr_emit_in(e, 1) : NULL,
                                             .y = tsr_emit_out(e),
                                             .n = n,
                                             .beside = e->instr->beside};
    else if (e->instr->kind == TSR_OP_ALL_GATHER)
        op->all_gather = (tsr_op_all_gather){
            .collective = collective, .y = tsr_emit_out(e), .n = value->ne0, .n_rows = value->ne1};
    else if (e->instr->kind == TSR_OP_SEND)
        op->send = (tsr_op_send){.collective = collective, .x = tsr_emit_in(e, 0), .n = n};
    else
        op->recv = (tsr_op_recv){.collective = collective, .y = tsr_emit_out(e), .n = n};
    return n > 0;
}

/* Host devices run their ops one after another. */
static bool emit_join(const emission *e, tsr_op *op)
{
    op->join = (tsr_op_join){.collective = e->emitter->collectives[e->instr->collective]};
    return op->join.collective && e->emitter->memory->rt->devices[e->d]->is_gpu;
}

bool tsr_emit_op(const tsr_emitter *emitter, int i, int d, tsr_op *op)
{
    static bool (*const emit[TSR_OP_COUNT])(const emission *, tsr_op *) = {
        [TSR_OP_GET_ROWS] = emit_get_rows,
        [TSR_OP_RMS_NORM] = emit_rms_norm,
        [TSR_OP_SUM_SQUARES] = emit_sum_squares,
        [TSR_OP_RMS_SCALE] = emit_rms_scale,
        [TSR_OP_MUL_MAT] = emit_mul_mat,
        [TSR_OP_MUL_HEADS] = emit_mul_heads,
        [TSR_OP_ROPE] = emit_rope,
        [TSR_OP_KV_WRITE] = emit_kv_write,
        [TSR_OP_ATTENTION] = emit_attention,
        [TSR_OP_SELECT] = emit_select,
        [TSR_OP_CONV] = tsr_emit_conv,
        [TSR_OP_RECURRENCE] = tsr_emit_recurrence,
        [TSR_OP_COMPRESS] = tsr_emit_compress,
        [TSR_OP_STREAM_WEIGHTS] = tsr_emit_stream_weights,
        [TSR_OP_STREAM_MIX] = tsr_emit_stream_mix,
        [TSR_OP_GLU] = emit_glu,
        [TSR_OP_ADD] = emit_add,
        [TSR_OP_SCALE] = emit_scale,
        [TSR_OP_SOFTCAP] = emit_softcap,
        [TSR_OP_GATE] = emit_gate,
        [TSR_OP_SOFTMAX] = emit_softmax,
        [TSR_OP_ARGMAX] = emit_argmax,
        [TSR_OP_TOP_K] = emit_top_k,
        [TSR_OP_COPY] = emit_copy,
        [TSR_OP_ROUTE] = tsr_emit_route,
        [TSR_OP_EXPERTS_GLU] = tsr_emit_experts_glu,
        [TSR_OP_EXPERTS_DOWN] = tsr_emit_experts_down,
        [TSR_OP_ALL_REDUCE] = emit_collective,
        [TSR_OP_ALL_GATHER] = emit_collective,
        [TSR_OP_SEND] = emit_collective,
        [TSR_OP_RECV] = emit_collective,
        [TSR_OP_JOIN] = emit_join,
    };
    const tsr_instr *instr = &emitter->low->instrs[i];
    if (!tsr_device_set_has(instr->devices, d))
        return false;
    emission e = {.emitter = emitter,
                  .instr = instr,
                  .d = d,
                  .out = instr->out >= 0 ? value_at(emitter, instr->out) : NULL};
    *op = (tsr_op){.kind = instr->kind, .name = instr->name};
    return emit[instr->kind](&e, op);
}
