/* qwen2, qwen3, qwen3moe, qwen3vl, qwen3vlmoe and seed_oss: llama's layers, rotation of elements half a head
 * apart. Qwen 2 has biases of queries, keys and values; Qwen 3 has none, but norms over every query and key
 * head.
 *
 *     x = x + Wo attn(norm(x))                                 Qwen 3: attention of norm(q), norm(k), v
 *     x = x + Wdown(silu(Wgate norm(x)) * Wup norm(x))
 *
 * - qwen3vl, qwen3vlmoe: the text part of Qwen 3 VL, a qwen3 or a qwen3moe with M-RoPE. Layers add embeddings
 * of images, which a text has none of.
 *
 * - seed_oss: Seed OSS, a qwen2 whose files call the norm before the FFN post_attention_norm. */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status declare_qwen3_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, hp->head_dim, hp->head_dim));
out:
    return status;
}

const tsr_arch tsr_arch_qwen2 = {
    .name = "qwen2", .declare_layer = tsr_declare_plain_layer, .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_qwen3 = {
    .name = "qwen3", .declare_layer = declare_qwen3_layer, .build_layer = tsr_build_layer};

static tsr_status read_qwen3vl(tsr_keys *keys, tsr_hparams *hp)
{
    (void)hp;
    tsr_keys_ignore(keys, "n_deepstack_layers"); /* the first layers add embeddings of images */
    return TSR_OK;
}

const tsr_arch tsr_arch_qwen3vl = {.name = "qwen3vl",
                                   .read_hparams = read_qwen3vl,
                                   .declare_layer = declare_qwen3_layer,
                                   .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_seed_oss = {
    .name = "seed_oss", .declare_layer = tsr_declare_renamed_layer, .build_layer = tsr_build_layer};

static tsr_status read_qwen3moe(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->expert_normalize = true;
    return TSR_OK;
}

const tsr_arch tsr_arch_qwen3moe = {.name = "qwen3moe",
                                    .experts = true,
                                    .read_hparams = read_qwen3moe,
                                    .declare_layer = declare_qwen3_layer,
                                    .build_layer = tsr_build_layer};

static tsr_status read_qwen3vlmoe(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = read_qwen3vl(keys, hp);
    return status == TSR_OK ? read_qwen3moe(keys, hp) : status;
}

const tsr_arch tsr_arch_qwen3vlmoe = {.name = "qwen3vlmoe",
                                      .experts = true,
                                      .read_hparams = read_qwen3vlmoe,
                                      .declare_layer = declare_qwen3_layer,
                                      .build_layer = tsr_build_layer};
