/** @file
 * A trace: what each device did, and when.
 *
 * While a trace is recorded, every device of this process writes spans: times in which the device computed,
 * took part in a collective, waited, or copied.
 *
 *     tsr_trace_start(rt, 100000);                       at most 100000 spans of each device
 *     tsr_session_decode(session, &batch, logits);
 *     tsr_device_trace trace;
 *     tsr_trace_read(rt, 0, &trace);                     spans of device 0
 *     tsr_trace_stop(rt);                                frees the spans
 *
 * What a span means:
 *
 * - Host devices: spans are times of the team's first thread, which takes part in every op. A compute span is
 *   an op, or several that run together; on a device with duty= its rest is included. A wait span is the time
 *   until the other threads of the team have finished the op, or, in a collective, until all participants
 *   have arrived. A reduce span is the rest of the collective, in which sums are added up or parts are
 *   copied. Of an op that one thread runs for the whole team, the time is that of this thread. Spans do not
 *   overlap.
 * - GPUs: spans are times of the host thread of the GPU, not of kernels. A compute span is a part of a
 *   program that is launched at a time, from its launch until the GPU has finished: up to a whole step, with
 *   the collectives and waits that the GPU executes itself ("peer", "pinned", "nccl"). Its name is that of
 *   its first op. Only collectives through host memory ("staged") have wait and reduce spans. Copies may
 *   overlap the other spans.
 * - Devices of other processes (tsr/transport.h): none. Each process reads the spans of its own devices.
 *   Every process starts the trace, and times begin when the last has done so: in all within about the time
 *   of an exchange, tens of microseconds. `tsr run --mpi --trace` measures what the clocks differ by, and
 *   writes one file for all processes.
 *
 * Wait spans of collectives and reduce spans together are tsr_device_times.collective_ns of the same time.
 *
 * Recording takes about 100 ns per span. Without a trace, a device tests a pointer per op.
 *
 * Threads: as for all calls on a runtime, one thread at a time.
 */
#ifndef TSR_TRACE_H
#define TSR_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/runtime.h>

TSR_BEGIN_DECLS

/** What a device did during a span. */
typedef enum tsr_span_kind {
    TSR_SPAN_COMPUTE = 0, /**< ran an op */
    TSR_SPAN_REDUCE = 1,  /**< all-reduces, all-gathers and transfers, after all participants had arrived */
    TSR_SPAN_WAIT = 2,    /**< waited for other devices, or for the threads of its own team */
    TSR_SPAN_COPY = 3     /**< copied from or to memory of the caller */
} tsr_span_kind;

/** "compute", "reduce", "wait", "copy"; never NULL. */
TSR_API const char *tsr_span_kind_name(tsr_span_kind kind);

/** A time in which a device did one thing. */
typedef struct tsr_span {
    uint64_t begin_ns; /**< since tsr_trace_start() */
    uint64_t end_ns;   /**< since tsr_trace_start(); at least begin_ns */
    /** kind of the op, "mul_mat" or "all_reduce"; "barrier" of waits for the own team; of copies "upload",
     * "download", "move" (on GPUs "download" only). A constant */
    const char *op;
    tsr_span_kind kind; /**< what the device did */
    /** name of the op, cut to 35 bytes: "blk.3.ffn_up", with the layer where the op belongs to one; "" where
     * the op has none */
    char name[36];
} tsr_span;

/** The spans of a device. */
typedef struct tsr_device_trace {
    const tsr_span *spans; /**< [n_spans] in the order of their ends; of the runtime, until tsr_trace_stop(),
                                tsr_trace_start() or tsr_runtime_close() */
    size_t n_spans;        /**< entries of `spans` */
    size_t n_dropped;      /**< later spans, for which there was no room */
} tsr_device_trace;

/** Start a trace, with room for n_spans spans of each device; a trace that exists is dropped first. Later
 * spans are counted, and not stored. Takes 64 bytes of host memory per span, which are no part of a plan. The
 * pages are used as spans are stored. Blocks until running programs have finished, and until every process of
 * the runtime has made this call; n_spans may differ between them. TSR_ERR_INVALID: n_spans is 0.
 * TSR_ERR_MEMORY, TSR_ERR_DEVICE_LOST; there is no trace then, in any process. */
TSR_NODISCARD TSR_API tsr_status tsr_trace_start(tsr_runtime *rt, size_t n_spans);

/** End the trace and free its spans; no effect without one. Blocks until running programs have finished. */
TSR_API void tsr_trace_stop(tsr_runtime *rt);

/** Nanoseconds since tsr_trace_start(), to relate events of the caller to spans; 0 without a trace. */
TSR_API uint64_t tsr_trace_now(const tsr_runtime *rt);

/** Read the spans of a device so far; recording continues. Blocks until running programs have finished.
 * TSR_ERR_INVALID: there is no such device, or no trace. */
TSR_NODISCARD TSR_API tsr_status tsr_trace_read(const tsr_runtime *rt, int device,
                                                tsr_device_trace *trace_out);

TSR_END_DECLS
#endif
