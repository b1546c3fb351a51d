/* Seeded random numbers for tests and benchmarks: the same on every machine. */
#ifndef TSR_TESTS_RANDOM_H
#define TSR_TESTS_RANDOM_H

#include <stdint.h>

/* 64 random bits; *seed moves on. splitmix64 (https://prng.di.unimi.it/splitmix64.c). */
static inline uint64_t random_u64(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* From 0 up to n - 1; n > 0. The bias of the modulus is of no account here. */
static inline uint64_t random_below(uint64_t *seed, uint64_t n)
{
    return random_u64(seed) % n;
}

/* Uniform in [-1, 1). */
static inline double random_uniform(uint64_t *seed)
{
    return (double)(int64_t)random_u64(seed) * 0x1p-63;
}

/* Nearly normal, mean 0 and variance 1: the sum of four uniform numbers of 16 bits each. Its tails end at 2
 * sqrt 3; in return it needs no libm, whose results differ between machines. */
static inline float random_normal(uint64_t *seed)
{
    uint64_t bits = random_u64(seed);
    int64_t sum = (int64_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return (float)((double)(sum - 2 * 65535) * (1.7320508075688772 / 65536));
}

#endif
