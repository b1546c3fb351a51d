/* From a laid-out graph to op records with addresses. */
#ifndef TSR_GRAPH_EMIT_EMIT_H
#define TSR_GRAPH_EMIT_EMIT_H

#include "graph/memory.h"

typedef struct tsr_emitter {
    const tsr_lowered *low;
    const tsr_layout *layout;         /* of this program */
    const tsr_program_memory *memory; /* memory that the program runs in */
    int lane;                         /* of that memory */
    tsr_reduce_type reduce;
    int x_bits; /* x_bits of ops */
    tsr_collective *const *collectives;
} tsr_emitter;

/* Address of a value on a device; NULL if the device has no part of it. */
void *tsr_emit_address(const tsr_emitter *emitter, int value, int device);

/* Where an input is written in pinned host memory, or in place on a host device; NULL: it is uploaded, or not
 * on the device. */
unsigned char *tsr_emit_pinned(const tsr_emitter *emitter, int value, int device);

/* The op that copies all inputs from there; false: they are uploaded, or there are none. */
bool tsr_emit_inputs(const tsr_emitter *emitter, int device, tsr_op *op_out);

/* Staging buffer of the SEND at instruction `i`, on the sending device. */
void *tsr_emit_staging(const tsr_emitter *emitter, int i, int device);

/* The arguments of the functions that fill in op records. */
typedef struct tsr_emission {
    const tsr_emitter *emitter;
    const tsr_instr *instr;
    int d;
    const tsr_value *out; /* NULL: none */
} tsr_emission;

static inline const tsr_value *tsr_emit_in_value(const tsr_emission *e, int k)
{
    return &e->emitter->low->values[e->instr->in[k]];
}

static inline void *tsr_emit_in(const tsr_emission *e, int k)
{
    return tsr_emit_address(e->emitter, e->instr->in[k], e->d);
}

static inline void *tsr_emit_out(const tsr_emission *e)
{
    return tsr_emit_address(e->emitter, e->instr->out, e->d);
}

/* Ops with the states of sequences, and columns that repeat or are joined (recurrent.c); false: nothing to
 * do. */
bool tsr_emit_conv(const tsr_emission *e, tsr_op *op);
bool tsr_emit_recurrence(const tsr_emission *e, tsr_op *op);
bool tsr_emit_columns(const tsr_emission *e, tsr_op *op);
bool tsr_emit_concat(const tsr_emission *e, tsr_op *op);
tsr_state_index tsr_emit_state_index(const tsr_emission *e, int first);
tsr_state_view tsr_emit_state_view(const tsr_emission *e);

/* Compressed positions and residual streams (streams.c); false: nothing to do. */
bool tsr_emit_compress(const tsr_emission *e, tsr_op *op);
bool tsr_emit_stream_weights(const tsr_emission *e, tsr_op *op);
bool tsr_emit_stream_mix(const tsr_emission *e, tsr_op *op);

/* The ops of a mixture of experts (experts.c); false: nothing to do. */
bool tsr_emit_route(const tsr_emission *e, tsr_op *op);
bool tsr_emit_experts_glu(const tsr_emission *e, tsr_op *op);
bool tsr_emit_experts_down(const tsr_emission *e, tsr_op *op);

/* The op of instruction `i` on `device`; false if the device has nothing to do for it. */
bool tsr_emit_op(const tsr_emitter *emitter, int i, int device, tsr_op *op_out);

#endif
