/* Sessions: creation and sequences. */
#include "model/session/session.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"

/* -- creation -- */

/* The states of a recurrent mixer (TSR_STATE_CONV_Q). maps[2] are of the elements of keys and of a part of
 * the values. */
static void find_states(const tsr_split_group *group, const tsr_hparams *hp,
                        const tsr_model_granules *granules, int kind, tsr_shard_map *maps,
                        tsr_kv_state_part *parts)
{
    const tsr_layer_kind *k = &hp->kinds[kind];
    int64_t heads = granules->kind_heads[kind];
    size_t kept = (size_t)(k->conv_kernel - 1) * sizeof(float);
    if (k->mixer == TSR_MIXER_COMPRESSED) { /* three numbers of every channel, and of every half */
        const int64_t halves = k->index_dim > 0 ? 2 : 1;
        tsr_split_group_kv_heads(group, hp, granules, kind, &maps[0]);
        parts[0] =
            (tsr_kv_state_part){&maps[0], (size_t)(3 * halves * k->head_dim) * sizeof(float), .whole = true};
        if (k->index_dim > 0)
            parts[1] = (tsr_kv_state_part){&maps[0], (size_t)(3 * halves * k->index_dim) * sizeof(float),
                                           .whole = true};
        return;
    }
    if (k->mixer == TSR_MIXER_CONV) {
        tsr_shard_map_scale(&group->kv_heads, k->n_head_kv * k->head_dim, heads * k->head_dim, &maps[0]);
        parts[0] = (tsr_kv_state_part){&maps[0], kept};
        return;
    }
    int64_t values = k->n_head / k->parts / k->n_head_kv * k->head_dim; /* for a key head, in a part */
    tsr_shard_map_scale(&group->kv_heads, k->n_head_kv * k->key_dim, heads * k->key_dim, &maps[0]);
    tsr_shard_map_scale(&group->kv_heads, k->n_head_kv * values, heads * values, &maps[1]);
    const bool whole = tsr_kind_has_whole_states(k);
    const size_t of_all = (size_t)(k->n_groups * k->key_dim) * kept;
    parts[TSR_STATE_CONV_Q] = parts[TSR_STATE_CONV_K] =
        whole ? (tsr_kv_state_part){&maps[1], of_all, true} : (tsr_kv_state_part){&maps[0], kept, false};
    for (int i = 0; i < (int)k->parts; i++) {
        parts[TSR_STATE_CONV_V + i] = (tsr_kv_state_part){&maps[1], kept, false};
        parts[TSR_STATE_CONV_V + k->parts + i] =
            (tsr_kv_state_part){&maps[1], (size_t)k->key_dim * sizeof(float), false};
    }
}

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
            find_states(group, hp, &shape->granules, kind->beside ? (int)kind->beside - 1 : hp->kind_of[l],
                        &maps[3 * l], layers[l].state);
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
    tsr_kv_spec spec = {.n_layers = (int)tsr_hparams_index_layer(hp, hp->n_layers),
                        .layers = layers,
                        .type_k = model->config.session.type_k,
                        .type_v = model->config.session.type_v,
                        .n_ctx = model->config.session.n_ctx,
                        .n_seq_max = model->config.session.n_seq_max,
                        .n_batch = model->config.session.n_batch,
                        .keep_all = model->config.session.swa_full};
    TSR_TRY(tsr_kv_create_spec(model->rt, &spec, &session->kv));
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
    TSR_TRY(tsr_mem_array(n_batch, sizeof(int32_t), "step inputs", &session->tokens));
    TSR_TRY(tsr_mem_array(n_batch, sizeof(int32_t), "step inputs", &session->seqs));
    TSR_TRY(tsr_mem_array((size_t)config->session.n_outputs_max, sizeof(int32_t), "step inputs",
                          &session->output_rows));
    TSR_TRY(tsr_mem_array(n_batch * (size_t)n_rot, sizeof(float), "step inputs", &session->rope));
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(int32_t), "step inputs", &session->next_place));
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(int64_t), "step inputs", &session->old_lengths));
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(int64_t), "step inputs", &session->new_lengths));
    if (!session->model->rt->no_alloc)
        TSR_TRY(tsr_history_create(config->session.n_seq_max, config->session.n_ctx, &session->history));
    TSR_TRY(tsr_mem_array(n_seqs * TSR_SESSION_MAX_LANES, sizeof(int64_t), "step inputs",
                          &session->chunk_lengths));
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
    for (int i = 0; i < TSR_SESSION_MEMORIES; i++)
        tsr_program_memory_destroy(tsr_session_memory(session, i));
    tsr_kv_destroy(session->kv);
    tsr_mem_free(session->positions);
    tsr_mem_free(session->tokens);
    tsr_mem_free(session->seqs);
    tsr_mem_free(session->output_rows);
    tsr_mem_free(session->rope);
    tsr_mem_free(session->next_place);
    tsr_mem_free(session->old_lengths);
    tsr_mem_free(session->new_lengths);
    tsr_mem_free(session->chunk_lengths);
    tsr_history_free(&session->history);
    tsr_mem_free(session);
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

void tsr_session_lengths(const tsr_session *session, int64_t *lengths)
{
    for (int s = 0; s < session->model->config.session.n_seq_max; s++)
        lengths[s] = tsr_kv_length(session->kv, s);
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
    if (status == TSR_OK)
        status = tsr_kv_fork(session->kv, from, to);
    if (status == TSR_OK)
        tsr_history_fork(&session->history, from, to, tsr_kv_length(session->kv, to));
    return status;
}

tsr_status tsr_session_compact(tsr_session *session)
{
    return tsr_processes_agree(session->model->rt->processes, tsr_kv_compact(session->kv),
                               "tsr_session_compact");
}

tsr_status tsr_session_save(tsr_session *session, const int *seqs, int n_seqs, const char *path)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_save: session must not be NULL");
    return tsr_kv_save(session->kv, seqs, n_seqs, tsr_model_fingerprint(session->model), path);
}

tsr_status tsr_session_load(tsr_session *session, const int *seqs, int n_seqs, const char *path)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_load: session must not be NULL");
    tsr_session_lengths(session, session->new_lengths);
    const tsr_status status =
        tsr_kv_load(session->kv, seqs, n_seqs, tsr_model_fingerprint(session->model), path);
    for (int s = 0; s < session->model->config.session.n_seq_max && status == TSR_OK; s++)
        if (session->new_lengths[s] == 0)
            tsr_history_forget(&session->history, s, tsr_kv_length(session->kv, s));
    return status;
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
