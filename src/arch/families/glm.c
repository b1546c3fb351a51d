/* chatglm (ChatGLM 3, GLM 4) and glm4 (GLM 4 of 2025): fused tensors with biases, rotation of neighbours in
 * the first half of a head; glm4 has norms after the blocks, too. The text part of models for images (GLM
 * 4.1V, GLM OCR) is a glm4 with M-RoPE.
 *
 *     x = x + post(Wo attn(norm(x)))                           post: a norm in glm4, nothing in chatglm
 *     x = x + post(Wdown(silu(Wgate norm(x)) * Wup norm(x))) */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_chatglm(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->rope_interleaved = true;
    return TSR_OK;
}

/* M-RoPE divides the pairs into sections of time, height and width. Tokens of a text have one position in all
 * three, so the sections do not matter; but files with sections have Q and K in the order for pairs half a
 * rotation apart. */
static tsr_status read_glm4(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    static const char sections[] = "rope.dimension_sections";
    int64_t time = 0, height = 0;
    TSR_TRY(tsr_keys_int(keys, sections, 0, false, 0, hp->head_dim, &time));
    TSR_TRY(tsr_keys_int(keys, sections, 1, false, 0, hp->head_dim, &height));
    hp->rope_interleaved = time == 0 || height == 0;
out:
    return status;
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
                                   .read_hparams = read_chatglm,
                                   .declare_layer = tsr_declare_plain_layer,
                                   .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_glm4 = {.name = "glm4",
                                .read_hparams = read_glm4,
                                .declare_layer = declare_glm4_layer,
                                .build_layer = tsr_build_layer};
