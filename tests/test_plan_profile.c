/* What predicted times count besides matrices: collectives and operations of a step, states of recurrent
 * layers, keys and values that layers share or select, matrices that are whole on every device. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "plan/cost/step.h"
#include "plan/planner_init.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N = 2, N_CTX = 256 };

/* A model on two equal devices that read a byte in a nanosecond, multiply at no cost, and take 1 ms for an
 * all-reduce and 1 us for its byte. */
typedef struct fixture {
    tsr_gguf *gguf;
    tsr_device_desc descs[N];
    tsr_device_rates rates[N];
    tsr_planner planner;
    tsr_model_cost cost; /* of one token */
} fixture;

static void open_model(fixture *f, const char *path)
{
    tsr_model_config config = tsr_model_config_default();
    tsr_device_list list = {.n_devices = N, .devices = f->descs};
    tsr_gguf_config header = tsr_gguf_config_default();
    header.header_only = true;
    *f = (fixture){0};
    runner_ok(tsr_gguf_open(path, &header, &f->gguf), path);
    for (int d = 0; d < N; d++) {
        f->descs[d] =
            (tsr_device_desc){.kind = TSR_DEVICE_CUDA, .gpu = d, .memory_total_bytes = (uint64_t)1 << 34};
        snprintf(f->descs[d].name, sizeof f->descs[d].name, "cuda%d", d);
    }
    tsr_device_rates_guess(f->descs, N, f->rates);
    for (int d = 0; d < N; d++) {
        for (int i = 0; i < TSR_RATE_TYPES; i++) {
            f->rates[d].read_bytes_per_s[i] = 1e9;
            f->rates[d].flops_per_s[i] = 1e30;
        }
        f->rates[d].op_ns = 0;
        f->rates[d].sync_ns = 1e6;
        f->rates[d].sync_bytes_per_s = 1e6;
    }
    config.session.n_ctx = N_CTX;
    config.plan.rates = f->rates;
    runner_ok(tsr_planner_init_for_list(f->gguf, &list, &config, &f->planner), path);
    runner_ok(tsr_model_cost_init(&f->planner, 1, 1, &f->cost), "the cost of a step");
}

static void close_model(fixture *f)
{
    tsr_planner_free(&f->planner);
    tsr_gguf_close(f->gguf);
}

static void open_synthetic(fixture *f, const char *architecture)
{
    char path[DIRECTORY_PATH];
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = 3;
    for (size_t i = 0; architecture && i < n_synth_archs; i++)
        if (strcmp(synth_archs[i].name, architecture) == 0)
            config.arch = &synth_archs[i];
    close(directory_new(path));
    synth_model_write(&config, path);
    open_model(f, path);
    unlink(path);
}

static bool open_recorded(fixture *f, const char *folder)
{
    char path[128];
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", folder);
    if (access(path, R_OK) != 0) {
        printf("skipped: %s is missing\n", path);
        return false;
    }
    open_model(f, path);
    return true;
}

static int count_of(const fixture *f, tsr_split_class_id c, bool gathers, int64_t n_elems)
{
    for (int i = 0; i < f->planner.profile.n_collectives; i++) {
        const tsr_step_collective *one = &f->planner.profile.collectives[i];
        if (one->class_id == c && one->gathers == gathers && one->n_elems == n_elems)
            return one->n;
    }
    return 0;
}

static void check_near(double is, double should)
{
    if (!(fabs(is - should) <= 1e-9 * fabs(should)))
        fail_msg("%.9g instead of %.9g", is, should);
}

static double sync_of(fixture *f, tsr_split_class_id c)
{
    return tsr_cost_sync(&f->cost.problem, tsr_device_set_all(N), c);
}

/* The time of an all-reduce of n 8-byte numbers. */
static double sum_ns(double n)
{
    return 1e6 + 1e3 * 8 * n;
}

static void a_llama_has_two_sums_in_a_layer(void **state)
{
    (void)state;
    static fixture f;
    open_synthetic(&f, NULL);
    assert_int_equal(f.planner.profile.n_collectives, 3);
    assert_int_equal(count_of(&f, TSR_CLASS_ATTENTION, false, 256), 3);
    assert_int_equal(count_of(&f, TSR_CLASS_FFN, false, 256), 3);
    assert_int_equal(count_of(&f, TSR_CLASS_OUTPUT, false, 256), 1);
    assert_int_equal(f.planner.profile.n_ops[TSR_CLASS_ATTENTION], 3 * 6 + 1); /* rows with outputs */
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        check_near(sync_of(&f, c), sum_ns(256));
    close_model(&f);
}

static void norms_over_all_heads_have_two_small_sums(void **state)
{
    (void)state;
    static fixture f;
    open_synthetic(&f, "olmo2");
    assert_int_equal(count_of(&f, TSR_CLASS_ATTENTION, false, 2), 2 * 3);
    check_near(sync_of(&f, TSR_CLASS_ATTENTION), sum_ns(256) + 2 * sum_ns(2));
    check_near(sync_of(&f, TSR_CLASS_FFN), sum_ns(256));
    close_model(&f);
}

/* Bytes of the matrices of a class's blocks, half of what is divided and all of what is whole. */
static double bytes_of(const fixture *f, tsr_block block)
{
    double bytes = 0;
    for (int i = 0; i < f->planner.weights.n; i++) {
        const tsr_weight *w = f->planner.weights.list[i];
        if (tsr_weight_block(w) == block && w->source->ne[1] > 1)
            bytes += (double)w->source->bytes / (tsr_weight_class(w) == TSR_CLASS_COUNT ? 1 : 2);
    }
    return bytes;
}

/* Of a step, on one of two devices with half of the granules. */
static double step_ns(const fixture *f, tsr_split_class_id c)
{
    const tsr_cost_class *k = &f->cost.classes[c];
    return k->repeats * (k->fixed_ns[0] + (double)k->n_granules / 2 * k->granule_ns[0]);
}

/* Four of six layers are recurrent: 4 value heads, for 2 key heads, of 16 x 16, after convolutions over 4
 * tokens. Values of a key head are no neighbours, so they are gathered. */
static void recurrent_layers_read_states_and_gather_values(void **state)
{
    (void)state;
    static fixture f;
    if (!open_recorded(&f, "qwen35"))
        skip();
    const double n_elems = 4 * 16 * 16 + 3 * (2 * 2 * 16 + 4 * 16), n_heads = 2 * 32;
    const double states = 4 * 2 * 4 * n_elems, kv = 2 * N_CTX / 2 * n_heads * (2 + 2);
    assert_int_equal(count_of(&f, TSR_CLASS_ATTENTION, true, 4 * 16), 4);
    check_near(step_ns(&f, TSR_CLASS_ATTENTION), bytes_of(&f, TSR_BLOCK_ATTENTION) + (states + kv) / 2);
    const double gather_ns = 1e6 + 1e3 * 4 * (4 * 16 / 2);
    check_near(6 * sync_of(&f, TSR_CLASS_ATTENTION),
               6 * sum_ns((double)f.planner.shape.hparams.n_embd) + 4 * gather_ns);
    close_model(&f);
}

/* Every layer reads an embedding of 16 elements, by two matrices of its own and a part of one for all. The
 * last two of six layers read keys and values of others. Layers with a window of 16 have heads of 16, the
 * others of 32. */
static void embeddings_per_layer_are_summed_up_and_multiplied(void **state)
{
    (void)state;
    static fixture f;
    if (!open_recorded(&f, "gemma4-e"))
        skip();
    const double kv = 3 * (16.0 * 2 * 16 + N_CTX / 2 * 2 * 32) * (2 + 2);
    assert_int_equal(count_of(&f, TSR_CLASS_OUTPUT, false, 6 * 16), 1);
    assert_int_equal(count_of(&f, TSR_CLASS_OUTPUT, false, 64), 1);
    check_near(sync_of(&f, TSR_CLASS_OUTPUT), sum_ns(64) + sum_ns(6 * 16));
    check_near(step_ns(&f, TSR_CLASS_ATTENTION), bytes_of(&f, TSR_BLOCK_ATTENTION) + kv / 2);
    check_near(step_ns(&f, TSR_CLASS_FFN), bytes_of(&f, TSR_BLOCK_FFN));
    const tsr_tensor *proj = f.planner.weights.layer_proj, *output = f.planner.weights.output;
    check_near(step_ns(&f, TSR_CLASS_OUTPUT),
               4.0 * (double)(proj->ne[0] * proj->ne[1]) + 4.0 * (double)(output->ne[0] * output->ne[1]) / 2);
    close_model(&f);
}

/* After the first of five layers, tokens see 4 blocks of 8 positions. Two KV heads of 32 are divided; the
 * index, keys of 64 elements of all positions, is not. */
static void selected_positions_are_read_after_an_index(void **state)
{
    (void)state;
    static fixture f;
    if (!open_recorded(&f, "minimax-m3"))
        skip();
    const double kv = (N_CTX / 2 + 4 * 4 * 8) * 2 * 32 * (2 + 2), index = 4 * N_CTX / 2 * 64 * 2;
    check_near(step_ns(&f, TSR_CLASS_ATTENTION), bytes_of(&f, TSR_BLOCK_ATTENTION) + kv / 2 + index);
    close_model(&f);
}

/* Two of four layers have an index; the others see the positions that these have selected. Devices have rows
 * of 32 + 16 elements whole. Tokens see 16 positions each, so ten of a prompt read all 128. */
static void selections_serve_the_layers_behind_them(void **state)
{
    (void)state;
    static fixture f;
    static tsr_model_cost prompt;
    if (!open_recorded(&f, "glm-dsa"))
        skip();
    const double rows = 4 * 16 * (32 + 16) * 2, all_rows = rows / 16 * N_CTX / 2,
                 index = 2 * N_CTX / 2 * 64 * 2;
    check_near(step_ns(&f, TSR_CLASS_ATTENTION), bytes_of(&f, TSR_BLOCK_ATTENTION) + rows + index);
    runner_ok(tsr_model_cost_init(&f.planner, 10, 1, &prompt), "the cost of a prompt");
    f.cost = prompt;
    check_near(step_ns(&f, TSR_CLASS_ATTENTION), bytes_of(&f, TSR_BLOCK_ATTENTION) + all_rows + index);
    close_model(&f);
}

/* Two KV heads of 16, beside them Mamba-2: 6 heads of 16 x 16 in 2 groups, behind a convolution over 4
 * tokens. Whether groups are divided or heads, keys and queries are those of the groups. */
static void both_mixers_of_a_layer_count(void **state)
{
    (void)state;
    static const char *const folders[] = {"falcon-h1", "falcon-h1-norm"};
    for (int i = 0; i < 2; i++) {
        static fixture f;
        if (!open_recorded(&f, folders[i]))
            skip();
        const double n_elems = 6 * 16 * 16 + 3 * (6 * 16 + 2 * 2 * 16);
        const double states = 4 * 2 * 4 * n_elems, kv = 4 * N_CTX / 2 * 2 * 16 * (2 + 2);
        check_near(step_ns(&f, TSR_CLASS_ATTENTION), bytes_of(&f, TSR_BLOCK_ATTENTION) + (states + kv) / 2);
        close_model(&f);
    }
}

/* What experts add up in a latent space is summed before the second matrix leads out of it. */
static void latent_experts_have_a_sum_of_their_own(void **state)
{
    (void)state;
    static fixture f;
    if (!open_recorded(&f, "nemotron_h_moe-latent"))
        skip();
    const tsr_hparams *hp = &f.planner.shape.hparams;
    int n_mixtures = 0;
    for (int64_t l = 0; l < hp->n_layers; l++)
        n_mixtures += tsr_hparams_layer(hp, l)->ffn == TSR_FFN_EXPERTS;
    assert_true(n_mixtures > 0 && hp->n_expert_embd < hp->n_embd);
    assert_int_equal(count_of(&f, TSR_CLASS_FFN, false, hp->n_expert_embd), n_mixtures);
    close_model(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_llama_has_two_sums_in_a_layer),
        cmocka_unit_test(norms_over_all_heads_have_two_small_sums),
        cmocka_unit_test(recurrent_layers_read_states_and_gather_values),
        cmocka_unit_test(embeddings_per_layer_are_summed_up_and_multiplied),
        cmocka_unit_test(both_mixers_of_a_layer_count),
        cmocka_unit_test(latent_experts_have_a_sum_of_their_own),
        cmocka_unit_test(selected_positions_are_read_after_an_index),
        cmocka_unit_test(selections_serve_the_layers_behind_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
