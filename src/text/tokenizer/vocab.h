/* A vocabulary: tokens by id and by name, the merges, and the special tokens, read from a GGUF file.
 *
 * A token has a *text*, its name in the file, and a *piece*, the bytes that it represents. Byte-level BPE
 * spells every byte of a piece as one visible character in the text (' ' as 'Ġ'), SentencePiece only
 * spells ' ' as '▁'. */
#ifndef TSR_TEXT_TOKENIZER_VOCAB_H
#define TSR_TEXT_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tsr/gguf.h>
#include <tsr/tokenizer.h>

#include "core/status.h"
#include "text/tokenizer/pretokenizer.h"

typedef enum tsr_vocab_kind {
    TSR_VOCAB_BPE, /* "gpt2", "gemma4" */
    TSR_VOCAB_SPM, /* "llama" */
    TSR_VOCAB_WPM, /* "bert" */
    TSR_VOCAB_UGM  /* "t5" */
} tsr_vocab_kind;

/* Values of tokenizer.ggml.token_type. */
typedef enum tsr_token_type {
    TSR_TOKEN_UNDEFINED = 0,
    TSR_TOKEN_NORMAL = 1,
    TSR_TOKEN_UNKNOWN = 2,
    TSR_TOKEN_CONTROL = 3,
    TSR_TOKEN_USER_DEFINED = 4,
    TSR_TOKEN_UNUSED = 5,
    TSR_TOKEN_BYTE = 6
} tsr_token_type;

/* A set of token types is a mask of these bits. */
#define TSR_TOKEN_TYPE_BIT(type) (1u << (type))

/* Types that can result from text by merging. Control and byte tokens have names that are not text: a user
 * who writes "</s>" does not end the sequence. */
#define TSR_TOKEN_TEXT_TYPES                                                             \
    (TSR_TOKEN_TYPE_BIT(TSR_TOKEN_NORMAL) | TSR_TOKEN_TYPE_BIT(TSR_TOKEN_USER_DEFINED) | \
     TSR_TOKEN_TYPE_BIT(TSR_TOKEN_UNUSED))

/* Types that are recognised in text as a whole, before it is cut into words. */
#define TSR_TOKEN_SPECIAL_TYPES                                                      \
    (TSR_TOKEN_TYPE_BIT(TSR_TOKEN_UNKNOWN) | TSR_TOKEN_TYPE_BIT(TSR_TOKEN_CONTROL) | \
     TSR_TOKEN_TYPE_BIT(TSR_TOKEN_USER_DEFINED))

/* SentencePiece's visible space, U+2581. */
#define TSR_SPACE_MARK "\xE2\x96\x81"
enum { TSR_SPACE_MARK_BYTES = 3 };

typedef struct tsr_vocab_token {
    uint32_t text, text_bytes;   /* in tsr_vocab.bytes */
    uint32_t piece, piece_bytes; /* in tsr_vocab.bytes */
    uint32_t rank;               /* SPM: merges that make tokens of lower rank come first */
    uint8_t type;                /* tsr_token_type */
    bool eog;
    bool strips_right; /* white space (ASCII) that follows in the text belongs to the token */
} tsr_vocab_token;

/* A slot of the table of tokens by text; id is TSR_TOKEN_NONE if the slot is free. */
typedef struct tsr_vocab_slot {
    uint32_t hash;
    int32_t id;
} tsr_vocab_slot;

/* A slot of the table of BPE merges by (left, right); left is TSR_TOKEN_NONE if the slot is free. */
typedef struct tsr_vocab_merge {
    int32_t left, right, merged;
    uint32_t rank; /* line in tokenizer.ggml.merges: lower ones come first */
} tsr_vocab_merge;

/* A special token. `shorter` is the number of the longest other entry that the text begins with, `jump` that
 * of an entry at least as far on the chain of these. */
typedef struct tsr_vocab_special {
    const char *text;
    uint32_t bytes;
    int32_t id;
    uint32_t shorter, jump, depth; /* depth: entries on the chain */
} tsr_vocab_special;

/* Sorted by text. The first is the empty text, with TSR_TOKEN_NONE: all texts begin with it. */
typedef struct tsr_vocab_specials {
    tsr_vocab_special *entries;
    size_t n;
} tsr_vocab_specials;

typedef struct tsr_vocab {
    tsr_vocab_kind kind;
    const tsr_pretokenizer_rule *pre; /* NULL for SPM and UGM */
    struct tsr_unigram *unigram;      /* UGM, otherwise NULL */

    int32_t n_tokens;
    tsr_vocab_token *tokens; /* [n_tokens] */
    char *bytes;             /* texts and pieces */
    uint32_t max_text_bytes, max_piece_bytes;

    size_t n_slots; /* a power of two, at least twice the tokens */
    tsr_vocab_slot *slots;
    size_t n_merges; /* slots: a power of two, at least twice the merges; 0 for SPM */
    tsr_vocab_merge *merges;

    int32_t byte_token[256];  /* the token of a single byte, or TSR_TOKEN_NONE */
    uint32_t first_byte[256]; /* types of the special tokens whose text starts with this byte */
    tsr_vocab_specials specials, user_defined; /* of TSR_TOKEN_SPECIAL_TYPES, and of TSR_TOKEN_USER_DEFINED */

    int32_t bos, eos, eot, eom, unk, pad;
    bool add_bos, add_eos;
    bool add_space_prefix;  /* SPM, UGM: add a space before the text; decoding removes it (WPM: only that) */
    bool folds;             /* WPM: case and accents are ignored */
    bool words_stand_alone; /* SPM: no token has a '▁' after another character, so no merge crosses words */
} tsr_vocab;

/* The token with this text, or TSR_TOKEN_NONE. */
int32_t tsr_vocab_find(const tsr_vocab *vocab, const char *text, size_t bytes);

/* The merge of two neighbours, or NULL. */
const tsr_vocab_merge *tsr_vocab_find_merge(const tsr_vocab *vocab, int32_t left, int32_t right);

/* The longest special token at the start of text[bytes], bytes > 0, or TSR_TOKEN_NONE. `types`:
 * TSR_TOKEN_SPECIAL_TYPES, or the bit of TSR_TOKEN_USER_DEFINED alone. A faster test: there is none unless
 * first_byte[*text] has one of the types. */
int32_t tsr_vocab_find_special(const tsr_vocab *vocab, const char *text, size_t bytes, unsigned types);

/* For loading only. The length of the array `key`, which must exist and have an entry for each of n_tokens
 * tokens (0: any number); otherwise TSR_ERR_FORMAT names the key. */
tsr_status tsr_vocab_read_length(const tsr_gguf *gguf, const char *key, int64_t n_tokens, int64_t *n_out);

/* For loading only. A flag of the file; `otherwise` if the file has none. */
tsr_status tsr_vocab_read_flag(const tsr_gguf *gguf, const char *key, bool otherwise, bool *flag_out);

/* Create the tables of the three tsr_vocab_find functions from tokens and merges; used by tsr_vocab_load()
 * only. TSR_ERR_FORMAT: two tokens have the same text. */
tsr_status tsr_vocab_index_tokens(tsr_vocab *vocab);
tsr_status tsr_vocab_reserve_merges(tsr_vocab *vocab, size_t n);
void tsr_vocab_add_merge(tsr_vocab *vocab, tsr_vocab_merge merge); /* the first of equal merges is kept */
tsr_status tsr_vocab_index_specials(tsr_vocab *vocab);

/* Byte-level BPE's spelling of a byte: writes 1 or 2 bytes of UTF-8 to out and returns their number. */
size_t tsr_vocab_spell_byte(uint8_t byte, char out[2]);

/* Whether tokens are spelled in byte-level BPE's alphabet; otherwise in UTF-8, with '▁' for ' '. */
static inline bool tsr_vocab_spells_bytes(const tsr_vocab *vocab)
{
    return vocab->kind == TSR_VOCAB_BPE && !(vocab->pre->flags & TSR_PRE_RAW_TEXT);
}

static inline bool tsr_vocab_has(const tsr_vocab *vocab, int32_t id)
{
    return id >= 0 && id < vocab->n_tokens;
}

static inline bool tsr_vocab_is(const tsr_vocab *vocab, int32_t id, unsigned types)
{
    return tsr_vocab_has(vocab, id) && (types & TSR_TOKEN_TYPE_BIT(vocab->tokens[id].type));
}

/* Whether text[bytes] starts with a visible space. */
static inline bool tsr_vocab_is_mark(const char *text, size_t bytes)
{
    return bytes >= TSR_SPACE_MARK_BYTES && !memcmp(text, TSR_SPACE_MARK, TSR_SPACE_MARK_BYTES);
}

#endif
