/* A hash that may be stored in files and compared between processes. */
#ifndef TSR_CORE_HASH_H
#define TSR_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* FNV-1a (Fowler, Noll, Vo) over 64-bit words instead of bytes, the last one padded with zeros: a change of
 * one word always changes the result. Hashes of several pieces are chained through `seed`, which is 0 for the
 * first. */
uint64_t tsr_hash_words(uint64_t seed, const void *bytes, size_t n);

#endif
