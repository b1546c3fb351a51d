/* States of recurrent layers, beside the pages of the KV region. kv.c keeps both together.
 *
 * A slot has one state of every recurrent layer. All devices have the same slots, each its own part of every
 * state. A step reads the slot of a sequence and writes another one, so a failed step has changed nothing.
 * Of every sequence up to three slots are in use: the state at the beginning of the call that lengthened the
 * sequence last, the state behind the last step, and the state that the step in progress writes. Slots are
 * reference-counted: forks share them, and no slot in use is ever written. */
#ifndef TSR_ALLOC_KV_RECURRENT_H
#define TSR_ALLOC_KV_RECURRENT_H

#include "alloc/kv/region.h"
#include "core/runtime.h"

enum { TSR_KV_SLOTS_PER_SEQUENCE = 3 };

/* The state of a sequence when it had `length` tokens; slot -1: the state without tokens, zeros. */
typedef struct tsr_kv_snapshot {
    int64_t length;
    int32_t slot;
} tsr_kv_snapshot;

typedef struct tsr_kv_state {
    tsr_kv_snapshot call, end; /* beginning of its last call; behind the last step */
    int32_t written;           /* slot of the step in progress; -1: none */
    uint64_t call_number;
} tsr_kv_state;

typedef struct tsr_kv_states {
    int n_devices, n_layers, n_seq_max, n_slots, n_touched;
    uint64_t call_number;
    int *first_part;        /* [n_layers] of the layer in regions[].parts; -1: no recurrent layer */
    int *n_parts;           /* [n_layers] behind them in one block of memory */
    int32_t *references;    /* [n_slots] */
    tsr_kv_state *seqs;     /* [n_seq_max] */
    tsr_kv_region *regions; /* [n_devices] a page is a slot */
} tsr_kv_states;

/* Without recurrent layers nothing is allocated, and no function but close() may be called. close() accepts
 * the states even after a failure. */
tsr_status tsr_kv_states_open(tsr_kv_states *states, tsr_runtime *rt, const tsr_kv_spec *spec);
void tsr_kv_states_close(tsr_kv_states *states);

static inline bool tsr_kv_states_any(const tsr_kv_states *states)
{
    return states->n_slots > 0;
}

/* Find a slot for the step in progress, unless the sequence has one, and commit it. append() then gives it to
 * the sequence. */
tsr_status tsr_kv_states_prepare(tsr_kv_states *states, int seq, int32_t *slot_out);
void tsr_kv_states_append(tsr_kv_states *states, int seq, int32_t slot);

/* What the steps wrote is the state of the sequences, lengths[n_seq_max] tokens long. */
void tsr_kv_states_finish(tsr_kv_states *states, const int64_t *lengths);

/* Whether the state of a sequence is known at a length, other than 0, that is less than its own. */
bool tsr_kv_states_have(const tsr_kv_states *states, int seq, int64_t length);
/* The shortest such length, or its own. */
int64_t tsr_kv_states_least(const tsr_kv_states *states, int seq);

/* Go back to a length that is 0 or known. */
void tsr_kv_states_cut(tsr_kv_states *states, int seq, int64_t length);
void tsr_kv_states_fork(tsr_kv_states *states, int src, int dst);

/* Give the empty sequence `seq` a slot for its state behind `length` tokens: prepare(), then this. */
void tsr_kv_states_restore(tsr_kv_states *states, int seq, int32_t slot, int64_t length);

tsr_status tsr_kv_states_compact(tsr_kv_states *states);
tsr_status tsr_kv_states_adopt(tsr_kv_states *states, const tsr_kv_states *from);

/* Bytes of the committed slots of `states` on a device under other layers. */
size_t tsr_kv_states_adopt_bytes(const tsr_kv_states *states, const tsr_kv_layer *layers,
                                 const tsr_device *device);

#endif
