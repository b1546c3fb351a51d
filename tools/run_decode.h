/* Common to both ways of generating: feeding tokens in chunks, sampling and writing them. */
#ifndef TSR_TOOLS_RUN_DECODE_H
#define TSR_TOOLS_RUN_DECODE_H

#include <signal.h>

#include "progress.h"
#include "run.h"
#include "run_stop.h"

/* The allocations of generating. */
typedef struct run_decoder {
    const run_engine *engine;
    const run_options *options;
    run_result *result;
    int64_t n_vocab, n_ctx;
    int64_t n_call;   /* tokens of a prompt for one call */
    int n_candidates; /* that the sampler needs of a token's logits; 0: all logits */
    tsr_candidate candidates[TSR_MAX_CANDIDATES];
    float *logits;          /* [n_vocab] */
    bool *silent;           /* [n_call] false: no logits wanted */
    tsr_batch before;       /* the last call that succeeded, with tokens_before */
    int32_t *tokens_before; /* [n_call] */
    int32_t *eog;           /* [n_eog] tokens that end a text */
    int n_eog;
    tsr_detokenizer *stream;
    run_stop stop;
    tool_progress reading; /* of a prompt */
    int64_t n_trained;     /* tokens of context that the model was trained for; INT64_MAX: unknown */
    bool terminal;         /* stdout is one */
    char last;             /* byte written to stdout */
    bool keep_last;        /* compute the last token of a text, too, since more will follow */
    bool stopped;          /* by a stop string */
    bool at_start; /* of an answer: the space at the beginning of words in some vocabularies is omitted */
} run_decoder;

/* Returns TOOL_GO_ON or an exit code, after an error message; to be closed in any case. */
int run_decoder_open(run_decoder *d, const run_engine *engine, const run_options *options,
                     run_result *result);
void run_decoder_close(run_decoder *d);

/* Warn, once, if n further tokens and the ones to generate exceed the context that the model was trained for.
 * run_decoder_end_line() does so for a text without a limit. */
void run_decoder_check_context(run_decoder *d, int64_t n);

/* From now on Ctrl-C ends feeding and continuing; of several processes, Ctrl-C of the first. `once`: a second
 * one ends the process. Undone by sigaction() with *before_out. */
void run_decoder_hear_interrupts(const run_decoder *d, bool once, struct sigaction *before_out);

/* Compute tokens[n] after the present ones; d->logits or d->candidates are those of the last. Ctrl-C ends it
 * between calls; the result counts the computed tokens. */
tsr_status run_decoder_feed(run_decoder *d, const int32_t *tokens, int64_t n);

/* Sample, write, compute, until an end; result->end has the reason. */
tsr_status run_decoder_continue(run_decoder *d);

/* Write held back text, and a newline. */
void run_decoder_end_line(run_decoder *d);

/* Write text to stdout; to a terminal without control characters, so that neither a model nor a file with a
 * prompt can steer it. */
void run_decoder_write(run_decoder *d, const char *text, size_t bytes);

int run_fail_memory(void);

#endif
