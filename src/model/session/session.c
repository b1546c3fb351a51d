/* Sessions: creation, and decoding a batch chunk by chunk. */
#include "model/session/session.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "model/hash.h"

/* -- creation -- */

/* The maps follow the layers in the same block of memory: of each layer those of the elements of keys and of
 * values of a recurrence, then that of the KV heads. KV layers of index keys and of compressed rows are
 * behind those of the layers. */
tsr_status tsr_session_kv_layers(const tsr_model_shape *shape, const tsr_model_split *split,
                                 tsr_kv_layer **layers_out)
{
    const tsr_hparams *hp = &shape->hparams;
    tsr_kv_layer *layers = NULL;
    const int64_t n_all = tsr_hparams_index_layer(hp, hp->n_layers);
    int64_t index = hp->n_layers;
    tsr_status status =
        tsr_mem_array((size_t)n_all, sizeof *layers + 3 * sizeof(tsr_shard_map), "KV layers", &layers);
    if (status != TSR_OK)
        return status;
    tsr_shard_map *maps = (tsr_shard_map *)(layers + n_all);
    for (int l = 0; l < hp->n_layers; l++) {
        const tsr_split_group *group = tsr_model_split_group(split, TSR_BLOCK_ATTENTION, l);
        const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
        const bool latent = kind->mixer == TSR_MIXER_LATENT, recurs = tsr_mixer_is_recurrent(kind->mixer);
        const bool one_row = latent || kind->mixer == TSR_MIXER_COMPRESSED;
        layers[l].devices = group->devices;
        if (recurs || kind->beside || kind->ratio > 0)
            tsr_split_group_states(group, hp, &shape->granules,
                                   kind->beside ? (int)kind->beside - 1 : hp->kind_of[l], &maps[3 * l],
                                   layers[l].state);
        if (recurs || kind->mixer == TSR_MIXER_NONE || tsr_hparams_kv_layer(hp, l) < l)
            continue;
        tsr_split_group_kv_heads(group, hp, &shape->granules, hp->kind_of[l], &maps[3 * l + 2]);
        layers[l].kv_heads = &maps[3 * l + 2];
        layers[l].k_dim = latent ? hp->latent.kv_rank + hp->latent.n_rot : kind->head_dim;
        layers[l].v_dim = latent ? hp->latent.kv_rank : kind->head_dim;
        layers[l].window = kind->window;
        layers[l].whole = layers[l].v_in_k = one_row;
        if (kind->index_dim > 0)
            layers[index++] = (tsr_kv_layer){.devices = group->devices,
                                             .kv_heads = &maps[3 * l + 2],
                                             .k_dim = kind->index_dim,
                                             .whole = true,
                                             .ratio = kind->ratio};
        if (kind->ratio > 0)
            layers[index++] = (tsr_kv_layer){.devices = group->devices,
                                             .kv_heads = &maps[3 * l + 2],
                                             .k_dim = kind->head_dim,
                                             .v_dim = kind->head_dim,
                                             .whole = true,
                                             .v_in_k = true,
                                             .ratio = kind->ratio};
    }
    *layers_out = layers;
    return TSR_OK;
}

static tsr_status create_kv(tsr_session *session)
{
    tsr_status status = TSR_OK;
    const tsr_model *model = session->model;
    tsr_kv_layer *layers = NULL;
    TSR_TRY(tsr_session_kv_layers(&model->shape, &model->split, &layers));
    const tsr_hparams *hp = &model->shape.hparams;
    tsr_kv_config config = {.n_layers = (int)tsr_hparams_index_layer(hp, hp->n_layers),
                            .layers = layers,
                            .type_k = model->config.session.type_k,
                            .type_v = model->config.session.type_v,
                            .n_ctx = model->config.session.n_ctx,
                            .n_seq_max = model->config.session.n_seq_max,
                            .n_batch = model->config.session.n_batch,
                            .keep_all = model->config.session.swa_full};
    TSR_TRY(tsr_kv_create(model->rt, &config, &session->kv));
out:
    tsr_mem_free(layers);
    return status;
}

static tsr_status create_inputs(tsr_session *session)
{
    tsr_status status = TSR_OK;
    const tsr_model_config *config = &session->model->config;
    size_t n_batch = (size_t)config->session.n_batch, n_seqs = (size_t)config->session.n_seq_max;
    int64_t n_rot = 0;
    for (int i = 0; i < TSR_ROPE_SLOTS; i++)
        n_rot = TSR_MAX(n_rot, session->model->rope[i].n_rot);
    TSR_TRY(tsr_mem_array(n_batch, sizeof(int32_t), "step inputs", &session->positions));
    TSR_TRY(tsr_mem_array(n_batch, sizeof(int32_t), "step inputs", &session->seq_rows));
    TSR_TRY(tsr_mem_array((size_t)config->session.n_outputs_max, sizeof(int32_t), "step inputs",
                          &session->output_rows));
    TSR_TRY(tsr_mem_array(n_batch * (size_t)n_rot, sizeof(float), "step inputs", &session->rope));
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(int32_t), "step inputs", &session->row_seqs));
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(int32_t), "step inputs", &session->row_of_seq));
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(tsr_state_row), "step inputs", &session->state_rows));
    TSR_TRY(tsr_mem_array(n_batch, sizeof(int32_t), "step inputs", &session->next_in_seq));
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(int64_t), "step inputs", &session->old_lengths));
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(int64_t), "step inputs", &session->chunk_lengths));
    memset(session->row_of_seq, -1, n_seqs * sizeof(int32_t));
out:
    return status;
}

static void describe_session(const tsr_tracked *tracked, char *text, size_t size)
{
    snprintf(text, size, "of %s", TSR_TRACKED_OBJECT(tracked, tsr_session)->file);
}

static void name_session(tsr_session *session)
{
    const tsr_gguf *gguf = session->model->shape.gguf;
    const char *path = gguf ? tsr_gguf_path(gguf) : "a shape"; /* a plan may have no file */
    size_t length = strlen(path), most = sizeof session->file - 1;
    snprintf(session->file, sizeof session->file, "%s", length > most ? path + length - most : path);
}

static const tsr_tracked_kind session_kind = {"session", describe_session, NULL};

static void join_model(tsr_session *session)
{
    tsr_model *model = session->model;
    session->next = model->sessions;
    session->link = &model->sessions;
    if (model->sessions)
        model->sessions->link = &session->next;
    model->sessions = session;
}

void tsr_session_leave_model(tsr_session *session)
{
    if (!session->link)
        return;
    *session->link = session->next;
    if (session->next)
        session->next->link = session->link;
    session->next = NULL;
    session->link = NULL;
}

static tsr_status create_session(tsr_model *model, tsr_session **session_out)
{
    tsr_status status = TSR_OK;
    tsr_session *session = NULL;
    TSR_TRY(TSR_NEW(&session, "a session"));
    session->model = model;
    name_session(session);
    TSR_TRY(create_inputs(session));
    TSR_TRY(create_kv(session));
    TSR_TRY(tsr_session_reserve(session));
    join_model(session);
    tsr_track(&model->rt->tracked, &session->tracked, &session_kind);
    *session_out = session;
    session = NULL;
out:
    tsr_session_destroy(session);
    return status;
}

tsr_status tsr_session_create(tsr_model *model, tsr_session **session_out)
{
    tsr_session *session = NULL;
    if (!model)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_create: model must not be NULL");
    tsr_status status = session_out
                            ? create_session(model, &session)
                            : tsr_fail(TSR_ERR_INVALID, "tsr_session_create: session_out must not be NULL");
    status = tsr_processes_agree(model->rt->processes, status, "tsr_session_create");
    if (status == TSR_OK)
        *session_out = session;
    else
        tsr_session_destroy(session);
    return status;
}

void tsr_session_destroy(tsr_session *session)
{
    if (!session)
        return;
    tsr_session_leave_model(session);
    tsr_untrack(&session->tracked);
    tsr_session_drop_steps(session);
    tsr_program_memory_destroy(session->memory);
    tsr_program_memory_destroy(session->prediction_memory);
    tsr_kv_destroy(session->kv);
    tsr_mem_free(session->positions);
    tsr_mem_free(session->seq_rows);
    tsr_mem_free(session->output_rows);
    tsr_mem_free(session->rope);
    tsr_mem_free(session->row_seqs);
    tsr_mem_free(session->row_of_seq);
    tsr_mem_free(session->state_rows);
    tsr_mem_free(session->next_in_seq);
    tsr_mem_free(session->old_lengths);
    tsr_mem_free(session->chunk_lengths);
    tsr_mem_free(session);
}

/* -- one chunk -- */

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

/* The next tokens from `begin` on, as many as fit into the largest program. */
static chunk next_chunk(const tsr_session *session, const tsr_batch *batch, int64_t begin)
{
    chunk c = {.begin = begin, .end = begin};
    while (c.end < batch->n_tokens && c.end - begin < session->model->config.session.n_batch) {
        bool output = is_output(batch, c.end);
        if (output && c.n_outputs == session->model->config.session.n_outputs_max)
            break;
        c.n_outputs += output;
        c.end++;
    }
    return c;
}

/* Give every token its position and page-table row, making room in the KV region. */
static tsr_status append_tokens(tsr_session *session, const tsr_batch *batch, const chunk *c)
{
    session->n_rows = 0;
    int64_t n_outputs = 0;
    for (int64_t i = c->begin; i < c->end;) {
        int seq = seq_of(batch, i);
        int64_t end = i + 1;
        while (end < c->end && seq_of(batch, end) == seq)
            end++;
        int64_t position = tsr_kv_length(session->kv, seq);
        tsr_status status = tsr_kv_append(session->kv, seq, end - i);
        if (status != TSR_OK)
            return status;
        if (session->row_of_seq[seq] < 0) {
            session->row_of_seq[seq] = session->n_rows;
            session->row_seqs[session->n_rows++] = seq;
        }
        for (; i < end; i++, position++) {
            session->positions[i - c->begin] = (int32_t)position;
            session->seq_rows[i - c->begin] = session->row_of_seq[seq];
            if (is_output(batch, i))
                session->output_rows[n_outputs++] = (int32_t)(i - c->begin);
        }
    }
    return TSR_OK;
}

static void forget_rows(tsr_session *session)
{
    for (int r = 0; r < session->n_rows; r++)
        session->row_of_seq[session->row_seqs[r]] = -1;
    session->n_rows = 0;
}

tsr_status tsr_session_set_input(tsr_tensor *tensor, const void *data, size_t bytes)
{
    return bytes ? tsr_tensor_set(tensor, data, 0, bytes) : TSR_OK;
}

tsr_status tsr_session_set_rope(tsr_session *session, int64_t n_tokens, const tsr_step *step)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < TSR_ROPE_SLOTS; i++) {
        const tsr_rope_tables *rope = &session->model->rope[i];
        const size_t n_rot = (size_t)rope->n_rot;
        if (!step->inputs.rope_tables[i])
            continue;
        for (int64_t t = 0; t < n_tokens; t++)
            tsr_rope_row(rope, session->positions[t], session->rope + (size_t)t * n_rot);
        TSR_TRY(tsr_session_set_input(step->inputs.rope_tables[i], session->rope,
                                      (size_t)n_tokens * n_rot * sizeof(float)));
    }
out:
    return status;
}

/* Fill in the page table of a group for the sequences of the step. Entries without a page are never read. */
tsr_status tsr_session_set_page_table(const tsr_session *session, int group, tsr_tensor *table)
{
    tsr_status status = TSR_OK;
    size_t row_bytes = (size_t)tsr_kv_max_pages(session->kv, group) * sizeof(int32_t);
    for (int r = 0; r < session->n_rows; r++) {
        tsr_kv_span span;
        const int32_t *pages = tsr_kv_pages(session->kv, group, session->row_seqs[r], &span);
        TSR_TRY(tsr_tensor_set(table, pages + span.first,
                               (size_t)r * row_bytes + (size_t)span.first * sizeof(int32_t),
                               (size_t)(span.end - span.first) * sizeof(int32_t)));
    }
out:
    return status;
}

/* The slots of every sequence of the step, and the order of its tokens. */
static tsr_status set_states(tsr_session *session, int64_t n_tokens, const tsr_state_inputs *in)
{
    tsr_status status = TSR_OK;
    tsr_state_row *rows = session->state_rows;
    if (!in->rows)
        return TSR_OK;
    for (int64_t r = 0; r < in->rows->ne[1]; r++)
        rows[r] = r < session->n_rows ? tsr_kv_state_row(session->kv, session->row_seqs[r])
                                      : (tsr_state_row){-1, -1, -1};
    for (int64_t t = n_tokens - 1; t >= 0; t--) {
        tsr_state_row *row = &rows[session->seq_rows[t]];
        session->next_in_seq[t] = row->first;
        row->first = (int32_t)t;
    }
    TSR_TRY(tsr_session_set_input(in->rows, rows, (size_t)in->rows->ne[1] * sizeof *rows));
    TSR_TRY(tsr_session_set_input(in->next, session->next_in_seq, (size_t)n_tokens * sizeof(int32_t)));
out:
    return status;
}

static tsr_status set_inputs(tsr_session *session, const tsr_batch *batch, const chunk *c, tsr_step *step)
{
    tsr_status status = TSR_OK;
    const tsr_step_graph *in = &step->inputs;
    size_t n = (size_t)(c->end - c->begin);
    TSR_TRY(tsr_session_set_input(in->tokens, batch->tokens + c->begin, n * sizeof(int32_t)));
    TSR_TRY(tsr_session_set_rope(session, (int64_t)n, step));
    TSR_TRY(
        tsr_session_set_input(in->output_rows, session->output_rows, (size_t)c->n_outputs * sizeof(int32_t)));
    TSR_TRY(tsr_session_set_input(in->kv_inputs[0].seq_row, session->seq_rows, n * sizeof(int32_t)));
    TSR_TRY(tsr_session_set_input(in->kv_inputs[0].position, session->positions, n * sizeof(int32_t)));
    for (int g = 0; g < tsr_kv_n_groups(session->kv); g++)
        TSR_TRY(tsr_session_set_page_table(session, g, in->kv_inputs[g].page_table));
    TSR_TRY(set_states(session, c->end - c->begin, &in->state_inputs));
out:
    return status;
}

/* What a call wants of its batch. */
typedef struct wanted {
    float *logits;             /* of the next outputs; NULL: none */
    tsr_candidate *candidates; /* the same */
    int n_candidates;          /* of each output */
    float *hidden;             /* of the next tokens; NULL: none */
} wanted;

/* Prepare a step: its program, room for its tokens, its inputs. */
static tsr_status prepare_chunk(tsr_session *session, const tsr_batch *batch, const chunk *c,
                                const wanted *want, tsr_step **step_out)
{
    const tsr_step_shape shape = {.n_tokens = c->end - c->begin,
                                  .n_outputs = c->n_outputs,
                                  .n_candidates = c->n_outputs > 0 ? want->n_candidates : 0};
    tsr_status status = TSR_OK;
    if (session->model->lost)
        return tsr_fail(TSR_ERR_DEVICE, "the model lost weights when a change of its split failed; save its "
                                        "sequences, close it and open it anew");
    TSR_TRY(tsr_session_step(session, shape, step_out));
    TSR_TRY(append_tokens(session, batch, c));
    TSR_TRY(set_inputs(session, batch, c, *step_out));
out:
    return status;
}

/* A fingerprint of the arguments that must be the same in all processes, and of the lengths of all sequences,
 * which tsr_session_trim() and tsr_session_fork() change without an exchange. */
static uint64_t fingerprint_of(const tsr_session *session, const tsr_batch *batch, const chunk *c,
                               const wanted *want)
{
    const int64_t numbers[] = {batch->n_tokens, want->n_candidates};
    uint64_t sum = tsr_hash_words(0, numbers, sizeof numbers);
    sum = tsr_hash_words(sum, session->chunk_lengths,
                         (size_t)session->model->config.session.n_seq_max * sizeof *session->chunk_lengths);
    for (int64_t i = c->begin; i < c->end; i++) {
        const int32_t token[] = {batch->tokens[i], seq_of(batch, i), is_output(batch, i)};
        sum = tsr_hash_words(sum, token, sizeof token);
    }
    return sum;
}

/* The chunk's part of what is wanted; `want` moves on to that of the next chunk. */
static tsr_status get_outputs(tsr_session *session, const chunk *c, const tsr_step *step, wanted *want)
{
    tsr_status status = TSR_OK;
    const tsr_hparams *hp = &session->model->shape.hparams;
    const int64_t n_logits = c->n_outputs * hp->n_vocab, n_hidden = (c->end - c->begin) * hp->n_embd;
    if (c->n_outputs && want->candidates) {
        TSR_TRY(tsr_session_get_candidates(session, step, want->candidates));
        want->candidates += c->n_outputs * want->n_candidates;
    } else if (c->n_outputs) {
        TSR_TRY(tsr_tensor_get(step->logits, want->logits, 0, (size_t)n_logits * sizeof(float)));
        want->logits += n_logits;
    }
    if (want->hidden) {
        TSR_TRY(tsr_tensor_get(step->inputs.hidden_out, want->hidden, 0, (size_t)n_hidden * sizeof(float)));
        want->hidden += n_hidden;
    }
out:
    return status;
}

static tsr_status decode_chunk(tsr_session *session, const tsr_batch *batch, const chunk *c, wanted *want)
{
    tsr_status status = TSR_OK;
    tsr_step *step;
    tsr_processes *processes = session->model->rt->processes;
    status = prepare_chunk(session, batch, c, want, &step);
    if (processes)
        TSR_TRY(tsr_processes_agree_on(processes, status, "tsr_session_decode",
                                       fingerprint_of(session, batch, c, want)));
    TSR_TRY(status);
    TSR_TRY(tsr_program_run(step->program));
    TSR_TRY(get_outputs(session, c, step, want));
    tsr_kv_finish_step(session->kv);
    session->stats.n_steps++;
    session->stats.n_tokens += c->end - c->begin;
    session->stats.n_all_reduces += step->program->info.n_all_reduces;
out:
    forget_rows(session);
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
    if (any_output && !want->logits && !want->candidates)
        return tsr_fail(TSR_ERR_INVALID, "batch: logits are wanted but there is no buffer for them");
    return TSR_OK;
}

static void note_lengths(const tsr_session *session, int64_t *lengths)
{
    for (int s = 0; s < session->model->config.session.n_seq_max; s++)
        lengths[s] = tsr_kv_length(session->kv, s);
}

/* Refuse a batch that cannot fit in any case, before the first chunk. */
static tsr_status check_lengths(tsr_session *session, const tsr_batch *batch)
{
    int64_t *lengths = session->chunk_lengths, n_ctx = session->model->config.session.n_ctx;
    note_lengths(session, lengths);
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

/* Lengths only grow during a decode, so a rollback trims sequences. A chunk can always be rolled back; a
 * whole call only if windows have not moved past earlier positions. */
static void go_back(tsr_session *session)
{
    const int64_t *lengths =
        can_go_back(session, session->old_lengths) ? session->old_lengths : session->chunk_lengths;
    for (int s = 0; s < session->model->config.session.n_seq_max; s++)
        if (tsr_kv_length(session->kv, s) > lengths[s])
            (void)!tsr_kv_trim(session->kv, s, lengths[s]);
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

static tsr_status decode(tsr_session *session, const tsr_batch *batch, wanted want)
{
    tsr_status status = check_call(session, batch, &want);
    if (status != TSR_OK || batch->n_tokens == 0) /* instead of the exchange of the first chunk */
        return tsr_processes_agree(session->model->rt->processes, status, "tsr_session_decode");
    note_lengths(session, session->old_lengths);
    tsr_kv_begin_call(session->kv);
    for (int64_t begin = 0; begin < batch->n_tokens && status == TSR_OK;) {
        chunk c = next_chunk(session, batch, begin);
        note_lengths(session, session->chunk_lengths);
        status = decode_chunk(session, batch, &c, &want);
        begin = c.end;
    }
    if (status != TSR_OK)
        go_back(session);
    return status;
}

tsr_status tsr_session_decode(tsr_session *session, const tsr_batch *batch, float *logits)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode: session must not be NULL");
    return decode(session, batch, (wanted){.logits = logits});
}

tsr_status tsr_session_decode_hidden(tsr_session *session, const tsr_batch *batch, float *logits,
                                     float *hidden)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode_hidden: session must not be NULL");
    return decode(session, batch, (wanted){.logits = logits, .hidden = hidden});
}

tsr_status tsr_session_decode_candidates(tsr_session *session, const tsr_batch *batch, int n,
                                         tsr_candidate *candidates)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_decode_candidates: session must not be NULL");
    return decode(session, batch, (wanted){.candidates = candidates, .n_candidates = candidates ? n : 0});
}

/* -- sequences -- */

tsr_status tsr_session_check_seq(const tsr_session *session, int seq)
{
    if (seq >= 0 && seq < session->model->config.session.n_seq_max)
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "sequence %d does not exist; the session has 0 to %d (n_seq_max)", seq,
                    session->model->config.session.n_seq_max - 1);
}

int64_t tsr_session_length(const tsr_session *session, int seq)
{
    return tsr_kv_length(session->kv, seq);
}

int64_t tsr_session_min_length(const tsr_session *session, int seq)
{
    return tsr_kv_min_length(session->kv, seq);
}

tsr_status tsr_session_trim(tsr_session *session, int seq, int64_t length)
{
    tsr_status status = tsr_session_check_seq(session, seq);
    return status == TSR_OK ? tsr_kv_trim(session->kv, seq, length) : status;
}

tsr_status tsr_session_fork(tsr_session *session, int from, int to)
{
    tsr_status status = tsr_session_check_seq(session, from);
    if (status == TSR_OK)
        status = tsr_session_check_seq(session, to);
    return status == TSR_OK ? tsr_kv_fork(session->kv, from, to) : status;
}

tsr_status tsr_session_compact(tsr_session *session)
{
    return tsr_processes_agree(session->model->rt->processes, tsr_kv_compact(session->kv),
                               "tsr_session_compact");
}

void tsr_session_get_stats(const tsr_session *session, tsr_session_stats *stats_out)
{
    tsr_kv_stats kv = tsr_kv_stats_of(session->kv);
    *stats_out = session->stats;
    stats_out->kv_pages = kv.n_pages;
    stats_out->kv_pages_used = kv.n_used;
    for (int d = 0; d < session->model->rt->n_devices; d++)
        stats_out->kv_committed_bytes += tsr_kv_committed_bytes(session->kv, d);
}
