/* Models with shared experts: experts that every token uses, besides the experts chosen for it.
 *
 *     x = x + Wo attn(norm(x))
 *     x = x + sum over the chosen experts e of weight_e expert_e(norm(x)) + shared(norm(x))
 *
 * - qwen2moe: Qwen 1.5 and 2 (arXiv:2407.10671). qwen2's attention; a sigmoid per token is a factor on the
 * shared experts; weights are the softmax over all experts.
 *
 * - deepseek: DeepSeek 1 (arXiv:2401.06066). A dense FFN in the first layer.
 *
 * - bailingmoe: Ling (arXiv:2503.05139).
 *
 * - bailingmoe2: Ling and Ring 2. Norms of heads, of which half is rotated; experts are chosen by sigmoids
 * and a bias, from the best groups.
 *
 * - ernie4_5-moe: ERNIE 4.5. Experts are chosen by the softmax and a bias.
 *
 * - dots1: dots.llm1 (arXiv:2506.05767). Norms of heads; experts are chosen by sigmoids and a bias.
 *
 * - glm4moe: GLM 4.5 (arXiv:2508.06471). Experts are chosen by sigmoids and a bias; norms of heads in some
 * models; half of a head is rotated. Files call the norm before the FFN post_attention_norm. */
#include "core/status.h"
#include "arch/blocks.h"

/* Without a key, the shared experts have the length of a dense FFN. */
static tsr_status read_qwen2moe(tsr_keys *keys, tsr_hparams *hp)
{
    return hp->n_ff_shared > 0 ? TSR_OK
                               : tsr_keys_int(keys, "feed_forward_length", TSR_LARGEST_LAYER, true, 1,
                                              1 << 22, &hp->n_ff_shared);
}

static tsr_status read_deepseek(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->rope_interleaved = true;
    return TSR_OK;
}

static tsr_status read_ernie(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->rope_interleaved = true;
    hp->expert_normalize = true;
    return TSR_OK;
}

/* Older files lack the key for sigmoids. */
static tsr_status read_sigmoid(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    hp->expert_normalize = true;
    return TSR_OK;
}

static tsr_status declare_dots1_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, hp->head_dim, hp->head_dim));
out:
    return status;
}

static tsr_status declare_glm4moe_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    TSR_TRY(tsr_declare_renamed_layer(w, hp, l));
    TSR_DECLARE(q_norm, false, TSR_WEIGHT_ATTENTION_WHOLE, hp->head_dim, 1, "attn_q_norm.weight");
    TSR_DECLARE(k_norm, false, TSR_WEIGHT_ATTENTION_WHOLE, hp->head_dim, 1, "attn_k_norm.weight");
out:
    return status;
}

#define SHARED(id, arch, read, declare)                       \
    const tsr_arch tsr_arch_##id = {.name = arch,             \
                                    .experts = true,          \
                                    .read_hparams = read,     \
                                    .declare_layer = declare, \
                                    .build_layer = tsr_build_layer}

SHARED(qwen2moe, "qwen2moe", read_qwen2moe, tsr_declare_plain_layer);
SHARED(deepseek, "deepseek", read_deepseek, tsr_declare_plain_layer);
SHARED(bailingmoe, "bailingmoe", read_deepseek, tsr_declare_plain_layer);
SHARED(ernie4_5_moe, "ernie4_5-moe", read_ernie, tsr_declare_plain_layer);
SHARED(bailingmoe2, "bailingmoe2", read_sigmoid, declare_dots1_layer);
SHARED(dots1, "dots1", read_sigmoid, declare_dots1_layer);
SHARED(glm4moe, "glm4moe", read_sigmoid, declare_glm4moe_layer);
