/* chatglm (ChatGLM 3, GLM 4) and glm4 (GLM 4 of 2025): fused tensors with biases, rotation of neighbours in
 * the first half of a head; glm4 has norms after the blocks, too.
 *
 *     x = x + post(Wo attn(norm(x)))                           post: a norm in glm4, nothing in chatglm
 *     x = x + post(Wdown(silu(Wgate norm(x)) * Wup norm(x))) */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_hparams(const tsr_gguf *gguf, tsr_hparams *hp)
{
    (void)gguf;
    hp->rope_interleaved = true;
    return TSR_OK;
}

static tsr_status declare_glm4_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_post_norms(w, hp, l));
out:
    return status;
}

const tsr_arch tsr_arch_chatglm = {.name = "chatglm",
                                   .read_hparams = read_hparams,
                                   .declare_layer = tsr_declare_plain_layer,
                                   .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_glm4 = {.name = "glm4",
                                .read_hparams = read_hparams,
                                .declare_layer = declare_glm4_layer,
                                .build_layer = tsr_build_layer};
