/* What files of saved sequences have in common (model/session_file.h). */
#include "model/session_file.h"

#include <string.h>

#include "core/mem.h"

uint64_t tsr_checksum(uint64_t seed, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    uint64_t sum = (seed ^ UINT64_C(0xcbf29ce484222325)) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, from + i, TSR_MIN(n - i, sizeof word));
        sum = (sum ^ word) * UINT64_C(0x100000001b3);
    }
    return (sum ^ n) * UINT64_C(0x100000001b3);
}

uint64_t tsr_model_fingerprint(const tsr_model *model)
{
    const tsr_gguf *gguf = model->shape.gguf;
    const char *architecture = model->shape.hparams.architecture;
    uint64_t sum = tsr_checksum(0, architecture, strlen(architecture));
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *t = tsr_gguf_tensor_at(gguf, i);
        int32_t type = (int32_t)t->type;
        sum = tsr_checksum(sum, t->name, strlen(t->name));
        sum = tsr_checksum(sum, t->ne, sizeof t->ne);
        sum = tsr_checksum(sum, &type, sizeof type);
        if (t->data) /* another training has other weights from the first on */
            sum = tsr_checksum(sum, t->data, TSR_MIN(t->bytes, (size_t)64));
    }
    return sum;
}

tsr_saved_header tsr_saved_header_of(const tsr_session *session)
{
    const tsr_model_config *config = &session->model->config;
    return (tsr_saved_header){.magic = TSR_SAVED_MAGIC,
                              .version = TSR_SAVED_VERSION,
                              .model = tsr_model_fingerprint(session->model),
                              .page_bytes = tsr_kv_page_bytes(session->kv),
                              .page_tokens = TSR_KV_PAGE_TOKENS,
                              .type_k = (uint32_t)config->type_k,
                              .type_v = (uint32_t)config->type_v};
}

int tsr_saved_pages(const tsr_saved_sequence *sequence, int page_tokens, int *first_out)
{
    int end = (int)((sequence->length + page_tokens - 1) / page_tokens);
    *first_out = sequence->shared == sequence->length ? end : (int)(sequence->shared / page_tokens);
    return end - *first_out;
}
