/* The look-up tables of a vocabulary: tokens by text, merges by their two tokens, special tokens in
 * running text.
 *
 * Both hash tables are open-addressed with linear probing and at most half full. The table of texts stores
 * the hash together with the id, so that a miss (most look-ups of SentencePiece merging) costs one cache
 * line. Special tokens are a sorted list, in which each is linked with those that it begins with: a search
 * takes a few comparisons, whatever their number and their lengths. */
#include "text/tokenizer/vocab.h"

#include <stdlib.h>
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

/* -- special tokens in running text -- */

static int by_text(const void *a, const void *b)
{
    const tsr_vocab_special *x = a, *y = b;
    const int order = memcmp(x->text, y->text, TSR_MIN(x->bytes, y->bytes));
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* In the sorted list an entry is followed by all that begin with it. So the longest entry that a text begins
 * with is the text's predecessor, or on the predecessor's chain. Jumps: Myers, An applicative random-access
 * stack, Information Processing Letters 17, 1983. */
static void link_specials(tsr_vocab_special *entries, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint32_t parent = (uint32_t)i - 1;
        while (entries[parent].bytes > entries[i].bytes ||
               memcmp(entries[parent].text, entries[i].text, entries[parent].bytes) != 0)
            parent = entries[parent].shorter;
        const tsr_vocab_special *p = &entries[parent], *jump = &entries[p->jump];
        const bool joins = p->depth - jump->depth == jump->depth - entries[jump->jump].depth;
        entries[i].shorter = parent;
        entries[i].depth = p->depth + 1;
        entries[i].jump = joins ? jump->jump : parent;
    }
}

static tsr_status index_specials(const tsr_vocab *vocab, unsigned types, tsr_vocab_specials *list)
{
    tsr_status status = TSR_OK;
    size_t n = 1;
    for (int32_t id = 0; id < vocab->n_tokens; id++)
        n += tsr_vocab_is(vocab, id, types) && vocab->tokens[id].text_bytes > 0;
    TSR_TRY(tsr_mem_array(n, sizeof *list->entries, "the special tokens", &list->entries));
    list->entries[0] = (tsr_vocab_special){.text = "", .id = TSR_TOKEN_NONE};
    list->n = 1;
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        const tsr_vocab_token *token = &vocab->tokens[id];
        if (tsr_vocab_is(vocab, id, types) && token->text_bytes > 0)
            list->entries[list->n++] =
                (tsr_vocab_special){.text = vocab->bytes + token->text, .bytes = token->text_bytes, .id = id};
    }
    qsort(list->entries, n, sizeof *list->entries, by_text);
    link_specials(list->entries, n);
out:
    return status;
}

tsr_status tsr_vocab_index_specials(tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    TSR_TRY(index_specials(vocab, TSR_TOKEN_SPECIAL_TYPES, &vocab->specials));
    TSR_TRY(index_specials(vocab, TSR_TOKEN_TYPE_BIT(TSR_TOKEN_USER_DEFINED), &vocab->user_defined));
    for (size_t i = 1; i < vocab->specials.n; i++) {
        const tsr_vocab_special *special = &vocab->specials.entries[i];
        vocab->first_byte[(uint8_t)*special->text] |= TSR_TOKEN_TYPE_BIT(vocab->tokens[special->id].type);
    }
out:
    return status;
}

int32_t tsr_vocab_find_special(const tsr_vocab *vocab, const char *text, size_t bytes, unsigned types)
{
    const tsr_vocab_specials *list =
        types == TSR_TOKEN_SPECIAL_TYPES ? &vocab->specials : &vocab->user_defined;
    size_t low = 1, high = list->n, common = 0;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const tsr_vocab_special *entry = &list->entries[middle];
        const int order = memcmp(entry->text, text, TSR_MIN(entry->bytes, bytes));
        if (order < 0 || (order == 0 && entry->bytes <= bytes))
            low = middle + 1;
        else
            high = middle;
    }
    const tsr_vocab_special *entry = &list->entries[low - 1];
    while (common < TSR_MIN(entry->bytes, bytes) && entry->text[common] == text[common])
        common++;
    while (entry->bytes > common) {
        const tsr_vocab_special *jump = &list->entries[entry->jump];
        entry = jump->bytes > common ? jump : &list->entries[entry->shorter];
    }
    return entry->id;
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
