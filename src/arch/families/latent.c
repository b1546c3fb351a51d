/* Models with latent attention (blocks/latent.c) and a mixture of experts with shared experts.
 *
 *     x = x + Wo attn(norm(x))
 *     x = x + sum over the chosen experts e of weight_e expert_e(norm(x)) + shared(norm(x))
 *
 * - deepseek2: DeepSeek V2 (arXiv:2405.04434), V3 (arXiv:2412.19437) and R1, Kimi K2 (arXiv:2507.20534),
 * GLM 4.7 Flash. Dense FFNs in the first layers. V3 chooses experts by sigmoids and a bias, from the best
 * groups of experts.
 *
 * - glm-dsa: GLM 5. A deepseek2 that attends to the positions that an index selects (blocks/index.c), in some
 * layers to those of the layer before.
 *
 * - mistral4: Mistral Small 4. Weights are the softmax over the chosen experts; queries may grow with the
 * logarithm of their position. */
#include <math.h>

#include "core/status.h"
#include "arch/blocks.h"

/* The table of queries has their elements without rotation, too, at angle 0, so that it also holds the growth
 * of whole queries with their position. cos and sin keep their size with YaRN where the file has a multiplier
 * for it and none for cos and sin: then the scores have its magnitude, squared. */
static tsr_status read_latent(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_rope_params *rope = &hp->rope[TSR_ROPE_MAIN], *of_queries = &hp->rope[TSR_ROPE_QUERIES];
    const double n = (double)(hp->latent.n_plain + hp->latent.n_rot);
    double magnitude = 1;
    hp->rope_interleaved = true;
    if (rope->scaling == TSR_ROPE_SCALING_YARN && rope->factor > 1)
        magnitude += rope->log_multiplier * log(rope->factor);
    hp->attention_scale = magnitude * magnitude / sqrt(n);
    if (rope->log_multiplier > 0 && rope->yarn_magnitude == 0)
        rope->yarn_magnitude = 1;
    *of_queries = *rope;
    of_queries->n_fixed = hp->latent.n_plain;
    of_queries->n_rot += hp->latent.n_plain;
    TSR_TRY(tsr_keys_real(keys, "attention.temperature_scale", false, 0, 10, &of_queries->temperature));
    TSR_TRY(
        tsr_keys_real(keys, "attention.temperature_length", false, 1, 1e9, &of_queries->temperature_length));
out:
    return status;
}

/* Without a key for it, GLM 4.7 Flash chooses by sigmoids; its size tells it from DeepSeek V2. */
static tsr_status read_deepseek2(tsr_keys *keys, tsr_hparams *hp)
{
    const tsr_gguf_tensor *embedding = tsr_gguf_find_tensor(keys->gguf, "token_embd.weight");
    const int64_t n_blocks = hp->n_layers + hp->n_predict_layers;
    if ((n_blocks == 47 || n_blocks == 48) && embedding && embedding->ne[1] == 154880)
        tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    return read_latent(keys, hp);
}

static tsr_status read_mistral4(tsr_keys *keys, tsr_hparams *hp)
{
    hp->expert_normalize = true;
    return read_latent(keys, hp);
}

static tsr_status read_glm_dsa(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    if (hp->latent.q_rank == 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: an index without compressed queries is not supported",
                        tsr_gguf_path(keys->gguf));
    TSR_TRY(read_latent(keys, hp));
    hp->indexer.sums_heads = true;
    TSR_TRY(tsr_hparams_read_indexer(keys, hp));
out:
    return status;
}

static tsr_status read_latent_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    (void)keys;
    (void)hp;
    (void)l;
    layer->mixer = TSR_MIXER_LATENT;
    layer->n_head_kv = layer->n_head;
    return TSR_OK;
}

/* Without the key "attention.indexer.types", all layers have an index. In GLM 5.2, of the longer context,
 * these are the first two and then every fourth. The prediction layer has no layer before it and therefore an
 * index of its own; the key's array has no entry for it. */
static tsr_status read_glm_dsa_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    int64_t own = hp->n_ctx_train < 1 << 20 || l < 2 || l % 4 == 2;
    TSR_TRY(read_latent_layer(keys, hp, l, layer));
    if (l < tsr_hparams_n_step_layers(hp))
        TSR_TRY(tsr_keys_int(keys, "attention.indexer.types", l, false, 0, 1, &own));
    else
        own = 1;
    if (l == 0 && !own)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s: layer 0 has no layer before it whose selection it could use",
                        tsr_gguf_path(keys->gguf), keys->name);
    layer->n_selected = hp->indexer.n_selected;
    layer->index_dim = own ? hp->indexer.dim : 0;
out:
    return status;
}

static tsr_status declare_latent_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_pre_norms(w, hp, l));
    TSR_TRY(tsr_declare_latent(w, hp, l));
    TSR_TRY(tsr_declare_index(w, hp, l, hp->latent.q_rank, "attn_q_b", "attn_k"));
    TSR_TRY(tsr_declare_ffn_or_experts(w, hp, l));
out:
    return status;
}

#define LATENT(id, arch, read, layer)                                      \
    const tsr_arch tsr_arch_##id = {.name = arch,                          \
                                    .experts = true,                       \
                                    .latent = true,                        \
                                    .read_hparams = read,                  \
                                    .read_layer = layer,                   \
                                    .declare_layer = declare_latent_layer, \
                                    .build_layer = tsr_build_layer}

LATENT(deepseek2, "deepseek2", read_deepseek2, read_latent_layer);
LATENT(mistral4, "mistral4", read_mistral4, read_latent_layer);
LATENT(glm_dsa, "glm-dsa", read_glm_dsa, read_glm_dsa_layer);
