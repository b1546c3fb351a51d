/* Exact sums between processes in words of 32 bits, for a transport that adds words and returns all sums.
 *
 * Most sums fit a word. Each process hands in the low words of its sums and, for each block of
 * TSR_NARROW_BLOCK sums, a flag that is 1 if one of its sums s is not in [-2^31 / P, 2^31 / P), with the
 * number of processes rounded up to a power of two P. Words wrap around. Where the flags of a block add up to
 * 0 the sum of all processes fits a word, so its low word is the sum.
 *
 * For the other blocks, which all processes know from the same flags, a second sum adds up the high words
 * floor(s / 2^k), 2^k = 2^32 / P. With H their sum, the sum of all s is 2^k H + R, where R is a sum of at
 * most P remainders in [0, 2^k) and so in [0, 2^32): R is the low word minus 2^k H, modulo 2^32. H fits a
 * word because a sum is below 2^57 (core/quant/fixed.h) and P is at most 64.
 *
 * So a sum costs 4 bytes each way, 8 in the worst case, and is the same integer as in 64 bits. */
#ifndef TSR_COMM_NARROW_H
#define TSR_COMM_NARROW_H

#include <stdbool.h>
#include <stdint.h>

#include "core/comm.h"

enum { TSR_NARROW_WORDS = TSR_NARROW_MOST + TSR_NARROW_MOST / TSR_NARROW_BLOCK };

/* Of n sums: the low words, then the flags of the blocks. */
static inline int64_t tsr_narrow_blocks(int64_t n)
{
    return (n + TSR_NARROW_BLOCK - 1) / TSR_NARROW_BLOCK;
}

static inline int64_t tsr_narrow_words(int64_t n)
{
    return n + tsr_narrow_blocks(n);
}

/* log2 of P, of 1 to 64 processes. */
int tsr_narrow_log2(int n_processes);

/* The words of blocks [from, to) of n sums; `sums` are those of these blocks. */
void tsr_narrow_low(const int64_t *sums, int64_t n, int log2, int64_t from, int64_t to, uint32_t *words);

/* The number of the first `n_blocks` blocks that need high words; `words` are the sums of all processes. */
int64_t tsr_narrow_wide(const uint32_t *words, int64_t n, int64_t n_blocks);

/* The high words of those of blocks [from, to) that need them. They are stored without gaps,
 * TSR_NARROW_BLOCK for each block of the n sums that needs them; zeros after the last sum. `sums` are
 * those of blocks [from, to). */
void tsr_narrow_high(const int64_t *sums, const uint32_t *words, int64_t n, int log2, int64_t from,
                     int64_t to, uint32_t *highs);

/* Sums [begin, end) of n, from the words and high words of all processes. */
void tsr_narrow_sums(const uint32_t *words, const uint32_t *highs, int64_t n, int log2, int64_t begin,
                     int64_t end, int64_t *sums);

#endif
