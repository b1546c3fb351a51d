/* Remembers the tokens of words for the length of one encoding: prose repeats itself, merging is the dear
 * part. */
#ifndef TSR_TEXT_TOKENIZER_WORD_CACHE_H
#define TSR_TEXT_TOKENIZER_WORD_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    TSR_WORD_CACHE_PLACES = 4096,  /* a power of two */
    TSR_WORD_CACHE_MAX_BYTES = 22, /* longer words, and words of more tokens, are rare and not kept */
    TSR_WORD_CACHE_MAX_TOKENS = 10
};

/* 64 bytes: a cache line. */
typedef struct tsr_cached_word {
    int32_t tokens[TSR_WORD_CACHE_MAX_TOKENS];
    uint8_t n_tokens, bytes; /* bytes is 0 in a free place */
    char word[TSR_WORD_CACHE_MAX_BYTES];
} tsr_cached_word;

/* Direct-mapped: a word has one place, and a newer one takes it over. All zeros: a cache that remembers
 * nothing. */
typedef struct tsr_word_cache {
    tsr_cached_word *places; /* [TSR_WORD_CACHE_PLACES] or NULL */
} tsr_word_cache;

tsr_status tsr_word_cache_create(tsr_word_cache *cache);
void tsr_word_cache_release(tsr_word_cache *cache);

/* The place of a word, where it is or where the caller may write it; NULL if it is not to be kept. */
tsr_cached_word *tsr_word_cache_place(const tsr_word_cache *cache, const char *word, size_t bytes);

#endif
