/* The state of one lowering, and the conversions between shardings. Private to this folder. */
#ifndef TSR_GRAPH_LOWER_LOWERING_H
#define TSR_GRAPH_LOWER_LOWERING_H

#include "core/device_set.h"
#include "graph/lower/lowered.h"

typedef struct tsr_lowering {
    const tsr_graph *graph;
    tsr_lowered *out;
    int *n_uses;            /* [n_nodes] live consumers */
    bool *live;             /* [n_nodes] */
    int pending;            /* PARTIAL value without an all-reduce so far, -1 = none */
    tsr_device_set devices; /* devices with weights of the graph; device 0 if there are no weights */
} tsr_lowering;

/* Append a value or an instruction to the result. */
tsr_status tsr_lowering_add_value(tsr_lowering *low, tsr_value value, int *index_out);
tsr_status tsr_lowering_add_instr(tsr_lowering *low, tsr_instr instr);

/* A value by its index (valid until the next one is added), and the index of a node's value (-1 = none). */
tsr_value *tsr_lowering_value(tsr_lowering *low, int index);
int tsr_lowering_value_of(tsr_lowering *low, const tsr_tensor *tensor);

/* A map with the cuts of `like` over an axis of `extent` elements: the caller has made sure that they are
 * between elements. */
tsr_status tsr_lowering_scale_map(tsr_lowering *low, const tsr_shard_map *like, int64_t extent,
                                  const tsr_shard_map **map_out);

/* Sum up a PARTIAL, adding `residual` (a REPLICATED value on the same devices, or -1). */
tsr_status tsr_lowering_all_reduce(tsr_lowering *low, int partial, int residual, int *whole_out);

/* Sum the pending PARTIAL. At most one is pending, because this runs before another PARTIAL is made. */
tsr_status tsr_lowering_resolve_pending(tsr_lowering *low);

/* Make value `index` whole on every device of `devices`. Inputs need no conversion: the caller fills them
 * there. A conversion is done once and remembered. */
tsr_status tsr_lowering_need_whole(tsr_lowering *low, int index, tsr_device_set devices, int *whole_out);

/* Make an operand valid for an elementwise op: any sharding but PARTIAL. */
tsr_status tsr_lowering_need_summed(tsr_lowering *low, int index, int *index_out);

/* Append a node's value with the given placement, and the instruction that makes it. */
tsr_status tsr_lowering_emit_node(tsr_lowering *low, const tsr_tensor *node, tsr_value value,
                                  tsr_instr instr);

/* Whether both maps give every device the same heads, which have a_dim and b_dim elements. */
bool tsr_lowering_same_heads(const tsr_shard_map *a, int64_t a_dim, const tsr_shard_map *b, int64_t b_dim);

/* Devices of a divided weight whose shard is not empty. */
tsr_device_set tsr_lowering_holders(const tsr_placement *place);

/* The devices that make a choice which all `devices` follow. Kinds of devices differ in the last bits of
 * logits and scores, so at a near tie they would choose different experts or positions for one token, and the
 * parts of its sum would not belong together. So with several kinds one device decides for all. */
tsr_device_set tsr_lowering_deciders(const tsr_lowering *low, tsr_device_set devices);

/* TSR_ERR_INVALID: the weight is not allocated. */
tsr_status tsr_lowering_check_placed(const tsr_tensor *weight);

/* Ops over a KV region (kv.c), and the rule of ops on single heads (node.c). */
tsr_status tsr_lower_by_head(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_kv_write(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_attention(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_select(tsr_lowering *low, const tsr_tensor *node);

/* Ops with the states of sequences, and columns that repeat or are joined (recurrent.c). */
tsr_status tsr_lower_mul_mat_parts(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_conv(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_recurrence(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_columns(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_concat(tsr_lowering *low, const tsr_tensor *node);

/* TSR_ERR_INVALID: a state of the layer has another size than n numbers for each of the columns that a device
 * of `like` has; columns 0: n numbers in all. */
tsr_status tsr_lowering_check_state(const tsr_tensor *node, int part, const tsr_value *like, int64_t columns,
                                    int64_t n);

/* Compressed positions and residual streams (streams.c). */
tsr_status tsr_lower_compress(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_streams(tsr_lowering *low, const tsr_tensor *node);

/* The ops of a mixture of experts (experts.c). */
tsr_status tsr_lower_route(tsr_lowering *low, const tsr_tensor *node);
tsr_status tsr_lower_experts(tsr_lowering *low, const tsr_tensor *node);

/* Decide a node's sharding and append the instruction that makes it. */
tsr_status tsr_lower_node(tsr_lowering *low, const tsr_tensor *node);

#endif
