/* The blocks of a decoder-only transformer, of which architectures are made. Each block has a function that
 * declares its tensors of the file, and a function that builds its nodes of a step's graph.
 *
 * A layer is a function from the residual stream to the residual stream. Attention with a norm before it
 * reads
 *
 *     h = tsr_block_norm(at, x, at->w->attn_norm);
 *     x = tsr_block_residual(at, x, tsr_block_attention(at, h));
 *
 * Optional parts of a block (biases, norms of queries and keys, scales, windows) follow from the declared
 * tensors and from the hyper-parameters. The file of an architecture therefore has the tensors and the order
 * of the blocks only. The work of each device follows from the placement of each tensor
 * (graph/lower/lower.h). */
#ifndef TSR_ARCH_BLOCKS_H
#define TSR_ARCH_BLOCKS_H

#include "arch/family.h"

/* -- reading -- */

/* A read_layer of a family: of a model with windows, only layers with a window are rotated. */
tsr_status tsr_layer_rotate_windows(tsr_keys *keys, const tsr_hparams *hparams, int64_t l,
                                    tsr_layer_kind *layer);

/* Read the shape of a layer's Mamba-2, which *layer becomes. */
tsr_status tsr_layer_read_mamba(tsr_keys *keys, int64_t l, tsr_layer_kind *layer);

/* -- declaring -- */

/* Declare the embedding, every layer with `layer`, the last norm, and the output matrix (the embedding again
 * if the file has no output matrix) with its optional bias. */
tsr_status tsr_declare_decoder(tsr_weights *weights, const tsr_hparams *hparams,
                               tsr_status (*layer)(tsr_weights *weights, const tsr_hparams *hparams, int l));

/* "blk.<l>.<name>.weight" of n elements, required: TSR_WEIGHT_ATTENTION_WHOLE or TSR_WEIGHT_FFN_WHOLE. */
tsr_status tsr_declare_norm(tsr_weights *weights, tsr_weight_role role, int l, int64_t n, const char *name,
                            tsr_tensor **norm_out);

/* attn_norm and ffn_norm, the norms before the blocks of a pre-norm layer. */
tsr_status tsr_declare_pre_norms(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* post_attention_norm and post_ffw_norm, the norms of a block's result before it is added to the residual
 * stream. */
tsr_status tsr_declare_post_norms(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* W_q, W_k, W_v and W_o; their biases are optional. With hparams->gated_attention, W_q has for each head the
 * queries, then the gates of the output. If a file has the first three as one tensor, attn_qkv,
 * each is declared as a part of that tensor. */
tsr_status tsr_declare_attention(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* Latent attention: the compression of queries (or W_q) and of keys and values, their norms, a matrix per
 * head for keys and for values, W_o. */
tsr_status tsr_declare_latent(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* Attention to a window and to compressed positions: the compression of queries, the row that is key and
 * value of all heads, sinks, the matrices of groups of heads and W_o; the compressors of rows and of index
 * keys, and the index. */
tsr_status tsr_declare_compressed(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* The weights of residual streams before the blocks of layer l, and before the last norm. */
tsr_status tsr_declare_streams(tsr_weights *weights, const tsr_hparams *hparams, int l);
tsr_status tsr_declare_output_streams(tsr_weights *weights, const tsr_hparams *hparams);

/* attn_q_norm and attn_k_norm, of n_q and n_k elements: over every head. */
tsr_status tsr_declare_qk_norms(tsr_weights *weights, int l, int64_t n_q, int64_t n_k);

/* The index of a layer that has its own: queries from q_rank elements, "blk.<l>.indexer.<q>", and a key,
 * "<k>". If scores are sums over heads, the weights of the heads, "proj", and the LayerNorm of the key, whose
 * bias is optional; otherwise RMS norms of queries and keys. */
tsr_status tsr_declare_index(tsr_weights *weights, const tsr_hparams *hparams, int l, int64_t q_rank,
                             const char *q, const char *k);

/* A gated delta rule: attn_qkv, attn_gate, ssm_conv1d, ssm_ba (or ssm_alpha and ssm_beta), ssm_a, ssm_dt,
 * ssm_norm and ssm_out. */
tsr_status tsr_declare_delta(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* A gated delta rule with a decay for each row of the state: attn_q, attn_k and attn_v, each with its
 * ssm_conv1d; ssm_f_a and ssm_f_b of the decay; ssm_g_a and ssm_g_b of the gate; ssm_beta, ssm_a, ssm_dt,
 * ssm_norm and attn_output. */
tsr_status tsr_declare_delta_rows(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* A short convolution: shortconv.in_proj, shortconv.conv and shortconv.out_proj. */
tsr_status tsr_declare_short_conv(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* Mamba-2: ssm_in, ssm_conv1d (its bias is optional), ssm_a, ssm_d, ssm_dt, ssm_norm (optional), ssm_out. */
tsr_status tsr_declare_mamba(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* The same over all query heads, and over all key heads, of a token. */
tsr_status tsr_declare_wide_norms(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* Optional: attn_q_norm and attn_k_norm of LayerNorms over every head, with a weight for each head. */
tsr_status tsr_declare_heads_norms(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* A dense FFN: gate (none if hparams->ungated_ffn is set), up, down; their biases are optional. A file may
 * have gate and up as one tensor, ffn_up. */
tsr_status tsr_declare_ffn(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* A mixture of experts: router; gate, up and down of all experts; the shared experts, if the keys have them.
 * Biases are optional. */
tsr_status tsr_declare_experts(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* Gate, up and down of the shared experts, as one FFN. Their gate per token is optional. */
tsr_status tsr_declare_shared_experts(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* The FFN of the layer: dense, or a mixture of experts. */
tsr_status tsr_declare_ffn_or_experts(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* -- with LayerNorms (blocks/layer_norm.c) -- */

/* A layer with LayerNorms: attn_norm; ffn_norm (optional if the blocks are parallel); attn_norm_2,
 * attention's own norm (optional); attention, its norms of heads (optional); the FFN, without a gate if
 * hparams->ungated_ffn is set, or the mixture of experts. All biases are optional. */
tsr_status tsr_declare_layer_norm_layer(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* The layer of most models: norms before both blocks, attention or Mamba-2, a dense FFN or a mixture of
 * experts. */
tsr_status tsr_declare_plain_layer(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* What the prediction layer has besides the tensors of a layer (blocks/prediction.c). */
tsr_status tsr_declare_prediction(tsr_weights *weights, const tsr_hparams *hparams);

/* tsr_declare_plain_layer() for files that call the norm before the FFN post_attention_norm. */
tsr_status tsr_declare_renamed_layer(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* Inside a function that declares `layer`, of index l in w: blk.<l>.<name>. */
#define TSR_DECLARE(field, required, role, ne0, ne1, name) \
    TSR_TRY(tsr_weights_declare(w, required, role, l, ne0, ne1, &layer->field, "blk.%d." name, l))

/* -- building -- */

/* One layer of a step. */
typedef struct tsr_layer {
    const tsr_step_graph *step;
    const tsr_hparams *hp;
    const tsr_layer_kind *kind;
    const tsr_layer_weights *w;
    int64_t ffn_columns;     /* tsr_weights.ffn_columns */
    tsr_tensor *layer_input; /* of all layers; NULL: none */
    tsr_tensor **selection;  /* of the last layer that has its own; NULL: none yet */
    int index;
} tsr_layer;

/* Build the embedding, every layer with `layer` (the last layer keeps only the tokens of
 * tsr_block_outputs()), the last norm, and the output. Returns the logits. With hparams->predicts all tokens
 * go through the last layer, and step->hidden_out is its result. */
tsr_tensor *tsr_build_decoder(const tsr_hparams *hparams, const tsr_weights *weights, tsr_step_graph *step,
                              tsr_tensor *(*layer)(const tsr_layer *at, tsr_tensor *x));

/* Build the prediction layer for the states step->hidden_in. Returns the logits of the tokens of
 * tsr_block_outputs(). */
tsr_tensor *tsr_build_prediction(const tsr_hparams *hparams, const tsr_weights *weights,
                                 const tsr_step_graph *step,
                                 tsr_tensor *(*layer)(const tsr_layer *at, tsr_tensor *x));

/* factor * x; a factor of 0 or 1: x itself. */
tsr_tensor *tsr_block_factor(tsr_graph *graph, tsr_tensor *x, double factor);

/* The logits of the normed x by an output matrix. */
tsr_tensor *tsr_block_logits(const tsr_hparams *hparams, const tsr_weights *weights, tsr_graph *graph,
                             tsr_tensor *output, tsr_tensor *x);

/* One layer of attention and an FFN, with norms before the blocks, behind them, or both, as declared. */
tsr_tensor *tsr_build_layer(const tsr_layer *at, tsr_tensor *x);

/* RMS norm over the rows of x, or over every head if the weight has the length of one head. Without a weight,
 * x itself. */
tsr_tensor *tsr_block_norm(const tsr_layer *at, tsr_tensor *x, tsr_tensor *weight);

/* The norm of the kind that the model has: an RMS norm, or a LayerNorm with a bias (NULL: none). */
tsr_tensor *tsr_block_model_norm(const tsr_hparams *hparams, tsr_graph *graph, tsr_tensor *x,
                                 tsr_tensor *weight, tsr_tensor *bias);

/* In the last layer, keep only the tokens whose logits are wanted. Called after attention, because no later
 * op needs the other tokens. In other layers, x itself. */
tsr_tensor *tsr_block_outputs(const tsr_layer *at, tsr_tensor *x);

/* W x + bias; bias NULL: none. */
tsr_tensor *tsr_block_linear(const tsr_layer *at, tsr_tensor *w, tsr_tensor *bias, tsr_tensor *x);

/* x with its heads of head_dim elements rotated by the table of `slot` (tsr_rope_slot); -1: x itself. */
tsr_tensor *tsr_block_rotate(const tsr_layer *at, tsr_tensor *x, int64_t head_dim, int slot);

/* Self-attention of the normed h, W_o included. */
tsr_tensor *tsr_block_attention(const tsr_layer *at, tsr_tensor *h);

/* Scale, cap, chunks and sinks of the layer's attention, for queries of head_dim elements. */
tsr_attention_config tsr_block_attention_config(const tsr_layer *at, int64_t head_dim);

/* The positions that the layer attends to, for the normed h; q_input is what the index queries are made of.
 * NULL: all. */
tsr_tensor *tsr_block_select(const tsr_layer *at, tsr_tensor *h, tsr_tensor *q_input);

/* The gated delta rule of the normed h, ssm_out included. */
tsr_tensor *tsr_block_delta(const tsr_layer *at, tsr_tensor *h);

/* The short convolution of the normed h, shortconv.out_proj included. */
tsr_tensor *tsr_block_short_conv(const tsr_layer *at, tsr_tensor *h);

/* Mamba-2 of the normed h, ssm_out included. */
tsr_tensor *tsr_block_mamba(const tsr_layer *at, tsr_tensor *h);

/* Latent attention of the normed h, W_o included. */
tsr_tensor *tsr_block_latent(const tsr_layer *at, tsr_tensor *h);

/* Attention of the normed h to a window and to compressed positions, W_o included. */
tsr_tensor *tsr_block_compressed(const tsr_layer *at, tsr_tensor *h);

/* Residual streams: x with the embedding in each of them; the sum that is read in the end. */
tsr_tensor *tsr_build_streams(const tsr_hparams *hparams, tsr_graph *graph, tsr_tensor *x);
tsr_tensor *tsr_build_output_stream(const tsr_hparams *hparams, const tsr_weights *weights, tsr_graph *graph,
                                    tsr_tensor *x);

/* Layers with residual streams. */
tsr_tensor *tsr_build_stream_layer(const tsr_layer *at, tsr_tensor *x);

/* The activation of an FFN whose numbers are bounded by `limit`; 0: none are. */
tsr_glu_kind tsr_block_activation(const tsr_hparams *hparams, float limit);

/* The dense FFN of the normed h, W_down included. */
tsr_tensor *tsr_block_ffn(const tsr_layer *at, tsr_tensor *h);

/* The mixture of experts of the normed h, with the shared experts. The router reads router_input. */
tsr_tensor *tsr_block_experts(const tsr_layer *at, tsr_tensor *h, tsr_tensor *router_input);
tsr_tensor *tsr_block_shared_experts(const tsr_layer *at, tsr_tensor *h);

/* Embeddings per layer (blocks/layer_input.c): those of all layers from the scaled embedding x,
 * [n_layer_input * n_layers, n_tokens], NULL: the model has none; and their part in a layer. */
tsr_status tsr_declare_layer_inputs(tsr_weights *weights, const tsr_hparams *hparams);
tsr_status tsr_declare_layer_input(tsr_weights *weights, const tsr_hparams *hparams, int l);
tsr_tensor *tsr_build_layer_inputs(const tsr_hparams *hparams, const tsr_weights *weights,
                                   const tsr_step_graph *step, tsr_tensor *x);
tsr_tensor *tsr_block_layer_input(const tsr_layer *at, tsr_tensor *x);

/* One layer of attention and an FFN with LayerNorms, as declared: one after the other, or in parallel
 * (hparams->parallel_blocks). */
tsr_tensor *tsr_build_layer_norm_layer(const tsr_layer *at, tsr_tensor *x);

/* x + residual_scale * y, where y is the result of a block. If y has no other reader, the all-reduce of y
 * also adds x. */
tsr_tensor *tsr_block_residual(const tsr_layer *at, tsr_tensor *x, tsr_tensor *y);

#endif
