/* llama: pre-norm layers of attention with grouped query heads and a SwiGLU FFN. */
#include "core/status.h"
#include "model/blocks.h"

static tsr_status read_hparams(const tsr_gguf *gguf, tsr_hparams *hp)
{
    (void)gguf;
    hp->rope_interleaved = true;
    return TSR_OK;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_pre_norms(w, hp, l));
    TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_TRY(tsr_declare_ffn(w, hp, l));
out:
    return status;
}

static tsr_status declare(tsr_weights *w, const tsr_hparams *hp)
{
    return tsr_declare_decoder(w, hp, declare_layer);
}

static tsr_tensor *build_layer(const tsr_layer *at, tsr_tensor *x)
{
    x = tsr_block_residual(at, x, tsr_block_attention(at, tsr_block_norm(at, x, at->w->attn_norm)));
    return tsr_block_residual(at, x, tsr_block_ffn(at, tsr_block_norm(at, x, at->w->ffn_norm)));
}

static tsr_tensor *build(const tsr_hparams *hp, const tsr_weights *w, const tsr_step_graph *step)
{
    return tsr_build_decoder(hp, w, step, build_layer);
}

const tsr_arch tsr_arch_llama = {
    .name = "llama", .read_hparams = read_hparams, .declare = declare, .build = build};
