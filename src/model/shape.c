/* Reading a model's shape from its file. */
#include "model/shape.h"

/* The size of the vocabulary is the number of rows of the embedding matrix. */
static tsr_status read_vocab(const tsr_gguf *gguf, tsr_hparams *hp)
{
    const tsr_gguf_tensor *embedding = tsr_gguf_find_tensor(gguf, "token_embd.weight");
    if (!embedding)
        return tsr_fail(TSR_ERR_FORMAT, "%s: tensor token_embd.weight is missing", tsr_gguf_path(gguf));
    if (embedding->ne[1] > INT32_MAX)
        return tsr_fail(TSR_ERR_FORMAT, "%s: token_embd.weight has %lld rows", tsr_gguf_path(gguf),
                        (long long)embedding->ne[1]);
    hp->n_vocab = embedding->ne[1];
    return TSR_OK;
}

/* The matrices divided by columns decide: W_o of each kind of layers, and W_down where the FFN class counts
 * its columns. */
static tsr_status find_granules(const tsr_weights *weights, const tsr_hparams *hp,
                                tsr_model_granules *granules)
{
    const tsr_weight_role down = hp->n_expert ? TSR_WEIGHT_EXPERT_COLUMNS : TSR_WEIGHT_FFN_COLUMNS;
    int64_t attention[TSR_MAX_LAYER_KINDS], ffn = 1;
    for (int i = 0; i < hp->n_kinds; i++)
        attention[i] = 1;
    for (int i = 0; i < weights->n; i++) {
        const tsr_weight *w = weights->list[i];
        if (w->role == TSR_WEIGHT_Q_COLUMNS) {
            int64_t *of_kind = &attention[tsr_weight_kind(w, hp)];
            *of_kind = tsr_weight_common_block(w, *of_kind);
        } else if (w->role == down && (hp->n_expert > 0 || w->tensor.ne[0] == hp->n_ff)) {
            ffn = tsr_weight_common_block(w, ffn);
        }
    }
    return tsr_model_granules_find(hp, attention, ffn, granules);
}

tsr_status tsr_model_shape_read(const tsr_gguf *gguf, bool prediction, tsr_model_shape *shape_out)
{
    tsr_status status = TSR_OK;
    tsr_model_shape shape = {.gguf = gguf};
    tsr_weights weights = {0};
    TSR_TRY(tsr_arch_find(gguf, &shape.arch));
    TSR_TRY(tsr_arch_read_hparams(shape.arch, gguf, prediction, &shape.hparams));
    TSR_TRY(read_vocab(gguf, &shape.hparams));
    TSR_TRY(tsr_weights_init(&weights, gguf, shape.hparams.n_layers));
    TSR_TRY(tsr_arch_declare(shape.arch, &weights, &shape.hparams, NULL));
    TSR_TRY(tsr_arch_refuse_unused(&weights, &shape.hparams));
    TSR_TRY(find_granules(&weights, &shape.hparams, &shape.granules));
    *shape_out = shape;
out:
    tsr_weights_free(&weights);
    return status;
}

tsr_expert_split tsr_expert_split_of(const tsr_hparams *hp)
{
    return hp->by_expert ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS;
}

void tsr_expert_split_set(tsr_model_shape *shape, bool by_expert)
{
    const tsr_hparams *hp = &shape->hparams;
    int64_t columns = shape->granules.ffn_columns;
    shape->hparams.by_expert = by_expert;
    shape->granules.n[TSR_CLASS_FFN] = by_expert ? hp->n_expert : (hp->n_ff + columns - 1) / columns;
    shape->granules.size[TSR_CLASS_FFN] = by_expert ? 1 : columns;
}
