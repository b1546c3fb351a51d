/* A paged KV cache of several sequences and a batch of tokens that continues them, as attention kernels of
 * any device see them, and what attention over it comes to by the definition, in double. Where the cache and
 * the batch's data are, and how they get there, is the device's test's business. */
#ifndef TSR_TESTS_ATTENTION_CASE_H
#define TSR_TESTS_ATTENTION_CASE_H

#include <stdbool.h>

#include <tsr/types.h>

#include "core/op.h"

enum { ATTENTION_MAX_TOKENS = 256, ATTENTION_MAX_HEADS = 80 };

typedef struct attention_setup {
    tsr_type type_k, type_v;
    int64_t kv_heads, group, head_dim, page_tokens, window;
    float softcap;
    bool sinks;        /* every head has one, from far below the scores to far above */
    int64_t value_dim; /* elements of a value; 0: those of a key */
    bool v_in_k;
    bool chunked;  /* the window is a chunk */
    int64_t ratio; /* positions that have one key; 0: 1 */
} attention_setup;

typedef struct attention_case {
    attention_setup s;
    tsr_kv_view kv; /* base is the caller's */
    size_t bytes;   /* of the cache */
    int n_sequences;
    int64_t pages_per_sequence;
    int32_t *page_table; /* [n_sequences][pages_per_sequence]; free() it */
    int64_t n_tokens;    /* of the batch */
    int32_t seq_row[ATTENTION_MAX_TOKENS], position[ATTENTION_MAX_TOKENS];
    float sinks[ATTENTION_MAX_HEADS];
    const float *q;                    /* [n_tokens][kv_heads * group][head_dim] */
    tsr_selection selected;            /* in host memory; of blocks NULL: none */
    const unsigned char *cache;        /* [bytes] as the device holds it, for the functions below */
    const struct attention_case *more; /* of the same heads and batch, whose keys are seen, too; NULL: none */
} attention_case;

/* Strides, sizes and a page table that puts the pages of a sequence nowhere near each other. */
void attention_case_layout(attention_case *c, attention_setup s, int n_sequences, int64_t max_positions);

/* A batch of n tokens per sequence from position `past` on, the sequences one after another. */
void attention_case_batch(attention_case *c, int64_t past, int64_t n);

/* Elements of the longest keys and values, and floats of the batch's, if both are that long. */
int64_t attention_case_widest(const attention_case *c);
int64_t attention_case_kv_floats(const attention_case *c);

/* Floats of a token's queries, and of its outputs. */
int64_t attention_case_q_floats(const attention_case *c);
int64_t attention_case_y_floats(const attention_case *c);

/* A key or value as the cache holds it: its bytes, and decoded. */
const unsigned char *attention_case_at(const attention_case *c, bool value, int64_t row, int64_t position,
                                       int64_t head);
void attention_case_get(const attention_case *c, bool value, int64_t row, int64_t position, int64_t head,
                        float *out);

/* The op over the device's copies of the page table, rows, positions and queries;
 * its sinks and its selection are the case's. */
tsr_op attention_case_op(const attention_case *c, tsr_kv_index index, const float *q, float *y);

/* Every output within `floor` and the error that scores carry: about |q||k| / sqrt(dim) * 2^-21, below
 * 3e-6 * sqrt(dim) for queries and keys in [-2, 2]; it moves each weight by that much relatively, and the
 * output by at most twice that, since |v| <= 1. `floor` is what exponentials and sums add. */
void attention_case_check(const attention_case *c, const float *y, double floor);

#endif
