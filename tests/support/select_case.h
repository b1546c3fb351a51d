/* Selections of positions on any device (SELECT in core/op.h): a cache of keys and a batch of tokens
 * (attention_case.h) whose scores are small integers times a power of two, so that sums in any order are
 * exact, scores are often equal, and the lists are known to the last entry. Also lists drawn at random, for
 * attention. */
#ifndef TSR_TESTS_SELECT_CASE_H
#define TSR_TESTS_SELECT_CASE_H

#include "support/attention_case.h"

typedef struct select_setup {
    tsr_type type;
    int64_t n_heads, dim, page_tokens;
    int64_t n_blocks, block, n_local;
    bool weighted;
    int64_t ratio; /* of the cache; 0: 1 */
} select_setup;

typedef struct select_case {
    select_setup s;
    attention_case a;     /* of one KV head: the index keys */
    unsigned char *bytes; /* of the cache */
    float *q, *weights;   /* of the batch */
    int64_t n_lists;
} select_case;

/* n tokens for each of `n_sequences` sequences, behind `past` others. */
select_case select_case_create(select_setup s, int n_sequences, int64_t past, int64_t n, uint64_t seed);
void select_case_destroy(select_case *c);

int64_t select_case_words(const select_case *c); /* of the lists */

/* The op over the device's copies of the cache, index, queries and weights. */
tsr_op select_case_op(const select_case *c, unsigned char *cache, tsr_kv_index index, const float *q,
                      const float *weights, int32_t *y);

/* Fail unless these are the lists. */
void select_case_check(const select_case *c, const int32_t *lists);

/* Fill the cache of `a`, in bytes[a->bytes], with keys and values in [-1, 1]. */
void select_case_fill(const attention_case *a, unsigned char *bytes, uint64_t *seed);

/* Lists for an attention over the case: of each token's blocks about one in `rarity`, or all, at most
 * n_blocks. The caller frees them. */
int32_t *select_case_draw(const attention_case *a, int64_t n_lists, int64_t n_blocks, int64_t block,
                          int64_t rarity, uint64_t *seed);

#endif
