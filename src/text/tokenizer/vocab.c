/* The look-up tables of a vocabulary: tokens by text, merges by their two tokens, special tokens in
 * running text.
 *
 * Both hash tables are open-addressed with linear probing and at most half full. The table of texts stores
 * the hash together with the id, so that a miss (most look-ups of SentencePiece merging) costs one cache
 * line. */
#include "text/tokenizer/vocab.h"

#include <string.h>

#include "core/mem.h"
#include "text/tokenizer/hash.h"

static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

/* The slot of a text, or the free slot for it. */
static tsr_vocab_slot *find_slot(const tsr_vocab *vocab, const char *text, size_t bytes, uint32_t hash)
{
    for (size_t i = hash & (vocab->n_slots - 1);; i = (i + 1) & (vocab->n_slots - 1)) {
        tsr_vocab_slot *slot = &vocab->slots[i];
        if (slot->id == TSR_TOKEN_NONE)
            return slot;
        if (slot->hash != hash)
            continue;
        const tsr_vocab_token *token = &vocab->tokens[slot->id];
        if (token->text_bytes == bytes && !memcmp(vocab->bytes + token->text, text, bytes))
            return slot;
    }
}

int32_t tsr_vocab_find(const tsr_vocab *vocab, const char *text, size_t bytes)
{
    if (bytes == 0 || bytes > vocab->max_text_bytes)
        return TSR_TOKEN_NONE;
    return find_slot(vocab, text, bytes, tsr_hash_text(text, bytes))->id;
}

tsr_status tsr_vocab_index_tokens(tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;

    vocab->n_slots = table_size((size_t)vocab->n_tokens);
    TSR_TRY(tsr_mem_array(vocab->n_slots, sizeof *vocab->slots, "the vocabulary", &vocab->slots));
    for (size_t i = 0; i < vocab->n_slots; i++)
        vocab->slots[i].id = TSR_TOKEN_NONE;
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        const tsr_vocab_token *token = &vocab->tokens[id];
        const char *text = vocab->bytes + token->text;
        if (token->text_bytes == 0)
            continue; /* files pad their vocabularies with empty tokens, which match no text */
        uint32_t hash = tsr_hash_text(text, token->text_bytes);
        tsr_vocab_slot *slot = find_slot(vocab, text, token->text_bytes, hash);
        if (slot->id != TSR_TOKEN_NONE)
            return tsr_fail(
                TSR_ERR_FORMAT,
                "tokenizer.ggml.tokens[%d] repeats the text of token %d; the file is damaged or was "
                "converted wrongly",
                id, slot->id);
        *slot = (tsr_vocab_slot){hash, id};
    }
out:
    return status;
}

static tsr_vocab_merge *find_merge_place(const tsr_vocab *vocab, int32_t left, int32_t right)
{
    uint64_t hash = tsr_hash_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    for (size_t i = hash & (vocab->n_merges - 1);; i = (i + 1) & (vocab->n_merges - 1)) {
        tsr_vocab_merge *merge = &vocab->merges[i];
        if (merge->left == TSR_TOKEN_NONE || (merge->left == left && merge->right == right))
            return merge;
    }
}

const tsr_vocab_merge *tsr_vocab_find_merge(const tsr_vocab *vocab, int32_t left, int32_t right)
{
    const tsr_vocab_merge *merge = find_merge_place(vocab, left, right);
    return merge->left == TSR_TOKEN_NONE ? NULL : merge;
}

tsr_status tsr_vocab_reserve_merges(tsr_vocab *vocab, size_t n)
{
    tsr_status status = TSR_OK;
    vocab->n_merges = table_size(n);
    TSR_TRY(tsr_mem_array(vocab->n_merges, sizeof *vocab->merges, "the vocabulary's merges", &vocab->merges));
    for (size_t i = 0; i < vocab->n_merges; i++)
        vocab->merges[i].left = TSR_TOKEN_NONE;
out:
    return status;
}

void tsr_vocab_add_merge(tsr_vocab *vocab, tsr_vocab_merge merge)
{
    tsr_vocab_merge *place = find_merge_place(vocab, merge.left, merge.right);
    if (place->left == TSR_TOKEN_NONE)
        *place = merge;
}

tsr_status tsr_vocab_index_specials(tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    bool *seen = NULL;
    size_t n = 0;

    TSR_TRY(tsr_mem_array((size_t)vocab->max_text_bytes + 1, sizeof *seen, "the special tokens", &seen));
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        const tsr_vocab_token *token = &vocab->tokens[id];
        unsigned type = TSR_TOKEN_TYPE_BIT(token->type);
        if (!(type & TSR_TOKEN_SPECIAL_TYPES) || token->text_bytes == 0)
            continue;
        vocab->first_byte[(uint8_t)vocab->bytes[token->text]] |= type;
        n += !seen[token->text_bytes];
        seen[token->text_bytes] = true;
    }
    TSR_TRY(tsr_mem_array(n, sizeof *vocab->special_lengths, "the special tokens", &vocab->special_lengths));
    for (uint32_t length = vocab->max_text_bytes; length > 0; length--)
        if (seen[length])
            vocab->special_lengths[vocab->n_special_lengths++] = length;
out:
    tsr_mem_free(seen);
    return status;
}

int32_t tsr_vocab_find_special(const tsr_vocab *vocab, const char *text, size_t bytes, unsigned types)
{
    for (size_t i = 0; i < vocab->n_special_lengths; i++) {
        uint32_t length = vocab->special_lengths[i];
        if (length > bytes)
            continue;
        int32_t id = tsr_vocab_find(vocab, text, length);
        if (tsr_vocab_is(vocab, id, types & TSR_TOKEN_SPECIAL_TYPES))
            return id;
    }
    return TSR_TOKEN_NONE;
}

/* Bytes that are visible characters in Latin-1 are unchanged; the n-th of the others is spelled U+0100 + n
 * (bytes_to_unicode in github.com/openai/gpt-2, src/encoder.py). The others are 0..32, 127..160 and 173. */
size_t tsr_vocab_spell_byte(uint8_t byte, char out[2])
{
    unsigned point = byte;
    if (byte <= 32)
        point = 256u + byte;
    else if (byte >= 127 && byte <= 160)
        point = 256u + 33 + (byte - 127u);
    else if (byte == 173)
        point = 256u + 33 + 34;
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    out[0] = (char)(0xC0 | point >> 6);
    out[1] = (char)(0x80 | (point & 0x3F));
    return 2;
}

tsr_status tsr_vocab_read_length(const tsr_gguf *gguf, const char *key, int64_t n_tokens, int64_t *n_out)
{
    tsr_status status = TSR_OK;
    tsr_gguf_value_type type;
    int64_t n;

    if (!tsr_gguf_has_key(gguf, key))
        return tsr_fail(TSR_ERR_FORMAT, "key %s is missing; convert the model again", key);
    TSR_TRY(tsr_gguf_get_array(gguf, key, &type, &n));
    if (n < n_tokens)
        return tsr_fail(TSR_ERR_FORMAT, "%s has %lld entries for %lld tokens", key, (long long)n,
                        (long long)n_tokens);
    *n_out = n;
out:
    return status;
}

tsr_status tsr_vocab_read_flag(const tsr_gguf *gguf, const char *key, bool otherwise, bool *flag_out)
{
    if (tsr_gguf_has_key(gguf, key))
        return tsr_gguf_get_bool(gguf, key, flag_out);
    *flag_out = otherwise;
    return TSR_OK;
}
