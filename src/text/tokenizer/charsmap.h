/* SentencePiece's table of spellings that count as one (tokenizer.ggml.precompiled_charsmap): which
 * beginnings of a text are replaced by what, such as "ｶﾞ" by "ガ" where a vocabulary was trained on NFKC
 * text. */
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
    char *replacements; /* [n_replacement_bytes] each ends with a NUL */
    size_t n_replacement_bytes;
} tsr_charsmap;

/* Take the table apart; TSR_ERR_FORMAT where its parts do not fit together. */
tsr_status tsr_charsmap_create(const uint8_t *table, size_t bytes, tsr_charsmap *map_out);
void tsr_charsmap_release(tsr_charsmap *map);

/* How many bytes at the beginning of text[bytes] are replaced, the most that the table has, and by what (a
 * string of the map's); 0: none. */
size_t tsr_charsmap_find(const tsr_charsmap *map, const char *text, size_t bytes,
                         const char **replacement_out);

#endif
