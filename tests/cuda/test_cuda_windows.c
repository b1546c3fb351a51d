/* Sliding windows on simulated GPUs: the attention kernels find the window's pages by the tables of each
 * layer's group, and every bit is as if all pages were kept (support/window_walk.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <cudasim.h>

#include "cuda/simulated.h"
#include "support/random.h"
#include "support/synth_arch.h"
#include "support/window_walk.h"

static int n_gpus; /* of the machine */

static int prepare(uint64_t *seed, way *w)
{
    static const char *const devices[] = {"cuda:0", "cuda:0,cuda:1", "cuda:0,cuda:1,cuda:2"};
    int n = 1 + (int)random_below(seed, (uint64_t)n_gpus);
    snprintf(w->devices, sizeof w->devices, "%s", devices[n - 1]);
    w->collectives = "staged";
    return n;
}

static const way_family gpus = {.plain = "cuda:0", .prepare = prepare};

static void walk_with(const char *arch, int window, uint64_t seed)
{
    for (size_t i = 0; i < n_synth_archs; i++)
        if (strcmp(synth_archs[i].title, arch) == 0) {
            cudasim_config config = CUDASIM_CONFIG_INIT;
            n_gpus = cudasim_most_devices() < 3 ? cudasim_most_devices() : 3;
            config.n_devices = n_gpus;
            config.vmm_granularity = 1 << 16;
            cudasim_configure(&config);
            window_walk walk = {.arch = &synth_archs[i],
                                .window = window,
                                .rounds = 1,
                                .n_steps = 10,
                                .length = 90,
                                .seed = seed};
            window_walk_check(&gpus, &walk);
            nothing_is_left();
            return;
        }
    fail_msg("no architecture %s", arch);
}

static void windows_of_every_other_layer_give_the_logits_of_the_host(void **state)
{
    (void)state;
    walk_with("gemma2", 20, 1);
}

static void windows_of_all_layers_give_the_logits_of_the_host(void **state)
{
    (void)state;
    walk_with("phi3", 7, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_every_other_layer_give_the_logits_of_the_host),
        cmocka_unit_test(windows_of_all_layers_give_the_logits_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
