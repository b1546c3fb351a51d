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
    return tsr_tensor_is_activation(x) && x->ne[0] == n_heads * dim && x->ne[1] == like->ne[1];
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

/* Why this cannot be an attention of q to one layer; NULL: it can. */
static const char *find_fault(const tsr_kv_rows *rows, const tsr_tensor *q,
                              const tsr_attention_config *config)
{
    const tsr_tensor *sinks = config->sinks;
    if (rows->v_dim == 0)
        return "the KV layer has keys only";
    if (!tsr_tensor_is_activation(q) || q->ne[0] % (rows->k_dim * rows->n_heads) != 0)
        return "it must be F32 and have k_dim elements for each head, and as many heads for each KV head of "
               "the layer";
    if (!isfinite(config->scale) || !isfinite(config->softcap) || config->softcap < 0)
        return "the scale must be finite, and the cap finite and at least 0";
    if (sinks && (sinks->type != TSR_TYPE_F32 || !tsr_tensor_is_weight(sinks) ||
                  tsr_tensor_rows(sinks) != 1 || sinks->ne[0] != q->ne[0] / rows->k_dim))
        return "the sinks must be an F32 weight of one row with an element per head";
    return NULL;
}

static bool same_rows(const tsr_kv_rows *a, const tsr_kv_rows *b)
{
    return a->k_dim == b->k_dim && a->v_dim == b->v_dim && a->n_heads == b->n_heads && a->whole == b->whole &&
           a->v_in_k == b->v_in_k;
}

/* The same of its selection, and of one layer more. */
static const char *find_fault_of_more(const tsr_kv *kv, int layer, const tsr_attention_config *config,
                                      const tsr_tensor *q)
{
    const tsr_tensor *selection = config->selection;
    const tsr_kv_rows *rows = tsr_kv_layer_rows(kv, layer);
    const int group = tsr_kv_group_of(kv, layer), more = config->more_layer;
    const int selected = config->sees_more ? tsr_kv_group_of(kv, more) : group;
    const int64_t page = tsr_kv_page_positions(kv, selected);
    if (tsr_kv_ratio_of(kv, group) > 1)
        return "the KV layer has a ratio, so the first positions see no key; pass it as more_layer";
    if (config->sees_more && !same_rows(rows, tsr_kv_layer_rows(kv, more)))
        return "more_layer must have heads, keys and values of the sizes of the attention's own layer";
    if (tsr_kv_window(kv, selected) > 0 && (config->sees_more || selection))
        return "more_layer, and a layer whose positions are selected, must see all positions";
    if (!selection)
        return NULL;
    const tsr_node_args *args = &((const tsr_node *)selection)->args;
    if (selection->op != TSR_OP_SELECT || selection->ne[1] != q->ne[1])
        return "the selection must be a tsr_select() for every token";
    if (args->n_lists != 1 && args->n_lists != rows->n_heads)
        return "the selection must have one list, or one for each KV head";
    if (args->kv != kv || tsr_kv_page_positions(kv, tsr_kv_group_of(kv, args->layer)) != page)
        return "the selection must be of a layer of the same region and ratio";
    return NULL;
}

/* Whether the operands are those of an attention; otherwise the graph's failure is recorded. */
static bool check_attention(tsr_graph *graph, const tsr_kv_inputs *inputs, int layer, tsr_tensor *q,
                            const tsr_attention_config *config)
{
    if (tsr_graph_misses(graph, "attention", &q, 1) ||
        (config->selection && tsr_graph_misses(graph, "attention", &config->selection, 1)) ||
        !tsr_kv_inputs_check(graph, "attention", inputs, layer, q) ||
        (config->sees_more && !tsr_kv_inputs_check(graph, "attention", inputs, config->more_layer, q)))
        return false;
    const char *fault = find_fault(tsr_kv_layer_rows(inputs->kv, layer), q, config);
    fault = fault ? fault : find_fault_of_more(inputs->kv, layer, config, q);
    if (fault)
        tsr_graph_refuse(graph, "attention", q, fault);
    return !fault;
}

tsr_tensor *tsr_attention(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *q,
                          const tsr_attention_config *given)
{
    tsr_attention_config config = tsr_attention_config_default();
    const tsr_status status = tsr_config_read(
        "tsr_attention_config", given, offsetof(tsr_attention_config, selection), &config, sizeof config);
    if (status != TSR_OK)
        return tsr_graph_fail(graph, status);
    if (!check_attention(graph, inputs, layer, q, &config))
        return NULL;
    const tsr_kv_rows *rows = tsr_kv_layer_rows(inputs->kv, layer);
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
    node->args.has_more = config.sees_more;
    node->args.more_layer = config.more_layer;
    if (config.sees_more)
        node->tensor.src[4] = tsr_kv_inputs_table(inputs, config.more_layer);
    if (config.selection) {
        const tsr_node_args *of_selection = &((const tsr_node *)config.selection)->args;
        node->tensor.src[config.sees_more ? 5 : 4] = config.selection;
        node->args.select = of_selection->select;
        node->args.n_lists = of_selection->n_lists;
    }
    return &node->tensor;
}
