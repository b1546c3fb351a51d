/* Encoding and decoding any text. The first byte chooses the vocabulary: one of SentencePiece's kinds, or
 * byte-level BPE with the pre-tokenizer of that number. */
#include "fuzz.h"

#include "support/small_vocab.h"
#include "text/tokenizer/pretokenizer.h"

static tsr_tokenizer *make(unsigned which)
{
    static const char *const models[] = {"llama", "t5", "bert"};
    enum { N_MODELS = sizeof models / sizeof *models };
    small_vocab v;
    char pre[64] = "";
    small_vocab_init(&v, which < N_MODELS ? models[which] : "gpt2");
    if (which < N_MODELS) {
        static const char *const pieces[] = {"\u2581", "a", "b", "ab", "\u2581a", "##b", "1"};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
            small_vocab_add(&v, pieces[i], 1, -(float)i);
    } else {
        const char *names = tsr_pretokenizer_names((int)which - N_MODELS);
        if (!names) {
            small_vocab_release(&v);
            return NULL;
        }
        snprintf(pre, sizeof pre, "%.*s", (int)strcspn(names, " "), names);
        v.pre = pre;
        small_vocab_merge(&v, "a", "b");
        small_vocab_merge(&v, "ab", "ab");
        small_vocab_merge(&v, "1", "1");
    }
    small_vocab_add(&v, "<|im_end|>", 3, 0);
    small_vocab_add(&v, "[tool]", 4, 0);
    tsr_gguf *gguf = small_vocab_gguf(&v);
    tsr_tokenizer *tokenizer = NULL;
    (void)fuzz_ok(tsr_tokenizer_create(gguf, &tokenizer)); /* a pre-tokenizer may want another alphabet */
    tsr_gguf_close(gguf);
    small_vocab_release(&v);
    return tokenizer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static tsr_tokenizer *tokenizers[64];
    size_t n, n_written, n_text;
    if (bytes < 1 || data[0] >= sizeof tokenizers / sizeof *tokenizers)
        return 0;
    if (!tokenizers[data[0]])
        tokenizers[data[0]] = make(data[0]);
    const tsr_tokenizer *tokenizer = tokenizers[data[0]];
    if (!tokenizer)
        return 0;
    char *text = fuzz_string(data + 1, bytes - 1);
    unsigned flags = TSR_ENCODE_ADD_SPECIAL | TSR_ENCODE_PARSE_SPECIAL;
    if (fuzz_ok(tsr_tokenizer_encode(tokenizer, text, bytes - 1, flags, NULL, 0, &n))) {
        int32_t *tokens = malloc((n + 1) * sizeof *tokens);
        if (!tokens ||
            tsr_tokenizer_encode(tokenizer, text, bytes - 1, flags, tokens, n, &n_written) != TSR_OK ||
            n_written != n || tsr_tokenizer_decode(tokenizer, tokens, n, 0, NULL, 0, &n_text) != TSR_OK)
            abort(); /* what was counted can be written, and what was encoded can be decoded */
        free(tokens);
    }
    free(text);
    return 0;
}
