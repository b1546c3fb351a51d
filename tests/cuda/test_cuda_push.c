/* Sums whose parts are pushed into inboxes, in the devices' memory and in pinned host memory: of groups of
 * devices in turn, in several rounds, of words that look like an empty place; models on GPUs without peer
 * access; and that opening fails cleanly. What all collectives have in common is in
 * test_cuda_collectives.c. */
#include "comm/select.h"
#include "core/runtime.h"
#include "cuda/nccl_run.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

#include <unistd.h>

#include <tsr/runtime.h>

static const tsr_peer_form forms[] = {TSR_PEER_PUSH, TSR_PEER_PINNED};

static group open_form(int n, bool shared, tsr_peer_form form)
{
    group g = group_of(n, shared);
    tsr_device_set reach[MAX_RANKS];
    if (form == TSR_PEER_PINNED)
        tsr_cuda_peers_waiting(g.devices, n, reach);
    else
        ok(tsr_cuda_peers_test(g.devices, n, NULL, reach));
    ok(tsr_comm_peer_create(g.devices, n, reach, form, &g.comm));
    g.timeout_ns = 60000 * (uint64_t)MS;
    return g;
}

/* Pairs of devices have met equally often, blocks have not, and devices without a part may be late. */
static void groups_of_devices_take_turns(void **state)
{
    (void)state;
    static const sum made[] = {
        {TSR_REDUCE_EXACT, 0xf, 0xf, 3000, false}, {TSR_REDUCE_EXACT, 0x3, 0x3, 5, true},
        {TSR_REDUCE_F32, 0xe, 0xa, 2049, false},   {TSR_REDUCE_EXACT, 0x9, 0x8, 700, false},
        {TSR_REDUCE_BF16, 0xf, 0x5, 90001, false}, {TSR_REDUCE_EXACT, 0xf, 0x4, 40000, false},
    };
    enum { N = sizeof made / sizeof *made, RUNS = 4 };
    for (int k = 0; k < 4; k++) {
        sum sums[N];
        cudasim_config sim = CUDASIM_CONFIG_INIT;
        sim.n_devices = k == 1 ? 1 : 4;
        sim.seed = (uint64_t)k;
        cudasim_configure(&sim);
        group g = open_form(4, k == 1, forms[k % 2]);
        memcpy(sums, made, sizeof made);
        for (int i = 0; i < N; i++)
            sum_make(&g, &sums[i]);
        group_compile(&g);
        for (uint64_t run = 0; run < RUNS; run++) {
            for (int i = 0; i < N; i++)
                sum_fill(&g, &sums[i], 10 * run + (uint64_t)i);
            ok(group_run(&g));
            for (int i = 0; i < N; i++)
                sum_check(&g, &sums[i], 10 * run + (uint64_t)i);
        }
        group_close(&g);
        nothing_is_left();
    }
}

/* All bits set: -2^-28 and NaNs. Two elements of f32 or four of BF16 are a word. */
static void words_that_look_empty_arrive(void **state)
{
    (void)state;
    enum { ELEMENTS = 70 };
    static const tsr_reduce_type types[] = {TSR_REDUCE_EXACT, TSR_REDUCE_F32, TSR_REDUCE_BF16};
    unsigned char ones[ELEMENTS * sizeof(int64_t)];
    float y[ELEMENTS];
    memset(ones, 0xff, sizeof ones);
    for (int k = 0; k < 6; k++) {
        sum s = {types[k / 2], 0x3, 0x3, ELEMENTS, false};
        machine(2, (uint64_t)k);
        group g = open_form(2, false, forms[k % 2]);
        sum_make(&g, &s);
        group_compile(&g);
        for (int d = 0; d < 2; d++)
            ok(tsr_device_upload(g.devices[d], s.partial[d], ones, sum_bytes(&s)));
        ok(group_run(&g));
        for (int d = 0; d < 2; d++) {
            ok(tsr_device_download(g.devices[d], y, s.y[d], sizeof y));
            for (int i = 0; i < ELEMENTS; i++)
                assert_true(s.reduce == TSR_REDUCE_EXACT ? y[i] == tsr_fixed_to_f32(-2) : y[i] != y[i]);
        }
        group_close(&g);
        nothing_is_left();
    }
}

/* -- models without peer access -- */

/* On a machine of two GPUs without peer access, or of three of which one pair has none. */
static float *logits_of(int n_gpus, const char *devices, const char *collectives, const char *split,
                        tsr_split_mode mode, size_t *bytes_out)
{
    static const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6};
    enum { N_TOKENS = sizeof tokens / sizeof *tokens };
    struct synth_model_config synth = SYNTH_MODEL_CONFIG_INIT;
    cudasim_config sim = CUDASIM_CONFIG_INIT;
    tsr_model_config config = tsr_model_config_default();
    char path[DIRECTORY_PATH];
    runner r;
    synth.weight_type = TSR_TYPE_Q8_0;
    config.session.n_ctx = 64;
    config.split.mode = mode;
    sim.n_devices = n_gpus;
    sim.peer_access = n_gpus > 2;
    cudasim_configure(&sim);
    if (n_gpus > 2)
        cudasim_forbid_peer(1, 2);
    close(directory_new(path));
    synth_model_write(&synth, path);
    runner_open_with(&r, path, devices, collectives, split, &config);
    *bytes_out = N_TOKENS * (size_t)r.n_vocab * sizeof(float);
    float *logits = malloc(*bytes_out);
    runner_decode(&r, tokens, N_TOKENS, 3, true, logits);
    runner_close(&r);
    nothing_is_left();
    return logits;
}

static void models_give_the_same_bits_through_pinned_memory(void **state)
{
    (void)state;
    static const struct {
        int n_gpus;
        const char *split;
        tsr_split_mode mode;
    } cases[] = {{2, "3,1", TSR_SPLIT_MODE_TENSOR},
                 {3, "1,2,1", TSR_SPLIT_MODE_TENSOR},
                 {3, "1,1,1", TSR_SPLIT_MODE_LAYER}};
    size_t bytes, same;
    float *one = logits_of(1, "cuda:0", "auto", "1", TSR_SPLIT_MODE_NONE, &bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *split = logits_of(cases[i].n_gpus, "cuda", "pinned", cases[i].split, cases[i].mode, &same);
        assert_int_equal(same, bytes);
        assert_memory_equal(split, one, bytes);
        free(split);
    }
    free(one);
}

/* -- opening -- */

static tsr_status open_runtime(const char *devices, const char *collectives, tsr_runtime **rt_out)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = devices;
    config.collectives = collectives;
    *rt_out = NULL;
    return tsr_runtime_open(&config, rt_out);
}

/* Two GPUs without peer access are joined through pinned memory by themselves, wherever a host device is. */
static void a_host_device_may_be_anywhere(void **state)
{
    (void)state;
    static const char *const devices[] = {"host:1,threads=1,cuda:0,cuda:1", "cuda:0,host:1,threads=1,cuda:1"};
    cudasim_config sim = CUDASIM_CONFIG_INIT;
    sim.n_devices = 2;
    sim.peer_access = false;
    cudasim_configure(&sim);
    for (int i = 0; i < 2; i++) {
        tsr_comm *members[TSR_COMM_MAX_MEMBERS];
        tsr_runtime *rt;
        bool pinned = false;
        ok(open_runtime(devices[i], "auto", &rt));
        for (int c = tsr_comm_select_members(rt->comm, members) - 1; c >= 0; c--)
            pinned = pinned || strcmp(members[c]->ops->kind, "pinned") == 0;
        assert_true(pinned);
        tsr_runtime_close(rt);
        nothing_is_left();
    }
}

static void opening_serves_or_says_why(void **state)
{
    (void)state;
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    tsr_runtime *rt;
    cudasim_config sim = CUDASIM_CONFIG_INIT;
    sim.n_devices = 2;
    sim.peer_access = false;
    cudasim_configure(&sim);
    ok(open_runtime("cuda:0,cuda:1", "pinned", &rt));
    assert_true(tsr_runtime_collectives(rt, rows) >= 1);
    assert_string_equal(rows[0].implementation, "pinned");
    tsr_runtime_close(rt);
    ok(open_runtime("cuda:0,cuda:0", "pinned", &rt));
    tsr_runtime_close(rt);
    assert_int_equal(open_runtime("cuda:0,host:1,threads=1", "pinned", &rt), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "host0"));
    nothing_is_left();
}

static void a_call_that_fails_ends_the_opening_cleanly(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaHostAlloc", "cudaMalloc", "cudaMemsetAsync", "cudaGraphLaunch"};
    static const char *const kinds[] = {"peer", "pinned"};
    int n_failed = 0;
    for (int k = 0; k < 2; k++)
        for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
            for (uint64_t nth = 1;; nth += 1 + nth / 4) {
                tsr_runtime *rt;
                machine(2, nth);
                cudasim_fail_named(calls[c], nth, 0);
                const tsr_status status = open_runtime("cuda", kinds[k], &rt);
                const bool hit = cudasim_faults_hit() > 0;
                n_failed += status != TSR_OK;
                cudasim_clear_faults();
                tsr_runtime_close(rt);
                assert_int_equal(cudasim_leaks(stderr), 0);
                if (!hit)
                    break;
            }
    assert_true(n_failed > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_devices_take_turns),
        cmocka_unit_test(words_that_look_empty_arrive),
        cmocka_unit_test(models_give_the_same_bits_through_pinned_memory),
        cmocka_unit_test(a_host_device_may_be_anywhere),
        cmocka_unit_test(opening_serves_or_says_why),
        cmocka_unit_test(a_call_that_fails_ends_the_opening_cleanly),
    };
    return cmocka_run_group_tests_name("sums through inboxes", tests, NULL, NULL);
}
