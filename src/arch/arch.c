/* The table of architectures. */
#include "arch/arch.h"

#include <stdio.h>
#include <string.h>

#include "arch/families/families.h"
#include "core/mem.h"
#include "arch/blocks.h"

#define FAMILY(name) &tsr_arch_##name,
static const tsr_arch *const archs[] = {TSR_FAMILIES(FAMILY)};

enum { N_ARCHS = sizeof archs / sizeof *archs, LIST_BYTES = 1200 };

/* "llama, qwen2, ..." */
static void list_archs(char *text)
{
    size_t used = 0;
    for (size_t i = 0; i < N_ARCHS && used < LIST_BYTES; i++)
        used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%s", i ? ", " : "", archs[i]->name);
}

tsr_status tsr_arch_find(const tsr_gguf *gguf, const tsr_arch **arch_out)
{
    tsr_gguf_string name;
    char list[LIST_BYTES] = "";
    if (!tsr_gguf_has_key(gguf, "general.architecture"))
        return tsr_fail(TSR_ERR_FORMAT, "%s: key general.architecture is missing", tsr_gguf_path(gguf));
    tsr_status status = tsr_gguf_get_string(gguf, "general.architecture", &name);
    if (status != TSR_OK)
        return status;
    for (size_t i = 0; i < N_ARCHS; i++) {
        if (strlen(archs[i]->name) == name.bytes && memcmp(archs[i]->name, name.data, name.bytes) == 0) {
            *arch_out = archs[i];
            return TSR_OK;
        }
    }
    list_archs(list);
    return tsr_fail(
        TSR_ERR_UNSUPPORTED,
        "%s: architecture \"%.*s\" is not supported; this version runs: %s; others can be planned",
        tsr_gguf_path(gguf), (int)TSR_MIN(name.bytes, (size_t)64), name.data, list);
}

/* Inputs of a step that nothing reads would have no memory: rotations that no layer has are dropped. */
static void drop_unused_rotations(tsr_hparams *hp)
{
    bool used[TSR_ROPE_SLOTS] = {false};
    for (int i = 0; i < hp->n_kinds; i++) {
        if (hp->kinds[i].rope_q >= 0)
            used[hp->kinds[i].rope_q] = true;
        if (hp->kinds[i].rope_k >= 0)
            used[hp->kinds[i].rope_k] = true;
    }
    for (int i = 0; i < TSR_ROPE_NAMED; i++)
        if (!used[i])
            hp->rope[i] = (tsr_rope_params){0};
}

/* Files of models without rotations may have any number here. */
static tsr_status check_rotation(tsr_keys *keys, const tsr_hparams *hp)
{
    const int64_t n = hp->rope[TSR_ROPE_MAIN].n_rot;
    const int64_t most = hp->latent.kv_rank > 0 ? hp->latent.n_rot : hp->head_dim;
    if (n % 2 != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: rope.dimension_count %lld is odd", tsr_gguf_path(keys->gguf),
                        (long long)n);
    if (n > most)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s.rope.dimension_count is %lld; it must be in [2, %lld]",
                        tsr_gguf_path(keys->gguf), keys->architecture, (long long)n, (long long)most);
    return TSR_OK;
}

static tsr_status check_mixture_known(const tsr_arch *arch, const tsr_gguf *gguf, const tsr_hparams *hp)
{
    if (hp->n_expert > 0 && !arch->experts)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: architecture %s with a mixture of %lld experts is not supported",
                        tsr_gguf_path(gguf), arch->name, (long long)hp->n_expert);
    return TSR_OK;
}

/* Files have a tensor of all experts, or a tensor per expert. */
static tsr_status check_experts(const tsr_gguf *gguf, const tsr_hparams *hp)
{
    static const char *const kinds[] = {"gate.0", "down.0", "down_exps"};
    char tensor[TSR_MAX_NAME];
    int l = 0;
    while (l < (int)hp->n_layers && tsr_hparams_layer(hp, l)->ffn != TSR_FFN_EXPERTS)
        l++;
    if (l == (int)hp->n_layers)
        return TSR_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(tensor, sizeof tensor, "blk.%d.ffn_%s.weight", l, kinds[i]);
        if (tsr_gguf_find_tensor(gguf, tensor))
            return TSR_OK;
    }
    return tsr_fail(
        TSR_ERR_UNSUPPORTED,
        "%s: gate, up and down of the %lld experts are not a tensor each (%s is missing), nor those of "
        "each expert; convert the model anew",
        tsr_gguf_path(gguf), (long long)hp->n_expert, tensor);
}

static bool has_kv_heads(const tsr_layer_kind *k)
{
    return k->mixer == TSR_MIXER_ATTENTION || k->mixer == TSR_MIXER_LATENT ||
           k->mixer == TSR_MIXER_COMPRESSED;
}

/* The means over the layers, for predictions of time. Layers with a window read no more positions than the
 * window. */
static void summarize_kv(tsr_hparams *hp)
{
    double n = (double)hp->n_layers;
    hp->kv = (tsr_kv_shape){.window = hp->window};
    for (int64_t l = 0; l < hp->n_layers; l++) {
        const tsr_layer_kind *k = tsr_hparams_layer(hp, l);
        if (!has_kv_heads(k) || tsr_hparams_kv_layer(hp, l) < l)
            continue;
        const bool latent = k->mixer == TSR_MIXER_LATENT, compressed = k->mixer == TSR_MIXER_COMPRESSED;
        const int64_t elems = latent       ? hp->latent.kv_rank + hp->latent.n_rot
                              : compressed ? k->head_dim
                                           : k->n_head_kv * k->head_dim;
        const double rows = (double)(k->index_dim + (k->ratio > 0 ? k->head_dim : 0));
        hp->kv.k_elems += ((double)elems + rows / (double)TSR_MAX(k->ratio, 1)) / n;
        hp->kv.v_elems += (latent || compressed ? 0 : (double)elems) / n;
        hp->kv.whole |= latent || compressed;
        hp->kv.windowed += (k->window > 0) / n;
    }
}

static tsr_status check_layer(const tsr_gguf *gguf, int64_t l, const tsr_layer_kind *k)
{
    const bool mixes = k->mixer != TSR_MIXER_NONE;
    if (mixes && (k->n_head < 1 || k->n_head_kv < 1))
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: layer %lld has %lld heads and %lld KV heads; layers "
                        "without heads are not supported for this architecture",
                        tsr_gguf_path(gguf), (long long)l, (long long)k->n_head, (long long)k->n_head_kv);
    if (mixes && k->n_head % k->n_head_kv != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %lld heads are no multiple of %lld KV heads",
                        tsr_gguf_path(gguf), (long long)k->n_head, (long long)k->n_head_kv);
    if (k->ffn == TSR_FFN_DENSE && k->n_ff < 1)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: layer %lld has an FFN of %lld columns; layers without "
                        "an FFN are not supported for this architecture",
                        tsr_gguf_path(gguf), (long long)l, (long long)k->n_ff);
    return TSR_OK;
}

/* Layers that read another layer's keys and values have its heads. */
static tsr_status check_shared_kv(const tsr_gguf *gguf, const tsr_hparams *hp)
{
    for (int64_t l = hp->n_layers - hp->n_shared_kv; l < hp->n_layers; l++) {
        const int64_t source = tsr_hparams_kv_layer(hp, l);
        const tsr_layer_kind *a = tsr_hparams_layer(hp, source), *b = tsr_hparams_layer(hp, l);
        if (a->mixer != TSR_MIXER_ATTENTION || b->mixer != TSR_MIXER_ATTENTION || a->window != b->window ||
            a->head_dim != b->head_dim || a->n_head_kv != b->n_head_kv || a->n_head != b->n_head)
            return tsr_fail(TSR_ERR_UNSUPPORTED,
                            "%s: layer %lld has no keys and values of its own, and no earlier layer has its "
                            "heads and its window",
                            tsr_gguf_path(gguf), (long long)l);
    }
    return TSR_OK;
}

/* A prediction writes keys and values at positions that decoding has passed. A recurrent state has no place
 * for them, and keys and values of another layer are not the prediction's. Callers get the sum of residual
 * streams, of which a prediction would read each. */
static tsr_status check_prediction(const tsr_gguf *gguf, const tsr_hparams *hp)
{
    const int64_t l = hp->n_layers - 1;
    const tsr_layer_kind *k = tsr_hparams_layer(hp, l);
    if (hp->predicts && hp->n_streams > 0)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "%s: the prediction layer of a model with residual streams is not supported; open the "
            "model without its prediction layer",
            tsr_gguf_path(gguf));
    if (!hp->predicts || (has_kv_heads(k) && !k->beside && tsr_hparams_kv_layer(hp, l) == l))
        return TSR_OK;
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "%s: prediction layer %lld has a recurrent state, or no keys and values of its own; open "
                    "the model without its prediction layer",
                    tsr_gguf_path(gguf), (long long)l);
}

static tsr_status read_layers(const tsr_arch *arch, tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    for (int64_t l = 0; l < hp->n_layers; l++) {
        tsr_layer_kind kind;
        TSR_TRY(tsr_layer_kind_read(keys, hp, l, &kind));
        if (arch->read_layer)
            TSR_TRY(arch->read_layer(keys, hp, l, &kind));
        TSR_TRY(check_layer(keys->gguf, l, &kind));
        TSR_TRY(tsr_hparams_set_layer(hp, l, &kind));
    }
    TSR_TRY(check_prediction(keys->gguf, hp));
    TSR_TRY(check_shared_kv(keys->gguf, hp));
out:
    return status;
}

tsr_status tsr_arch_read_hparams(const tsr_arch *arch, const tsr_gguf *gguf, bool prediction,
                                 tsr_hparams *hparams_out)
{
    tsr_status status = TSR_OK;
    tsr_hparams hp;
    tsr_keys keys = {.gguf = gguf, .architecture = arch->name, .prediction = prediction};
    TSR_TRY(tsr_hparams_read(&keys, arch->latent, &hp));
    TSR_TRY(check_mixture_known(arch, gguf, &hp));
    if (arch->read_hparams)
        TSR_TRY(arch->read_hparams(&keys, &hp));
    TSR_TRY(read_layers(arch, &keys, &hp));
    TSR_TRY(check_experts(gguf, &hp));
    TSR_TRY(tsr_hparams_read_norm(&keys, &hp));
    if (hp.n_expert > 0) /* files may say otherwise than their architecture does */
        TSR_TRY(tsr_keys_bool(&keys, "expert_weights_norm", &hp.expert_normalize));
    if (!hp.rope_interleaved) /* M-RoPE of a text, see families/glm.c */
        tsr_keys_ignore(&keys, "rope.dimension_sections");
    TSR_TRY(tsr_keys_refuse_unread(&keys, hp.n_expert == 0));
    drop_unused_rotations(&hp);
    TSR_TRY(check_rotation(&keys, &hp));
    summarize_kv(&hp);
    *hparams_out = hp;
out:
    return status;
}

/* The class of attention counts granules of the main kind. Tensors of other kinds, and tensors with other
 * elements per head than the class has, are cut at the same proportions, at granules of their own. */
static void cut_attention(tsr_weights *weights, const tsr_hparams *hp, const tsr_model_granules *granules)
{
    for (int i = 0; i < weights->n; i++) {
        tsr_weight *weight = weights->list[i];
        if (weight->layer < 0)
            continue;
        const int kind = tsr_weight_kind(weight, hp);
        const tsr_layer_kind *k = &hp->kinds[kind];
        if (k->n_head_kv == 0 || (kind == granules->main_kind && weight->per_head == 0))
            continue;
        int64_t heads = granules->kind_heads[kind], group = k->n_head / k->n_head_kv;
        if (weight->per_head > 0)
            weight->granule = heads * weight->per_head;
        else if (weight->role == TSR_WEIGHT_KV_ROWS)
            weight->granule = heads * k->head_dim;
        else if (weight->role == TSR_WEIGHT_Q_ROWS || weight->role == TSR_WEIGHT_Q_COLUMNS)
            weight->granule = heads * group * k->head_dim;
        else if (weight->role == TSR_WEIGHT_Q_HEADS)
            weight->granule = heads * group;
    }
}

tsr_status tsr_arch_declare(const tsr_arch *arch, tsr_weights *weights, const tsr_hparams *hp,
                            const tsr_model_granules *granules)
{
    tsr_status status =
        arch->declare ? arch->declare(weights, hp) : tsr_declare_decoder(weights, hp, arch->declare_layer);
    if (status == TSR_OK && granules) {
        weights->ffn_columns = granules->ffn_columns;
        cut_attention(weights, hp, granules);
    }
    return status;
}

/* Read where the rotary tables are made (model/load.c). */
static bool is_rope_factors(const tsr_hparams *hp, const char *name)
{
    const tsr_rope_params *rope = &hp->rope[TSR_ROPE_MAIN];
    if (rope->n_rot == 0)
        return false;
    if (rope->scaling == TSR_ROPE_SCALING_LONGROPE)
        return strcmp(name, "rope_factors_long.weight") == 0 ||
               strcmp(name, "rope_factors_short.weight") == 0;
    return strcmp(name, "rope_freqs.weight") == 0;
}

static bool is_of_prediction_layer(const tsr_hparams *hp, const char *name)
{
    int64_t layer = tsr_weight_name_layer(name);
    return layer >= hp->n_layers && layer < hp->n_layers + hp->n_predict_layers;
}

/* Files may have keys and values for layers that read those of another layer. */
static bool is_of_shared_kv(const tsr_hparams *hp, const char *name)
{
    const int64_t layer = tsr_weight_name_layer(name);
    const char *end = strstr(name, ".attn_");
    return layer >= 0 && layer < hp->n_layers && tsr_hparams_kv_layer(hp, layer) < layer && end &&
           (strcmp(end, ".attn_k.weight") == 0 || strcmp(end, ".attn_v.weight") == 0 ||
            strcmp(end, ".attn_k_norm.weight") == 0);
}

/* A bias of the router for tokens of images, which no batch has. */
static bool is_of_images(const char *name)
{
    const char *end = strstr(name, ".exp_probs_b_vl.");
    return end && strcmp(end, ".exp_probs_b_vl.bias") == 0;
}

/* Mark the tensors of the file that are the source of a weight. */
static void mark_used(const tsr_gguf *gguf, const tsr_weight *weight, const tsr_hparams *hp, bool *used)
{
    const tsr_gguf_tensor *first = tsr_gguf_tensor_at(gguf, 0);
    if (!weight->experts)
        used[tsr_gguf_find_tensor(gguf, weight->source->name) - first] = true;
    for (int64_t i = 0; weight->experts && i < hp->n_expert; i++)
        used[weight->experts[i] - first] = true;
}

tsr_status tsr_arch_refuse_unused(const tsr_weights *weights, const tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    bool *used = NULL;
    const tsr_gguf *gguf = weights->gguf;
    int64_t n = tsr_gguf_n_tensors(gguf);
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *used, "the list of used tensors", &used));
    for (int i = 0; i < weights->n; i++)
        mark_used(gguf, weights->list[i], hp, used);
    for (int64_t i = 0; i < n; i++) {
        const char *name = tsr_gguf_tensor_at(gguf, i)->name;
        if (used[i] || is_rope_factors(hp, name) || is_of_prediction_layer(hp, name) ||
            is_of_shared_kv(hp, name) || is_of_images(name))
            continue;
        TSR_TRY(tsr_fail(TSR_ERR_UNSUPPORTED,
                         "%s: tensor %s is unknown to architecture %s and may change the result; convert "
                         "the model without it",
                         tsr_gguf_path(gguf), name, hp->architecture));
    }
out:
    tsr_mem_free(used);
    return status;
}

tsr_tensor *tsr_arch_build(const tsr_arch *arch, const tsr_hparams *hp, const tsr_weights *weights,
                           tsr_step_graph *step)
{
    if (step->hidden_in)
        return tsr_build_prediction(hp, weights, step, arch->build_layer);
    return tsr_build_decoder(hp, weights, step, arch->build_layer);
}
