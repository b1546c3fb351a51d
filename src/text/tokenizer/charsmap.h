/* SentencePiece's table of equivalent spellings (tokenizer.ggml.precompiled_charsmap): prefixes of a text
 * and their replacements, such as "ｶﾞ" by "ガ" where a vocabulary was trained on NFKC text. */
#ifndef TSR_TEXT_TOKENIZER_CHARSMAP_H
#define TSR_TEXT_TOKENIZER_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* All zeros: nothing is replaced. */
typedef struct tsr_charsmap {
    uint32_t *units; /* [n_units] a trie as a double array */
    size_t n_units;
    char *replacements; /* [n_replacement_bytes], each with a final NUL */
    size_t n_replacement_bytes;
} tsr_charsmap;

/* Parse the table; TSR_ERR_FORMAT if it is inconsistent. */
tsr_status tsr_charsmap_create(const uint8_t *table, size_t bytes, tsr_charsmap *map_out);
void tsr_charsmap_release(tsr_charsmap *map);

/* The length of the longest replaceable prefix of text[bytes] and its replacement (a string of the map's);
 * 0: none. */
size_t tsr_charsmap_find(const tsr_charsmap *map, const char *text, size_t bytes,
                         const char **replacement_out);

#endif
