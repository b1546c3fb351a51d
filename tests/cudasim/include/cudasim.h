/* The simulated machine's own controls, for tests.
 *
 * A machine has N GPUs of a given memory size. Configure it first (that also forgets everything before), use
 * CUDA, the driver's virtual memory calls and NCCL as ever, and ask at the end what leaked and what was
 * violated:
 *
 *     cudasim_config config = CUDASIM_CONFIG_INIT;
 *     config.n_devices = 3;
 *     cudasim_configure(&config);
 *     ... run the code under test ...
 *     assert_int_equal(cudasim_leaks(stderr), 0);
 *     assert_string_equal(cudasim_violation(), "");
 *
 * Asynchronous work waits in queues. It is carried out when a host thread waits or asks for it, or earlier,
 * in an order drawn from `seed` among those that streams and events allow. Kernels run on host threads that
 * take turns, so a machine is as deterministic as the program that uses it.
 *
 * What is caught. In kernels: memory of another device without peer access, freed or unmapped memory, writes
 * past an allocation's last page, threads of a block that part at a barrier, lanes of a warp that part at a
 * warp operation or pass wrong masks, asynchronous copies that are misaligned, not to shared memory, or not
 * waited for; each ends the kernel and poisons the device's context, as a GPU does.
 * On the host: touching device memory (prints where and ends the program), calls that a capture forbids,
 * handles of another machine, NCCL calls that differ between ranks, a kernel that is launched for the first
 * time, and so would be loaded, while another waits on that GPU. Each finding's sentence is kept.
 *
 * NCCL also connects ranks of several processes, of which each has a machine of its own (nccl_segment.cpp).
 *
 * The variable CUDASIM_CARD names what is simulated: a100, rtx3090, h100 or rtx5090, with their limits of
 * shared memory, threads and blocks; without it, an H100 with 8 multiprocessors. Launches that a card has not
 * the registers or the shared memory for are refused, and blocks start where a multiprocessor has room: those
 * that wait for others of their grid hang if not all of them fit.
 *
 * What changes results. New memory holds 0xff: of the device, shared at the start of each block, and the
 * target of an asynchronous copy until its wait. Threads run in rising, falling or random order.
 * With `weak`, a kernel that reads another's data without release and acquire gets old data (../weak.cpp). */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* tests/cuda/gpu/cudasim.h has 0: the same tests on GPUs. */
enum { CUDASIM_SIMULATED = 1, CUDASIM_MAX_DEVICES = 12 };

typedef struct cudasim_config {
    int n_devices;                         /* 0: as on a machine whose driver finds none */
    size_t memory;                         /* bytes per device, in addition to those of its context */
    size_t memory_of[CUDASIM_MAX_DEVICES]; /* where not 0: instead of `memory` */
    uint64_t seed;                         /* of the order of asynchronous work */
    bool peer_access;                      /* every pair of devices; see cudasim_forbid_peer */
    bool integrated;                       /* GPU and CPU share memory; pageable memory is accessible */
    bool registers;                        /* ... but only memory that was registered (older ones) */
    bool coherent;                         /* not integrated, walks the host's page tables (Grace Hopper) */
    bool no_vmm;                           /* no virtual memory management (cuMemMap and its like) */
    bool register_read_only;               /* cudaHostRegisterReadOnly is supported */
    int compute_capability;                /* 90 = 9.0; 0: that of the card, see below */
    int n_sms;                             /* multiprocessors; 0: those of the card */
    size_t vmm_granularity;                /* of cuMemCreate; a multiple of 4096 */
    int nccl_version;                      /* NCCL_VERSION_CODE's format */
    unsigned hang_ms;                      /* nothing moves for so long: the waiting call fails */
    bool eager;                            /* enqueued work is carried out at once where it can be */
    uint64_t last_places;                  /* not 0: draws what NVIDIA leaves open; see numbers.cpp */
    int driver_version;                    /* of CUDA, 12040 = 12.4; 0: the runtime's */
    bool weak;                             /* kernels see each other's plain stores as late as GPUs may */
    size_t context_bytes;                  /* of device memory for a context; 0: by n_sms */
    size_t taken;                          /* bytes of each device that other processes use */
    uint32_t owned;                        /* bits of devices that another process uses exclusively */
    bool may_share;             /* nothing here; on a real machine with fewer GPUs the devices share
                                            * them (tests/cuda/gpu/cudasim.h) */
    size_t bar1;                /* bytes of a GPU's memory that all peers together can map, as over
                                            * PCIe; 0: all of it (a large BAR1, NVLink) */
    bool threads_are_processes; /* a test's: interprocess handles may be opened in the process that made them,
                                 * which CUDA refuses */
} cudasim_config;

#define CUDASIM_CONFIG_INIT                                                                               \
    {                                                                                                     \
        .n_devices = 1, .memory = (size_t)256 << 20, .memory_of = {0}, .seed = 1, .peer_access = true,    \
        .integrated = false, .registers = false, .coherent = false, .no_vmm = false,                      \
        .register_read_only = true, .compute_capability = 0, .n_sms = 0,                                  \
        .vmm_granularity = (size_t)64 << 10, .nccl_version = 22809, .hang_ms = 20000, .eager = false,     \
        .last_places = 0, .driver_version = 0, .weak = false, .context_bytes = 0, .taken = 0, .owned = 0, \
        .bar1 = 0, .threads_are_processes = false                                                         \
    }

/* Begin with a fresh machine. Without a call the machine has one device with the values above. Not while
 * another thread is in a CUDA call. NULL: the values above. */
void cudasim_configure(const cudasim_config *config);

/* The same, and true. On GPUs: whether this machine is such a one. */
static inline bool cudasim_have(const cudasim_config *config)
{
    cudasim_configure(config);
    return true;
}

/* GPUs that a configured machine can have. */
static inline int cudasim_most_devices(void)
{
    return CUDASIM_MAX_DEVICES;
}

/* The GPU that is GPU `i` of the configured machine. On GPUs others share those that there are. */
static inline int cudasim_gpu(int i)
{
    return i;
}

/* The running test depends on `what` ("memory of a given size"), so that it is skipped on GPUs. */
static inline void cudasim_required(const char *what)
{
    (void)what;
}

/* Take away (both ways) peer access between two devices. */
void cudasim_forbid_peer(int a, int b);

/* From now on what kernels of `writer` write into memory of `owner` arrives changed, as behind an IOMMU or a
 * switch that is not up to it: the driver says nothing of that. */
void cudasim_corrupt_peer(int writer, int owner);

/* The same for what `reader`'s copies fetch from memory of `owner`. */
void cudasim_corrupt_peer_copies(int reader, int owner);

/* What is left: device memory, pinned memory, address ranges, physical handles, streams, events, graphs and
 * communicators that were not released. Each on a line to `out` unless it is NULL. The value is their
 * number. */
int cudasim_leaks(FILE *out);

/* `bytes` of files have been read and are kept by the system: of the memory that integrated GPUs share
 * with the host, cudaMemGetInfo counts them as used, and allocations get them nevertheless. */
void cudasim_cache_files(size_t bytes);

/* Bytes of device memory in use, now and at most. */
size_t cudasim_used(int device);
size_t cudasim_peak(int device);

/* Bytes of device memory that this process's context on the device takes; 0: there is no context. Not in
 * cudasim_used(). */
size_t cudasim_context(int device);

/* The first rule broken since cudasim_configure, "" for none; and how many. */
const char *cudasim_violation(void);
int cudasim_violations(void);
void cudasim_forget_violations(void);

/* Calls of CUDA, the driver and NCCL since cudasim_configure (all threads), and the name of call `index`
 * (from 0), "" beyond the last million. */
uint64_t cudasim_calls(void);
const char *cudasim_call_name(uint64_t index);
uint64_t cudasim_calls_of(const char *name);

/* Messages that NCCL passed from device to device since cudasim_configure. */
uint64_t cudasim_messages(int from, int to);

/* Blocks of launches of the kernel `name`, of all its templates together, since cudasim_configure. */
uint64_t cudasim_blocks_of(const char *name);

/* What a profiler sees of NVTX: ranges of all threads since the program began whose names begin with `name`;
 * "": all. */
int cudasim_nvtx_ranges(const char *name);

/* Ranges that were pushed and not popped. */
int cudasim_nvtx_open(void);

/* Faults. Make call number `index` (as cudasim_calls counts, from 0), or call number `nth` (from 1, counted
 * from now) of the function `name`, fail with `error`; 0 takes an error that this function can return.
 * Kernel launches are called "cudaLaunchKernel". Calls that release something still do so. */
void cudasim_fail_call(uint64_t index, int error);
void cudasim_fail_named(const char *name, uint64_t nth, int error);
void cudasim_clear_faults(void);

/* Calls of the function `name` (a literal) do not return until the next call of this function; NULL: all
 * return. */
void cudasim_hang_named(const char *name);
uint64_t cudasim_faults_hit(void);

/* Calls of the function `name` (a literal) take `us` microseconds more, until the next call of this function;
 * NULL: none does. */
void cudasim_slow_named(const char *name, unsigned us);

/* Poison the context of a device, as a faulting kernel does. `error` is a cudaError_t such as
 * cudaErrorIllegalAddress; 0 heals it. */
void cudasim_poison_device(int device, int error);

/* The same at call number `index` (cudasim_calls). */
void cudasim_poison_at(uint64_t index, int device, int error);

/* Of the copies of at least `bytes` bytes from the host to this device, the nth from now (1 = the next)
 * arrives with a bit changed; 0 = none. */
void cudasim_corrupt_copy(int device, uint64_t nth, size_t bytes);

/* While stalled, a device carries out nothing. */
void cudasim_stall_device(int device, bool stalled);

/* From now on the device's operations take `times` (1 at first) times as long, by events: a kernel then takes
 * 2 us and 1 us for each of its blocks, anything else 2 us. A kernel that looks at what others write, and a
 * collective, ends no earlier than the latest kernel of any device began. Nothing else depends on these
 * times. */
void cudasim_slow_device(int device, double times);

/* From now on ncclCommGetAsyncError reports `error` (an ncclResult_t) on communicators of this device, and
 * their collectives no longer complete. */
void cudasim_nccl_async_error(int device, int error);

/* While absent, a device does not connect: communicators that it is to join do not come into being. */
void cudasim_nccl_absent(int device, bool absent);

/* Ranks without peer access exchange data through shared memory of the host. `n_connections` more connections
 * of communicators find room there (/dev/shm; 0: it is missing, as in many containers); -1: any number. A
 * communicator connects once for small messages and once for large ones, with the first of each. */
void cudasim_nccl_shared_memory(int n_connections);

/* NCCL's calls fail in streams that are captured. */
void cudasim_nccl_refuse_capture(void);

/* Kernels that were loaded by their first launch on a device (cudaFuncGetAttributes loads them before). */
uint64_t cudasim_late_loads(void);

/* Kernels and other operations carried out so far. */
uint64_t cudasim_operations(void);

/* Bytes that left a device for another one or for host memory, or came from there, since cudasim_configure:
 * of copies, and of the loads and stores that kernels report (src/cuda/comm/wire.cuh). */
uint64_t cudasim_link_bytes(void);

#ifdef __cplusplus
}
#endif

#endif
