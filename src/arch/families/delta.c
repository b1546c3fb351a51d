/* Qwen 3 Next and Qwen 3.5: three layers of a gated delta rule, then one of attention whose outputs are
 * multiplied by sigmoids; a mixture of experts with a shared expert, or (qwen35) a dense FFN.
 *
 *     x = x + mix(norm(x))
 *     x = x + ffn(norm(x))
 *
 * Value head j uses key head j / (value heads per key head) in qwen3next, and j % key heads in qwen35 and
 * qwen35moe. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_qwen35(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->expert_normalize = true;
    hp->gated_attention = true;
    return TSR_OK;
}

static tsr_status read_qwen3next(tsr_keys *keys, tsr_hparams *hp)
{
    hp->joined_alpha_beta = true;
    return read_qwen35(keys, hp);
}

/* Whether layer l is recurrent: files have a flag per layer, or only the period of layers with attention. */
static tsr_status is_recurrent(tsr_keys *keys, int64_t n_step_layers, int64_t l, bool *recurrent_out)
{
    tsr_status status = TSR_OK;
    int64_t period = 4, flag;
    TSR_TRY(tsr_keys_int(keys, "full_attention_interval", TSR_ALL_LAYERS, false, 1, TSR_MAX_LAYERS, &period));
    flag = (l + 1) % period != 0 && l < n_step_layers; /* the prediction layer attends */
    TSR_TRY(tsr_keys_int(keys, "attention.recurrent_layers", l, false, 0, 1, &flag));
    *recurrent_out = flag != 0;
out:
    return status;
}

static tsr_status read_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    bool recurrent;
    char joined[TSR_MAX_NAME];
    int64_t inner = 0;
    TSR_TRY(is_recurrent(keys, tsr_hparams_n_step_layers(hp), l, &recurrent));
    if (!recurrent)
        return TSR_OK;
    snprintf(joined, sizeof joined, "blk.%d.ssm_in.weight", (int)l);
    if (tsr_gguf_find_tensor(keys->gguf, joined))
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: an older converter joined the products of recurrent layers in %s; convert the "
                        "model anew",
                        tsr_gguf_path(keys->gguf), joined);
    layer->mixer = TSR_MIXER_DELTA;
    layer->rope_q = layer->rope_k = -1;
    TSR_TRY(tsr_keys_int(keys, "ssm.time_step_rank", TSR_ALL_LAYERS, true, 1, 1 << 16, &layer->n_head));
    TSR_TRY(tsr_keys_int(keys, "ssm.group_count", TSR_ALL_LAYERS, true, 1, 1 << 16, &layer->n_head_kv));
    TSR_TRY(
        tsr_keys_int(keys, "ssm.state_size", TSR_ALL_LAYERS, true, 1, TSR_MAX_STATE_ROWS, &layer->key_dim));
    TSR_TRY(tsr_keys_int(keys, "ssm.conv_kernel", TSR_ALL_LAYERS, true, 2, TSR_MAX_CONV_KERNEL,
                         &layer->conv_kernel));
    TSR_TRY(tsr_keys_int(keys, "ssm.inner_size", TSR_ALL_LAYERS, true, 1, 1 << 20, &inner));
    if (inner % layer->n_head != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s is %lld, no multiple of the %lld heads",
                        tsr_gguf_path(keys->gguf), keys->name, (long long)inner, (long long)layer->n_head);
    layer->head_dim = inner / layer->n_head;
    layer->parts = hp->joined_alpha_beta ? 1 : layer->n_head / layer->n_head_kv;
    if (layer->parts < 1 || layer->parts > TSR_MAX_PARTS)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: %lld value heads for %lld key heads; up to %d times as many "
                        "are supported",
                        tsr_gguf_path(keys->gguf), (long long)layer->n_head, (long long)layer->n_head_kv,
                        TSR_MAX_PARTS);
out:
    return status;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_ATTENTION_WHOLE, l, hp->n_embd, "attn_norm", &layer->attn_norm));
    if (kind->mixer == TSR_MIXER_DELTA) {
        TSR_TRY(tsr_declare_delta(w, hp, l));
    } else {
        TSR_TRY(tsr_declare_attention(w, hp, l));
        TSR_TRY(tsr_declare_qk_norms(w, l, kind->head_dim, kind->head_dim));
    }
    TSR_TRY(
        tsr_declare_norm(w, TSR_WEIGHT_FFN_WHOLE, l, hp->n_embd, "post_attention_norm", &layer->ffn_norm));
    TSR_TRY(tsr_declare_ffn_or_experts(w, hp, l));
out:
    return status;
}

#define DELTA(arch, read)                                             \
    const tsr_arch tsr_arch_##arch = {.name = #arch,                  \
                                      .experts = true,                \
                                      .read_hparams = read,           \
                                      .read_layer = read_layer,       \
                                      .declare_layer = declare_layer, \
                                      .build_layer = tsr_build_layer}

DELTA(qwen3next, read_qwen3next);
DELTA(qwen35, read_qwen35);
DELTA(qwen35moe, read_qwen35);
