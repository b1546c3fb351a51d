/* See planes.h. */
#include "comm/planes.h"

#include <stddef.h>
#include <string.h>

#include "core/quant/wire.h"

/* Words of memory that holds integers of 64 bits, too. */
typedef uint32_t word __attribute__((may_alias));

/* The tile of element i; NULL: after the last whole one. */
static unsigned char *tile_of(const void *part, int64_t n, int64_t i)
{
    const int64_t tile = i / TSR_WIRE_TILE;
    return (tile + 1) * TSR_WIRE_TILE <= n
               ? (unsigned char *)part + tile * TSR_WIRE_TILE * (int64_t)sizeof(int64_t)
               : NULL;
}

float *tsr_planes_f32(void *part, int64_t n, int64_t i)
{
    unsigned char *tile = tile_of(part, n, i);
    return tile ? (float *)tile + i % TSR_WIRE_TILE : NULL;
}

/* As in reduce.c, unsigned, because a benchmark adds the same buffers in place repeatedly. */
static void add_to(int64_t *sum, int64_t value)
{
    *sum = (int64_t)((uint64_t)*sum + (uint64_t)value);
}

/* Some of the n sums are wide. */
static void add_wide(const word *low, const unsigned char *middle, const unsigned char *top, int64_t n,
                     int64_t *sums)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t high = (uint32_t)top[i] | (uint32_t)top[i + TSR_WIRE_TILE] << 8 |
                              (uint32_t)top[i + 2 * TSR_WIRE_TILE] << 16;
        add_to(&sums[i], tsr_wire_sum(low[i], middle[i], high));
    }
}

static void add_tile(const unsigned char *tile, int64_t at, int64_t n, int64_t *sums)
{
    const word *low = (const word *)(const void *)tile + at;
    uint32_t any = 0;
    for (int64_t i = 0; i < n; i++)
        any |= low[i];
    if (any & TSR_WIRE_WIDE)
        add_wide(low, tile + TSR_WIRE_MIDDLE + at, tile + TSR_WIRE_TOP + at, n, sums);
    for (int64_t i = 0; !(any & TSR_WIRE_WIDE) && i < n; i++)
        add_to(&sums[i], tsr_wire_sum_of(low[i], 0));
}

void tsr_planes_add(const void *part, int64_t n, int64_t begin, int64_t end, int64_t *sums)
{
    const unsigned char *tile = tile_of(part, n, begin);
    if (tile)
        add_tile(tile, begin % TSR_WIRE_TILE, end - begin, sums);
    for (int64_t i = begin; !tile && i < end; i++)
        add_to(&sums[i - begin], ((const int64_t *)part)[i]);
}

void tsr_planes_sum(const tsr_reducer *exact, const void *const *parts, const bool *in_planes, int n_parts,
                    int64_t n, int64_t begin, int64_t end, int64_t *sums)
{
    const void *both[2] = {sums, NULL};
    memset(sums, 0, (size_t)(end - begin) * sizeof *sums);
    for (int j = 0; j < n_parts; j++) {
        both[1] = (const int64_t *)parts[j] + begin;
        if (in_planes[j])
            tsr_planes_add(parts[j], n, begin, end, sums);
        else
            exact->add(both, 2, sums, 0, end - begin);
    }
}
