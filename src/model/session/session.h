/* Inside a session: the step programs, and the arrays for their inputs. */
#ifndef TSR_MODEL_SESSION_SESSION_H
#define TSR_MODEL_SESSION_SESSION_H

#include <stdatomic.h>

#include "graph/flight.h"
#include "graph/kv_inputs.h"
#include "model/model.h"
#include "model/session/history.h"

/* What a step computes. */
typedef struct tsr_step_shape {
    int64_t n_tokens, n_outputs;
    int64_t n_first; /* tokens of the first of two halves (graph/lower/halves.h), without outputs; 0: whole */
    int n_candidates; /* of each output; 0: none */
    bool predicts;    /* of the prediction layer; otherwise of the others */
    int lane;         /* of the memory */
} tsr_step_shape;

/* A compiled step for one shape. */
typedef struct tsr_step {
    tsr_step_shape shape;
    uint64_t last_used;     /* value of session->clock at its last run */
    tsr_step_graph inputs;  /* of all tokens, or of the second half */
    tsr_step_graph first;   /* inputs of the first half */
    tsr_tensor *result;     /* logits [n_vocab, n_outputs], or embeddings [n_embd, n_outputs] */
    tsr_tensor *candidates; /* tsr_top_k() of the logits; NULL: a prediction, or embeddings */
    tsr_candidate *parts;   /* [n_devices][n_outputs][n_candidates] copied from the devices */
    tsr_program *program;
} tsr_step;

/* Number of shapes that are kept, since prompts end in chunks of any size; of lanes (TSR_FLIGHT_MAX at most).
 * A shape has a step in every lane that uses it. */
enum { TSR_SESSION_MAX_SHAPES = 16, TSR_SESSION_MAX_LANES = 8 };

struct tsr_session {
    tsr_model *model;
    tsr_tracked tracked;
    char file[64];             /* end of the model's path, for messages after the model is gone */
    tsr_session *next, **link; /* link in the model's list; NULL: the model is gone */
    tsr_session *successor;    /* during a resplit: the session that exchanges its contents with this one */
    tsr_step_shape next_shape; /* in a successor: of the step to compile; no tokens: none */
    tsr_kv *kv;
    tsr_program_memory *memory;            /* of all steps; with a split of prompts, of the shorter ones */
    tsr_program_memory *prompt_memory;     /* of the longer ones; NULL: there is no split of prompts */
    tsr_program_memory *prediction_memory; /* of all predictions; NULL: the model has none */
    tsr_step steps[TSR_SESSION_MAX_SHAPES * TSR_SESSION_MAX_LANES];
    int n_steps; /* at most TSR_SESSION_MAX_SHAPES for every lane that there is */
    uint64_t clock;
    tsr_session_stats stats;
    _Atomic bool cancelled;           /* set and cleared by any thread; cleared by the call that it ends */
    tsr_session_progress_fn progress; /* NULL: none */
    void *progress_user;

    /* One chunk's inputs. [n_batch] unless said otherwise. */
    int32_t *tokens, *positions, *seqs;
    int32_t *output_rows;   /* [n_outputs_max] */
    float *rope;            /* [n_batch][n_rot] for the widest rotation */
    int32_t *next_place;    /* [n_seq_max] of the next token of each sequence */
    int64_t *old_lengths;   /* [n_seq_max] lengths before the call, for a rollback */
    int64_t *new_lengths;   /* [n_seq_max] scratch */
    tsr_history history;    /* the tokens of the sequences */
    int64_t *chunk_lengths; /* [TSR_SESSION_MAX_LANES][n_seq_max] before the chunk that is in this lane */
};

/* The layers of the KV region, for the caller to free with tsr_mem_free(); one block of memory. */
tsr_status tsr_session_kv_layers(const tsr_model_shape *shape, const tsr_model_split *split,
                                 tsr_kv_layer **layers_out);

/* The compiled step of a shape: from the cache, or compiled now (the least recently used one makes room);
 * then nothing may be in flight. tsr_session_find_step(): NULL if it is not in the cache. */
tsr_status tsr_session_step(tsr_session *session, tsr_step_shape shape, tsr_step **step_out);
tsr_step *tsr_session_find_step(tsr_session *session, tsr_step_shape shape);

/* The tokens of the first half of a step of n_tokens, if none of them is an output; 0: it is not halved. */
int64_t tsr_session_first_half(const tsr_session *session, int64_t n_tokens);

/* Whether the cache is full of steps that were used after `clock`. */
bool tsr_session_is_full(tsr_session *session, uint64_t clock);

/* Inputs of a step (tsr_session.positions and so on must be filled in). */
tsr_status tsr_session_set_input(tsr_tensor *tensor, const void *data, size_t bytes);
tsr_status tsr_session_set_rope(tsr_session *session, int64_t n_tokens, const tsr_step_graph *inputs);

/* The graph of a step, not compiled. A failure leaves what tsr_session_step_free() takes. */
tsr_status tsr_session_build_step(const tsr_session *session, tsr_step_shape shape, tsr_step *step_out);
void tsr_session_step_free(tsr_step *step);

/* Remove the session from its model's list, if it is in the list. */
void tsr_session_leave_model(tsr_session *session);

/* Reserve arena and workspace for the largest step. */
tsr_status tsr_session_reserve(tsr_session *session);

enum { TSR_SESSION_MEMORIES = 3 };

/* The memories of programs that there are, by index; NULL: none of this index. */
tsr_program_memory *tsr_session_memory(const tsr_session *session, int index);

void tsr_session_drop_steps(tsr_session *session);

/* Of all sequences: lengths[n_seq_max]. */
void tsr_session_lengths(const tsr_session *session, int64_t *lengths);

/* TSR_ERR_INVALID: there is no such sequence. */
tsr_status tsr_session_check_seq(const tsr_session *session, int seq);

#endif
