/* The largest elements of rows: the op, and the candidates of a run. Every device that has a part of the rows
 * has a list of its part, and the lists are merged. A list is sorted, so the next candidate is the first of
 * what is left of some list. */
#include "core/mem.h"
#include "graph/graph.h"

tsr_tensor *tsr_top_k(tsr_graph *graph, tsr_tensor *x, int64_t k)
{
    if (tsr_graph_misses(graph, "top_k", &x, 1))
        return NULL;
    if (!tsr_tensor_is_activation(x) || x->ne[0] > INT32_MAX || k < 0 || k > TSR_MAX_CANDIDATES ||
        k > x->ne[0])
        return tsr_graph_refuse(
            graph, "top_k", x,
            "it must be F32 of at most 2^31 - 1 columns, and k at most as many and at most "
            "TSR_MAX_CANDIDATES");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_TOP_K, TSR_TYPE_I32, 2 * TSR_MAX_CANDIDATES, x->ne[1], "top_k");
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->args.k = k;
    return tsr_graph_output(graph, &node->tensor);
}

/* n_lists lists of n, `apart` elements from each other, merged into the first n of all. */
static void merge(const tsr_candidate *lists, int n_lists, int64_t apart, int64_t n, tsr_candidate *merged)
{
    int64_t at[TSR_MAX_DEVICES] = {0};
    for (int64_t i = 0; i < n; i++) {
        int best = -1;
        for (int l = 0; l < n_lists; l++) {
            const tsr_candidate *next = &lists[l * apart + at[l]];
            if (at[l] < n && next->id >= 0 &&
                (best < 0 || tsr_candidate_is_before(*next, lists[best * apart + at[best]])))
                best = l;
        }
        merged[i] = lists[best * apart + at[best]++];
    }
}

tsr_status tsr_top_k_read(const tsr_tensor *top_k, tsr_candidate *parts, tsr_candidate *candidates)
{
    tsr_status status = TSR_OK;
    const int64_t k = ((const tsr_node *)top_k)->args.k, of_device = k * top_k->ne[1];
    const size_t bytes = (size_t)of_device * sizeof *candidates;
    int n_devices = 0;
    TSR_FOR_DEVICES(d, top_k->placement.devices)
        TSR_TRY(tsr_device_fetch(top_k->rt->devices[d], parts + n_devices++ * of_device, bytes,
                                 top_k->shards[d].data, bytes, bytes, 1));
    for (int64_t at = 0; at < of_device; at += k)
        merge(parts + at, n_devices, of_device, k, candidates + at);
out:
    return tsr_processes_end(top_k->rt->processes, status);
}

tsr_status tsr_top_k_get(const tsr_tensor *top_k, tsr_candidate *candidates)
{
    tsr_status status = TSR_OK;
    tsr_candidate *parts = NULL;
    if (!top_k || !candidates || top_k->op != TSR_OP_TOP_K || top_k->placement.devices == 0)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_top_k_get: pass a tsr_top_k() of a graph that is compiled, and room "
                        "for its candidates");
    const int64_t k = ((const tsr_node *)top_k)->args.k;
    const size_t n_devices = (size_t)tsr_device_set_count(top_k->placement.devices);
    if (k == 0 || top_k->ne[1] == 0)
        return TSR_OK;
    TSR_TRY(tsr_mem_array(n_devices * (size_t)(k * top_k->ne[1]), sizeof *parts, "candidates", &parts));
    TSR_TRY(tsr_top_k_read(top_k, parts, candidates));
out:
    tsr_mem_free(parts);
    return status;
}
