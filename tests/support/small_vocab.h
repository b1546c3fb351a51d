/* Small vocabularies for tests, made token by token.
 *
 *     small_vocab v;
 *     small_vocab_init(&v, "gpt2");                 (256 byte tokens; their ids are the bytes)
 *     small_vocab_merge(&v, "h", "e");              (merge 0, and the token "he", id 256)
 *     v.bos = small_vocab_add(&v, "<s>", 3, 0);
 *     tsr_tokenizer *tokenizer = small_vocab_tokenizer(&v);
 *     small_vocab_release(&v);
 */
#ifndef TSR_TESTS_SMALL_VOCAB_H
#define TSR_TESTS_SMALL_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/tokenizer.h>

enum { SMALL_VOCAB_MAX = 1 << 14 };

typedef struct small_vocab {
    const char *model, *pre, *name; /* NULL: the key is left out; so are those below that are negative */
    char *tokens[SMALL_VOCAB_MAX];
    int32_t types[SMALL_VOCAB_MAX];
    float scores[SMALL_VOCAB_MAX];
    size_t n_tokens, n_types, n_scores; /* entries written; 0: the key is left out */
    char *merges[SMALL_VOCAB_MAX];
    size_t n_merges;
    bool has_merges, has_tokens;
    int64_t bos, eos, eot, eom, unk, pad;
    int add_bos, add_eos, add_space_prefix, merges_spaces, space_behind;
    const uint8_t *charsmap; /* [charsmap_bytes] or NULL */
    size_t charsmap_bytes;
} small_vocab;

/* model "gpt2": tokens 0..255 are the bytes, pre is "gpt-2". model "llama": token 0 is <unk>, 1 <s>, 2 </s>,
 * and 3..258 are the byte tokens. */
void small_vocab_init(small_vocab *v, const char *model);
void small_vocab_release(small_vocab *v);

/* Add a token (type as in GGUF: 1 normal, 3 control, 4 user-defined) and return its id. */
int32_t small_vocab_add(small_vocab *v, const char *text, int32_t type, float score);

/* Add a merge, and the token it makes if there is none yet; returns that token's id. */
int32_t small_vocab_merge(small_vocab *v, const char *left, const char *right);

/* The token's id or -1. */
int32_t small_vocab_find(const small_vocab *v, const char *text);

tsr_gguf *small_vocab_gguf(const small_vocab *v);

/* Fails the test if it cannot be made. */
tsr_tokenizer *small_vocab_tokenizer(const small_vocab *v);

/* Byte-level BPE with merges l+l h+e he+ll hell+o Ġ+w o+r (in this order), control tokens <|bos|> <|eos|>
 * <|start|>, user-defined [tool] [tool]s, and <|eot_id|> marked as a normal token; add_bos_token is left
 * out. */
tsr_tokenizer *small_vocab_hello(void);

#endif
