/* Attention over a KV region by the public headers alone: a model of two layers with random weights, steps on
 * it, and a double-precision loop over the products that the graph itself gives, to compare with. The first
 * layer sees all positions and has sinks, the second has a window and a cap. */
#ifndef TSR_TESTS_PUBLIC_ATTENTION_H
#define TSR_TESTS_PUBLIC_ATTENTION_H

#include <tsr/tsr.h>

enum {
    N_EMBD = 64,
    N_KV = 3,
    GROUP = 2,
    N_HEADS = N_KV * GROUP,
    K_DIM = 32,
    V_DIM = 16,
    N_LAYERS = 2,
    WINDOW = 5,
    N_CTX = 200,
    N_SEQ = 3,
    N_BATCH = 9,
    MAX_LENGTH = 64,
    N_OUT = N_HEADS * V_DIM
};

enum { Q_ROWS, KV_ROWS, WHOLE, ATTENTION_WAYS };

typedef struct attention_model {
    tsr_runtime *rt;
    tsr_context *contexts[ATTENTION_WAYS];
    tsr_buffer *buffers[ATTENTION_WAYS];
    tsr_tensor *wq[N_LAYERS], *wk[N_LAYERS], *wv[N_LAYERS], *sinks, *factor;
    tsr_kv *kv;
} attention_model;

/* On the device that has all of split[3], or over all three. */
void attention_open(attention_model *m, const float *split);
void attention_close(attention_model *m);

/* The config of the model's region, with its layers in layers[N_LAYERS]. */
tsr_kv_config attention_kv_config(const attention_model *m, tsr_kv_layer_config layers[N_LAYERS]);

typedef struct attention_step {
    int n_tokens;
    tsr_graph *graph;
    tsr_program *program;
    tsr_kv_inputs *inputs;
    tsr_tensor *x, *q[N_LAYERS], *k[N_LAYERS], *v[N_LAYERS], *y[N_LAYERS];
} attention_step;

void attention_build(const attention_model *m, int n_tokens, attention_step *s);
void attention_free(attention_step *s);

/* Keys and values of every sequence as the test has them. */
typedef struct attention_history {
    int64_t lengths[N_SEQ];
    float k[N_LAYERS][N_SEQ][MAX_LENGTH][N_KV * K_DIM];
    float v[N_LAYERS][N_SEQ][MAX_LENGTH][N_KV * V_DIM];
    float sinks[N_HEADS];
} attention_history;

/* Run a step with random x on sequences seqs[n_tokens] (NULL: all 0), keep its keys and values, and compare
 * with the loop. The results are appended at *out. */
void attention_run(const attention_model *m, attention_step *s, const int32_t *seqs, uint64_t seed,
                   attention_history *h, float **out);

/* All elements of a tensor. */
void attention_get(const tsr_tensor *tensor, float *out);

#endif
