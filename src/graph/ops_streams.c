/* Constructors of the ops that compress positions, and of those over residual streams; like ops.c. */
#include "graph/graph.h"
#include "graph/kv_inputs.h"

/* An F32 weight of one row of n elements. */
static bool is_vector(const tsr_tensor *w, int64_t n)
{
    return w && w->type == TSR_TYPE_F32 && tsr_tensor_is_weight(w) && w->ne[0] == n &&
           tsr_tensor_rows(w) == 1;
}

tsr_tensor *tsr_compress(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, int state, tsr_tensor *x,
                         tsr_tensor *gate, const tsr_compress_rule *rule)
{
    tsr_tensor *const given[] = {x, gate, rule->bias};
    if (tsr_graph_misses(graph, "compress", given, 3) ||
        !tsr_kv_inputs_check_states(graph, "compress", inputs, layer, state, 1, x))
        return NULL;
    tsr_tensor *const operands[] = {x, gate, inputs->position, inputs->states.rows, inputs->states.next};
    const int64_t halves = rule->overlap ? 2 : 1;
    if (!tsr_tensor_is_activation(x) || !tsr_tensor_is_activation(gate) || x->ne[0] % halves != 0 ||
        gate->ne[0] != x->ne[0] || gate->ne[1] != x->ne[1] || x->ne[1] != inputs->n_tokens ||
        rule->ratio < 2 || rule->bias->ne[0] % rule->ratio != 0 ||
        !is_vector(rule->bias, rule->bias->ne[0]) || rule->bias->ne[0] / rule->ratio != x->ne[0])
        return tsr_graph_refuse(
            graph, "compress", x,
            "values and gates must have one shape, with a row for each token, and the bias "
            "a row of it for each of at least two positions");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_COMPRESS, TSR_TYPE_F32, x->ne[0] / halves, x->ne[1], "compress");
    if (!node)
        return NULL;
    for (int i = 0; i < 5; i++)
        node->tensor.src[i] = operands[i];
    node->args.compress = *rule;
    node->args.state = (tsr_state_part){inputs->kv, layer, state};
    return &node->tensor;
}

tsr_tensor *tsr_stream_weights(tsr_graph *graph, tsr_tensor *x, const tsr_stream_rule *rule)
{
    tsr_tensor *const operands[] = {x, rule->scale, rule->base};
    if (tsr_graph_misses(graph, "stream_weights", operands, 3))
        return NULL;
    const bool counted =
        rule->n >= 1 && rule->n <= TSR_MAX_STREAMS && (!rule->mixes || rule->iterations >= 1);
    const int64_t n = counted ? (rule->mixes ? (2 + rule->n) * rule->n : rule->n) : 0;
    if (!counted || !tsr_tensor_is_activation(x) || x->ne[0] != n || !is_vector(rule->base, n) ||
        !is_vector(rule->scale, rule->mixes ? 3 : 1))
        return tsr_graph_refuse(graph, "stream_weights", x,
                                "1 to 8 streams have a weight each, or a matrix with two more columns and at "
                                "least one iteration");
    tsr_node *node = tsr_graph_append(graph, TSR_OP_STREAM_WEIGHTS, TSR_TYPE_F32, n, x->ne[1], "weights");
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->args.streams = *rule;
    return &node->tensor;
}

tsr_tensor *tsr_stream_mix(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weights, tsr_tensor *add,
                           const tsr_mix_rule *rule)
{
    if (tsr_graph_misses(graph, "stream_mix", &x, 1) ||
        (weights && tsr_graph_misses(graph, "stream_mix", &weights, 1)) ||
        (add && tsr_graph_misses(graph, "stream_mix", &add, 1)))
        return NULL;
    const int64_t n = rule->n_in > 0 ? x->ne[0] / rule->n_in : 0;
    bool good = tsr_tensor_is_activation(x) && n > 0 && n * rule->n_in == x->ne[0] && rule->n_out > 0 &&
                rule->n_in <= TSR_MAX_STREAMS && rule->n_out <= TSR_MAX_STREAMS;
    if (weights)
        good = good && tsr_tensor_is_activation(weights) && weights->ne[1] == x->ne[1] && rule->first >= 0 &&
               rule->first <= weights->ne[0] - rule->n_in * rule->n_out && rule->add_first >= 0 &&
               rule->add_first <= weights->ne[0] - rule->n_out;
    else
        good = good && rule->n_in == 1 && !add;
    if (add)
        good = good && tsr_tensor_is_activation(add) && add->ne[0] == n && add->ne[1] == x->ne[1];
    if (!good)
        return tsr_graph_refuse(graph, "stream_mix", x,
                                "1 to 8 streams, and what is added, must have one length, and each a weight");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_STREAM_MIX, TSR_TYPE_F32, n * rule->n_out, x->ne[1], "streams");
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->tensor.src[1] = weights;
    node->tensor.src[2] = add;
    node->args.mix = *rule;
    return &node->tensor;
}
