/** @file
 * Mixtures of experts in a graph: the routing of tokens, and the sum of the experts that each token uses.
 *
 *     tsr_routing_config routing = tsr_routing_config_default();
 *     routing.n_used = 2;
 *     tsr_experts_config experts = tsr_experts_config_default();
 *     experts.gate = gate, experts.up = up, experts.down = down;
 *     ...                                                     in a layer, h being the normed residual:
 *     tsr_tensor *chosen = tsr_route(graph, tsr_mul_mat(graph, router, h), &routing);
 *     x = tsr_add(graph, x, tsr_experts(graph, h, chosen, &experts));
 *
 * The matrices of all experts of a layer are three tensors. A GGUF file has gate and up as [n_embd, n_ff,
 * n_experts] and down as [n_ff, n_embd, n_experts]; the same bytes are described here as tensors of two
 * dimensions, which a buffer type divides over the devices in one of two ways:
 *
 *                    by columns, each device has a part        by experts, each device has some
 *                    of every expert                           whole experts
 *     gate, up       [n_embd * n_ff, n_experts], axis 0,       [n_embd * n_ff, n_experts], axis 1,
 *                    granules of n_embd * g elements           granules of e experts
 *     down           [n_ff, n_embd * n_experts], axis 0,       [n_embd * n_ff, n_experts], axis 1,
 *                    granules of g elements                    granules of e experts
 *     biases of      [n_ff, n_experts], like down              [n_ff, n_experts], like down
 *     gate and up
 *     biases of      [n_embd, n_experts], axis 1, over         [n_embd, n_experts], like down
 *     down           devices that have columns of down
 *
 * g is a number of columns of down, whole blocks of its type (tsr_granule_ffn()); by columns, g is a multiple
 * of tsr_experts_config.granule. All have one tensor_split, but by columns a device may have a share that is
 * too small for a granule: the tensor_split of biases of down is then the bytes of down on each device
 * (tsr_tensor_device_bytes()). Biases are F32.
 *
 * Both divisions, and all splits, give the same bits under TSR_REDUCTION_EXACT, if the granule of
 * tsr_experts_config is the same. A token's result does not depend on the other tokens of its step. Weights
 * of experts that no token of a step uses are not read.
 *
 * Errors, threads and ownership are those of tsr/graph.h.
 */
#ifndef TSR_EXPERTS_H
#define TSR_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/graph.h>
#include <tsr/ops.h>

TSR_BEGIN_DECLS

/** The most experts of a layer, and the most groups of experts. */
enum { TSR_MAX_EXPERTS = 4096, TSR_MAX_EXPERT_GROUPS = 64 };

/** How a router's logits become probabilities. */
typedef enum tsr_gating {
    TSR_GATING_SOFTMAX = 0,      /**< over all experts */
    TSR_GATING_SIGMOID = 1,      /**< of each expert by itself */
    TSR_GATING_SQRT_SOFTPLUS = 2 /**< of each expert by itself: sqrt(ln(1 + exp(logit))) */
} tsr_gating;

/** How a token's experts are chosen and weighted. */
typedef struct tsr_routing_config {
    size_t size;       /**< sizeof(tsr_routing_config) */
    int64_t n_used;    /**< experts per token: 1 .. n_experts */
    tsr_gating gating; /**< from logits to probabilities */
    bool normalize;    /**< the weights of a token's experts are divided by their sum */
    float scale;       /**< factor on the weights */
    /** F32 weight [n_experts], whole on every device of the logits: added to the probabilities for the
     * choice, and no part of the weights. NULL: none */
    tsr_tensor *bias;
    /** Groups of neighbouring experts, of which only the n_groups_used best compete; 0 or 1: none. They
     * divide the experts, and those in use have at least n_used. A group's score is its largest logit (with a
     * bias: probability + bias) after a softmax, otherwise the sum of its two largest probabilities
     * (+ bias) */
    int64_t n_groups;
    int64_t n_groups_used; /**< 1 .. n_groups */
    tsr_tensor *factors;   /**< a weight like the bias: factors on the weights of the experts. NULL: none */
    bool weigh_inputs;     /**< weights are factors of the experts' inputs, not of their results (Llama 4) */
    /** I32 weight [n_used, n_ids], whole on every device of the logits: row i has the experts of the tokens
     * with id i, which are then not chosen by their logits; an expert or an id that does not exist counts as
     * 0. NULL: none */
    tsr_tensor *table;
    tsr_tensor *ids; /**< with a table: I32 [n_tokens], the ids of the tokens */
} tsr_routing_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_routing_config_init(tsr_routing_config *config_out, size_t size);

/** The defaults: softmax, weights with a sum of 1, scale 1, no bias, groups, factors or table; n_used 0,
 * which the caller sets. */
static inline tsr_routing_config tsr_routing_config_default(void)
{
    tsr_routing_config config;
    tsr_routing_config_init(&config, sizeof config);
    return config;
}

/** Choose the experts of each token by its logits [n_experts, n_tokens]: those with the n_used largest
 * logits, or, with a bias, probabilities + bias; the lower number first among equals, and a NaN is less than
 * any number. Their weights are their probabilities, normalized and scaled as `config` says.
 *
 * The result is for tsr_experts() only: an I32 tensor of one row, whole on every device that has the logits.
 * Logits that are divided are gathered first. Where host devices and GPUs have them, the first device chooses
 * for all. Refused: logits that are not F32, more than TSR_MAX_EXPERTS experts, numbers out of their
 * range. */
TSR_API tsr_tensor *tsr_route(tsr_graph *graph, tsr_tensor *logits, const tsr_routing_config *config);

/** The matrices and biases of all experts of a layer: weights of the shapes that the beginning of this file
 * has. n_experts is that of the routing, n_embd is ne0 of x. */
typedef struct tsr_experts_config {
    size_t size;           /**< sizeof(tsr_experts_config) */
    tsr_tensor *gate;      /**< NULL or `up` itself: an FFN without a gate, down(act(up x) * up x) */
    tsr_tensor *up;        /**< divided like gate */
    tsr_tensor *down;      /**< its type may be another one */
    tsr_tensor *gate_bias; /**< NULL: none. Without a gate that of up */
    tsr_tensor *up_bias;   /**< NULL: none */
    tsr_tensor *down_bias; /**< NULL: none */
    /** Columns of down that are summed as one granule, whole blocks of its type. 0: the granule by which down
     * is divided by columns; by experts, all columns */
    int64_t granule;
    tsr_glu_kind glu; /**< the activation; without a gate TSR_GLU_GELU_GATE or TSR_GLU_RELU */
    float limit;      /**< of TSR_GLU_CAPPED and TSR_GLU_BOUNDED: more than 0 */
} tsr_experts_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_experts_config_init(tsr_experts_config *config_out, size_t size);

/** The defaults: TSR_GLU_SILU, no biases, granule 0; no matrices, which the caller sets. */
static inline tsr_experts_config tsr_experts_config_default(void)
{
    tsr_experts_config config;
    tsr_experts_config_init(&config, sizeof config);
    return config;
}

/** The sum over the experts e of each token in `routing` of weight * (down_e (act(gate_e x) * up_e x +
 * biases)): a PARTIAL [n_embd, n_tokens] over the devices of the weights. x is F32 [n_embd, n_tokens] and
 * becomes whole, as the routing does.
 *
 * Refused: a routing of another number of tokens, matrices that are no weights or of different sizes, a
 * granule that cuts blocks. tsr_program_compile() refuses weights that are not allocated, or not divided as
 * above; its message names the weight. */
TSR_API tsr_tensor *tsr_experts(tsr_graph *graph, tsr_tensor *x, tsr_tensor *routing,
                                const tsr_experts_config *config);

/** Add `other` to the sum of experts, so that one all-reduce sums both over the devices: the result of shared
 * experts, which every token uses. `other` is a tsr_mul_mat() of a weight that is divided over the same
 * devices, of the shape of `experts`, made between tsr_route() and tsr_experts(), and used by no other op.
 * NULL: nothing is added. Returns `experts`. */
TSR_API tsr_tensor *tsr_experts_onto(tsr_graph *graph, tsr_tensor *experts, tsr_tensor *other);

TSR_END_DECLS
#endif
