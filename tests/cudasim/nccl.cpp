/* The simulated NCCL's operations.
 *
 * A call becomes an operation in its stream; when its turn comes the rank has *arrived*, and posts its
 * part in the memory that the ranks share (nccl_segment.cpp). When all have posted theirs, each process
 * carries the collective out for its own ranks; what other processes post is noticed while a host thread
 * waits. Ranks are compared as they arrive: kind, count, type, operation, root, and whether the call was
 * captured into a graph must agree, as they must for NCCL, which checks little of it and hangs or returns
 * rubbish. A disagreement is noted as a violation and becomes the asynchronous error of all ranks. Calls
 * in a group become one operation per communicator and stream. The first collective of a clique connects
 * its ranks: it is enqueued when all of them have called one. */
#include "nccl_sim.h"

#include <string.h>

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cudasim
{

const char *const nccl_kind_names[] = {"ncclAllReduce",     "ncclReduce", "ncclBroadcast", "ncclAllGather",
                                       "ncclReduceScatter", "ncclSend",   "ncclRecv"};

Group &group()
{
    static thread_local Group state;
    if (state.generation != machine().generation) {
        state = Group();
        state.generation = machine().generation;
    }
    return state;
}

size_t type_size(ncclDataType_t type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

/* -- arithmetic -- */

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

/* -- carrying out -- */

static void part_done(const PartRef &part)
{
    if (part->comm == NULL || --*part->left != 0)
        return;
    std::vector<OpRef> &list = part->comm->outstanding;
    list.erase(std::remove(list.begin(), list.end(), part->running), list.end());
    finish(part->running);
}

/* Bytes of data that a rank sends. */
static size_t sent_bytes(const Part &part, int n_ranks)
{
    size_t bytes = part.count * type_size(part.type);
    bool sends = part.kind != RECV && (part.kind != BROADCAST || part.rank == part.peer);
    return !sends ? 0 : part.kind == REDUCE_SCATTER ? bytes * (size_t)n_ranks : bytes;
}

static std::vector<char> fetch(const Part &part, size_t bytes)
{
    std::vector<char> data(bytes);
    if (range_ok(part.send, bytes))
        copy_bytes(data.data(), part.send, bytes);
    else {
        violate("%s on device %d sends %zu bytes at %p that are not allocated", nccl_kind_names[part.kind],
                part.comm->device, bytes, part.send);
        poison(part.comm->device, cudaErrorIllegalAddress);
    }
    return data;
}

static void store(const PartRef &part, const char *data, size_t offset, size_t bytes)
{
    char *to = (char *)part->receive + offset;
    if (range_ok(to, bytes))
        copy_bytes(to, data, bytes);
    else {
        violate("%s on device %d receives %zu bytes at %p that are not allocated",
                nccl_kind_names[part->kind], part->comm->device, bytes, (void *)to);
        poison(part->comm->device, cudaErrorIllegalAddress);
    }
}

/* For the ranks of this process. */
static void carry_out(const Clique &clique, const std::vector<PartRef> &parts)
{
    const Part &first = *parts[0];
    int n_ranks = (int)parts.size();
    size_t bytes = first.count * type_size(first.type);
    std::vector<std::vector<char>> data((size_t)n_ranks);
    check_direct(parts, bytes);
    for (const PartRef &part : parts)
        data[(size_t)part->rank] = posted_data(clique, *part, sent_bytes(*part, n_ranks));
    std::vector<char> sum;
    if (first.kind == ALL_REDUCE || first.kind == REDUCE || first.kind == REDUCE_SCATTER) {
        sum = data[0];
        for (int r = 1; r < n_ranks; r++)
            combine_typed(sum.data(), data[(size_t)r].data(), sum.size() / type_size(first.type), first.type,
                          first.op);
    }
    for (const PartRef &part : parts) {
        size_t rank = (size_t)part->rank;
        if (part->comm == NULL)
            continue;
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

/* Every process that has ranks of the clique finds that. */
static void disagree(Clique &clique, const Part &a, const Part &b)
{
    violate("NCCL: rank %d calls %s(count %zu, type %d, op %d, root %d)%s while rank %d calls %s(count %zu, "
            "type %d, op %d, root %d)%s",
            a.rank, nccl_kind_names[a.kind], a.count, a.type, a.op, a.peer, a.captured ? " in a graph" : "",
            b.rank, nccl_kind_names[b.kind], b.count, b.type, b.op, b.peer, b.captured ? " in a graph" : "");
    for (ncclComm_t comm : clique.ranks)
        if (comm != NULL)
            comm->async = ncclInvalidUsage;
}

static void meet_collective(Clique &clique, const PartRef &part)
{
    uint64_t number = clique.next[part->rank]++;
    std::vector<PartRef> &slot = clique.slots[number];
    if (!slot.empty()) {
        const Part &other = *slot[0];
        if (other.kind != part->kind || other.count != part->count || other.type != part->type ||
            other.op != part->op || other.peer != part->peer || other.captured != part->captured) {
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
    carry_out(clique, parts);
    for (const PartRef &each : parts)
        part_done(each);
}

static void meet_pair(Clique &clique, const PartRef &part)
{
    std::pair<int, int> key =
        part->kind == SEND ? std::make_pair(part->rank, part->peer) : std::make_pair(part->peer, part->rank);
    std::deque<PartRef> &others = part->kind == SEND ? clique.recvs[key] : clique.sends[key];
    if (others.empty()) {
        (part->kind == SEND ? clique.sends[key] : clique.recvs[key]).push_back(part);
        return;
    }
    PartRef other = others.front();
    others.pop_front();
    PartRef send = part->kind == SEND ? part : other, receive = part->kind == SEND ? other : part;
    if (send->count != receive->count || send->type != receive->type || send->captured != receive->captured) {
        disagree(clique, *send, *receive);
    } else if (receive->comm != NULL) {
        size_t bytes = send->count * type_size(send->type);
        check_direct({send, receive}, bytes);
        store(receive, posted_data(clique, *send, bytes).data(), 0, bytes);
        if (send->comm != NULL)
            machine().messages[{send->comm->device, receive->comm->device}]++;
    }
    part_done(send);
    part_done(receive);
}

void meet(Clique &clique, const PartRef &part)
{
    if (part->kind == SEND || part->kind == RECV)
        meet_pair(clique, part);
    else
        meet_collective(clique, part);
}

static void arrive(ncclComm_t comm, const std::vector<Part> &parts, const OpRef &op)
{
    if (comm->gone) { /* aborted while it waited for its turn: its kernel sees that and ends */
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
        const std::vector<char> data = fetch(each, sent_bytes(each, clique->n_ranks));
        post(*clique, part, data);
    }
    read_logs(*clique);
}

ncclResult_t launch(ncclComm_t comm, const Launch &what)
{
    std::vector<Part> parts = what.parts;
    for (const Part &part : parts)
        if (!links_made(comm, part))
            return ncclSystemError;
    for (Part &part : parts) {
        part.captured = what.stream->capture != NULL;
        part.rank = comm->rank;
    }
    auto body = std::make_shared<Body>();
    body->kind = Body::COLLECTIVE;
    body->device = comm->device;
    body->name = nccl_kind_names[parts[0].kind];
    body->clique = comm->clique->id;
    body->revoked = &comm->released;
    body->arrive = [comm, parts](const OpRef &op) { arrive(comm, parts, op); };
    return enqueue(what.stream, body, NULL) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static bool is_pairwise(const Part &part)
{
    return part.kind == SEND || part.kind == RECV;
}

bool may_launch(ncclComm_t comm)
{
    Clique &clique = *comm->clique;
    bool all = true;
    for (int r = 0; r < clique.n_ranks; r++)
        all = all && clique.segment->table->seats[r].called;
    clique.connected = clique.connected || all;
    if (clique.connected)
        return true;
    for (const Launch &launch : comm->pending)
        if (!std::all_of(launch.parts.begin(), launch.parts.end(), is_pairwise))
            return false;
    return true;
}

/* -- calls -- */

static ncclResult_t check(const Part &part, cudaStream_t stream)
{
    ncclComm_t comm = part.comm;
    const char *name = nccl_kind_names[part.kind];
    if (!comm_alive(comm, name))
        return ncclInvalidArgument;
    if (comm->clique->segment->table->failed)
        return ncclInvalidUsage;
    if (!comm_ready(comm) || !comm->pending.empty()) {
        violate("%s: rank %d is used before its last call has ended (ncclCommGetAsyncError)", name,
                comm->rank);
        return ncclInvalidArgument;
    }
    if (stream == NULL || stream->device != comm->device) {
        violate("%s: rank %d is of device %d, its stream is not", name, comm->rank, comm->device);
        return ncclInvalidArgument;
    }
    if (machine().nccl_refuses_capture && stream->capture != NULL) {
        words("%s: a stream that is captured is not supported", name);
        stream->capture->invalid = true;
        comm->async = ncclInvalidUsage;
        return ncclInvalidUsage;
    }
    bool rooted = part.kind == REDUCE || part.kind == BROADCAST || is_pairwise(part);
    if (type_size(part.type) == 0 || (unsigned)part.op >= ncclNumOps ||
        (rooted && (part.peer < 0 || part.peer >= comm->clique->n_ranks)))
        return ncclInvalidArgument;
    return ncclSuccess;
}

/* One thread that serves several ranks must do so in one group: a call may wait for the others. */
static ncclResult_t check_thread(ncclComm_t comm, const std::vector<ncclComm_t> &together)
{
    int me = thread_state().id;
    for (ncclComm_t other : comm->clique->ranks) {
        if (other != NULL && other->thread == me &&
            std::find(together.begin(), together.end(), other) == together.end()) {
            violate("NCCL: one thread makes calls for ranks %d and %d outside a group", other->rank,
                    comm->rank);
            return ncclInvalidUsage;
        }
    }
    return ncclSuccess;
}

/* One operation per communicator and stream, in the order of their first calls. */
static std::vector<Launch> merge(const std::vector<Launch> &calls)
{
    std::vector<Launch> merged;
    for (const Launch &each : calls) {
        auto same = std::find_if(merged.begin(), merged.end(), [&](const Launch &other) {
            return other.stream == each.stream && other.parts[0].comm == each.parts[0].comm;
        });
        if (same != merged.end())
            same->parts.push_back(each.parts[0]);
        else
            merged.push_back(each);
    }
    return merged;
}

/* Carry out the calls of a group, or a single one. */
static ncclResult_t issue(const std::vector<Launch> &calls)
{
    std::vector<Launch> launches = merge(calls);
    std::vector<ncclComm_t> comms;
    for (const Launch &each : launches)
        comms.push_back(each.parts[0].comm);
    for (ncclComm_t comm : comms) {
        if (comm->blocking != comms[0]->blocking) {
            violate("NCCL: blocking and non-blocking communicators in one group");
            return ncclInvalidArgument;
        }
        ncclResult_t result = check_thread(comm, comms);
        if (result != ncclSuccess)
            return result;
    }
    for (const Launch &each : launches) {
        ncclComm_t comm = each.parts[0].comm;
        comm->thread = thread_state().id;
        if (!std::all_of(each.parts.begin(), each.parts.end(), is_pairwise))
            comm->clique->segment->table->seats[comm->rank].called = true;
        comm->pending.push_back(each);
        if (!comm->blocking) {
            each.stream->nccl_pending++;
            comm->patience = (int)(machine().random() % 4);
        }
    }
    if (comms.empty() || !comms[0]->blocking)
        return comms.empty() ? ncclSuccess : ncclInProgress;
    for (const Launch &each : launches) {
        ncclComm_t comm = each.parts[0].comm;
        if (!wait_for([&] { return may_launch(comm); }))
            return ncclSystemError;
        comm->pending.clear();
    }
    for (const Launch &each : launches) {
        ncclResult_t result = launch(each.parts[0].comm, each);
        if (result != ncclSuccess)
            return result;
    }
    return ncclSuccess;
}

static ncclResult_t call_part(const char *name, Part part, cudaStream_t stream)
{
    Call call(name, CALL_QUIET, ncclSystemError);
    if (call.failed()) {
        if (group().depth != 0) /* then the group's end launches nothing */
            group().error = (ncclResult_t)call.injected();
        return (ncclResult_t)call.injected();
    }
    stream = find_stream(stream);
    ncclResult_t result = check(part, stream);
    if (group().depth != 0) {
        if (result == ncclSuccess)
            group().launches.push_back({stream, {part}});
        else
            group().error = result;
        return result;
    }
    return call.end_nccl(result == ncclSuccess ? issue({{stream, {part}}}) : result);
}

} // namespace cudasim

using namespace cudasim;

ncclResult_t ncclGroupStart(void)
{
    Call call("ncclGroupStart", CALL_QUIET, ncclSystemError);
    if (call.failed())
        return (ncclResult_t)call.injected();
    group().depth++;
    return ncclSuccess;
}

/* What ranks that join in this group get: blocking ones wait, the others go on in the background. */
static ncclResult_t join_group(const std::vector<ncclComm_t> &joining)
{
    for (ncclComm_t comm : joining) {
        if (!comm->blocking)
            return ncclInProgress;
        ncclResult_t result = wait_joined(comm);
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
    use_context(false); /* it goes from device to device, and ends with cudaSetDevice of where it was */
    Group mine;
    std::swap(mine, state);
    state.generation = mine.generation;
    if (!mine.joining.empty() && !mine.launches.empty())
        violate("NCCL: communicators are made and used in one group");
    ncclResult_t result = mine.error;
    if (result == ncclSuccess)
        result = mine.joining.empty() ? issue(mine.launches) : join_group(mine.joining);
    return call.end_nccl(result);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclAllReduce", {ALL_REDUCE, send, receive, count, type, op, 0, comm}, stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclReduce", {REDUCE, send, receive, count, type, op, root, comm}, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclBroadcast", {BROADCAST, send, receive, count, type, ncclSum, root, comm}, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclAllGather", {ALL_GATHER, send, receive, send_count, type, ncclSum, 0, comm},
                     stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return call_part("ncclReduceScatter", {REDUCE_SCATTER, send, receive, receive_count, type, op, 0, comm},
                     stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call_part("ncclSend", {SEND, send, NULL, count, type, ncclSum, peer, comm}, stream);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call_part("ncclRecv", {RECV, NULL, receive, count, type, ncclSum, peer, comm}, stream);
}
