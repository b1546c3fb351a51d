/* A family of models: the names of its tensors, how each is divided, and its graph. arch/families has one
 * file per family, written with the blocks of arch/blocks.h. */
#ifndef TSR_ARCH_FAMILY_H
#define TSR_ARCH_FAMILY_H

#include <tsr/experts.h>
#include <tsr/gguf.h>
#include <tsr/graph.h>
#include <tsr/ops.h>
#include <tsr/states.h>

#include "arch/hparams.h"
#include "arch/weights.h"

/* The step that a graph is built for, and its inputs. */
typedef struct tsr_step_graph {
    tsr_graph *graph;
    tsr_tensor *tokens;                      /* I32 [n_tokens] */
    tsr_tensor *rope_tables[TSR_ROPE_SLOTS]; /* F32 [n_rot, n_tokens]; NULL where hparams->rope has none */
    tsr_tensor *output_rows;                 /* I32 [n_outputs]: tokens whose result is wanted */
    tsr_kv_inputs *kv_inputs;
    bool embeds; /* the result is that of the last norm, instead of logits */
    tsr_tensor
        *hidden_in; /* of a prediction: F32 [n_embd, n_tokens], behind the last layer; otherwise NULL */
    tsr_tensor *hidden_out; /* of a step of a model that predicts: the same, an output; otherwise NULL */
} tsr_step_graph;

struct tsr_layer; /* blocks.h */

typedef struct tsr_arch {
    const char *name; /* general.architecture */
    bool header_only; /* has only `declare` (plan/header_only/header.h) */
    bool experts;     /* the FFN may be a mixture of experts */
    bool latent;      /* attention is latent attention (blocks/latent.c) */

    /* Read the keys that only this architecture has. *hparams has the values of tsr_hparams_read(). NULL: no
     * such keys. */
    tsr_status (*read_hparams)(tsr_keys *keys, tsr_hparams *hparams);

    /* Change the shape of layer l from what tsr_layer_kind_read() says. NULL: nothing to change. */
    tsr_status (*read_layer)(tsr_keys *keys, const tsr_hparams *hparams, int64_t l, tsr_layer_kind *layer);

    /* Declare every tensor of the model with its shape and class. NULL: a decoder, see declare_layer. */
    tsr_status (*declare)(tsr_weights *weights, const tsr_hparams *hparams);

    /* Declare the tensors of layer l; build its graph from the residual stream before it to that after it. */
    tsr_status (*declare_layer)(tsr_weights *weights, const tsr_hparams *hparams, int l);
    tsr_tensor *(*build_layer)(const struct tsr_layer *at, tsr_tensor *x);
} tsr_arch;

#endif
