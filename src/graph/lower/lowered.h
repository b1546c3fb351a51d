/* A graph with every sharding decided: values with storage on devices, and instructions in execution order,
 * each with its set of devices. The form between the public graph and the per-device op lists. */
#ifndef TSR_GRAPH_LOWER_LOWERED_H
#define TSR_GRAPH_LOWER_LOWERED_H

#include "core/device_set.h"
#include "core/runtime.h"
#include "graph/graph.h"

enum { TSR_INSTR_MAX_IN = TSR_MAX_SRC };

/* One activation. SPLIT values are divided along ne[0] by `map`; PARTIAL values are stored in a slot of the
 * collectives' workspace, not in the arena. */
typedef struct tsr_value {
    const char *name;
    tsr_type type; /* F32 or I32; a PARTIAL holds the reduction's format instead */
    int64_t ne0, ne1;
    tsr_sharding sharding;
    tsr_device_set devices;      /* devices that have the value; transfers add devices */
    const tsr_shard_map *map;    /* SPLIT */
    tsr_device_set contributors; /* PARTIAL: devices whose part is not empty */
    int slot;                    /* PARTIAL: slot of the workspace (slots.h) */
    int whole;      /* PARTIAL, SPLIT: index of the REPLICATED value made from it, -1 = none yet */
    unsigned flags; /* TSR_TENSOR_INPUT: filled by the caller; TSR_TENSOR_OUTPUT: read by the caller */
} tsr_value;

typedef struct tsr_instr {
    tsr_op_kind kind;
    const char *name;
    const tsr_node_args *args;
    const tsr_tensor *weight; /* the operand that is a weight, NULL if none */
    int part;                 /* of the value that it makes (tsr_weight_parts) */
    int in[TSR_INSTR_MAX_IN]; /* values */
    int n_in;
    int out;                /* value, -1 = none */
    tsr_device_set devices; /* devices that run it */
    int collective;         /* index among the program's collectives, -1 = none */
    bool beside;            /* ALL_REDUCE: it may run beside what follows, until its JOIN (halves.h) */
} tsr_instr;

typedef struct tsr_lowered {
    tsr_value *values;
    int n_values, values_capacity;
    tsr_instr *instrs;
    int n_instrs, instrs_capacity;
    int *value_of_node;   /* [n_nodes], -1 = no value */
    tsr_shard_map **maps; /* [n_maps] of values whose map is no weight's */
    int n_maps, maps_capacity;
    int n_nodes;
    int n_collectives;
    int n_all_reduces, n_all_gathers, n_transfers;
} tsr_lowered;

/* Free maps that values had. */
void tsr_lowered_maps_free(tsr_shard_map **maps, int n);

void tsr_lowered_free(tsr_lowered *lowered);

/* Columns of a value on device `d` (0: the device has none). */
int64_t tsr_value_cols(const tsr_value *value, int d);

/* Bytes of a value on device `d`, rounded up to the arena's alignment; TSR_ERR_INVALID on overflow. */
tsr_status tsr_value_bytes(const tsr_runtime *rt, const tsr_value *value, int d, size_t *bytes_out);

/* Whether a recurrence's queries are whole and its values are not. */
static inline bool tsr_recurrence_keys_are_whole(const tsr_value *q, const tsr_value *v)
{
    return q->sharding == TSR_SHARDING_REPLICATED && v->sharding == TSR_SHARDING_SPLIT;
}

/* Operands [first, end) that the result may be written over if their life ends with the instruction. */
void tsr_instr_in_place(const tsr_instr *instr, int *first_out, int *end_out);

#endif
