/* Every architecture that runs gives the same bits whatever the split (support/ways.h): a hundred random ways
 * for every architecture of its own and for recorded models (with experts: a hundred by columns and a hundred
 * by whole experts), fewer for llamas under other names.
 * TSR_TEST_ROUNDS sets how many (three times as many as are tried; default 300). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/random.h"
#include "support/reference.h"
#include "support/ways.h"

enum { MAX_TEST_DEVICES = 9 };

static int prepare(uint64_t *seed, way *w)
{
    int n_devices = 1 + (int)random_below(seed, MAX_TEST_DEVICES);
    snprintf(w->devices, sizeof w->devices, "host:%d,threads=1", n_devices);
    return n_devices;
}

static const way_family host = {.plain = "host:1,threads=1", .on_this_machine = true, .prepare = prepare};

/* Architectures whose layers are a llama's. */
static bool is_plain(const struct synth_arch *arch)
{
    return arch->parts == 0 && arch->keys[0].suffix == NULL && strcmp(arch->name, "gemma") != 0;
}

static void splits_of_every_architecture_give_the_same_bits(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_Q4_K, TSR_TYPE_Q8_0, TSR_TYPE_BF16,
                                     TSR_TYPE_Q6_K};
    int64_t rounds = (ways_rounds() + 11) / 12;
    for (size_t i = 0; i < n_synth_archs; i++)
        ways_check_arch(&host, &synth_archs[i], types[i % 5],
                        is_plain(&synth_archs[i]) ? (rounds + 4) / 5 : rounds);
}

static void recorded(const char *name, int64_t rounds)
{
    char path[256];
    if (!reference_path(name, path, sizeof path))
        skip();
    ways_check_file(&host, path, 1024, rounds);
}

static void splits_of_recorded_qwen2_give_the_same_bits(void **state)
{
    (void)state;
    recorded("nano-qwen2-F16", (ways_rounds() + 2) / 3);
}

static void splits_of_recorded_qwen3_give_the_same_bits(void **state)
{
    (void)state;
    recorded("nano-qwen3-F16", (ways_rounds() + 2) / 3);
}

static void splits_of_recorded_mixtral_give_the_same_bits(void **state)
{
    (void)state;
    recorded("nano-moe-F16", 2 * ((ways_rounds() + 2) / 3));
}

static void splits_of_recorded_qwen3moe_give_the_same_bits(void **state)
{
    (void)state;
    recorded("nano-qwen3moe-F16", 2 * ((ways_rounds() + 2) / 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_of_every_architecture_give_the_same_bits),
        cmocka_unit_test(splits_of_recorded_qwen2_give_the_same_bits),
        cmocka_unit_test(splits_of_recorded_qwen3_give_the_same_bits),
        cmocka_unit_test(splits_of_recorded_mixtral_give_the_same_bits),
        cmocka_unit_test(splits_of_recorded_qwen3moe_give_the_same_bits),
    };
    return cmocka_run_group_tests_name("the split does not change a bit of any architecture", tests, NULL,
                                       NULL);
}
