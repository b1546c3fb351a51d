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
 * Latent attention (arXiv:2405.04434, section 2.1) stores one row for all heads: a KV layer that is `whole`
 * with its values in its keys. With c and r the parts of the row, and K_i and V_i a matrix of each head,
 *
 *     tsr_tensor *q = tsr_rope(graph, tsr_mul_mat(graph, wq, h), table, ...);    [p_i | s_i] of each head
 *     tsr_kv_store(graph, inputs, layer, r, c);
 *     q = tsr_mul_heads(graph, k_of_head, q, n_heads);                            [K_i p_i | s_i]
 *     tsr_tensor *a = tsr_attention(graph, inputs, layer, q, &config);            sums of c of each head
 *     a = tsr_mul_mat(graph, wo, tsr_mul_heads(graph, v_of_head, a, n_heads));
 *
 * (The rope table of such queries has a cosine of 1 and a sine of 0 for the pairs of p_i.)
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
#include <tsr/sampler.h>

TSR_BEGIN_DECLS

/* -- attention -- */

/** The most elements of a head's key and value. An attention with more is refused when it is compiled. */
enum { TSR_MAX_HEAD_DIM = 1024 };

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
 * tensor of no bytes.
 *
 * In a layer that is `whole`, k and v become whole on the devices that have the layer. With values in keys
 * (v_in_k), k has the k_dim - v_dim elements behind the value, or is v itself if there are none. A layer with
 * keys only (v_dim 0) takes k as v. With a ratio, the row of every last position of a group is stored, those
 * of the other positions are not. */
TSR_API tsr_tensor *tsr_kv_store(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *k,
                                 tsr_tensor *v);

/** The most heads of index queries, elements of an index key, and entries of all lists of a token. */
enum { TSR_MAX_INDEX_HEADS = 64, TSR_MAX_INDEX_DIM = 256, TSR_MAX_SELECTED = 8192 };

/** Which blocks of positions a token attends to. */
typedef struct tsr_select_rule {
    int64_t n_blocks; /**< entries of a list, at least 1 */
    int64_t block;    /**< consecutive positions of a block, at least 1; in a layer with a ratio, keys */
    int64_t n_local;  /**< last blocks, up to the token's own, that are in every list: 0 .. n_blocks */
} tsr_select_rule;

/** The blocks of positions that each token attends to, by index keys, which a layer of the region has: one
 * head on every device (`whole`), keys only. q is F32 [n_heads * k_dim, n_tokens]; weights are F32 [n_heads,
 * n_tokens], or NULL. Both become whole. With weights there is one list for all heads of the attention,
 * otherwise one for each of its KV heads, which are then n_heads:
 *
 *     score(p) = sum_h weights[t][h] * max(q[t][h] . k[p], 0)   (heads in order), or q[t][list] . k[p]
 *     score(b) = max of score(p) over the positions p up to the token's own of block b
 *
 * A list has the blocks with the n_blocks largest scores: the lower number first among equals, a NaN less
 * than any number, and local blocks before all others. Where host devices and GPUs have the keys, the first
 * device selects for all. The result is for tsr_attention_config.selection only: I32 [lists * n_blocks,
 * n_tokens], whole on the devices of the keys. Compiling refuses more than the numbers above
 * (TSR_ERR_UNSUPPORTED). */
TSR_API tsr_tensor *tsr_select(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *q,
                               tsr_tensor *weights, const tsr_select_rule *rule);

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
    /** A tsr_select() of the same graph: only these positions of the layer are seen, or, with more_layer, of
     * that one. NULL: all */
    tsr_tensor *selection;
    bool sees_more; /**< keys of more_layer are seen besides those of the layer, behind them in the softmax */
    /** With sees_more: a layer of the same region without a window, with heads, keys and values of the same
     * sizes. The window of the attention's own layer hides none of its keys */
    int more_layer;
} tsr_attention_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_attention_config_init(tsr_attention_config *config_out, size_t size);

/** The defaults: scale 1 / sqrt(k_dim), no cap, no chunks, no sinks, all positions of one layer. */
static inline tsr_attention_config tsr_attention_config_default(void)
{
    tsr_attention_config config;
    tsr_attention_config_init(&config, sizeof config);
    return config;
}

/** Attention of q [n_heads * k_dim, n_tokens] over the stored keys and values of each token's sequence, up to
 * the token's own position and inside the layer's window: softmax(scale * q k) v. The result is [n_heads *
 * v_dim, n_tokens]. n_heads is a multiple of the layer's KV heads; query head i reads KV head i / (n_heads /
 * n_kv_heads). q is F32 and divided between heads such that each device has the KV heads of its query heads
 * (a layer that is `whole`: the layer's one head); the result is divided alike. `config` NULL: the defaults.
 *
 * Refused: a layer with keys only, or with a ratio, of which the first positions see no key (a layer with a
 * ratio may be more_layer: there a token sees the keys of the groups that end at its position or before); a
 * selection in a layer with a window, without more_layer; a selection of other lists than one, or one for
 * each KV head, or of a layer with another ratio. */
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

/** RMS norm, or LayerNorm without a bias (`center`), over every head_dim elements of x, with an F32 weight of
 * ne0 of x elements: those of each head are its own. If the weight is divided between heads, x is divided
 * like it; a whole weight makes x whole. The result is divided like the weight. */
TSR_API tsr_tensor *tsr_heads_norm(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight, int64_t head_dim,
                                   bool center, float eps);

/** A matrix of each head times the first k elements of the head's part of x; the elements behind these follow
 * the product. w is a weight [k, n_rows * n_heads], the rows of one head after another: whole, or divided by
 * rows between heads. x is F32 [(k + rest) * n_heads, n_tokens] and becomes divided by the same heads, for
 * which every device must have its part, or whole. The result, [(n_rows + rest) * n_heads, n_tokens], is
 * divided like w. */
TSR_API tsr_tensor *tsr_mul_heads(tsr_graph *graph, tsr_tensor *w, tsr_tensor *x, int64_t n_heads);

/** Columns of x that repeat with a period, [ne0 / period * n, n_tokens]: e.g. the queries of a product that
 * has queries and gates of each head. A divided x keeps its division if no period is cut. */
TSR_API tsr_tensor *tsr_take_columns(tsr_graph *graph, tsr_tensor *x, tsr_columns columns);

/** The most operands of a tsr_concat(). */
enum { TSR_MAX_CONCAT = 8 };

/** The features of parts[n] (2 .. TSR_MAX_CONCAT) joined: part i is F32 [n_heads * dim_i, n_tokens], and the
 * result [n_heads * (dim_0 + ... + dim_(n-1)), n_tokens] has, of each head, its elements of part 0, then
 * those of part 1, and so on. n_heads 1 joins whole rows. parts[] is read during the call only.
 *
 * Parts that are all divided between the same heads stay divided, and so does the result. Otherwise all parts
 * become whole on the devices of the first one, where the result is: if one of them is whole or divided
 * otherwise, and for n_heads 1, since a division of a row does not go on in a longer row. */
TSR_API tsr_tensor *tsr_concat(tsr_graph *graph, tsr_tensor *const *parts, int n, int64_t n_heads);

/* -- the largest elements -- */

/** The k largest elements of every row of x (logits), F32 [ne0, n_tokens] with ne0 below 2^31, for
 * tsr_top_k_get() only: an output of the graph, whose bytes have no other meaning. k is 1 ..
 * TSR_MAX_CANDIDATES and at most ne0; 0: none are looked for, in as much memory. Of a divided x every device
 * finds those of its columns, and nothing is gathered. */
TSR_API tsr_tensor *tsr_top_k(tsr_graph *graph, tsr_tensor *x, int64_t k);

/** After a run, write the k largest elements of each row, with their columns as ids, to
 * candidates_out[n_tokens][k]: the largest first, the lowest id among equals; NaN and +infinity, which are
 * errors, come before all others. TSR_ERR_INVALID: `top_k` is no tsr_top_k() of a compiled graph.
 * TSR_ERR_MEMORY. Blocks until the elements have arrived. */
TSR_NODISCARD TSR_API tsr_status tsr_top_k_get(const tsr_tensor *top_k, tsr_candidate *candidates_out);

/* -- residual streams -- */

/** The most residual streams. */
enum { TSR_MAX_STREAMS = 8 };

/** The weights of n residual streams. */
typedef struct tsr_stream_rule {
    int64_t n;          /**< streams, 1 .. TSR_MAX_STREAMS */
    int64_t iterations; /**< with mixes: divisions by sums of columns and rows, at least 1 */
    bool mixes;         /**< there are weights of a block's result and of the mixing, too */
    float eps;          /**< is added to what is divided by, and to weights */
    tsr_tensor *scale;  /**< F32 weight, whole: [3], without mixes [1] */
    tsr_tensor *base;   /**< F32 weight, whole: as long as a row of x */
} tsr_stream_rule;

/** The weights of residual streams (hyper-connections, arXiv:2409.19606, with a mixing that is doubly
 * stochastic, arXiv:2512.24880): of their sum that a block reads, of the block's result in each of them, and
 * of stream j in stream k. x and the result are F32 [n + n + n * n, n_tokens], or, without `mixes`, [n,
 * n_tokens], whole on the devices of the rule's weights:
 *
 *     pre = sigmoid(scale[0] x + base) + eps        post = 2 sigmoid(scale[1] x + base)
 *     C = softmax over k of (scale[2] x[j][k] + base[j][k]), + eps;  columns divided by their sum + eps;
 *     (iterations - 1) times: rows divided by their sum + eps, then columns */
TSR_API tsr_tensor *tsr_stream_weights(tsr_graph *graph, tsr_tensor *x, const tsr_stream_rule *rule);

/** Which weights of a row are those of the streams, and of what is added to them. */
typedef struct tsr_mix_rule {
    int64_t n_in;      /**< streams of x, at least 1 */
    int64_t n_out;     /**< streams of the result, at least 1 */
    int64_t first;     /**< weight of stream j in stream k: first + j * n_out + k */
    int64_t add_first; /**< weight of `add` in stream k: add_first + k */
} tsr_mix_rule;

/** Sums of streams and of one more operand, with weights of each token: x is F32 [n_in * n, n_tokens],
 * weights F32 [n_weights, n_tokens], add F32 [n, n_tokens] or NULL. All become whole on the devices of the
 * weights, where the result is, [n_out * n, n_tokens]:
 *
 *     y[t][k] = sum_j weights[t][first + j * n_out + k] x[t][j]  (j in order)
 *               + weights[t][add_first + k] add[t]
 *
 * weights NULL: n_out copies of the only stream, and nothing is added. */
TSR_API tsr_tensor *tsr_stream_mix(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weights, tsr_tensor *add,
                                   const tsr_mix_rule *rule);

TSR_END_DECLS
#endif
