/* Two checksums. First, a sum over bytes that is independent of order, so any number of threads may compute
 * parts of it. Every 8-byte word is mixed with its position and the results are added modulo 2^64. For a
 * given position the mixing is one-to-one, so one changed word always changes the sum; several changed words
 * change it with a probability of 1 - 2^-64. The last word is padded with zero bytes.
 *
 * The mixing is the first half of SplitMix64's (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
 * Generators, OOPSLA 2014). Words are read in this machine's byte order, which suffices for comparing a
 * host with its devices. */
#ifndef TSR_CORE_CHECKSUM_H
#define TSR_CORE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TSR_CHECKSUM_FUNCTION static __host__ __device__ __forceinline__
#else
#define TSR_CHECKSUM_FUNCTION static inline
#endif

TSR_CHECKSUM_FUNCTION uint64_t tsr_checksum_word(uint64_t word, uint64_t place)
{
    uint64_t z = word + (place + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
}

/* The sum of bytes that arrive in pieces; initially {0}. */
typedef struct tsr_checksum {
    uint64_t sum, place, word;
    size_t n; /* bytes in `word` */
} tsr_checksum;

static inline void tsr_checksum_add(tsr_checksum *c, const unsigned char *bytes, size_t n)
{
    while (n > 0) {
        size_t take = sizeof c->word - c->n < n ? sizeof c->word - c->n : n;
        memcpy((unsigned char *)&c->word + c->n, bytes, take);
        c->n += take;
        bytes += take;
        n -= take;
        if (c->n < sizeof c->word)
            return;
        c->sum += tsr_checksum_word(c->word, c->place++);
        c->word = 0;
        c->n = 0;
    }
}

static inline uint64_t tsr_checksum_end(const tsr_checksum *c)
{
    return c->n ? c->sum + tsr_checksum_word(c->word, c->place) : c->sum;
}

/* Second, a hash that may be stored in files and compared between processes: FNV-1a (Fowler, Noll, Vo) over
 * 64-bit words instead of bytes, the last one padded with zeros: a change of one word always changes the
 * result. Hashes of several pieces are chained through `seed`, which is 0 for the first. */
static inline uint64_t tsr_hash_words(uint64_t seed, const void *bytes, size_t n)
{
    const unsigned char *from = (const unsigned char *)bytes; /* C++ too */
    uint64_t sum = (seed ^ UINT64_C(0xcbf29ce484222325)) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, from + i, n - i < sizeof word ? n - i : sizeof word);
        sum = (sum ^ word) * UINT64_C(0x100000001b3);
    }
    return (sum ^ n) * UINT64_C(0x100000001b3);
}

#endif
