/** @file
 * The runtime: the devices that a program runs on, and everything that belongs to them.
 *
 * All state of the library hangs off a runtime; several may coexist. It is opened first and closed last:
 * models, sessions, contexts, buffers and programs must be gone before tsr_runtime_close().
 *
 *     tsr_runtime_config config = tsr_runtime_config_default();
 *     config.devices = "host:2,threads=1";
 *     tsr_runtime *rt;
 *     if (tsr_runtime_open(&config, &rt) != TSR_OK) ...
 *
 * Threads: a runtime and what belongs to it are used by one thread at a time.
 *
 * Devices that stop: a call may wait for the threads of host devices and for GPUs. If none of them makes
 * progress for stall_timeout_ns, the call returns TSR_ERR_DEVICE_LOST with the device and the op.
 * Progress is an op, a piece of an op or a block of a copy. On a GPU it is a part of a program that is
 * launched at a time, up to a whole step. Two Tesla P40 are predicted to take 3.5 s for a step of 512 tokens
 * (the default of n_batch) of a dense model of 70B parameters, 12 s at the end of a context of 131072 tokens,
 * and eight times as long for 4096 tokens; so the default timeout grows with the predicted time of a step.
 * The same happens where a device does not end after the timeout_ns of a program. Waits for another process
 * have the limit transport_timeout_ns instead. The runtime is then lost: every later call that would wait for
 * its threads returns the same error, until the runtime is closed. Objects on it are destroyed as usual,
 * and nothing waits for longer than 30 s. A thread that never returns is left behind. What such a thread
 * may access is never released: memory of all devices of the runtime, programs, the mappings of model
 * files that tsr_model_open() opened. Memory that the caller lent (tsr_buffer_from_ptr(), the buffers of
 * the call that failed) must not be released either. If the thread returns after all, it ends without
 * effect.
 *
 * fork(): threads do not survive it. In the child, every call that would wait for the threads of a runtime of
 * the parent returns TSR_ERR_DEVICE_LOST immediately. The child may close that runtime, or leave it, and open
 * one of its own. The parent is not affected.
 */
#ifndef TSR_RUNTIME_H
#define TSR_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/device_list.h>
#include <tsr/log.h>
#include <tsr/memory.h>
#include <tsr/tensor.h>
#include <tsr/topology.h>
#include <tsr/transport.h>

TSR_BEGIN_DECLS

/** How a runtime is opened. */
typedef struct tsr_runtime_config {
    size_t size;         /**< sizeof(tsr_runtime_config) */
    const char *devices; /**< text for tsr_device_list_create(), e.g. "host:2,mem=4GiB,threads=1"; NULL: one
                              host device per NUMA node */
    const char *isa; /**< kernels of host devices without isa=: "generic", "avx2", ... (tsr/isa.h); NULL: the
                          value of TSR_ISA in the environment, otherwise the best that this machine runs */
    /** how devices exchange data: "auto" (NULL), "peer", "pinned", "nccl" or "staged"; see below. Never
     * changes a result of the exact reduction */
    const char *collectives;
    const tsr_topology *topology; /**< of this machine, only read during the call; NULL: discovered */
    tsr_logger logger;            /**< silent by default */
    /** Of GPUs, where the reduction is not exact: steps of at least this number of tokens multiply F16 and
     * BF16 weights by cuBLASLt, if it is installed. 0: 32; negative: never. */
    int64_t library_tokens;
    /** NULL: a single process. Otherwise the runtime spans several processes (tsr/transport.h) and has the
     * devices of all of them, process after process. Borrowed until the runtime is closed. */
    const tsr_transport *transport;
    /** longest silence of another process (tsr/transport.h, "Processes that end or stop"), and longest wait
     * for one in a step (decoding, running a program). Calls that load, save or measure last as long as the
     * slowest process needs that is still there. 0: 60 s, in a step the stall timeout where that is longer.
     * UINT64_MAX: no limit */
    uint64_t transport_timeout_ns;
    /** longest wait for devices of this process that make no progress; see above. 0: 60 s, and with GPUs at
     * least 20 times the predicted time of the longest step of any model that was opened; UINT64_MAX: no
     * limit */
    uint64_t stall_timeout_ns;
    /** the network between the machines of several processes, in the words of tsr_topology_parse(): "ib
     * 400Gb/s", "2x roce 100Gb/s 3us"; the same in all of them. Used to divide models, where
     * tsr_model_config.plan has neither links nor measured rates. NULL: the fastest that the kernel of each
     * machine shows, otherwise "ethernet 10Gb/s". Processes on one machine (one host name) are joined by its
     * memory. Without `transport`: not used */
    const char *network;
} tsr_runtime_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_runtime_config_init(tsr_runtime_config *config_out, size_t size);

/** The defaults: a single process, a host device per NUMA node, no log. */
static inline tsr_runtime_config tsr_runtime_config_default(void)
{
    tsr_runtime_config config;
    tsr_runtime_config_init(&config, sizeof config);
    return config;
}

/** Open the devices and start their threads. `config` may be NULL. TSR_ERR_INVALID: a bad device text, no
 * name of collectives or kernels, or a network that is none or differs between processes.
 * TSR_ERR_UNSUPPORTED: this build lacks a kind of device, this machine lacks an instruction set, or the
 * collectives cannot serve these devices (the message has the reason). TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_open(const tsr_runtime_config *config, tsr_runtime **rt_out);

/** Stop the devices' threads and free everything. No program may run, and no object may exist on the runtime.
 * Objects that still exist are logged as warnings, each by its name (tsr_runtime_objects), together with the
 * bytes in use by device and owner. They must not be used or destroyed afterwards. NULL is fine. */
TSR_API void tsr_runtime_close(tsr_runtime *rt);

/** Devices of the runtime, those of all processes. */
TSR_API int tsr_runtime_n_devices(const tsr_runtime *rt);

/** An opened device. */
typedef struct tsr_device_info {
    char name[32];        /**< in a runtime of several processes "host0@1", device host0 of process 1 */
    int process;          /**< the process of the device; 0 in a runtime of one process */
    tsr_device_kind kind; /**< host or CUDA */
    char isa[16];         /**< host devices: the kernels in use */
    int n_threads;        /**< host devices */
    size_t memory_cap;    /**< most that may be used: mem=, otherwise the memory near it; SIZE_MAX: no cap */
    size_t used[TSR_MEMORY_COUNT]; /**< bytes by owner, now */
    bool lost;    /**< it failed for good, or does not end; tsr_runtime_drop_device() goes on without it */
    bool dropped; /**< tsr_runtime_drop_device() has gone on without it */
    bool gone;    /**< and without its process, which ended, stopped or did not answer */
    uint64_t reserved[8]; /**< 0; fields of later versions take its place */
} tsr_device_info;

/** Write the description of a device. TSR_ERR_INVALID: there is no such device. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_device(const tsr_runtime *rt, int device,
                                                    tsr_device_info *info_out);

/** Write the accounting of one device and the memory that the device reports now. Blocks until the programs
 * on the device have finished. In a runtime of several processes, every process makes this call.
 * TSR_ERR_INVALID: there is no such device. TSR_ERR_DEVICE: the device does not answer. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_memory(const tsr_runtime *rt, int device,
                                                    tsr_device_memory *memory_out);

/** Set the peaks to the bytes in use now. */
TSR_API void tsr_runtime_reset_peaks(tsr_runtime *rt);

/** Write the objects that exist on the runtime, newest first, at most `capacity` of them; objects[] may be
 * NULL with capacity 0. Returns the number of objects that exist. */
TSR_API int tsr_runtime_objects(const tsr_runtime *rt, tsr_object_info *objects, int capacity);

/** As the device of tsr_runtime_drop_device(): all that are lost. */
enum { TSR_LOST_DEVICES = -1 };

/** Go on without a device: one that was lost (tsr_device_info.lost), which then no longer keeps the runtime
 * lost, one that is to be taken out, or, with TSR_LOST_DEVICES, without all that are lost. Models are planned
 * for the other devices, which read from the files what they lack, and the sequences of sessions are computed
 * again from their tokens where a lost device had a part of their KV regions. A call that failed with
 * TSR_ERR_DEVICE_LOST can then be made again, and gives the bits that it would have given, if all devices are
 * of one kind. After a failure models lack weights: close them; the runtime can open others on the remaining
 * devices.
 *
 * A device that is lost meanwhile is dropped as well. The device keeps its number, with a share of 0. It
 * cannot come back before the runtime is opened again. Sequences that came from a file (tsr_session_load())
 * have no tokens: they are empty afterwards, with a warning; load them again.
 *
 * In several processes whose transport survives the end of one (tsr_transport.survives), those that are left
 * all make this call after TSR_ERR_DEVICE_LOST, with TSR_LOST_DEVICES, within the transport's timeout; they
 * go on without the devices that are lost in any of them, without processes that ended, and without those
 * that do not make the call (tsr_device_info.gone), at most six times. If nothing is lost after all, nothing
 * is dropped. The call in which it was lost has failed in some of them and may have succeeded in others.
 * Where it succeeded, sequences are as before it afterwards: compare tsr_session_length(), and append what is
 * missing, which the others append when they make their call again. A caller who trims, forks or samples
 * between such calls does it again, too.
 *
 * TSR_ERR_INVALID: there is no such device, it was dropped before, it is the last one, none is lost, or
 * programs, buffers or KV regions of the caller exist on the runtime. TSR_ERR_MEMORY: the other devices have
 * no room; the message has the device and the missing bytes. TSR_ERR_UNSUPPORTED: the transport does not
 * survive. TSR_ERR_DEVICE_LOST: the other processes go on without this one. Else as tsr_model_resplit().
 * Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_drop_device(tsr_runtime *rt, int device);

/** How the devices' partial sums are added up, by the size of one device's partial:
 *
 *     "peer"           kernels read the other GPUs' memory, each adds up everything: least latency
 *     "peer two-shot"  kernels add up one share each and read the others' sums: least traffic
 *     "peer push"      kernels write to the other GPUs' memory, each adds up everything
 *     "pinned"         the same through host memory: any GPUs, without peer access too
 *     "nccl"           NVIDIA's library
 *     "staged"         through host memory: works between any devices, GPUs and host devices included
 *
 * With "auto", the implementations that can serve the devices are timed when the runtime is opened, and the
 * fastest serves each size: 4 KiB; 256 KiB and 4 MiB, unless smaller sizes took more than 0.25 s together;
 * other sizes while the collectives take less than 0.1 s together. One that fails is left out with a warning.
 * With "peer", its three forms are timed.
 *
 * In several processes the rows are those of the GPUs of this process, if it has several: "auto" times all
 * but "nccl", which serves them where no kernels do. A last row with `bytes` 0 is of sums between the GPUs
 * of different processes: "peer push" or "pinned" on one machine ("peer push, nccl": NCCL adds up large
 * ones, and those between machines), "nccl", or "staged". "peer" and "pinned" name kernels inside
 * processes and between those of a machine. */
typedef struct tsr_collectives_row {
    size_t bytes;            /**< largest size of this row; of the last row: no limit. 0: of any size,
                                  between processes */
    char implementation[16]; /**< as above */
    uint64_t latency_ns;     /**< of one all-reduce of `bytes`; 0: not measured */
} tsr_collectives_row;

enum { TSR_COLLECTIVES_MAX_ROWS = 8 };

/** Write the rows. Returns the number of rows; 0 if the devices exchange nothing or share their memory (one
 * device, or host devices only). */
TSR_API int tsr_runtime_collectives(const tsr_runtime *rt,
                                    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS]);

/** Time that a device spends in collectives. Counted for host devices; of other devices `known` is false and
 * the times are 0. */
typedef struct tsr_device_times {
    bool known; /**< false: nothing is counted for this device */
    /** time in all-reduces, all-gathers and transfers since tsr_runtime_time_collectives() */
    uint64_t collective_ns;
    /** part of collective_ns until all other devices, and the device's own threads, had arrived: the most
     * that a better split could save */
    uint64_t wait_ns;
} tsr_device_times;

/** Start counting times from 0, or stop counting, which is the initial state. Counting takes about 50 ns per
 * collective. Blocks until running programs have finished. */
TSR_API void tsr_runtime_time_collectives(tsr_runtime *rt, bool on);
/** Write the times of a device. Blocks until running programs have finished. TSR_ERR_INVALID: there is no
 * such device. */
TSR_NODISCARD TSR_API tsr_status tsr_runtime_times(const tsr_runtime *rt, int device,
                                                   tsr_device_times *times_out);

TSR_END_DECLS
#endif
