/** @file
 * How the processes of one runtime exchange bytes.
 *
 * A runtime may have its devices in several processes, on one machine or many. Every process then runs the
 * same program: it opens the runtime with its own devices and the same transport, and makes the same calls
 * with the same arguments in the same order ("single program, multiple data"). All see the same runtime: the
 * devices of all processes, process after process. A process computes on its own devices only, what must be
 * summed goes through the transport, and results (logits, tensors, saved pages) come back in every process,
 * the same bytes in each. A call that fails in one process fails in all, with the same sentence.
 *
 *     tsr_transport *mpi;                                  (tsr/mpi.h; or a transport of one's own)
 *     tsr_mpi_transport_create(NULL, &mpi);
 *     tsr_runtime_config config = tsr_runtime_config_default();
 *     config.devices = "host:1,threads=16";                (of this process)
 *     config.transport = mpi;
 *     tsr_runtime_open(&config, &rt);                      (blocks until every process has called it)
 *     tsr_model_open(rt, path, &mc, &model);               (each maps its own copy of the file)
 *     ...
 *     tsr_runtime_close(rt);
 *     tsr_mpi_transport_destroy(mpi);
 *
 * The same in every process: the library's version, the calls and their arguments (tokens, splits, configs),
 * the contents of model files, the order of bytes (little-endian). Devices, instruction sets, machines and
 * paths may differ.
 *
 * Calls that are invalid in one process: a call fails in all processes at once, also where the arguments are
 * invalid in one process only or differ between processes, and the runtime can be used as before. Processes
 * exchange 12 bytes each for it, an exchange that the call makes anyway where there is one:
 *
 *     tsr_session_decode()         the exchange of each chunk, with a checksum of the tokens, their
 *                                  sequences and the lengths of all sequences; one if there are no tokens
 *     tsr_tensor_get()             the exchange of each part that is read
 *     tsr_runtime_memory()         the exchange of the free memory
 *     tsr_runtime_open(), tsr_model_open(), tsr_session_create(), tsr_session_compact(), tsr_tensors_alloc(),
 *     tsr_buffer_from_ptr(), tsr_program_compile(), tsr_program_run(), tsr_trace_start(),
 *     tsr_runtime_measure_links()
 *                                  the exchange at the end of the call
 *     tsr_session_save(), tsr_session_load(), tsr_kv_save(), tsr_kv_load(), tsr_model_resplit(),
 *     tsr_runtime_resplit(), tsr_runtime_measure()
 *                                  one exchange more, at the beginning
 *
 * The object that a call is made for (runtime, model, session, graph, tensor, context) must be given: a
 * process that passes NULL for it fails alone, and so does one whose runtime config has a size that no
 * version had. The other calls exchange nothing, and fail in each process by itself; what tsr_session_trim()
 * and tsr_session_fork() leave different, the next decode refuses.
 *
 * Processes that end or stop: a thread of each process sends a message of about 512 bytes to every other
 * process once a second, and eight times within transport_timeout_ns if that is shorter (the heartbeat). If
 * nothing comes from a process for transport_timeout_ns (0: 60 s), the runtime is lost in the others,
 * whatever call they are in, however long a call of a process may take that is still there. In a step
 * (decoding, running a program) a process that does not arrive within transport_timeout_ns is lost as well,
 * with its heartbeat or without. Every call on a lost runtime returns TSR_ERR_DEVICE_LOST until the runtime
 * is closed, with a sentence that names the process and its machine: "process 2 on alpha has not answered for
 * 60 s". A process that has lost the runtime tells the others why. Where the transport survives, those that
 * are left can go on (tsr_runtime_drop_device()) instead of closing the runtime. Time for which a process
 * itself was stopped does not count, so a job that is stopped as a whole can be continued. Closing waits for
 * the heartbeats of the others, not for their calls: for a second, or transport_timeout_ns where one is
 * lost. */
#ifndef TSR_TRANSPORT_H
#define TSR_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

/** Element type of a sum: two's complement integers that wrap, or IEEE 754 single precision. */
typedef enum tsr_transport_type {
    TSR_TRANSPORT_I32,
    TSR_TRANSPORT_I64,
    TSR_TRANSPORT_F32
} tsr_transport_type;

/** One operation in progress: memory of the caller, for the transport's own use until test() reports that the
 * operation is done. */
typedef struct tsr_transfer {
    uintptr_t word[4]; /**< the transport's own */
} tsr_transfer;

/** A transport. Its functions return NULL, or a sentence about the failure, valid until this thread's next
 * call. After a failure only group_destroy is called. One runtime at a time uses a transport; none can after
 * a runtime on it was lost and closed.
 *
 * Operations only start: they return immediately, and the caller leaves their buffers alone until test()
 * reports that they are done. Several threads make calls at a time, but never two for one group or one pair
 * of processes and tag. Operations of one group start in the same order in every process of it; so do those
 * of one pair and tag. */
typedef struct tsr_transport {
    size_t size; /**< sizeof(tsr_transport) */
    int rank;    /**< of this process, 0 to n_ranks - 1 */
    int n_ranks; /**< processes of the runtime */
    void *user;  /**< the first argument of all functions */

    /** Make a group of ranks[n_ranks], ascending, with this process. Called in the processes of the group
     * only, for all groups in the same order, and after an exchange between all processes. Blocks until all
     * of them have called it. `tag` (below 32768) is the same in each of them, and differs from the tags of
     * other groups that are being made. When it is called after the runtime was opened, a thread of the
     * library makes the call, and is left behind in it if the processes are lost meanwhile. */
    const char *(*group_create)(void *user, const int *ranks, int n_ranks, int tag, void **group_out);
    /** lost: the processes have lost each other, so others may not destroy their groups. */
    void (*group_destroy)(void *user, void *group, bool lost);

    /** Sum over the group, in place: values[n] of `type`, the same result in every process to the bit. */
    const char *(*sum)(void *user, void *group, void *values, size_t n, tsr_transport_type type,
                       tsr_transfer *transfer);

    /** Copy bytes[n] of the group's process `root` (a rank of the runtime) to the others. */
    const char *(*broadcast)(void *user, void *group, int root, void *bytes, size_t n,
                             tsr_transfer *transfer);

    /** Send bytes[n] to process `to`, matched with its receive by tag (below 32768). Tag 4096 is the
     * heartbeat's, smaller ones are of transfers between devices; others follow after losses. */
    const char *(*send)(void *user, int to, int tag, const void *bytes, size_t n, tsr_transfer *transfer);
    /** The other end of `send`. */
    const char *(*receive)(void *user, int from, int tag, void *bytes, size_t n, tsr_transfer *transfer);

    /** Advance the operation; write whether it is done. Never blocks. */
    const char *(*test)(void *user, tsr_transfer *transfer, bool *done_out);

    /** After a process has ended, operations between the others go on, and the others can make groups;
     * what is sent is copied when an operation starts, and what is received is written in test(), so an
     * operation that is no longer tested leaves the caller's memory alone. Then the others can go on
     * (tsr_runtime_drop_device()). */
    bool survives;
} tsr_transport;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_transport_init(tsr_transport *transport_out, size_t size);

/** A single process, without functions. */
static inline tsr_transport tsr_transport_default(void)
{
    tsr_transport transport;
    tsr_transport_init(&transport, sizeof transport);
    return transport;
}

TSR_END_DECLS
#endif
