/* Inside the choice of an order: dependencies, live bytes, and the search of one segment. */
#ifndef TSR_GRAPH_ORDER_SEARCH_H
#define TSR_GRAPH_ORDER_SEARCH_H

#include "core/device_set.h"
#include "graph/lower/lowered.h"

/* Instructions [first, end) as lowered. Every order runs all earlier instructions before them and all later
 * ones after them, so each segment is ordered by itself. */
typedef struct tsr_segment {
    int first, end;
    tsr_device_set devices; /* devices that run its instructions */
} tsr_segment;

/* A step on the search's path. */
typedef struct tsr_order_frame {
    int next;        /* instruction to try next */
    int chosen;      /* instruction that is run from here, -1 = none */
    bool was_free;   /* running it added no live bytes */
    uint64_t key[2]; /* of the set of instructions run before */
} tsr_order_frame;

typedef struct tsr_order_search {
    const tsr_lowered *low;
    int n_devices;

    /* Dependencies: instruction i waits for n_waits[i] others; successors[successor_at[i] ...) wait for i. */
    int *n_waits, *successor_at, *successors;

    /* Live values after the instructions that have run so far. */
    bool *done;    /* [n_instrs] */
    size_t *bytes; /* [n_values][n_devices] bytes in the arena, 0: none */
    int *n_uses;   /* [n_values][n_devices] operands that have yet to read it */
    size_t *live;  /* [n_devices] live bytes */

    /* The search of a segment. */
    size_t *limit;           /* [n_devices] limit of live bytes */
    tsr_order_frame *frames; /* [n_instrs + 1] */
    uint64_t (*dead)[2];     /* [n_dead] keys of sets that are dead ends for the limit */
    size_t n_dead;           /* a power of two, at most TSR_ORDER_DEAD_ENDS */
    int64_t budget;          /* steps left to try */
} tsr_order_search;

enum { TSR_ORDER_DEAD_ENDS = 1 << 12, TSR_ORDER_BUDGET = 1 << 16 };

typedef enum tsr_order_answer {
    TSR_ORDER_FOUND,
    TSR_ORDER_IMPOSSIBLE, /* proven: no order of the segment keeps the limits */
    TSR_ORDER_GAVE_UP     /* the budget was spent */
} tsr_order_answer;

/* State before the first instruction: the inputs are live. (state.c) */
tsr_status tsr_order_search_init(const tsr_runtime *rt, const tsr_lowered *lowered, tsr_order_search *s);
void tsr_order_search_free(tsr_order_search *s); /* a zeroed value is fine */

/* The live bytes on device d during and after instruction i, if i ran now. */
void tsr_order_effect(const tsr_order_search *s, int i, int d, size_t *during_out, size_t *after_out);

/* Run an instruction; undo the instruction that ran last. */
void tsr_order_run(tsr_order_search *s, int i);
void tsr_order_take_back(tsr_order_search *s, int i);

/* Whether instruction i has not run and all instructions that it waits for have. */
static inline bool tsr_order_is_ready(const tsr_order_search *s, int i)
{
    return !s->done[i] && s->n_waits[i] == 0;
}

/* Find the first order of a segment, comparing by the order as lowered, that keeps s->limit on every device.
 * All instructions before the segment must have run; the state is the same afterwards. `order_out` has room
 * for the segment. (search.c) */
tsr_order_answer tsr_order_find(tsr_order_search *s, const tsr_segment *segment, int *order_out);

#endif
