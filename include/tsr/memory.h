/** @file
 * The owners of bytes on a device: the words of every memory report. */
#ifndef TSR_MEMORY_H
#define TSR_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

/** The use of a byte of device memory. */
typedef enum tsr_memory_owner {
    TSR_MEMORY_WEIGHTS = 0, /**< shards of weights, copied or viewed in a mapped file */
    TSR_MEMORY_KV = 1,      /**< the KV region at its full size, with the states of recurrent layers */
    TSR_MEMORY_ARENA = 2,   /**< activations of compiled programs */
    TSR_MEMORY_COMM = 3,    /**< workspace of the collectives */
    /** memory in which kernels of a GPU work, besides the arena; all programs of the GPU share it */
    TSR_MEMORY_SCRATCH = 4,
    TSR_MEMORY_OTHER = 5, /**< other memory that a caller allocates */
    TSR_MEMORY_COUNT = 6
} tsr_memory_owner;

/** One device's memory in the accounting of a runtime. Bytes; SIZE_MAX = unlimited. Every byte that the
 * runtime takes of the device is in one of used[], runtime and library:
 *
 *     taken = sum of used[] - viewed - (used[TSR_MEMORY_KV] - kv_committed)
 *             + runtime + rounding by the system
 */
typedef struct tsr_device_memory {
    char name[32];                 /**< as in tsr_device_info */
    size_t cap;                    /**< most that used[] may sum up to */
    size_t used[TSR_MEMORY_COUNT]; /**< charged against the cap now, by owner */
    size_t used_total;             /**< sum of used[] */
    size_t peak[TSR_MEMORY_COUNT]; /**< the most since tsr_runtime_reset_peaks(), or the opening */
    size_t peak_total;             /**< the most that used_total was since then */
    size_t viewed;                 /**< of used: memory that is read in place, usually a mapped file's */
    size_t kv_committed; /**< of used[TSR_MEMORY_KV]: backed by memory; the rest are reserved addresses */
    size_t runtime;      /**< not in used: counters and flags of the runtime */
    size_t library;      /**< not in used or taken: memory of NCCL and cuBLASLt */
    size_t taken;        /**< of the device's memory by this runtime's devices alone, see above */
    size_t pinned;       /**< host memory that is pinned for the device's copies */
    size_t pinned_peak;  /**< the most that `pinned` was */
    size_t device_free;  /**< free bytes that the device reports now */
    size_t device_total; /**< all bytes that the device reports; 0: unknown */
    size_t free_at_open; /**< device_free when the runtime had been opened */
    /** device_total without device_free and `taken`: other processes, the driver, libraries */
    size_t elsewhere;
    uint64_t reserved[8]; /**< 0; fields of later versions take its place */
} tsr_device_memory;

/** An object that exists on a runtime: a model, session, buffer, KV region, memory of programs, program,
 * graph or context. */
typedef struct tsr_object_info {
    char name[128]; /**< "buffer with tensors wq to wo", "session of llama.gguf" */
    size_t bytes;   /**< charged to the object itself, on all devices; those of a session are its parts' */
} tsr_object_info;

/** "weights", "kv", "arena", "comm", "scratch", "other"; never NULL. */
TSR_API const char *tsr_memory_owner_name(tsr_memory_owner owner);

TSR_END_DECLS
#endif
