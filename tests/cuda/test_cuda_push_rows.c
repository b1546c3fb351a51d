/* Sums through inboxes whose rows are normalised on some of the devices only: each device decides from its
 * own next op whether its kernel does the norm, and all must divide the message alike. */
#include "cuda/nccl_run.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

#include <unistd.h>

static const tsr_peer_form forms[] = {TSR_PEER_PUSH, TSR_PEER_PINNED};

enum { DEVICES = 3 };

static group open_form(tsr_peer_form form)
{
    tsr_device_set reach[MAX_RANKS];
    group g = group_of(DEVICES, false);
    ok(tsr_cuda_peers_test(g.devices, DEVICES, NULL, reach));
    ok(tsr_comm_peer_create(g.devices, DEVICES, reach, form, &g.comm));
    g.timeout_ns = 20000 * (uint64_t)MS;
    return g;
}

/* A norm of the sum on the devices of a set; z[d]: its result. */
static void normalise(group *g, const sum *s, tsr_device_set normalising, float **z)
{
    TSR_FOR_DEVICES(d, normalising) {
        z[d] = group_put(g, d, NULL, (size_t)s->n * sizeof(float));
        group_op(g, d,
                 (tsr_op){.kind = TSR_OP_RMS_NORM,
                          .name = "norm",
                          .rms_norm = {
                              .x = s->y[d], .y = z[d], .n = s->row, .n_rows = s->n / s->row, .eps = 1e-5f}});
    }
}

static void check_norms(const group *g, const sum *s, tsr_device_set normalising, float *const *z)
{
    const size_t bytes = (size_t)s->n * sizeof(float);
    const int first = tsr_device_set_first(normalising);
    float *want = malloc(bytes), *got = malloc(bytes);
    ok(tsr_device_download(g->devices[first], want, z[first], bytes));
    assert_true(want[0] != 0 && want[s->n - 1] != 0);
    TSR_FOR_DEVICES(d, normalising) {
        ok(tsr_device_download(g->devices[d], got, z[d], bytes));
        assert_memory_equal(got, want, bytes);
    }
    free(want);
    free(got);
}

/* Rows of one block and of several, as many as there are blocks and more, and rows that go in no round. */
static void a_norm_may_be_next_on_some_devices(void **state)
{
    (void)state;
    static const struct {
        int64_t row, n_rows;
    } shapes[] = {{200, 3}, {3000, 1}, {1100, 5}, {64, 70}, {5500, 2}};
    for (size_t k = 0; k < 2 * sizeof shapes / sizeof *shapes; k++)
        for (tsr_device_set normalising = 1; normalising < 1 << DEVICES; normalising += 1 + k % 2) {
            float *z[MAX_RANKS] = {0};
            const int64_t row = shapes[k / 2].row;
            sum s = {TSR_REDUCE_EXACT, 0x7, 0x5, row * shapes[k / 2].n_rows, k % 2, row};
            machine(DEVICES, k);
            group g = open_form(forms[k % 2]);
            sum_make(&g, &s);
            normalise(&g, &s, normalising, z);
            group_compile(&g);
            for (uint64_t run = 0; run < 2; run++) {
                sum_fill(&g, &s, run);
                ok(group_run(&g));
                sum_check(&g, &s, run);
                check_norms(&g, &s, normalising, z);
            }
            group_close(&g);
            nothing_is_left();
        }
}

/* Inboxes have room for those that have them: a row that three devices would not pass in one round is
 * normalised in the kernel of two of the three. */
static void devices_without_inboxes_take_no_room(void **state)
{
    (void)state;
    const int64_t row = 6000;
    for (int f = 0; f < 2; f++) {
        const tsr_device_set members = 0x6, reach[DEVICES] = {0, members, members};
        float *z[MAX_RANKS] = {0};
        sum s = {TSR_REDUCE_EXACT, members, members, row, false, row};
        machine(DEVICES, 3);
        group g = group_of(DEVICES, false);
        ok(tsr_cuda_peers_open(g.devices, DEVICES, NULL));
        ok(tsr_comm_peer_create(g.devices, DEVICES, reach, forms[f], &g.comm));
        g.timeout_ns = 20000 * (uint64_t)MS;
        sum_make(&g, &s);
        normalise(&g, &s, members, z);
        group_compile(&g);
        sum_fill(&g, &s, 0);
        ok(group_run(&g));
        sum_check(&g, &s, 0);
        check_norms(&g, &s, members, z);
        assert_int_equal(cudasim_blocks_of("push_norm_kernel"), 2);
        group_close(&g);
        nothing_is_left();
    }
}

/* -- a model -- */

enum { N_TOKENS = 9, N_VOCAB = 300 };

static char path[DIRECTORY_PATH];

static void logits_of(const char *devices, const char *collectives, const char *split,
                      const tsr_offload_rule *rule, int64_t chunk, float *logits)
{
    static const int32_t tokens[N_TOKENS] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    tsr_model_config config = tsr_model_config_default();
    runner r;
    machine(2, (uint64_t)chunk);
    config.session.n_ctx = 64;
    config.session.n_batch = config.session.n_outputs_max = N_TOKENS; /* rows of a sum */
    config.offload.rules = rule;
    config.offload.n_rules = rule ? 1 : 0;
    runner_open_with(&r, path, devices, collectives, split, &config);
    runner_decode(&r, tokens, N_TOKENS, chunk, true, logits);
    runner_close(&r);
    nothing_is_left();
}

/* The sum of a layer's FFN is on both devices, and the norm behind it on the device that has the next
 * layer's attention. */
static void a_layer_on_one_device_may_follow_a_layer_on_both(void **state)
{
    (void)state;
    static const tsr_offload_rule rules[] = {
        {"blk\\.1\\.attn", "cuda0"}, {"blk\\.1\\.attn", "cuda1"}, {"blk\\.1\\.ffn", "cuda1"}};
    static const char *const collectives[] = {"pinned", "peer"};
    static float one[N_TOKENS * N_VOCAB], split[N_TOKENS * N_VOCAB];
    struct synth_model_config synth = SYNTH_MODEL_CONFIG_INIT;
    synth.weight_type = TSR_TYPE_Q8_0;
    synth.n_layers = 3;
    synth.n_vocab = N_VOCAB;
    close(directory_new(path));
    synth_model_write(&synth, path);
    logits_of("cuda:0", "auto", "1", NULL, 0, one);
    for (int i = 0; i < 6; i++) {
        memset(split, 0xff, sizeof split);
        logits_of("cuda:0,cuda:1", collectives[i / 3], "1,1", &rules[i % 3], i % 2 ? 1 : 4, split);
        assert_memory_equal(split, one, sizeof one);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_norm_may_be_next_on_some_devices),
        cmocka_unit_test(devices_without_inboxes_take_no_room),
        cmocka_unit_test(a_layer_on_one_device_may_follow_a_layer_on_both),
    };
    return cmocka_run_group_tests_name("norms behind some devices' sums", tests, NULL, NULL);
}
