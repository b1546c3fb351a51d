/* 07: a llama with model code of one's own.
 *
 * The tensors of a GGUF file are placed in split buffers by a tensor_split array, the KV region follows the
 * weights of keys, and the graph of a step is built op by op. No op mentions a device: the places of the
 * weights decide what each computes. A text is generated for four splits, and all logits are compared with
 * those of the library's own model layer (tsr/session.h), to the bit.
 *
 *     build/bin/07_llama llama.gguf "Once upon a time"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/tsr.h>

#define TRY(call)                                                        \
    do {                                                                 \
        if ((call) != TSR_OK) {                                          \
            fprintf(stderr, "%s failed: %s\n", #call, tsr_last_error()); \
            goto out;                                                    \
        }                                                                \
    } while (0)

enum { N_DEVICES = 3, N_PREDICT = 10, MAX_PROMPT = 256, MAX_LAYERS = 128, MAX_ROT = 256 };

static const float splits[][N_DEVICES] = {{1}, {1, 1}, {3, 1}, {1, 2, 5}};

/* How tensors are divided: each way is a buffer type, and has a context for its tensors. */
enum { BY_ROW, Q_ROWS, KV_ROWS, O_COLUMNS, FFN_ROWS, FFN_COLUMNS, N_WAYS };

typedef struct layer {
    tsr_tensor *attn_norm, *wq, *wk, *wv, *wo, *ffn_norm, *gate, *up, *down;
} layer;

typedef struct llama {
    tsr_runtime *rt;
    const tsr_gguf *gguf;
    uint64_t n_layers, n_head, n_head_kv, head_dim; /* all elements of a head are rotated */
    double eps, rope_base;
    tsr_context *contexts[N_WAYS];
    tsr_buffer *buffers[N_WAYS];
    tsr_tensor *weights[9 * MAX_LAYERS + 3]; /* all of them */
    int n_weights;
    tsr_tensor *embedding, *norm, *output;
    layer layers[MAX_LAYERS];
    tsr_kv *kv;
} llama;

/* A tensor of the file, in one of the contexts. NULL, which the ops of a graph refuse: the file lacks it. */
static tsr_tensor *describe(llama *m, int way, const char *format, int l)
{
    char name[64];
    snprintf(name, sizeof name, format, l);
    const tsr_gguf_tensor *t = tsr_gguf_find_tensor(m->gguf, name);
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
        TRY(status = tsr_tensors_alloc(m->contexts[way], tsr_split_buffer_type_ex(m->rt, &config),
                                       &m->buffers[way]));
    }
    for (int i = 0; i < m->n_weights; i++) {
        const tsr_gguf_tensor *t = tsr_gguf_find_tensor(m->gguf, tsr_tensor_name(m->weights[i]));
        TRY(status = tsr_tensor_set(m->weights[i], t->data, 0, t->bytes));
    }
out:
    return status;
}

static tsr_status load(llama *m, const float tensor_split[N_DEVICES])
{
    tsr_status status;
    tsr_kv_layer_config layers[MAX_LAYERS];
    TRY(status = tsr_gguf_get_u64(m->gguf, "llama.block_count", &m->n_layers));
    TRY(status = tsr_gguf_get_u64(m->gguf, "llama.attention.head_count", &m->n_head));
    TRY(status = tsr_gguf_get_u64(m->gguf, "llama.attention.head_count_kv", &m->n_head_kv));
    TRY(status = tsr_gguf_get_u64(m->gguf, "llama.rope.dimension_count", &m->head_dim));
    TRY(status = tsr_gguf_get_f64(m->gguf, "llama.rope.freq_base", &m->rope_base));
    TRY(status = tsr_gguf_get_f64(m->gguf, "llama.attention.layer_norm_rms_epsilon", &m->eps));
    if (m->n_layers > MAX_LAYERS || m->head_dim > MAX_ROT || m->n_head_kv == 0)
        return TSR_ERR_UNSUPPORTED;
    for (int way = 0; way < N_WAYS; way++)
        TRY(status = tsr_context_create(m->rt, &m->contexts[way]));
    describe_all(m);
    TRY(status = place_weights(m, tensor_split));
    const int64_t dim = (int64_t)m->head_dim;
    for (int l = 0; l < (int)m->n_layers; l++) /* the KV heads of a layer are where its W_k is */
        layers[l] = (tsr_kv_layer_config){.wk = m->layers[l].wk, .k_dim = dim, .v_dim = dim};
    tsr_kv_config config = tsr_kv_config_default();
    config.layers = layers;
    config.n_layers = (int)m->n_layers;
    config.n_ctx = MAX_PROMPT + N_PREDICT;
    TRY(status = tsr_kv_create(m->rt, &config, &m->kv));
out:
    return status;
}

static void unload(llama *m)
{
    tsr_kv_destroy(m->kv);
    for (int way = 0; way < N_WAYS; way++) {
        tsr_buffer_destroy(m->buffers[way]);
        tsr_context_destroy(m->contexts[way]);
    }
}

/* -- a step -- */

typedef struct step {
    int64_t n_tokens;
    tsr_graph *graph;
    tsr_program *program;
    tsr_kv_inputs *inputs;
    tsr_tensor *tokens, *table, *last, *logits;
} step;

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

/* The logits of the last of n tokens of one sequence. */
static tsr_status build_step(const llama *m, int64_t n_tokens, step *st)
{
    tsr_status status;
    TRY(status = tsr_graph_create(m->rt, &st->graph));
    st->n_tokens = n_tokens;
    st->tokens = tsr_graph_input(st->graph, TSR_TYPE_I32, n_tokens, 1, "tokens");
    st->table = tsr_graph_input(st->graph, TSR_TYPE_F32, (int64_t)m->head_dim, n_tokens, "rope_table");
    st->last = tsr_graph_input(st->graph, TSR_TYPE_I32, 1, 1, "last");
    st->inputs = tsr_graph_kv_inputs(st->graph, m->kv, n_tokens);
    tsr_tensor *x = tsr_get_rows(st->graph, m->embedding, st->tokens);
    for (int l = 0; l < (int)m->n_layers; l++)
        x = build_layer(m, st, l, x);
    x = tsr_rms_norm(st->graph, tsr_get_rows(st->graph, x, st->last), m->norm, (float)m->eps);
    st->logits = tsr_graph_output(st->graph, tsr_mul_mat(st->graph, m->output, x));
    TRY(status = tsr_program_compile(st->graph, NULL, &st->program));
out:
    return status;
}

static tsr_status run_step(const llama *m, step *st, const int32_t *tokens, float *logits)
{
    static float rows[MAX_PROMPT * MAX_ROT];
    int32_t positions[MAX_PROMPT], last = (int32_t)st->n_tokens - 1;
    tsr_rope_config rope = tsr_rope_config_default();
    tsr_status status;
    rope.n_rot = (int64_t)m->head_dim;
    rope.base = m->rope_base;
    TRY(status = tsr_kv_inputs_append(st->inputs, NULL, positions)); /* all tokens to sequence 0 */
    TRY(status = tsr_rope_fill(&rope, positions, st->n_tokens, rows));
    TRY(status = tsr_tensor_set(st->table, rows, 0, tsr_tensor_bytes(st->table)));
    TRY(status = tsr_tensor_set(st->tokens, tokens, 0, tsr_tensor_bytes(st->tokens)));
    TRY(status = tsr_tensor_set(st->last, &last, 0, sizeof last));
    TRY(status = tsr_program_run(st->program));
    TRY(status = tsr_tensor_get(st->logits, logits, 0, tsr_tensor_bytes(st->logits)));
out:
    return status;
}

/* -- a text, with this code and with the model layer -- */

/* The likeliest next tokens, and the logits of each; by the model layer if `session` is not NULL. */
static int generate(const llama *m, tsr_session *session, const int32_t *prompt, int64_t n_prompt,
                    int64_t n_vocab, int32_t *tokens, float *logits)
{
    int failed = 1;
    step steps[2] = {{0}}; /* of the prompt, and of one token */
    tsr_sampler *sampler = NULL;
    tsr_sampler_config greedy = tsr_sampler_config_default();
    greedy.temperature = 0;
    TRY(tsr_sampler_create(&greedy, n_vocab, &sampler));
    for (int i = 0; i < 2 && !session; i++)
        TRY(build_step(m, i == 0 ? n_prompt : 1, &steps[i]));
    tsr_batch batch = {.n_tokens = n_prompt, .tokens = prompt};
    for (int i = 0; i < N_PREDICT; i++, logits += n_vocab) {
        TRY(session ? tsr_session_decode(session, &batch, logits)
                    : run_step(m, &steps[i > 0], batch.tokens, logits));
        TRY(tsr_sampler_sample(sampler, logits, n_vocab, &tokens[i]));
        batch = (tsr_batch){.n_tokens = 1, .tokens = &tokens[i]};
    }
    failed = 0;
out:
    for (int i = 0; i < 2; i++) {
        tsr_program_destroy(steps[i].program);
        tsr_graph_destroy(steps[i].graph);
    }
    tsr_sampler_destroy(sampler);
    return failed;
}

/* The same text with this code and a split: the same logits? */
static int check(tsr_runtime *rt, const tsr_gguf *gguf, const float split[N_DEVICES], const int32_t *prompt,
                 int64_t n_prompt, int64_t n_vocab, const float *expected)
{
    int failed = 1;
    int32_t tokens[N_PREDICT];
    llama m = {.rt = rt, .gguf = gguf};
    float *logits = malloc((size_t)n_vocab * N_PREDICT * sizeof *logits);
    TRY(logits ? load(&m, split) : TSR_ERR_MEMORY);
    failed = generate(&m, NULL, prompt, n_prompt, n_vocab, tokens, logits) ||
             memcmp(expected, logits, (size_t)n_vocab * N_PREDICT * sizeof *logits) != 0;
    for (int d = 0; d < N_DEVICES; d++)
        printf("%s%g (%zu bytes of KV)", d ? ", " : "tensor_split ", (double)split[d],
               tsr_kv_reserved_bytes(m.kv, d));
    puts(failed ? ": OTHER LOGITS than the model layer's" : ": the model layer's logits, to the bit");
out:
    unload(&m);
    free(logits);
    return failed;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "examples/models/glossary-7m-Q8_0.gguf";
    const char *prompt = argc > 2 ? argv[2] : "lighthouse (n.):";
    int32_t ids[MAX_PROMPT], tokens[N_PREDICT];
    size_t n_ids;
    int failed = 1;
    tsr_gguf *gguf = NULL;
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    tsr_tokenizer *tokenizer = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:3,threads=1";
    TRY(tsr_runtime_open(&config, &rt));
    TRY(tsr_gguf_open(path, NULL, &gguf));
    TRY(tsr_tokenizer_create(gguf, &tokenizer));
    TRY(tsr_tokenizer_encode(tokenizer, prompt, strlen(prompt), TSR_ENCODE_ADD_SPECIAL, ids, MAX_PROMPT,
                             &n_ids));
    TRY(tsr_model_open(rt, path, NULL, &model));
    TRY(tsr_session_create(model, &session));
    const int64_t n_vocab = tsr_tokenizer_n_vocab(tokenizer);
    float *expected = malloc((size_t)n_vocab * N_PREDICT * sizeof *expected);
    failed = !expected || generate(NULL, session, ids, (int64_t)n_ids, n_vocab, tokens, expected);
    for (size_t i = 0; i < sizeof splits / sizeof *splits && !failed; i++)
        failed = check(rt, gguf, splits[i], ids, (int64_t)n_ids, n_vocab, expected);
    for (int i = 0; i < N_PREDICT && !failed; i++) {
        const tsr_bytes piece = tsr_tokenizer_piece(tokenizer, tokens[i]);
        printf("%.*s%s", (int)piece.bytes, piece.data, i + 1 == N_PREDICT ? "\n" : "");
    }
    free(expected);
out:
    tsr_session_destroy(session);
    tsr_model_close(model);
    tsr_tokenizer_destroy(tokenizer);
    tsr_gguf_close(gguf);
    tsr_runtime_close(rt);
    return failed;
}
