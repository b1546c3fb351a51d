/* Going on without a device.
 *
 * A device that works is left out by a change of split first, which moves what it has. One that is lost
 * becomes a stand-in without room (alloc/buffer/dry_device.h): what it had is gone, and objects on it can be
 * destroyed as ever. The communicator is made again between the others, a change of split reads the missing
 * weights from the files, and sequences are computed again, since every head of a lost device is missing in
 * every position.
 *
 * In several processes those that are left first agree on what is lost, and on the lengths of the sequences:
 * one of them may have returned from a call in which the others have failed. */
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

static tsr_device_set dropped_devices(const tsr_runtime *rt)
{
    tsr_device_set dropped = 0;
    for (int d = 0; d < rt->n_devices; d++)
        dropped |= tsr_device_is_dropped(rt->devices[d]) ? tsr_device_set_one(d) : 0;
    return dropped;
}

/* The lost devices that were not dropped, as far as this process knows. */
static tsr_device_set lost_devices(const tsr_runtime *rt)
{
    tsr_device_set lost = 0;
    for (int d = 0; d < rt->n_devices; d++)
        lost |= tsr_device_is_lost(rt->devices[d]) ? tsr_device_set_one(d) : 0;
    return lost & ~dropped_devices(rt);
}

static tsr_status check_others(const tsr_runtime *rt, tsr_device_set devices)
{
    const tsr_device_set without = devices | dropped_devices(rt) | lost_devices(rt);
    if (tsr_device_set_all(rt->n_devices) & ~without)
        return TSR_OK;
    return tsr_fail(
        TSR_ERR_INVALID,
        "tsr_runtime_drop_device: no device remains beside %s; close the runtime and open it anew",
        rt->devices[tsr_device_set_first(devices ? devices : without)]->name);
}

static tsr_status check(const tsr_runtime *rt, int device)
{
    const bool named = device != TSR_LOST_DEVICES;
    if (device < TSR_LOST_DEVICES || device >= rt->n_devices)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_runtime_drop_device: device %d does not exist; the runtime has %d", device,
                        rt->n_devices);
    if (named && tsr_device_is_dropped(rt->devices[device]))
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_runtime_drop_device: device %s was dropped before; nothing of it is left",
                        rt->devices[device]->name);
    if (!named && !lost_devices(rt) && !tsr_processes_are_lost(rt->processes))
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_runtime_drop_device: no device is known to be lost; name the one to drop");
    return named ? check_others(rt, tsr_device_set_one(device)) : TSR_OK;
}

/* -- several processes -- */

/* While the processes are not lost: what one of them has lost, all know. */
static tsr_status share_losses(tsr_runtime *rt)
{
    tsr_status status = TSR_OK;
    for (int r = 0; r < tsr_processes_count(rt->processes) && rt->processes; r++) {
        tsr_device_set lost = lost_devices(rt);
        TSR_TRY(tsr_processes_share(rt->processes, r, TSR_OK, &lost, sizeof lost, sizeof lost, 1,
                                    "devices that are lost"));
        TSR_FOR_DEVICES(d, lost)
            rt->devices[d]->lost = true;
    }
out:
    return status;
}

/* The lengths that all processes have. Where they differ, a session is computed again. */
static tsr_status agree_on_lengths(const tsr_runtime *rt, had *h)
{
    tsr_status status = TSR_OK;
    const size_t n = (size_t)n_seqs(h->session), bytes = n * sizeof(int64_t);
    int64_t *lengths = NULL; /* of a process, then the least so far */
    TSR_TRY(tsr_mem_array(2 * n, sizeof *lengths, "lengths", &lengths));
    memset(lengths + n, 0x7f, bytes);
    for (int r = tsr_processes_first(rt->processes); r < tsr_processes_count(rt->processes); r++) {
        if (tsr_processes_is_gone(rt->processes, r))
            continue;
        memcpy(lengths, h->lengths, bytes);
        TSR_TRY(tsr_processes_share(rt->processes, r, TSR_OK, lengths, bytes, bytes, 1, "lengths"));
        h->is_lost |= r > tsr_processes_first(rt->processes) && memcmp(lengths, lengths + n, bytes) != 0;
        for (size_t s = 0; s < n; s++)
            lengths[n + s] = TSR_MIN(lengths[n + s], lengths[s]);
    }
    memcpy(h->lengths, lengths + n, bytes);
out:
    tsr_mem_free(lengths);
    return status;
}

/* After the processes were lost: go on with those that are left, and find what is lost in any of them, or
 * with them. */
static tsr_status go_on(tsr_runtime *rt, tsr_device_set *lost)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_runtime_disconnect(rt));
    TSR_TRY(tsr_processes_go_on(rt->processes, *lost, lost));
    for (int d = 0; d < rt->n_devices; d++)
        if (tsr_processes_is_gone(rt->processes, rt->devices[d]->process))
            *lost |= tsr_device_set_one(d);
    *lost &= ~dropped_devices(rt);
    TSR_FOR_DEVICES(d, *lost)
        rt->devices[d]->lost = true;
out:
    return status;
}

/* -- dropping -- */

static void drop_programs(const tsr_runtime *rt)
{
    for (tsr_model *m = rt->models; m; m = m->next)
        for (tsr_session *s = m->sessions; s; s = s->next)
            tsr_session_drop_steps(s);
}

/* What is to be dropped. */
typedef struct leaving {
    tsr_device_set devices;
    bool lost; /* nothing of them is left */
} leaving;

static leaving find_leaving(const tsr_runtime *rt, int device)
{
    const tsr_device_set lost = lost_devices(rt);
    const tsr_device_set devices = device == TSR_LOST_DEVICES ? lost : tsr_device_set_one(device);
    return (leaving){devices, (devices & lost) || tsr_watch_is_lost(rt->watch)};
}

/* A model without a split goes to another device. */
static void move_main_devices(const tsr_runtime *rt, tsr_device_set without)
{
    const tsr_device_set others = tsr_device_set_all(rt->n_devices) & ~(dropped_devices(rt) | without);
    for (tsr_model *m = rt->models; m; m = m->next)
        if (!tsr_device_set_has(others, m->config.split.main_device))
            m->config.split.main_device = tsr_device_set_first(others);
}

/* Of a device that works, a change of split moves what it has. */
static tsr_status leave(tsr_runtime *rt, leaving what, had *all, int n)
{
    tsr_status status = TSR_OK;
    TSR_FOR_DEVICES(d, what.devices)
        for (int i = 0; i < n && what.lost; i++)
            all[i].is_lost |= tsr_kv_reserved_bytes(all[i].session->kv, d) > 0;
    move_main_devices(rt, what.devices);
    if (!what.lost)
        TSR_TRY(tsr_resplit_all(rt, what.devices, NULL, 0));
    drop_programs(rt); /* with collectives that the devices are in */
    TSR_FOR_DEVICES(d, what.devices) {
        tsr_log(&rt->logger, TSR_LOG_INFO, "device %s is dropped", rt->devices[d]->name);
        tsr_watch_remove(rt->watch, rt->devices[d]);
        tsr_device_become_dry(rt->devices[d]);
    }
    tsr_watch_revive(rt->watch);
    TSR_TRY(tsr_runtime_connect_again(rt));
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

/* Whether more is lost after a failure, which is logged. */
static bool is_more_lost(tsr_runtime *rt)
{
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    if (!tsr_processes_are_lost(rt->processes))
        (void)!share_losses(rt);
    const bool is_more = lost_devices(rt) || tsr_processes_are_lost(rt->processes);
    if (is_more && check_others(rt, 0) != TSR_OK)
        return false;
    if (is_more)
        tsr_log(&rt->logger, TSR_LOG_WARN, "more is lost: %s", sentence);
    tsr_fail_store("%s", sentence);
    return is_more;
}

/* Processes that do not connect again stay lost. */
static tsr_status drop_once(tsr_runtime *rt, leaving what, bool went_on, had *all, int n)
{
    tsr_status status = TSR_OK;
    bool is_connected = !went_on;
    for (int i = 0; i < n && went_on; i++)
        TSR_TRY(agree_on_lengths(rt, &all[i]));
    if (what.devices)
        TSR_TRY(check_others(rt, what.devices));
    TSR_TRY(leave(rt, what, all, n));
    is_connected = true;
    if (what.lost && what.devices)
        TSR_TRY(tsr_resplit_all(rt, 0, NULL, 0));
    TSR_TRY(compute_again(all, n));
out:
    if (!is_connected)
        tsr_processes_lose(rt->processes, tsr_last_error());
    return status;
}

/* What is lost meanwhile is dropped as well. */
static tsr_status drop(tsr_runtime *rt, int device, had *all, int n)
{
    tsr_status status = TSR_OK;
    do {
        leaving what = find_leaving(rt, device);
        const bool goes_on = tsr_processes_are_lost(rt->processes);
        what.lost |= goes_on;
        if (goes_on)
            TSR_TRY(go_on(rt, &what.devices));
        status = drop_once(rt, what, goes_on, all, n);
        device = TSR_LOST_DEVICES;
    } while (status == TSR_ERR_DEVICE_LOST && is_more_lost(rt));
out:
    return status;
}

/* Prepare, in all processes or in none; those that are lost agree later. */
static tsr_status prepare(tsr_runtime *rt, int device, had **all, int *n)
{
    tsr_status status = tsr_processes_are_lost(rt->processes) ? TSR_OK : share_losses(rt);
    if (status == TSR_OK || tsr_processes_are_lost(rt->processes))
        status = check(rt, device);
    if (status == TSR_OK) {
        drop_programs(rt);
        status = refuse_foreign(rt);
    }
    if (status == TSR_OK)
        status = note_sequences(rt, all, n);
    return tsr_processes_are_lost(rt->processes)
               ? status
               : tsr_processes_agree_on(rt->processes, status, "tsr_runtime_drop_device", (uint64_t)device);
}

tsr_status tsr_runtime_drop_device(tsr_runtime *rt, int device)
{
    tsr_status status = TSR_OK;
    had *all = NULL;
    int n = 0;
    if (!rt)
        return tsr_fail(TSR_ERR_INVALID, "tsr_runtime_drop_device: rt must not be NULL");
    const tsr_device_set before = dropped_devices(rt);
    TSR_TRY(prepare(rt, device, &all, &n));
    status = drop(rt, device, all, n);
    for (tsr_model *m = rt->models; m && status != TSR_OK && dropped_devices(rt) != before; m = m->next)
        m->lost = true;
out:
    free_had(all, n);
    return status;
}
