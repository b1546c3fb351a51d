/* 07: a llama with model code of one's own.
 *
 * The tensors of a GGUF file are placed in split buffers by a tensor_split array, the KV region follows the
 * weights of keys, and the graph of a step is built op by op. No op mentions a device: the places of the
 * weights decide what each computes. A text is generated for four splits, and all logits are compared with
 * those of the library's own model layer (tsr/session.h), to the bit.
 *
 *     build/bin/07_llama llama.gguf "Once upon a time"
 */
#include "compare.h"

enum { MAX_LAYERS = 128 };

/* How tensors are divided: each way is a buffer type, and has a context for its tensors. */
enum { BY_ROW, Q_ROWS, KV_ROWS, O_COLUMNS, FFN_ROWS, FFN_COLUMNS, N_WAYS };

typedef struct layer {
    tsr_tensor *attn_norm, *wq, *wk, *wv, *wo, *ffn_norm, *gate, *up, *down;
} layer;

typedef struct llama {
    opened_model opened;
    uint64_t n_layers, n_head, n_head_kv, head_dim; /* all elements of a head are rotated */
    double eps;
    tsr_context *contexts[N_WAYS];
    tsr_buffer *buffers[N_WAYS];
    tsr_tensor *weights[9 * MAX_LAYERS + 3]; /* all of them */
    int n_weights;
    tsr_tensor *embedding, *norm, *output;
    layer layers[MAX_LAYERS];
} llama;

/* A tensor of the file, in one of the contexts. NULL, which the ops of a graph refuse: the file lacks it. */
static tsr_tensor *describe(llama *m, int way, const char *format, int l)
{
    char name[64];
    snprintf(name, sizeof name, format, l);
    const tsr_gguf_tensor *t = tsr_gguf_find_tensor(m->opened.gguf, name);
    tsr_tensor *w = t ? tsr_tensor_2d(m->contexts[way], t->type, t->ne[0], t->ne[1], name) : NULL;
    return w ? m->weights[m->n_weights++] = w : NULL;
}

static void describe_all(llama *m)
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
                               .gate = describe(m, FFN_ROWS, "blk.%d.ffn_gate.weight", l),
                               .up = describe(m, FFN_ROWS, "blk.%d.ffn_up.weight", l),
                               .down = describe(m, FFN_COLUMNS, "blk.%d.ffn_down.weight", l)};
}

/* Divide rows or columns in whole granules, and copy the weights to their devices. KV heads take their query
 * heads and these heads' columns of W_o along, rows of gate and up the same columns of down. */
static tsr_status place_weights(llama *m, const float tensor_split[N_DEVICES])
{
    tsr_status status = TSR_ERR_NOT_FOUND;
    int64_t heads, ffn, group = (int64_t)(m->n_head / m->n_head_kv);
    const layer *w = &m->layers[0];
    if (!w->wo || !w->down)
        goto out;
    TRY(status = tsr_granule_attention((int64_t)m->head_dim, (int64_t)m->n_head, (int64_t)m->n_head_kv,
                                       tsr_type_block_elems(tsr_tensor_type(w->wo)), &heads));
    TRY(status =
            tsr_granule_ffn(tsr_tensor_ne(w->down)[0], tsr_type_block_elems(tsr_tensor_type(w->down)), &ffn));
    const int64_t kv_rows = heads * (int64_t)m->head_dim, q_rows = group * kv_rows;
    const int64_t granules[N_WAYS] = {1, q_rows, kv_rows, q_rows, ffn, ffn};
    for (int way = 0; way < N_WAYS; way++) {
        tsr_split_buffer_config config = tsr_split_buffer_config_default();
        config.axis = way == O_COLUMNS || way == FFN_COLUMNS ? 0 : 1;
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
    llama *m = (llama *)opened; /* its first member */
    tsr_status status;
    tsr_kv_layer_config layers[MAX_LAYERS];
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.block_count", &m->n_layers));
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.attention.head_count", &m->n_head));
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.attention.head_count_kv", &m->n_head_kv));
    TRY(status = tsr_gguf_get_u64(m->opened.gguf, "llama.rope.dimension_count", &m->head_dim));
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
    llama *m = (llama *)opened;
    tsr_kv_destroy(m->opened.kv);
    for (int way = 0; way < N_WAYS; way++) {
        tsr_buffer_destroy(m->buffers[way]);
        tsr_context_destroy(m->contexts[way]);
    }
}

static tsr_tensor *build_layer(const llama *m, const step *st, int l, tsr_tensor *x)
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
    h = tsr_swiglu(g, tsr_mul_mat(g, w->gate, h), tsr_mul_mat(g, w->up, h));
    return tsr_add(g, x, tsr_mul_mat(g, w->down, h));
}

static tsr_tensor *build(const opened_model *opened, const step *st)
{
    const llama *m = (const llama *)opened;
    tsr_tensor *x = tsr_get_rows(st->graph, m->embedding, st->tokens);
    for (int l = 0; l < (int)m->n_layers; l++)
        x = build_layer(m, st, l, x);
    x = tsr_rms_norm(st->graph, tsr_get_rows(st->graph, x, st->last), m->norm, (float)m->eps);
    return tsr_mul_mat(st->graph, m->output, x);
}

int main(int argc, char **argv)
{
    static const engine llama_engine = {sizeof(llama), load, unload, build};
    return compare(&llama_engine, argc > 1 ? argv[1] : "examples/models/glossary-7m-Q8_0.gguf",
                   argc > 2 ? argv[2] : "lighthouse (n.):");
}
