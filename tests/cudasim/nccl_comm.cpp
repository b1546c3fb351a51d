/* The simulated NCCL's communicators: joining, asking, destroying, aborting.
 *
 * Ranks of a communicator share a Clique. A non-blocking communicator does nothing at once: a call returns
 * ncclInProgress, and some polls of ncclCommGetAsyncError later it has taken effect. Using the communicator
 * in between is a violation, as is any use after its end. The last abort of a clique returns when no graph
 * has its operations any more, as it does in several versions of NCCL; destroying one with such graphs is a
 * violation, since that waits without end. */
#include "nccl_sim.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace cudasim
{

enum { COMM_BYTES = 1 << 20 }; /* of device memory, for each rank */

/* With those whose id was drawn here and that no rank has joined. */
std::map<uint64_t, std::shared_ptr<Clique>> &cliques()
{
    static std::map<uint64_t, std::shared_ptr<Clique>> all;
    return all;
}

/* Every communicator of this machine, also those that are gone. */
static std::vector<std::unique_ptr<ncclComm>> &registry()
{
    static std::vector<std::unique_ptr<ncclComm>> all;
    return all;
}

static char last_words[512];

void words(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_words, sizeof last_words, format, args);
    va_end(args);
}

void nccl_forget()
{
    machine().comms.clear();
    cliques().clear();
    registry().clear();
    last_words[0] = '\0';
}

bool comm_alive(ncclComm_t comm, const char *name)
{
    if (machine().comms.count(comm) != 0 && !comm->gone)
        return true;
    violate("%s: no such communicator", name);
    return false;
}

bool comm_ready(ncclComm_t comm)
{
    Clique &clique = *comm->clique;
    Table &table = *clique.segment->table;
    for (ncclComm_t each : clique.ranks)
        if (each != NULL)
            table.seats[each->rank].present = !machine().devices[(size_t)each->device].nccl_absent;
    bool ready = true;
    for (int r = 0; r < clique.n_ranks; r++)
        ready = ready && table.seats[r].present;
    return clique.ready = clique.ready || ready;
}

ncclResult_t comm_state(ncclComm_t comm)
{
    ncclResult_t injected = machine().devices[(size_t)comm->device].nccl_error;
    if (injected != ncclSuccess)
        return injected;
    if (comm->clique->segment->table->failed)
        return ncclInvalidUsage;
    if (comm->async != ncclSuccess)
        return comm->async;
    if (comm->pending.empty())
        return comm_ready(comm) ? ncclSuccess : ncclInProgress;
    if (comm->patience > 0 || !may_launch(comm)) {
        comm->patience -= comm->patience > 0;
        return ncclInProgress;
    }
    while (!comm->pending.empty() && comm->async == ncclSuccess) {
        Launch next = comm->pending.front();
        comm->pending.pop_front();
        next.stream->nccl_pending--;
        comm->async = launch(comm, next);
    }
    return comm->async;
}

static bool shared_gpu_allowed()
{
    const char *enabled = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return machine().config.nccl_version >= NCCL_VERSION(2, 30, 0) && enabled != NULL &&
           strcmp(enabled, "1") == 0;
}

/* The clique of an id that was drawn in any process; NULL: there is none. */
static std::shared_ptr<Clique> find_clique(const ncclUniqueId &id)
{
    auto found = cliques().find(segment_number(id));
    if (found != cliques().end())
        return found->second;
    std::shared_ptr<Clique> clique = std::make_shared<Clique>();
    clique->id = segment_number(id);
    clique->segment = segment_find(id);
    if (clique->segment == NULL) {
        words("the process that drew the id has ended, or its communicator has");
        return NULL;
    }
    return cliques()[clique->id] = clique;
}

/* The seat of the rank, unless another process, or this one, has it or knows another number of ranks. */
static bool take_seat(Clique &clique, int n_ranks, int rank)
{
    Table &table = *clique.segment->table;
    int any = 0, none = 0;
    table.n_ranks.compare_exchange_strong(any, n_ranks);
    if (table.n_ranks != n_ranks || !table.seats[rank].process.compare_exchange_strong(none, (int)getpid())) {
        violate("NCCL: rank %d of %d joins a communicator of %d ranks a second time or wrongly", rank,
                n_ranks, table.n_ranks.load());
        table.failed = true;
        return false;
    }
    clique.n_ranks = n_ranks;
    clique.ranks.resize((size_t)n_ranks);
    return true;
}

static ncclResult_t join(ncclComm_t *out, int n_ranks, const ncclUniqueId &id, int rank, int device,
                         bool blocking)
{
    if (n_ranks < 1 || n_ranks > MOST_RANKS || rank < 0 || rank >= n_ranks)
        return ncclInvalidArgument;
    std::shared_ptr<Clique> clique = find_clique(id);
    if (clique == NULL)
        return ncclRemoteError;
    void *memory = NULL;
    if (device_alloc(machine().devices[(size_t)device], COMM_BYTES, &memory) != cudaSuccess) {
        words("Failed to allocate %d bytes of device memory", (int)COMM_BYTES);
        return ncclUnhandledCudaError;
    }
    if (!take_seat(*clique, n_ranks, rank)) {
        device_free((uintptr_t)memory);
        return ncclInvalidArgument;
    }
    for (ncclComm_t other : clique->ranks)
        if (other != NULL && other->device == device && !shared_gpu_allowed()) {
            words("Duplicate GPU detected : rank %d and rank %d both on device %d", other->rank, rank,
                  device);
            clique->segment->table->failed = true;
        }
    ncclComm_t comm = new ncclComm();
    registry().emplace_back(comm);
    comm->clique = clique;
    comm->rank = rank;
    comm->device = device;
    comm->blocking = blocking;
    comm->memory = memory;
    clique->ranks[(size_t)rank] = comm;
    clique->joined++;
    machine().comms.insert(comm);
    *out = comm;
    return ncclSuccess;
}

ncclResult_t wait_joined(ncclComm_t comm)
{
    std::shared_ptr<Clique> clique = comm->clique;
    const std::atomic<bool> &failed = clique->segment->table->failed;
    bool came = wait_for([&] { return failed || comm_ready(comm); });
    return failed ? ncclInvalidUsage : came ? ncclSuccess : ncclSystemError;
}

/* Calls that have not taken effect do not do so any more. */
static void drop_pending(ncclComm_t comm)
{
    for (Launch &launch : comm->pending)
        if (machine().streams.count(launch.stream) != 0)
            launch.stream->nccl_pending--;
    comm->pending.clear();
}

static bool in_a_graph(const Clique &clique)
{
    for (cudaGraphExec_t exec : machine().execs)
        for (const Node &node : exec->nodes)
            if (node.body->clique == clique.id)
                return true;
    return false;
}

/* Until no graph has operations of the clique. That is no hang,
 * threads that destroy graphs may take their time. */
static void wait_for_graphs(const Clique &clique)
{
    Machine &m = machine();
    uint64_t generation = m.generation;
    while (m.generation == generation && in_a_graph(clique)) {
        pthread_mutex_unlock(&m.mutex);
        usleep(100);
        pthread_mutex_lock(&m.mutex);
    }
}

/* The last of a clique that goes releases them all, perhaps after the graphs that use them. */
static void leave(ncclComm_t comm, bool after_graphs)
{
    std::shared_ptr<Clique> clique = comm->clique;
    uint64_t generation = machine().generation;
    end_outstanding(comm);
    drop_pending(comm);
    comm->gone = true;
    for (std::atomic<uint64_t> &needs : clique->segment->table->seats[comm->rank].needs)
        needs = UINT64_MAX;
    if (++clique->gone != clique->joined)
        return;
    if (after_graphs)
        wait_for_graphs(*clique);
    if (machine().generation != generation) /* everything was forgotten meanwhile */
        return;
    for (ncclComm_t each : clique->ranks) {
        if (each == NULL)
            continue;
        each->released = true;
        machine().comms.erase(each);
        device_free((uintptr_t)each->memory);
    }
    cliques().erase(clique->id);
}

} // namespace cudasim

using namespace cudasim;

ncclResult_t ncclGetVersion(int *version)
{
    Call call("ncclGetVersion", CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    *version = machine().config.nccl_version;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    Call call("ncclGetUniqueId", CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    auto clique = std::make_shared<Clique>();
    clique->segment = segment_create(id);
    if (clique->segment == NULL)
        return ncclSystemError;
    clique->id = segment_number(*id);
    cliques()[clique->id] = clique;
    return ncclSuccess;
}

static ncclResult_t init_rank(const char *name, ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                              bool blocking)
{
    Call call(name, CALL_QUIET | CALL_CONTEXT, ncclSystemError);
    if (call.failed())
        return call.injected() != 0 ? (ncclResult_t)call.injected() : ncclUnhandledCudaError;
    ncclResult_t result = join(comm, n_ranks, id, rank, current_device()->ordinal, blocking);
    if (result != ncclSuccess)
        return result;
    if (group().depth != 0) {
        group().joining.push_back(*comm);
        return ncclSuccess;
    }
    if (!blocking)
        return ncclInProgress;
    result = wait_joined(*comm);
    if (result != ncclSuccess) {
        leave(*comm, false);
        *comm = NULL;
    }
    return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank)
{
    return init_rank("ncclCommInitRank", comm, n_ranks, id, rank, true);
}

/* Of the options only `blocking` is known here. */
static bool config_ok(const ncclConfig_t *config)
{
    ncclConfig_t usual = NCCL_CONFIG_INITIALIZER;
    if (config->size != sizeof *config || config->magic != CUDASIM_NCCL_MAGIC)
        return false; /* not initialised with NCCL_CONFIG_INITIALIZER */
    usual.blocking = config->blocking;
    if (memcmp(&usual.cgaClusterSize, &config->cgaClusterSize,
               sizeof usual - offsetof(ncclConfig_t, cgaClusterSize)) != 0)
        violate("ncclCommInitRankConfig: an option that is not simulated is set");
    return true;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (config != NULL && !config_ok(config))
        return ncclInvalidArgument;
    return init_rank("ncclCommInitRankConfig", comm, n_ranks, id, rank,
                     config == NULL || config->blocking != 0);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n_devices, const int *devices)
{
    ncclUniqueId id;
    ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess)
        return result;
    Call call("ncclCommInitAll", CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    int n_joined = 0;
    while (n_joined < n_devices && result == ncclSuccess) {
        result = join(&comms[n_joined], n_devices, id, n_joined,
                      devices != NULL ? devices[n_joined] : n_joined, true);
        n_joined += result == ncclSuccess;
    }
    if (result == ncclSuccess)
        result = wait_joined(comms[0]);
    for (int i = 0; result != ncclSuccess && i < n_joined; i++)
        leave(comms[i], false);
    return result;
}

/* Waits for what is under way, as NCCL does; only a hang or a poisoned device ends it otherwise. */
static ncclResult_t finalize(ncclComm_t comm, const char *name)
{
    Device &device = machine().devices[(size_t)comm->device];
    if (in_a_graph(*comm->clique))
        violate("%s: a graph still has operations of the communicator, and NCCL waits for its end", name);
    if (!comm->outstanding.empty())
        wait_for([&] { return comm->outstanding.empty() || device.sticky != cudaSuccess; });
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    Call call("ncclCommFinalize", CALL_QUIET | CALL_RELEASE, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    if (!comm_alive(comm, "ncclCommFinalize"))
        return ncclInvalidArgument;
    return call.end_nccl(finalize(comm, "ncclCommFinalize"));
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    Call call("ncclCommDestroy", CALL_QUIET | CALL_RELEASE, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    if (!comm_alive(comm, "ncclCommDestroy"))
        return ncclInvalidArgument;
    use_context(false); /* as in ncclGroupEnd */
    finalize(comm, "ncclCommDestroy");
    leave(comm, false);
    return call.end_nccl(ncclSuccess);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    Call call("ncclCommAbort", CALL_QUIET | CALL_RELEASE, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    if (!comm_alive(comm, "ncclCommAbort"))
        return ncclInvalidArgument;
    use_context(false); /* as in ncclGroupEnd */
    leave(comm, true);
    return call.end_nccl(ncclSuccess);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    Call call("ncclCommGetAsyncError", CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    if (!comm_alive(comm, "ncclCommGetAsyncError"))
        return ncclInvalidArgument;
    *error = comm_state(comm);
    return ncclSuccess;
}

static ncclResult_t ask(const char *name, ncclComm_t comm, int *out, int (*get)(ncclComm_t))
{
    Call call(name, CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    if (!comm_alive(comm, name))
        return ncclInvalidArgument;
    *out = get(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count)
{
    return ask("ncclCommCount", comm, count, [](ncclComm_t c) { return c->clique->n_ranks; });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device)
{
    return ask("ncclCommCuDevice", comm, device, [](ncclComm_t c) { return c->device; });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    return ask("ncclCommUserRank", comm, rank, [](ncclComm_t c) { return c->rank; });
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_words;
}
