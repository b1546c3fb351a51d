/* granite, granitemoe (with a mixture of experts), granitehybrid and minicpm: llamas with factors on the
 * embedding, on the results of blocks, on scores and on logits. With these factors a large model can be
 * trained with the settings of a small one (arXiv:2203.03466, arXiv:2404.06395). Most layers of granitehybrid
 * have Mamba-2 instead of attention.
 *
 *     x = x + residual_scale Wo attn(norm(x))
 *     x = x + residual_scale Wdown(silu(Wgate norm(x)) * Wup norm(x)) */
#include <math.h>

#include "core/status.h"
#include "arch/blocks.h"

/* The converter of Granite 4 writes keys of Mamba layers, also for models without any (tensors of such layers
 * are refused), and which layers read embeddings of images, which do not matter for text. */
static void ignore_keys(tsr_keys *keys)
{
    static const char *const suffixes[] = {"ssm.conv_kernel", "ssm.state_size",     "ssm.group_count",
                                           "ssm.inner_size",  "ssm.time_step_rank", "deepstack_mapping"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        tsr_keys_ignore(keys, suffixes[i]);
}

/* Files have the divisor of the logits; logit_divisor is its default, 0: the key is required. */
static tsr_status read_scales(tsr_keys *keys, double logit_divisor, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    bool required = logit_divisor == 0;
    hp->rope_interleaved = true;
    TSR_TRY(tsr_keys_real(keys, "embedding_scale", false, 0, 1e6, &hp->embedding_scale));
    TSR_TRY(tsr_keys_real(keys, "residual_scale", false, 0, 1e6, &hp->residual_scale));
    TSR_TRY(tsr_keys_real(keys, "attention.scale", false, 0, 1e6, &hp->attention_scale));
    TSR_TRY(tsr_keys_real(keys, "logit_scale", required, 1e-6, 1e6, &logit_divisor));
    hp->logit_scale = 1 / logit_divisor;
out:
    return status;
}

/* Granite 4 marks models without rotation by a key that has another meaning in other architectures. */
static tsr_status read_granite_4(tsr_keys *keys, double logit_divisor, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    bool rotates = true;
    TSR_TRY(read_scales(keys, logit_divisor, hp));
    TSR_TRY(tsr_keys_bool(keys, "rope.scaling.finetuned", &rotates));
    ignore_keys(keys);
    if (!rotates)
        hp->rope[TSR_ROPE_MAIN] = (tsr_rope_params){0};
out:
    return status;
}

static tsr_status read_granite(tsr_keys *keys, tsr_hparams *hp)
{
    return read_granite_4(keys, 0, hp);
}

/* Bamba, of this architecture, too, has no factor on the logits. */
static tsr_status read_granitehybrid(tsr_keys *keys, tsr_hparams *hp)
{
    hp->expert_normalize = true;
    return read_granite_4(keys, 1, hp);
}

static tsr_status read_hybrid_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    (void)hp;
    return layer->n_head_kv > 0 ? TSR_OK : tsr_layer_read_mamba(keys, l, layer);
}

static tsr_status read_granitemoe(tsr_keys *keys, tsr_hparams *hp)
{
    hp->expert_normalize = true;
    return read_granite_4(keys, 0, hp);
}

/* Older files lack the keys: scale_emb 12, scale_depth 1.4 and dim_model_base 256 of MiniCPM 2B's config. */
static tsr_status read_minicpm(tsr_keys *keys, tsr_hparams *hp)
{
    hp->embedding_scale = 12;
    hp->residual_scale = 1.4 / sqrt((double)hp->n_layers);
    return read_scales(keys, (double)hp->n_embd / 256, hp);
}

const tsr_arch tsr_arch_granite = {.name = "granite",
                                   .read_hparams = read_granite,
                                   .declare_layer = tsr_declare_plain_layer,
                                   .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_granitemoe = {.name = "granitemoe",
                                      .experts = true,
                                      .read_hparams = read_granitemoe,
                                      .declare_layer = tsr_declare_plain_layer,
                                      .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_granitehybrid = {.name = "granitehybrid",
                                         .experts = true,
                                         .read_hparams = read_granitehybrid,
                                         .read_layer = read_hybrid_layer,
                                         .declare_layer = tsr_declare_plain_layer,
                                         .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_minicpm = {.name = "minicpm",
                                   .read_hparams = read_minicpm,
                                   .declare_layer = tsr_declare_plain_layer,
                                   .build_layer = tsr_build_layer};
