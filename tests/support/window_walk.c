/* See window_walk.h. */
#include "support/window_walk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/session/session.h"
#include "support/directory.h"
#include "support/random.h"
#include "support/resplit_walk.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_VOCAB = 288, MAX_BATCH = 70 };

typedef struct pair {
    const way_family *family;
    const window_walk *walk;
    const char *path, *saved;
    uint64_t seed;
    way way; /* of `tried` */
    int n_devices;
    runner plain, tried;
} pair;

static int below(pair *p, int n)
{
    return (int)random_below(&p->seed, (uint64_t)n);
}

/* -- opening -- */

static tsr_model_config base_config(pair *p)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = WINDOW_WALK_CTX;
    config.session.n_seq_max = WINDOW_WALK_SEQS;
    config.session.n_batch = 1 + below(p, 40);
    config.session.n_outputs_max = 1 + below(p, 4);
    return config;
}

/* Every device has what was planned for it. */
static void check_accounting(const runner *r)
{
    for (int d = 0; d < r->rt->n_devices; d++) {
        tsr_plan_device planned;
        assert_int_equal(tsr_plan_get_device(tsr_model_plan(r->model), d, &planned), TSR_OK);
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            assert_int_equal(r->rt->devices[d]->used[o], planned.bytes[o]);
        assert_int_equal(tsr_kv_windowed_bytes(r->session->kv, d), planned.kv_windowed_bytes);
    }
}

static void open_tried(pair *p)
{
    way *w = &p->way;
    *w = (way){.config = base_config(p)};
    p->n_devices = p->family->prepare(&p->seed, w);
    walk_random_split(&p->seed, p->n_devices, w->split, sizeof w->split);
    w->config.split.mode = below(p, 3) ? TSR_SPLIT_MODE_TENSOR : TSR_SPLIT_MODE_LAYER;
    runner_open_with(&p->tried, p->path, w->devices, w->collectives, w->split, &w->config);
    check_accounting(&p->tried);
}

/* Fewer pages than without windows, and no more than the windows and a batch touch. */
static void check_pages(const pair *p)
{
    const tsr_kv *kv = p->tried.session->kv;
    int64_t kept = p->walk->window - 1 + p->way.config.session.n_batch;
    for (int g = 0; g < tsr_kv_n_groups(kv); g++)
        for (int s = 0; s < WINDOW_WALK_SEQS && tsr_kv_window(kv, g) > 0; s++) {
            tsr_kv_span span;
            tsr_kv_pages(kv, g, s, &span);
            assert_true(span.end - span.first <= (kept + TSR_KV_PAGE_TOKENS - 2) / TSR_KV_PAGE_TOKENS + 1);
            assert_true(span.first >= (tsr_kv_length(kv, s) - kept) / TSR_KV_PAGE_TOKENS);
        }
}

/* -- steps -- */

static int64_t length_of(const pair *p, int seq)
{
    int64_t length = tsr_session_length(p->tried.session, seq);
    assert_int_equal(tsr_session_length(p->plain.session, seq), length);
    return length;
}

/* Append a batch to both, and compare what they say of its outputs. */
static void decode_both(pair *p, const tsr_batch *batch, int n_outputs)
{
    static float expected[MAX_BATCH * N_VOCAB], logits[MAX_BATCH * N_VOCAB];
    runner_ok(tsr_session_decode(p->plain.session, batch, expected), "decode, all pages kept");
    runner_ok(tsr_session_decode(p->tried.session, batch, logits), "decode");
    if (memcmp(expected, logits, (size_t)n_outputs * N_VOCAB * sizeof *logits) != 0)
        fail_msg("%s, window %d: %s, split %s, batch %d%s: other bits", p->walk->arch->title, p->walk->window,
                 p->way.devices, p->way.split, p->way.config.session.n_batch, p->way.about);
    check_pages(p);
}

/* Runs of tokens for any sequences that have room, in one batch. */
static void step_append(pair *p)
{
    int32_t tokens[MAX_BATCH], seqs[MAX_BATCH];
    bool outputs[MAX_BATCH];
    int64_t added[WINDOW_WALK_SEQS] = {0};
    int n = 0, n_outputs = 0, most = 1 + below(p, below(p, 3) ? 8 : MAX_BATCH);
    for (int run = 0; run < 4; run++) {
        int seq = below(p, WINDOW_WALK_SEQS);
        for (int left = 1 + below(p, most); left > 0 && n < most; left--) {
            if (length_of(p, seq) + added[seq] >= p->walk->length)
                break;
            seqs[n] = seq;
            tokens[n] = below(p, N_VOCAB);
            outputs[n] = left == 1 || below(p, 6) == 0;
            n_outputs += outputs[n++];
            added[seq]++;
        }
    }
    decode_both(p, &(tsr_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs, .outputs = outputs},
                n_outputs);
}

/* Back by a few tokens, to anywhere, or to nothing: where windows forbid it they say so. */
static void step_cut(pair *p)
{
    int seq = below(p, WINDOW_WALK_SEQS);
    int64_t old = length_of(p, seq), least = tsr_session_min_length(p->tried.session, seq);
    int64_t back = below(p, 2) ? below(p, 9) : below(p, (int)old + 1);
    int64_t length = back < old && below(p, 6) ? old - back : 0;
    assert_int_equal(tsr_session_min_length(p->plain.session, seq), 0);
    tsr_status status = tsr_session_trim(p->tried.session, seq, length);
    if (length > 0 && length < least) {
        assert_int_equal(status, TSR_ERR_INVALID);
        assert_non_null(strstr(tsr_last_error(), "swa_full"));
        return;
    }
    runner_ok(status, "cut");
    runner_ok(tsr_session_trim(p->plain.session, seq, length), "cut, all pages kept");
}

static void step_fork(pair *p)
{
    int from = below(p, WINDOW_WALK_SEQS), to = below(p, WINDOW_WALK_SEQS);
    if (from == to)
        return;
    runner_ok(tsr_session_trim(p->plain.session, to, 0), "empty");
    runner_ok(tsr_session_trim(p->tried.session, to, 0), "empty");
    runner_ok(tsr_session_fork(p->plain.session, from, to), "fork, all pages kept");
    runner_ok(tsr_session_fork(p->tried.session, from, to), "fork");
}

/* To a file, and back on other devices with another batch; from either session. */
static void step_save_and_load(pair *p)
{
    bool whole = below(p, 3) == 0;
    int64_t n_tokens = 0;
    for (int s = 0; s < WINDOW_WALK_SEQS; s++)
        n_tokens += length_of(p, s);
    if (n_tokens == 0)
        return;
    runner_ok(tsr_session_save(whole ? p->plain.session : p->tried.session, NULL, 0, p->saved), "save");
    runner_close(&p->tried);
    open_tried(p);
    runner_ok(tsr_session_load(p->tried.session, NULL, 0, p->saved), "load");
    for (int s = 0; s < WINDOW_WALK_SEQS; s++) { /* the last token's logits may be wanted again */
        int64_t length = length_of(p, s), least = tsr_session_min_length(p->tried.session, s);
        assert_true(!whole || length == 0 || least < length);
    }
    check_pages(p);
}

static void step_resplit(pair *p)
{
    char split[128];
    float shares[TSR_MAX_DEVICES];
    int n;
    walk_random_split(&p->seed, p->n_devices, split, sizeof split);
    runner_ok(tsr_split_parse(split, shares, TSR_MAX_DEVICES, &n), split);
    runner_ok(tsr_model_resplit(p->tried.model, shares, n), split);
    snprintf(p->way.split, sizeof p->way.split, "%s", split);
    check_accounting(&p->tried);
}

static void take_step(pair *p)
{
    int kind = below(p, 20);
    if (kind < 12)
        step_append(p);
    else if (kind < 15)
        step_cut(p);
    else if (kind < 17)
        step_fork(p);
    else if (kind < 18)
        step_save_and_load(p);
    else if (kind < 19)
        step_resplit(p);
    else
        runner_ok(tsr_session_compact(p->tried.session), "compact");
}

/* One more token everywhere: whatever is left is read. */
static void go_on(pair *p)
{
    int32_t tokens[WINDOW_WALK_SEQS], seqs[WINDOW_WALK_SEQS];
    bool outputs[WINDOW_WALK_SEQS];
    for (int s = 0; s < WINDOW_WALK_SEQS; s++) {
        tokens[s] = below(p, N_VOCAB);
        seqs[s] = s;
        outputs[s] = true;
    }
    decode_both(p, &(tsr_batch){WINDOW_WALK_SEQS, tokens, seqs, outputs}, WINDOW_WALK_SEQS);
}

static void walk_once(pair *p)
{
    tsr_model_config config = base_config(p);
    config.session.swa_full = true;
    runner_open(&p->plain, p->path, p->family->plain, "1", &config);
    open_tried(p);
    for (int i = 0; i < p->walk->n_steps; i++)
        take_step(p);
    go_on(p);
    runner_close(&p->plain);
    runner_close(&p->tried);
    if (p->family->done)
        p->family->done(&p->way);
}

void window_walk_check(const way_family *family, const window_walk *plan)
{
    char path[DIRECTORY_PATH], saved[DIRECTORY_PATH];
    struct synth_arch arch = *plan->arch;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    for (struct synth_key *key = arch.keys; key->suffix; key++)
        if (strcmp(key->suffix, "attention.sliding_window") == 0)
            key->value = plan->window;
    config.arch = &arch;
    config.n_layers = 4;
    config.n_embd = 64;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.head_dim = 16;
    config.n_ff = 128;
    config.n_vocab = N_VOCAB;
    close(directory_new(path));
    close(directory_new(saved));
    synth_model_write(&config, path);
    pair p = {.family = family, .walk = plan, .path = path, .saved = saved, .seed = plan->seed};
    for (int i = 0; i < plan->rounds; i++)
        walk_once(&p);
    unlink(path);
    unlink(saved);
}
