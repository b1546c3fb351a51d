/* Devices of a simulated machine, which reach each other's memory or not, with a communicator between
 * them. */
#ifndef TSR_TESTS_PEER_RUN_H
#define TSR_TESTS_PEER_RUN_H

#include <string.h>

#include "comm/local.h"
#include "cuda/comm/peer.h"
#include "cuda/device/device.h"
#include "cuda/simulated.h"

enum { MS = 1000000, MAX_GPUS = 8, MB = 1 << 20 };

static inline cudasim_config config_of(int n_gpus, uint64_t seed)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_gpus;
    config.seed = seed;
    config.memory = 320 * MB;
    return config;
}

static inline void machine_of(int n_gpus, uint64_t seed)
{
    const cudasim_config config = config_of(n_gpus, seed);
    cudasim_configure(&config);
}

typedef struct group {
    int n;
    tsr_device *devices[MAX_GPUS];
    uint64_t reach[MAX_GPUS];
    tsr_comm *comm;
} group;

/* n devices on n_gpus GPUs, dealt out in turn. */
static inline void open_devices(group *g, int n, int n_gpus)
{
    *g = (group){.n = n};
    for (int d = 0; d < n; d++) {
        char name[16];
        snprintf(name, sizeof name, "cuda%d", d);
        tsr_cuda_device_config config = {
            .name = name, .index = d, .ordinal = d % n_gpus, .memory_cap = 40 * MB};
        ok(tsr_cuda_device_create(&config, &g->devices[d]));
    }
    ok(tsr_cuda_peers_test(g->devices, n, NULL, g->reach));
}

static inline void *take(tsr_device *device, size_t bytes)
{
    void *pointer = NULL;
    ok(device->ops->alloc(device, TSR_MEMORY_COMM, bytes, &pointer));
    return pointer;
}

static inline void close_group(group *g)
{
    tsr_comm_destroy(g->comm);
    for (int d = 0; d < g->n; d++)
        tsr_device_destroy(g->devices[d]);
}

/* -- what is logged -- */

typedef struct last_lines {
    int n_warnings;
    char warning[512], info[512]; /* the last of each */
} last_lines;

static inline void last_lines_note(tsr_log_level level, const char *text, void *user)
{
    last_lines *log = user;
    log->n_warnings += level == TSR_LOG_WARN;
    if (level == TSR_LOG_WARN)
        snprintf(log->warning, sizeof log->warning, "%s", text);
    else
        snprintf(log->info, sizeof log->info, "%s", text);
}

static inline tsr_logger logger_to(last_lines *log)
{
    return (tsr_logger){last_lines_note, log, TSR_LOG_INFO};
}

#endif
