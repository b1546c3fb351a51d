/* Merging: the loop at the heart of both kinds of BPE.
 *
 * A word starts as a row of symbols; as long as two neighbours can merge, the pair of lowest rank does, the
 * leftmost of equal ones. Kinds differ only in what two neighbours make: BPE looks (left token, right token)
 * up in the list of merges, SentencePiece looks the joined text up among the tokens.
 */
#ifndef TSR_TEXT_TOKENIZER_BPE_MERGE_H
#define TSR_TEXT_TOKENIZER_BPE_MERGE_H

#include "text/tokenizer/vocab.h"

/* A stretch of the word; neighbours are linked by index, -1 at the ends. bytes is 0 once merged into its left
 * neighbour. */
typedef struct tsr_symbol {
    uint32_t begin, bytes;
    int32_t prev, next;
    int32_t token; /* TSR_TOKEN_NONE: no token has this text */
} tsr_symbol;

/* Two neighbours that could merge, in a heap. */
typedef struct tsr_merge_candidate {
    uint64_t order; /* rank << 32 | index of the left symbol: lowest first */
    uint32_t bytes; /* of both when it was found: if they differ now, one of them has merged otherwise */
    int32_t merged;
} tsr_merge_candidate;

/* Scratch memory that grows to the longest word and is used again for the next. */
typedef struct tsr_merger {
    const tsr_vocab *vocab;
    const char *text;    /* the word */
    tsr_symbol *symbols; /* [n_symbols]; the first one, index 0, is always the leftmost */
    int32_t n_symbols;
    tsr_merge_candidate *heap;
    size_t n_heap;
    size_t capacity; /* symbols allocated; the heap has twice as many */
} tsr_merger;

/* Start with an empty word `text`, of which tsr_merger_add() is about to add up to n_symbols symbols. */
tsr_status tsr_merger_begin(tsr_merger *merger, const char *text, size_t n_symbols);

/* Append the symbol of the next `bytes` bytes. */
void tsr_merger_add(tsr_merger *merger, uint32_t bytes, int32_t token);

/* Merge all that merges. O(n log n) in the symbols. */
void tsr_merger_run(tsr_merger *merger);

void tsr_merger_release(tsr_merger *merger);

#endif
