/* Constructors of the ops over a KV region, like ops.c. */
#include <math.h>
#include <stddef.h>

#include "core/config.h"
#include "graph/graph.h"
#include "graph/kv_inputs.h"

/* The operands of a KV op from src[first] on. */
static void take_inputs(tsr_node *node, const tsr_kv_inputs *inputs, int layer, int first)
{
    node->tensor.src[first] = tsr_kv_inputs_table(inputs, layer);
    node->tensor.src[first + 1] = inputs->seq_row;
    node->tensor.src[first + 2] = inputs->position;
    node->args.kv = inputs->kv;
    node->args.layer = layer;
}

static bool are_heads(const tsr_tensor *x, const tsr_tensor *like, int64_t n_heads, int64_t dim)
{
    return tsr_tensor_is_f32(x) && x->ne[0] == n_heads * dim && x->ne[1] == like->ne[1];
}

/* Whether k and v are what a layer stores. */
static bool are_rows(const tsr_kv_rows *rows, const tsr_tensor *k, const tsr_tensor *v)
{
    const int64_t rest = rows->v_in_k ? rows->k_dim - rows->v_dim : rows->k_dim;
    if (k == v) /* keys that are values, or keys only */
        return are_heads(k, k, rows->n_heads, rows->k_dim) &&
               (rows->v_in_k ? rest == 0 : rows->v_dim == 0 || rows->v_dim == rows->k_dim);
    return are_heads(k, k, rows->n_heads, rest) && are_heads(v, k, rows->n_heads, rows->v_dim);
}

tsr_tensor *tsr_kv_store(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *k, tsr_tensor *v)
{
    tsr_tensor *const operands[] = {k, v};
    if (tsr_graph_misses(graph, "kv_store", operands, 2) ||
        !tsr_kv_inputs_check(graph, "kv_store", inputs, layer, k))
        return NULL;
    if (!are_rows(tsr_kv_layer_rows(inputs->kv, layer), k, v))
        return tsr_graph_refuse(graph, "kv_store", k,
                                "keys and values must be F32 and have all heads of the KV layer, k_dim and "
                                "v_dim elements of each");
    tsr_node *node = tsr_graph_append(graph, TSR_OP_KV_WRITE, TSR_TYPE_F32, 0, 0, k->name);
    if (!node)
        return NULL;
    node->tensor.src[0] = k;
    node->tensor.src[1] = v;
    take_inputs(node, inputs, layer, 2);
    return &node->tensor;
}

size_t tsr_attention_config_init(tsr_attention_config *config_out, size_t size)
{
    const tsr_attention_config defaults = {0};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

/* Why this cannot be an attention of q; NULL: it can. */
static const char *find_fault(const tsr_kv_rows *rows, const tsr_tensor *q,
                              const tsr_attention_config *config)
{
    const tsr_tensor *sinks = config->sinks;
    if (!tsr_tensor_is_f32(q) || q->ne[0] % (rows->k_dim * rows->n_heads) != 0)
        return "it must be F32 and have k_dim elements for each head, and as many heads for each KV head of "
               "the layer";
    if (!isfinite(config->scale) || !isfinite(config->softcap) || config->softcap < 0)
        return "the scale must be finite, and the cap finite and at least 0";
    if (sinks && (sinks->type != TSR_TYPE_F32 || !tsr_tensor_is_weight(sinks) ||
                  tsr_tensor_rows(sinks) != 1 || sinks->ne[0] != q->ne[0] / rows->k_dim))
        return "the sinks must be an F32 weight of one row with an element per head";
    return NULL;
}

tsr_tensor *tsr_attention(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *q,
                          const tsr_attention_config *given)
{
    tsr_attention_config config = tsr_attention_config_default();
    const tsr_status status =
        tsr_config_read("tsr_attention_config", given, sizeof config, &config, sizeof config);
    if (status != TSR_OK)
        return tsr_graph_fail(graph, status);
    if (tsr_graph_misses(graph, "attention", &q, 1) ||
        !tsr_kv_inputs_check(graph, "attention", inputs, layer, q))
        return NULL;
    const tsr_kv_rows *rows = tsr_kv_layer_rows(inputs->kv, layer);
    const char *fault = find_fault(rows, q, &config);
    if (fault)
        return tsr_graph_refuse(graph, "attention", q, fault);
    tsr_node *node = tsr_graph_append(graph, TSR_OP_ATTENTION, TSR_TYPE_F32,
                                      q->ne[0] / rows->k_dim * rows->v_dim, q->ne[1], "attention");
    if (!node)
        return NULL;
    node->tensor.src[0] = q;
    take_inputs(node, inputs, layer, 1);
    node->args.factor = config.scale != 0 ? config.scale : (float)(1 / sqrt((double)rows->k_dim));
    node->args.softcap = config.softcap;
    node->args.window = tsr_kv_window(inputs->kv, tsr_kv_group_of(inputs->kv, layer));
    node->args.chunked = config.chunked;
    node->args.sinks = config.sinks;
    return &node->tensor;
}

static bool same_rows(const tsr_kv_rows *a, const tsr_kv_rows *b)
{
    return a->k_dim == b->k_dim && a->v_dim == b->v_dim && a->n_heads == b->n_heads && a->whole == b->whole &&
           a->v_in_k == b->v_in_k;
}

tsr_tensor *tsr_attention_extend(tsr_graph *graph, tsr_tensor *attention, tsr_kv_inputs *inputs,
                                 tsr_tensor *selection, int more_layer)
{
    if (!attention)
        return NULL;
    tsr_node_args *args = &((tsr_node *)attention)->args;
    if (selection && (selection->op != TSR_OP_SELECT || selection->ne[1] != attention->ne[1]))
        return tsr_graph_refuse(graph, "attention", selection, "it must be a selection for every token");
    if (more_layer >= 0) {
        if (!tsr_kv_inputs_check(graph, "attention", inputs, more_layer, attention))
            return NULL;
        if (!same_rows(tsr_kv_layer_rows(args->kv, args->layer), tsr_kv_layer_rows(inputs->kv, more_layer)))
            return tsr_graph_refuse(graph, "attention", attention,
                                    "both KV layers must have keys and values of one size");
        args->has_more = true;
        args->more_layer = more_layer;
        attention->src[4] = tsr_kv_inputs_table(inputs, more_layer);
    }
    if (selection) {
        attention->src[args->has_more ? 5 : 4] = selection;
        args->select = ((const tsr_node *)selection)->args.select;
        args->n_lists = ((const tsr_node *)selection)->args.n_lists;
    }
    return attention;
}
