/** @file
 * The ops of transformers beyond those of tsr/graph.h: attention over a KV region, and parts of blocks.
 *
 * With these an engine builds a model's graph itself. A step is a graph of a fixed number of tokens, of any
 * sequences. Each token's sequence and position are inputs, which one object has and fills:
 *
 *     tsr_kv_inputs *inputs = tsr_graph_kv_inputs(graph, kv, n_tokens);
 *     tsr_tensor *table = tsr_graph_input(graph, TSR_TYPE_F32, n_rot, n_tokens, "rope_table");
 *     ...                                                     of each layer, h being the normed residual:
 *     tsr_tensor *q = tsr_rope(graph, tsr_mul_mat(graph, wq, h), table, head_dim, true);
 *     tsr_tensor *k = tsr_rope(graph, tsr_mul_mat(graph, wk, h), table, head_dim, true);
 *     tsr_kv_store(graph, inputs, layer, k, tsr_mul_mat(graph, wv, h));
 *     tsr_tensor *a = tsr_mul_mat(graph, wo, tsr_attention(graph, inputs, layer, q, NULL));
 *     ...                                                     then of each step:
 *     tsr_kv_inputs_append(inputs, seqs, positions);          room in the sequences, and all inputs
 *     tsr_rope_fill(&rope, positions, n_tokens, rows);
 *     tsr_tensor_set(table, rows, 0, tsr_tensor_bytes(table));
 *     tsr_program_run(program);
 *
 * W_q and W_k are divided by rows, W_v like W_k, and W_o by columns, with granules that hold the same heads:
 * g KV heads, the query heads that read them, and these heads' columns of W_o (tsr_granule_attention()). Then
 * keys, values and attention stay on the devices of their heads. All ops here give the same bits for every
 * split, and a token's result does not depend on the other tokens of its step.
 *
 * Errors, threads and ownership are those of tsr/graph.h: a constructor that fails returns NULL, and
 * tsr_program_compile() has the first failure of the graph.
 */
#ifndef TSR_OPS_H
#define TSR_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/graph.h>
#include <tsr/kv.h>

TSR_BEGIN_DECLS

/* -- attention -- */

/** The inputs of a step that say which sequence and position each token has. */
typedef struct tsr_kv_inputs tsr_kv_inputs;

/** Inputs of a graph for steps of n_tokens tokens. The graph owns them; `kv` must outlive the graph's
 * programs. A graph may have several, of several regions. NULL: n_tokens is less than 1, or, in a region with
 * windows, more than its n_batch; or the region is NULL or of another runtime. */
TSR_API tsr_kv_inputs *tsr_graph_kv_inputs(tsr_graph *graph, tsr_kv *kv, int64_t n_tokens);

/** Prepare a run: append token t to sequence seqs[t] (NULL: all to sequence 0), in the order of the tokens,
 * and fill in the inputs. positions_out[n_tokens] gets the position of each token in its sequence; may be
 * NULL. Neighbours of one sequence are computed faster than tokens in turns. The program must then run before
 * the next call; if its run fails, tsr_kv_trim() the sequences to the lengths before.
 *
 * TSR_ERR_INVALID: a sequence does not exist, or the graph has no program. TSR_ERR_FULL: the region has no
 * room for the tokens. TSR_ERR_MEMORY: a device could not commit memory. After a failure all sequences are as
 * they were. Blocks until the inputs are stored; allocates no host memory. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_inputs_append(tsr_kv_inputs *inputs, const int32_t *seqs,
                                                      int32_t *positions_out);

/** Store the keys k [n_kv_heads * k_dim, n_tokens] and values v [n_kv_heads * v_dim, n_tokens] of the step's
 * tokens in a layer of the region. Both are F32 and divided by rows of W_k, between the layer's heads; they
 * are rounded to the region's types. An attention that is made later in the same graph sees them. Returns a
 * tensor of no bytes. */
TSR_API tsr_tensor *tsr_kv_store(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *k,
                                 tsr_tensor *v);

/** How scores become weights. */
typedef struct tsr_attention_config {
    size_t size;   /**< sizeof(tsr_attention_config) */
    float scale;   /**< factor on scores; 0: 1 / sqrt(k_dim) */
    float softcap; /**< scores s become softcap * tanh(s / softcap); 0: they stay */
    /** In a layer with a window, a token sees the positions from the last multiple of the window on, instead
     * of the last positions */
    bool chunked;
    /** F32 weight with an element for each query head: a score that takes part in the softmax and has no
     * value. Whole on every device of q, or divided by the same heads. NULL: none */
    tsr_tensor *sinks;
} tsr_attention_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_attention_config_init(tsr_attention_config *config_out, size_t size);

/** The defaults: scale 1 / sqrt(k_dim), no cap, no chunks, no sinks. */
static inline tsr_attention_config tsr_attention_config_default(void)
{
    tsr_attention_config config;
    tsr_attention_config_init(&config, sizeof config);
    return config;
}

/** Attention of q [n_heads * k_dim, n_tokens] over the stored keys and values of each token's sequence, up to
 * the token's own position and inside the layer's window: softmax(scale * q k) v. The result is [n_heads *
 * v_dim, n_tokens]. n_heads is a multiple of the layer's KV heads; query head i reads KV head i / (n_heads /
 * n_kv_heads). q is F32 and divided between heads such that each device has the KV heads of its query heads;
 * the result is divided alike. `config` NULL: the defaults. */
TSR_API tsr_tensor *tsr_attention(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *q,
                                  const tsr_attention_config *config);

/* -- rotary embedding -- */

/** The angles of a rotary embedding: pair i of position p turns by p / factor * base^(-2i / n_rot) /
 * factors[i]. LongRoPE (arXiv:2402.13753) is such factors, of short or of long contexts, and a magnitude.
 *
 * With YaRN (arXiv:2309.00071, section 3.2) the division by `factor` is for slow pairs only: pairs that make
 * yarn_beta_fast turns and more over the trained context turn as trained, those of yarn_beta_slow and fewer
 * are divided, with a ramp between; and cos and sin grow by 0.1 ln(factor) + 1. */
typedef struct tsr_rope_config {
    size_t size;           /**< sizeof(tsr_rope_config) */
    int64_t n_rot;         /**< leading elements of a head that are rotated; even */
    double base;           /**< more than 0 */
    double factor;         /**< linear scaling: positions are divided by it; more than 0 */
    const float *factors;  /**< [n_rot / 2] of each pair (rope_freqs.weight of Llama 3); NULL: ones */
    double magnitude;      /**< factor on cos and sin, besides the growth; more than 0 */
    double yarn_n_ctx;     /**< YaRN: tokens of the context that the model was trained for; 0: no YaRN */
    double yarn_beta_fast; /**< turns above which a pair keeps its frequency; more than 0 */
    double yarn_beta_slow; /**< turns below which positions are divided by `factor`; more than 0 */
    /** The growth of cos and sin; 0: that of `factor`. Where scores have a part m of it already (DeepSeek) it
     * is (1 + g) / (1 + m g), g being 0.1 ln(factor) */
    double yarn_growth;
} tsr_rope_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_rope_config_init(tsr_rope_config *config_out, size_t size);

/** The defaults: base 10000, factor 1, no factors, magnitude 1, no YaRN (turns 32 and 1, the growth of the
 * factor); n_rot 0, which the caller sets. */
static inline tsr_rope_config tsr_rope_config_default(void)
{
    tsr_rope_config config;
    tsr_rope_config_init(&config, sizeof config);
    return config;
}

/** Compute the rows of a tsr_rope() table in host memory: rows[n_tokens][n_rot] get the (cos, sin) pairs of
 * positions[n_tokens], computed in double precision. TSR_ERR_INVALID: a parameter is out of its range or a
 * pointer is NULL. Any thread may call it. Allocates nothing. */
TSR_NODISCARD TSR_API tsr_status tsr_rope_fill(const tsr_rope_config *config, const int32_t *positions,
                                               int64_t n_tokens, float *rows);

/* -- parts of blocks -- */

/** Activations of a gated FFN. */
typedef enum tsr_glu_kind {
    TSR_GLU_SILU = 0,      /**< x / (1 + exp(-x)): tsr_swiglu() */
    TSR_GLU_GELU_TANH = 1, /**< the tanh form of gelu: tsr_geglu() */
    /** gpt-oss: with g = min(gate, 7) and u = up within [-7, 7], g / (1 + exp(-1.702 g)) and u + 1 */
    TSR_GLU_CLAMPED = 2,
    TSR_GLU_GELU_GATE = 3, /**< gelu(x) / x: what gelu multiplies x by */
    TSR_GLU_RELU = 4,      /**< max(x, 0); times x its square (arXiv:2109.08668) */
    TSR_GLU_SIGMOID = 5,   /**< 1 / (1 + exp(-x)): a gate for each element (arXiv:2505.06708) */
    TSR_GLU_CAPPED = 6,    /**< Step 3.5: min(silu(gate), limit), and up within [-limit, limit] */
    TSR_GLU_PLAIN = 7,     /**< x: the product of gate and up */
    TSR_GLU_BOUNDED = 8    /**< DeepSeek V4: silu(min(gate, limit)), and up within [-limit, limit] */
} tsr_glu_kind;

/** act(gate) * up, element by element; both are F32 of one shape. Operands that are divided alike stay
 * divided; otherwise both become whole. limit: more than 0 for TSR_GLU_CAPPED and TSR_GLU_BOUNDED, otherwise
 * ignored. */
TSR_API tsr_tensor *tsr_glu(tsr_graph *graph, tsr_glu_kind kind, float limit, tsr_tensor *gate,
                            tsr_tensor *up);

/** x times sigmoid(gate), which has as many rows; its ne0 divides that of x: a factor for each such part of a
 * row (each head). Divided like x if the gate is divided by the same parts, otherwise both become whole. */
TSR_API tsr_tensor *tsr_gate(tsr_graph *graph, tsr_tensor *x, tsr_tensor *gate);

/** x / rms(x) over every n elements of ne0 (each head), without a weight; n divides ne0. A division of x
 * between such parts stays. */
TSR_API tsr_tensor *tsr_rms_norm_plain(tsr_graph *graph, tsr_tensor *x, int64_t n, float eps);

/** x times an F32 weight of one element, which every device of x has. Divided like x. */
TSR_API tsr_tensor *tsr_scale_by(tsr_graph *graph, tsr_tensor *x, tsr_tensor *factor);

/** Elements [first, first + n) of every `period` elements of a row. */
typedef struct tsr_columns {
    int64_t period; /**< elements; divides ne0 */
    int64_t first;  /**< 0 .. period - n */
    int64_t n;      /**< at least 1 */
} tsr_columns;

/** Columns of x that repeat with a period, [ne0 / period * n, n_tokens]: e.g. the queries of a product that
 * has queries and gates of each head. A divided x keeps its division if no period is cut. */
TSR_API tsr_tensor *tsr_take_columns(tsr_graph *graph, tsr_tensor *x, tsr_columns columns);

TSR_END_DECLS
#endif
