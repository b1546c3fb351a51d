/* Special tokens: those at the start and end of a sequence, those that are added, and those that end a
 * generation. Files lack some of this, so the conventions of model families are here. */
#include "text/tokenizer/vocab_load.h"

#include <string.h>

#include "core/mem.h"

#define KEY "tokenizer.ggml."

/* Names that model families use for tokens that end a generation. Some files do not mark them as control
 * tokens, so the name decides. From llama.cpp, src/llama-vocab.cpp (llama_vocab::impl::load). */
static const char *const eog_names[] = {
    "<|eot_id|>",         /* Llama 3 */
    "<|eom_id|>",         /* Llama 3.1 */
    "<|end_of_text|>",    /* Llama 3, Granite */
    "<|im_end|>",         /* ChatML: Qwen, SmolLM */
    "<|endoftext|>",      /* GPT-2, Qwen */
    "<|end|>",            /* Phi-3; see is_harmony() */
    "<|return|>",         /* gpt-oss */
    "<|call|>",           /* gpt-oss */
    "<|calls|>",          /* Solar Open */
    "<|flush|>",          /* Solar Open */
    "<end_of_turn>",      /* Gemma */
    "<turn|>",            /* Gemma 4 */
    "<|tool_response>",   /* Gemma 4 */
    "<end_of_utterance>", /* SmolVLM */
    ("<\xEF\xBD\x9C"
     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"), /* DeepSeek */
    "[e~[",                                                 /* MiniMax */
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]", /* Kimi */
    /* Filling in code: the text after these tokens is another file, or nothing. */
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

static int32_t find(const tsr_vocab *vocab, const char *text)
{
    return tsr_vocab_find(vocab, text, strlen(text));
}

/* Whether "<|end|>" ends one message of several, not the answer: gpt-oss and Solar Open end answers with
 * other tokens. */
static bool is_harmony(const tsr_vocab *vocab)
{
    bool calls = find(vocab, "<|call|>") != TSR_TOKEN_NONE || find(vocab, "<|calls|>") != TSR_TOKEN_NONE;
    return calls &&
           (find(vocab, "<|return|>") != TSR_TOKEN_NONE || find(vocab, "<|flush|>") != TSR_TOKEN_NONE);
}

static void mark_eog_names(tsr_vocab *vocab)
{
    bool harmony = is_harmony(vocab);
    for (size_t i = 0; i < sizeof eog_names / sizeof *eog_names; i++) {
        int32_t id = find(vocab, eog_names[i]);
        if (id == TSR_TOKEN_NONE || (harmony && !strcmp(eog_names[i], "<|end|>")))
            continue;
        vocab->tokens[id].eog = true;
        vocab->tokens[id].type = TSR_TOKEN_CONTROL;
        vocab->tokens[id].piece_bytes = 0;
    }
    /* Vocabularies with HTML tags have this name, too, but not as a control token. */
    int32_t id = find(vocab, "</s>");
    if (tsr_vocab_is(vocab, id, TSR_TOKEN_TYPE_BIT(TSR_TOKEN_CONTROL)))
        vocab->tokens[id].eog = true;
}

static tsr_status read_special_id(const tsr_gguf *gguf, const tsr_vocab *vocab, const char *key,
                                  int32_t otherwise, int32_t *id_out)
{
    tsr_status status = TSR_OK;
    uint64_t id;

    if (!tsr_gguf_has_key(gguf, key)) {
        *id_out = tsr_vocab_has(vocab, otherwise) ? otherwise : TSR_TOKEN_NONE;
        return TSR_OK;
    }
    TSR_TRY(tsr_gguf_get_u64(gguf, key, &id));
    if (id >= (uint64_t)vocab->n_tokens)
        return tsr_fail(TSR_ERR_FORMAT, "%s is %llu, but the vocabulary has tokens 0 to %d", key,
                        (unsigned long long)id, vocab->n_tokens - 1);
    *id_out = (int32_t)id;
out:
    return status;
}

/* The keys of the first and the last token, and the default ids. BERT's text begins with [CLS] and ends
 * with [SEP]; "seperator" is GGUF's spelling. */
typedef struct family_ids {
    const char *bos_key, *eos_key;
    int32_t bos, eos, unk;
} family_ids;

static const family_ids families[] = {
    [TSR_VOCAB_BPE] = {KEY "bos_token_id", KEY "eos_token_id", TSR_TOKEN_NONE, TSR_TOKEN_NONE,
                       TSR_TOKEN_NONE},
    [TSR_VOCAB_SPM] = {KEY "bos_token_id", KEY "eos_token_id", 1, 2, 0},
    [TSR_VOCAB_WPM] = {KEY "cls_token_id", KEY "seperator_token_id", 101, 102, 100},
    [TSR_VOCAB_UGM] = {KEY "bos_token_id", KEY "eos_token_id", TSR_TOKEN_NONE, 1, 2},
};

static tsr_status read_special_ids(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    const family_ids *ids = &families[vocab->kind];

    TSR_TRY(read_special_id(gguf, vocab, ids->bos_key, ids->bos, &vocab->bos));
    TSR_TRY(read_special_id(gguf, vocab, ids->eos_key, ids->eos, &vocab->eos));
    TSR_TRY(read_special_id(gguf, vocab, KEY "unknown_token_id", ids->unk, &vocab->unk));
    TSR_TRY(read_special_id(gguf, vocab, KEY "eot_token_id", TSR_TOKEN_NONE, &vocab->eot));
    TSR_TRY(read_special_id(gguf, vocab, KEY "eom_token_id", TSR_TOKEN_NONE, &vocab->eom));
    /* Padding is not used, and files of models trained without it have ids out of range or -1, so such ids
     * are ignored. */
    if (read_special_id(gguf, vocab, KEY "padding_token_id", TSR_TOKEN_NONE, &vocab->pad) != TSR_OK) {
        vocab->pad = TSR_TOKEN_NONE;
        tsr_fail_clear();
    }
    const int32_t ends[] = {vocab->eos, vocab->eot, vocab->eom};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends[i] != TSR_TOKEN_NONE)
            vocab->tokens[ends[i]].eog = true;
out:
    return status;
}

static tsr_status read_flags(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    bool spm = vocab->kind == TSR_VOCAB_SPM;
    bool wpm = vocab->kind == TSR_VOCAB_WPM;
    bool ugm = vocab->kind == TSR_VOCAB_UGM;
    bool bos = spm || wpm || (vocab->pre && vocab->pre->flags & TSR_PRE_ADDS_BOS);

    TSR_TRY(tsr_vocab_read_flag(gguf, KEY "add_bos_token", bos, &vocab->add_bos));
    TSR_TRY(tsr_vocab_read_flag(gguf, wpm ? KEY "add_sep_token" : KEY "add_eos_token", wpm || ugm,
                                &vocab->add_eos));
    TSR_TRY(tsr_vocab_read_flag(gguf, KEY "normalizer.lowercase", true, &vocab->folds));
    TSR_TRY(tsr_vocab_read_flag(gguf, KEY "add_space_prefix", spm, &vocab->add_space_prefix));
    vocab->add_space_prefix = (vocab->add_space_prefix && (spm || ugm)) || wpm;
    if ((wpm || ugm) && vocab->unk == TSR_TOKEN_NONE)
        return tsr_fail(TSR_ERR_FORMAT, KEY "unknown_token_id is missing; this kind of vocabulary needs it");
    if (vocab->add_bos && vocab->bos == TSR_TOKEN_NONE)
        return tsr_fail(TSR_ERR_FORMAT, KEY "add_bos_token is set, but " KEY "bos_token_id is missing");
    if (vocab->add_eos && vocab->eos == TSR_TOKEN_NONE)
        return tsr_fail(TSR_ERR_FORMAT, KEY "add_eos_token is set, but " KEY "eos_token_id is missing");
out:
    return status;
}

/* Whether the file's general.name, in small ASCII letters, contains `part`. */
static bool name_has(const tsr_gguf *gguf, const char *part)
{
    tsr_gguf_string name;
    size_t bytes = strlen(part);
    if (!tsr_gguf_has_key(gguf, "general.name"))
        return false;
    if (tsr_gguf_get_string(gguf, "general.name", &name) != TSR_OK) {
        tsr_fail_clear();
        return false;
    }
    for (size_t at = 0; at + bytes <= name.bytes; at++) {
        size_t same = 0;
        while (same < bytes && (name.data[at + same] | 0x20) == (part[same] | 0x20))
            same++;
        if (same == bytes)
            return true;
    }
    return false;
}

/* Phi-3's tokenizer.json lets its special tokens include the white space after them, except for these
 * three; GGUF has no key for it. */
static void mark_stripping(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    const int32_t not_these[] = {find(vocab, "<unk>"), find(vocab, "<s>"), find(vocab, "<|endoftext|>")};

    if (!name_has(gguf, "phi-3") && !name_has(gguf, "phi3"))
        return;
    for (int32_t id = 0; id < vocab->n_tokens; id++)
        if (tsr_vocab_is(vocab, id, TSR_TOKEN_SPECIAL_TYPES))
            vocab->tokens[id].strips_right = true;
    for (size_t i = 0; i < sizeof not_these / sizeof *not_these; i++)
        if (not_these[i] != TSR_TOKEN_NONE)
            vocab->tokens[not_these[i]].strips_right = false;
}

tsr_status tsr_vocab_read_specials(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;

    mark_eog_names(vocab);
    TSR_TRY(read_special_ids(gguf, vocab));
    TSR_TRY(read_flags(gguf, vocab));
    mark_stripping(gguf, vocab);
out:
    return status;
}
