/* 08: a mixture of experts with model code of one's own: Mixtral, as GGUF files have it.
 *
 * Attention and its KV region are as in 07_llama.c. The FFN is a router and experts (tsr/experts.h): the
 * matrices of a layer's experts are three tensors, of whose experts each device has some columns, as it would
 * have of a dense FFN. A text is generated for four splits, and all logits are compared with those of the
 * library's own model layer, to the bit.
 *
 *     build/bin/08_mixture mixture.gguf "Once upon a time"
 */
#include "compare.h"

enum { MAX_LAYERS = 128 };

/* How tensors are divided: each way is a buffer type, and has a context for its tensors. */
enum { BY_ROW, Q_ROWS, KV_ROWS, O_COLUMNS, EXPERT_ROWS, EXPERT_COLUMNS, N_WAYS };

typedef struct layer {
    tsr_tensor *attn_norm, *wq, *wk, *wv, *wo, *ffn_norm, *router, *gate, *up, *down;
} layer;

typedef struct mixture {
    opened_model opened;
    uint64_t n_layers, n_head, n_head_kv, head_dim; /* all elements of a head are rotated */
    uint64_t n_expert_used;
    int64_t granule; /* columns of an expert */
    double eps;
    tsr_context *contexts[N_WAYS];
    tsr_buffer *buffers[N_WAYS];
    tsr_tensor *weights[10 * MAX_LAYERS + 3]; /* all of them */
    int n_weights;
    tsr_tensor *embedding, *norm, *output;
    layer layers[MAX_LAYERS];
} mixture;

/* A tensor of the file, in one of the contexts. NULL, which the ops of a graph refuse: the file lacks it. */
static tsr_tensor *describe(mixture *m, int way, const char *format, int l)
{
    char name[64];
    snprintf(name, sizeof name, format, l);
    const tsr_gguf_tensor *t = tsr_gguf_find_tensor(m->opened.gguf, name);
    if (!t)
        return NULL;
    int64_t ne0 = t->ne[0], ne1 = t->ne[1] * t->ne[2];
    if (way == EXPERT_ROWS) { /* all rows of an expert are one row, which is divided */
        ne0 = t->ne[0] * t->ne[1];
        ne1 = t->ne[2];
    }
    tsr_tensor *w = tsr_tensor_2d(m->contexts[way], t->type, ne0, ne1, name);
    return w ? m->weights[m->n_weights++] = w : NULL;
}

static void describe_all(mixture *m)
{
    m->embedding = describe(m, BY_ROW, "token_embd.weight", 0);
    m->norm = describe(m, BY_ROW, "output_norm.weight", 0); /* of one row: a copy on every device in use */
    m->output = describe(m, BY_ROW, "output.weight", 0);
    for (int l = 0; l < (int)m->n_layers; l++)
        m->layers[l] = (layer){.attn_norm = describe(m, BY_ROW, "blk.%d.attn_norm.weight", l),
                               .wq = describe(m, Q_ROWS, "blk.%d.attn_q.weight", l),
                               .wk = describe(m, KV_ROWS, "blk.%d.attn_k.weight", l),
                               .wv = describe(m, KV_ROWS, "blk.%d.attn_v.weight", l),
                               .wo = describe(m, O_COLUMNS, "blk.%d.attn_output.weight", l),
                               .ffn_norm = describe(m, BY_ROW, "blk.%d.ffn_norm.weight", l),
                               .router = describe(m, BY_ROW, "blk.%d.ffn_gate_inp.weight", l),
                               .gate = describe(m, EXPERT_ROWS, "blk.%d.ffn_gate_exps.weight", l),
                               .up = describe(m, EXPERT_ROWS, "blk.%d.ffn_up_exps.weight", l),
                               .down = describe(m, EXPERT_COLUMNS, "blk.%d.ffn_down_exps.weight", l)};
}

/* Divide rows or columns in whole granules, and copy the weights to their devices. KV heads take their query
 * heads and these heads' columns of W_o along, columns of each expert's down the same rows of gate and up. */
static tsr_status place_weights(mixture *m, const float tensor_split[N_DEVICES])
{
    tsr_status status = TSR_ERR_NOT_FOUND;
    int64_t heads, group = (int64_t)(m->n_head / m->n_head_kv);
    const layer *w = &m->layers[0];
    if (!w->wo || !w->down || !m->embedding)
        goto out;
    TRY(status = tsr_granule_attention((int64_t)m->head_dim, (int64_t)m->n_head, (int64_t)m->n_head_kv,
                                       tsr_type_block_elems(tsr_tensor_type(w->wo)), &heads));
    TRY(status = tsr_granule_ffn(tsr_tensor_ne(w->down)[0], tsr_type_block_elems(tsr_tensor_type(w->down)),
                                 &m->granule));
    const int64_t kv_rows = heads * (int64_t)m->head_dim, q_rows = group * kv_rows;
    const int64_t granules[N_WAYS] = {
        1, q_rows, kv_rows, q_rows, m->granule * tsr_tensor_ne(m->embedding)[0], m->granule};
    for (int way = 0; way < N_WAYS; way++) {
        tsr_split_buffer_config config = tsr_split_buffer_config_default();
        config.axis = way >= O_COLUMNS ? 0 : 1;
        config.granule = granules[way];
        config.tensor_split = tensor_split;
        config.n_tensor_split = N_DEVICES;
        TRY(status = tsr_tensors_alloc(m->contexts[way], tsr_split_buffer_type_ex(m->opened.rt, &config),
                                       &m->buffers[way]));
    }
    for (int i = 0; i < m->n_weights; i++) {
        const tsr_gguf_tensor *t = tsr_gguf_find_tensor(m->opened.gguf, tsr_tensor_name(m->weights[i]));
        TRY(status = tsr_tensor_set(m->weights[i], t->data, 0, t->bytes));
    }
out:
    return status;
}

static tsr_status load(opened_model *opened, const float tensor_split[N_DEVICES])
{
    mixture *m = (mixture *)opened; /* its first member */
    tsr_status status;
    tsr_kv_layer_config layers[MAX_LAYERS];
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.block_count", &m->n_layers));
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.attention.head_count", &m->n_head));
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.attention.head_count_kv", &m->n_head_kv));
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.rope.dimension_count", &m->head_dim));
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.expert_used_count", &m->n_expert_used));
    TRY(status = tsr_gguf_get_f64(m->opened.gguf, "llama.rope.freq_base", &m->opened.rope.base));
    TRY(status = tsr_gguf_get_f64(m->opened.gguf, "llama.attention.layer_norm_rms_epsilon", &m->eps));
    if (m->n_layers > MAX_LAYERS || m->head_dim > MAX_ROT || m->n_head_kv == 0)
        return TSR_ERR_UNSUPPORTED;
    for (int way = 0; way < N_WAYS; way++)
        TRY(status = tsr_context_create(m->opened.rt, &m->contexts[way]));
    describe_all(m);
    TRY(status = place_weights(m, tensor_split));
    const int64_t dim = opened->rope.n_rot = (int64_t)m->head_dim;
    for (int l = 0; l < (int)m->n_layers; l++) /* the KV heads of a layer are where its W_k is */
        layers[l] = (tsr_kv_layer_config){.wk = m->layers[l].wk, .k_dim = dim, .v_dim = dim};
    tsr_kv_config config = tsr_kv_config_default();
    config.layers = layers;
    config.n_layers = (int)m->n_layers;
    config.n_ctx = MAX_PROMPT + N_PREDICT;
    TRY(status = tsr_kv_create(m->opened.rt, &config, &m->opened.kv));
out:
    return status;
}

static void unload(opened_model *opened)
{
    mixture *m = (mixture *)opened;
    tsr_kv_destroy(m->opened.kv);
    for (int way = 0; way < N_WAYS; way++) {
        tsr_buffer_destroy(m->buffers[way]);
        tsr_context_destroy(m->contexts[way]);
    }
}

static tsr_tensor *build_layer(const mixture *m, const step *st, int l, tsr_tensor *x)
{
    const layer *w = &m->layers[l];
    const int64_t dim = (int64_t)m->head_dim;
    tsr_graph *g = st->graph;
    tsr_tensor *h = tsr_rms_norm(g, x, w->attn_norm, (float)m->eps);
    tsr_tensor *q = tsr_rope(g, tsr_mul_mat(g, w->wq, h), st->table, dim, true);
    tsr_tensor *k = tsr_rope(g, tsr_mul_mat(g, w->wk, h), st->table, dim, true);
    tsr_kv_store(g, st->inputs, l, k, tsr_mul_mat(g, w->wv, h));
    x = tsr_add(g, x, tsr_mul_mat(g, w->wo, tsr_attention(g, st->inputs, l, q, NULL)));
    h = tsr_rms_norm(g, x, w->ffn_norm, (float)m->eps);
    tsr_routing_config routing = tsr_routing_config_default(); /* a softmax over the chosen experts */
    routing.n_used = (int64_t)m->n_expert_used;
    tsr_experts_config experts = tsr_experts_config_default();
    experts.gate = w->gate;
    experts.up = w->up;
    experts.down = w->down;
    experts.granule = m->granule;
    tsr_tensor *chosen = tsr_route(g, tsr_mul_mat(g, w->router, h), &routing);
    return tsr_add(g, x, tsr_experts(g, h, chosen, &experts));
}

static tsr_tensor *build(const opened_model *opened, const step *st)
{
    const mixture *m = (const mixture *)opened;
    tsr_tensor *x = tsr_get_rows(st->graph, m->embedding, st->tokens);
    for (int l = 0; l < (int)m->n_layers; l++)
        x = build_layer(m, st, l, x);
    x = tsr_rms_norm(st->graph, tsr_get_rows(st->graph, x, st->last), m->norm, (float)m->eps);
    return tsr_mul_mat(st->graph, m->output, x);
}

int main(int argc, char **argv)
{
    static const engine mixture_engine = {sizeof(mixture), load, unload, build};
    if (argc < 2) {
        fprintf(stderr, "usage: 08_mixture MODEL.gguf [PROMPT]    a llama with experts (Mixtral)\n");
        return 2;
    }
    return compare(&mixture_engine, argv[1], argc > 2 ? argv[2] : "Once upon a time");
}
