/* How the simulated NCCL's ranks reach each other.
 *
 * Ranks of one process whose devices have peer access write large messages straight into each other's
 * buffers, as NCCL 2.18 to 2.22 do (P2P/direct, protocol Simple, in prims_simple.h); later versions do so
 * with registered buffers only. Memory of cudaMalloc is open to them, as NCCL enables peer access itself;
 * mapped memory must have been opened with cuMemSetAccess, and where it was not the writer's kernel faults.
 * Small messages go through NCCL's own buffers (LL). NCCL_P2P_DIRECT_DISABLE=1 sends all of them that way;
 * it is read when the first communicator of the machine connects.
 *
 * Ranks without peer access need shared memory of the host. */
#include "nccl_sim.h"

#include <stdlib.h>
#include <string.h>

namespace cudasim
{

/* NCCL draws this line by a model of the machine; anywhere between 32 KiB and some MiB is usual. */
static const size_t large_bytes = (size_t)512 << 10;

static bool have_peer_access(int a, int b)
{
    const Machine &m = machine();
    return a == b || (m.config.peer_access && !(m.no_peer[a] >> b & 1));
}

static bool direct_disabled()
{
    static uint64_t generation;
    static bool disabled;
    if (generation != machine().generation) {
        const char *value = getenv("NCCL_P2P_DIRECT_DISABLE");
        disabled = value != NULL && strcmp(value, "0") != 0;
        generation = machine().generation;
    }
    return disabled;
}

bool links_made(ncclComm_t comm, const Part &part)
{
    Machine &m = machine();
    Clique &clique = *comm->clique;
    bool &linked = clique.linked[part.count * type_size(part.type) >= large_bytes];
    bool through_host = false;
    (void)direct_disabled();
    for (ncclComm_t a : clique.ranks)
        for (ncclComm_t b : clique.ranks)
            through_host = through_host || (a && b && !have_peer_access(a->device, b->device));
    if (linked || !through_host || m.nccl_shared_memory != 0) {
        m.nccl_shared_memory -= !linked && through_host && m.nccl_shared_memory > 0;
        linked = true;
        return true;
    }
    words("Error while creating shared memory segment /dev/shm/nccl-cudasim (size 9637888)");
    return false;
}

static void touch(int device, const Part &part, const void *buffer, size_t bytes)
{
    int owner = part.comm->device;
    if (device == owner || !have_peer_access(device, owner) || opened_to(device, buffer, bytes))
        return;
    violate("%s: device %d writes %zu bytes straight into a buffer of device %d at %p that was not opened to "
            "it (cuMemSetAccess)",
            nccl_kind_names[part.kind], device, bytes, owner, buffer);
    poison(device, cudaErrorIllegalAddress);
}

void check_direct(const std::vector<PartRef> &parts, size_t bytes)
{
    bool direct = parts[0]->kind == ALL_REDUCE || parts[0]->kind == ALL_GATHER || parts[0]->kind == SEND;
    if (!direct || bytes < large_bytes || machine().config.nccl_version >= NCCL_VERSION(2, 23, 0) ||
        direct_disabled())
        return;
    for (const PartRef &part : parts)
        for (const PartRef &other : parts)
            if (part->receive != NULL && other->comm != NULL)
                touch(other->comm->device, *part, part->receive, bytes);
}

} // namespace cudasim
