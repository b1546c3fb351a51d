/* See narrow.h. Conversions to unsigned types wrap, and shifts of negative numbers round down, as all our
 * compilers define it. */
#include "comm/narrow.h"

#include "core/mem.h"

int tsr_narrow_log2(int n_processes)
{
    int log2 = 0;
    while (1 << log2 < n_processes)
        log2++;
    return log2;
}

static int64_t block_end(int64_t block, int64_t n)
{
    return TSR_MIN((block + 1) * TSR_NARROW_BLOCK, n);
}

void tsr_narrow_low(const int64_t *sums, int64_t n, int log2, int64_t from, int64_t to, uint32_t *words)
{
    const uint64_t half = UINT64_C(1) << (31 - log2);
    for (int64_t b = from; b < to; b++) {
        uint64_t outside = 0;
        for (int64_t i = b * TSR_NARROW_BLOCK; i < block_end(b, n); i++) {
            const uint64_t sum = (uint64_t)sums[i - from * TSR_NARROW_BLOCK];
            words[i] = (uint32_t)sum;
            outside |= sum + half; /* in [0, 2 half) for sums in [-half, half) */
        }
        words[n + b] = outside >= 2 * half;
    }
}

int64_t tsr_narrow_wide(const uint32_t *words, int64_t n, int64_t n_blocks)
{
    int64_t n_wide = 0;
    for (int64_t b = 0; b < n_blocks; b++)
        n_wide += words[n + b] > 0;
    return n_wide;
}

void tsr_narrow_high(const int64_t *sums, const uint32_t *words, int64_t n, int log2, int64_t from,
                     int64_t to, uint32_t *highs)
{
    uint32_t *next = highs + tsr_narrow_wide(words, n, from) * TSR_NARROW_BLOCK;
    for (int64_t b = from; b < to; b++)
        for (int64_t i = b * TSR_NARROW_BLOCK; words[n + b] > 0 && i < (b + 1) * TSR_NARROW_BLOCK; i++)
            *next++ = i < n ? (uint32_t)(uint64_t)(sums[i - from * TSR_NARROW_BLOCK] >> (32 - log2)) : 0;
}

void tsr_narrow_sums(const uint32_t *words, const uint32_t *highs, int64_t n, int log2, int64_t begin,
                     int64_t end, int64_t *sums)
{
    const int64_t first = begin / TSR_NARROW_BLOCK, unit = INT64_C(1) << (32 - log2);
    const uint32_t *high = highs + tsr_narrow_wide(words, n, first) * TSR_NARROW_BLOCK;
    for (int64_t b = first; b * TSR_NARROW_BLOCK < end; b++) {
        const int64_t block = b * TSR_NARROW_BLOCK, from = TSR_MAX(block, begin);
        const int64_t to = TSR_MIN(block_end(b, n), end);
        if (words[n + b] == 0) {
            for (int64_t i = from; i < to; i++)
                sums[i - begin] = (int32_t)words[i];
            continue;
        }
        for (int64_t i = from; i < to; i++) {
            const int64_t whole = (int32_t)high[i - block] * unit;
            sums[i - begin] = whole + (uint32_t)(words[i] - (uint32_t)(uint64_t)whole);
        }
        high += TSR_NARROW_BLOCK;
    }
}
