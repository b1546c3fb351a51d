/* The merge loop of both kinds of BPE.
 *
 * A word starts as a list of symbols. As long as two neighbours can merge, the pair of lowest rank is
 * merged, the leftmost among equals. The kinds differ only in the result of a merge: BPE looks up (left
 * token, right token) in the list of merges, SentencePiece looks up the joined text among the tokens. */
#ifndef TSR_TEXT_TOKENIZER_BPE_MERGE_H
#define TSR_TEXT_TOKENIZER_BPE_MERGE_H

#include "text/tokenizer/vocab.h"

/* A piece of the word; neighbours are linked by index, -1 at the ends. bytes is 0 once merged into its
 * left neighbour. */
typedef struct tsr_symbol {
    uint32_t begin, bytes;
    int32_t prev, next;
    int32_t token; /* TSR_TOKEN_NONE: no token has this text */
} tsr_symbol;

/* Two neighbours that can merge, in a heap. */
typedef struct tsr_merge_candidate {
    uint64_t order; /* rank << 32 | index of the left symbol: lowest first */
    uint32_t bytes; /* of both when the candidate was added; a different length now means that one of them
                     * has merged otherwise */
    int32_t merged;
} tsr_merge_candidate;

/* Scratch memory that grows to the longest word and is reused. */
typedef struct tsr_merger {
    const tsr_vocab *vocab;
    const char *text;    /* the word */
    tsr_symbol *symbols; /* [n_symbols]; the first one, index 0, is always the leftmost */
    int32_t n_symbols;
    tsr_merge_candidate *heap;
    size_t n_heap;
    size_t capacity; /* symbols allocated; the heap has twice as many */
} tsr_merger;

/* Start with an empty word `text`, to which tsr_merger_add() will add up to n_symbols symbols. */
tsr_status tsr_merger_begin(tsr_merger *merger, const char *text, size_t n_symbols);

/* Append the symbol of the next `bytes` bytes. */
void tsr_merger_add(tsr_merger *merger, uint32_t bytes, int32_t token);

/* Merge until no pair merges. O(n log n) in the symbols. */
void tsr_merger_run(tsr_merger *merger);

void tsr_merger_release(tsr_merger *merger);

#endif
