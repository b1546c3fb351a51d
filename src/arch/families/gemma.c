/* gemma, gemma2 and gemma3: embeddings are multiplied by sqrt(n_embd), the FFN's activation is GELU. The
 * weights of norms are 1 + w in the papers; a file has the sum.
 *
 *     x = x + post(Wo attn(norm(x)))                           post: a norm, in gemma nothing
 *     x = x + post(Wdown(gelu(Wgate norm(x)) * Wup norm(x)))
 *
 * Gemma 2 (arXiv:2408.00118) has norms after the blocks, too, caps scores and logits, and has a sliding
 * window in every other layer. Gemma 3 (arXiv:2503.19786) has head norms instead of the caps. Five of six
 * layers have a window and a rotation of their own, which is not stretched. */
#include <math.h>

#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_gemma(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->embedding_scale = sqrt((double)hp->n_embd);
    hp->ffn_activation = TSR_GLU_GELU_TANH;
    return TSR_OK;
}

/* The models of 27 billion parameters scale scores by n_embd / n_head, which differs from the length of their
 * heads. No key says so; their numbers of layers identify these models. */
static void set_scale_of_27b(int64_t n_layers, tsr_hparams *hp)
{
    if (hp->n_layers == n_layers)
        hp->attention_scale = 1 / sqrt((double)(hp->n_embd / hp->n_head));
}

static tsr_status read_gemma2(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    TSR_TRY(read_gemma(keys, hp));
    hp->window = 4096; /* defaults of keys that files may lack: table 1 of the paper */
    hp->attention_softcap = 50;
    hp->logit_softcap = 30;
    TSR_TRY(tsr_hparams_read_window(keys, 2, hp));
    TSR_TRY(tsr_keys_real(keys, "attn_logit_softcapping", false, 0, 1e6, &hp->attention_softcap));
    TSR_TRY(tsr_keys_real(keys, "final_logit_softcapping", false, 0, 1e6, &hp->logit_softcap));
    set_scale_of_27b(46, hp);
out:
    return status;
}

static tsr_status read_gemma3(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    TSR_TRY(read_gemma(keys, hp));
    tsr_rope_params *local = &hp->rope[TSR_ROPE_WINDOWED];
    *local = hp->rope[TSR_ROPE_MAIN];
    local->scaling = TSR_ROPE_SCALING_NONE;
    local->as_trained = true;
    local->base = 10000;
    TSR_TRY(tsr_hparams_read_window(keys, 6, hp));
    TSR_TRY(tsr_keys_real(keys, "final_logit_softcapping", false, 0, 1e6, &hp->logit_softcap));
    set_scale_of_27b(62, hp);
out:
    return status;
}

static tsr_status declare_gemma2_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_post_norms(w, hp, l));
out:
    return status;
}

static tsr_status declare_gemma3_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(declare_gemma2_layer(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, hp->head_dim, hp->head_dim));
out:
    return status;
}

const tsr_arch tsr_arch_gemma = {.name = "gemma",
                                 .read_hparams = read_gemma,
                                 .declare_layer = tsr_declare_plain_layer,
                                 .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_gemma2 = {.name = "gemma2",
                                  .read_hparams = read_gemma2,
                                  .declare_layer = declare_gemma2_layer,
                                  .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_gemma3 = {.name = "gemma3",
                                  .read_hparams = read_gemma3,
                                  .declare_layer = declare_gemma3_layer,
                                  .build_layer = tsr_build_layer};
