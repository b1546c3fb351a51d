/* The cache of words; see word_cache.h. */
#include "text/tokenizer/word_cache.h"

#include <string.h>

#include "core/mem.h"
#include "text/tokenizer/hash.h"

tsr_status tsr_word_cache_create(tsr_word_cache *cache)
{
    return tsr_mem_array(TSR_WORD_CACHE_PLACES, sizeof *cache->places, "encoding text", &cache->places);
}

void tsr_word_cache_release(tsr_word_cache *cache)
{
    tsr_mem_free(cache->places);
    cache->places = NULL;
}

tsr_cached_word *tsr_word_cache_place(const tsr_word_cache *cache, const char *word, size_t bytes)
{
    if (!cache->places || bytes == 0 || bytes > TSR_WORD_CACHE_MAX_BYTES)
        return NULL;
    return &cache->places[tsr_hash_text(word, bytes) & (TSR_WORD_CACHE_PLACES - 1)];
}
