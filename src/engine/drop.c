/* Going on without a device.
 *
 * A device that works is left out by a change of split first, which moves what it has. One that is lost
 * becomes a stand-in without room (alloc/buffer/dry_device.h): what it had is gone, and objects on it can be
 * destroyed as ever. The communicator is made again between the others, a change of split reads the missing
 * weights from the files, and sequences are computed again, since every head of a lost device is missing in
 * every position. */
#include <stdio.h>
#include <string.h>

#include <tsr/runtime.h>

#include "alloc/buffer/buffer.h"
#include "alloc/buffer/dry_device.h"
#include "core/mem.h"
#include "engine/resplit.h"
#include "runtime/collectives.h"

/* What a session had. */
typedef struct had {
    tsr_session *session;
    int64_t *lengths; /* [n_seq_max] */
    bool is_lost;     /* some of it was on a device that is lost */
} had;

/* -- sequences -- */

static int n_seqs(const tsr_session *session)
{
    return session->model->config.session.n_seq_max;
}

/* A sequence that was computed before whose tokens are the first ones of this one; -1: none. */
static int prefix_of(const tsr_session *session, const int64_t *lengths, int seq)
{
    const tsr_history *history = &session->history;
    const int32_t *tokens = tsr_history_tokens(history, seq, lengths[seq]);
    int best = -1;
    for (int s = 0; s < seq; s++) {
        const int64_t n = tsr_kv_length(session->kv, s);
        if (n == 0 || n > lengths[seq] || (best >= 0 && n <= tsr_kv_length(session->kv, best)))
            continue;
        if (memcmp(tokens, tsr_history_tokens(history, s, n), (size_t)n * sizeof *tokens) == 0)
            best = s;
    }
    return best;
}

/* Append a sequence's tokens from its length on. What cancels a decode is for the caller's. */
static tsr_status append_tokens(tsr_session *session, int seq, const int32_t *tokens, int64_t length,
                                const int32_t *seqs, const bool *outputs)
{
    tsr_status status = TSR_OK;
    bool cancelled = false;
    const tsr_session_progress_fn progress = session->progress;
    session->progress = NULL;
    while (tsr_kv_length(session->kv, seq) < length && status == TSR_OK) {
        const int64_t at = tsr_kv_length(session->kv, seq);
        const tsr_batch batch = {.n_tokens = TSR_MIN(session->model->config.session.n_batch, length - at),
                                 .tokens = tokens + at,
                                 .seqs = seqs,
                                 .outputs = outputs};
        status = tsr_session_decode(session, &batch, NULL);
        cancelled |= status == TSR_ERR_CANCELLED;
        status = status == TSR_ERR_CANCELLED ? TSR_OK : status;
    }
    session->progress = progress;
    if (cancelled)
        tsr_session_cancel(session);
    return status;
}

static tsr_status compute_sequence(tsr_session *session, const int64_t *lengths, int seq)
{
    tsr_status status = TSR_OK;
    const size_t n_batch = (size_t)session->model->config.session.n_batch;
    const int from = prefix_of(session, lengths, seq);
    int32_t *seqs = NULL;
    bool *outputs = NULL;
    TSR_TRY(tsr_mem_array(n_batch, sizeof *seqs, "sequences to compute again", &seqs));
    TSR_TRY(tsr_mem_array(n_batch, sizeof *outputs, "sequences to compute again", &outputs));
    for (size_t i = 0; i < n_batch; i++)
        seqs[i] = seq;
    if (from >= 0)
        TSR_TRY(tsr_session_fork(session, from, seq));
    TSR_TRY(append_tokens(session, seq, tsr_history_tokens(&session->history, seq, lengths[seq]),
                          lengths[seq], seqs, outputs));
out:
    tsr_mem_free(outputs);
    tsr_mem_free(seqs);
    return status;
}

/* The session is empty. */
static tsr_status compute_sequences(tsr_session *session, const int64_t *lengths)
{
    tsr_status status = TSR_OK;
    for (int s = 0; s < n_seqs(session); s++) {
        if (lengths[s] == 0)
            continue;
        if (tsr_history_tokens(&session->history, s, lengths[s]))
            TSR_TRY(compute_sequence(session, lengths, s));
        else
            tsr_log(
                &session->model->rt->logger, TSR_LOG_WARN,
                "sequence %d came from a file, so its tokens are unknown and it is empty now: load it again",
                s);
    }
out:
    return status;
}

/* -- what there is -- */

static void free_had(had *all, int n)
{
    for (int i = 0; all && i < n; i++)
        tsr_mem_free(all[i].lengths);
    tsr_mem_free(all);
}

/* The lengths of all sequences; *all_out and *n_out are for free_had() also after a failure. */
static tsr_status note_sequences(const tsr_runtime *rt, had **all_out, int *n_out)
{
    tsr_status status = TSR_OK;
    int n_sessions = 0;
    *n_out = 0;
    for (const tsr_model *m = rt->models; m; m = m->next)
        n_sessions += tsr_resplit_n_sessions(m);
    TSR_TRY(tsr_mem_array((size_t)n_sessions, sizeof **all_out, "sequences", all_out));
    for (tsr_model *m = rt->models; m; m = m->next)
        for (tsr_session *s = m->sessions; s; s = s->next) {
            had *h = &(*all_out)[(*n_out)++];
            *h = (had){.session = s};
            TSR_TRY(tsr_mem_array((size_t)n_seqs(s), sizeof *h->lengths, "sequences", &h->lengths));
            tsr_session_lengths(s, h->lengths);
        }
out:
    return status;
}

static bool is_of_session(const tsr_session *session, const tsr_tracked *tracked)
{
    bool is = tracked == &session->tracked || tracked == tsr_kv_tracked(session->kv);
    for (int i = 0; i < TSR_SESSION_MEMORIES; i++)
        is = is || (tsr_session_memory(session, i) && tracked == &tsr_session_memory(session, i)->tracked);
    return is;
}

static bool is_of_models(const tsr_runtime *rt, const tsr_tracked *tracked)
{
    for (const tsr_model *m = rt->models; m; m = m->next) {
        if (tracked == &m->tracked || tracked == &m->weights.buffer->tracked)
            return true;
        for (const tsr_session *s = m->sessions; s; s = s->next)
            if (is_of_session(s, tracked))
                return true;
    }
    return false;
}

/* Programs of the caller have collectives with the device, buffers and KV regions perhaps memory on it. The
 * models' own programs do not exist any more. */
static tsr_status refuse_foreign(const tsr_runtime *rt)
{
    for (const tsr_tracked *t = rt->tracked; t; t = t->next) {
        const bool holds = strcmp(t->kind->name, "context") != 0 && strcmp(t->kind->name, "graph") != 0;
        char text[128] = "";
        if (!holds || is_of_models(rt, t))
            continue;
        if (t->kind->describe)
            t->kind->describe(t, text, sizeof text);
        return tsr_fail(TSR_ERR_INVALID, "tsr_runtime_drop_device: %s %s exists; destroy it before",
                        t->kind->name, text);
    }
    return TSR_OK;
}

/* Whether a device remains without this one. */
static bool has_others(const tsr_runtime *rt, int device)
{
    for (int d = 0; d < rt->n_devices; d++)
        if (d != device && !tsr_device_is_dropped(rt->devices[d]) && !tsr_device_is_lost(rt->devices[d]))
            return true;
    return false;
}

static tsr_status check(const tsr_runtime *rt, int device)
{
    if (!rt || device < 0 || device >= rt->n_devices)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_runtime_drop_device: device %d does not exist; the runtime has %d", device,
                        rt ? rt->n_devices : 0);
    if (rt->processes)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "tsr_runtime_drop_device: device %s is of a runtime of several processes, which is lost as a "
            "whole; close it in all of them and open it without the device",
            rt->devices[device]->name);
    if (tsr_device_is_dropped(rt->devices[device]))
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_runtime_drop_device: device %s was dropped before; nothing of it is left",
                        rt->devices[device]->name);
    if (!has_others(rt, device))
        return tsr_fail(
            TSR_ERR_INVALID,
            "tsr_runtime_drop_device: no device remains beside %s; close the runtime and open it anew",
            rt->devices[device]->name);
    return TSR_OK;
}

/* -- dropping -- */

static void drop_programs(const tsr_runtime *rt)
{
    for (tsr_model *m = rt->models; m; m = m->next)
        for (tsr_session *s = m->sessions; s; s = s->next)
            tsr_session_drop_steps(s);
}

static bool is_lost(const tsr_runtime *rt, int device)
{
    return tsr_device_is_lost(rt->devices[device]) || tsr_watch_is_lost(rt->watch);
}

/* Of a device that works, a change of split moves what it has. */
static tsr_status leave(tsr_runtime *rt, int device, had *all, int n)
{
    tsr_status status = TSR_OK;
    const bool lost = is_lost(rt, device);
    for (int i = 0; i < n && lost; i++)
        all[i].is_lost |= tsr_kv_reserved_bytes(all[i].session->kv, device) > 0;
    if (!lost)
        TSR_TRY(tsr_resplit_all(rt, tsr_device_set_one(device), NULL, 0));
    drop_programs(rt); /* with collectives that the device is in */
    tsr_watch_remove(rt->watch, rt->devices[device]);
    tsr_device_become_dry(rt->devices[device]);
    tsr_watch_revive(rt->watch);
    TSR_TRY(tsr_runtime_connect_again(rt));
    if (lost)
        TSR_TRY(tsr_resplit_all(rt, 0, NULL, 0));
out:
    return status;
}

static tsr_status compute_again(had *all, int n)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < n; i++)
        for (int s = 0; s < n_seqs(all[i].session) && all[i].is_lost; s++)
            TSR_TRY(tsr_session_trim(all[i].session, s, 0));
    for (int i = 0; i < n; i++)
        if (all[i].is_lost)
            TSR_TRY(compute_sequences(all[i].session, all[i].lengths));
out:
    return status;
}

/* The next device that is lost, while another remains; -1: none. */
static int find_lost(const tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++)
        if (!tsr_device_is_dropped(rt->devices[d]) && tsr_device_is_lost(rt->devices[d]) && has_others(rt, d))
            return d;
    return -1;
}

/* A device that is lost while another one is dropped is dropped as well. */
tsr_status tsr_runtime_drop_device(tsr_runtime *rt, int device)
{
    had *all = NULL;
    int n = 0;
    tsr_status status = check(rt, device);
    if (status != TSR_OK)
        return status;
    drop_programs(rt);
    TSR_TRY(refuse_foreign(rt));
    TSR_TRY(note_sequences(rt, &all, &n));
    for (int d = device; d >= 0; d = status == TSR_ERR_DEVICE_LOST ? find_lost(rt) : -1) {
        if (d != device)
            tsr_log(&rt->logger, TSR_LOG_WARN, "device %s is lost, too: %s", rt->devices[d]->name,
                    tsr_last_error());
        status = leave(rt, d, all, n);
        if (status == TSR_OK)
            status = compute_again(all, n);
    }
    for (tsr_model *m = rt->models; m && status != TSR_OK && tsr_device_is_dropped(rt->devices[device]);
         m = m->next)
        m->lost = true;
out:
    free_had(all, n);
    return status;
}
