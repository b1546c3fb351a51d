/* A communicator over NCCL: its collectives, its abort, and its reset; see nccl.h.
 *
 * Transfers use the clique of all devices, sums and gathers the clique of their participants. */
#include "cuda/comm/nccl.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/event.h"
#include "core/mem.h"
#include "core/processes.h"
#include "cuda/comm/collective.h"
#include "cuda/comm/counters.h"
#include "cuda/comm/nccl_comm.h"
#include "cuda/comm/nccl_ops.h"
#include "cuda/comm/nccl_probe.h"
#include "cuda/comm/peer.h"
#include "cuda/context/context.h"

#define DEFAULT_TIMEOUT_NS 30000000000u

/* -- collectives -- */

/* Connect the members of this process. Between processes the first sums follow at once: NCCL connects
 * ranks at their first sum, and a capture shall not wait for another process. */
static tsr_status connect_here(nccl_comm *comm, tsr_device_set members, const ncclUniqueId *id,
                               tsr_nccl_clique **clique_out)
{
    tsr_status status =
        tsr_nccl_clique_create(&comm->nccl, comm->devices, members, id, comm->timeout_ns, clique_out);
    if (status == TSR_OK && comm->processes)
        status = tsr_nccl_probe(*clique_out, comm->devices, members, comm->timeout_ns);
    return status;
}

/* The id of a clique, if its first member is in this process. */
static tsr_status draw_id(const nccl_comm *comm, tsr_device_set members, ncclUniqueId *id_out)
{
    tsr_cuda_device *first = comm->devices[tsr_device_set_first(members)];
    tsr_status status = first ? tsr_cuda_make_current(first) : TSR_OK;
    if (!first || status != TSR_OK)
        return status;
    status = tsr_nccl_clique_id(&comm->nccl, id_out);
    tsr_cuda_leave(first);
    return status;
}

/* A call of all processes, those without members included; `mine`: the outcome of what precedes. The
 * outcome is the same in every process. */
static tsr_status make_clique(nccl_comm *comm, tsr_device_set members, tsr_status mine,
                              tsr_nccl_clique **clique_out)
{
    tsr_status status = TSR_OK;
    const int root = comm->process[tsr_device_set_first(members)];
    tsr_nccl_clique *clique = NULL;
    ncclUniqueId id = {0};
    if (mine == TSR_OK)
        mine = draw_id(comm, members, &id);
    TSR_TRY(tsr_processes_try(comm->processes, mine, "connecting GPUs"));
    TSR_TRY(tsr_processes_share(comm->processes, root, TSR_OK, &id, sizeof id, sizeof id, 1, "NCCL's id"));
    if (members & comm->here)
        status = connect_here(comm, members, &id, &clique);
    TSR_TRY(tsr_processes_try(comm->processes, status, "GPUs are connected"));
    *clique_out = clique;
    clique = NULL;
out:
    tsr_nccl_clique_destroy(clique, comm->timeout_ns);
    return status;
}

static tsr_status find_group(nccl_comm *comm, tsr_device_set members, nccl_group **group_out)
{
    tsr_status status = TSR_OK;
    nccl_group *group = comm->groups;
    while (group && group->members != members)
        group = group->next;
    if (group) {
        *group_out = group;
        return TSR_OK;
    }
    tsr_nccl_clique *clique = NULL;
    status = TSR_NEW(&group, "NCCL communicators");
    TSR_TRY(make_clique(comm, members, status, &clique));
    group->members = members;
    group->clique = clique;
    group->next = comm->groups;
    comm->groups = group;
    *group_out = group;
    group = NULL;
out:
    tsr_mem_free(group);
    return status;
}

/* NCCL writes a peer's buffers in place where it finds the peers connected. */
static bool nccl_serves(const tsr_comm *base, const tsr_collective_desc *desc)
{
    const nccl_comm *comm = (const nccl_comm *)base;
    return !(desc->participants & ~comm->members) &&
           tsr_cuda_collective_reaches(comm->devices, desc->participants & comm->here);
}

static tsr_status collective_create(tsr_comm *base, const tsr_collective_desc *desc,
                                    tsr_collective **collective_out)
{
    tsr_status status = TSR_OK;
    nccl_comm *comm = (nccl_comm *)base;
    nccl_collective *c = NULL;
    bool alone = (desc->participants & (desc->participants - 1)) == 0;
    if (comm->broken != TSR_OK)
        return tsr_fail(comm->broken, "%s", comm->broken_text);
    if (!nccl_serves(base, desc))
        return tsr_cuda_collective_refuse(desc,
                                          "NCCL has no access to the newest memory of all of its devices; "
                                          "use auto or staged collectives");
    TSR_TRY(TSR_NEW(&c, "a collective"));
    TSR_TRY(tsr_cuda_collective_init(&c->as, base, desc));
    if (!alone)
        TSR_TRY(find_group(comm, desc->kind == TSR_OP_SEND ? comm->members : desc->participants, &c->group));
    *collective_out = &c->as.base;
    c = NULL;
out:
    if (c)
        tsr_cuda_collective_destroy(base, &c->as.base);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "collective '%s'", desc->name ? desc->name : "?");
}

/* -- aborting -- */

static void nccl_abort(tsr_comm *base)
{
    nccl_comm *comm = (nccl_comm *)base;
    atomic_store(&comm->aborted, true);
    for (nccl_group *group = comm->groups; group; group = group->next)
        if (group->clique)
            tsr_nccl_clique_abort(group->clique);
}

static bool nccl_aborted(tsr_comm *base)
{
    return atomic_load(&((nccl_comm *)base)->aborted);
}

/* Work that waits for another process has that process's limit. */
static tsr_status check_wait(nccl_comm *comm, const tsr_cuda_device *cuda)
{
    const int index = cuda->base.index;
    return tsr_cuda_late_check(&comm->late[index], comm->processes, cuda,
                               tsr_cuda_counters_arrivals(&comm->counters, index),
                               tsr_cuda_counters_missing(&comm->counters, comm->members, index));
}

static tsr_status nccl_poll(tsr_comm *base, tsr_device *device)
{
    nccl_comm *comm = (nccl_comm *)base;
    tsr_status status = comm->processes ? check_wait(comm, tsr_cuda(device)) : TSR_OK;
    for (nccl_group *group = comm->groups; group && status == TSR_OK; group = group->next)
        if (group->clique && tsr_device_set_has(group->members, device->index))
            status = tsr_nccl_clique_poll(group->clique, device->index);
    return status;
}

/* NCCL releases a clique when the graphs with its operations are destroyed, which belong to programs. */
static void retire(nccl_comm *comm, nccl_group *group)
{
    if (!group->clique)
        return;
    *tsr_nccl_clique_next(group->clique) = comm->retired;
    comm->retired = group->clique;
    group->clique = NULL;
}

/* Stop calls that have not taken effect. */
static void stop_all(nccl_comm *comm)
{
    for (nccl_group *group = comm->groups; group; group = group->next) {
        if (group->clique)
            tsr_nccl_clique_stop(group->clique, comm->timeout_ns);
        retire(comm, group);
    }
}

static tsr_status make_again(nccl_comm *comm, const tsr_cuda_device *lost)
{
    tsr_status status = TSR_OK;
    if (lost)
        return tsr_fail(TSR_ERR_DEVICE_LOST, "device %s is lost", lost->base.name);
    for (nccl_group *group = comm->groups; group; group = group->next)
        TSR_TRY(make_clique(comm, group->members, TSR_OK, &group->clique));
out:
    return status;
}

/* After an abort. A failure cannot be returned here: later calls on the communicator return it. */
static void nccl_reset(tsr_comm *base)
{
    nccl_comm *comm = (nccl_comm *)base;
    if (!atomic_load(&comm->aborted))
        return;
    stop_all(comm); /* before anything else is enqueued on the devices' streams */
    comm->broken = make_again(comm, tsr_cuda_counters_reset(&comm->counters));
    if (comm->broken != TSR_OK)
        snprintf(
            comm->broken_text, sizeof comm->broken_text,
            "NCCL's communicators were aborted and could not be created again: %s; open the devices again",
            tsr_last_error());
    base->epoch++;
    atomic_store(&comm->aborted, false);
}

static tsr_device_set nccl_missing(tsr_comm *base, const tsr_collective *collective, int index)
{
    return tsr_cuda_counters_missing(&((nccl_comm *)base)->counters, collective->desc->participants, index);
}

/* -- creation -- */

/* Give the memory that NCCL took back to the devices' caps, and keep peers out of what NCCL alone writes. */
static void restore_memory(nccl_comm *comm)
{
    TSR_FOR_DEVICES(i, comm->here) {
        comm->devices[i]->nccl_writes = false;
        comm->devices[i]->base.accounting.library -= comm->taken[i];
        if (comm->caps[i])
            comm->devices[i]->base.memory_cap = comm->caps[i];
    }
}

/* Programs and their graphs are destroyed by now, so NCCL releases everything. */
static void nccl_destroy(tsr_comm *base)
{
    nccl_comm *comm = (nccl_comm *)base;
    nccl_group *group = comm->groups;
    while (group) {
        nccl_group *next = group->next;
        retire(comm, group);
        tsr_mem_free(group);
        group = next;
    }
    while (comm->retired) {
        tsr_nccl_clique *clique = comm->retired;
        comm->retired = *tsr_nccl_clique_next(clique);
        tsr_nccl_clique_destroy(clique, comm->timeout_ns);
    }
    restore_memory(comm);
    tsr_cuda_counters_destroy(&comm->counters);
    tsr_mem_free(comm);
}

static const struct tsr_comm_ops nccl_ops = {
    .kind = "nccl",
    .destroy = nccl_destroy,
    .collective_create = collective_create,
    .collective_destroy = tsr_cuda_collective_destroy,
    .serves = nccl_serves,
    .enqueue_waits = true,
    .enqueue = tsr_nccl_enqueue,
    .enqueue_norm = tsr_nccl_enqueue_norm,
    .poll = nccl_poll,
    .aborted = nccl_aborted,
    .abort = nccl_abort,
    .reset = nccl_reset,
    .missing = nccl_missing,
};

/* Free bytes of the device's GPU, without regard to its cap; 0 if unknown. */
static size_t free_on(tsr_cuda_device *cuda)
{
    size_t available, total;
    return cuda->base.ops->memory_info(&cuda->base, &available, &total) == TSR_OK ? available : 0;
}

/* Lower the cap by the memory that NCCL took. `before`: free bytes on each device before. */
static tsr_status lower_cap(nccl_comm *comm, int i, const size_t *before)
{
    tsr_cuda_device *cuda = comm->devices[i];
    size_t after, total;
    tsr_status status = cuda->base.ops->memory_info(&cuda->base, &after, &total);
    if (status != TSR_OK)
        return status;
    comm->taken[i] = before[i] > after ? before[i] - after : 0;
    cuda->base.accounting.library += comm->taken[i];
    size_t cap = tsr_device_used(&cuda->base) + after;
    if (cap < cuda->base.memory_cap) {
        comm->caps[i] = cuda->base.memory_cap;
        cuda->base.memory_cap = cap;
    }
    return TSR_OK;
}

/* Find two devices on one GPU, by index. */
static bool share_gpu(const nccl_comm *comm, int *a_out, int *b_out)
{
    TSR_FOR_DEVICES(a, comm->here)
        TSR_FOR_DEVICES(b, comm->here)
            if (a < b && comm->devices[a]->ordinal == comm->devices[b]->ordinal) {
                *a_out = a;
                *b_out = b;
                return true;
            }
    return false;
}

/* Within one process NCCL 2.18 to 2.22 write large messages straight into the peers' buffers wherever the
 * driver offers peer access. A GPU that was not given access faults there, which no process survives. NCCL
 * reads the variable once, so it must be set before NCCL is loaded, by this runtime or by anything else in
 * the process. */
static void keep_out_of_closed_memory(const nccl_comm *comm)
{
    const bool is_set = getenv("NCCL_P2P_DIRECT_DISABLE") != NULL;
    if (!tsr_cuda_peers_refused(comm->devices, comm->base.n_devices) ||
        setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0) != 0)
        return;
    if (!is_set && tsr_nccl_library_is_loaded())
        tsr_log(&comm->logger, TSR_LOG_WARN,
                "NCCL: not all GPUs have access to each other's memory, and this process has loaded NCCL "
                "already: versions before 2.23 may then write where they may not, which loses the GPU; set "
                "NCCL_P2P_DIRECT_DISABLE=1 in the environment of the process");
    tsr_log(&comm->logger, TSR_LOG_INFO,
            "NCCL: not all GPUs have access to each other's memory; NCCL_P2P_DIRECT_DISABLE is %s",
            getenv("NCCL_P2P_DIRECT_DISABLE"));
}

static tsr_status check_version(const nccl_comm *comm)
{
    const int version = comm->nccl.version;
    int a, b;
    if (version >= TSR_NCCL_SHARED_GPU_VERSION || !share_gpu(comm, &a, &b))
        return TSR_OK;
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "NCCL %d.%d.%d supports one device per GPU, but devices %s and %s share one; NCCL 2.30 "
                    "supports this with NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment",
                    version / 10000, version / 100 % 100, version % 100, comm->devices[a]->base.name,
                    comm->devices[b]->base.name);
}

static tsr_status connect_devices(nccl_comm *comm)
{
    nccl_group *group;
    int a = 0, b = 0;
    const bool shared = share_gpu(comm, &a, &b);
    tsr_status status = find_group(comm, comm->members, &group);
    if (status == TSR_OK && !comm->processes)
        status = tsr_nccl_probe(group->clique, comm->devices, comm->members, comm->timeout_ns);
    if (shared && status == TSR_ERR_DEVICE)
        return tsr_fail_in(TSR_ERR_UNSUPPORTED,
                           "NCCL refuses devices %s and %s on one GPU; set "
                           "NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment",
                           comm->devices[a]->base.name, comm->devices[b]->base.name);
    return status;
}

/* The devices that NCCL connects. */
static void enlist(nccl_comm *comm, tsr_device *const *devices)
{
    comm->scratch_bytes = SIZE_MAX;
    for (int i = 0; i < comm->base.n_devices; i++) {
        comm->process[i] = devices[i]->process;
        if (!devices[i]->is_gpu || tsr_device_is_dropped(devices[i]))
            continue;
        comm->members |= tsr_device_set_one(i);
        comm->scratch_bytes = TSR_MIN(comm->scratch_bytes, devices[i]->scratch_bytes);
        if (devices[i]->elsewhere)
            continue;
        comm->here |= tsr_device_set_one(i);
        comm->devices[i] = tsr_cuda(devices[i]);
        comm->devices[i]->nccl_writes = true;
    }
}

static tsr_status prepare_here(nccl_comm *comm)
{
    tsr_status status = TSR_OK;
    const int n = comm->base.n_devices;
    keep_out_of_closed_memory(comm);
    TSR_TRY(tsr_nccl_library_load(&comm->nccl));
    TSR_TRY(check_version(comm));
    TSR_TRY(tsr_cuda_counters_create(&comm->counters, comm->devices, n, (size_t)n * sizeof(uint64_t), 0));
out:
    return status;
}

tsr_status tsr_comm_nccl_create(tsr_device *const *devices, int n_devices, const tsr_comm_nccl_config *config,
                                tsr_comm **comm_out)
{
    tsr_status status = TSR_OK;
    nccl_comm *comm = NULL;
    tsr_processes *processes = config ? config->processes : NULL;
    size_t before[TSR_NCCL_MAX_RANKS] = {0};
    if (n_devices < 1 || n_devices > TSR_NCCL_MAX_RANKS)
        return tsr_fail(TSR_ERR_INVALID, "a communicator between %d devices; 1 to %d are possible", n_devices,
                        TSR_NCCL_MAX_RANKS);
    status = TSR_NEW(&comm, "a communicator");
    if (status == TSR_OK) {
        comm->base = (tsr_comm){.ops = &nccl_ops, .n_devices = n_devices};
        comm->timeout_ns = config && config->timeout_ns ? config->timeout_ns : DEFAULT_TIMEOUT_NS;
        if (config && config->logger)
            comm->logger = *config->logger;
        comm->processes = processes;
        if (processes)
            comm->timeout_ns = TSR_MIN(comm->timeout_ns, tsr_processes_step_limit_ns(processes));
        enlist(comm, devices);
        status = prepare_here(comm);
    }
    TSR_TRY(tsr_processes_try(processes, status, "preparing NCCL"));
    TSR_FOR_DEVICES(i, comm->here)
        before[i] = free_on(comm->devices[i]);
    TSR_TRY(connect_devices(comm));
    TSR_FOR_DEVICES(i, comm->here)
        status = status == TSR_OK ? lower_cap(comm, i, before) : status;
    TSR_TRY(tsr_processes_try(processes, status, "NCCL's memory"));
    tsr_log(&comm->logger, TSR_LOG_INFO, "NCCL %d.%d.%d connects %d devices", comm->nccl.version / 10000,
            comm->nccl.version / 100 % 100, comm->nccl.version % 100, tsr_device_set_count(comm->members));
    *comm_out = &comm->base;
    comm = NULL;
out:
    if (comm)
        nccl_destroy(&comm->base);
    return status;
}
