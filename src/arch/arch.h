/* Architectures: what a family of models calls its tensors, how each is divided, and its graph. One file per
 * family in model/arch, made of the blocks of arch/blocks.h; the rest of the library knows none by name. */
#ifndef TSR_MODEL_ARCH_H
#define TSR_MODEL_ARCH_H

#include <tsr/gguf.h>

#include "alloc/kv/kv.h"
#include "graph/graph.h"
#include "arch/hparams.h"
#include "arch/weights.h"

/* The step that a graph is built for, and its inputs. */
typedef struct tsr_step_graph {
    tsr_graph *graph;
    tsr_kv *kv;
    tsr_tensor *tokens;                         /* I32 [n_tokens] */
    tsr_tensor *rope_tables[TSR_ROPE_SLOTS];    /* F32 [n_rot, n_tokens]; NULL where hparams->rope has none */
    tsr_tensor *output_rows;                    /* I32 [n_outputs]: which tokens' logits are wanted */
    tsr_kv_inputs kv_inputs[TSR_KV_MAX_GROUPS]; /* [groups of layers]; only the page tables differ */
} tsr_step_graph;

struct tsr_layer; /* blocks.h */

typedef struct tsr_arch {
    const char *name;  /* general.architecture */
    bool planned_only; /* `declare` is all it has (plan/header_only/header.h) */
    bool experts;      /* its FFN may be a mixture of experts */

    /* Read what only this architecture has. *hparams holds what tsr_hparams_read() found. NULL: nothing. */
    tsr_status (*read_hparams)(const tsr_gguf *gguf, tsr_hparams *hparams);

    /* Name every tensor of the model with its shape and class. NULL: a decoder, see declare_layer. */
    tsr_status (*declare)(tsr_weights *weights, const tsr_hparams *hparams);

    /* Build the forward pass; returns the logits [n_vocab, n_outputs], NULL with the graph's sticky
     * failure. NULL: a decoder, see build_layer. */
    tsr_tensor *(*build)(const tsr_hparams *hparams, const tsr_weights *weights, const tsr_step_graph *step);

    /* The tensors of layer l, and its graph: the residual stream behind it from that before it. */
    tsr_status (*declare_layer)(tsr_weights *weights, const tsr_hparams *hparams, int l);
    tsr_tensor *(*build_layer)(const struct tsr_layer *at, tsr_tensor *x);
} tsr_arch;

extern const tsr_arch tsr_arch_llama, tsr_arch_mistral3, tsr_arch_internlm2, tsr_arch_xverse,
    tsr_arch_ernie4_5, tsr_arch_smollm3, tsr_arch_exaone, tsr_arch_qwen2, tsr_arch_qwen3, tsr_arch_gemma,
    tsr_arch_gemma2, tsr_arch_gemma3, tsr_arch_phi3, tsr_arch_chatglm, tsr_arch_glm4, tsr_arch_granite,
    tsr_arch_minicpm, tsr_arch_olmo2, tsr_arch_qwen3moe, tsr_arch_olmoe, tsr_arch_granitemoe,
    tsr_arch_gpt_oss, tsr_arch_qwen2moe, tsr_arch_deepseek, tsr_arch_bailingmoe, tsr_arch_ernie4_5_moe,
    tsr_arch_dots1, tsr_arch_glm4moe, tsr_arch_starcoder2, tsr_arch_nemotron, tsr_arch_stablelm,
    tsr_arch_gptneox, tsr_arch_phi2, tsr_arch_falcon, tsr_arch_command_r, tsr_arch_cohere2;

/* The architecture a file names; TSR_ERR_UNSUPPORTED lists those there are. */
tsr_status tsr_arch_find(const tsr_gguf *gguf, const tsr_arch **arch_out);

/* Its hyper-parameters, n_vocab excepted. */
tsr_status tsr_arch_read_hparams(const tsr_arch *arch, const tsr_gguf *gguf, tsr_hparams *hparams_out);

tsr_status tsr_arch_declare(const tsr_arch *arch, tsr_weights *weights, const tsr_hparams *hparams);
tsr_tensor *tsr_arch_build(const tsr_arch *arch, const tsr_hparams *hparams, const tsr_weights *weights,
                           const tsr_step_graph *step);

#endif
