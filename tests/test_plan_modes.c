/* Plans over modes: whole layers by time, groups of devices one after another, and "auto" choosing. What was
 * planned runs, with the same bits. Rates are given, so nothing depends on how fast this machine is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>
#include <tsr/plan.h>
#include <tsr/rates.h>

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N = 4, N_LAYERS = 8, N_TOKENS = 11, N_VOCAB = 320 };

typedef struct fixture {
    char path[DIRECTORY_PATH];
    tsr_gguf *gguf;
    tsr_device_desc descs[N];
    tsr_device_list list;
    tsr_device_rates rates[N];
    tsr_model_config config;
} fixture;

static fixture f;

static int set_up(void **state)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    (void)state;
    config.n_layers = N_LAYERS;
    config.n_embd = 256;
    config.n_heads = config.n_kv_heads = 8;
    config.n_ff = 128 * 8;
    config.n_vocab = N_VOCAB;
    config.weight_type = TSR_TYPE_F16;
    close(directory_new(f.path));
    synth_model_write(&config, f.path);
    runner_ok(tsr_gguf_open(f.path, NULL, &f.gguf), f.path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tsr_gguf_close(f.gguf);
    return unlink(f.path);
}

/* N equal devices; an all-reduce of all takes sync_ns. Without caps. */
static void machine(double sync_ns)
{
    for (int d = 0; d < N; d++) {
        f.descs[d] = (tsr_device_desc){.kind = TSR_DEVICE_HOST, .memory_total_bytes = (uint64_t)1 << 40};
        snprintf(f.descs[d].name, sizeof f.descs[d].name, "host%d", d);
        f.rates[d] =
            (tsr_device_rates){.op_ns = 1, .sync_ns = sync_ns, .sync_bytes_per_s = 1e15, .measured = true};
        for (int i = 0; i < TSR_RATE_TYPES; i++) {
            f.rates[d].read_bytes_per_s[i] = 1e9;
            f.rates[d].flops_per_s[i] = 1e15;
        }
    }
    f.list = (tsr_device_list){.n_devices = N, .devices = f.descs};
    f.config = tsr_model_config_default();
    f.config.plan.rates = f.rates;
    f.config.session.n_ctx = 64;
    f.config.session.n_batch = 16;
}

static void cap(int first, int end, size_t bytes)
{
    for (int d = first; d < end; d++)
        f.descs[d].mem_cap_bytes = bytes;
}

static tsr_plan *plan_of(tsr_split_mode mode)
{
    tsr_plan *plan;
    f.config.split.mode = mode;
    runner_ok(tsr_plan_create(f.gguf, &f.list, &f.config, &plan), tsr_split_mode_name(mode));
    return plan;
}

static size_t whole_bytes(void)
{
    tsr_plan *plan = plan_of(TSR_SPLIT_MODE_NONE);
    tsr_plan_device device;
    runner_ok(tsr_plan_get_device(plan, 0, &device), "device");
    tsr_plan_destroy(plan);
    return device.total_bytes;
}

static double decode_ns(const tsr_plan *plan)
{
    tsr_plan_times times;
    tsr_plan_predict(plan, &times);
    return times.decode.total_ns;
}

static tsr_split_mode mode_of(const tsr_plan *plan)
{
    tsr_plan_info info;
    tsr_plan_get_info(plan, &info);
    return info.mode;
}

static void check_caps(const tsr_plan *plan)
{
    for (int d = 0; d < N; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(plan, d, &device), "device");
        assert_true(device.total_bytes <= device.memory_cap);
    }
}

/* -- whole layers -- */

static void the_fastest_device_gets_all_layers_that_it_holds(void **state)
{
    (void)state;
    tsr_plan_stage stage;
    tsr_plan_times times;
    machine(1000);
    for (int i = 0; i < TSR_RATE_TYPES; i++)
        f.rates[2].read_bytes_per_s[i] = 3e9;
    tsr_plan *plan = plan_of(TSR_SPLIT_MODE_LAYER);
    assert_true(tsr_plan_stage_at(plan, 0, &stage) && !tsr_plan_stage_at(plan, 1, &stage));
    assert_int_equal(stage.devices, 4);
    assert_int_equal(mode_of(plan), TSR_SPLIT_MODE_LAYER);
    double unlimited = decode_ns(plan);
    tsr_plan_destroy(plan);

    cap(0, N, whole_bytes() * 6 / 10);
    plan = plan_of(TSR_SPLIT_MODE_LAYER);
    check_caps(plan);
    tsr_plan_predict(plan, &times);
    assert_true(times.automatic && times.proven);
    assert_true(times.decode.total_ns > unlimited);
    int64_t on_fastest = 0;
    for (int i = 0; tsr_plan_stage_at(plan, i, &stage); i++)
        on_fastest += stage.devices == 4 ? stage.n_layers : 0;
    assert_true(on_fastest >= N_LAYERS / 2);
    double by_time = decode_ns(plan);
    tsr_plan_destroy(plan);

    static const float even[N] = {1, 1, 1, 1};
    f.config.split.tensor_split = even;
    f.config.split.n_tensor_split = N;
    plan = plan_of(TSR_SPLIT_MODE_LAYER);
    assert_false(tsr_plan_stage_at(plan, N, &stage));
    assert_true(tsr_plan_stage_at(plan, N - 1, &stage));
    assert_true(decode_ns(plan) > by_time);
    tsr_plan_destroy(plan);
}

/* -- choosing -- */

/* Exchanges cost nothing: all devices share everything. They cost more than the model: one device alone, and
 * where it is too small whole layers. In between and short of memory: pairs, one after the other. */
static void auto_takes_the_mode_that_is_fastest(void **state)
{
    (void)state;
    tsr_plan_stage stage;
    machine(0);
    tsr_plan *plan = plan_of(TSR_SPLIT_MODE_AUTO);
    assert_int_equal(mode_of(plan), TSR_SPLIT_MODE_TENSOR);
    assert_true(tsr_plan_stage_at(plan, 0, &stage));
    assert_int_equal(stage.devices, 15);
    tsr_plan_destroy(plan);

    machine(1e9);
    plan = plan_of(TSR_SPLIT_MODE_AUTO);
    assert_int_equal(mode_of(plan), TSR_SPLIT_MODE_NONE);
    tsr_plan_destroy(plan);

    cap(0, N, whole_bytes() * 6 / 10);
    plan = plan_of(TSR_SPLIT_MODE_AUTO);
    check_caps(plan);
    assert_int_equal(mode_of(plan), TSR_SPLIT_MODE_LAYER);
    tsr_plan_destroy(plan);
}

/* Per layer, with W the time of one device and s an exchange of four: alone W, in pairs W / 2 + 2 s / 3, all
 * together W / 4 + 2 s. Pairs are best for s between 3 W / 16 and 3 W / 4. */
static void pairs(double *sync_ns)
{
    machine(0);
    tsr_plan *plan = plan_of(TSR_SPLIT_MODE_NONE);
    *sync_ns = 0.4 * decode_ns(plan) / N_LAYERS;
    tsr_plan_destroy(plan);
    machine(*sync_ns);
    cap(0, N, whole_bytes() * 4 / 10);
}

static void groups_go_one_after_another_where_that_is_fastest(void **state)
{
    (void)state;
    double sync_ns;
    tsr_plan_stage stage;
    tsr_plan_times times;
    pairs(&sync_ns);
    tsr_plan *plan = plan_of(TSR_SPLIT_MODE_AUTO);
    check_caps(plan);
    assert_int_equal(mode_of(plan), TSR_SPLIT_MODE_AUTO);
    int64_t layers = 0;
    int n = 0;
    for (; tsr_plan_stage_at(plan, n, &stage); n++) {
        assert_int_equal(stage.first_layer, layers);
        layers += stage.n_layers;
    }
    assert_int_equal(layers, N_LAYERS);
    assert_true(n >= 2);
    tsr_plan_predict(plan, &times);
    assert_true(times.automatic);
    assert_true(times.prompt.overlap_ns > 0 && times.decode.overlap_ns == 0);
    assert_true(times.decode.transfer_ns > 0 && times.prompt.transfer_ns > 0);
    double best = decode_ns(plan);
    tsr_plan_alternative other;
    int n_modes = 0;
    for (int i = 0; tsr_plan_alternative_at(plan, i, &other); i++) {
        if (!other.in_memory)
            continue;
        assert_true(strncmp(other.text, "auto", 4) != 0);
        assert_true(other.workload_ns >= times.workload_ns);
        n_modes++;
    }
    assert_int_equal(n_modes, 4); /* layer and tensor, none is too small; and for each phase alone */
    tsr_plan_destroy(plan);
    static const tsr_split_mode others[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER};
    for (int i = 0; i < 2; i++) {
        plan = plan_of(others[i]);
        assert_true(best < decode_ns(plan));
        tsr_plan_destroy(plan);
    }
}

/* A tensor_split is obeyed, and what cannot fit is said. */
static void auto_has_its_limits(void **state)
{
    (void)state;
    static const float even[N] = {1, 1, 1, 1};
    tsr_plan *plan = NULL;
    machine(1e9);
    f.config.split.tensor_split = even;
    f.config.split.n_tensor_split = N;
    plan = plan_of(TSR_SPLIT_MODE_AUTO);
    assert_int_equal(mode_of(plan), TSR_SPLIT_MODE_TENSOR);
    tsr_plan_destroy(plan);
    plan = NULL;
    machine(1000);
    cap(0, N, whole_bytes() / 8);
    f.config.split.mode = TSR_SPLIT_MODE_AUTO;
    assert_int_equal(tsr_plan_create(f.gguf, &f.list, &f.config, &plan), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "short"));
    assert_null(plan);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const tsr_split_mode modes[] = {TSR_SPLIT_MODE_LAYER, TSR_SPLIT_MODE_AUTO};
    double sync_ns;
    pairs(&sync_ns);
    for (int m = 0; m < 2; m++)
        for (int n = 1;; n += 1 + n / 16) {
            tsr_plan *plan = NULL;
            int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
            f.config.split.mode = modes[m];
            failing_alloc_set(n);
            tsr_status status = tsr_plan_create(f.gguf, &f.list, &f.config, &plan);
            bool fired = failing_alloc_fired();
            failing_alloc_set(0);
            assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
            tsr_plan_destroy(plan);
            assert_int_equal(failing_alloc_live(), blocks);
            assert_int_equal(failing_alloc_live_maps(), maps);
            if (!fired)
                break;
        }
}

/* -- running -- */

static void run(const char *devices, const char *split, const tsr_model_config *config, float *logits,
                tsr_split_mode *mode_out)
{
    int32_t tokens[N_TOKENS];
    runner r;
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 37 + 5) % N_VOCAB;
    runner_open(&r, f.path, devices, split, config);
    *mode_out = mode_of(tsr_model_plan(r.model));
    runner_decode(&r, tokens, N_TOKENS, 3, true, logits);
    runner_close(&r);
}

static void groups_give_the_same_bits_as_one_device(void **state)
{
    (void)state;
    static float one[N_TOKENS * N_VOCAB], groups[N_TOKENS * N_VOCAB];
    double sync_ns;
    char devices[64];
    tsr_split_mode mode;
    pairs(&sync_ns);
    snprintf(devices, sizeof devices, "host:4,threads=1,mem=%zu", f.descs[0].mem_cap_bytes);
    f.config.split.mode = TSR_SPLIT_MODE_AUTO;
    run(devices, "0,0,0,0", &f.config, groups, &mode);
    assert_int_equal(mode, TSR_SPLIT_MODE_AUTO);
    f.config.split.mode = TSR_SPLIT_MODE_NONE;
    run("host:1,threads=1", "1", &f.config, one, &mode);
    assert_memory_equal(one, groups, sizeof one);
}

/* From layer to layer go all residual streams, and the vector that their weights are made of. */
static void transfers_carry_all_residual_streams(void **state)
{
    (void)state;
    static const char path[] = "../shared/ref/hf/deepseek4/model.gguf";
    enum { N_EMBD = 64, N_STREAMS = 4 };
    tsr_gguf *gguf;
    tsr_plan *plan;
    tsr_plan_info info;
    tsr_plan_times times;
    if (access(path, R_OK) != 0) {
        printf("skipped: %s is missing\n", path);
        skip();
    }
    machine(0);
    for (int d = 0; d < N; d++)
        f.rates[d].sync_bytes_per_s = 1e9;
    f.config.split.mode = TSR_SPLIT_MODE_LAYER;
    f.config.split.tensor_split = (const float[]){1, 1, 0, 0};
    f.config.split.n_tensor_split = N;
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    runner_ok(tsr_plan_create(gguf, &f.list, &f.config, &plan), path);
    tsr_plan_get_info(plan, &info);
    tsr_plan_predict(plan, &times);
    assert_int_equal(info.n_transfers, 2);
    const double bytes = (double)(2 * N_STREAMS * N_EMBD) * sizeof(float);
    assert_float_equal(times.decode.transfer_ns, bytes / (N - 1), 1e-6);
    tsr_plan_destroy(plan);
    tsr_gguf_close(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_device_gets_all_layers_that_it_holds),
        cmocka_unit_test(auto_takes_the_mode_that_is_fastest),
        cmocka_unit_test(groups_go_one_after_another_where_that_is_fastest),
        cmocka_unit_test(auto_has_its_limits),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(groups_give_the_same_bits_as_one_device),
        cmocka_unit_test(transfers_carry_all_residual_streams),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
