/* Constructor of the op that selects positions, like ops.c. */
#include "graph/graph.h"
#include "graph/kv_inputs.h"

tsr_tensor *tsr_select(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *q, tsr_tensor *weights,
                       const tsr_select_rule *rule)
{
    if (tsr_graph_misses(graph, "select", &q, 1) || !tsr_kv_inputs_check(graph, "select", inputs, layer, q))
        return NULL;
    const int64_t k_dim = tsr_kv_layer_rows(inputs->kv, layer)->k_dim, n_lists = weights ? 1 : rule->n_heads;
    if (!tsr_tensor_is_f32(q) || rule->n_heads < 1 || q->ne[0] != rule->n_heads * k_dim ||
        (weights &&
         (!tsr_tensor_is_f32(weights) || weights->ne[0] != rule->n_heads || weights->ne[1] != q->ne[1])))
        return tsr_graph_refuse(graph, "select", q,
                                "the queries must be heads of the layer's keys, with a weight for each head");
    if (rule->block < 1 || rule->n_blocks < 1 || rule->n_local < 0 || rule->n_local > rule->n_blocks)
        return tsr_graph_refuse(graph, "select", q, "a list has at least one block, and all local ones");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_SELECT, TSR_TYPE_I32, n_lists * rule->n_blocks, q->ne[1], "select");
    if (!node)
        return NULL;
    tsr_tensor *const src[] = {q, tsr_kv_inputs_table(inputs, layer), inputs->seq_row, inputs->position,
                               weights};
    for (int i = 0; i < 5; i++)
        node->tensor.src[i] = src[i];
    node->args.kv = inputs->kv;
    node->args.layer = layer;
    node->args.select = *rule;
    node->args.n_lists = n_lists;
    return &node->tensor;
}
