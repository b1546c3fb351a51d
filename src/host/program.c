/* Op lists on a host device. Every thread of the team goes through the list, runs its share of each op or
 * fused ops (fuse.h), and waits at a barrier.
 *
 * The barrier after an op is omitted where the next op belongs to the same op run (op_runs.h), and where it
 * is an all-reduce or all-gather: those wait for every thread of every participant, this team included,
 * before they read or write anything. The serial part of the barrier resets the chunk counters, decides for
 * all threads whether the program continues, and runs the following ops as long as they are for one thread:
 * the norm of a single token would leave the others waiting at an extra barrier. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/comm.h"
#include "core/event.h"
#include "core/mem.h"
#include "host/fuse.h"
#include "host/packing.h"

/* Ops that are run together, and how; most steps are one op. Or the packing of the op's activations instead
 * of the op: products with packed activations are in the op run after the packing. */
typedef struct step {
    tsr_host_fusion fusion;
    int op, n_ops;
    int place;             /* in the op run; selects the op's counters */
    bool barrier_after;    /* true for the last step */
    bool serial;           /* run in the serial part of the previous barrier */
    bool packs;            /* instead of the op */
    unsigned char *packed; /* where activations are packed; NULL: not packed */
} step;

struct tsr_device_program {
    tsr_host_device *host;
    tsr_comm *comm; /* of all collectives of the program; NULL: none */
    int n_ops, n_steps;
    tsr_op *ops;
    step *steps;
};

static bool waits_for_own_team(const tsr_op *op)
{
    return op->kind == TSR_OP_ALL_REDUCE || op->kind == TSR_OP_ALL_GATHER;
}

static tsr_status check_op(const tsr_host_device *host, const tsr_op *op)
{
    const char *name = op->name ? op->name : "?";
    const tsr_kv_view *kv = &op->attention.kv;
    if (op->kind == TSR_OP_ATTENTION && TSR_MAX(kv->k_dim, kv->v_dim) > TSR_MAX_HEAD_DIM)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "device %s: op '%s': attention heads of %lld elements; the host kernels take at most %d",
            host->base.name, name, (long long)TSR_MAX(kv->k_dim, kv->v_dim), TSR_MAX_HEAD_DIM);
    const char *too_much;
    if (op->kind == TSR_OP_SELECT && !tsr_op_select_fits(&op->select, &too_much))
        return tsr_fail(TSR_ERR_UNSUPPORTED, "device %s: op '%s': too many %s; the host kernels take fewer",
                        host->base.name, name, too_much);
    if (op->kind == TSR_OP_CONV && op->conv.kernel > TSR_MAX_CONV_KERNEL)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "device %s: op '%s': a convolution over %lld tokens; the host kernels take at most %d",
            host->base.name, name, (long long)op->conv.kernel, TSR_MAX_CONV_KERNEL);
    if (op->kind == TSR_OP_RECURRENCE && op->recurrence.dk > TSR_MAX_STATE_ROWS)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "device %s: op '%s': keys of %lld elements; the host kernels take at most %d",
                        host->base.name, name, (long long)op->recurrence.dk, TSR_MAX_STATE_ROWS);
    bool known = op->kind > TSR_OP_NONE && op->kind < TSR_OP_COUNT;
    if (known && (host->kernels->run[op->kind] || tsr_op_collective(op)))
        return TSR_OK;
    return tsr_fail(TSR_ERR_UNSUPPORTED, "device %s: op '%s': the %s kernels have no %s", host->base.name,
                    name, host->kernels->isa, tsr_op_kind_name(op->kind));
}

static void find_steps(tsr_device_program *program)
{
    for (int i = 0, n; i < program->n_ops; i += n) {
        const tsr_host_fusion fusion = tsr_host_fuse(program->host, &program->ops[i], program->n_ops - i, &n);
        program->steps[program->n_steps++] = (step){.fusion = fusion, .op = i, .n_ops = n};
    }
}

/* Fused ops make an op run of their own. */
static void find_stages(tsr_device_program *program)
{
    int begin = 0;
    for (int i = 0; i < program->n_steps; i++) {
        step *s = &program->steps[i];
        const tsr_op *op = &program->ops[s->op];
        const bool last = i + 1 == program->n_steps, starts = begin == i;
        s->place = i - begin;
        s->serial = i > 0 && starts && s[-1].barrier_after && s->n_ops == 1 && tsr_host_is_for_one_thread(op);
        const bool joins = !last && !s->serial && s->n_ops == 1 && s[1].n_ops == 1 &&
                           tsr_host_joins_run(op - s->place, s->place + 1);
        s->barrier_after = last || (!joins && !waits_for_own_team(&program->ops[s[1].op]));
        begin = joins ? begin : i + 1;
    }
}

/* The environment of kernels on thread `thread` of n_threads. */
static tsr_kernel_env env_of(const tsr_host_device *host, int thread, int n_threads)
{
    tsr_host_thread *self = &host->threads[thread];
    return (tsr_kernel_env){.thread = thread,
                            .n_threads = n_threads,
                            .range_fault = &self->range_fault,
                            .scratch = self->scratch,
                            .shared = host->shared,
                            .reading = host->reading,
                            .pairs = host->kernels->pairs};
}

/* The steps that pack the activations of the op run of n steps at stage[0]; they run before the op run.
 * Stored to `out`, which has room for n. Returns their number. */
static int find_packing(const tsr_device_program *program, step *stage, int n, step *out)
{
    const tsr_kernel_env env = env_of(program->host, 0, program->host->base.n_threads);
    const tsr_op *ops[TSR_HOST_RUN_OPS] = {NULL};
    tsr_host_packed packed[TSR_HOST_RUN_OPS];
    int n_out = 0;
    for (int i = 0; i < n; i++)
        ops[i] = &program->ops[stage[i].op];
    tsr_host_find_packed(program->host, &env, ops, n, packed);
    for (int i = 0; i < n; i++) {
        stage[i].packed = packed[i].at;
        if (packed[i].is_first)
            out[n_out] = (step){.op = stage[i].op, .place = n_out, .packs = true, .packed = packed[i].at};
        n_out += packed[i].is_first;
    }
    if (n_out > 0)
        out[n_out - 1].barrier_after = true;
    return n_out;
}

/* The end of the op run that begins with step i. */
static int stage_end(const tsr_device_program *program, int i)
{
    do
        i++;
    while (i < program->n_steps && program->steps[i].place > 0);
    return i;
}

static tsr_status add_packing(tsr_device_program *program)
{
    tsr_status status = TSR_OK;
    step *steps = NULL;
    int n = 0;
    TSR_TRY(tsr_mem_array(2 * (size_t)program->n_steps, sizeof *steps, "the steps of a program", &steps));
    for (int i = 0, end; i < program->n_steps; i = end) {
        end = stage_end(program, i);
        n += find_packing(program, &program->steps[i], end - i, steps + n);
        memcpy(steps + n, &program->steps[i], (size_t)(end - i) * sizeof *steps);
        n += end - i;
    }
    tsr_mem_free(program->steps);
    program->steps = steps;
    program->n_steps = n;
out:
    return status;
}

tsr_status tsr_host_program_create(tsr_device *device, const tsr_op *ops, int n_ops,
                                   tsr_device_program **program_out)
{
    tsr_status status = TSR_OK;
    tsr_host_device *host = tsr_host(device);
    tsr_device_program *program = NULL;

    TSR_TRY(TSR_NEW(&program, "a program"));
    program->host = host;
    program->n_ops = n_ops;
    TSR_TRY(tsr_mem_array((size_t)n_ops, sizeof *program->ops, "the ops of a program", &program->ops));
    TSR_TRY(tsr_mem_array((size_t)n_ops, sizeof *program->steps, "the steps of a program", &program->steps));
    for (int i = 0; i < n_ops; i++) {
        TSR_TRY(check_op(host, &ops[i]));
        program->ops[i] = ops[i];
        if (tsr_op_collective(&ops[i]))
            program->comm = tsr_comm_whole(tsr_op_collective(&ops[i])->comm);
    }
    find_steps(program);
    find_stages(program);
    TSR_TRY(add_packing(program));
    *program_out = program;
    program = NULL;
out:
    tsr_host_program_destroy(device, program);
    return status;
}

void tsr_host_program_destroy(tsr_device *device, tsr_device_program *program)
{
    if (!program)
        return;
    if (tsr_team_wait(tsr_host(device)->team, TSR_FOREVER) != TSR_WAIT_DONE &&
        !tsr_watch_is_forked(device->watch)) {
        tsr_team_abandon(tsr_host(device)->team);
        return; /* a thread may still run it */
    }
    atomic_store(&tsr_host(device)->running, NULL);
    tsr_mem_free(program->steps);
    tsr_mem_free(program->ops);
    tsr_mem_free(program);
}

/* Store how a program failed; the first failure since the last synchronize stays. */
static void set_outcome(tsr_host_device *host, tsr_status status, const tsr_op *op, bool of_kv)
{
    tsr_host_outcome *outcome = &host->outcome;
    if (outcome->status != TSR_OK)
        return;
    outcome->status = status;
    outcome->of_kv = of_kv;
    outcome->op_kind = op->kind;
    snprintf(outcome->op_name, sizeof outcome->op_name, "%s", op->name ? op->name : "?");
    const struct tsr_collective *collective = tsr_op_collective(op);
    outcome->missing =
        collective ? collective->comm->ops->missing(collective->comm, collective, host->base.index) : 0;
    atomic_store(&host->failed, true);
}

/* The serial part after the last op: collect the threads' faults. */
static void finish_program(const tsr_device_program *program)
{
    tsr_host_device *host = program->host;
    int fault_op = -1;
    bool of_kv = false;
    for (int i = 0; i < host->base.n_threads; i++) {
        int op = host->threads[i].fault_op;
        if (op >= 0 && (fault_op < 0 || op < fault_op)) {
            fault_op = op;
            of_kv = host->threads[i].fault_of_kv;
        }
        host->threads[i].fault_op = -1;
    }
    if (fault_op >= 0)
        set_outcome(host, TSR_ERR_RANGE, &program->ops[fault_op], of_kv);
}

/* Whether the product ops[i] is of an attention that gave no finite number. Its input is not overwritten
 * yet. */
static bool is_of_kv(const tsr_op *ops, int i)
{
    const tsr_op_mul_mat *m = &ops[i].mul_mat;
    if (!tsr_op_reads_attention(ops, i))
        return false;
    for (int64_t t = 0; t < m->n_tokens; t++)
        for (int64_t k = 0; k < m->k; k++)
            if (!isfinite(m->x[t * m->x_stride + k]))
                return true;
    return false;
}

/* A throttled device sleeps in proportion to its work. Short sleeps are accumulated, since waking up takes
 * longer than many an op. */
static void rest(const tsr_host_device *host, tsr_host_thread *self, uint64_t worked_ns)
{
    enum { LEAST_NS = 200000, SLICE_NS = 100000000 };
    self->rest_ns += worked_ns * (uint64_t)(100 - host->duty_percent) / (uint64_t)host->duty_percent;
    if (self->rest_ns < LEAST_NS)
        return;
    uint64_t begin = tsr_clock_ns();
    for (uint64_t left = self->rest_ns, ns; left > 0; left -= ns) {
        ns = TSR_MIN(left, (uint64_t)SLICE_NS);
        nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
        tsr_host_note_step(self); /* a device that rests is not one that hangs */
    }
    uint64_t slept = tsr_clock_ns() - begin;
    self->rest_ns = slept < self->rest_ns ? self->rest_ns - slept : 0;
}

static void run_collective(tsr_host_device *host, const tsr_op *op, const tsr_kernel_env *env)
{
    tsr_comm *comm = tsr_op_collective(op)->comm;
    tsr_device_clock *clock =
        env->thread == 0 && tsr_clock_runs(&host->base.clock) ? &host->base.clock : NULL;
    if (clock)
        tsr_clock_begin_collective(clock, op);
    if (!comm->ops->run(comm, &host->base, op, env->thread, env->n_threads))
        atomic_store_explicit(&host->aborted, true, memory_order_relaxed);
    if (clock)
        tsr_clock_end_collective(clock);
}

static void run_kernels(const tsr_device_program *program, const step *s, const tsr_kernel_env *env)
{
    tsr_host_device *host = program->host;
    const tsr_op *op = &program->ops[s->op];
    tsr_host_thread *self = &host->threads[env->thread];
    tsr_trace *trace = env->thread == 0 ? host->base.clock.trace : NULL;
    const uint64_t begin = trace || host->duty_percent < 100 ? tsr_clock_ns() : 0;
    if (s->packs)
        host->kernels->pack(op, env);
    else if (s->fusion != TSR_HOST_FUSION_NONE)
        tsr_host_run_fused(host, s->fusion, op, env);
    else
        host->kernels->run[op->kind](op, env);
    if (host->duty_percent < 100)
        rest(host, self, tsr_clock_ns() - begin);
    if (trace)
        tsr_trace_add_op(trace, TSR_SPAN_COMPUTE, op, begin, tsr_clock_ns());
    if (atomic_load_explicit(&self->range_fault, memory_order_relaxed)) {
        atomic_store_explicit(&self->range_fault, 0, memory_order_relaxed);
        if (self->fault_op < 0) {
            self->fault_op = s->op;
            self->fault_of_kv = is_of_kv(program->ops, s->op);
        }
    }
}

static void run_step(const tsr_device_program *program, const step *s, const tsr_kernel_env *env)
{
    tsr_host_device *host = program->host;
    const tsr_op *op = &program->ops[s->op];
    if (tsr_op_collective(op))
        run_collective(host, op, env);
    else
        run_kernels(program, s, env);
}

/* Run the serial steps from the i-th on, while the other threads wait. Returns the step after them. */
static int run_serial_steps(const tsr_device_program *program, int i)
{
    const tsr_kernel_env env = env_of(program->host, 0, 1);
    for (; i < program->n_steps && program->steps[i].serial; i++) {
        if (tsr_team_is_abandoned(program->host->team))
            break;
        tsr_host_note_step(&program->host->threads[0]);
        atomic_store_explicit(&program->host->running_op, program->steps[i].op, memory_order_relaxed);
        run_step(program, &program->steps[i], &env);
    }
    return i;
}

/* The first thread waits at the barrier after an op: its time until all have arrived, as the last one to
 * arrive sees it. */
static void note_team_wait(tsr_host_device *host, const tsr_op *op)
{
    const tsr_device_clock *clock = &host->base.clock;
    const uint64_t now = tsr_clock_ns();
    if (now > clock->arrived_ns)
        tsr_trace_add(clock->trace, TSR_SPAN_WAIT, "barrier", op->name, clock->arrived_ns, now);
}

/* A device that has failed before goes on to the end, as the others may. */
static bool is_cancelled(const tsr_host_device *host)
{
    const _Atomic bool *cancelled = atomic_load_explicit(&host->base.cancelled, memory_order_relaxed);
    return cancelled && atomic_load_explicit(cancelled, memory_order_relaxed) &&
           host->outcome.status == TSR_OK;
}

/* After step i. Other devices may wait for this one in a collective, and the caller waits for them first. */
static void cancel_program(const tsr_device_program *program, int i)
{
    set_outcome(program->host, TSR_ERR_CANCELLED, &program->ops[program->steps[i].op], false);
    if (program->comm)
        program->comm->ops->abort(program->comm);
}

/* The barrier after step i. False: the program ends here. */
static bool meet_after(const tsr_device_program *program, int i, int thread)
{
    tsr_host_device *host = program->host;
    const bool traced = host->base.clock.trace && host->base.n_threads > 1;
    if (traced && thread == 0)
        host->base.clock.arrived_ns = tsr_clock_ns();
    if (tsr_team_gather(host->team, thread)) {
        if (traced)
            note_team_wait(host, &program->ops[program->steps[i].op]);
        for (int op = 0; op < TSR_HOST_RUN_OPS; op++)
            atomic_store_explicit(&host->next[op].chunk, 0, memory_order_relaxed);
        host->stop = atomic_load_explicit(&host->aborted, memory_order_relaxed);
        if (!host->stop && is_cancelled(host)) {
            host->stop = true;
            cancel_program(program, i);
        } else if (host->stop) {
            set_outcome(host, TSR_ERR_DEVICE, &program->ops[program->steps[i].op], false);
            atomic_store_explicit(&host->aborted, false, memory_order_relaxed);
        }
        if (host->stop || run_serial_steps(program, i + 1) == program->n_steps)
            finish_program(program);
        tsr_team_release(host->team);
    }
    if (tsr_team_is_abandoned(host->team))
        return false;
    return !host->stop; /* changes only in the next serial part, which needs this thread */
}

static void run_steps(tsr_device_program *program, int thread, int n_threads)
{
    tsr_host_device *host = program->host;
    tsr_kernel_env env = env_of(host, thread, n_threads);
    if (host->outcome.status == TSR_ERR_DEVICE || host->outcome.status == TSR_ERR_CANCELLED)
        return; /* queued after an aborted program, whose buffers other devices may still read */
    if (thread == 0) {
        atomic_store(&host->running_op, 0);
        atomic_store(&host->running, program);
    }
    int side = 0;
    for (int i = 0; i < program->n_steps; i++) {
        const step *s = &program->steps[i];
        if (s->serial)
            continue;
        tsr_host_note_step(&host->threads[thread]);
        if (thread == 0)
            atomic_store_explicit(&host->running_op, s->op, memory_order_relaxed);
        env.next = &host->next[s->place].chunk;
        env.shares = host->shares[side];
        env.place = s->place;
        env.packed = s->packed;
        run_step(program, s, &env);
        if (!s->barrier_after)
            continue;
        const bool goes_on = meet_after(program, i, thread);
        tsr_host_shares_clear(&host->shares[side][thread]); /* used again after the next barrier */
        if (!goes_on)
            return;
        side = 1 - side;
    }
}

static void run_program(void *argument, int thread, int n_threads)
{
    tsr_device_program *program = argument;
    tsr_device_clock *clock = &program->host->base.clock;
    const uint64_t begin = thread == 0 && clock->on ? tsr_clock_ns() : 0;
    run_steps(program, thread, n_threads);
    if (begin)
        clock->program_ns += tsr_clock_ns() - begin;
}

tsr_status tsr_host_program_launch(tsr_device *device, tsr_device_program *program)
{
    return tsr_team_submit(tsr_host(device)->team, run_program, program);
}

enum { RUNNING_BYTES = 512 };

/* The op that runs, with its problem and the devices that it waits for. */
static void describe_running(const tsr_host_device *host, const char *problem, char text[RUNNING_BYTES])
{
    char missing[256] = "", op[192];
    const tsr_device_program *program = atomic_load(&host->running);
    snprintf(text, RUNNING_BYTES, "nothing %s", problem);
    if (!program || program->n_ops == 0)
        return;
    /* Index and program are not read atomically: the index may belong to the next program. */
    const int index = TSR_MIN(atomic_load(&host->running_op), program->n_ops - 1);
    const struct tsr_collective *collective = tsr_op_collective(&program->ops[index]);
    if (collective)
        tsr_comm_describe_missing(
            collective->comm->ops->missing(collective->comm, collective, host->base.index), missing,
            sizeof missing);
    tsr_op_describe(program->ops, program->n_ops, index, op, sizeof op);
    snprintf(text, RUNNING_BYTES, "%s %s%s", op, problem, missing);
}

static tsr_status fail_timeout(const tsr_host_device *host, uint64_t timeout_ns)
{
    char running[RUNNING_BYTES], problem[64];
    snprintf(problem, sizeof problem, "did not finish within %.3g ms", (double)timeout_ns / 1e6);
    describe_running(host, problem, running);
    return tsr_fail(TSR_ERR_TIMEOUT, "device %s: %s", host->base.name, running);
}

/* After a wait that ended as TSR_WAIT_STALLED. The device may only wait for another one, which is known
 * once the communicator is aborted; a device that is not idle even then is abandoned. */
static tsr_status fail_stalled(tsr_host_device *host, const char *what)
{
    char running[RUNNING_BYTES], problem[64];
    tsr_watch *watch = host->base.watch;
    if (tsr_watch_is_forked(watch))
        return tsr_watch_check(watch);
    if (what || tsr_watch_is_lost(watch))
        tsr_team_abandon(host->team);
    snprintf(problem, sizeof problem, "made no progress for %.3g s", (double)tsr_watch_stall_ns(watch) / 1e9);
    if (what)
        snprintf(running, sizeof running, "%s %s", what, problem);
    else
        describe_running(host, problem, running);
    return tsr_watch_lose(watch, "device %s: %s; the runtime is lost until it is closed", host->base.name,
                          running);
}

tsr_status tsr_host_await(tsr_host_device *host, const char *what)
{
    tsr_status status = tsr_watch_check(host->base.watch);
    if (status == TSR_OK && tsr_team_wait(host->team, TSR_FOREVER) != TSR_WAIT_DONE)
        status = fail_stalled(host, what);
    return status;
}

uint64_t tsr_host_progress(const void *device)
{
    const tsr_host_device *host = device;
    uint64_t sum = 0;
    for (int i = 0; i < host->base.n_threads; i++) {
        sum = sum * 31 + atomic_load_explicit(&host->threads[i].n_steps, memory_order_relaxed);
        for (int op = 0; op < TSR_HOST_RUN_OPS; op++)
            for (int side = 0; side < 2; side++)
                sum = sum * 31 + atomic_load_explicit(&host->shares[side][i].taken[op], memory_order_relaxed);
    }
    for (int op = 0; op < TSR_HOST_RUN_OPS; op++)
        sum = sum * 31 + (uint64_t)atomic_load_explicit(&host->next[op].chunk, memory_order_relaxed);
    return sum;
}

static tsr_status fail_outcome(const tsr_host_device *host, const tsr_host_outcome *outcome)
{
    char missing_text[256];
    if (outcome->status == TSR_ERR_RANGE && outcome->of_kv)
        return tsr_fail(
            TSR_ERR_RANGE,
            "device %s: op '%s' (%s): attention gave a value that is not a number: keys or values "
            "of this model do not fit the type of the KV cache; use bf16 or f32 for them "
            "(-ctk, -ctv)",
            host->base.name, outcome->op_name, tsr_op_kind_name(outcome->op_kind));
    if (outcome->status == TSR_ERR_RANGE)
        return tsr_fail(TSR_ERR_RANGE,
                        "device %s: op '%s' (%s): a partial sum is not a number or outside the exact "
                        "reduction's range; use the f32 reduction for this model",
                        host->base.name, outcome->op_name, tsr_op_kind_name(outcome->op_kind));
    if (outcome->status == TSR_ERR_CANCELLED)
        return tsr_fail(TSR_ERR_CANCELLED, "device %s: the program was cancelled after op '%s' (%s)",
                        host->base.name, outcome->op_name, tsr_op_kind_name(outcome->op_kind));
    tsr_comm_describe_missing(outcome->missing, missing_text, sizeof missing_text);
    return tsr_fail(outcome->status,
                    "device %s: the program ended at op '%s' (%s): the communicator was "
                    "aborted%s",
                    host->base.name, outcome->op_name, tsr_op_kind_name(outcome->op_kind), missing_text);
}

/* Wait until at most n_left programs are unfinished. Returns the first failure since the last synchronize. */
static tsr_status wait_for(tsr_host_device *host, int n_left, uint64_t timeout_ns)
{
    host->base.was_aborted = false;
    const tsr_wait_end end = tsr_team_wait_queue(host->team, n_left, tsr_deadline_ns(timeout_ns));
    if (end != TSR_WAIT_DONE)
        return end == TSR_WAIT_LATE ? fail_timeout(host, timeout_ns) : fail_stalled(host, NULL);
    if (!atomic_load(&host->failed))
        return TSR_OK;
    host->base.was_aborted = host->outcome.status == TSR_ERR_DEVICE;
    return fail_outcome(host, &host->outcome);
}

tsr_status tsr_host_wait_queue(tsr_device *device, int n_left, uint64_t timeout_ns)
{
    return wait_for(tsr_host(device), n_left, timeout_ns);
}

tsr_status tsr_host_synchronize(tsr_device *device, uint64_t timeout_ns)
{
    tsr_host_device *host = tsr_host(device);
    const tsr_status status = wait_for(host, 0, timeout_ns);
    if (status != TSR_ERR_TIMEOUT && status != TSR_ERR_DEVICE_LOST) { /* the team is idle */
        host->outcome.status = TSR_OK;
        atomic_store(&host->failed, false);
    }
    return status;
}
