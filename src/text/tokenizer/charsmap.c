/* The table has 4 bytes with the size of the trie, the trie's 32-bit units, and the replacements, all
 * little-endian (google/sentencepiece, src/normalizer.cc). The trie is Darts-clone's double array
 * (github.com/s-yata/darts-clone, include/darts.h): from the unit at p, the child by byte c is at p ^
 * offset ^ c, if its label is c. A unit with a leaf has its value at p ^ offset.
 *
 * Links of a damaged table may point outside the table; the search ends there as at a missing child. */
#include "text/tokenizer/charsmap.h"

#include <string.h>

#include "core/mem.h"

static uint32_t read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

void tsr_charsmap_release(tsr_charsmap *map)
{
    tsr_mem_free(map->units);
    tsr_mem_free(map->replacements);
    *map = (tsr_charsmap){0};
}

tsr_status tsr_charsmap_create(const uint8_t *table, size_t bytes, tsr_charsmap *map_out)
{
    tsr_status status = TSR_OK;
    tsr_charsmap map = {0};
    const size_t head = sizeof(uint32_t);

    if (bytes == 0) {
        *map_out = map;
        return TSR_OK;
    }
    const size_t trie_bytes = bytes < head ? 0 : read_u32(table);
    if (bytes < head || trie_bytes % sizeof *map.units || trie_bytes >= bytes - head || table[bytes - 1] != 0)
        return tsr_fail(TSR_ERR_FORMAT,
                        "tokenizer.ggml.precompiled_charsmap (%zu bytes) is inconsistent; the file "
                        "is damaged or was converted wrongly",
                        bytes);
    map.n_units = trie_bytes / sizeof *map.units;
    map.n_replacement_bytes = bytes - head - trie_bytes;
    TSR_TRY(tsr_mem_array(map.n_units, sizeof *map.units, "the vocabulary's spellings", &map.units));
    TSR_TRY(tsr_mem_array(map.n_replacement_bytes, 1, "the vocabulary's spellings", &map.replacements));
    for (size_t i = 0; i < map.n_units; i++)
        map.units[i] = read_u32(table + head + i * sizeof *map.units);
    memcpy(map.replacements, table + head + trie_bytes, map.n_replacement_bytes);
    *map_out = map;
    map = (tsr_charsmap){0};
out:
    tsr_charsmap_release(&map);
    return status;
}

static uint32_t unit_offset(uint32_t unit)
{
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

static bool unit_has_leaf(uint32_t unit)
{
    return unit >> 8 & 1;
}

/* A leaf has its highest bit set, so it equals no byte. */
static uint32_t unit_label(uint32_t unit)
{
    return unit & (1u << 31 | 0xff);
}

static uint32_t unit_value(uint32_t unit)
{
    return unit & ~(1u << 31);
}

size_t tsr_charsmap_find(const tsr_charsmap *map, const char *text, size_t bytes,
                         const char **replacement_out)
{
    size_t longest = 0;
    uint32_t at = map->n_units > 0 ? unit_offset(map->units[0]) : 0;

    for (size_t i = 0; i < bytes && text[i] != 0; i++) {
        const uint8_t byte = (uint8_t)text[i];
        at ^= byte;
        if (at >= map->n_units || unit_label(map->units[at]) != byte)
            break;
        const bool has_leaf = unit_has_leaf(map->units[at]);
        at ^= unit_offset(map->units[at]);
        if (!has_leaf || at >= map->n_units || unit_value(map->units[at]) >= map->n_replacement_bytes)
            continue;
        longest = i + 1;
        *replacement_out = map->replacements + unit_value(map->units[at]);
    }
    return longest;
}
