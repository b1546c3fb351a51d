/* DeepSeek V4: residual streams (blocks/streams.c); attention to a window and to compressed positions
 * (blocks/compressed.c); a mixture of experts with a shared expert in every layer, chosen by the roots of
 * softplus and a bias, in the first layers by a table of token ids.
 *
 *     X = streams(X, attention);  X = streams(X, experts)
 *
 * A layer has no compressed rows, rows of many positions, all of which it sees, or rows of few positions, of
 * which an index selects some. Rotations are of the last elements of heads; those of layers with compressed
 * rows have another base, and YaRN. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

static const char ratios[] = "attention.compress_ratios";

/* The rotation of the last n_rot elements of `dim`. cos and sin keep their size. */
static tsr_rope_params at_the_end(const tsr_rope_params *rope, int64_t n_rot, int64_t dim)
{
    tsr_rope_params p = *rope;
    p.n_rot = dim;
    p.n_fixed = dim - n_rot;
    p.yarn_magnitude = 1;
    return p;
}

/* Whether the compressed rows of a layer are selected: such a layer has the tensors of an index. */
static bool selects(const tsr_keys *keys, const tsr_hparams *hp, int64_t l)
{
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.indexer.attn_q_b.weight", (int)l);
    return hp->indexer.n_heads > 0 && tsr_gguf_find_tensor(keys->gguf, name);
}

/* The rotations of a layer with rows of `ratio` positions. All layers whose rows are selected have one ratio,
 * and so have the others. */
static tsr_status add_rotations(tsr_keys *keys, const tsr_rope_params *wide, int64_t l, int64_t ratio,
                                tsr_hparams *hp)
{
    const bool chosen = selects(keys, hp, l);
    const int64_t n_rot = wide->n_rot, dim = hp->head_dim;
    tsr_rope_params *rope = hp->rope, *rows = &rope[chosen ? TSR_ROPE_CHOSEN_ROWS : TSR_ROPE_ROWS];
    if (ratio == 1)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: %s is 1 for layer %lld; a compressed row must have at least 2 positions",
                        tsr_gguf_path(keys->gguf), keys->name, (long long)l);
    if (rows->group > 0 && rows->group != ratio)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: %s is %lld for layer %lld, and %lld for others of its kind; one number for all "
                        "is supported",
                        tsr_gguf_path(keys->gguf), keys->name, (long long)ratio, (long long)l,
                        (long long)rows->group);
    rope[TSR_ROPE_WIDE] = rope[TSR_ROPE_WIDE_BACK] = *rows = at_the_end(wide, n_rot, dim);
    rope[TSR_ROPE_WIDE_BACK].inverse = true;
    rows->group = ratio;
    if (!chosen)
        return TSR_OK;
    rope[TSR_ROPE_INDEX] = rope[TSR_ROPE_INDEX_ROWS] = at_the_end(wide, n_rot, hp->indexer.dim);
    rope[TSR_ROPE_INDEX_ROWS].group = ratio;
    return TSR_OK;
}

static tsr_status read_rotations(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_rope_params *rope = hp->rope, wide = rope[TSR_ROPE_MAIN], main = wide;
    const int64_t n_rot = wide.n_rot, dim = hp->head_dim;
    hp->rope_interleaved = true;
    if (n_rot > dim || n_rot % 2 != 0 || dim % 2 != 0 || hp->indexer.dim % 2 != 0)
        return tsr_fail(TSR_ERR_FORMAT,
                        "%s: %lld of %lld elements of a head are rotated, and of %lld of an index key; the "
                        "numbers must be even",
                        tsr_gguf_path(keys->gguf), (long long)n_rot, (long long)dim,
                        (long long)hp->indexer.dim);
    TSR_TRY(tsr_keys_real(keys, "attention.compress_rope_freq_base", false, 1e-3, 1e12, &wide.base));
    main.scaling = TSR_ROPE_SCALING_NONE;
    rope[TSR_ROPE_MAIN] = at_the_end(&main, n_rot, dim);
    for (int64_t l = 0; l < hp->n_layers; l++) {
        int64_t ratio = 0;
        TSR_TRY(tsr_keys_int(keys, ratios, l, true, 0, 1 << 16, &ratio));
        if (ratio > 0)
            TSR_TRY(add_rotations(keys, &wide, l, ratio, hp));
        else
            rope[TSR_ROPE_BACK] = rope[TSR_ROPE_MAIN];
    }
    rope[TSR_ROPE_BACK].inverse = true;
out:
    return status;
}

static tsr_status read_streams(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    double eps = 1e-6;
    TSR_TRY(tsr_keys_int(keys, "hyper_connection.count", TSR_ALL_LAYERS, true, 1, TSR_MAX_STREAMS,
                         &hp->n_streams));
    TSR_TRY(tsr_keys_int(keys, "hyper_connection.sinkhorn_iterations", TSR_ALL_LAYERS, true, 1, 1000,
                         &hp->stream_iterations));
    TSR_TRY(tsr_keys_real(keys, "hyper_connection.epsilon", false, 0, 1, &eps));
    tsr_keys_ignore(keys, "embedding_length_out"); /* the streams together */
    hp->stream_eps = (float)eps;
out:
    return status;
}

static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    hp->bounded_glu = true;
    hp->indexer.sums_heads = true;
    tsr_hparams_default_gating(keys, TSR_GATING_SQRT_SOFTPLUS, hp);
    TSR_TRY(
        tsr_keys_int(keys, "attention.q_lora_rank", TSR_ALL_LAYERS, true, 1, 1 << 16, &hp->latent.q_rank));
    TSR_TRY(
        tsr_keys_int(keys, "attention.output_lora_rank", TSR_ALL_LAYERS, true, 1, 1 << 16, &hp->out_rank));
    TSR_TRY(tsr_keys_int(keys, "attention.sliding_window", TSR_ALL_LAYERS, true, 1, INT32_MAX, &hp->window));
    TSR_TRY(
        tsr_keys_int(keys, "hash_layer_count", TSR_ALL_LAYERS, false, 0, hp->n_layers, &hp->n_hash_layers));
    TSR_TRY(read_streams(keys, hp));
    if (tsr_keys_have(keys, "attention.indexer.head_count"))
        TSR_TRY(tsr_hparams_read_indexer(keys, hp));
    TSR_TRY(read_rotations(keys, hp));
    if (hp->n_hash_layers == hp->n_layers) /* the last layer has fewer tokens than the step */
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: %s is %lld of %lld layers; the last layer must have a router",
                        tsr_gguf_path(keys->gguf), "hash_layer_count", (long long)hp->n_hash_layers,
                        (long long)hp->n_layers);
out:
    return status;
}

static tsr_status read_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    double experts = 0, shared;
    int64_t n_groups = 0;
    TSR_TRY(tsr_keys_int(keys, ratios, l, true, 0, 1 << 16, &layer->ratio));
    TSR_TRY(tsr_keys_int(keys, "attention.output_group_count", TSR_ALL_LAYERS, true, 1, layer->n_head,
                         &n_groups));
    TSR_TRY(tsr_keys_layer_real(keys, "swiglu_clamp_exp", l, 0, 1e6, &experts));
    shared = experts; /* unless the file says otherwise */
    TSR_TRY(tsr_keys_layer_real(keys, "swiglu_clamp_shexp", l, 0, 1e6, &shared));
    if (layer->ffn != TSR_FFN_EXPERTS)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: layer %lld has no experts; every layer of this architecture has a mixture",
                        tsr_gguf_path(keys->gguf), (long long)l);
    layer->mixer = TSR_MIXER_COMPRESSED;
    layer->n_head_kv = n_groups;
    layer->expert_limit = (float)experts;
    layer->ffn_limit = (float)shared;
    layer->window = hp->window;
    layer->rope_q = layer->rope_k = layer->ratio > 0 ? TSR_ROPE_WIDE : TSR_ROPE_MAIN;
    if (layer->ratio > 0 && selects(keys, hp, l)) {
        layer->n_selected = hp->indexer.n_selected;
        layer->index_dim = hp->indexer.dim;
    }
out:
    return status;
}

/* Kernels replace a number out of range by expert 0, so the file is checked here. */
static tsr_status check_table(const tsr_weights *w, const tsr_hparams *hp, const tsr_tensor *table)
{
    const tsr_gguf_tensor *source = ((const tsr_weight *)table)->source; /* its first member */
    const int32_t *experts = source ? source->data : NULL;
    if (table->type != TSR_TYPE_I32)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: tensor %s is %s; it must be I32", tsr_gguf_path(w->gguf),
                        source->name, tsr_type_name(table->type));
    for (int64_t i = 0; experts && i < hp->n_vocab * hp->n_expert_used; i++)
        if (experts[i] < 0 || experts[i] >= hp->n_expert)
            return tsr_fail(TSR_ERR_FORMAT, "%s: tensor %s has expert %d of %lld", tsr_gguf_path(w->gguf),
                            source->name, (int)experts[i], (long long)hp->n_expert);
    return TSR_OK;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    TSR_TRY(tsr_declare_pre_norms(w, hp, l));
    TSR_TRY(tsr_declare_streams(w, hp, l));
    TSR_TRY(tsr_declare_compressed(w, hp, l));
    TSR_TRY(tsr_declare_experts(w, hp, l));
    if (l >= hp->n_hash_layers)
        return TSR_OK;
    TSR_DECLARE(expert_table, true, TSR_WEIGHT_FFN_WHOLE, hp->n_expert_used, hp->n_vocab,
                "ffn_gate_tid2eid.weight");
    layer->expert_table->ne[0] = hp->n_expert_used; /* a matrix of one column, too */
    layer->expert_table->ne[1] = hp->n_vocab;
    if (w->gguf)
        TSR_TRY(check_table(w, hp, layer->expert_table));
    else
        layer->expert_table->type = TSR_TYPE_I32;
out:
    return status;
}

const tsr_arch tsr_arch_deepseek4 = {.name = "deepseek4",
                                     .experts = true,
                                     .read_hparams = read_hparams,
                                     .read_layer = read_layer,
                                     .declare_layer = declare_layer,
                                     .build_layer = tsr_build_stream_layer};
