/* The reader of GGUF files, and what is made from their keys alone: vocabulary, tokenizer, chat template. */
#include "fuzz.h"

#include <tsr/chat.h>
#include <tsr/gguf.h>
#include <tsr/tokenizer.h>

/* Every tensor byte is summed, so that a tensor placed outside its file is noticed. */
static uint64_t sum_tensors(const tsr_gguf *gguf)
{
    uint64_t sum = 0;
    for (int64_t t = 0; t < tsr_gguf_n_tensors(gguf); t++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(gguf, t);
        for (size_t i = 0; i < tensor->bytes; i++)
            sum += ((const uint8_t *)tensor->data)[i];
    }
    return sum;
}

/* Keeps the compiler from leaving out how the value came about. */
static void consume(uint64_t value)
{
    __asm__ volatile("" : : "r"(value));
}

/* Decoding what was encoded never needs more than its own count says. */
static void use_tokenizer(const tsr_tokenizer *tokenizer)
{
    static const char text[] = "Hello <|im_end|> w\xc3\xb6rld\n\n 123 \xff";
    int32_t tokens[sizeof text + 2];
    size_t n, bytes;
    if (!fuzz_ok(
            tsr_tokenizer_encode(tokenizer, text, sizeof text - 1, TSR_ENCODE_PARSE_SPECIAL, NULL, 0, &n)))
        return;
    if (n <= sizeof tokens / sizeof *tokens &&
        !fuzz_ok(
            tsr_tokenizer_encode(tokenizer, text, sizeof text - 1, TSR_ENCODE_PARSE_SPECIAL, tokens, n, &n)))
        abort();
    if (n <= sizeof tokens / sizeof *tokens)
        (void)fuzz_ok(tsr_tokenizer_decode(tokenizer, tokens, n, 0, NULL, 0, &bytes));
    for (int32_t token = 0; token < tsr_tokenizer_n_vocab(tokenizer) && token < 1000; token++)
        (void)tsr_tokenizer_piece(tokenizer, token);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    tsr_gguf *gguf = NULL;
    tsr_tokenizer *tokenizer = NULL;
    const tsr_chat *chat;
    int fd = fuzz_file(data, bytes, path);
    if (fuzz_ok(tsr_gguf_open(path, NULL, &gguf))) {
        consume(sum_tensors(gguf));
        (void)fuzz_ok(tsr_chat_guess(gguf, &chat));
        if (fuzz_ok(tsr_tokenizer_create(gguf, &tokenizer)))
            use_tokenizer(tokenizer);
    }
    tsr_tokenizer_destroy(tokenizer);
    tsr_gguf_close(gguf);
    close(fd);
    return 0;
}
