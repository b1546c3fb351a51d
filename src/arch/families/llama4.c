/* llama4: Llama 4 (Scout, Maverick), MobileLLM R1.
 *
 *     x = x + Wo attn(norm(x))
 *     x = x + Wdown(silu(Wgate norm(x)) * Wup norm(x))
 *     x = x + sum over the chosen experts e of expert_e(weight_e norm(x)) + shared(norm(x))
 *                                                              in every n-th layer
 *
 * Three of four layers see the chunk of 8192 positions that a token is in, with rotated queries and keys that
 * then have a norm without a weight. Every fourth layer sees all positions, without rotation; its queries
 * grow with the logarithm of their position. MobileLLM R1 has rotated layers that see all positions, and no
 * experts. */
#include "core/status.h"
#include "arch/blocks.h"

enum { CHUNK = 8192, PERIOD = 4 };

/* The growth of queries is in a table of rotations by no angle. */
static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_rope_params *of_queries = &hp->rope[TSR_ROPE_QUERIES];
    hp->rope_interleaved = true;
    hp->rotated_norm = hp->n_expert != 128; /* Maverick has none */
    hp->weigh_expert_inputs = true;
    hp->n_ff_shared = hp->n_expert > 0 ? hp->n_ff : 0;
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    hp->window = CHUNK;
    hp->chunked = true;
    TSR_TRY(tsr_hparams_read_window(keys, PERIOD, hp));
    if (hp->window == 0)
        return TSR_OK;
    if (hp->head_dim % 2 != 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: heads of %lld elements; the number must be even",
                        tsr_gguf_path(keys->gguf), (long long)hp->head_dim);
    *of_queries = (tsr_rope_params){.n_rot = hp->head_dim,
                                    .n_fixed = hp->head_dim,
                                    .base = 1,
                                    .factor = 1,
                                    .attn_factor = 1,
                                    .as_trained = true,
                                    .temperature = 0.1,
                                    .temperature_length = CHUNK,
                                    .temperature_offset = 1};
out:
    return status;
}

static tsr_status read_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    (void)keys;
    (void)l;
    if (hp->window > 0 && layer->window == 0) {
        layer->rope_q = TSR_ROPE_QUERIES;
        layer->rope_k = -1;
    }
    return TSR_OK;
}

const tsr_arch tsr_arch_llama4 = {.name = "llama4",
                                  .experts = true,
                                  .read_hparams = read_hparams,
                                  .read_layer = read_layer,
                                  .declare_layer = tsr_declare_plain_layer,
                                  .build_layer = tsr_build_layer};
