/** @file
 * Sessions: sequences of tokens and their KV region, and decoding.
 *
 * A session holds up to n_seq_max sequences, numbered from 0, and n_ctx tokens in all. Decoding a batch
 * appends each token to its sequence and computes the logits that the batch asks for. With the exact
 * reduction, the bits of the logits depend on the model, the sequence and the types of the KV region only:
 * not on tensor_split, threads, or batches.
 *
 *     tsr_session_create(model, &session);
 *     tsr_batch batch = {.n_tokens = n, .tokens = prompt};
 *     tsr_session_decode(session, &batch, logits);        logits[n_vocab] of the last token
 *     tsr_sampler_sample(sampler, logits, n_vocab, &token);
 *     batch = (tsr_batch){.n_tokens = 1, .tokens = &token};
 *     tsr_session_decode(session, &batch, logits);
 *
 * A model may have several sessions; each has its own KV region and arena. A session is used by one thread at
 * a time, like its runtime; tsr_session_cancel() ends what that thread waits for.
 */
#ifndef TSR_SESSION_H
#define TSR_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/model.h>
#include <tsr/sampler.h>

TSR_BEGIN_DECLS

/** Sequences of a model, with the KV region that holds them. */
typedef struct tsr_session tsr_session;

/** Allocate the KV region, arena and workspace of the model's plan. TSR_ERR_MEMORY names device and
 * bytes. */
TSR_NODISCARD TSR_API tsr_status tsr_session_create(tsr_model *model, tsr_session **session_out);
TSR_API void tsr_session_destroy(tsr_session *session); /**< NULL is fine */

/** Tokens to append. Arrays are read during the call only. */
typedef struct tsr_batch {
    int64_t n_tokens;      /**< entries of the arrays */
    const int32_t *tokens; /**< [n_tokens] ids, 0 .. n_vocab - 1 */
    /** [n_tokens] sequence of each token; NULL: all 0. The tokens of a sequence are in its order */
    const int32_t *seqs;
    const bool *outputs; /**< [n_tokens] true: compute the token's logits; NULL: for the last token only */
} tsr_batch;

/** Append the batch and compute. logits[n outputs][n_vocab], in batch order; may be NULL when no output is
 * wanted. TSR_ERR_INVALID: a token or sequence does not exist. TSR_ERR_FULL: no room for the tokens.
 * TSR_ERR_MEMORY. TSR_ERR_RANGE, TSR_ERR_TIMEOUT, TSR_ERR_DEVICE: as tsr_program_run(). TSR_ERR_CANCELLED:
 * see tsr_session_cancel(). On failure every sequence is as it was before the call, and the contents of
 * logits[] are unspecified. With recurrent layers or compressed positions tsr_session_min_length() may then
 * be the present length. Exception: in a call with more than n_batch tokens, on a model with a sliding
 * window, sequences may keep the tokens computed before the oldest step that was in flight (states alone do
 * not cause this); tsr_session_length() has their number. Blocks until done. Where devices work in stages one
 * after another, a batch is cut for them into smaller steps, which are in flight together. Allocates host
 * memory only for a shape (number of tokens and of outputs; its program is compiled once for each stage) that
 * is not among the last 16, and device memory only as the KV region grows into its reserved addresses. */
TSR_NODISCARD TSR_API tsr_status tsr_session_decode(tsr_session *session, const tsr_batch *batch,
                                                    float *logits);

/** tsr_session_decode() with the n likeliest tokens of each output instead of all logits:
 * candidates[n outputs][n], the largest logit first, and of equal ones the lowest id. Logits that are NaN or
 * +INFINITY come before all others. Each device finds those of its part of the vocabulary, so that n times 8
 * bytes of each output are copied from it instead of its logits. The bits of the candidates are those that
 * tsr_session_decode() gives. n is 1 .. TSR_MAX_CANDIDATES and at most n_vocab, otherwise TSR_ERR_INVALID; a
 * program is compiled for each n. Candidates may be NULL when no output is wanted; n then does not count.
 * Logits that are needed as well are asked for by another call. */
TSR_NODISCARD TSR_API tsr_status tsr_session_decode_candidates(tsr_session *session, const tsr_batch *batch,
                                                               int n, tsr_candidate *candidates);

/** tsr_session_decode() with embeddings instead of logits, of a model that was opened with
 * config.output.embeddings: embeddings[n outputs][n_embd], in batch order, are the hidden states behind the
 * last norm, which the output matrix would be multiplied with. llama.cpp's poolings of a text are: `none` a
 * batch with all outputs; `last` a batch with the last token as output, which `outputs` NULL is; `mean` the
 * mean of the rows of `none`. Attention is causal, as in decoding. The rows are not normalized.
 *
 *     config.output.embeddings = true;
 *     tsr_batch batch = {.n_tokens = n, .tokens = text};
 *     tsr_session_decode_embeddings(session, &batch, embedding);     embedding[n_embd] of the last token
 *     tsr_session_trim(session, 0, 0);                               the next text
 *
 * Embeddings may be NULL when no output is wanted. TSR_ERR_INVALID also if an output is wanted and the model
 * was opened for logits; the other decodes refuse outputs of a model that was opened for embeddings. */
TSR_NODISCARD TSR_API tsr_status tsr_session_decode_embeddings(tsr_session *session, const tsr_batch *batch,
                                                               float *embeddings);

/** tsr_session_decode(), and hidden[n_tokens][n_embd]: the residual stream of every token of the batch behind
 * the last layer, before the last norm. `hidden` NULL: not wanted, which needs no prediction layer.
 * TSR_ERR_INVALID also if `hidden` is wanted and the model was opened without config.prediction.load. On
 * failure the contents of hidden[] are unspecified, like those of logits[]. */
TSR_NODISCARD TSR_API tsr_status tsr_session_decode_hidden(tsr_session *session, const tsr_batch *batch,
                                                           float *logits, float *hidden);

/** End the decode that runs on the session (tsr_session_decode(), tsr_session_decode_candidates(),
 * tsr_session_decode_embeddings(), tsr_session_decode_hidden()), or, if none runs, the next one. The request
 * is taken by the call that it ends, which returns TSR_ERR_CANCELLED with sequences as after any failure; the
 * same call again gives the bits that it would have given. A decode that ends in another way in the same
 * moment leaves the request to the next one, unless it is withdrawn: a caller that begins something new calls
 * tsr_session_withdraw_cancel() before. Several requests before the end of a decode are one.
 *
 * Host devices stop after the op that runs; beside two or more GPUs, on a GPU, and in several processes,
 * devices finish the chunk (up to n_batch tokens) that runs. In several processes one may call this, and the
 * decode ends in all; a request during the last chunk of a decode is left to the next one there.
 *
 * Any thread, also while another one uses the session or its runtime, and signal handlers; until
 * tsr_session_destroy() is called. Does not block. */
TSR_API void tsr_session_cancel(tsr_session *session);

/** Withdraw a request of tsr_session_cancel() that no decode has taken. Returns whether there was one. Any
 * thread, as tsr_session_cancel(). */
TSR_API bool tsr_session_withdraw_cancel(tsr_session *session);

/** Called between the chunks of a decode, on the thread that decodes: n_done of its n_tokens tokens are
 * computed or being computed. Must not use the session or its runtime, but may call tsr_session_cancel(). */
typedef void (*tsr_session_progress_fn)(int64_t n_done, int64_t n_tokens, void *user);

/** Set the progress callback of later decodes, in place of an earlier one. NULL: none, which is the initial
 * state. */
TSR_API void tsr_session_set_progress(tsr_session *session, tsr_session_progress_fn progress, void *user);

/** What the prediction layer is given: hidden states of consecutive tokens of a sequence, and the token after
 * each. Arrays are read during the call only. */
typedef struct tsr_prediction {
    int seq;               /**< the sequence */
    int64_t position;      /**< of the first hidden state; position + n_tokens is at most the length */
    int64_t n_tokens;      /**< entries of the arrays; at least 1 */
    const int32_t *tokens; /**< [n_tokens] the token at the position after each hidden state */
    const float *hidden;   /**< [n_tokens][n_embd], as tsr_session_decode_hidden() writes them */
} tsr_prediction;

/** Propose the token after the last of prediction->tokens: logits[n_vocab] by the model's prediction layer.
 *
 *     tsr_session_decode_hidden(session, &batch, logits, hidden);    n tokens of sequence 0, from position 0
 *     tsr_sampler_sample(sampler, logits, n_vocab, &tokens[n]);      tokens[] begins with those of the batch
 *     tsr_prediction p = {.n_tokens = n, .tokens = tokens + 1, .hidden = hidden};
 *     tsr_session_predict(session, &p, logits);                      tokens[n + 1] may follow
 *
 * The layer has keys and values of its own, which the call stores at its positions. It attends to all
 * positions before them, so calls begin at position 0, and leave none out; after a trim to `length`, the
 * layer is given position length - 1 again, with the token that follows now. Sequences do not change
 * otherwise: lengths and the results of tsr_session_decode() stay the same. As there, the bits do not depend
 * on the split or on how many tokens share a call. TSR_ERR_INVALID: the model was opened without
 * config.prediction.load, a token, sequence or position does not exist, or its page is behind a sliding
 * window. TSR_ERR_FULL: no room to copy a page that sequences share. Other errors as tsr_session_decode(); on
 * failure the layer's keys and values at these positions are undefined. Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_session_predict(tsr_session *session, const tsr_prediction *prediction,
                                                     float *logits);

/** Tokens in a sequence; 0 if it is empty or does not exist. */
TSR_API int64_t tsr_session_length(const tsr_session *session, int seq);

/** The shortest length, except 0, that a sequence can be cut to; 0: any length. With sliding windows (and
 * without config.session.swa_full) layers keep the tokens that the next token sees and n_batch tokens more,
 * so the last n_batch tokens can be cut off; of a sequence that was loaded from a file, one.
 *
 * With recurrent layers or compressed positions two states are kept: at the beginning of the last call that
 * added to the sequence, and at its end. The value is that beginning, and lengths between the two are not
 * possible. It is the present length if the beginning was 0, after a failed step or a trim, and for a loaded
 * sequence. */
TSR_API int64_t tsr_session_min_length(const tsr_session *session, int seq);

/** Remove all tokens of a sequence except the first `length`; 0 empties the sequence. TSR_ERR_INVALID: the
 * sequence is shorter or unknown, or `length` is less than tsr_session_min_length() but not 0; on a model
 * with recurrent layers or compressed positions, `length` is neither that, nor the present length, nor 0. */
TSR_NODISCARD TSR_API tsr_status tsr_session_trim(tsr_session *session, int seq, int64_t length);

/** Make the empty sequence `to` a copy of `from`. The two share full pages as long as both keep these pages.
 * A page has 32 keys: 32 tokens, and in layers with compressed positions as many times the tokens of a key.
 * States are shared as well. TSR_ERR_INVALID: `to` is not empty, or a sequence is unknown. */
TSR_NODISCARD TSR_API tsr_status tsr_session_fork(tsr_session *session, int from, int to);

/** Return unused memory of the KV region to the devices: pages in use are moved to the beginning of the
 * region, without a change of their bits, and the memory behind them is freed. Memory is allocated again as
 * sequences grow. Costs a copy of the pages that move. On failure no page is lost, and less memory is freed.
 * Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_session_compact(tsr_session *session);

/** Save sequences seqs[n_seqs], in this order, to a file; seqs NULL: all that are not empty. Shared pages are
 * stored once. An existing file is replaced only after the new file is complete and on the disk; an
 * interrupted save leaves the existing file as it was (and perhaps a file `path`.XXXXXX). A saved file can be
 * read under any tensor_split, on any devices. The file holds keys and values, and the states (of recurrent
 * layers and of compressed positions) at the end of each sequence; the caller keeps the tokens.
 * TSR_ERR_INVALID: no such sequence. TSR_ERR_IO, TSR_ERR_MEMORY; TSR_ERR_DEVICE: a device cannot be read.
 * Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_session_save(tsr_session *session, const int *seqs, int n_seqs,
                                                  const char *path);

/** Load all sequences of a file. Sequence number i of the file becomes sequence seqs[i]; n_seqs must be the
 * number of sequences in the file. seqs NULL: each gets the number that it had. The sequences must be empty
 * before; shared pages are shared again. Decoding then continues with the bits that it would have had without
 * saving. On failure the sequences are empty. TSR_ERR_FORMAT: not a file of sequences, or a damaged one.
 * TSR_ERR_INVALID: the file is of another model or of other KV types, or a sequence is not empty or does not
 * exist. TSR_ERR_FULL: no room. TSR_ERR_UNSUPPORTED: a file of another version of the format.
 * TSR_ERR_NOT_FOUND, TSR_ERR_IO, TSR_ERR_MEMORY, TSR_ERR_DEVICE. Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_session_load(tsr_session *session, const int *seqs, int n_seqs,
                                                  const char *path);

/** Counters of a session, for reports. */
typedef struct tsr_session_stats {
    int64_t n_steps;           /**< programs run */
    int64_t n_tokens;          /**< computed */
    int64_t n_all_reduces;     /**< over all steps */
    int64_t n_programs;        /**< shapes compiled so far */
    int64_t kv_pages_used;     /**< pages that hold tokens; layers with a window have pages of their own */
    int64_t kv_pages;          /**< pages of the region, without states */
    size_t kv_committed_bytes; /**< memory behind the KV region and its states by now, of all devices */
    uint64_t reserved[8];      /**< 0; fields of later versions take its place */
} tsr_session_stats;

/** Write the counters of the session. */
TSR_API void tsr_session_get_stats(const tsr_session *session, tsr_session_stats *stats_out);

TSR_END_DECLS
#endif
