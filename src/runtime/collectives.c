/* Connecting the devices of a runtime.
 *
 * Collectives through host memory serve all devices. GPUs with access to each other's memory also have
 * kernels over peer memory, and distinct GPUs have NCCL, where it is installed. Unless the config names
 * one of these, comm/select.h selects among those that work. Between processes GPUs of a machine have kernels
 * (cuda/comm/between), other GPUs have NCCL, and all devices their transport; the GPUs of one process of
 * several have what those of a single process have, without NCCL. NCCL is not measured among them because all
 * processes make its groups, and make them again after a probe that fails, together. */
#include "runtime/collectives.h"

#include <stdio.h>
#include <string.h>

#include <tsr/runtime.h>

#include "comm/select.h"
#include "comm/distributed.h"
#include "comm/local.h"
#include "comm/reduce.h"
#ifdef TSR_WITH_CUDA
#include "cuda/comm/between/between.h"
#include "cuda/comm/peer.h"
#endif
#ifdef TSR_WITH_NCCL
#include "cuda/comm/nccl.h"
#endif

/* Bits of the requested implementations. */
enum { STAGED = 1, PEER = 2, NCCL = 4, PINNED = 8, AUTO = STAGED | PEER | NCCL | PINNED };

static tsr_status parse(const char *name, int *wanted_out)
{
    static const struct {
        const char *name;
        int wanted;
    } names[] = {{"auto", AUTO}, {"peer", PEER}, {"pinned", PINNED}, {"nccl", NCCL}, {"staged", STAGED}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!name || strcmp(name, names[i].name) == 0) {
            *wanted_out = names[i].wanted;
            return TSR_OK;
        }
    return tsr_fail(TSR_ERR_INVALID, "unknown collectives '%s'; use auto, peer, pinned, nccl or staged",
                    name);
}

/* An implementation could not be made: a failure if it is `required`, that is, if the config names it. One
 * that the machine does not have is worth no warning. */
static tsr_status leave_out(const tsr_runtime *rt, const char *kind, tsr_status status, bool required)
{
    if (status == TSR_ERR_DEVICE_LOST)
        return tsr_comm_fail_lost(kind);
    if (required || status == TSR_ERR_MEMORY)
        return tsr_fail_in(status, "collectives '%s'", kind);
    tsr_log(&rt->logger, status == TSR_ERR_UNSUPPORTED ? TSR_LOG_INFO : TSR_LOG_WARN,
            "collectives: %s is not used: %s", kind, tsr_last_error());
    tsr_fail_clear();
    return TSR_OK;
}

#ifdef TSR_WITH_NCCL

/* Between all GPUs; in one process every device must be one. */
static tsr_status create_nccl(tsr_runtime *rt, tsr_comm **comm_out)
{
    const tsr_comm_nccl_config config = {.logger = &rt->logger, .processes = rt->processes};
    for (int d = 0; d < rt->n_devices && !rt->processes; d++)
        if (!rt->devices[d]->is_gpu && !tsr_device_is_dropped(rt->devices[d]))
            return tsr_fail(TSR_ERR_UNSUPPORTED, "NCCL does not serve device %s", rt->devices[d]->name);
    return tsr_comm_nccl_create(rt->devices, rt->n_devices, &config, comm_out);
}

#else

/* Other processes may have another build. */
static tsr_status create_nccl(tsr_runtime *rt, tsr_comm **comm_out)
{
    (void)comm_out;
    const tsr_status status = tsr_fail(TSR_ERR_UNSUPPORTED, "this build has no NCCL: nccl.h was not found");
    return tsr_processes_try(rt->processes, status, "preparing NCCL");
}

#endif

#ifdef TSR_WITH_CUDA

/* For the collectives that are measured. Their programs take as long to make again: for eight GPUs. GPUs take
 * a few milliseconds for 256 KiB and 4 MiB; only simulated ones, or a broken link, reach the second limit. */
static const tsr_comm_budget budget = {.all_ns = 80000000, .smaller_ns = 250000000};

/* The implementations collected so far. */
typedef struct candidates {
    tsr_comm *comms[TSR_COMM_MAX_MEMBERS];
    int n;
} candidates;

static bool share_gpu(const tsr_device *a, const tsr_device *b)
{
    return a->ops->kind == TSR_DEVICE_CUDA && b->ops->kind == TSR_DEVICE_CUDA && a->place == b->place;
}

/* Check that every device of this process reaches all others; the message names the first pair that does
 * not. */
static tsr_status check_reach(const tsr_runtime *rt, const tsr_device_set *reach)
{
    for (int i = 0; i < rt->n_devices; i++)
        for (int j = 0; j < i; j++) {
            const tsr_device *a = rt->devices[j], *b = rt->devices[i];
            if (tsr_device_set_has(reach[i], j) || a->elsewhere || b->elsewhere)
                continue;
            if (share_gpu(a, b))
                return tsr_fail(TSR_ERR_UNSUPPORTED,
                                "devices %s and %s are on a GPU where at most %d devices "
                                "can wait for each other; set CUDA_DEVICE_MAX_CONNECTIONS=32 in the "
                                "environment of the process, name fewer devices, or use auto or staged",
                                a->name, b->name, tsr_cuda_peers_per_gpu());
            return tsr_fail(TSR_ERR_UNSUPPORTED,
                            "devices %s and %s cannot access each other's memory; use auto, pinned, "
                            "nccl or staged",
                            a->name, b->name);
        }
    return TSR_OK;
}

/* Kernels over peer memory, in all forms: for all devices if `required`, otherwise for those that
 * reach each other. */
static tsr_status add_peer(tsr_runtime *rt, bool required, candidates *found)
{
    tsr_status status = TSR_OK;
    tsr_device_set reach[TSR_MAX_RANKS] = {0};
    bool any = false;
    TSR_TRY(tsr_cuda_peers_test(rt->devices, rt->n_devices, &rt->logger, reach));
    if (required)
        TSR_TRY(check_reach(rt, reach));
    for (int i = 0; i < rt->n_devices; i++)
        any = any || (reach[i] & (reach[i] - 1)) != 0;
    for (tsr_peer_form form = TSR_PEER_ONE_SHOT; form <= TSR_PEER_PUSH && any; form++) {
        TSR_TRY(tsr_comm_peer_create(rt->devices, rt->n_devices, reach, form, &found->comms[found->n]));
        found->n++;
    }
out:
    return status == TSR_OK ? TSR_OK : leave_out(rt, "peer", status, required);
}

/* Kernels over pinned host memory. On one GPU only if they are `required`: its devices reach each other on a
 * shorter way. */
static tsr_status add_pinned(tsr_runtime *rt, bool required, candidates *found)
{
    tsr_status status = TSR_OK;
    tsr_device_set waiting[TSR_MAX_RANKS] = {0};
    bool several = false;
    int first = -1; /* of the devices that can wait for each other */
    tsr_cuda_peers_waiting(rt->devices, rt->n_devices, waiting);
    if (required)
        TSR_TRY(check_reach(rt, waiting));
    for (int i = 0; i < rt->n_devices; i++) {
        first = first < 0 && waiting[i] ? i : first;
        several = several || (waiting[i] && !share_gpu(rt->devices[i], rt->devices[first]));
    }
    if (!several && !required)
        return TSR_OK;
    TSR_TRY(
        tsr_comm_peer_create(rt->devices, rt->n_devices, waiting, TSR_PEER_PINNED, &found->comms[found->n]));
    found->n++;
out:
    return status == TSR_OK ? TSR_OK : leave_out(rt, "pinned", status, required);
}

static tsr_status add_nccl(tsr_runtime *rt, bool required, candidates *found)
{
    tsr_status status = create_nccl(rt, &found->comms[found->n]);
    found->n += status == TSR_OK;
    return status == TSR_OK ? TSR_OK : leave_out(rt, "nccl", status, required);
}

/* Between `members`, devices of this process. */
static tsr_status connect_gpus(tsr_runtime *rt, int wanted, tsr_device_set members, tsr_comm **comm_out)
{
    tsr_status status = TSR_OK;
    candidates found = {0};
    if (wanted & PEER)
        TSR_TRY(add_peer(rt, wanted == PEER, &found));
    else if (wanted & NCCL) /* which writes into the peers' memory, too */
        TSR_TRY(tsr_cuda_peers_open(rt->devices, rt->n_devices, &rt->logger));
    if (wanted & NCCL)
        TSR_TRY(add_nccl(rt, wanted == NCCL, &found));
    if (wanted & PINNED)
        TSR_TRY(add_pinned(rt, wanted == PINNED, &found));
    if (wanted & STAGED) { /* serves what the others do not, so it is the last */
        TSR_TRY(tsr_comm_local_create(rt->n_devices, &found.comms[found.n]));
        found.n++;
    }
    int n = found.n;
    found.n = 0; /* owned by the selection now */
    TSR_TRY(tsr_comm_select_create(rt->devices, rt->n_devices, members, found.comms, n, budget, &rt->logger,
                                   comm_out));
out:
    for (int c = 0; c < found.n; c++)
        tsr_comm_destroy(found.comms[c]);
    return status;
}

#else

/* A build without CUDA opens no GPU. */
static tsr_status connect_gpus(tsr_runtime *rt, int wanted, tsr_device_set members, tsr_comm **comm_out)
{
    (void)wanted, (void)members;
    return tsr_comm_local_create(rt->n_devices, comm_out);
}

#endif

static int count_gpus(const tsr_runtime *rt)
{
    int n = 0;
    for (int d = 0; d < rt->n_devices; d++)
        n += rt->devices[d]->is_gpu;
    return n;
}

/* The devices of this process that are in use, or the GPUs among them. */
static tsr_device_set devices_here(const tsr_runtime *rt, bool only_gpus)
{
    tsr_device_set set = 0;
    for (int d = 0; d < rt->n_devices; d++)
        if (!rt->devices[d]->elsewhere && (rt->devices[d]->is_gpu || !only_gpus))
            set |= tsr_device_set_one(d);
    return set;
}

/* -- several processes -- */

static tsr_status refuse_hosts(const char *name)
{
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "collectives '%s' are between GPUs; host devices share their memory: use auto", name);
}

static const char *kernels_name(int wanted)
{
    return wanted == PEER ? "peer" : "pinned";
}

/* What every process must know of a device: the memory that NCCL has left of it, and the memory that its
 * collectives have taken. */
typedef struct effects {
    uint64_t cap, runtime_bytes;
} effects;

static tsr_status share_effects(tsr_runtime *rt)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < rt->n_devices; d++) {
        tsr_device *device = rt->devices[d];
        effects e = {device->memory_cap, device->accounting.runtime};
        TSR_TRY(tsr_processes_share(rt->processes, device->process, TSR_OK, &e, sizeof e, sizeof e, 1,
                                    "memory beside the collectives"));
        device->memory_cap = (size_t)e.cap;
        tsr_device_forget_runtime(device, device->accounting.runtime); /* of a connection before this one */
        tsr_device_note_runtime(device, (size_t)e.runtime_bytes);
    }
out:
    return status;
}

/* The GPUs of this process, if there are several; *inside_out is NULL where they have NCCL or stage. Does not
 * wait for other processes. */
static tsr_status connect_inside(tsr_runtime *rt, int wanted, tsr_comm **inside_out)
{
    const tsr_device_set here = devices_here(rt, false), gpus = devices_here(rt, true);
    const bool named = wanted == PEER || wanted == PINNED;
    if (wanted == STAGED || tsr_device_set_count(here) < 2)
        return TSR_OK;
    if (named && !gpus)
        return refuse_hosts(kernels_name(wanted));
#ifdef TSR_WITH_CUDA
    if (wanted == NCCL) /* which writes into the peers' memory, too */
        return tsr_cuda_peers_open(rt->devices, rt->n_devices, &rt->logger);
#endif
    if (!named && tsr_device_set_count(gpus) < 2)
        return TSR_OK;
    return connect_gpus(rt, wanted & ~NCCL, gpus, inside_out);
}

/* Whether a process has several devices. */
static bool some_are_together(const tsr_runtime *rt)
{
    for (int d = 1; d < rt->n_devices; d++)
        if (rt->devices[d]->process == rt->devices[d - 1]->process)
            return true;
    return false;
}

static tsr_status refuse_alone(int wanted)
{
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "collectives '%s' are between the GPUs of a machine, and no machine has several; use "
                    "auto, nccl or staged",
                    kernels_name(wanted));
}

static tsr_status check_between(const tsr_runtime *rt, int wanted)
{
    const bool named = wanted == PEER || wanted == PINNED;
    if (named && count_gpus(rt) == 0)
        return refuse_hosts(kernels_name(wanted));
    if (named && count_gpus(rt) < 2)
        return refuse_alone(wanted);
    if (wanted == NCCL && count_gpus(rt) < rt->n_devices)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "collectives 'nccl' are between GPUs, and not all devices of the "
                        "processes are; use auto");
    return TSR_OK;
}

#ifdef TSR_WITH_CUDA

static tsr_status create_between(tsr_runtime *rt, bool pinned, bool named, bool *needs_nccl_out,
                                 tsr_comm **comm_out)
{
    const tsr_comm_between_config config = {
        .processes = rt->processes, .logger = &rt->logger, .pinned = pinned, .named = named};
    return tsr_comm_between_create(rt->devices, rt->n_devices, &config, needs_nccl_out, comm_out);
}

#else

/* Other processes may have another build. */
static tsr_status create_between(tsr_runtime *rt, bool pinned, bool named, bool *needs_nccl_out,
                                 tsr_comm **comm_out)
{
    (void)pinned, (void)named, (void)needs_nccl_out, (void)comm_out;
    return tsr_processes_try(rt->processes, tsr_fail(TSR_ERR_UNSUPPORTED, "this build has no CUDA"),
                             "kernels between processes");
}

#endif

/* Kernels between GPUs of a machine that are in different processes, over peer memory if that works in all of
 * them, otherwise over pinned memory. *comm_out stays NULL where there are no such GPUs. */
static tsr_status connect_machines(tsr_runtime *rt, int wanted, bool *needs_nccl_out, tsr_comm **comm_out)
{
    tsr_status status = TSR_OK;
    bool failed = true;
    *needs_nccl_out = wanted & NCCL;
    for (int pinned = 0; pinned < 2 && failed; pinned++) {
        const int form = pinned ? PINNED : PEER;
        if (!(wanted & form))
            continue;
        status = create_between(rt, pinned, wanted == form, needs_nccl_out, comm_out);
        failed = status != TSR_OK;
        if (failed)
            TSR_TRY(leave_out(rt, pinned ? "pinned between processes" : "peer between processes", status,
                              wanted == form));
    }
    if ((wanted == PEER || wanted == PINNED) && !*comm_out && !some_are_together(rt))
        return refuse_alone(wanted);
out:
    return status;
}

/* Between the GPUs of all processes; NULL: nothing is. */
static tsr_status connect_all_gpus(tsr_runtime *rt, int wanted, tsr_comm **gpus_out)
{
    tsr_status status = TSR_OK;
    tsr_comm *kernels = NULL, *nccl = NULL;
    bool needs_nccl = false;
    TSR_TRY(connect_machines(rt, wanted, &needs_nccl, &kernels));
    if (needs_nccl || wanted == NCCL) {
        status = create_nccl(rt, &nccl);
        if (status != TSR_OK)
            TSR_TRY(leave_out(rt, "nccl", status, wanted == NCCL));
    }
#ifdef TSR_WITH_CUDA
    if (kernels && nccl) {
        tsr_comm_between_add(kernels, nccl);
        nccl = NULL;
    }
#endif
    *gpus_out = kernels ? kernels : nccl;
    kernels = nccl = NULL;
out:
    tsr_comm_destroy(kernels);
    tsr_comm_destroy(nccl);
    return status;
}

/* All processes decide the same: each knows the devices, and what connects GPUs of several processes works in
 * all or in none. What connects the GPUs of a process is its own choice; failing is not. */
static tsr_status connect_processes(tsr_runtime *rt, int wanted)
{
    tsr_status status = TSR_OK;
    const bool several = count_gpus(rt) > 1;
    tsr_comm *gpus = NULL, *inside = NULL;
    TSR_TRY(check_between(rt, wanted));
    status = connect_inside(rt, wanted, &inside);
    if (several)
        status = tsr_processes_try(rt->processes, status, "connecting the devices of each process");
    TSR_TRY(status);
    if (several && wanted != STAGED)
        TSR_TRY(connect_all_gpus(rt, wanted, &gpus));
    status = tsr_comm_distributed_create(rt->processes, rt->devices, rt->n_devices, gpus, inside, &rt->comm);
    gpus = inside = NULL;
    if (status == TSR_OK && several)
        status = share_effects(rt);
out:
    tsr_comm_destroy(gpus);
    tsr_comm_destroy(inside);
    return status;
}

tsr_status tsr_runtime_connect(tsr_runtime *rt, const char *name)
{
    int wanted;
    tsr_status status = parse(name, &wanted);
    if (status != TSR_OK)
        return status;
    if (rt->processes)
        return connect_processes(rt, wanted);
    if (rt->n_devices > 1 && count_gpus(rt) > 0)
        return connect_gpus(rt, wanted, devices_here(rt, false), &rt->comm);
    if (rt->n_devices > 1 && !(wanted & STAGED))
        return refuse_hosts(name);
    return tsr_comm_local_create(rt->n_devices, &rt->comm);
}

tsr_status tsr_runtime_disconnect(tsr_runtime *rt)
{
    tsr_comm *plain = NULL;
    const tsr_status status = tsr_comm_local_create(rt->n_devices, &plain);
    if (status != TSR_OK)
        return status;
    if (!tsr_watch_has_abandoned(rt->watch))
        tsr_comm_destroy(rt->comm);
    rt->comm = plain;
    return TSR_OK;
}

tsr_status tsr_runtime_connect_again(tsr_runtime *rt)
{
    tsr_status status = tsr_runtime_disconnect(rt);
    if (status != TSR_OK)
        return tsr_processes_agree(rt->processes, status, "connecting devices again");
    tsr_comm *plain = rt->comm;
    status = tsr_runtime_connect(rt, *rt->collectives ? rt->collectives : NULL);
    if (rt->processes) /* all have one, or none */
        status = tsr_processes_agree(rt->processes, status, "connecting devices again");
    if (status == TSR_OK) {
        tsr_comm_destroy(plain);
        return TSR_OK;
    }
    if (rt->comm != plain)
        tsr_comm_destroy(rt->comm);
    rt->comm = plain;
    if (rt->processes)
        tsr_processes_lose(rt->processes, tsr_last_error());
    if (status == TSR_ERR_DEVICE_LOST || status == TSR_ERR_MEMORY || rt->processes)
        return status;
    tsr_log(&rt->logger, TSR_LOG_WARN, "sums go through host memory now: %s", tsr_last_error());
    tsr_fail_clear();
    return TSR_OK;
}

/* The row of sums between processes. */
static tsr_collectives_row row_between(const tsr_runtime *rt)
{
    tsr_collectives_row row = {.bytes = 0};
    const tsr_comm *gpus = rt->comm->gpus;
    snprintf(row.implementation, sizeof row.implementation, "%s%s", gpus ? gpus->ops->kind : "staged",
             gpus && gpus->gpus ? ", nccl" : "");
    return row;
}

int tsr_runtime_collectives(const tsr_runtime *rt, tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS])
{
    tsr_comm_row table[TSR_COMM_MAX_ROWS];
    const int n = tsr_comm_select_rows(rt->comm->inside ? rt->comm->inside : rt->comm, table);
    for (int r = 0; r < n; r++) {
        rows[r] = (tsr_collectives_row){.bytes = table[r].bytes, .latency_ns = table[r].latency_ns};
        snprintf(rows[r].implementation, sizeof rows[r].implementation, "%s", table[r].kind);
    }
    if (tsr_processes_count(rt->processes) < 2 || count_gpus(rt) < 2)
        return n;
    rows[n] = row_between(rt);
    return n + 1;
}
