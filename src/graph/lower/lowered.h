/* A graph with every sharding decided: values that have storage on devices, and instructions in execution
 * order, each with the set of devices that run it. The step between the public graph and the per-device op
 * lists. */
#ifndef TSR_GRAPH_LOWER_LOWERED_H
#define TSR_GRAPH_LOWER_LOWERED_H

#include "core/runtime.h"
#include "graph/graph.h"

enum { TSR_INSTR_MAX_IN = 5 };

/* One activation. SPLIT values are divided along ne[0] by `map`; PARTIAL values live in a slot of the
 * collectives' workspace, not in the arena. */
typedef struct tsr_value {
    const char *name;
    tsr_type type; /* F32 or I32; a PARTIAL holds the reduction's format instead */
    int64_t ne0, ne1;
    tsr_sharding sharding;
    uint64_t devices;         /* where it exists; grows by transfers */
    const tsr_shard_map *map; /* SPLIT */
    uint64_t contributors;    /* PARTIAL: devices whose part is not empty */
    int slot;                 /* PARTIAL: which slot of the workspace, see slots.h */
    int whole;                /* PARTIAL, SPLIT: index of the REPLICATED value made from it, -1 = none yet */
    unsigned flags; /* TSR_TENSOR_INPUT: filled by the caller; TSR_TENSOR_OUTPUT: read by the caller */
} tsr_value;

typedef struct tsr_instr {
    tsr_op_kind kind;
    const char *name;
    const tsr_node_args *args;
    const tsr_tensor *weight; /* the operand that is a weight, NULL if none */
    int in[TSR_INSTR_MAX_IN]; /* values */
    int n_in;
    int out;          /* value, -1 = none */
    uint64_t devices; /* that run it */
    int collective;   /* index among the program's collectives, -1 = none */
} tsr_instr;

typedef struct tsr_lowered {
    tsr_value *values;
    int n_values, values_capacity;
    tsr_instr *instrs;
    int n_instrs, instrs_capacity;
    int *value_of_node; /* [n_nodes], -1 = no value */
    int n_nodes;
    int n_collectives;
    int n_all_reduces, n_all_gathers, n_transfers;
} tsr_lowered;

void tsr_lowered_free(tsr_lowered *lowered);

/* Columns that device `d` holds of a value (0 if it does not exist there). */
int64_t tsr_value_cols(const tsr_value *value, int d);

/* Bytes of a value on device `d`, aligned as its arena is; TSR_ERR_INVALID if they cannot be counted. */
tsr_status tsr_value_bytes(const tsr_runtime *rt, const tsr_value *value, int d, size_t *bytes_out);

/* Operands [first, end) of an instruction that its result may be written over if they die with it. */
void tsr_instr_in_place(const tsr_instr *instr, int *first_out, int *end_out);

#endif
