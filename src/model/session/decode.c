/* Decoding a batch, chunk by chunk.
 *
 * Where the devices work in stages one after another, chunks are in flight together: while the second stage
 * computes a chunk, the first stage computes the next one. Every chunk is in a lane of the session's memory
 * (graph/emit/layout.h), which is free again when its chunk has finished on all devices. Nothing orders the
 * work of two chunks but the queue of each device, which is enough: the keys and values of a layer, and the
 * activations of a stage, are used by its devices only.
 *
 * The outputs of a chunk are in arenas that the next chunk overwrites, so its devices get the next chunk
 * after the outputs were copied; the devices before them get it immediately. */
#include "model/session/session.h"

#include <stdio.h>

#include "core/checksum.h"
#include "core/mem.h"

/* Tokens [begin, end) of a batch, and the number of them whose logits are wanted. */
typedef struct chunk {
    int64_t begin, end;
    int64_t n_outputs;
} chunk;

static int seq_of(const tsr_batch *batch, int64_t i)
{
    return batch->seqs ? batch->seqs[i] : 0;
}

static bool is_output(const tsr_batch *batch, int64_t i)
{
    return batch->outputs ? batch->outputs[i] : i == batch->n_tokens - 1;
}

static int n_lanes(const tsr_session *session)
{
    return session->memory->layout.n_lanes;
}

static int64_t most_tokens(const tsr_session *session, int64_t n_tokens)
{
    const tsr_model *model = session->model;
    const int64_t n_batch = model->config.session.n_batch;
    bool any_gpu = false, windows = false;
    for (int d = 0; d < model->rt->n_devices; d++)
        any_gpu = any_gpu || model->rt->devices[d]->is_gpu;
    for (int g = 0; g < tsr_kv_n_groups(session->kv) && !model->config.session.swa_full; g++)
        windows = windows || tsr_kv_window(session->kv, g) > 0;
    return tsr_stage_chunk_tokens(n_tokens, n_lanes(session), any_gpu, windows, n_batch);
}

/* The next tokens from `begin` on, at most `most`, and as many outputs as fit into the largest program. */
static chunk next_chunk(const tsr_session *session, const tsr_batch *batch, int64_t begin, int64_t most)
{
    chunk c = {.begin = begin, .end = begin};
    while (c.end < batch->n_tokens && c.end - begin < most) {
        bool output = is_output(batch, c.end);
        if (output && c.n_outputs == session->model->config.session.n_outputs_max)
            break;
        c.n_outputs += output;
        c.end++;
    }
    return c;
}

/* Find where the tokens of every sequence of the chunk begin if those of a sequence stand together, sequences
 * in the order of their first tokens. */
static void find_places(tsr_session *session, const tsr_batch *batch, const chunk *c)
{
    int32_t *next = session->next_place, begin = 0;
    for (int64_t i = c->begin; i < c->end; i++)
        next[seq_of(batch, i)] = 0;
    for (int64_t i = c->begin; i < c->end; i++)
        next[seq_of(batch, i)]--; /* negative: the number of its tokens, and no place yet */
    for (int64_t i = c->begin; i < c->end; i++) {
        int32_t *place = &next[seq_of(batch, i)];
        if (*place < 0) {
            const int32_t n = -*place;
            *place = begin;
            begin += n;
        }
    }
}

/* Give every token its place in the step. Tokens of a sequence stand together, because attention reads keys
 * and values once for neighbours of the same sequence; `in_order`: they have the order of the batch. Outputs
 * always have. */
static void place_tokens(tsr_session *session, const tsr_batch *batch, const chunk *c, bool in_order)
{
    int64_t n_outputs = 0;
    find_places(session, batch, c);
    for (int64_t i = c->begin; i < c->end; i++) {
        const int seq = seq_of(batch, i);
        const int32_t at = in_order ? (int32_t)(i - c->begin) : session->next_place[seq]++;
        session->tokens[at] = batch->tokens[i];
        session->seqs[at] = seq;
        if (is_output(batch, i))
            session->output_rows[n_outputs++] = at;
    }
}

tsr_status tsr_session_set_input(tsr_tensor *tensor, const void *data, size_t bytes)
{
    return bytes ? tsr_tensor_set(tensor, data, 0, bytes) : TSR_OK;
}

tsr_status tsr_session_set_rope(tsr_session *session, int64_t n_tokens, const tsr_step_graph *inputs)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < TSR_ROPE_SLOTS; i++) {
        const tsr_rope_tables *rope = &session->model->rope[i];
        const size_t n_rot = (size_t)rope->n_rot;
        if (!inputs->rope_tables[i])
            continue;
        for (int64_t t = 0; t < n_tokens; t++)
            tsr_rope_row(rope, session->positions[t], session->rope + (size_t)t * n_rot);
        TSR_TRY(tsr_session_set_input(inputs->rope_tables[i], session->rope,
                                      (size_t)n_tokens * n_rot * sizeof(float)));
    }
out:
    return status;
}

/* Append the tokens to their sequences, and fill in the inputs of the graph that computes them. */
static tsr_status set_inputs(tsr_session *session, const chunk *c, const tsr_step_graph *in)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)(c->end - c->begin);
    TSR_TRY(tsr_kv_inputs_append(in->kv_inputs, session->seqs, session->positions));
    TSR_TRY(tsr_session_set_input(in->tokens, session->tokens, n * sizeof(int32_t)));
    TSR_TRY(tsr_session_set_rope(session, (int64_t)n, in));
    TSR_TRY(
        tsr_session_set_input(in->output_rows, session->output_rows, (size_t)c->n_outputs * sizeof(int32_t)));
out:
    return status;
}

/* What a call wants of its batch. */
typedef struct wanted {
    float *rows;               /* logits or embeddings of the next outputs; NULL: none */
    bool embeddings;           /* they are embeddings */
    tsr_candidate *candidates; /* the same */
    int n_candidates;          /* of each output */
    float *hidden;             /* of the next tokens; NULL: none */
} wanted;

/* A call that decodes a batch, and its chunks in flight. */
typedef struct decoding {
    tsr_session *session;
    const tsr_batch *batch;
    int64_t most; /* tokens of a chunk */
    wanted want;  /* of the chunks whose outputs are not copied yet */
    tsr_flight flight;
    int n; /* chunks begun, and not known to have succeeded */
    struct {
        chunk c;
        tsr_step *step;
    } chunks[TSR_SESSION_MAX_LANES]; /* oldest first */
    int lane;                        /* of the next chunk */
    bool owes;                       /* the newest chunk has outputs that are not copied yet */
    bool exchanged;                  /* a failure that other processes know of */
} decoding;

/* The lengths of all sequences before the chunk that is in a lane. */
static int64_t *lengths_before(const decoding *d, int lane)
{
    return d->session->chunk_lengths + lane * d->session->model->config.session.n_seq_max;
}

static int oldest_lane(const decoding *d)
{
    return (d->lane + n_lanes(d->session) - d->n) % n_lanes(d->session);
}

static tsr_status check_cancelled(const decoding *d)
{
    return atomic_load(&d->session->cancelled)
               ? tsr_fail(TSR_ERR_CANCELLED, "tsr_session_decode: cancelled by tsr_session_cancel()")
               : TSR_OK;
}

static tsr_status agree(decoding *d, tsr_status mine, const char *what, uint64_t mark)
{
    tsr_processes *processes = d->session->model->rt->processes;
    const tsr_status status = tsr_processes_agree_on(processes, mine, what, mark);
    d->exchanged = processes && status != TSR_OK;
    return status;
}

/* The outcome of running. After a failure in one process the collectives of the processes are out of step, so
 * later runs are refused. */
static tsr_status agree_on_run(decoding *d, tsr_status mine)
{
    tsr_processes *processes = d->session->model->rt->processes;
    const tsr_status status = agree(d, mine, "tsr_program_run", 0);
    if (processes && status != TSR_OK && status != TSR_ERR_RANGE)
        tsr_processes_lose(processes, tsr_last_error());
    return status;
}

/* -- ending chunks -- */

/* The devices that outputs of chunk i are copied from. */
static tsr_device_set output_devices(const decoding *d, int i)
{
    const tsr_step *step = d->chunks[i].step;
    tsr_device_set devices = d->want.hidden ? step->inputs.hidden_out->placement.devices : 0;
    if (d->chunks[i].c.n_outputs)
        devices |= (d->want.candidates ? step->candidates : step->result)->placement.devices;
    return devices;
}

/* Copy chunk i's part of what is wanted; `want` moves on to that of the next chunk. */
static tsr_status get_outputs(decoding *d, int i)
{
    tsr_status status = TSR_OK;
    wanted *want = &d->want;
    const chunk *c = &d->chunks[i].c;
    const tsr_step *step = d->chunks[i].step;
    const tsr_hparams *hp = &d->session->model->shape.hparams;
    const int64_t n_result = c->n_outputs * (want->embeddings ? hp->n_embd : hp->n_vocab);
    const int64_t n_hidden = (c->end - c->begin) * hp->n_embd;
    if (c->n_outputs && want->candidates) {
        TSR_TRY(tsr_top_k_read(step->candidates, step->parts, want->candidates));
        want->candidates += c->n_outputs * want->n_candidates;
    } else if (c->n_outputs) {
        TSR_TRY(tsr_tensor_get(step->result, want->rows, 0, (size_t)n_result * sizeof(float)));
        want->rows += n_result;
    }
    if (want->hidden) {
        TSR_TRY(tsr_tensor_get(step->inputs.hidden_out, want->hidden, 0, (size_t)n_hidden * sizeof(float)));
        want->hidden += n_hidden;
    }
    d->owes = false;
out:
    return status;
}

/* Wait until at most the n_left newest chunks are in flight. */
static tsr_status finish_chunks(decoding *d, int n_left)
{
    tsr_status status = TSR_OK;
    const int n_done = d->n - n_left;
    tsr_session_stats *stats = &d->session->stats;
    if (n_done <= 0)
        return TSR_OK;
    TSR_TRY(agree_on_run(d, tsr_flight_wait(&d->flight, n_left)));
    if (!d->session->model->rt->processes) /* several agree at the beginning of a chunk instead */
        TSR_TRY(check_cancelled(d));
    if (d->owes && n_left == 0)
        TSR_TRY(get_outputs(d, d->n - 1));
    for (int i = 0; i < n_done; i++) {
        stats->n_steps++;
        stats->n_tokens += d->chunks[i].c.end - d->chunks[i].c.begin;
        stats->n_all_reduces += d->chunks[i].step->program->info.n_all_reduces;
    }
    for (int i = 0; i < n_left; i++)
        d->chunks[i] = d->chunks[n_done + i];
    d->n = n_left;
out:
    return status;
}

/* -- beginning chunks -- */

/* The tokens of the first half of a chunk; 0: it is not halved. */
static int64_t first_half(const decoding *d, const chunk *c)
{
    const int64_t n = d->want.hidden ? 0 : tsr_session_first_half(d->session, c->end - c->begin);
    for (int64_t i = c->begin; i < c->begin + n; i++)
        if (is_output(d->batch, i))
            return 0;
    return n;
}

static tsr_step_shape shape_of(const decoding *d, const chunk *c, int lane)
{
    return (tsr_step_shape){.n_tokens = c->end - c->begin,
                            .n_outputs = c->n_outputs,
                            .n_first = first_half(d, c),
                            .n_candidates = c->n_outputs > 0 ? d->want.n_candidates : 0,
                            .lane = lane};
}

/* Compile the steps of the chunks from `c` on, as many as can be kept together: no program is compiled while
 * others are in flight. At the beginning of a call this also makes processes alike that have kept different
 * steps since a compilation failed in one of them: those that lack the same steps later all wait for the
 * chunks in flight, which is an exchange. */
static tsr_status compile_steps(decoding *d, chunk c)
{
    tsr_session *session = d->session;
    const uint64_t before = session->clock;
    for (int lane = d->lane;; lane = (lane + 1) % n_lanes(session)) {
        tsr_step *step = tsr_session_find_step(session, shape_of(d, &c, lane));
        if (!step && tsr_session_is_full(session, before))
            return TSR_OK;
        tsr_status status = step ? TSR_OK : tsr_session_step(session, shape_of(d, &c, lane), &step);
        if (status != TSR_OK || c.end == d->batch->n_tokens)
            return status;
        c = next_chunk(session, d->batch, c.end, d->most);
    }
}

/* Whether a failure could still be undone if `c` were in flight with the chunks that are: states of recurrent
 * layers are then kept from before the call only. */
static bool can_undo_with(const decoding *d, const chunk *c)
{
    const tsr_session *session = d->session;
    const int64_t *target =
        tsr_kv_has_states(session->kv) ? session->old_lengths : lengths_before(d, oldest_lane(d));
    int64_t *longer = session->new_lengths;
    tsr_session_lengths(session, longer);
    for (int64_t i = c->begin; i < c->end; i++)
        longer[seq_of(d->batch, i)]++;
    for (int s = 0; s < session->model->config.session.n_seq_max; s++)
        if (!tsr_kv_keeps(session->kv, s, longer[s], target[s]))
            return false;
    return true;
}

/* Give tokens their places in the graph that computes them, and set its inputs. */
static tsr_status set_tokens(decoding *d, const chunk *c, const tsr_step_graph *in)
{
    tsr_kv_finish_step(d->session->kv);
    place_tokens(d->session, d->batch, c, d->want.hidden != NULL);
    return set_inputs(d->session, c, in);
}

/* Prepare a step: its program, room for its tokens, its inputs. */
static tsr_status prepare_chunk(decoding *d, const chunk *c, tsr_step **step_out)
{
    tsr_status status = TSR_OK;
    tsr_session *session = d->session;
    const tsr_step_shape shape = shape_of(d, c, d->lane);
    if (session->model->lost)
        return tsr_fail(TSR_ERR_DEVICE, "the model lost weights when a change of its split failed; save its "
                                        "sequences, close it and open it anew");
    tsr_session_lengths(session, lengths_before(d, d->lane));
    if (c->begin == 0)
        TSR_TRY(compile_steps(d, *c));
    *step_out = tsr_session_find_step(session, shape);
    if (d->n > 0 && (!*step_out || !can_undo_with(d, c)))
        TSR_TRY(finish_chunks(d, 0));
    TSR_TRY(check_cancelled(d)); /* not earlier: other processes would fail in the exchange of finishing */
    if (!*step_out) {
        TSR_TRY(compile_steps(d, *c));
        TSR_TRY(tsr_session_step(session, shape, step_out));
    }
    const chunk first = {.begin = c->begin, .end = c->begin + shape.n_first};
    const chunk rest = {.begin = first.end, .end = c->end, .n_outputs = c->n_outputs};
    if (shape.n_first > 0)
        TSR_TRY(set_tokens(d, &first, &(*step_out)->first));
    TSR_TRY(set_tokens(d, &rest, &(*step_out)->inputs));
out:
    return status;
}

/* A fingerprint of the arguments that must be the same in all processes, and of the lengths of all sequences,
 * which tsr_session_trim() and tsr_session_fork() change without an exchange. */
static uint64_t fingerprint_of(const decoding *d, const chunk *c)
{
    const int64_t numbers[] = {d->batch->n_tokens, d->want.n_candidates};
    uint64_t sum = tsr_hash_words(0, numbers, sizeof numbers);
    sum = tsr_hash_words(sum, lengths_before(d, d->lane),
                         (size_t)d->session->model->config.session.n_seq_max * sizeof(int64_t));
    for (int64_t i = c->begin; i < c->end; i++) {
        const int32_t token[] = {d->batch->tokens[i], seq_of(d->batch, i), is_output(d->batch, i)};
        sum = tsr_hash_words(sum, token, sizeof token);
    }
    return sum;
}

static tsr_status begin_chunk(decoding *d, const chunk *c)
{
    tsr_status status = TSR_OK;
    tsr_step *step = NULL;
    const tsr_device_set all = ~(tsr_device_set)0;
    status = prepare_chunk(d, c, &step);
    if (d->session->model->rt->processes)
        TSR_TRY(agree(d, status, "tsr_session_decode", fingerprint_of(d, c)));
    TSR_TRY(status);
    d->chunks[d->n].c = *c;
    d->chunks[d->n++].step = step;
    d->lane = (d->lane + 1) % n_lanes(d->session);
    TSR_TRY(tsr_flight_begin(&d->flight, step->program));
    if (d->owes) {
        const tsr_device_set holders = output_devices(d, d->n - 2);
        TSR_TRY(tsr_flight_launch(&d->flight, all & ~holders));
        TSR_TRY(agree_on_run(d, tsr_flight_wait_on(&d->flight, holders)));
        TSR_TRY(get_outputs(d, d->n - 2));
    }
    TSR_TRY(tsr_flight_launch(&d->flight, all));
    d->owes = c->n_outputs > 0 || d->want.hidden;
    if (d->n == n_lanes(d->session))
        TSR_TRY(finish_chunks(d, d->n - 1));
out:
    return status;
}

/* -- a batch -- */

static tsr_status check_batch(const tsr_session *session, const tsr_batch *batch, const wanted *want)
{
    const tsr_model *model = session->model;
    bool any_output = false;
    if (batch->n_tokens < 0 || (batch->n_tokens > 0 && !batch->tokens))
        return tsr_fail(TSR_ERR_INVALID, "batch: %lld token%s at %p", (long long)batch->n_tokens,
                        tsr_plural(batch->n_tokens), (const void *)batch->tokens);
    for (int64_t i = 0; i < batch->n_tokens; i++) {
        if (batch->tokens[i] < 0 || batch->tokens[i] >= model->shape.hparams.n_vocab)
            return tsr_fail(TSR_ERR_INVALID, "batch: token %lld is %d; the vocabulary has 0 to %lld",
                            (long long)i, batch->tokens[i], (long long)model->shape.hparams.n_vocab - 1);
        if (seq_of(batch, i) < 0 || seq_of(batch, i) >= model->config.session.n_seq_max)
            return tsr_fail(TSR_ERR_INVALID,
                            "batch: token %lld is for sequence %d; the session has 0 to %d (n_seq_max)",
                            (long long)i, seq_of(batch, i), model->config.session.n_seq_max - 1);
        any_output |= is_output(batch, i);
    }
    if (any_output && !want->rows && !want->candidates)
        return tsr_fail(TSR_ERR_INVALID, "batch: %s are wanted but there is no buffer for them",
                        want->embeddings ? "embeddings" : "logits");
    if (any_output && want->embeddings != model->config.output.embeddings)
        return tsr_fail(TSR_ERR_INVALID,
                        want->embeddings
                            ? "tsr_session_decode_embeddings: the model was opened for logits; "
                              "open it with config.output.embeddings"
                            : "tsr_session_decode: the model was opened for embeddings, and gives "
                              "no logits; call tsr_session_decode_embeddings()");
    return TSR_OK;
}

/* Refuse a batch that cannot fit in any case, before the first chunk. */
static tsr_status check_lengths(tsr_session *session, const tsr_batch *batch)
{
    int64_t *lengths = session->new_lengths, n_ctx = session->model->config.session.n_ctx;
    tsr_session_lengths(session, lengths);
    for (int64_t i = 0; i < batch->n_tokens; i++)
        if (++lengths[seq_of(batch, i)] > n_ctx)
            return tsr_fail(
                TSR_ERR_FULL,
                "sequence %d has %lld token%s; the batch's exceed the context of %lld; open with a "
                "larger n_ctx",
                seq_of(batch, i), (long long)tsr_kv_length(session->kv, seq_of(batch, i)),
                tsr_plural(tsr_kv_length(session->kv, seq_of(batch, i))), (long long)n_ctx);
    return TSR_OK;
}

/* -- going back -- */

static bool can_go_back(const tsr_session *session, const int64_t *lengths)
{
    for (int s = 0; s < session->model->config.session.n_seq_max; s++)
        if (!tsr_kv_can_trim(session->kv, s, lengths[s]))
            return false;
    return true;
}

/* Lengths only grow during a decode, so a rollback trims sequences. Chunks in flight can always be rolled
 * back; a whole call only if windows have not moved past earlier positions. */
static void go_back(const decoding *d)
{
    const tsr_session *session = d->session;
    const int64_t *lengths =
        can_go_back(session, session->old_lengths) ? session->old_lengths : lengths_before(d, oldest_lane(d));
    for (int s = 0; s < session->model->config.session.n_seq_max; s++)
        if (tsr_kv_length(session->kv, s) > lengths[s])
            (void)!tsr_kv_trim(session->kv, s, lengths[s]);
}

/* End a call that failed with `status` and its sentence. */
static tsr_status give_up(decoding *d, tsr_status status)
{
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    (void)!tsr_flight_end(&d->flight);
    go_back(d);
    if (status == TSR_ERR_CANCELLED)
        atomic_store(&d->session->cancelled, false);
    status = tsr_fail(status, "%s", sentence);
    if (!d->exchanged)
        status = tsr_processes_agree(d->session->model->rt->processes, status, "tsr_session_decode");
    return tsr_processes_end(d->session->model->rt->processes, status);
}

static tsr_status check_call(tsr_session *session, const tsr_batch *batch, const wanted *want)
{
    tsr_status status = TSR_OK;
    const tsr_hparams *hp = &session->model->shape.hparams;
    const int64_t most = TSR_MIN((int64_t)TSR_MAX_CANDIDATES, hp->n_vocab);
    if (!batch)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode: batch must not be NULL");
    TSR_TRY(check_batch(session, batch, want));
    if (want->candidates && (want->n_candidates < 1 || want->n_candidates > most))
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_session_decode_candidates: %d candidates of each output; 1 to %lld are found",
                        want->n_candidates, (long long)most);
    if (want->hidden && !hp->predicts)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode_hidden: the model was opened without its "
                                         "prediction layer (config.prediction.load)");
    TSR_TRY(check_lengths(session, batch));
out:
    return status;
}

/* Tokens that sequences have got; after a failure perhaps the first ones of the batch only. */
static void note_tokens(tsr_session *session, const tsr_batch *batch)
{
    int64_t *at = session->old_lengths; /* before the call */
    for (int64_t i = 0; i < batch->n_tokens; i++) {
        const int seq = seq_of(batch, i);
        if (at[seq] < tsr_kv_length(session->kv, seq))
            tsr_history_note(&session->history, seq, at[seq]++, batch->tokens[i]);
    }
}

static tsr_status decode_all(tsr_session *session, const tsr_batch *batch, wanted want)
{
    tsr_status status = check_call(session, batch, &want);
    if (status != TSR_OK || batch->n_tokens == 0) /* instead of the exchange of the first chunk */
        return tsr_processes_agree(session->model->rt->processes, status, "tsr_session_decode");
    tsr_session_lengths(session, session->old_lengths);
    tsr_kv_begin_call(session->kv);
    decoding d = {.session = session,
                  .batch = batch,
                  .want = want,
                  .most = most_tokens(session, batch->n_tokens),
                  .flight = {.rt = session->model->rt}};
    tsr_flight_cancel_by(session->model->rt, &session->cancelled);
    if (batch->n_tokens > d.most && n_lanes(session) > 1)
        status = tsr_kv_commit_ahead(session->kv, session->new_lengths); /* of check_lengths() */
    for (int64_t begin = 0; begin < batch->n_tokens && status == TSR_OK;) {
        const chunk c = next_chunk(session, batch, begin, d.most);
        status = begin_chunk(&d, &c);
        begin = c.end;
        if (status == TSR_OK && begin < batch->n_tokens && session->progress)
            session->progress(begin, batch->n_tokens, session->progress_user);
    }
    if (status == TSR_OK)
        status = finish_chunks(&d, 0);
    if (status != TSR_OK)
        status = give_up(&d, status);
    else
        tsr_kv_finish_step(session->kv);
    note_tokens(session, batch);
    tsr_flight_cancel_by(session->model->rt, NULL);
    return status;
}

void tsr_session_cancel(tsr_session *session)
{
    atomic_store(&session->cancelled, true);
}

bool tsr_session_withdraw_cancel(tsr_session *session)
{
    return atomic_exchange(&session->cancelled, false);
}

void tsr_session_set_progress(tsr_session *session, tsr_session_progress_fn progress, void *user)
{
    session->progress = progress;
    session->progress_user = user;
}

static tsr_status decode(tsr_session *session, const tsr_batch *batch, wanted want)
{
    tsr_processes *processes = session->model->rt->processes;
    tsr_processes_step(processes, true);
    const tsr_status status = decode_all(session, batch, want);
    tsr_processes_step(processes, false);
    return status;
}

tsr_status tsr_session_decode(tsr_session *session, const tsr_batch *batch, float *logits)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode: session must not be NULL");
    return decode(session, batch, (wanted){.rows = logits});
}

tsr_status tsr_session_decode_hidden(tsr_session *session, const tsr_batch *batch, float *logits,
                                     float *hidden)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode_hidden: session must not be NULL");
    return decode(session, batch, (wanted){.rows = logits, .hidden = hidden});
}

tsr_status tsr_session_decode_candidates(tsr_session *session, const tsr_batch *batch, int n,
                                         tsr_candidate *candidates)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode_candidates: session must not be NULL");
    return decode(session, batch, (wanted){.candidates = candidates, .n_candidates = candidates ? n : 0});
}

tsr_status tsr_session_decode_embeddings(tsr_session *session, const tsr_batch *batch, float *embeddings)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode_embeddings: session must not be NULL");
    return decode(session, batch, (wanted){.rows = embeddings, .embeddings = true});
}
