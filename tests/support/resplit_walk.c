/* See resplit_walk.h. */
#include "support/resplit_walk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/memory.h>
#include <tsr/plan.h>
#include <tsr/runtime.h>
#include <tsr/split.h>

#include "support/directory.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

char walk_model_path[DIRECTORY_PATH], walk_moe_path[DIRECTORY_PATH];

int walk_model_write(void **state)
{
    (void)state;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = 3;
    config.n_embd = 128;
    config.n_ff = 384;
    config.n_vocab = WALK_VOCAB;
    config.tokenizer = true;
    close(directory_new(walk_model_path));
    synth_model_write(&config, walk_model_path);
    config.n_experts = 5;
    close(directory_new(walk_moe_path));
    synth_model_write(&config, walk_moe_path);
    return 0;
}

int walk_model_remove(void **state)
{
    (void)state;
    return unlink(walk_model_path) | unlink(walk_moe_path);
}

tsr_model_config walk_config(void)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = WALK_CTX;
    config.session.n_seq_max = WALK_SEQS;
    config.session.n_batch = 16;
    config.session.n_sessions = WALK_SESSIONS;
    return config;
}

/* The same texts in every test. */
static int32_t token_at(int text, int64_t position)
{
    uint64_t seed = (uint64_t)text * 1000 + (uint64_t)position;
    return (int32_t)random_below(&seed, WALK_VOCAB);
}

static const char *path_of(const walk *w)
{
    return w->path ? w->path : walk_model_path;
}

static const float *plain_row(const walk *w, int text, int64_t position)
{
    return w->plain + (text * w->length + position) * WALK_VOCAB;
}

float *walk_make_plain(walk *w, const char *devices)
{
    float *plain = malloc(sizeof *plain * WALK_TEXTS * WALK_VOCAB * (size_t)w->length);
    int32_t tokens[WALK_LENGTH];
    tsr_model_config one = tsr_model_config_default();
    runner r;
    assert_non_null(plain);
    one.session.n_ctx = w->length;
    one.session.n_batch = 8;
    one.session.n_outputs_max = 8;
    one.session.type_k = w->config.session.type_k;
    one.session.type_v = w->config.session.type_v;
    runner_open(&r, path_of(w), devices, NULL, &one);
    for (int text = 0; text < WALK_TEXTS; text++) {
        for (int64_t i = 0; i < w->length; i++)
            tokens[i] = token_at(text, i);
        runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
        runner_decode(&r, tokens, w->length, 8, true, plain + text * w->length * WALK_VOCAB);
    }
    runner_close(&r);
    w->plain = plain;
    return plain;
}

/* -- a walk -- */

static int parse(const char *split, float *proportions)
{
    int n = 0;
    if (split)
        runner_ok(tsr_split_parse(split, proportions, TSR_MAX_DEVICES, &n), split);
    return n;
}

void walk_open(walk *w, const char *split)
{
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = w->config;
    float proportions[TSR_MAX_DEVICES];
    runtime_config.devices = w->devices;
    runner_ok(tsr_runtime_open(&runtime_config, &w->rt), w->devices);
    config.split.tensor_split = proportions;
    config.split.n_tensor_split = parse(split, proportions);
    runner_ok(tsr_model_open(w->rt, path_of(w), &config, &w->model), "open");
    for (int s = 0; s < WALK_SESSIONS; s++)
        runner_ok(tsr_session_create(w->model, &w->sessions[s]), "session");
}

void walk_close(walk *w)
{
    for (int s = 0; s < WALK_SESSIONS; s++)
        tsr_session_destroy(w->sessions[s]);
    tsr_model_close(w->model);
    tsr_runtime_close(w->rt);
}

tsr_status walk_resplit(walk *w, const char *split)
{
    float proportions[TSR_MAX_DEVICES];
    int n = parse(split, proportions);
    return tsr_model_resplit(w->model, split ? proportions : NULL, n);
}

/* Tokens that fit into a session in any case: n_ctx tokens in all. */
static int64_t room(const walk *w, int s)
{
    int64_t left = WALK_CTX;
    for (int q = 0; q < WALK_SEQS; q++)
        left -= tsr_session_length(w->sessions[s], q);
    return left;
}

static void append(walk *w, int s, int q, int64_t n)
{
    int32_t tokens[WALK_LENGTH], seqs[WALK_LENGTH];
    float row[WALK_VOCAB];
    int text = w->text[s][q];
    int64_t length = tsr_session_length(w->sessions[s], q);
    n = n < w->length - length ? n : w->length - length;
    n = n < room(w, s) ? n : room(w, s);
    if (n <= 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = token_at(text, length + i);
        seqs[i] = q;
    }
    tsr_batch batch = {.n_tokens = n, .tokens = tokens, .seqs = seqs};
    runner_ok(tsr_session_decode(w->sessions[s], &batch, row), "decode");
    if (memcmp(row, plain_row(w, text, length + n - 1), sizeof row) != 0)
        fail_msg("%s: session %d, sequence %d: other bits at position %lld", w->devices, s, q,
                 (long long)(length + n - 1));
}

void walk_step(walk *w, int n)
{
    for (; n > 0; n--) {
        int s = (int)random_below(&w->seed, WALK_SESSIONS), q = (int)random_below(&w->seed, WALK_SEQS);
        int to = (int)random_below(&w->seed, WALK_SEQS);
        int64_t length = tsr_session_length(w->sessions[s], q);
        switch (random_below(&w->seed, 8)) {
        case 0:
            if (tsr_session_length(w->sessions[s], to) == 0 && length <= room(w, s)) {
                runner_ok(tsr_session_fork(w->sessions[s], q, to), "fork");
                w->text[s][to] = w->text[s][q];
            }
            break;
        case 1:
            runner_ok(
                tsr_session_trim(w->sessions[s], q, (int64_t)random_below(&w->seed, (uint64_t)length + 1)),
                "trim");
            break;
        case 2:
            runner_ok(tsr_session_trim(w->sessions[s], q, 0), "remove");
            w->text[s][q] = (int)random_below(&w->seed, WALK_TEXTS);
            break;
        case 3:
            runner_ok(tsr_session_compact(w->sessions[s]), "compact");
            break;
        default:
            append(w, s, q, 1 + (int64_t)random_below(&w->seed, 50));
        }
    }
}

void walk_go_on(walk *w)
{
    for (int s = 0; s < WALK_SESSIONS; s++)
        for (int q = 0; q < WALK_SEQS; q++)
            append(w, s, q, 1);
}

void walk_check_accounting(const walk *w)
{
    const tsr_plan *plan = tsr_model_plan(w->model);
    for (int d = 0; d < tsr_runtime_n_devices(w->rt); d++) {
        tsr_device_info info;
        tsr_plan_device planned;
        runner_ok(tsr_runtime_device(w->rt, d, &info), "device");
        runner_ok(tsr_plan_get_device(plan, d, &planned), "planned device");
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            if (info.used[o] != planned.bytes[o])
                fail_msg("%s: %s holds %zu bytes of %s, planned were %zu", w->devices, info.name,
                         info.used[o], tsr_memory_owner_name((tsr_memory_owner)o), planned.bytes[o]);
    }
}

void walk_random_split(uint64_t *seed, int n_devices, char *text, size_t capacity)
{
    static const char *const choices[] = {"0", "0", "1", "1", "2", "3", "0.1", "17"};
    int sure = (int)random_below(seed, (uint64_t)n_devices);
    size_t used = 0;
    for (int d = 0; d < n_devices; d++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", d ? "," : "",
                                 d == sure ? "1" : choices[random_below(seed, 8)]);
}
