/* Constructor of the op that selects positions, like ops.c. */
#include "graph/graph.h"
#include "graph/kv_inputs.h"

tsr_tensor *tsr_select(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *q, tsr_tensor *weights,
                       const tsr_select_rule *rule)
{
    if (tsr_graph_misses(graph, "select", &q, 1) ||
        (weights && tsr_graph_misses(graph, "select", &weights, 1)) ||
        !tsr_kv_inputs_check(graph, "select", inputs, layer, q))
        return NULL;
    const tsr_kv_rows *rows = tsr_kv_layer_rows(inputs->kv, layer);
    const int64_t n_heads = q->ne[0] / rows->k_dim, n_lists = weights ? 1 : n_heads;
    if (rows->n_heads != 1 || rows->v_dim != 0 ||
        tsr_kv_window(inputs->kv, tsr_kv_group_of(inputs->kv, layer)) > 0)
        return tsr_graph_refuse(graph, "select", q,
                                "the KV layer must have one head, keys only, and no window");
    if (!tsr_tensor_is_activation(q) || n_heads < 1 || q->ne[0] % rows->k_dim != 0 ||
        (weights &&
         (!tsr_tensor_is_activation(weights) || weights->ne[0] != n_heads || weights->ne[1] != q->ne[1])))
        return tsr_graph_refuse(graph, "select", q,
                                "the queries must be heads of the layer's keys, with a weight for each head");
    if (!rule || rule->block < 1 || rule->n_blocks < 1 || rule->n_local < 0 ||
        rule->n_local > rule->n_blocks || rule->n_blocks > TSR_MAX_SELECTED || rule->block > INT32_MAX)
        return tsr_graph_refuse(graph, "select", q,
                                "a list has 1 to TSR_MAX_SELECTED blocks, with all local ones");
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
    node->args.n_heads = n_heads;
    node->args.n_lists = n_lists;
    return &node->tensor;
}
