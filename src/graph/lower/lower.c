/* Sharding propagation over a whole graph.
 *
 * Nodes are lowered in order. The placement of an op's weight determines the shardings that its operands
 * need (whole, or divided like another tensor); the table in docs/design/graph.md gives the sharding of the
 * result (node.c). A conversion is added only if an operand has another sharding than needed: PARTIAL ->
 * all-reduce, SPLIT -> all-gather, wrong devices -> transfer (convert.c). */
#include "graph/lower/lower.h"

#include <string.h>

#include "core/mem.h"
#include "graph/lower/halves.h"
#include "graph/lower/lowering.h"
#include "graph/lower/slots.h"

/* Find the nodes that lead to an output, a KV write or a state, and each node's number of live consumers. */
static tsr_status find_live(tsr_lowering *low)
{
    const tsr_graph *graph = low->graph;
    bool any = false;
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        const tsr_tensor *node = &graph->nodes[i]->tensor;
        if ((node->flags & TSR_TENSOR_OUTPUT) || node->op == TSR_OP_KV_WRITE || node->op == TSR_OP_CONV ||
            node->op == TSR_OP_RECURRENCE || node->op == TSR_OP_COMPRESS)
            low->live[i] = any = true;
        if (!low->live[i])
            continue;
        for (int s = 0; s < tsr_node_n_src(node); s++) {
            if (tsr_tensor_is_weight(node->src[s])) {
                low->devices |= node->src[s]->placement.devices;
                continue;
            }
            low->live[node->src[s]->index] = true;
            low->n_uses[node->src[s]->index]++;
        }
    }
    if (low->devices == 0)
        low->devices = 1;
    return any ? TSR_OK
               : tsr_fail(TSR_ERR_INVALID, "the graph has no output; mark one with tsr_graph_output()");
}

/* Sum an output that is still PARTIAL; the caller reads the sum. */
static tsr_status settle_output(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    int *index = &low->out->value_of_node[node->index];
    if (*index < 0 || !(node->flags & TSR_TENSOR_OUTPUT))
        return TSR_OK;
    if (tsr_lowering_value(low, *index)->sharding == TSR_SHARDING_PARTIAL)
        TSR_TRY(tsr_lowering_need_whole(low, *index, tsr_lowering_value(low, *index)->devices, index));
    tsr_lowering_value(low, *index)->flags |= TSR_TENSOR_OUTPUT;
out:
    return status;
}

/* Nodes [begin, end), all of whose sums are then made. */
static tsr_status lower_nodes(tsr_lowering *low, int begin, int end)
{
    tsr_status status = TSR_OK;
    const tsr_graph *graph = low->graph;
    for (int i = begin; i < end; i++)
        if (low->live[i])
            TSR_TRY(tsr_lower_node(low, &graph->nodes[i]->tensor));
    for (int i = begin; i < end; i++)
        if (low->live[i])
            TSR_TRY(settle_output(low, &graph->nodes[i]->tensor));
out:
    return status;
}

tsr_status tsr_lower(const tsr_graph *graph, tsr_lowered *lowered_out)
{
    tsr_status status = TSR_OK;
    const int n_first = graph->n_first;
    tsr_lowered lowered = {.n_nodes = graph->n_nodes};
    tsr_lowering low = {.graph = graph, .out = &lowered, .pending = -1};
    size_t n = (size_t)graph->n_nodes;

    if (graph->status != TSR_OK)
        return tsr_fail(graph->status, "%s", graph->message);
    TSR_TRY(tsr_mem_array(n, sizeof(int), "graph values", &lowered.value_of_node));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "graph uses", &low.n_uses));
    TSR_TRY(tsr_mem_array(n, sizeof(bool), "live graph nodes", &low.live));
    for (int i = 0; i < graph->n_nodes; i++)
        lowered.value_of_node[i] = -1;
    TSR_TRY(find_live(&low));
    TSR_TRY(lower_nodes(&low, 0, n_first));
    const int n_instrs = lowered.n_instrs;
    TSR_TRY(lower_nodes(&low, n_first, graph->n_nodes));
    if (n_first > 0)
        TSR_TRY(tsr_halves_interleave(&lowered, n_instrs));
    TSR_TRY(tsr_slots_choose(&lowered, graph->rt->n_devices));
    *lowered_out = lowered;
    memset(&lowered, 0, sizeof lowered);
out:
    tsr_lowered_free(&lowered);
    tsr_mem_free(low.n_uses);
    tsr_mem_free(low.live);
    return status;
}
