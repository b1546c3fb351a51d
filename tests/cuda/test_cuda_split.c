/* The same bits whatever the split (support/ways.h), on simulated GPUs: 1 to 8 of them or several devices on
 * one, with and without peer access, in different legal orders of asynchronous work, with programs captured
 * as CUDA graphs or launched op by op. One way is tried where host devices try 100:
 * simulated GPUs are slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <cudasim.h>

#include "core/mem.h"
#include "support/random.h"
#include "support/ways.h"

enum { MAX_GPUS = 8, MAX_CAPTURES = 400 };

/* A text that takes n GPUs out of n_gpus, some perhaps several times. */
static void draw_devices(uint64_t *seed, int n, int n_gpus, char *text, size_t capacity)
{
    size_t used = 0;
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%scuda:%d", i ? "," : "",
                                 (int)random_below(seed, (uint64_t)n_gpus));
}

static void draw_peers(uint64_t *seed, cudasim_config *config, const char **peers)
{
    uint64_t kind = random_below(seed, 4);
    config->peer_access = kind != 0 || config->n_devices == 1;
    cudasim_configure(config);
    *peers = kind == 0 ? "no peers" : "all peers";
    if (kind != 1 || config->n_devices < 2 || !CUDASIM_SIMULATED)
        return;
    cudasim_forbid_peer(0, config->n_devices - 1);
    *peers = "one pair without peer access";
}

/* Choosing takes a while: it is measured. */
static const char *draw_collectives(uint64_t *seed, bool all_reach_each_other)
{
    if (random_below(seed, 4) == 0)
        return NULL;
    return all_reach_each_other && random_below(seed, 3) ? "peer" : "staged";
}

static int prepare(uint64_t *seed, way *w)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    const char *peers;
    int n_devices = 1 + (int)random_below(seed, MAX_GPUS);
    config.n_devices = random_below(seed, 3) ? n_devices : 1 + (int)random_below(seed, (uint64_t)n_devices);
    config.n_devices = TSR_MIN(config.n_devices, cudasim_most_devices());
    config.seed = random_u64(seed);
    config.eager = random_below(seed, 4) == 0;
    draw_peers(seed, &config, &peers);
    if (config.n_devices == n_devices)
        snprintf(w->devices, sizeof w->devices, "cuda");
    else
        draw_devices(seed, n_devices, config.n_devices, w->devices, sizeof w->devices);
    w->collectives = draw_collectives(seed, peers[0] == 'a' && config.n_devices == n_devices);
    bool graphs = random_below(seed, 4) != 0 || !CUDASIM_SIMULATED;
    for (int i = 0; i < MAX_CAPTURES && !graphs; i++)
        cudasim_fail_named("cudaStreamBeginCapture", 1, 0);
    snprintf(w->about, sizeof w->about, ", %d GPUs, order %llu, %s, %s, collectives %s, %s", config.n_devices,
             (unsigned long long)config.seed, config.eager ? "eager" : "lazy", peers,
             w->collectives ? w->collectives : "auto", graphs ? "graphs" : "no graphs");
    return n_devices;
}

static void done(const way *w)
{
    if (cudasim_leaks(stderr) != 0 || cudasim_violations() != 0)
        fail_msg("%s, split %s%s: %s", w->devices, w->split, w->about, cudasim_violation());
}

static const way_family gpus = {.plain = "cuda:0", .singles = 4, .prepare = prepare, .done = done};

WAYS_TESTS(&gpus, (ways_rounds() + 99) / 100);

int main(void)
{
    return cmocka_run_group_tests_name("the split does not change a bit on GPUs", ways_tests, NULL, NULL);
}
