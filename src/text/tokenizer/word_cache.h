/* Caches the tokens of words during one encoding: text repeats words, and BPE merging is expensive. */
#ifndef TSR_TEXT_TOKENIZER_WORD_CACHE_H
#define TSR_TEXT_TOKENIZER_WORD_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    TSR_WORD_CACHE_PLACES = 4096,  /* a power of two */
    TSR_WORD_CACHE_MAX_BYTES = 22, /* longer words, and words of more tokens, are rare and not cached */
    TSR_WORD_CACHE_MAX_TOKENS = 10
};

/* 64 bytes: a cache line. */
typedef struct tsr_cached_word {
    int32_t tokens[TSR_WORD_CACHE_MAX_TOKENS];
    uint8_t n_tokens, bytes; /* bytes is 0 in a free entry */
    char word[TSR_WORD_CACHE_MAX_BYTES];
} tsr_cached_word;

/* Direct-mapped: a word has one entry, and a newer word replaces an older one. All zeros: an empty cache. */
typedef struct tsr_word_cache {
    tsr_cached_word *places; /* [TSR_WORD_CACHE_PLACES] or NULL */
} tsr_word_cache;

tsr_status tsr_word_cache_create(tsr_word_cache *cache);
void tsr_word_cache_release(tsr_word_cache *cache);

/* The entry of a word, found or to be written by the caller; NULL if the word is not cacheable. */
tsr_cached_word *tsr_word_cache_place(const tsr_word_cache *cache, const char *word, size_t bytes);

#endif
