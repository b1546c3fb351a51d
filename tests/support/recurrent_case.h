/* Cases of conv, recurrence and compress (core/op.h) for tests of any device: random operands for a few
 * sequences whose tokens are mixed in one batch, states in slots, and the results in double. */
#ifndef TSR_TESTS_RECURRENT_CASE_H
#define TSR_TESTS_RECURRENT_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/op.h"

/* Sequence 0 begins with zeros and sequence 1 with a state; row 2 of the index is unused. */
enum { RECURRENT_SEQS = 2, RECURRENT_ROWS = 3, RECURRENT_SLOTS = 5, RECURRENT_ARRAYS = 7 };

/* One array of floats of an op: the field of the op with its address, and its length. */
typedef struct recurrent_array {
    const float **field;
    int64_t n;
} recurrent_array;

typedef struct recurrent_case {
    tsr_op op; /* addresses of host memory, which ends at an inaccessible page */
    recurrent_array arrays[RECURRENT_ARRAYS];
    int n_arrays;
    int64_t n_y, slot_elems; /* floats of y and of a slot */
    tsr_state_row rows[RECURRENT_ROWS];
    int32_t *next, *position; /* [n_tokens]; positions of compress only */
    float *slots;             /* [RECURRENT_SLOTS][slot_elems] before the op runs */
    float *y;
    double *exact_y, *exact_slots; /* what the op makes of both */
} recurrent_case;

typedef struct conv_setup {
    int64_t n_tokens, n, kernel;
    bool silu, biased;
    int64_t gap; /* floats between two tokens that belong to others */
} conv_setup;

typedef struct recurrence_setup {
    int64_t n_tokens, n_heads, n_key_heads, dk, dv;
    bool by_row; /* a decay per row of the state, instead of one per head */
    int64_t gap; /* heads between two tokens that belong to others */
    tsr_recurrence_rule rule;
    int64_t first_head, group; /* 0, 0: the key heads are those of the heads */
} recurrence_setup;

typedef struct compress_setup {
    int64_t n_tokens, n, ratio;
    bool overlap;
} compress_setup;

void recurrent_case_compress(recurrent_case *c, compress_setup s);
void recurrent_case_conv(recurrent_case *c, conv_setup s);
void recurrent_case_recurrence(recurrent_case *c, recurrence_setup s);
/* The states and the tokens of an op, and where it stores y. */
tsr_state_view *recurrent_case_state(tsr_op *op);
tsr_state_index *recurrent_case_index(tsr_op *op);
float **recurrent_case_y(tsr_op *op);
void recurrent_case_destroy(recurrent_case *c);

/* Check y[n_y] and slots[RECURRENT_SLOTS][slot_elems] against the exact results. An error of a few units in
 * the last place per token does not grow: no factor of the recurrence exceeds 1. */
void recurrent_case_check(const recurrent_case *c, const float *y, const float *slots);

#endif
