/* A device owns memory and executes ops. A kind of device (host, CUDA) supplies a struct tsr_device_ops.
 * The layers above src/host and src/cuda call the functions below, which add accounting, the memory cap
 * and error texts.
 *
 * A device is used by one host thread at a time. Programs of different devices run concurrently: launch()
 * on each, then synchronize() on each. Collectives inside a program wait for the other devices' programs,
 * so every device that takes part must be launched. */
#ifndef TSR_CORE_DEVICE_H
#define TSR_CORE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/device_list.h>
#include <tsr/memory.h>

#include "core/op.h"
#include "core/pool.h"
#include "core/processes.h"
#include "core/status.h"
#include "core/time/clock.h"
#include "core/wait/watch.h"

typedef struct tsr_device tsr_device;

/* A device's own form of an op list: host devices keep the list, CUDA devices capture it into a graph. */
typedef struct tsr_device_program tsr_device_program;

/* Functions of one kind of device. Every function that can fail writes its own message with tsr_fail().
 * Pointers given to free/decommit/release are those that alloc/commit/reserve returned, with the same
 * sizes. */
struct tsr_device_ops {
    tsr_device_kind kind; /* TSR_DEVICE_HOST for devices that allocate nothing, too */

    void (*destroy)(tsr_device *device);

    /* Memory. alloc: contents undefined, at least 256-byte aligned; `owner` tells a GPU whether other GPUs
     * need access. reserve: address space only; commit/decommit make whole granules of it usable (new bytes
     * read as zero) or give them back, at any time, in any order. */
    tsr_status (*alloc)(tsr_device *device, tsr_memory_owner owner, size_t bytes, void **pointer_out);
    void (*free)(tsr_device *device, void *pointer, size_t bytes);
    tsr_status (*reserve)(tsr_device *device, size_t bytes, void **base_out);
    void (*release)(tsr_device *device, void *base, size_t bytes);
    tsr_status (*commit)(tsr_device *device, void *base, size_t offset, size_t bytes);
    tsr_status (*decommit)(tsr_device *device, void *base, size_t offset, size_t bytes);
    /* Total and currently free bytes of the device, regardless of who uses the rest; TSR_ERR_UNSUPPORTED
     * if the device cannot report them. tsr_device_memory_info() also applies the cap. */
    tsr_status (*memory_info)(tsr_device *device, size_t *free_out, size_t *total_out);

    /* Make the caller's memory usable by ops without a copy. TSR_ERR_UNSUPPORTED where that would be slow
     * or impossible. The memory must outlive the wrapping, and is never written. Not called concurrently
     * for devices of one runtime. */
    tsr_status (*wrap)(tsr_device *device, const void *pointer, size_t bytes, const void **wrapped_out);
    void (*unwrap)(tsr_device *device, const void *wrapped, size_t bytes);

    /* 2-D copies between host and device memory: `height` rows of `width` bytes. Ordered after everything
     * launched before. An upload has read its source when it returns, and is complete for everything that
     * this device does afterwards; other devices may not see it immediately. Up to n_uploaders threads may
     * upload concurrently, to different bytes, while nothing else uses the device. */
    tsr_status (*upload)(tsr_device *device, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                         size_t width, size_t height);
    tsr_status (*download)(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                           size_t src_stride, size_t width, size_t height);

    /* Host memory that the device's programs copy at each run (TSR_OP_INPUTS): inputs that are written there
     * take no call of the device. It is pinned, and counted as such. Both NULL: inputs are uploaded. */
    tsr_status (*pin)(tsr_device *device, size_t bytes, tsr_pool_block **block_out);
    void (*unpin)(tsr_device *device, tsr_pool_block *block);

    /* 2-D copies inside the device's memory; no overlap. */
    tsr_status (*copy)(tsr_device *device, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                       size_t width, size_t height);

    /* Programs. `ops` is copied, the memory it points to is not. launch() only enqueues. synchronize()
     * waits until everything launched has finished: TSR_ERR_TIMEOUT after timeout_ns (0: no limit, but that
     * of the device's watch), TSR_ERR_DEVICE_LOST if the device makes no progress (core/wait/watch.h),
     * TSR_ERR_RANGE (naming the op) if the exact reduction met an out-of-range value since the last call,
     * TSR_ERR_DEVICE if the communicator was aborted, which ended the program and dropped those queued
     * behind it. */
    tsr_status (*program_create)(tsr_device *device, const tsr_op *ops, int n_ops,
                                 tsr_device_program **program_out);
    void (*program_destroy)(tsr_device *device, tsr_device_program *program);
    tsr_status (*launch)(tsr_device *device, tsr_device_program *program);

    /* Capture together with other devices; tsr_comm_prepare() calls these. prepare() only enqueues;
     * synchronize() then returns the outcome, TSR_ERR_UNSUPPORTED if capture was refused. discard() drops
     * the captured program. NULL: the device does not capture. */
    tsr_status (*prepare)(tsr_device *device, tsr_device_program *program);
    void (*discard)(tsr_device *device, tsr_device_program *program);
    tsr_status (*synchronize)(tsr_device *device, uint64_t timeout_ns);

    /* Wait until at most n_left of the launched programs have not finished; 0 < n_left. Otherwise as
     * synchronize(), which must follow: a failure, of any program that has ended since, is not forgotten. */
    tsr_status (*wait_queue)(tsr_device *device, int n_left, uint64_t timeout_ns);

    /* The checksum (core/checksum.h) of n >= 1 bytes of the device's memory; blocking, ordered as upload,
     * by one thread at a time. NULL: reading the memory back is as fast. */
    tsr_status (*checksum)(tsr_device *device, const void *bytes, size_t n, uint64_t *sum_out);

    /* Marks in the device's streams, for its scratch pool (core/pool.h); NULL where every call but launch
     * returns when its work is done, and launches are synchronized with. */
    tsr_status (*stream_mark)(tsr_device *device, int stream, void **point);
    bool (*stream_passed)(tsr_device *device, void *point);
    tsr_status (*stream_wait)(tsr_device *device, int stream, void *point);
    void (*stream_drop)(tsr_device *device, void *point);

    /* Free memory that is kept for reuse; nothing is in flight. NULL: nothing is kept. */
    void (*trim)(tsr_device *device);
};

/* Streams of a device that has several: of its programs, and of copies from and to it. */
enum { TSR_STREAM_PROGRAMS = 0, TSR_STREAM_COPIES = 1 };

/* Counters of a device's memory in addition to the bytes charged per owner. All in bytes. */
typedef struct tsr_accounting {
    size_t peak[TSR_MEMORY_COUNT], peak_total; /* peak of charged bytes */
    size_t viewed;      /* charged for memory that others own and the device reads in place */
    size_t uncommitted; /* charged for reserved addresses without memory */
    size_t runtime;     /* not charged: memory of the runtime itself on the device, counters and flags */
    size_t library;     /* not charged: measured use of a library (NCCL, cuBLASLt) */
    size_t taken;       /* of the device's memory in total, rounded as the system rounds */
    size_t pinned, pinned_peak; /* host memory, pinned for the device */
    /* free bytes when the runtime was open, and bytes then taken by devices in the same memory */
    size_t free_before;
    size_t taken_before;
} tsr_accounting;

/* The place of a GPU that has no memory but the host's: it shares memory with every host device, too. */
enum { TSR_PLACE_HOST = -1 };

/* The part common to all kinds of devices; a kind embeds it as its first member. */
struct tsr_device {
    const struct tsr_device_ops *ops;
    int index; /* in its runtime */
    char name[32];
    size_t memory_cap;             /* bytes that accounting allows; SIZE_MAX = no cap */
    size_t alignment;              /* of every tensor in this device's memory; a power of two */
    size_t max_alloc;              /* largest single allocation; SIZE_MAX = no limit */
    size_t granularity;            /* of commit/decommit; a power of two */
    int n_threads;                 /* host devices: team size; otherwise 0 */
    char isa[16];                  /* host devices: the instruction set of the kernels; otherwise "" */
    int n_uploaders;               /* threads that may upload concurrently; 0 counts as 1 */
    int polls;                     /* polls of a waiting thread before it sleeps */
    bool was_aborted;              /* the last synchronize failed only because the communicator was aborted
                                    * by another device's failure */
    size_t used[TSR_MEMORY_COUNT]; /* bytes by owner, see tsr/memory.h */
    tsr_accounting accounting;     /* further counters */
    size_t scratch_bytes;          /* shared by programs in addition to their arenas; 0: not needed */
    void *scratch;                 /* allocated while scratch_users > 0 */
    int scratch_users;
    bool host_writes;              /* the calling thread may write memory that no running program uses */
    bool is_gpu;                   /* its kernels round differently from those of host devices */
    tsr_pool_block *scratch_block; /* the pool block of `scratch` */
    tsr_pool *scratch_pool;        /* NULL: not used yet */
    bool prefers_copies; /* weights are read faster from its own memory than in place, even though wrap()
                          * works */
    size_t alloc_unit;   /* the system allocates multiples of this; 0: 1 byte */
    size_t mapped_bytes; /* allocations of at least this size use whole granules; 0: none do */
    bool reserves_whole; /* a reservation uses all of its memory immediately; commits only clear it */
    bool may_exceed;     /* its allocations may be in other memory, so its free bytes do not limit them */
    tsr_device_clock clock;
    _Atomic(const _Atomic bool *) cancelled; /* host: programs end after an op once it is true; NULL: never */
    int place;                /* devices of a kind with the same number share memory: a GPU, a NUMA node */
    tsr_watch *watch;         /* of its runtime; NULL: waits have no limit */
    tsr_processes *processes; /* of its runtime; NULL: single process */
    int process;              /* rank of the process that has the device */
    bool elsewhere; /* a stand-in for a device of another process or for one that was dropped: accounting is
                     * kept, programs are empty, its memory is never accessed */
    bool lost;      /* it is known to be lost, see tsr_device_is_lost() */
    const struct tsr_device_ops *real_ops; /* of a device that was dropped; NULL: `ops` are */
    uintptr_t dry_next;                    /* of a device that only counts: the next address */
};

/* Also of a stand-in, and of a device that is only planned with. */
static inline tsr_device_kind tsr_device_kind_of(const tsr_device *device)
{
    return device->is_gpu ? TSR_DEVICE_CUDA : TSR_DEVICE_HOST;
}

/* Whether the runtime goes on without it (tsr_device_become_dry()). */
static inline bool tsr_device_is_dropped(const tsr_device *device)
{
    return device->real_ops != NULL;
}

/* The functions that release what a device has in host memory, also after it was dropped. */
static inline const struct tsr_device_ops *tsr_device_own_ops(const tsr_device *device)
{
    return device->real_ops ? device->real_ops : device->ops;
}

/* NULL is fine. */
void tsr_device_destroy(tsr_device *device);

/* Whether the device is unusable for good. A GPU is asked, unless it is known. Leaves the last error as it
 * was. */
bool tsr_device_is_lost(tsr_device *device);

/* Bytes of all owners. */
size_t tsr_device_used(const tsr_device *device);

/* Count `bytes` for an owner against the cap without touching memory (a mapped view, a reservation).
 * TSR_ERR_MEMORY names device, `what`, bytes wanted and bytes left. */
tsr_status tsr_device_charge(tsr_device *device, tsr_memory_owner owner, size_t bytes, const char *what);
void tsr_device_uncharge(tsr_device *device, tsr_memory_owner owner, size_t bytes);

/* Charge and allocate; `bytes` 0 gives NULL. Freed with the same owner and bytes. */
tsr_status tsr_device_alloc(tsr_device *device, tsr_memory_owner owner, size_t bytes, const char *what,
                            void **pointer_out);
void tsr_device_free(tsr_device *device, tsr_memory_owner owner, void *pointer, size_t bytes);
/* Memory of ops->alloc(), which is in no account. NULL is fine. */
void tsr_device_free_uncharged(tsr_device *device, void *pointer, size_t bytes);

/* The runtime's own memory on the device: not charged, since no plan includes it; caps leave room for it. */
void tsr_device_note_runtime(tsr_device *device, size_t bytes);
void tsr_device_forget_runtime(tsr_device *device, size_t bytes);

/* Charge and reserve addresses for `bytes` bytes (whole granules); commit and decommit parts of them;
 * release all of it, of which `committed` bytes are committed. */
tsr_status tsr_device_reserve(tsr_device *device, tsr_memory_owner owner, size_t bytes, const char *what,
                              void **base_out);
tsr_status tsr_device_commit(tsr_device *device, void *base, size_t offset, size_t bytes);
tsr_status tsr_device_decommit(tsr_device *device, void *base, size_t offset, size_t bytes);
void tsr_device_release(tsr_device *device, tsr_memory_owner owner, void *base, size_t bytes,
                        size_t committed);

/* Charge `charged` bytes for `bytes` bytes of memory that is read in place. */
tsr_status tsr_device_wrap(tsr_device *device, tsr_memory_owner owner, const void *pointer, size_t bytes,
                           size_t charged, const char *what, const void **wrapped_out);
void tsr_device_unwrap(tsr_device *device, tsr_memory_owner owner, const void *wrapped, size_t bytes,
                       size_t charged);

/* memory_info() of the device, shared by its process with all processes; a collective call of the
 * processes. */
tsr_status tsr_device_ask_memory(tsr_device *device, size_t *free_out, size_t *total_out);

/* As tsr_device_ask_memory(), limited to the cap. */
tsr_status tsr_device_memory_info(tsr_device *device, size_t *free_out, size_t *total_out);

/* Temporary memory that is not planned: a block of the device's scratch pool for work on one of its
 * streams. The pool's memory is charged as scratch. To be returned with the stream that still uses it, or
 * TSR_POOL_HOST. TSR_ERR_MEMORY names device, `what` (a literal) and bytes. */
tsr_status tsr_device_scratch_take(tsr_device *device, size_t bytes, int stream, const char *what,
                                   tsr_pool_block **block_out);
void tsr_device_scratch_give(tsr_device *device, tsr_pool_block *block, int stream);

/* Free memory that is kept for reuse: blocks of the scratch pool, buffers for copies. */
void tsr_device_trim(tsr_device *device);

/* The kernels' scratch, a block of the scratch pool: allocated for its first user, returned by the last.
 * Arenas hold it, and so may programs; a device that runs no programs has none. */
tsr_status tsr_device_hold_scratch(tsr_device *device);
void tsr_device_drop_scratch(tsr_device *device);

/* A download from the device, shared by its process with all processes; a collective call of the
 * processes. */
tsr_status tsr_device_fetch(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                            size_t src_stride, size_t width, size_t height);

/* Contiguous copies. */
tsr_status tsr_device_upload(tsr_device *device, void *dst, const void *src, size_t bytes);
tsr_status tsr_device_download(tsr_device *device, void *dst, const void *src, size_t bytes);
tsr_status tsr_device_copy(tsr_device *device, void *dst, const void *src, size_t bytes);

#endif
