/* An encoder's token list and scratch memory. */
#include "text/tokenizer/encoder.h"

#include "core/mem.h"

void tsr_encoder_emit(tsr_encoder *encoder, int32_t token)
{
    if (encoder->n < encoder->capacity)
        encoder->tokens[encoder->n] = token;
    encoder->n++;
}

void tsr_encoder_release(tsr_encoder *encoder)
{
    tsr_merger_release(&encoder->merger);
    tsr_word_cache_release(&encoder->words);
    tsr_mem_free(encoder->scratch);
    encoder->scratch = NULL;
}

tsr_status tsr_encoder_reserve(tsr_encoder *encoder, size_t bytes)
{
    if (bytes <= encoder->scratch_bytes)
        return TSR_OK;
    char *grown = tsr_mem_realloc(encoder->scratch, bytes, 1);
    if (!grown)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory: %zu bytes for encoding text; split the text",
                        bytes);
    encoder->scratch = grown;
    encoder->scratch_bytes = bytes;
    return TSR_OK;
}
