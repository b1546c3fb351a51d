/* The vocabulary that architectures are written in: the blocks of a decoder-only transformer, each declared
 * (which tensors of the file it is made of) and built (its nodes of a step's graph).
 *
 * A layer is a function from the residual stream to the residual stream. Attention with a norm before it
 * reads
 *
 *     h = tsr_block_norm(at, x, at->w->attn_norm);
 *     x = tsr_block_residual(at, x, tsr_block_attention(at, h));
 *
 * Blocks take what a model may or may not have (biases, norms of queries and keys, scales, windows) from the
 * tensors that were declared and from the hyper-parameters. So an architecture's file says which tensors
 * there are and in which order the blocks follow each other, and nothing about devices: that follows from the
 * placement of each tensor (graph/lower/lower.h). */
#ifndef TSR_ARCH_BLOCKS_H
#define TSR_ARCH_BLOCKS_H

#include "arch/family.h"

/* -- declaring -- */

/* The embedding, every layer by `layer`, the last norm, and the output matrix (the embedding again where the
 * file has none). */
tsr_status tsr_declare_decoder(tsr_weights *weights, const tsr_hparams *hparams,
                               tsr_status (*layer)(tsr_weights *weights, const tsr_hparams *hparams, int l));

/* "blk.<l>.<name>.weight" of n elements, required: TSR_WEIGHT_ATTENTION_WHOLE or TSR_WEIGHT_FFN_WHOLE. */
tsr_status tsr_declare_norm(tsr_weights *weights, tsr_weight_role role, int l, int64_t n, const char *name,
                            tsr_tensor **norm_out);

/* attn_norm and ffn_norm: what comes before the blocks of a pre-norm layer. */
tsr_status tsr_declare_pre_norms(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* post_attention_norm and post_ffw_norm: over what a block adds to the residual stream. */
tsr_status tsr_declare_post_norms(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* W_q, W_k, W_v, W_o; their biases are optional. A file may keep the first three in one tensor, attn_qkv:
 * then each is a part of it. */
tsr_status tsr_declare_attention(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* attn_q_norm and attn_k_norm, of n_q and n_k elements: over every head, or over all heads of a token. */
tsr_status tsr_declare_qk_norms(tsr_weights *weights, int l, int64_t n_q, int64_t n_k);

/* A dense FFN: gate (none where hparams->ungated_ffn says so), up, down; their biases are optional. A file
 * may keep the first two in ffn_up. */
tsr_status tsr_declare_ffn(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* A mixture of experts: router, and gate, up and down of all experts, with those that every token uses where
 * the keys say that there are any. Biases are optional. */
tsr_status tsr_declare_experts(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* Gate, up and down of the experts that every token uses, as one FFN; what a token takes of them is
 * optional. */
tsr_status tsr_declare_shared_experts(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* The dense FFN or the mixture of experts of the layer, whichever it has. */
tsr_status tsr_declare_ffn_or_experts(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* -- with LayerNorms (blocks/layer_norm.c) -- */

/* A layer with LayerNorms: attn_norm and, where the file has them, ffn_norm (required unless the blocks are
 * parallel) and attn_norm_2 (attention's own); attention; the FFN, without a gate if hparams->ungated_ffn
 * says so. All biases are optional. */
tsr_status tsr_declare_layer_norm_layer(tsr_weights *weights, const tsr_hparams *hparams, int l);

/* output_norm.bias and output.bias, optional; tsr_declare_decoder() calls it. */
tsr_status tsr_declare_output_biases(tsr_weights *weights, const tsr_hparams *hparams);

/* TSR_ERR_UNSUPPORTED for a file whose norms of query and key heads differ from head to head. */
tsr_status tsr_refuse_head_norms(const tsr_gguf *gguf);

/* The layer most models have: norms before both blocks, attention, a dense FFN or a mixture of experts. */
tsr_status tsr_declare_plain_layer(tsr_weights *weights, const tsr_hparams *hparams, int l);

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
    const tsr_layer_weights *w;
    int64_t ffn_columns; /* tsr_weights.ffn_columns */
    int index;
} tsr_layer;

/* Embedding, every layer by `layer` (the last one leaves the tokens of tsr_block_outputs()), last norm,
 * output: the logits. */
tsr_tensor *tsr_build_decoder(const tsr_hparams *hparams, const tsr_weights *weights,
                              const tsr_step_graph *step,
                              tsr_tensor *(*layer)(const tsr_layer *at, tsr_tensor *x));

/* One layer of attention and an FFN, with norms before the blocks, behind them, or both, as declared. */
tsr_tensor *tsr_build_layer(const tsr_layer *at, tsr_tensor *x);

/* RMS norm over the rows of x, or over every head where the weight has the length of one. No weight, no
 * norm. */
tsr_tensor *tsr_block_norm(const tsr_layer *at, tsr_tensor *x, tsr_tensor *weight);

/* Of the last layer, the tokens whose logits are wanted; of others, all. After attention, whose keys and
 * values are those of all tokens, no other token is needed. */
tsr_tensor *tsr_block_outputs(const tsr_layer *at, tsr_tensor *x);

/* W x + bias; bias NULL: none. */
tsr_tensor *tsr_block_linear(const tsr_layer *at, tsr_tensor *w, tsr_tensor *bias, tsr_tensor *x);

/* Self-attention of h (normed already), up to and with W_o. */
tsr_tensor *tsr_block_attention(const tsr_layer *at, tsr_tensor *h);

/* The dense FFN of h (normed already), up to and with W_down. */
tsr_tensor *tsr_block_ffn(const tsr_layer *at, tsr_tensor *h);

/* The mixture of experts of h (normed already), and the part of it that every token uses. */
tsr_tensor *tsr_block_experts(const tsr_layer *at, tsr_tensor *h);
tsr_tensor *tsr_block_shared_experts(const tsr_layer *at, tsr_tensor *h);

/* One layer of attention and an FFN with LayerNorms, one after the other or (hparams->parallel_blocks) in
 * parallel, the FFN with a gate or without, as declared. */
tsr_tensor *tsr_build_layer_norm_layer(const tsr_layer *at, tsr_tensor *x);

/* x + y, y a block's result (by residual_scale); the sum over devices and this one are one pass where y is
 * not used otherwise. */
tsr_tensor *tsr_block_residual(const tsr_layer *at, tsr_tensor *x, tsr_tensor *y);

#endif
