/* Plans without a tensor_split: shares by speed, devices left out, memory first; predicted times; rates from
 * descriptions and from measuring. Nothing depends on how fast this machine happens to be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/config.h>
#include <tsr/gguf.h>
#include <tsr/plan.h>
#include <tsr/rates.h>

#include "plan/cost/halves.h"
#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N = 3 };

typedef struct fixture {
    char path[DIRECTORY_PATH];
    tsr_gguf *gguf;
    tsr_device_desc descs[N];
    tsr_device_list list;
} fixture;

/* Three cards of 900, 900 and 300 GB/s, a model of 16 KV heads and 16 FFN granules. */
static int set_up(void **state)
{
    static fixture f;
    static const double speed[N] = {900e9, 900e9, 300e9};
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = 4;
    config.n_embd = 1024;
    config.n_heads = config.n_kv_heads = 14;
    config.n_ff = 128 * 28;
    config.header_only = true;
    close(directory_new(f.path));
    synth_model_write(&config, f.path);
    tsr_gguf_config header = tsr_gguf_config_default();
    header.header_only = true;
    runner_ok(tsr_gguf_open(f.path, &header, &f.gguf), f.path);
    for (int d = 0; d < N; d++) {
        f.descs[d] = (tsr_device_desc){.kind = TSR_DEVICE_CUDA,
                                       .gpu = d,
                                       .memory_total_bytes = (uint64_t)24 << 30,
                                       .memory_bytes_per_s = speed[d],
                                       .flops_per_s = 1e14,
                                       .link_bytes_per_s = 50e9};
        snprintf(f.descs[d].name, sizeof f.descs[d].name, "cuda%d", d);
    }
    f.list = (tsr_device_list){.n_devices = N, .devices = f.descs};
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tsr_gguf_close(f->gguf);
    return unlink(f->path);
}

/* Rates at which launches and exchanges cost nothing, so that shares follow speed alone. */
static void free_of_overheads(const fixture *f, tsr_device_rates *rates)
{
    tsr_device_rates_guess(f->descs, N, rates);
    for (int d = 0; d < N; d++)
        rates[d].op_ns = rates[d].sync_ns = 0;
}

static tsr_plan *plan_of(const fixture *f, const tsr_model_config *config)
{
    tsr_plan *plan;
    runner_ok(tsr_plan_create(f->gguf, &f->list, config, &plan), "plan");
    return plan;
}

static tsr_plan_device device_of(const tsr_plan *plan, int d)
{
    tsr_plan_device device;
    runner_ok(tsr_plan_get_device(plan, d, &device), "device");
    return device;
}

static void shares_follow_speed(void **state)
{
    const fixture *f = *state;
    tsr_device_rates rates[N];
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_times times;
    free_of_overheads(f, rates);
    config.plan.rates = rates;
    config.session.n_ctx = 256;
    config.workload.n_prompt = 0;
    tsr_plan *plan = plan_of(f, &config);
    static const int64_t attention[N] = {6, 6, 2}, ffn[N] = {12, 12, 4};
    for (int d = 0; d < N; d++) {
        assert_int_equal(device_of(plan, d).granules[TSR_CLASS_ATTENTION], attention[d]);
        assert_int_equal(device_of(plan, d).granules[TSR_CLASS_FFN], ffn[d]);
    }
    tsr_plan_predict(plan, &times);
    assert_true(times.automatic);
    assert_true(times.proven && times.known);
    assert_false(times.measured);
    tsr_plan_destroy(plan);
}

/* A tensor_split is obeyed; all zeros are none. */
static void a_tensor_split_is_not_improved_on(void **state)
{
    const fixture *f = *state;
    static const float even[] = {1, 1, 1}, zeros[] = {0, 0, 0};
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_times times;
    config.split.tensor_split = even;
    config.split.n_tensor_split = N;
    tsr_plan *plan = plan_of(f, &config);
    tsr_plan_predict(plan, &times);
    assert_false(times.automatic);
    assert_int_equal(device_of(plan, 2).granules[TSR_CLASS_ATTENTION], 4);
    double by_hand = times.decode.total_ns;
    tsr_plan_destroy(plan);
    config.split.tensor_split = zeros;
    plan = plan_of(f, &config);
    tsr_plan_predict(plan, &times);
    assert_true(times.automatic);
    assert_true(times.decode.total_ns < by_hand);
    tsr_plan_destroy(plan);
}

static void a_device_that_slows_the_rest_is_left_out(void **state)
{
    const fixture *f = *state;
    tsr_device_rates rates[N];
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_alternative with;
    bool found = false;
    tsr_plan_times times;
    free_of_overheads(f, rates);
    rates[2].op_ns = 1e6;
    config.plan.rates = rates;
    tsr_plan *plan = plan_of(f, &config);
    tsr_plan_predict(plan, &times);
    assert_false(device_of(plan, 2).used);
    assert_true(device_of(plan, 0).used && device_of(plan, 1).used);
    assert_non_null(strstr(tsr_plan_note(plan, 0), "cuda2 is left out"));
    for (int i = 0; tsr_plan_alternative_at(plan, i, &with) && !found; i++)
        found = strcmp(with.text, "with cuda2") == 0;
    assert_true(found);
    assert_non_null(strstr(tsr_plan_note(plan, 0), "with it 512 tokens in and 128 out are"));
    assert_true(with.workload_ns > times.workload_ns);
    tsr_plan_destroy(plan);
}

/* A card that multiplies slowly helps decoding, and is left out where the prompt is long. */
static void the_split_depends_on_the_workload(void **state)
{
    const fixture *f = *state;
    tsr_device_rates rates[N];
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_times times[2];
    bool used[2];
    free_of_overheads(f, rates);
    for (int i = 0; i < TSR_RATE_TYPES; i++)
        rates[2].flops_per_s[i] = 1e12;
    config.plan.rates = rates;
    for (int i = 0; i < 2; i++) {
        config.workload.n_prompt = i ? 4096 : 1;
        config.workload.n_new = i ? 1 : 4096;
        tsr_plan *plan = plan_of(f, &config);
        tsr_plan_predict(plan, &times[i]);
        used[i] = device_of(plan, 2).used;
        tsr_plan_destroy(plan);
    }
    assert_true(used[0] && !used[1]);
    assert_true(times[0].decode.total_ns < times[1].decode.total_ns);
    double n_steps = 4096.0 / (double)times[1].prompt.n_tokens;
    assert_true(times[1].workload_ns > n_steps * times[1].prompt.total_ns);
}

/* By the plan's own rates nothing that it lists is faster. */
static void no_alternative_is_faster(void **state)
{
    const fixture *f = *state;
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_alternative other;
    tsr_plan_times times;
    tsr_plan *plan = plan_of(f, &config);
    tsr_plan_predict(plan, &times);
    int n = 0;
    for (; tsr_plan_alternative_at(plan, n, &other); n++)
        assert_true(other.workload_ns >= times.workload_ns * (1 - 1e-12));
    assert_true(n >= 3);
    assert_false(tsr_plan_alternative_at(plan, -1, &other));
    tsr_plan_destroy(plan);
}

/* By hand: the second sum ends 1 after the second half's work; slower sums follow each other. */
static void halves_hide_all_but_the_ends_of_sums(void **state)
{
    (void)state;
    assert_true(tsr_halves_ns(&(tsr_half_segment){2, 1}, 1, 1) == 5);
    assert_true(tsr_halves_ns(&(tsr_half_segment){2, 1}, 1, 10) == 41);
    assert_true(tsr_halves_ns(&(tsr_half_segment){1, 3}, 1, 10) == 61);
    assert_true(tsr_halves_ns((tsr_half_segment[]){{2, 0}, {1, 0}}, 2, 5) == 30);
}

/* All-reduces of a prompt's chunk between two cards: their time, and what of it is not hidden. */
static void sums_of_prompts_run_beside_work(void **state)
{
    const fixture *f = *state;
    static const float pair[] = {1, 1, 0};
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_times times;
    config.split.tensor_split = pair;
    config.split.n_tensor_split = N;
    config.session.n_ctx = 4096;
    for (int64_t n_batch = 2048; n_batch >= 256; n_batch /= 2) {
        config.session.n_batch = config.workload.n_prompt = n_batch;
        tsr_plan *plan = plan_of(f, &config);
        tsr_plan_predict(plan, &times);
        const tsr_plan_phase *prompt = &times.prompt;
        double sync_ns = 0, work_ns = 0;
        for (int c = 0; c < TSR_CLASS_COUNT; c++) {
            sync_ns += prompt->repeats[c] * prompt->sync_ns[c];
            work_ns += prompt->repeats[c] * prompt->work_ns[c];
        }
        print_message("%d tokens: work %.0f us, all-reduces %.0f us, not hidden %.0f us\n", (int)n_batch,
                      work_ns / 1e3, sync_ns / 1e3, (sync_ns - prompt->overlap_ns) / 1e3);
        assert_float_equal(work_ns + sync_ns - prompt->overlap_ns, prompt->total_ns, 1e-6 * work_ns);
        assert_true(n_batch > 256 ? prompt->overlap_ns > 0 && prompt->overlap_ns < sync_ns
                                  : prompt->overlap_ns == 0);
        assert_true(times.decode.overlap_ns == 0);
        tsr_plan_destroy(plan);
    }
}

static double decode_ns(const fixture *f, const tsr_device_rates *rates)
{
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_times times;
    config.plan.rates = rates;
    tsr_plan *plan = plan_of(f, &config);
    tsr_plan_predict(plan, &times);
    tsr_plan_destroy(plan);
    return times.decode.total_ns;
}

/* IQ3_S is not measured: it has the rate of IQ2_XS, not that of Q4_K. */
static void types_with_code_books_share_a_rate(void **state)
{
    fixture f = *(fixture *)*state;
    tsr_device_rates rates[N];
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.weight_type = TSR_TYPE_IQ3_S;
    model.n_embd = 1024;
    model.n_heads = model.n_kv_heads = 16;
    model.n_ff = 4096;
    model.header_only = true;
    close(directory_new(f.path));
    synth_model_write(&model, f.path);
    tsr_gguf_config header = tsr_gguf_config_default();
    header.header_only = true;
    runner_ok(tsr_gguf_open(f.path, &header, &f.gguf), f.path);
    free_of_overheads(&f, rates);
    const double before = decode_ns(&f, rates);
    for (int d = 0; d < N; d++)
        rates[d].read_bytes_per_s[tsr_rate_index(TSR_TYPE_Q4_K)] /= 4;
    assert_true(decode_ns(&f, rates) == before);
    for (int d = 0; d < N; d++)
        rates[d].read_bytes_per_s[tsr_rate_index(TSR_TYPE_IQ2_XS)] /= 4;
    assert_true(decode_ns(&f, rates) > 2 * before);
    tsr_gguf_close(f.gguf);
    unlink(f.path);
}

/* A fast card that is too small for its share gives granules away; one too small for anything is left out. */
static void memory_comes_first(void **state)
{
    fixture f = *(fixture *)*state;
    tsr_model_config config = tsr_model_config_default();
    tsr_device_rates rates[N];
    free_of_overheads(&f, rates);
    config.plan.rates = rates;
    config.session.n_ctx = 256;
    f.list.devices = f.descs;
    tsr_plan *plan = plan_of(&f, &config);
    size_t whole = device_of(plan, 0).total_bytes;
    tsr_plan_destroy(plan);
    for (int percent = 90; percent >= 60; percent -= 10) {
        f.descs[0].mem_cap_bytes = whole * (size_t)percent / 100;
        plan = plan_of(&f, &config);
        assert_true(device_of(plan, 0).used);
        assert_true(device_of(plan, 0).total_bytes <= f.descs[0].mem_cap_bytes);
        tsr_plan_destroy(plan);
    }
    f.descs[0].mem_cap_bytes = 100000;
    plan = plan_of(&f, &config);
    assert_false(device_of(plan, 0).used);
    assert_true(device_of(plan, 1).used && device_of(plan, 2).used);
    tsr_plan_destroy(plan);
}

static void append(const char *text, void *user)
{
    char *to = user;
    snprintf(to + strlen(to), 8192 - strlen(to), "%s", text);
}

static void the_explanation_names_parts_devices_and_layouts(void **state)
{
    const fixture *f = *state;
    static const char *const words[] = {
        "decode, 1 token", "prompt, 256 tokens", "attention",    "ffn",         "output",      "cuda2",
        "this plan",       "even shares",        "whole layers", "all-reduce)", "not measured"};
    static char text[8192];
    static const float even[] = {1, 1, 1};
    tsr_model_config config = tsr_model_config_default();
    config.split.tensor_split = even;
    config.split.n_tensor_split = N;
    tsr_plan *plan = plan_of(f, &config);
    text[0] = '\0';
    tsr_plan_explain(plan, append, text);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(text, words[i]))
            fail_msg("no \"%s\" in:\n%s", words[i], text);
    tsr_plan_destroy(plan);
}

static void unknown_rates_are_refused(void **state)
{
    const fixture *f = *state;
    tsr_device_rates rates[N];
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *plan = NULL;
    memset(rates, 0, sizeof rates);
    config.plan.rates = rates;
    assert_int_equal(tsr_plan_create(f->gguf, &f->list, &config, &plan), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "rate"));
    assert_null(plan);
}

/* What the caller chose needs no rates; there is only nothing to predict by. */
static void a_choice_of_the_caller_needs_no_rates(void **state)
{
    const fixture *f = *state;
    static const float even[] = {1, 1, 1};
    static char text[8192];
    static const tsr_split_mode modes[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER, TSR_SPLIT_MODE_NONE};
    tsr_device_rates rates[N];
    tsr_plan_alternative other;
    tsr_plan_times times;
    memset(rates, 0, sizeof rates);
    for (int m = 0; m < 3; m++) {
        tsr_model_config config = tsr_model_config_default();
        config.plan.rates = rates;
        config.split.mode = modes[m];
        config.split.tensor_split = even;
        config.split.n_tensor_split = N;
        tsr_plan *plan = plan_of(f, &config);
        tsr_plan_predict(plan, &times);
        assert_false(times.known || times.automatic || times.measured);
        assert_true(times.decode.total_ns == 0 && times.prompt.total_ns == 0);
        assert_false(tsr_plan_alternative_at(plan, 0, &other));
        text[0] = '\0';
        tsr_plan_explain(plan, append, text);
        assert_non_null(strstr(text, "not predicted"));
        tsr_plan_destroy(plan);
    }
}

/* -- measuring -- */

static void measured_rates_are_there_and_leave_nothing(void **state)
{
    (void)state;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_device_rates rates[2];
    tsr_device_info info;
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_Q8_0};
    tsr_runtime *rt;
    config.devices = "host:2,threads=1,mem=64MiB";
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    runner_ok(tsr_runtime_measure(rt, types, 2, rates), "measure");
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < TSR_RATE_TYPES; i++) {
            bool wanted = tsr_rate_type(i) == TSR_TYPE_F16 || tsr_rate_type(i) == TSR_TYPE_Q8_0;
            assert_int_equal(tsr_rate_index(tsr_rate_type(i)), i);
            assert_int_equal(rates[d].read_bytes_per_s[i] > 0, wanted);
            assert_int_equal(rates[d].flops_per_s[i] > 0, wanted);
            assert_int_equal(rates[d].byte_flops_per_s[i] > 0, wanted);
        }
        assert_true(rates[d].measured && rates[d].op_ns > 0 && rates[d].sync_ns >= 0);
        assert_true(rates[d].sync_bytes_per_s > 0);
        runner_ok(tsr_runtime_device(rt, d, &info), "device");
        assert_int_equal(info.used[TSR_MEMORY_OTHER], 0);
    }
    static const tsr_type integers[] = {TSR_TYPE_I32};
    assert_int_equal(tsr_runtime_measure(rt, integers, 1, rates), TSR_ERR_INVALID);
    assert_int_equal(tsr_rate_index(TSR_TYPE_I64), -1);
    tsr_runtime_close(rt);
}

static void a_device_without_room_cannot_be_measured(void **state)
{
    (void)state;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_device_rates rates[2];
    tsr_runtime *rt;
    config.devices = "host:1,host:1,mem=1MiB";
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    assert_int_equal(tsr_runtime_measure(rt, NULL, 0, rates), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "host1"));
    tsr_runtime_close(rt);
}

static void measuring_survives_any_failing_allocation(void **state)
{
    (void)state;
    tsr_runtime_config config = tsr_runtime_config_default();
    static const tsr_type types[] = {TSR_TYPE_Q8_0};
    tsr_runtime *rt;
    config.devices = "host:2,threads=1,mem=64MiB";
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    for (int n = 1;; n += 1 + n / 8) { /* a whole measurement takes its time */
        tsr_device_rates rates[2];
        int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        failing_alloc_set(n);
        tsr_status status = tsr_runtime_measure(rt, types, 1, rates);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        if (!fired)
            break;
    }
    tsr_runtime_close(rt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_follow_speed),
        cmocka_unit_test(a_tensor_split_is_not_improved_on),
        cmocka_unit_test(a_device_that_slows_the_rest_is_left_out),
        cmocka_unit_test(the_split_depends_on_the_workload),
        cmocka_unit_test(no_alternative_is_faster),
        cmocka_unit_test(halves_hide_all_but_the_ends_of_sums),
        cmocka_unit_test(sums_of_prompts_run_beside_work),
        cmocka_unit_test(types_with_code_books_share_a_rate),
        cmocka_unit_test(memory_comes_first),
        cmocka_unit_test(the_explanation_names_parts_devices_and_layouts),
        cmocka_unit_test(unknown_rates_are_refused),
        cmocka_unit_test(a_choice_of_the_caller_needs_no_rates),
        cmocka_unit_test(measured_rates_are_there_and_leave_nothing),
        cmocka_unit_test(a_device_without_room_cannot_be_measured),
        cmocka_unit_test(measuring_survives_any_failing_allocation),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
