/* Models whose attention has a gate: the sigmoid of another product of its input is a factor on its result.
 *
 *     x = x + Wo (attn(norm(x)) * sigmoid(Wgate norm(x)))
 *     x = x + the FFN of norm(x): dense, or a mixture of experts
 *
 * Both have norms of heads, and experts that are chosen by sigmoids and a bias.
 *
 * - afmoe: Trinity. A gate for each element; norms after the blocks, too; layers without a window have no
 * rotation; embeddings are multiplied by sqrt(n_embd).
 *
 * - step35: Step 3.5 Flash. A gate for each head; layers with a window have more query heads and rotate whole
 * heads, the others rotate half of each; the activations of some layers have a cap. */
#include <math.h>
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

/* Without a pattern in the file, every fourth layer sees all positions. */
static tsr_status read_afmoe(tsr_keys *keys, tsr_hparams *hp)
{
    hp->embedding_scale = sqrt((double)hp->n_embd);
    return tsr_hparams_read_window(keys, 4, hp);
}

static tsr_status declare_afmoe_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, kind->head_dim, kind->head_dim));
    TSR_DECLARE(attn_gate, true, TSR_WEIGHT_Q_ROWS, hp->n_embd, kind->n_head * kind->head_dim,
                "attn_gate.weight");
    TSR_TRY(tsr_declare_post_norms(w, hp, l));
out:
    return status;
}

/* The file's factors are for the pairs of a whole rotation. */
static tsr_status halve_rotation(const tsr_keys *keys, tsr_rope_params *rope)
{
    if (rope->n_rot % 4 != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: half of %lld rotated elements is odd", tsr_gguf_path(keys->gguf),
                        (long long)rope->n_rot);
    rope->n_factors = rope->n_rot / 2;
    rope->n_rot /= 2;
    return TSR_OK;
}

static tsr_status read_step35(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    int64_t every = 1;
    tsr_rope_params *local = &hp->rope[TSR_ROPE_WINDOWED];
    *local = hp->rope[TSR_ROPE_MAIN];
    local->scaling = TSR_ROPE_SCALING_NONE;
    local->as_trained = true;
    TSR_TRY(halve_rotation(keys, &hp->rope[TSR_ROPE_MAIN]));
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    TSR_TRY(tsr_hparams_read_window(keys, 4, hp));
    TSR_TRY(tsr_keys_int(keys, "moe_every_n_layers", TSR_ALL_LAYERS, false, 0, TSR_MAX_LAYERS, &every));
    if (every > 1)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "%s: %s is %lld; only 1, a mixture of experts in every layer after the dense ones, is "
            "supported",
            tsr_gguf_path(keys->gguf), keys->name, (long long)every);
out:
    return status;
}

static tsr_status read_step35_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    double experts = 0, shared = 0;
    (void)hp;
    TSR_TRY(tsr_keys_layer_real(keys, "swiglu_clamp_exp", l, 0, 1e6, &experts));
    TSR_TRY(tsr_keys_layer_real(keys, "swiglu_clamp_shexp", l, 0, 1e6, &shared));
    layer->expert_limit = (float)experts;
    layer->ffn_limit = (float)shared;
out:
    return status;
}

static tsr_status declare_step35_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    const tsr_weight_rows rows = {hp->n_embd, 0, kind->n_head, kind->n_head};
    char gate[TSR_MAX_NAME];
    snprintf(gate, sizeof gate, "blk.%d.attn_gate.weight", l);
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, kind->head_dim, kind->head_dim));
    TSR_TRY(tsr_weights_declare_rows(w, true, TSR_WEIGHT_Q_HEADS, l, rows, &layer->attn_gate, gate));
out:
    return status;
}

const tsr_arch tsr_arch_afmoe = {.name = "afmoe",
                                 .experts = true,
                                 .read_hparams = read_afmoe,
                                 .read_layer = tsr_layer_rotate_windows,
                                 .declare_layer = declare_afmoe_layer,
                                 .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_step35 = {.name = "step35",
                                  .experts = true,
                                  .read_hparams = read_step35,
                                  .read_layer = read_step35_layer,
                                  .declare_layer = declare_step35_layer,
                                  .build_layer = tsr_build_layer};
