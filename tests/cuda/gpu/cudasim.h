/* Stands in for the header of the simulated machine (tests/cudasim/include/cudasim.h) where the programs of
 * tests/cuda are linked with the CUDA runtime and run on GPUs (TSR_GPU_TESTS).
 *
 * cudasim_configure() accepts a machine that this one can be, and skips the running test otherwise. A GPU has
 * more memory than a simulated one, so `memory` is a lower bound here; a test that needs memory to run out
 * calls cudasim_required(). Faults, counters and the like do not exist on GPUs, so calls for them skip the
 * running test. What a test opened before is left to the end of the program.
 *
 * A machine with `may_share` may have more GPUs than this one: where a test shows something that does not
 * depend on distinct GPUs, such as the same bits for every split, several devices share one. Runtimes that
 * the test opens then have cuda:0 in place of cuda:1 (sharing.h). */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <cuda_runtime.h>

#include "cuda/gpu/sharing.h"
#include "support/leak_check.h"

enum { CUDASIM_SIMULATED = 0, CUDASIM_MAX_DEVICES = 12 };

/* The fields of the simulated machine's config, and its values. */
typedef struct cudasim_config {
    int n_devices;
    size_t memory, memory_of[CUDASIM_MAX_DEVICES];
    uint64_t seed;
    bool peer_access, integrated, registers, coherent, no_vmm, register_read_only;
    int compute_capability, n_sms;
    size_t vmm_granularity;
    int nccl_version;
    unsigned hang_ms;
    bool eager;
    uint64_t last_places;
    int driver_version;
    bool weak;
    size_t context_bytes, taken;
    uint32_t owned;
    bool may_share;
    size_t bar1;
    bool threads_are_processes;
} cudasim_config;

#define CUDASIM_CONFIG_INIT                                                                     \
    {                                                                                           \
        .n_devices = 1, .memory = (size_t)256 << 20, .seed = 1, .peer_access = true,            \
        .register_read_only = true, .vmm_granularity = (size_t)64 << 10, .nccl_version = 22809, \
        .hang_ms = 20000                                                                        \
    }

/* Whether the set-up of a group runs. cmocka takes skip() there for a failure, so the whole program ends, as
 * one that is skipped. */
static bool cudasim_in_set_up;
static CMFixtureFunction cudasim_group_set_up;

enum { CUDASIM_SKIPPED = 77 };

static inline int cudasim_set_up(void **state)
{
    cudasim_in_set_up = true;
    const int result = cudasim_group_set_up ? cudasim_group_set_up(state) : 0;
    cudasim_in_set_up = false;
    return result;
}

#undef cmocka_run_group_tests
#undef cmocka_run_group_tests_name
#define cmocka_run_group_tests_name(name, tests, set_up, tear_down) \
    (cudasim_group_set_up = (set_up),                               \
     _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof(tests)[0], cudasim_set_up, tear_down))
#define cmocka_run_group_tests(tests, set_up, tear_down) \
    cmocka_run_group_tests_name(#tests, tests, set_up, tear_down)

/* Skip the running test; `what` is what it needs. */
static inline void cudasim_required(const char *what)
{
    print_message("skipped on this machine: needs %s\n", what);
    leak_check_abandon();
    if (cudasim_in_set_up)
        exit(CUDASIM_SKIPPED);
    skip();
}

/* GPUs that a configured machine can have. */
static inline int cudasim_most_devices(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        n = 0;
    (void)cudaGetLastError();
    return n < CUDASIM_MAX_DEVICES ? n : CUDASIM_MAX_DEVICES;
}

/* Whether the first n GPUs have (or have not) peer access, all pairs. */
static inline bool cudasim_peers_are(int n, bool wanted)
{
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            int can = 0;
            if (a != b && (cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess || (can != 0) != wanted))
                return false;
        }
    return true;
}

/* What this machine lacks to be the described one; NULL: nothing. */
static inline const char *cudasim_lacking(const cudasim_config *config)
{
    static const cudasim_config usual = CUDASIM_CONFIG_INIT;
    const cudasim_config *c = config ? config : &usual;
    const int most = cudasim_most_devices();
    if (c->n_devices > most && !(c->may_share && most > 0))
        return "more GPUs";
    if (c->n_devices == 0 && most > 0)
        return "a machine without GPUs";
    if (c->integrated || c->coherent || c->registers || c->no_vmm || !c->register_read_only)
        return "a GPU of another kind";
    if (c->compute_capability != usual.compute_capability || c->n_sms != usual.n_sms ||
        c->vmm_granularity != usual.vmm_granularity || c->nccl_version != usual.nccl_version ||
        c->driver_version != usual.driver_version || c->context_bytes || c->bar1 || c->last_places || c->weak)
        return "a described GPU, driver or NCCL";
    if (c->threads_are_processes)
        return "processes that are threads";
    if (c->taken || c->owned)
        return "another process on the GPU";
    if (!cudasim_peers_are(c->n_devices < most ? c->n_devices : most, c->peer_access))
        return c->peer_access ? "GPUs with peer access" : "GPUs without peer access";
    return NULL;
}

/* GPUs that the machine of the last configuration has, and those behind them. */
static inline void cudasim_share(const cudasim_config *config)
{
    gpu_sharing.n_described = config ? config->n_devices : 1;
    gpu_sharing.n_real = config && config->may_share ? cudasim_most_devices() : gpu_sharing.n_described;
}

static inline void cudasim_configure(const cudasim_config *config)
{
    const char *what = cudasim_lacking(config);
    if (what)
        cudasim_required(what);
    cudasim_share(config);
}

/* For tests of several machines: false where this machine cannot be that one, and a line says so. */
static inline bool cudasim_have(const cudasim_config *config)
{
    const char *what = cudasim_lacking(config);
    if (what)
        print_message("a part is left out on this machine: needs %s\n", what);
    else
        cudasim_share(config);
    return !what;
}

/* The GPU that stands for GPU `i` of the machine of the last configuration. */
static inline int cudasim_gpu(int i)
{
    return gpu_sharing.n_real < 1 ? i : i % gpu_sharing.n_real;
}

/* What cannot be seen here is taken to be as it should. compute-sanitizer looks for the same. */
static inline int cudasim_leaks(FILE *out)
{
    (void)out;
    return 0;
}

static inline const char *cudasim_violation(void)
{
    return "";
}

static inline int cudasim_violations(void)
{
    return 0;
}

/* The rest skips the running test. A function with any arguments, so that what a test computes for them
 * counts as used, with a result that no compiler draws conclusions from. */
static inline uint64_t cudasim_skips(const char *what, ...)
{
    static volatile uint64_t zero;
    cudasim_required(what);
    return zero;
}

#define CUDASIM_COUNTS             "the simulated machine's counters"
#define cudasim_used(device)       ((size_t)cudasim_skips(CUDASIM_COUNTS, device))
#define cudasim_peak(device)       ((size_t)cudasim_skips(CUDASIM_COUNTS, device))
#define cudasim_context(device)    ((size_t)cudasim_skips(CUDASIM_COUNTS, device))
#define cudasim_blocks_of(name)    cudasim_skips(CUDASIM_COUNTS, name)
#define cudasim_calls()            cudasim_skips(CUDASIM_COUNTS)
#define cudasim_calls_of(name)     cudasim_skips(CUDASIM_COUNTS, name)
#define cudasim_call_name(index)   (cudasim_skips(CUDASIM_COUNTS, index), "")
#define cudasim_nvtx_ranges(name)  cudasim_skips(CUDASIM_COUNTS, name)
#define cudasim_nvtx_open()        cudasim_skips(CUDASIM_COUNTS)
#define cudasim_late_loads()       cudasim_skips(CUDASIM_COUNTS)
#define cudasim_operations()       cudasim_skips(CUDASIM_COUNTS)
#define cudasim_link_bytes()       cudasim_skips(CUDASIM_COUNTS)
#define cudasim_messages(from, to) cudasim_skips(CUDASIM_COUNTS, from, to)

#define CUDASIM_FAULTS                             "the simulated machine's faults"
#define cudasim_forget_violations()                cudasim_skips(CUDASIM_FAULTS)
#define cudasim_forbid_peer(a, b)                  cudasim_skips(CUDASIM_FAULTS, a, b)
#define cudasim_corrupt_peer(writer, owner)        cudasim_skips(CUDASIM_FAULTS, writer, owner)
#define cudasim_corrupt_peer_copies(reader, owner) cudasim_skips(CUDASIM_FAULTS, reader, owner)
#define cudasim_corrupt_copy(device, nth, bytes)   cudasim_skips(CUDASIM_FAULTS, device, nth, bytes)
#define cudasim_fail_call(index, error)            cudasim_skips(CUDASIM_FAULTS, index, error)
#define cudasim_fail_named(name, nth, error)       cudasim_skips(CUDASIM_FAULTS, name, nth, error)
#define cudasim_hang_named(name)                   cudasim_skips(CUDASIM_FAULTS, name)
#define cudasim_faults_hit()                       cudasim_skips(CUDASIM_FAULTS)
#define cudasim_clear_faults()                     cudasim_skips(CUDASIM_FAULTS)
#define cudasim_poison_device(device, error)       cudasim_skips(CUDASIM_FAULTS, device, error)
#define cudasim_poison_at(index, device, error)    cudasim_skips(CUDASIM_FAULTS, index, device, error)
#define cudasim_stall_device(device, stalled)      cudasim_skips(CUDASIM_FAULTS, device, stalled)
#define cudasim_slow_device(device, times)         cudasim_skips(CUDASIM_FAULTS, device, times)
#define cudasim_nccl_async_error(device, error)    cudasim_skips(CUDASIM_FAULTS, device, error)
#define cudasim_nccl_shared_memory(n_connections)  cudasim_skips(CUDASIM_FAULTS, n_connections)
#define cudasim_nccl_refuse_capture()              cudasim_skips(CUDASIM_FAULTS)
#define cudasim_slow_named(name, us)               cudasim_skips(CUDASIM_FAULTS, name, us)
#define cudasim_cache_files(bytes)                 cudasim_skips(CUDASIM_FAULTS, bytes)
#define cudasim_nccl_absent(device, absent)        cudasim_skips(CUDASIM_FAULTS, device, absent)
#define cudasim_remove_cublas()                    cudasim_skips(CUDASIM_FAULTS)

/* The simulated management library; topologies that are described in advance. */
typedef enum cudasim_fabric {
    CUDASIM_NO_NVLINK,
    CUDASIM_NVLINK_PAIRS,
    CUDASIM_NVLINK_MESH,
    CUDASIM_NVSWITCH
} cudasim_fabric;

typedef struct cudasim_nvml_config {
    bool installed;
    const char *lacks;
    cudasim_fabric fabric;
    int n_links;
    bool is_mig, knows_uuids;
} cudasim_nvml_config;

#define CUDASIM_NVML_CONFIG_INIT               \
    {                                          \
        .installed = true, .knows_uuids = true \
    }
#define cudasim_nvml_configure(config) cudasim_skips("a described topology", (const void *)(config))
#define cudasim_nvml_started()         cudasim_skips(CUDASIM_COUNTS)

#endif
