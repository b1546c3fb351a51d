/* Predictions from measured rates beside measured speeds: Llama 3 8B on an H100 80GB HBM3
 * (docs/first-light.md has both). Rates are what the products of bench/cuda_kernels.c say: reading by the
 * largest matrix, its fixed time by 4096 x 4096, prompts by 14336 x 4096 and 4096 x 14336. The time of a
 * small op is an estimate: what a step takes besides its products, divided by its other ops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/config.h>
#include <tsr/gguf.h>
#include <tsr/plan.h>
#include <tsr/rates.h>

#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

static const double bound = 0.25;

/* Of one type: rates, and tokens per second that were measured. */
typedef struct recorded {
    tsr_type type;
    double read_bytes_per_s, product_ns, flops_per_s, partial_flops_per_s;
    double decode, prompt;
} recorded;

static const recorded h100[] = {
    {TSR_TYPE_Q4_K, 1.95e12, 4840, 92.3e12, 87.9e12, 216.6, 5774},
    {TSR_TYPE_Q8_0, 2.34e12, 3990, 97.9e12, 85.2e12, 166.9, 5745},
    {TSR_TYPE_F16, 2.76e12, 2380, 84.8e12, 31.3e12, 140.7, 3625},
};

static tsr_device_rates rates_of(const recorded *r)
{
    tsr_device_rates rates = {.op_ns = 4500, .measured = true};
    const int i = tsr_rate_index(r->type);
    rates.read_bytes_per_s[i] = r->read_bytes_per_s;
    rates.product_ns[i] = r->product_ns;
    rates.flops_per_s[i] = r->flops_per_s;
    rates.partial_flops_per_s[i] = r->partial_flops_per_s;
    return rates;
}

static struct synth_model_config llama(tsr_type type)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = 32;
    config.n_embd = 4096;
    config.n_heads = 32;
    config.n_kv_heads = 8;
    config.head_dim = 128;
    config.n_ff = 14336;
    config.n_vocab = 128256;
    config.n_ctx = 8192;
    config.weight_type = type;
    config.header_only = true;
    config.tokenizer = false;
    return config;
}

static tsr_plan_times times_with(const struct synth_model_config *shape, const tsr_device_rates *rates,
                                 int activation_bits)
{
    tsr_device_desc gpu = {
        .kind = TSR_DEVICE_CUDA, .memory_total_bytes = (uint64_t)80 << 30, .name = "cuda0"};
    const tsr_device_list list = {.n_devices = 1, .devices = &gpu};
    tsr_gguf_config header = tsr_gguf_config_default();
    tsr_model_config config = tsr_model_config_default();
    char path[DIRECTORY_PATH];
    tsr_plan_times times;
    tsr_gguf *gguf;
    tsr_plan *plan;
    close(directory_new(path));
    synth_model_write(shape, path);
    header.header_only = true;
    runner_ok(tsr_gguf_open(path, &header, &gguf), path);
    config.plan.rates = rates;
    config.session.n_ctx = 513;
    config.session.n_batch = 512;
    config.compute.activation_bits = activation_bits;
    runner_ok(tsr_plan_create(gguf, &list, &config, &plan), "plan");
    tsr_plan_predict(plan, &times);
    assert_true(times.known);
    tsr_plan_destroy(plan);
    tsr_gguf_close(gguf);
    unlink(path);
    return times;
}

static tsr_plan_times times_of(const struct synth_model_config *shape, const tsr_device_rates *rates)
{
    return times_with(shape, rates, 16);
}

static void is_near(const char *what, tsr_type type, double predicted, double measured)
{
    print_message("%s %s: predicted %.1f tok/s, measured %.1f\n", tsr_type_name(type), what, predicted,
                  measured);
    assert_true(predicted > (1 - bound) * measured && predicted < (1 + bound) * measured);
}

static void predictions_are_near_the_recorded_speeds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof h100 / sizeof *h100; i++) {
        const struct synth_model_config shape = llama(h100[i].type);
        const tsr_device_rates rates = rates_of(&h100[i]);
        const tsr_plan_times times = times_of(&shape, &rates);
        is_near("decode", h100[i].type, 1e9 / times.decode.total_ns, h100[i].decode);
        is_near("prompt", h100[i].type, 512e9 / times.prompt.total_ns, h100[i].prompt);
    }
}

/* The product of one token is part of the time in which its weights are read. */
static void a_token_is_not_charged_by_the_rate_of_many(void **state)
{
    (void)state;
    const struct synth_model_config shape = llama(TSR_TYPE_F16);
    tsr_device_rates rates = rates_of(&h100[2]);
    const tsr_plan_times before = times_of(&shape, &rates);
    for (int i = 0; i < TSR_RATE_TYPES; i++)
        rates.flops_per_s[i] = rates.partial_flops_per_s[i] = 1e12; /* 15 ms for the products of one token */
    const tsr_plan_times after = times_of(&shape, &rates);
    assert_true(after.decode.total_ns < 1.05 * before.decode.total_ns); /* attention has such work */
    assert_true(after.prompt.total_ns > 10 * before.prompt.total_ns);
}

/* Mixtral 8x7B: 2 of 8 experts. */
static void experts_have_rates_of_their_own(void **state)
{
    (void)state;
    struct synth_model_config shape = llama(TSR_TYPE_Q4_K);
    tsr_device_rates rates = rates_of(&h100[0]);
    shape.n_vocab = 32000;
    shape.n_experts = 8;
    shape.n_experts_used = 2;
    rates.read_bytes_per_s[tsr_rate_index(TSR_TYPE_F32)] = 2.7e12; /* of routers */
    rates.flops_per_s[tsr_rate_index(TSR_TYPE_F32)] = 10e12;
    const int i = tsr_rate_index(TSR_TYPE_Q4_K);
    const tsr_plan_times plain = times_of(&shape, &rates);
    rates.expert_bytes_per_s[i] = rates.read_bytes_per_s[i] / 10;
    rates.expert_flops_per_s[i] = rates.flops_per_s[i] / 10;
    const tsr_plan_times slow = times_of(&shape, &rates);
    const double bytes = 3.0 * 2 * 4096 * 14336 * 32 * 144 / 256, flops = 2 * bytes * 256 / 144 * 512;
    const double more_ns = bytes / rates.expert_bytes_per_s[i] * 0.9 * 1e9; /* nine tenths are added */
    const double fixed_ns = 3 * 32 * rates.product_ns[i];                   /* the experts' rate has it */
    const double decode_ns = slow.decode.total_ns - plain.decode.total_ns + fixed_ns;
    assert_true(decode_ns > 0.99 * more_ns && decode_ns < 1.01 * more_ns);
    assert_true(slow.prompt.total_ns > 0.9 * flops / rates.expert_flops_per_s[i] * 1e9);
}

static void activations_of_8_bits_have_rates_of_their_own(void **state)
{
    (void)state;
    const struct synth_model_config shape = llama(TSR_TYPE_Q4_K);
    tsr_device_rates rates = rates_of(&h100[0]);
    const int i = tsr_rate_index(TSR_TYPE_Q4_K);
    const double before = times_with(&shape, &rates, 8).prompt.total_ns;
    assert_true(before == times_of(&shape, &rates).prompt.total_ns); /* the rate is not known */
    rates.byte_flops_per_s[i] = 2 * rates.flops_per_s[i];
    const tsr_plan_times words = times_of(&shape, &rates), bytes = times_with(&shape, &rates, 8);
    assert_true(words.prompt.total_ns == before);
    assert_true(bytes.decode.total_ns == words.decode.total_ns);
    rates.flops_per_s[i] *= 2;
    rates.partial_flops_per_s[i] *= 2;
    const double twice = times_of(&shape, &rates).prompt.total_ns; /* attention, too */
    assert_true(bytes.prompt.total_ns > twice && bytes.prompt.total_ns < 1.1 * twice);
}

/* A plan of devices that are only described is made with guesses. */
static void guesses_know_activations_of_8_bits(void **state)
{
    (void)state;
    const tsr_device_desc devices[] = {
        {.kind = TSR_DEVICE_CUDA, .memory_bytes_per_s = 1e12, .flops_per_s = 1e14},
        {.kind = TSR_DEVICE_HOST, .n_threads = 8}};
    tsr_device_rates rates[2];
    tsr_device_rates_guess(devices, 2, rates);
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < TSR_RATE_TYPES; i++) {
            const bool plain = tsr_type_block_elems(tsr_rate_type(i)) == 1;
            const bool octets = d == 0 && tsr_rate_type(i) == TSR_TYPE_IQ2_XS;
            assert_true(rates[d].byte_flops_per_s[i] >= rates[d].flops_per_s[i]);
            assert_int_equal(rates[d].byte_flops_per_s[i] > rates[d].flops_per_s[i], !plain && !octets);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_are_near_the_recorded_speeds),
        cmocka_unit_test(a_token_is_not_charged_by_the_rate_of_many),
        cmocka_unit_test(experts_have_rates_of_their_own),
        cmocka_unit_test(activations_of_8_bits_have_rates_of_their_own),
        cmocka_unit_test(guesses_know_activations_of_8_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
