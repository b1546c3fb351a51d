/* Sliding windows on host devices: only the window's pages are kept, and every bit is as if all were
 * (support/window_walk.h); what is planned is what is taken; what cannot be undone any more is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/random.h"
#include "support/synth_arch.h"
#include "support/window_walk.h"

static int prepare(uint64_t *seed, way *w)
{
    int n_devices = 1 + (int)random_below(seed, 4);
    snprintf(w->devices, sizeof w->devices, "host:%d,threads=%d", n_devices, 1 + (int)random_below(seed, 2));
    return n_devices;
}

static const way_family host = {.plain = "host:1,threads=1", .prepare = prepare};

static void no_bit_depends_on_what_is_kept(void **state)
{
    (void)state;
    static const int windows[] = {1, 5, 32, 33, 70};
    int n = 0;
    for (size_t i = 0; i < n_synth_archs; i++)
        for (const struct synth_key *key = synth_archs[i].keys; key->suffix; key++) {
            if (strcmp(key->suffix, "attention.sliding_window") != 0)
                continue;
            for (size_t w = 0; w < sizeof windows / sizeof *windows; w++, n++) {
                window_walk walk = {.arch = &synth_archs[i],
                                    .window = windows[w],
                                    .rounds = 2,
                                    .n_steps = 40,
                                    .length = WINDOW_WALK_CTX / WINDOW_WALK_SEQS,
                                    .seed = (uint64_t)n};
                window_walk_check(&host, &walk);
            }
        }
    assert_true(n >= 20); /* gemma2, gemma3 twice, phi3, olmo2 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_depends_on_what_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
