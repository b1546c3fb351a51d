/* Op records of compressed positions and of residual streams; like emit.c. */
#include "graph/emit/emit.h"

bool tsr_emit_compress(const tsr_emission *e, tsr_op *op)
{
    const tsr_compress_rule *rule = &e->instr->args->compress;
    op->compress = (tsr_op_compress){.state = tsr_emit_state_view(e),
                                     .index = tsr_emit_state_index(e, 3),
                                     .position = tsr_emit_in(e, 2),
                                     .x = tsr_emit_in(e, 0),
                                     .gate = tsr_emit_in(e, 1),
                                     .bias = rule->bias->shards[e->d].data,
                                     .y = tsr_emit_out(e),
                                     .n_tokens = e->out->ne1,
                                     .n = e->out->ne0,
                                     .ratio = rule->ratio,
                                     .overlap = rule->overlap};
    return op->compress.n_tokens > 0;
}

bool tsr_emit_stream_weights(const tsr_emission *e, tsr_op *op)
{
    const tsr_stream_rule *rule = &e->instr->args->streams;
    op->stream_weights = (tsr_op_stream_weights){.x = tsr_emit_in(e, 0),
                                                 .scale = rule->scale->shards[e->d].data,
                                                 .base = rule->base->shards[e->d].data,
                                                 .y = tsr_emit_out(e),
                                                 .n_tokens = e->out->ne1,
                                                 .n = rule->n,
                                                 .mixes = rule->mixes,
                                                 .iterations = rule->iterations,
                                                 .eps = rule->eps};
    return op->stream_weights.n_tokens > 0;
}

bool tsr_emit_stream_mix(const tsr_emission *e, tsr_op *op)
{
    const tsr_mix_rule *rule = &e->instr->args->mix;
    op->stream_mix = (tsr_op_stream_mix){.x = tsr_emit_in(e, 0),
                                         .weights = e->instr->n_in > 1 ? tsr_emit_in(e, 1) : NULL,
                                         .add = e->instr->n_in > 2 ? tsr_emit_in(e, 2) : NULL,
                                         .y = tsr_emit_out(e),
                                         .n_tokens = e->out->ne1,
                                         .n = e->out->ne0 / rule->n_out,
                                         .n_in = rule->n_in,
                                         .n_out = rule->n_out,
                                         .n_weights = e->instr->n_in > 1 ? tsr_emit_in_value(e, 1)->ne0 : 0,
                                         .first = rule->first,
                                         .add_first = rule->add_first};
    return op->stream_mix.n_tokens > 0;
}
