/* Models with LayerNorms and layers of attention, then an FFN.
 *
 *     x = x + Wo attn(norm(x))
 *     x = x + Wdown act(Wup norm(x))                           stablelm: act(Wgate norm(x)) * Wup norm(x)
 *
 * - starcoder2: StarCoder 2 (arXiv:2402.19173). Biases everywhere, GELU without a gate.
 *
 * - nemotron: Nemotron 4 and Minitron (arXiv:2402.16819). About half of each head is rotated; the square of
 * ReLU without a gate. Norms multiply by 1 + w in the models' code; files have the sum.
 *
 * - stablelm: StableLM 3B, Zephyr and 2. A quarter of a head is rotated; SwiGLU. */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_starcoder2(tsr_keys *keys, tsr_hparams *hp)
{
    hp->layer_norm = true;
    hp->ungated_ffn = true;
    return tsr_hparams_read_window(keys, 0, hp);
}

static tsr_status read_nemotron(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->layer_norm = true;
    hp->ungated_ffn = true;
    hp->relu_squared = true;
    return TSR_OK;
}

/* StableLM 2 12B has parallel blocks and a different norm for each query and key head. The converter writes
 * use_parallel_residual = true for all models, so the tensors decide. */
static tsr_status read_stablelm(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_keys_ignore(keys, "use_parallel_residual");
    hp->layer_norm = true;
    hp->parallel_blocks = !tsr_gguf_find_tensor(keys->gguf, "blk.0.ffn_norm.weight");
    return TSR_OK;
}

const tsr_arch tsr_arch_starcoder2 = {.name = "starcoder2",
                                      .read_hparams = read_starcoder2,
                                      .declare_layer = tsr_declare_layer_norm_layer,
                                      .build_layer = tsr_build_layer_norm_layer};
const tsr_arch tsr_arch_nemotron = {.name = "nemotron",
                                    .read_hparams = read_nemotron,
                                    .declare_layer = tsr_declare_layer_norm_layer,
                                    .build_layer = tsr_build_layer_norm_layer};
const tsr_arch tsr_arch_stablelm = {.name = "stablelm",
                                    .read_hparams = read_stablelm,
                                    .declare_layer = tsr_declare_layer_norm_layer,
                                    .build_layer = tsr_build_layer_norm_layer};
