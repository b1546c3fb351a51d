/* Any split at all: random groups of devices with random shares, and every block (embedding, attention and
 * FFN of each layer, output) in any of them. The logits have the bits of one device, and the bytes are those
 * that measuring devices count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/device.h"
#include "core/runtime.h"
#include "model/config.h"
#include "model/load.h"
#include "plan/dry_run.h"
#include "runtime/device_props.h"
#include "support/directory.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_DEVICES = 4, N_LAYERS = 3, MAX_GROUPS = 3, N_TOKENS = 9, N_VOCAB = 300, N_ROUNDS = 60 };

typedef struct fixture {
    char path[DIRECTORY_PATH];
    int32_t tokens[N_TOKENS];
    float plain[N_TOKENS * N_VOCAB];
    tsr_gguf *gguf;
    tsr_model_shape shape;
    tsr_runtime *rt;
    tsr_device_props props[N_DEVICES];
} fixture;

static tsr_model_config small_config(void)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = 64;
    config.session.n_batch = 4;
    config.session.n_outputs_max = 4;
    return config;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = small_config();
    uint64_t seed = 3;
    runner r;
    assert_non_null(f);
    model.n_layers = N_LAYERS;
    model.weight_type = TSR_TYPE_Q8_0;
    model.n_vocab = N_VOCAB;
    model.tied_output = true;
    close(directory_new(f->path));
    synth_model_write(&model, f->path);
    for (int i = 0; i < N_TOKENS; i++)
        f->tokens[i] = (int32_t)random_below(&seed, N_VOCAB);
    runner_open(&r, f->path, "host:1,threads=1", NULL, &config);
    runner_decode(&r, f->tokens, N_TOKENS, 1, true, f->plain);
    runner_close(&r);
    runner_ok(tsr_gguf_open(f->path, NULL, &f->gguf), f->path);
    runner_ok(tsr_model_shape_read(f->gguf, false, &f->shape), f->path);
    runtime_config.devices = "host:4,threads=1";
    runner_ok(tsr_runtime_open(&runtime_config, &f->rt), "runtime");
    for (int d = 0; d < N_DEVICES; d++)
        tsr_device_props_of(f->rt->devices[d], &f->props[d]);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    tsr_runtime_close(f->rt);
    tsr_gguf_close(f->gguf);
    unlink(f->path);
    free(f);
    return 0;
}

/* Granules for one group: all on one device, or over several with lopsided shares. */
static void random_counts(const fixture *f, uint64_t *seed, int64_t *counts)
{
    double shares[N_DEVICES] = {0};
    shares[random_below(seed, N_DEVICES)] = 1;
    for (int d = 0; d < N_DEVICES && random_below(seed, 2); d++)
        shares[d] += (double)random_below(seed, 4);
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        runner_ok(tsr_split_round(shares, N_DEVICES, f->shape.granules.n[c], NULL, counts + c * N_DEVICES),
                  "round");
}

static void drop_class(int64_t *counts, tsr_split_class_id id)
{
    memset(counts + id * N_DEVICES, 0, N_DEVICES * sizeof *counts);
}

static void random_split(const fixture *f, uint64_t *seed, tsr_model_split *split)
{
    static const double requested[N_DEVICES] = {1};
    int64_t counts[MAX_GROUPS][TSR_CLASS_COUNT * TSR_MAX_DEVICES] = {{0}};
    int attention[N_LAYERS], ffn[N_LAYERS], n_groups = 1 + (int)random_below(seed, MAX_GROUPS);
    bool has[MAX_GROUPS][TSR_CLASS_COUNT] = {{false}};
    tsr_split_layout layout = {.mode = TSR_SPLIT_MODE_TENSOR,
                               .n_devices = N_DEVICES,
                               .requested = requested,
                               .n_groups = n_groups,
                               .attention_group = attention,
                               .ffn_group = ffn,
                               .embedding_group = (int)random_below(seed, (uint64_t)n_groups),
                               .output_group = (int)random_below(seed, (uint64_t)n_groups)};
    for (int l = 0; l < N_LAYERS; l++) {
        attention[l] = (int)random_below(seed, (uint64_t)n_groups);
        ffn[l] = (int)random_below(seed, (uint64_t)n_groups);
        has[attention[l]][TSR_CLASS_ATTENTION] = has[ffn[l]][TSR_CLASS_FFN] = true;
    }
    has[layout.embedding_group][TSR_CLASS_OUTPUT] = has[layout.output_group][TSR_CLASS_OUTPUT] = true;
    for (int g = 0; g < n_groups; g++) {
        random_counts(f, seed, counts[g]);
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            if (!has[g][c] && random_below(seed, 2)) /* granules that no block asks for do no harm either */
                drop_class(counts[g], c);
    }
    layout.counts = (const int64_t(*)[TSR_CLASS_COUNT * TSR_MAX_DEVICES]) counts;
    runner_ok(tsr_model_split_create(&f->shape.hparams, &f->shape.granules, &layout, split), "split");
}

static void assert_accounting(const fixture *f, const tsr_measurement *m, int round)
{
    for (int d = 0; d < N_DEVICES; d++)
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            if (f->rt->devices[d]->used[o] != m->used[d][o])
                fail_msg("round %d, device %d: %zu bytes of %s, measured %zu", round, d,
                         f->rt->devices[d]->used[o], tsr_memory_owner_name((tsr_memory_owner)o),
                         m->used[d][o]);
}

static void every_block_may_be_anywhere(void **state)
{
    fixture *f = *state;
    uint64_t seed = 17;
    static float logits[N_TOKENS * N_VOCAB];
    for (int round = 0; round < N_ROUNDS; round++) {
        tsr_model_config config = small_config();
        tsr_planner planner = {.n_devices = N_DEVICES, .props = f->props, .shape = f->shape};
        tsr_model_split split = {0};
        tsr_measurement m = {0};
        runner r = {.rt = f->rt, .n_vocab = N_VOCAB};
        config.load.copy_weights = random_below(&seed, 2);
        runner_ok(tsr_planner_set_config(&planner, &config), "config");
        random_split(f, &seed, &split);
        runner_ok(tsr_measurement_create(&planner, &split, &m), "measure");
        runner_ok(tsr_model_load(f->rt, &f->shape, &planner.config, &split, NULL, &r.model), "load");
        runner_ok(tsr_session_create(r.model, &r.session), "session");
        assert_accounting(f, &m, round);
        memset(logits, 0xff, sizeof logits);
        runner_decode(&r, f->tokens, N_TOKENS, 1 + (int64_t)random_below(&seed, 4), true, logits);
        if (memcmp(logits, f->plain, sizeof logits) != 0)
            fail_msg("round %d: other bits", round);
        assert_accounting(f, &m, round);
        tsr_session_destroy(r.session);
        tsr_model_close(r.model);
        tsr_measurement_free(&m);
        tsr_model_split_free(&split);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_block_may_be_anywhere)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
