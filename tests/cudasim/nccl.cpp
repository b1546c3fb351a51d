/* The simulated NCCL.
 *
 * Ranks of a communicator share a Clique. A call becomes an operation in its stream; when its turn comes the
 * rank has *arrived*, and the last rank to arrive carries the collective out for all. Ranks are compared as
 * they arrive: kind, count, type, operation and root must agree, as they must for NCCL, which checks little
 * of it and hangs or returns rubbish. A disagreement is noted as a violation and becomes the asynchronous
 * error of all ranks. Calls in a group become one operation per communicator and stream. */
#include "sim.h"

#include <string.h>

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cudasim
{

enum Kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };
static const char *const kind_names[] = {"ncclAllReduce",     "ncclReduce", "ncclBroadcast", "ncclAllGather",
                                         "ncclReduceScatter", "ncclSend",   "ncclRecv"};

/* One rank's part in one operation. */
struct Part {
    Kind kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* or root */
    ncclComm_t comm;
    OpRef running;             /* once arrived */
    std::shared_ptr<int> left; /* parts of `running` that are not done */
};
using PartRef = std::shared_ptr<Part>;

struct Clique {
    uint64_t id = 0;
    int n_ranks = 0;
    std::vector<ncclComm_t> ranks;
    int joined = 0;
    bool failed = false;
    std::map<uint64_t, std::vector<PartRef>> slots;                  /* collectives by number: who arrived */
    std::map<std::pair<int, int>, std::deque<PartRef>> sends, recvs; /* by source and destination */
};

struct Pending {
    PartRef part;
    cudaStream_t stream;
};

struct Group {
    uint64_t generation = 0;
    int depth = 0;
    std::vector<Pending> pending;
    std::vector<std::shared_ptr<Clique>> joining;
    ncclResult_t error = ncclSuccess;
};

static Group &group()
{
    static thread_local Group state;
    if (state.generation != machine().generation) {
        state = Group();
        state.generation = machine().generation;
    }
    return state;
}

static std::map<uint64_t, std::shared_ptr<Clique>> &cliques()
{
    static std::map<uint64_t, std::shared_ptr<Clique>> all;
    return all;
}

} // namespace cudasim

using namespace cudasim;

struct ncclComm {
    std::shared_ptr<Clique> clique;
    int rank, device;
    bool blocking;
    ncclResult_t async = ncclSuccess;
    uint64_t next = 0;              /* number of its next collective */
    int thread = 0;                 /* that last made a call outside a group */
    std::vector<OpRef> outstanding; /* arrived, not done */
};

namespace cudasim
{

static size_t type_size(ncclDataType_t type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

/* ---- arithmetic ---- */

template <typename T> static T combine(T a, T b, ncclRedOp_t op)
{
    switch (op) {
    case ncclProd:
        return (T)(a * b);
    case ncclMax:
        return a < b ? b : a;
    case ncclMin:
        return b < a ? b : a;
    default:
        return (T)(a + b);
    }
}

template <typename T> static void combine_all(void *into, const void *from, size_t n, ncclRedOp_t op)
{
    for (size_t i = 0; i < n; i++) {
        T a, b;
        memcpy(&a, (char *)into + i * sizeof(T), sizeof(T));
        memcpy(&b, (const char *)from + i * sizeof(T), sizeof(T));
        a = combine(a, b, op);
        memcpy((char *)into + i * sizeof(T), &a, sizeof(T));
    }
}

/* Signed integers wrap as unsigned ones do; 16-bit floats are rounded at every step, as in a ring. */
static void combine_typed(void *into, const void *from, size_t n, ncclDataType_t type, ncclRedOp_t op)
{
    bool ordered = op == ncclMax || op == ncclMin;
    switch (type) {
    case ncclInt8:
        return combine_all<int8_t>(into, from, n, op);
    case ncclUint8:
        return combine_all<uint8_t>(into, from, n, op);
    case ncclInt32:
        return ordered ? combine_all<int32_t>(into, from, n, op) : combine_all<uint32_t>(into, from, n, op);
    case ncclUint32:
        return combine_all<uint32_t>(into, from, n, op);
    case ncclInt64:
        return ordered ? combine_all<int64_t>(into, from, n, op) : combine_all<uint64_t>(into, from, n, op);
    case ncclUint64:
        return combine_all<uint64_t>(into, from, n, op);
    case ncclFloat16:
        return combine_all<__half>(into, from, n, op);
    case ncclFloat32:
        return combine_all<float>(into, from, n, op);
    case ncclFloat64:
        return combine_all<double>(into, from, n, op);
    default:
        return combine_all<__nv_bfloat16>(into, from, n, op);
    }
}

/* ---- carrying out ---- */

static void part_done(const PartRef &part)
{
    if (--*part->left != 0)
        return;
    std::vector<OpRef> &list = part->comm->outstanding;
    list.erase(std::remove(list.begin(), list.end(), part->running), list.end());
    finish(part->running);
}

static std::vector<char> fetch(const PartRef &part, size_t bytes)
{
    std::vector<char> data(bytes);
    if (range_ok(part->send, bytes))
        copy_bytes(data.data(), part->send, bytes);
    else {
        violate("%s on device %d sends %zu bytes at %p that are not allocated", kind_names[part->kind],
                part->comm->device, bytes, part->send);
        poison(part->comm->device, cudaErrorIllegalAddress);
    }
    return data;
}

static void store(const PartRef &part, const char *data, size_t offset, size_t bytes)
{
    char *to = (char *)part->receive + offset;
    if (range_ok(to, bytes))
        copy_bytes(to, data, bytes);
    else {
        violate("%s on device %d receives %zu bytes at %p that are not allocated", kind_names[part->kind],
                part->comm->device, bytes, (void *)to);
        poison(part->comm->device, cudaErrorIllegalAddress);
    }
}

static void carry_out(const std::vector<PartRef> &parts)
{
    const Part &first = *parts[0];
    int n_ranks = (int)parts.size();
    size_t bytes = first.count * type_size(first.type);
    size_t send_bytes = first.kind == REDUCE_SCATTER ? bytes * (size_t)n_ranks : bytes;
    std::vector<std::vector<char>> data((size_t)n_ranks);
    for (const PartRef &part : parts)
        if (first.kind != BROADCAST || part->comm->rank == first.peer)
            data[(size_t)part->comm->rank] = fetch(part, send_bytes);
    std::vector<char> sum;
    if (first.kind == ALL_REDUCE || first.kind == REDUCE || first.kind == REDUCE_SCATTER) {
        sum = data[0];
        for (int r = 1; r < n_ranks; r++)
            combine_typed(sum.data(), data[(size_t)r].data(), send_bytes / type_size(first.type), first.type,
                          first.op);
    }
    for (const PartRef &part : parts) {
        size_t rank = (size_t)part->comm->rank;
        if (first.kind == ALL_REDUCE || (first.kind == REDUCE && (int)rank == first.peer))
            store(part, sum.data(), 0, bytes);
        else if (first.kind == REDUCE_SCATTER)
            store(part, sum.data() + rank * bytes, 0, bytes);
        else if (first.kind == BROADCAST)
            store(part, data[(size_t)first.peer].data(), 0, bytes);
        else if (first.kind == ALL_GATHER)
            for (size_t r = 0; r < (size_t)n_ranks; r++)
                store(part, data[r].data(), r * bytes, bytes);
    }
}

static void disagree(Clique &clique, const Part &a, const Part &b)
{
    violate("NCCL: rank %d calls %s(count %zu, type %d, op %d, root %d) while rank %d calls %s(count %zu, "
            "type %d, op "
            "%d, root %d)",
            a.comm->rank, kind_names[a.kind], a.count, a.type, a.op, a.peer, b.comm->rank, kind_names[b.kind],
            b.count, b.type, b.op, b.peer);
    for (ncclComm_t comm : clique.ranks)
        if (comm != NULL)
            comm->async = ncclInvalidUsage;
}

static void arrive_collective(Clique &clique, const PartRef &part)
{
    uint64_t number = part->comm->next++;
    std::vector<PartRef> &slot = clique.slots[number];
    if (!slot.empty()) {
        const Part &other = *slot[0];
        if (other.kind != part->kind || other.count != part->count || other.type != part->type ||
            other.op != part->op || other.peer != part->peer) {
            disagree(clique, *part, other);
            part_done(part);
            return;
        }
    }
    slot.push_back(part);
    if ((int)slot.size() != clique.n_ranks)
        return;
    std::vector<PartRef> parts = slot;
    clique.slots.erase(number);
    carry_out(parts);
    for (const PartRef &each : parts)
        part_done(each);
}

static void arrive_pair(Clique &clique, const PartRef &part)
{
    int rank = part->comm->rank;
    std::pair<int, int> key =
        part->kind == SEND ? std::make_pair(rank, part->peer) : std::make_pair(part->peer, rank);
    std::deque<PartRef> &others = part->kind == SEND ? clique.recvs[key] : clique.sends[key];
    if (others.empty()) {
        (part->kind == SEND ? clique.sends[key] : clique.recvs[key]).push_back(part);
        return;
    }
    PartRef other = others.front();
    others.pop_front();
    PartRef send = part->kind == SEND ? part : other, receive = part->kind == SEND ? other : part;
    if (send->count != receive->count || send->type != receive->type) {
        disagree(clique, *send, *receive);
    } else {
        size_t bytes = send->count * type_size(send->type);
        std::vector<char> data = fetch(send, bytes);
        store(receive, data.data(), 0, bytes);
    }
    part_done(send);
    part_done(receive);
}

static void arrive(ncclComm_t comm, const std::vector<Part> &parts, const OpRef &op)
{
    if (machine().comms.count(comm) == 0) {
        violate("an NCCL operation runs after its communicator was destroyed");
        finish(op);
        return;
    }
    comm->outstanding.push_back(op);
    if (machine().devices[(size_t)comm->device].nccl_error != ncclSuccess)
        return; /* never completes; abort ends it */
    std::shared_ptr<Clique> clique = comm->clique;
    auto left = std::make_shared<int>((int)parts.size());
    for (const Part &each : parts) {
        PartRef part = std::make_shared<Part>(each);
        part->running = op;
        part->left = left;
        if (part->kind == SEND || part->kind == RECV)
            arrive_pair(*clique, part);
        else
            arrive_collective(*clique, part);
    }
}

static ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, const std::vector<Part> &parts)
{
    auto body = std::make_shared<Body>();
    body->kind = Body::COLLECTIVE;
    body->device = comm->device;
    body->name = kind_names[parts[0].kind];
    body->arrive = [comm, parts](const OpRef &op) { arrive(comm, parts, op); };
    return enqueue(stream, body, NULL) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/* ---- calls ---- */

static ncclResult_t check(const Part &part, cudaStream_t stream)
{
    ncclComm_t comm = part.comm;
    if (machine().comms.count(comm) == 0)
        return ncclInvalidArgument;
    if (comm->clique->joined != comm->clique->n_ranks || comm->clique->failed)
        return comm->clique->failed ? ncclInvalidUsage : ncclInvalidArgument;
    if (stream == NULL || stream->device != comm->device) {
        violate("%s: rank %d is of device %d, its stream is not", kind_names[part.kind], comm->rank,
                comm->device);
        return ncclInvalidArgument;
    }
    bool rooted = part.kind == REDUCE || part.kind == BROADCAST || part.kind == SEND || part.kind == RECV;
    if (type_size(part.type) == 0 || (unsigned)part.op >= ncclNumOps ||
        (rooted && (part.peer < 0 || part.peer >= comm->clique->n_ranks)))
        return ncclInvalidArgument;
    return ncclSuccess;
}

/* One thread that serves several ranks must group their calls: outside a group, a call may wait for the
 * others. */
static ncclResult_t check_thread(ncclComm_t comm)
{
    int me = thread_state().id;
    for (ncclComm_t other : comm->clique->ranks) {
        if (other != NULL && other != comm && other->thread == me) {
            violate("NCCL: one thread makes calls for ranks %d and %d outside a group", other->rank,
                    comm->rank);
            return ncclInvalidUsage;
        }
    }
    comm->thread = me;
    return ncclSuccess;
}

static ncclResult_t call_part(const char *name, Part part, cudaStream_t stream)
{
    Call call(name, CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    stream = find_stream(stream);
    ncclResult_t result = check(part, stream);
    if (group().depth != 0) {
        if (result == ncclSuccess)
            group().pending.push_back({std::make_shared<Part>(part), stream});
        else
            group().error = result;
        return result;
    }
    if (result == ncclSuccess)
        result = check_thread(part.comm);
    if (result == ncclSuccess)
        result = launch(part.comm, stream, {part});
    return call.end_nccl(result);
}

static ncclResult_t join(ncclComm_t *out, int n_ranks, uint64_t id, int rank, int device, bool blocking)
{
    if (n_ranks < 1 || rank < 0 || rank >= n_ranks)
        return ncclInvalidArgument;
    std::shared_ptr<Clique> &clique = cliques()[id];
    if (clique == NULL) {
        clique = std::make_shared<Clique>();
        clique->id = id;
        clique->n_ranks = n_ranks;
        clique->ranks.resize((size_t)n_ranks);
    }
    if (clique->n_ranks != n_ranks || clique->ranks[(size_t)rank] != NULL) {
        violate("NCCL: rank %d of %d joins a communicator of %d ranks a second time or wrongly", rank,
                n_ranks, clique->n_ranks);
        clique->failed = true;
        return ncclInvalidArgument;
    }
    for (ncclComm_t other : clique->ranks)
        if (other != NULL && other->device == device &&
            machine().config.nccl_version < NCCL_VERSION(2, 30, 0)) {
            clique->failed = true;
            return ncclInvalidUsage; /* "Duplicate GPU detected" */
        }
    ncclComm_t comm = new ncclComm();
    comm->clique = clique;
    comm->rank = rank;
    comm->device = device;
    comm->blocking = blocking;
    clique->ranks[(size_t)rank] = comm;
    clique->joined++;
    machine().comms.insert(comm);
    *out = comm;
    return ncclSuccess;
}

static ncclResult_t wait_joined(const std::shared_ptr<Clique> &clique)
{
    bool came = wait_for([&] { return clique->failed || clique->joined == clique->n_ranks; });
    return clique->failed ? ncclInvalidUsage : came ? ncclSuccess : ncclSystemError;
}

static void leave(ncclComm_t comm)
{
    Clique &clique = *comm->clique;
    clique.ranks[(size_t)comm->rank] = NULL;
    if (std::all_of(clique.ranks.begin(), clique.ranks.end(), [](ncclComm_t other) { return other == NULL; }))
        cliques().erase(clique.id);
    machine().comms.erase(comm);
    delete comm;
}

} // namespace cudasim

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
    static uint64_t next;
    Call call("ncclGetUniqueId", CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    uint64_t n = ++next;
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &n, sizeof n);
    return ncclSuccess;
}

static ncclResult_t init_rank(const char *name, ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                              bool blocking)
{
    Call call(name, CALL_QUIET | CALL_CONTEXT, ncclSystemError);
    if (call.failed())
        return call.injected() != 0 ? (ncclResult_t)call.injected() : ncclUnhandledCudaError;
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    ncclResult_t result = join(comm, n_ranks, number, rank, current_device()->ordinal, blocking);
    if (result != ncclSuccess)
        return result;
    std::shared_ptr<Clique> clique = (*comm)->clique;
    if (group().depth != 0) {
        group().joining.push_back(clique);
        return blocking ? ncclSuccess : ncclInProgress;
    }
    if (!blocking)
        return clique->joined == n_ranks ? ncclSuccess : ncclInProgress;
    result = wait_joined(clique);
    if (result != ncclSuccess) {
        leave(*comm);
        *comm = NULL;
    }
    return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank)
{
    return init_rank("ncclCommInitRank", comm, n_ranks, id, rank, true);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (config != NULL && (config->size != sizeof *config || config->magic != CUDASIM_NCCL_MAGIC))
        return ncclInvalidArgument; /* not initialised with NCCL_CONFIG_INITIALIZER */
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
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    for (int i = 0; i < n_devices; i++) {
        result = join(&comms[i], n_devices, number, i, devices != NULL ? devices[i] : i, true);
        for (int j = 0; result != ncclSuccess && j < i; j++)
            leave(comms[j]);
        if (result != ncclSuccess)
            break;
    }
    return result;
}

static void end_outstanding(ncclComm_t comm)
{
    std::vector<OpRef> ops;
    ops.swap(comm->outstanding);
    for (auto &slot : comm->clique->slots) /* what this rank brought is taken back */
        slot.second.erase(std::remove_if(slot.second.begin(), slot.second.end(),
                                         [&](const PartRef &part) { return part->comm == comm; }),
                          slot.second.end());
    for (auto *pairs : {&comm->clique->sends, &comm->clique->recvs})
        for (auto &queue : *pairs)
            queue.second.erase(std::remove_if(queue.second.begin(), queue.second.end(),
                                              [&](const PartRef &part) { return part->comm == comm; }),
                               queue.second.end());
    for (const OpRef &op : ops)
        finish(op);
}

/* Waits for what is under way, as NCCL does; only a hang or a poisoned device ends it otherwise. */
static ncclResult_t finalize(ncclComm_t comm)
{
    Device &device = machine().devices[(size_t)comm->device];
    if (!comm->outstanding.empty())
        wait_for([&] { return comm->outstanding.empty() || device.sticky != cudaSuccess; });
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    Call call("ncclCommFinalize", CALL_QUIET | CALL_RELEASE, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    return call.end_nccl(machine().comms.count(comm) != 0 ? finalize(comm) : ncclInvalidArgument);
}

static ncclResult_t destroy(const char *name, ncclComm_t comm, bool abort)
{
    Call call(name, CALL_QUIET | CALL_RELEASE, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    if (machine().comms.count(comm) == 0) {
        violate("%s: no such communicator", name);
        return ncclInvalidArgument;
    }
    if (!abort)
        finalize(comm);
    end_outstanding(comm);
    leave(comm);
    return call.end_nccl(ncclSuccess);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    return destroy("ncclCommDestroy", comm, false);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return destroy("ncclCommAbort", comm, true);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    Call call("ncclCommGetAsyncError", CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    if (machine().comms.count(comm) == 0)
        return ncclInvalidArgument;
    ncclResult_t injected = machine().devices[(size_t)comm->device].nccl_error;
    *error = injected != ncclSuccess                         ? injected
             : comm->clique->failed                          ? ncclInvalidUsage
             : comm->clique->joined != comm->clique->n_ranks ? ncclInProgress
                                                             : comm->async;
    return ncclSuccess;
}

static ncclResult_t ask(const char *name, ncclComm_t comm, int *out, int (*get)(ncclComm_t))
{
    Call call(name, CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    if (machine().comms.count(comm) == 0)
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
    return "";
}

ncclResult_t ncclGroupStart(void)
{
    Call call("ncclGroupStart", CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    group().depth++;
    return ncclSuccess;
}

/* One operation per communicator and stream, in the order of their first calls. */
static ncclResult_t launch_group(const std::vector<Pending> &pending)
{
    std::vector<bool> taken(pending.size());
    for (size_t i = 0; i < pending.size(); i++) {
        if (taken[i])
            continue;
        std::vector<Part> parts;
        for (size_t j = i; j < pending.size(); j++) {
            if (pending[j].part->comm == pending[i].part->comm && pending[j].stream == pending[i].stream) {
                parts.push_back(*pending[j].part);
                taken[j] = true;
            }
        }
        ncclResult_t result = launch(pending[i].part->comm, pending[i].stream, parts);
        if (result != ncclSuccess)
            return result;
    }
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    Call call("ncclGroupEnd", CALL_QUIET | CALL_RELEASE, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    Group &state = group();
    if (state.depth == 0) {
        violate("ncclGroupEnd without ncclGroupStart");
        return ncclInvalidUsage;
    }
    if (--state.depth != 0)
        return call.end_nccl(ncclSuccess);
    Group mine;
    std::swap(mine, state);
    state.generation = mine.generation;
    ncclResult_t result = mine.error;
    for (const auto &clique : mine.joining)
        if (result == ncclSuccess && clique->ranks[0] != NULL && clique->ranks[0]->blocking)
            result = wait_joined(clique);
    if (result == ncclSuccess)
        result = launch_group(mine.pending);
    return call.end_nccl(result);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclAllReduce", {ALL_REDUCE, send, receive, count, type, op, 0, comm, NULL, NULL},
                     stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclReduce", {REDUCE, send, receive, count, type, op, root, comm, NULL, NULL}, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclBroadcast",
                     {BROADCAST, send, receive, count, type, ncclSum, root, comm, NULL, NULL}, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclAllGather",
                     {ALL_GATHER, send, receive, send_count, type, ncclSum, 0, comm, NULL, NULL}, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclReduceScatter",
                     {REDUCE_SCATTER, send, receive, receive_count, type, op, 0, comm, NULL, NULL}, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call_part("ncclSend", {SEND, send, NULL, count, type, ncclSum, peer, comm, NULL, NULL}, stream);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call_part("ncclRecv", {RECV, NULL, receive, count, type, ncclSum, peer, comm, NULL, NULL}, stream);
}
