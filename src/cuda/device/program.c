/* Op lists on a CUDA device.
 *
 * A program is cut into segments at its staged collectives (staged.h). A segment is work that a stream can do
 * alone. It is captured once into a CUDA graph and replayed, so that a decode step costs one launch per
 * segment. Where capture is refused, the segment's kernels are launched one by one. The device's host thread
 * goes through the segments: launch, wait, take part in the collective, continue.
 *
 * Programs are captured when they are created, except those whose collectives all devices must enqueue
 * together: these are captured by the devices' host threads when tsr_comm_prepare() requests it. */
#include "cuda/device/program.h"

#include <stdio.h>

#include "core/comm.h"
#include "core/event.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/staged.h"
#include "cuda/context/capture.h"
#include "cuda/context/context.h"
#include "cuda/context/worker.h"
#include "cuda/device/fuse.h"
#include "cuda/device/sums.h"
#include "cuda/device/timing.h"
#include "cuda/kernels/kernels.h"
#include "cuda/libs/cublas.h"
#include "cuda/libs/nvtx.h"
#include "cuda/memory/wrap.h"

typedef struct segment {
    int begin, end;        /* ops */
    int before, after;     /* staged collectives that the segment completes and begins; -1 = none */
    int after_op;          /* index of the op that `after` is; for messages */
    int n_waits;           /* ops that tsr_cuda_waits() */
    cudaGraphExec_t graph; /* NULL: launched op by op */
    cudaGraphExec_t timed; /* the same with events around what waits; NULL: there are none yet */
} segment;

struct tsr_device_program {
    tsr_cuda_device *cuda;
    tsr_comm *comm; /* of all collectives of the program; NULL = none */
    bool holds_scratch;
    bool can_time;  /* the device has the events for it, and where there are graphs those with events */
    bool waits;     /* the program has collectives that all devices must enqueue together, captured or not */
    uint64_t epoch; /* of the communicator at capture */
    int n_ops;
    tsr_op *ops;
    int n_segments;
    segment *segments;
    tsr_cublas_products *products; /* NULL: no op uses cuBLASLt */
    tsr_cuda_staged *staged;
    tsr_pool_block *pinned; /* memory of the staged collectives */
};

/* -- creation -- */

static tsr_status check_ops(const tsr_cuda_device *cuda, const tsr_op *ops, int n_ops)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < n_ops; i++) {
        const tsr_collective *collective = tsr_op_collective(&ops[i]);
        if (!collective)
            status = tsr_cuda_op_check(&ops[i]);
        else if (!collective->comm->ops->enqueue && !collective->comm->ops->stage)
            status = tsr_fail(TSR_ERR_UNSUPPORTED, "%s communicators do not support CUDA devices",
                              collective->comm->ops->kind);
        if (status != TSR_OK)
            return tsr_fail_in(status, "device %s: op '%s' (%s)", cuda->base.name,
                               ops[i].name ? ops[i].name : "?", tsr_op_kind_name(ops[i].kind));
    }
    return TSR_OK;
}

static tsr_status cut(tsr_device_program *program)
{
    int n = 1;
    for (int i = 0; i < program->n_ops; i++)
        n += tsr_cuda_is_staged(&program->ops[i]);
    tsr_status status =
        tsr_mem_array((size_t)n, sizeof *program->segments, "the segments of a program", &program->segments);
    if (status != TSR_OK)
        return status;
    program->n_segments = n;
    segment *s = program->segments;
    *s = (segment){.before = -1, .after = -1};
    for (int i = 0; i < program->n_ops; i++) {
        tsr_collective *collective = tsr_op_collective(&program->ops[i]);
        if (collective) {
            program->comm = tsr_comm_whole(collective->comm);
            program->waits |= collective->comm->ops->enqueue_waits && !tsr_collective_is_alone(collective);
        }
        s->n_waits += tsr_cuda_waits(&program->ops[i]);
        if (!tsr_cuda_is_staged(&program->ops[i]))
            continue;
        s->end = i;
        s->after = (int)(s - program->segments);
        s->after_op = i;
        s[1] = (segment){.begin = i + 1, .before = s->after, .after = -1};
        s++;
    }
    s->end = program->n_ops;
    return TSR_OK;
}

/* A collective of one device: the sum of one partial is its conversion, the gather of one part its copy. */
static tsr_status enqueue_alone(const tsr_op *op, const tsr_op *norm, int device, const tsr_cuda_stream *s)
{
    const void *partial = tsr_op_collective(op)->desc->partial[device];
    if (op->kind == TSR_OP_ALL_REDUCE) {
        const tsr_cuda_reduction reduction = {.type = op->all_reduce.collective->desc->reduce,
                                              .n_parts = 1,
                                              .parts = {partial},
                                              .residual = op->all_reduce.residual,
                                              .y = op->all_reduce.y,
                                              .n = op->all_reduce.n};
        return tsr_cuda_reduce(&reduction, norm ? &norm->rms_norm : NULL, s);
    }
    return TSR_CUDA(cudaMemcpyAsync(op->all_gather.y, partial,
                                    (size_t)(op->all_gather.n * op->all_gather.n_rows) * sizeof(float),
                                    cudaMemcpyDeviceToDevice, s->stream));
}

static tsr_status enqueue_collective(tsr_cuda_device *cuda, const tsr_op *op, const tsr_op *norm,
                                     const tsr_cuda_stream *s, bool *with_norm_out)
{
    tsr_status status = TSR_OK;
    tsr_collective *collective = tsr_op_collective(op);
    tsr_comm *comm = collective->comm;
    *with_norm_out = false;
    if (tsr_collective_is_alone(collective)) {
        *with_norm_out = norm != NULL;
        return enqueue_alone(op, norm, cuda->base.index, s);
    }
    if (tsr_cuda_sums_may_fork(cuda, op))
        return tsr_cuda_sums_fork(cuda, op);
    TSR_TRY(tsr_cuda_sums_join_all(cuda));
    if (norm && comm->ops->enqueue_norm)
        status = comm->ops->enqueue_norm(comm, &cuda->base, op, norm, cuda->stream, with_norm_out);
    if (status == TSR_OK && !*with_norm_out)
        status = comm->ops->enqueue(comm, &cuda->base, op, cuda->stream);
out:
    return status;
}

/* The products from op `at` on that may run side by side, with the norm before them and what comes after
 * them; *n_out: the ops without the norm. Without any product nothing else is set. */
static tsr_cuda_products products_from(const tsr_device_program *program, int first, int at, int end,
                                       int *n_out)
{
    const tsr_op *ops = program->ops;
    const bool normed = ops[at].kind == TSR_OP_RMS_NORM && at + 1 < end;
    const int begin = at + normed;
    tsr_cuda_products p = tsr_cuda_fuse_products(ops, normed ? begin : first, begin, end, n_out);
    if (p.n == 1 && (normed || first == at)) /* a sibling must not write what another reads */
        p.sum = tsr_cuda_fuse_sum(ops + begin, end - begin, program->cuda->base.index);
    *n_out += p.sum != NULL;
    if (normed)
        p.norm = tsr_cuda_fuse_norm_before(&ops[at].rms_norm, &p) ? &ops[at].rms_norm : NULL;
    bool apart = normed && !p.norm; /* the norm is next, and alone */
    for (int i = begin; i < begin + *n_out; i++)
        apart = apart || tsr_cublas_serves(program->products, i);
    return apart ? (tsr_cuda_products){0} : p;
}

/* Enqueue an op that is no collective: products of the same activations together, if kernels can, with what
 * is before and after them or with less of it. */
static tsr_status enqueue_kernels(tsr_device_program *program, int first, int index, int end,
                                  const tsr_cuda_stream *s, int *n_out)
{
    tsr_status status = TSR_OK;
    int n, n_products = 0;
    tsr_cuda_products p = products_from(program, first, index, end, &n);
    tsr_cuda_stream of_products = *s;
    of_products.op_index += p.norm != NULL;
    if (p.n > 1 || p.norm || p.sum)
        status = tsr_cuda_mul_mats(&p, &of_products, &n_products);
    if (status == TSR_OK && n_products == 0 && p.heads.n_ops > 0) {
        n -= p.heads.n_ops;
        p.heads = (tsr_cuda_rope_kv_ops){0};
        status = tsr_cuda_mul_mats(&p, &of_products, &n_products);
    }
    if (status == TSR_OK && n_products == 0) {
        *n_out = 1;
        return tsr_cuda_op_launch(&program->ops[index], s);
    }
    *n_out = (n_products == p.n ? n : n_products) + (p.norm != NULL);
    return status;
}

/* Enqueue op `index` of a segment that ends at `end`, and ops fused with it; *n_out is their number. The ops
 * from `first` on may still run: then this one is their sibling. */
static tsr_status enqueue_ops(tsr_device_program *program, int first, int index, int end, int *n_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device *cuda = program->cuda;
    const tsr_op *op = &program->ops[index];
    end = cuda->without.fusions ? index + 1 : end;
    const tsr_op *norm = tsr_cuda_fuse_norm(op, end - index);
    const tsr_cuda_rope_kv_ops rope_kv = tsr_cuda_fuse_rope_kv(op, end - index);
    tsr_cuda_stream s = {.stream = cuda->stream,
                         .fault = &cuda->words->fault,
                         .op_index = index,
                         .scratch = cuda->base.scratch,
                         .scratch_bytes = cuda->base.scratch_bytes,
                         .props = &cuda->props,
                         .sibling = first < index,
                         .counters = cuda->words->counters};
    bool with_norm = false;
    const bool marked = tsr_cuda_waits(op);
    *n_out = 1;
    if (marked)
        TSR_TRY(tsr_cuda_timing_mark(cuda));
    if (tsr_op_collective(op)) {
        status = enqueue_collective(cuda, op, norm, &s, &with_norm);
        *n_out = with_norm ? 2 : 1;
    } else if (op->kind == TSR_OP_JOIN) {
        status = tsr_cuda_sums_join(cuda, op->join.collective);
    } else if (tsr_cublas_serves(program->products, index)) {
        status = tsr_cublas_launch(program->products, index, &op->mul_mat, &s);
    } else if (rope_kv.n_ops > 0) {
        status = tsr_cuda_rope_kv(rope_kv.q, rope_kv.k, rope_kv.write, &s);
        *n_out = rope_kv.n_ops;
    } else {
        status = enqueue_kernels(program, first, index, end, &s, n_out);
    }
    if (status == TSR_OK && marked)
        status = tsr_cuda_timing_mark(cuda);
out:
    if (status != TSR_OK)
        tsr_fail_in(status, "op '%s' (%s)", op->name ? op->name : "?", tsr_op_kind_name(op->kind));
    return status;
}

/* A stream holds about a thousand launches. The next one waits in CUDA with a lock of the context, and a
 * device that is waited for could not launch its part, if it shares the GPU. So after this many ops, of a few
 * launches each, the stream is waited for without the lock. */
enum { OPS_IN_FLIGHT = 128 };

/* Enqueue the work of one segment, into the graph that is captured from the stream, or onto the stream. The
 * first segment clears the words, the last copies that of faults to the host. */
static tsr_status enqueue_segment(tsr_device_program *program, const segment *seg, bool captured)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device *cuda = program->cuda;
    const tsr_cuda_stream s = {.stream = cuda->stream, .props = &cuda->props};
    if (seg == program->segments)
        TSR_TRY(TSR_CUDA(cudaMemsetAsync(cuda->words, 0, sizeof *cuda->words, cuda->stream)));
    if (seg->before >= 0)
        TSR_TRY(tsr_cuda_staged_end(&program->staged[seg->before], &s));
    for (int i = seg->begin, n, n_calls = 1, first = i; i < seg->end; i += n, n_calls++) {
        if (!tsr_cuda_is_sibling(program->ops, first, i))
            first = i;
        TSR_TRY(enqueue_ops(program, first, i, seg->end, &n));
        if (tsr_cublas_serves(program->products, i)) /* its kernels may let the next one start too early */
            first = i + 1;
        if (!captured && n_calls % OPS_IN_FLIGHT == 0)
            TSR_TRY(tsr_cuda_drain(cuda));
    }
    TSR_TRY(tsr_cuda_sums_join_all(cuda));
    if (seg->after >= 0)
        TSR_TRY(tsr_cuda_staged_begin(&program->staged[seg->after], &s));
    else
        TSR_TRY(TSR_CUDA(cudaMemcpyAsync(cuda->fault_copy, &cuda->words->fault, sizeof *cuda->fault_copy,
                                         cudaMemcpyDeviceToHost, cuda->stream)));
out:
    if (status != TSR_OK)
        (void)!tsr_cuda_sums_join_all(cuda);
    return status;
}

/* One segment of a program. */
typedef struct segment_of {
    tsr_device_program *program;
    const segment *seg;
} segment_of;

static tsr_status enqueue_captured(void *what)
{
    const segment_of *of = what;
    return enqueue_segment(of->program, of->seg, true);
}

static tsr_status capture(tsr_device_program *program, const segment *seg, cudaGraphExec_t *graph_out)
{
    segment_of of = {program, seg};
    return tsr_cuda_capture(program->cuda, enqueue_captured, &of, graph_out);
}

/* A program that cannot be captured still runs; a program whose device is lost does not. */
static tsr_status capture_all(tsr_device_program *program)
{
    if (program->cuda->without.graphs)
        return TSR_OK;
    for (int i = 0; i < program->n_segments; i++) {
        tsr_status status = capture(program, &program->segments[i], &program->segments[i].graph);
        if (status == TSR_OK)
            continue;
        if (status == TSR_ERR_DEVICE_LOST)
            return status;
        tsr_log(&program->cuda->logger, TSR_LOG_WARN,
                "device %s: a program runs without a CUDA graph; each step launches every kernel: %s",
                program->cuda->base.name, tsr_last_error());
        tsr_fail_clear();
        return TSR_OK;
    }
    return TSR_OK;
}

static void drop_graphs(tsr_device_program *program)
{
    for (int i = 0; i < program->n_segments; i++) {
        segment *seg = &program->segments[i];
        if (seg->graph)
            (void)cudaGraphExecDestroy(seg->graph);
        if (seg->timed)
            (void)cudaGraphExecDestroy(seg->timed);
        seg->graph = seg->timed = NULL;
    }
    (void)cudaGetLastError();
}

tsr_status tsr_cuda_program_create(tsr_device *device, const tsr_op *ops, int n_ops,
                                   tsr_device_program **program_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_device_program *program = NULL;
    tsr_status status = check_ops(cuda, ops, n_ops);
    if (status != TSR_OK)
        return status;
    status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    TSR_TRY(TSR_NEW(&program, "a program"));
    program->cuda = cuda;
    TSR_TRY(tsr_device_hold_scratch(device)); /* its address is stored in the graphs */
    program->holds_scratch = true;
    program->n_ops = n_ops;
    TSR_TRY(tsr_mem_array((size_t)n_ops, sizeof *program->ops, "the ops of a program", &program->ops));
    for (int i = 0; i < n_ops; i++)
        program->ops[i] = ops[i];
    TSR_TRY(cut(program));
    TSR_TRY(tsr_cuda_sums_open(cuda, ops, n_ops));
    TSR_TRY(tsr_cublas_products_create(cuda, program->ops, n_ops, &program->products));
    if (program->n_segments > 1)
        TSR_TRY(tsr_cuda_staged_create(cuda, ops, n_ops, &program->staged, &program->pinned));
    if (!program->waits)
        TSR_TRY(capture_all(program));
    tsr_cuda_wrapping_tell(cuda);
    *program_out = program;
    program = NULL;
out:
    tsr_cuda_leave(cuda);
    if (program) {
        tsr_fail_in(status, "device %s", device->name);
        tsr_cuda_program_destroy(device, program);
    }
    return status;
}

void tsr_cuda_program_destroy(tsr_device *device, tsr_device_program *program)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    if (!program)
        return;
    const bool usable = tsr_cuda_enter_to_release(cuda);
    if (tsr_watch_has_abandoned(device->watch)) { /* a thread may still run the program */
        if (program->holds_scratch)
            tsr_device_drop_scratch(device); /* only its accounting */
        if (usable)
            tsr_cuda_leave(cuda);
        return;
    }
    if (usable) {
        drop_graphs(program);
        (void)cudaGetLastError();
        tsr_cuda_leave(cuda);
    }
    tsr_pool_give(cuda->pinned, program->pinned, TSR_POOL_HOST); /* the device is quiescent */
    atomic_store(&cuda->running, NULL);
    if (program->holds_scratch)
        tsr_device_drop_scratch(device);
    tsr_cublas_products_destroy(program->products);
    tsr_mem_free(program->staged);
    tsr_mem_free(program->segments);
    tsr_mem_free(program->ops);
    tsr_mem_free(program);
}

/* -- running: on the device's host thread -- */

static tsr_status run_collective(tsr_device_program *program, const segment *seg)
{
    tsr_cuda_device *cuda = program->cuda;
    const tsr_op *op = &program->staged[seg->after].op;
    tsr_collective *collective = tsr_op_collective(op);
    char missing[256];
    tsr_device_clock *clock = tsr_clock_runs(&cuda->base.clock) ? &cuda->base.clock : NULL;
    if (clock)
        tsr_clock_begin_collective(clock, op);
    if (cuda->base.clock.trace)
        tsr_nvtx_push(op);
    const bool done = collective->comm->ops->run(collective->comm, &cuda->base, op, 0, 1);
    if (cuda->base.clock.trace)
        tsr_nvtx_pop();
    if (clock)
        tsr_clock_end_collective(clock);
    if (done)
        return TSR_OK;
    cuda->outcome.aborted = true;
    tsr_comm_describe_missing(collective->comm->ops->missing(collective->comm, collective, cuda->base.index),
                              missing, sizeof missing);
    return tsr_fail(TSR_ERR_DEVICE, "the program ended at op '%s' (%s): the communicator was aborted%s",
                    op->name ? op->name : "?", tsr_op_kind_name(op->kind), missing);
}

/* Launch a segment and wait until it has ended. */
static tsr_status launch_segment(tsr_device_program *program, segment *seg)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device *cuda = program->cuda;
    const bool timed = cuda->base.clock.timed && program->can_time;
    const cudaGraphExec_t graph = timed && seg->n_waits > 0 ? seg->timed : seg->graph;
    if (timed) {
        TSR_TRY(tsr_cuda_timing_record(cuda, TSR_CUDA_PART_BEGIN));
        tsr_cuda_timing_begin_marks(cuda);
    }
    status = graph ? TSR_CUDA(cudaGraphLaunch(graph, cuda->stream)) : enqueue_segment(program, seg, false);
    tsr_cuda_timing_end_marks(cuda);
    if (status == TSR_OK && timed)
        status = tsr_cuda_timing_record(cuda, TSR_CUDA_PART_END);
    TSR_TRY(status);
    TSR_TRY(tsr_cuda_drain(cuda));
    if (timed)
        TSR_TRY(tsr_cuda_timing_add(cuda, seg->n_waits));
out:
    return status;
}

/* As a span of the trace, and a range of a profiler. */
static tsr_status trace_segment(tsr_device_program *program, segment *seg, tsr_trace *trace)
{
    const tsr_op *first = &program->ops[seg->begin];
    const uint64_t begin = tsr_clock_ns();
    tsr_nvtx_push(first);
    const tsr_status status = launch_segment(program, seg);
    tsr_nvtx_pop();
    if (status == TSR_OK)
        tsr_trace_add_op(trace, TSR_SPAN_COMPUTE, first, begin, tsr_clock_ns());
    return status;
}

static tsr_status run_segment(tsr_device_program *program, segment *seg)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device *cuda = program->cuda;
    tsr_trace *trace = cuda->base.clock.trace;
    atomic_fetch_add_explicit(&cuda->n_steps, 1, memory_order_relaxed);
    if (trace && seg->begin < seg->end)
        TSR_TRY(trace_segment(program, seg, trace));
    else
        TSR_TRY(launch_segment(program, seg));
    if (seg->after >= 0) {
        const uint64_t before_ns = cuda->base.clock.collective_ns;
        atomic_store(&cuda->running_op, seg->after_op);
        TSR_TRY(run_collective(program, seg));
        cuda->base.clock.program_ns += cuda->base.clock.collective_ns - before_ns;
    }
out:
    return status;
}

/* Kernels that wait for other devices return when the communicator is aborted, and the following kernels read
 * undefined data. */
static tsr_status check_aborted(const tsr_device_program *program)
{
    tsr_comm *comm = program->comm;
    if (!comm || !comm->ops->aborted || !comm->ops->aborted(comm))
        return TSR_OK;
    program->cuda->outcome.aborted = true;
    return tsr_fail(TSR_ERR_DEVICE, "the program ended early: the communicator was aborted");
}

static tsr_status check_fault(const tsr_device_program *program)
{
    int fault = *program->cuda->fault_copy;
    if (fault <= 0 || fault > program->n_ops)
        return TSR_OK;
    const tsr_op *op = &program->ops[fault - 1];
    return tsr_fail(TSR_ERR_RANGE,
                    "op '%s' (%s): a partial sum is not a number or outside the exact reduction's range; use "
                    "%sthe f32 reduction for this model",
                    op->name ? op->name : "?", tsr_op_kind_name(op->kind),
                    tsr_op_reads_attention(program->ops, fault - 1)
                        ? "bf16 or f32 for keys and values (-ctk, -ctv) or, if they are, "
                        : "");
}

static tsr_status run_segments(tsr_device_program *program)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_cuda_join_copies(program->cuda));
    if (program->waits && program->epoch != program->comm->epoch)
        drop_graphs(program); /* they contain operations of destroyed communicators */
    for (int i = 0; i < program->n_segments; i++) {
        TSR_TRY(check_aborted(program)); /* the result would be undefined */
        TSR_TRY(run_segment(program, &program->segments[i]));
    }
    TSR_TRY(check_aborted(program));
    TSR_TRY(check_fault(program));
out:
    return status;
}

/* After a failure the other devices would wait for this one, so the communicator is aborted. Work that this
 * device has enqueued may wait for the others; it ends after the abort. Waiting for it here leaves the stream
 * empty for the next call from outside. */
static void quiesce(tsr_device_program *program)
{
    const tsr_cuda_outcome *outcome = &program->cuda->outcome;
    if (!outcome->aborted && program->comm)
        program->comm->ops->abort(program->comm);
    if (outcome->status != TSR_ERR_DEVICE_LOST)
        (void)!tsr_cuda_drain(program->cuda);
}

/* Keep the first failure, with its sentence. */
static void note(const tsr_cuda_device *cuda, tsr_cuda_outcome *outcome, tsr_status status)
{
    if (outcome->status != TSR_OK)
        return;
    snprintf(outcome->text, sizeof outcome->text, "device %s: %s", cuda->base.name, tsr_last_error());
    outcome->status = status;
}

static void run_program(void *argument)
{
    tsr_device_program *program = argument;
    tsr_cuda_device *cuda = program->cuda;
    tsr_cuda_outcome *outcome = &cuda->outcome;
    if (outcome->status != TSR_OK)
        return; /* queued after a failed program, whose buffers other devices may still read */
    atomic_store(&cuda->running_op, 0);
    atomic_store(&cuda->running, program);
    cuda->watched = program->comm && program->comm->ops->poll ? program->comm : NULL;
    cuda->watched_since_ns = tsr_clock_ns();
    tsr_status status = run_segments(program);
    cuda->watched = NULL;
    if (status == TSR_ERR_RANGE)
        note(cuda, &cuda->range, status);
    else if (status != TSR_OK) {
        note(cuda, outcome, status);
        quiesce(program);
    }
}

/* What timed steps need. */
static tsr_status prepare_timing(tsr_device_program *program)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device *cuda = program->cuda;
    int most = 0;
    for (int i = 0; i < program->n_segments; i++)
        most = TSR_MAX(most, program->segments[i].n_waits);
    TSR_TRY(tsr_cuda_timing_reserve(cuda, most));
    for (int i = 0; i < program->n_segments && status == TSR_OK; i++) {
        segment *seg = &program->segments[i];
        if (!seg->graph || seg->n_waits == 0 || seg->timed)
            continue;
        tsr_cuda_timing_begin_marks(cuda);
        status = capture(program, seg, &seg->timed);
        tsr_cuda_timing_end_marks(cuda);
    }
    program->can_time = status == TSR_OK;
out:
    if (status == TSR_OK || status == TSR_ERR_DEVICE_LOST)
        return status;
    tsr_log(&cuda->logger, TSR_LOG_WARN,
            "device %s: a program is not timed, and its split does not adapt: %s", cuda->base.name,
            tsr_last_error());
    tsr_fail_clear();
    return program->waits ? tsr_fail(TSR_ERR_UNSUPPORTED, "the program was not captured") : TSR_OK;
}

/* run_program() without running: only captures. */
static void prepare_program(void *argument)
{
    tsr_device_program *program = argument;
    tsr_cuda_device *cuda = program->cuda;
    tsr_status status = TSR_OK;
    if (program->waits) {
        drop_graphs(program);
        status = capture_all(program);
        program->epoch = program->comm->epoch;
        if (status == TSR_OK && !program->segments[program->n_segments - 1].graph)
            status = tsr_fail(TSR_ERR_UNSUPPORTED, "the program was not captured");
    }
    if (status == TSR_OK && cuda->base.clock.timed)
        status = prepare_timing(program);
    if (status != TSR_OK)
        note(cuda, &cuda->outcome, status);
}

/* -- launching: the caller's thread -- */

tsr_status tsr_cuda_program_launch(tsr_device *device, tsr_device_program *program)
{
    return tsr_cuda_worker_submit(tsr_cuda(device)->worker, run_program, program);
}

tsr_status tsr_cuda_program_prepare(tsr_device *device, tsr_device_program *program)
{
    return program->waits || device->clock.timed
               ? tsr_cuda_worker_submit(tsr_cuda(device)->worker, prepare_program, program)
               : TSR_OK;
}

void tsr_cuda_program_discard(tsr_device *device, tsr_device_program *program)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    if (!program->waits || !tsr_cuda_enter_to_release(cuda))
        return;
    drop_graphs(program);
    tsr_cuda_leave(cuda);
}

/* The devices that a program waits for. Where the host thread takes part in a collective, the collective is
 * known. Inside a stream the position is unknown, but the counters show the devices that have not arrived. */
static tsr_device_set missing_for(const tsr_device_program *program, const tsr_op *current)
{
    const tsr_collective *collective = tsr_op_collective(current);
    int index = program->cuda->base.index;
    tsr_device_set missing = 0;
    if (tsr_cuda_is_staged(current))
        missing = collective->comm->ops->missing(collective->comm, collective, index);
    for (int i = 0; i < program->n_ops && !missing; i++) {
        collective = tsr_op_collective(&program->ops[i]);
        if (collective && collective->comm->ops->enqueue && !tsr_collective_is_alone(collective))
            missing = collective->comm->ops->missing(collective->comm, collective, index);
    }
    return missing;
}

void tsr_cuda_describe_running(const tsr_cuda_device *cuda, const char *problem,
                               char text[TSR_CUDA_RUNNING_BYTES])
{
    char missing[256] = "", op[192] = "the program";
    const tsr_device_program *program = atomic_load(&cuda->running);
    snprintf(text, TSR_CUDA_RUNNING_BYTES, "nothing %s", problem);
    if (!program || program->n_ops == 0)
        return;
    /* Index and program are not read atomically: the index may belong to the next program. */
    const int index = TSR_MIN(atomic_load(&cuda->running_op), program->n_ops - 1);
    tsr_comm_describe_missing(missing_for(program, &program->ops[index]), missing, sizeof missing);
    if (tsr_cuda_is_staged(&program->ops[index]))
        tsr_op_describe(program->ops, program->n_ops, index, op, sizeof op);
    snprintf(text, TSR_CUDA_RUNNING_BYTES, "%s %s%s", op, problem, missing);
}
