/* Attention over a KV region by the public headers alone (support/public_attention.h). */
#include "support/public_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/random.h"
#include "support/runner.h"

static const float softcap = 3;

static void fill(tsr_tensor *w, uint64_t seed, float size)
{
    const int64_t n = tsr_tensor_n_elements(w);
    float *data = malloc((size_t)n * sizeof *data);
    assert_non_null(data);
    for (int64_t i = 0; i < n; i++)
        data[i] = size * random_normal(&seed);
    runner_ok(tsr_tensor_set(w, data, 0, tsr_tensor_bytes(w)), "weight");
    free(data);
}

static const tsr_buffer_type *rows(tsr_runtime *rt, int64_t granule, const float *split)
{
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    config.granule = granule;
    config.tensor_split = split;
    config.n_tensor_split = 3;
    return tsr_split_buffer_type_ex(rt, &config);
}

tsr_kv_config attention_kv_config(const attention_model *m, tsr_kv_layer_config layers[N_LAYERS])
{
    tsr_kv_config config = tsr_kv_config_default();
    for (int l = 0; l < N_LAYERS; l++)
        layers[l] = (tsr_kv_layer_config){
            .wk = m->wk[l], .k_dim = K_DIM, .v_dim = V_DIM, .window = l == 1 ? WINDOW : 0};
    config.layers = layers;
    config.n_layers = N_LAYERS;
    config.type_k = config.type_v = TSR_TYPE_F32;
    config.n_ctx = N_CTX;
    config.n_seq_max = N_SEQ;
    config.n_batch = N_BATCH;
    return config;
}

void attention_open(attention_model *m, const float *split)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_kv_layer_config layers[N_LAYERS];
    const int64_t granules[ATTENTION_WAYS] = {GROUP * K_DIM, K_DIM, 1};
    *m = (attention_model){0};
    config.devices = "host:3,threads=1";
    runner_ok(tsr_runtime_open(&config, &m->rt), "runtime");
    for (int way = 0; way < ATTENTION_WAYS; way++)
        runner_ok(tsr_context_create(m->rt, &m->contexts[way]), "context");
    for (int l = 0; l < N_LAYERS; l++) {
        m->wq[l] = tsr_tensor_2d(m->contexts[Q_ROWS], TSR_TYPE_F32, N_EMBD, N_HEADS * K_DIM, "wq");
        m->wk[l] = tsr_tensor_2d(m->contexts[KV_ROWS], TSR_TYPE_F32, N_EMBD, N_KV * K_DIM, "wk");
    }
    tsr_context *of_values = m->contexts[KV_ROWS];
    runner_ok(tsr_tensors_alloc(of_values, rows(m->rt, K_DIM, split), &m->buffers[KV_ROWS]), "keys");
    for (int l = 0; l < N_LAYERS; l++)
        m->wv[l] = tsr_tensor_2d(m->contexts[WHOLE], TSR_TYPE_F32, N_EMBD, N_KV * V_DIM, "wv");
    runner_ok(tsr_tensors_alloc(m->contexts[WHOLE], rows(m->rt, V_DIM, split), &m->buffers[WHOLE]), "values");
    m->factor = tsr_tensor_1d(m->contexts[Q_ROWS], TSR_TYPE_F32, 1, "factor");
    m->sinks = tsr_tensor_1d(m->contexts[Q_ROWS], TSR_TYPE_F32, N_HEADS, "sinks");
    runner_ok(
        tsr_tensors_alloc(m->contexts[Q_ROWS], rows(m->rt, granules[Q_ROWS], split), &m->buffers[Q_ROWS]),
        "queries");
    for (int l = 0; l < N_LAYERS; l++) {
        fill(m->wq[l], 10 + (uint64_t)l, 0.3f);
        fill(m->wk[l], 20 + (uint64_t)l, 0.3f);
        fill(m->wv[l], 30 + (uint64_t)l, 0.3f);
    }
    fill(m->sinks, 40, 1);
    fill(m->factor, 50, 1);
    const tsr_kv_config kv = attention_kv_config(m, layers);
    runner_ok(tsr_kv_create(m->rt, &kv, &m->kv), "KV region");
}

void attention_close(attention_model *m)
{
    tsr_kv_destroy(m->kv);
    for (int way = 0; way < ATTENTION_WAYS; way++) {
        tsr_buffer_destroy(m->buffers[way]);
        tsr_context_destroy(m->contexts[way]);
    }
    tsr_runtime_close(m->rt);
}

void attention_build(const attention_model *m, int n_tokens, attention_step *s)
{
    *s = (attention_step){.n_tokens = n_tokens};
    runner_ok(tsr_graph_create(m->rt, &s->graph), "graph");
    tsr_graph *g = s->graph;
    s->x = tsr_graph_input(g, TSR_TYPE_F32, N_EMBD, n_tokens, "x");
    s->inputs = tsr_graph_kv_inputs(g, m->kv, n_tokens);
    for (int l = 0; l < N_LAYERS; l++) {
        tsr_attention_config config = tsr_attention_config_default();
        config.sinks = l == 0 ? m->sinks : NULL;
        config.softcap = l == 1 ? softcap : 0;
        config.scale = l == 1 ? 0.25f : 0;
        s->q[l] = tsr_graph_output(g, tsr_mul_mat(g, m->wq[l], s->x));
        s->k[l] = tsr_graph_output(g, tsr_mul_mat(g, m->wk[l], s->x));
        s->v[l] = tsr_graph_output(g, tsr_mul_mat(g, m->wv[l], s->x));
        tsr_kv_store(g, s->inputs, l, s->k[l], s->v[l]);
        s->y[l] = tsr_graph_output(g, tsr_attention(g, s->inputs, l, s->q[l], &config));
    }
    runner_ok(tsr_program_compile(g, NULL, &s->program), "compile");
}

void attention_free(attention_step *s)
{
    tsr_program_destroy(s->program);
    tsr_graph_destroy(s->graph);
}

/* -- the reference -- */

/* Head `head` of layer `l` of a token at `position`. */
static void reference_head(const attention_history *h, int l, int seq, int64_t position, const float *q,
                           int head, double y[V_DIM])
{
    const int64_t first = l == 1 && position >= WINDOW ? position - WINDOW + 1 : 0;
    const int kv_head = head / GROUP;
    double scores[MAX_LENGTH], most = l == 0 ? (double)h->sinks[head] : -1e30, sum = 0;
    for (int64_t p = first; p <= position; p++) {
        double dot = 0;
        for (int i = 0; i < K_DIM; i++)
            dot += (double)q[head * K_DIM + i] * (double)h->k[l][seq][p][kv_head * K_DIM + i];
        scores[p] = l == 1 ? (double)softcap * tanh(0.25 * dot / (double)softcap) : dot / sqrt(K_DIM);
        most = fmax(most, scores[p]);
    }
    memset(y, 0, V_DIM * sizeof *y);
    for (int64_t p = first; p <= position; p++) {
        const double weight = exp(scores[p] - most);
        sum += weight;
        for (int i = 0; i < V_DIM; i++)
            y[i] += weight * (double)h->v[l][seq][p][kv_head * V_DIM + i];
    }
    sum += l == 0 ? exp((double)h->sinks[head] - most) : 0;
    for (int i = 0; i < V_DIM; i++)
        y[i] /= sum;
}

void attention_get(const tsr_tensor *tensor, float *out)
{
    runner_ok(tsr_tensor_get(tensor, out, 0, tsr_tensor_bytes(tensor)), tsr_tensor_name(tensor));
}

void attention_run(const attention_model *m, attention_step *s, const int32_t *seqs, uint64_t seed,
                   attention_history *h, float **out)
{
    static float x[N_BATCH * N_EMBD], q[N_BATCH][N_HEADS * K_DIM], y[N_BATCH][N_OUT];
    static float k[N_BATCH][N_KV * K_DIM], v[N_BATCH][N_KV * V_DIM];
    int32_t positions[N_BATCH];
    for (int i = 0; i < s->n_tokens * N_EMBD; i++)
        x[i] = random_normal(&seed);
    runner_ok(tsr_tensor_set(s->x, x, 0, tsr_tensor_bytes(s->x)), "x");
    runner_ok(tsr_kv_inputs_append(s->inputs, seqs, positions), "append");
    runner_ok(tsr_program_run(s->program), "run");
    for (int t = 0; t < s->n_tokens; t++)
        assert_int_equal(positions[t], h->lengths[seqs ? seqs[t] : 0]++);
    for (int i = 0; i < N_SEQ; i++)
        assert_int_equal(tsr_kv_length(m->kv, i), h->lengths[i]);
    for (int l = 0; l < N_LAYERS; l++) {
        attention_get(s->q[l], q[0]);
        attention_get(s->k[l], k[0]);
        attention_get(s->v[l], v[0]);
        attention_get(s->y[l], y[0]);
        for (int t = 0; t < s->n_tokens; t++) {
            memcpy(h->k[l][seqs ? seqs[t] : 0][positions[t]], k[t], sizeof k[t]);
            memcpy(h->v[l][seqs ? seqs[t] : 0][positions[t]], v[t], sizeof v[t]);
        }
        for (int t = 0; t < s->n_tokens; t++)
            for (int head = 0; head < N_HEADS; head++) {
                double expected[V_DIM];
                reference_head(h, l, seqs ? seqs[t] : 0, positions[t], q[t], head, expected);
                for (int i = 0; i < V_DIM; i++) /* sums of up to 64 terms around 10, in F32 */
                    assert_true(fabs((double)y[t][head * V_DIM + i] - expected[i]) < 1e-4);
            }
        memcpy(*out, y, (size_t)s->n_tokens * sizeof y[0]);
        *out += s->n_tokens * N_OUT;
    }
}
