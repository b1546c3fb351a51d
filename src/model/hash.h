/* A hash that may be stored in files and compared between processes. */
#ifndef TSR_MODEL_HASH_H
#define TSR_MODEL_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a (Fowler, Noll, Vo) over 64-bit words instead of bytes, the last one padded with zeros: a change of
 * one word always changes the result. Hashes of several pieces are chained through `seed`, which is 0 for the
 * first. */
static inline uint64_t tsr_hash_words(uint64_t seed, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    uint64_t sum = (seed ^ UINT64_C(0xcbf29ce484222325)) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, from + i, n - i < sizeof word ? n - i : sizeof word);
        sum = (sum ^ word) * UINT64_C(0x100000001b3);
    }
    return (sum ^ n) * UINT64_C(0x100000001b3);
}

#endif
