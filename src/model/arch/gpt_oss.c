/* gpt-oss (OpenAI, 20 and 120 billion parameters; arXiv:2508.10925): attention with a sink per head and a
 * window in every other layer, and a mixture of experts, with biases everywhere and an activation that is
 * clamped. Files call the norm before the experts post_attention_norm. */
#include "core/status.h"
#include "model/blocks.h"

/* YaRN's ramp begins and ends between two pairs ("truncate": false in the models' config.json), where others
 * round to whole ones. */
static tsr_status read_hparams(const tsr_gguf *gguf, tsr_hparams *hp)
{
    hp->expert_normalize = true;
    hp->ffn_activation = TSR_GLU_CLAMPED;
    hp->rope[TSR_ROPE_MAIN].exact_ramp = true;
    hp->window = 128;
    return tsr_hparams_read_window(gguf, 2, hp);
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_ATTENTION_WHOLE, l, hp->n_embd, "attn_norm", &layer->attn_norm));
    TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_TRY(
        tsr_declare_norm(w, TSR_WEIGHT_FFN_WHOLE, l, hp->n_embd, "post_attention_norm", &layer->ffn_norm));
    TSR_TRY(tsr_declare_experts(w, hp, l));
out:
    return status;
}

const tsr_arch tsr_arch_gpt_oss = {.name = "gpt-oss",
                                   .experts = true,
                                   .read_hparams = read_hparams,
                                   .declare_layer = declare_layer,
                                   .build_layer = tsr_build_layer};
