/* Graphs: creation, inputs, outputs, and the sticky failure that lets builders check once. */
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"

static const tsr_tracked_kind graph_kind = {"graph", NULL, NULL};

tsr_status tsr_graph_create(tsr_runtime *rt, tsr_graph **graph_out)
{
    tsr_graph *graph;
    if (!rt || !graph_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_graph_create: runtime and graph_out must not be NULL");
    tsr_status status = TSR_NEW(&graph, "a graph");
    if (status != TSR_OK)
        return status;
    graph->rt = rt;
    tsr_track(&rt->tracked, &graph->tracked, &graph_kind);
    *graph_out = graph;
    return TSR_OK;
}

void tsr_graph_destroy(tsr_graph *graph)
{
    if (!graph)
        return;
    tsr_untrack(&graph->tracked);
    for (int i = 0; i < graph->n_nodes; i++) {
        tsr_mem_free(graph->nodes[i]->tensor.shards);
        tsr_mem_free(graph->nodes[i]);
    }
    tsr_mem_free(graph->nodes);
    tsr_kv_inputs_free_all(graph->kv_inputs);
    tsr_mem_free(graph);
}

void *tsr_graph_fail(tsr_graph *graph, tsr_status status)
{
    if (graph->status == TSR_OK) {
        graph->status = status;
        snprintf(graph->message, sizeof graph->message, "%s", tsr_last_error());
    }
    return NULL;
}

void *tsr_graph_refuse(tsr_graph *graph, const char *op, const tsr_tensor *x, const char *why)
{
    return tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "%s(%s [%lld, %lld]): %s", op, x->name,
                                          (long long)x->ne[0], (long long)x->ne[1], why));
}

static bool reserve_node(tsr_graph *graph)
{
    return tsr_mem_grow(&graph->nodes, graph->n_nodes, &graph->capacity, 64, sizeof *graph->nodes,
                        "the nodes of a graph") == TSR_OK;
}

tsr_node *tsr_graph_append(tsr_graph *graph, tsr_op_kind op, tsr_type type, int64_t ne0, int64_t ne1,
                           const char *name)
{
    tsr_node *node = tsr_mem_calloc(1, sizeof *node);
    tsr_shard *shards = tsr_mem_calloc((size_t)graph->rt->n_devices, sizeof *shards);
    if (!node || !shards || !reserve_node(graph)) {
        tsr_mem_free(node);
        tsr_mem_free(shards);
        return tsr_graph_fail(graph, tsr_fail(TSR_ERR_MEMORY, "out of host memory for graph node %s", name));
    }
    tsr_tensor *tensor = &node->tensor;
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->rt = graph->rt;
    tensor->type = type;
    tensor->ne[0] = ne0;
    tensor->ne[1] = ne1;
    tensor->ne[2] = tensor->ne[3] = 1;
    tensor->op = op;
    tensor->index = graph->n_nodes;
    tensor->args = &node->args;
    tensor->shards = shards;
    graph->nodes[graph->n_nodes++] = node;
    return node;
}

tsr_tensor *tsr_graph_input(tsr_graph *graph, tsr_type type, int64_t ne0, int64_t ne1, const char *name)
{
    if (type != TSR_TYPE_F32 && type != TSR_TYPE_I32)
        return tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "input %s: type %s; inputs are F32 or I32",
                                              name, tsr_type_name(type)));
    if (ne0 < 0 || ne1 < 0)
        return tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "input %s: shape [%lld, %lld] is negative",
                                              name, (long long)ne0, (long long)ne1));
    tsr_node *node = tsr_graph_append(graph, TSR_OP_NONE, type, ne0, ne1, name);
    if (!node)
        return NULL;
    node->tensor.flags |= TSR_TENSOR_INPUT;
    return &node->tensor;
}

tsr_tensor *tsr_graph_output(tsr_graph *graph, tsr_tensor *tensor)
{
    if (!tensor && graph->status == TSR_OK)
        tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "tsr_graph_output: the tensor is NULL"));
    if (tensor && !tsr_graph_has(graph, tensor))
        return tsr_graph_refuse(graph, "tsr_graph_output", tensor,
                                "it is a weight, or of another graph; pass a result of this graph");
    if (tensor)
        tensor->flags |= TSR_TENSOR_OUTPUT;
    return tensor;
}

bool tsr_graph_has(const tsr_graph *graph, const tsr_tensor *x)
{
    return x->index >= 0 && x->index < graph->n_nodes && &graph->nodes[x->index]->tensor == x;
}

tsr_tensor *tsr_tensor_rename(tsr_tensor *tensor, const char *name)
{
    if (tensor)
        snprintf(tensor->name, sizeof tensor->name, "%s", name);
    return tensor;
}

int tsr_node_n_src(const tsr_tensor *tensor)
{
    int n = 0;
    while (n < TSR_MAX_SRC && tensor->src[n])
        n++;
    return n;
}

bool tsr_tensor_is_weight(const tsr_tensor *tensor)
{
    return tensor->op == TSR_OP_NONE && !(tensor->flags & TSR_TENSOR_INPUT);
}
