/* gpt-oss (OpenAI, 20 and 120 billion parameters; arXiv:2508.10925): attention with a sink per head and a
 * window in every other layer, and a mixture of experts, with biases everywhere and an activation that is
 * clamped. Files call the norm before the experts post_attention_norm.
 *
 *     x = x + Wo attn(norm(x))
 *     x = x + sum over the chosen experts e of weight_e expert_e(norm(x)) */
#include "core/status.h"
#include "arch/blocks.h"

/* The ends of YaRN's ramp are not rounded to whole pairs ("truncate": false in the models' config.json). */
static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    if (hp->n_expert == 0 || hp->n_dense_layers > 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: %lld layers have a dense FFN; gpt-oss is supported with a mixture of experts in "
                        "every layer",
                        tsr_gguf_path(keys->gguf),
                        (long long)(hp->n_expert ? hp->n_dense_layers : hp->n_layers));
    hp->expert_normalize = true;
    hp->ffn_activation = TSR_GLU_CLAMPED;
    hp->rope[TSR_ROPE_MAIN].exact_ramp = true;
    hp->window = 128;
    return tsr_hparams_read_window(keys, 2, hp);
}

const tsr_arch tsr_arch_gpt_oss = {.name = "gpt-oss",
                                   .experts = true,
                                   .read_hparams = read_hparams,
                                   .declare_layer = tsr_declare_renamed_layer,
                                   .build_layer = tsr_build_layer};
