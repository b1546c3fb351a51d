/* Information about a loaded model. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include <tsr/tokenizer.h>

#include "core/checksum.h"
#include "core/mem.h"

void tsr_model_get_info(const tsr_model *model, tsr_model_info *info_out)
{
    const tsr_hparams *hp = &model->shape.hparams;
    tsr_model_info info = {.n_layers = hp->n_layers,
                           .n_embd = hp->n_embd,
                           .n_head = hp->n_head,
                           .n_head_kv = hp->n_head_kv,
                           .head_dim = hp->head_dim,
                           .n_ff = hp->n_ff,
                           .n_vocab = hp->n_vocab,
                           .n_ctx_train = hp->n_ctx_train,
                           .weight_bytes = tsr_weights_bytes(&model->weights)};
    snprintf(info.architecture, sizeof info.architecture, "%s", hp->architecture);
    snprintf(info.name, sizeof info.name, "%s", hp->name);
    for (int i = 0; i < model->weights.n; i++)
        if (!model->weights.list[i]->tied)
            info.n_params += model->weights.list[i]->tensor.ne[0] * model->weights.list[i]->tensor.ne[1];
    *info_out = info;
}

const tsr_gguf *tsr_model_gguf(const tsr_model *model)
{
    return model->shape.gguf;
}

tsr_status tsr_model_tokenizer(const tsr_model *model, tsr_tokenizer **tokenizer_out)
{
    return tsr_tokenizer_create(model->shape.gguf, tokenizer_out);
}

uint64_t tsr_model_fingerprint(const tsr_model *model)
{
    const tsr_gguf *gguf = model->shape.gguf;
    const char *architecture = model->shape.hparams.architecture;
    uint64_t sum = tsr_hash_words(0, architecture, strlen(architecture));
    const bool predicts = model->shape.hparams.predicts;
    if (predicts) /* has keys and values of one more layer */
        sum = tsr_hash_words(sum, &predicts, sizeof predicts);
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *t = tsr_gguf_tensor_at(gguf, i);
        int32_t type = (int32_t)t->type;
        sum = tsr_hash_words(sum, t->name, strlen(t->name));
        sum = tsr_hash_words(sum, t->ne, sizeof t->ne);
        sum = tsr_hash_words(sum, &type, sizeof type);
        if (t->data) /* different trainings differ in the first weights */
            sum = tsr_hash_words(sum, t->data, TSR_MIN(t->bytes, (size_t)64));
    }
    return sum;
}
