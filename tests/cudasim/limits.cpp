/* What a card can hold: of a block, and of all blocks of a multiprocessor at a time. Numbers by compute
 * capability are those of the CUDA Programming Guide, "Compute Capabilities". */
#include "sim.h"

#include <cudasim_hook.h>

#include <stdlib.h>
#include <string.h>

#include <algorithm>

namespace cudasim
{

enum {
    WARP = 32,
    REGISTERS = 65536,
    PARTITIONS = 4 /* of a multiprocessor, each with a quarter of its registers */
};

/* -- cards -- */

static const Limits all_limits[] = {
    /* capability, threads and blocks of a multiprocessor, its shared memory, reserved of it for each block */
    {70, 2048, 32, 96 << 10, 0},         {75, 1024, 16, 64 << 10, 0},
    {80, 2048, 32, 164 << 10, 1 << 10},  {86, 1536, 16, 100 << 10, 1 << 10},
    {87, 1536, 16, 164 << 10, 1 << 10},  {89, 1536, 24, 100 << 10, 1 << 10},
    {90, 2048, 32, 228 << 10, 1 << 10},  {100, 2048, 32, 228 << 10, 1 << 10},
    {103, 2048, 32, 228 << 10, 1 << 10}, {110, 1536, 24, 228 << 10, 1 << 10},
    {120, 1536, 24, 100 << 10, 1 << 10}, {121, 1536, 24, 100 << 10, 1 << 10}};

static const struct {
    const char *name;
    int capability, n_sms;
} cards[] = {{"a100", 80, 108}, {"rtx3090", 86, 82}, {"h100", 90, 132}, {"rtx5090", 120, 170}};

void choose_card(cudasim_config &config)
{
    const char *name = getenv("CUDASIM_CARD");
    int capability = 90, n_sms = 8;
    bool found = name == NULL;
    for (const auto &card : cards) {
        if (name == NULL || strcmp(card.name, name) != 0)
            continue;
        capability = card.capability;
        n_sms = card.n_sms;
        found = true;
    }
    if (!found) {
        fprintf(stderr, "cudasim: CUDASIM_CARD=%s is not known; a100, rtx3090, h100, rtx5090 are\n", name);
        abort();
    }
    if (config.compute_capability == 0)
        config.compute_capability = capability;
    if (config.n_sms == 0)
        config.n_sms = n_sms;
}

const Limits &limits()
{
    const int capability = machine().config.compute_capability;
    for (const Limits &entry : all_limits)
        if (entry.capability == capability)
            return entry;
    fprintf(stderr, "cudasim: the limits of compute capability %d are not known; add them to limits.cpp\n",
            capability);
    abort();
}

/* -- a block -- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

size_t shared_limit(const Kernel *kernel, const Device &device)
{
    auto limit = device.shared_limits.find(kernel);
    const size_t usual = (size_t)48 << 10;
    if (limit != device.shared_limits.end())
        return limit->second;
    return kernel->shared_bytes < usual ? usual - kernel->shared_bytes : 0;
}

/* Of the newest machine code that the card runs. */
static int registers_of(const Kernel &kernel)
{
    const int capability = limits().capability;
    return kernel.registers[capability >= 120 ? 2 : capability >= 90 ? 1 : 0];
}

/* Registers are given to whole warps, and warps to the partitions in turn. */
static int blocks_by_registers(const Kernel &kernel, int threads)
{
    const int warps = (threads + WARP - 1) / WARP;
    const int of_warp = (int)round_up((size_t)registers_of(kernel) * WARP, 256);
    if (of_warp * (int)round_up((size_t)warps, PARTITIONS) > REGISTERS)
        return 0;
    return REGISTERS / PARTITIONS / of_warp * PARTITIONS / warps;
}

/* What a block takes of a multiprocessor. */
static Room room_of(const Kernel &kernel, int threads, size_t shared_bytes)
{
    const int n = blocks_by_registers(kernel, threads);
    const size_t bytes = kernel.shared_bytes + shared_bytes + limits().reserved_bytes;
    return {1, (threads + WARP - 1) / WARP * WARP, n > 0 ? REGISTERS / n : REGISTERS + 1,
            round_up(bytes, 128)};
}

static int blocks_at_once(const Room &block)
{
    const Limits &most = limits();
    return std::min({most.blocks, most.threads / block.threads, REGISTERS / block.registers,
                     (int)(most.shared_bytes / block.shared_bytes)});
}

cudaError_t check_launch(const Body &body)
{
    const dim3 &grid = body.grid, &block = body.block;
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (body.kernel == NULL) {
        violate("kernel %s is not in the symbol table of this program; do not strip it", body.name.c_str());
        return cudaErrorInvalidDeviceFunction;
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
        threads > 1024)
        return cudaErrorInvalidConfiguration;
    if (body.shared_bytes > shared_limit(body.kernel, machine().devices[(size_t)body.device]))
        return cudaErrorInvalidValue;
    if ((int)threads > body.kernel->max_threads || blocks_by_registers(*body.kernel, (int)threads) == 0)
        return cudaErrorLaunchOutOfResources;
    return cudaSuccess;
}

/* -- the blocks of a device -- */

int find_room(Device &device, const Body &body)
{
    const dim3 &block = body.block;
    const Room more = room_of(*body.kernel, (int)(block.x * block.y * block.z), body.shared_bytes);
    const Limits &most = limits();
    for (size_t i = 0; i < device.sms.size(); i++) {
        const size_t sm = (device.next_sm + i) % device.sms.size();
        const Room &used = device.sms[sm];
        if (used.blocks + 1 <= most.blocks && used.threads + more.threads <= most.threads &&
            used.registers + more.registers <= REGISTERS &&
            used.shared_bytes + more.shared_bytes <= most.shared_bytes)
            return (int)sm;
    }
    return -1;
}

void take_room(Device &device, int sm, const Body &body, bool back)
{
    const dim3 &block = body.block;
    const Room more = room_of(*body.kernel, (int)(block.x * block.y * block.z), body.shared_bytes);
    Room &used = device.sms[(size_t)sm];
    used.blocks += back ? -1 : 1;
    used.threads += back ? -more.threads : more.threads;
    used.registers += back ? -more.registers : more.registers;
    used.shared_bytes += back ? -more.shared_bytes : more.shared_bytes;
    device.next_sm = ((size_t)sm + 1) % device.sms.size();
}

} // namespace cudasim

using namespace cudasim;

void cudasim_set_resources(const void *function, int registers, int max_threads)
{
    Kernel *kernel = find_kernel(function);
    std::fill_n(kernel->registers, 3, registers);
    kernel->max_threads = max_threads;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *function)
{
    Call call("cudaFuncGetAttributes", CALL_CONTEXT, cudaErrorInvalidDeviceFunction);
    if (call.failed())
        return call.result();
    const Kernel *kernel = find_kernel(function);
    if (kernel == NULL)
        return call.end(cudaErrorInvalidDeviceFunction);
    current_device()->loaded.insert(function);
    attributes->maxDynamicSharedSizeBytes = (int)shared_limit(kernel, *current_device());
    attributes->sharedSizeBytes = kernel->shared_bytes;
    attributes->maxThreadsPerBlock = kernel->max_threads;
    attributes->numRegs = registers_of(*kernel);
    attributes->ptxVersion = 90; /* of any card, since simulated kernels run in order */
    return call.end(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    Call call("cudaFuncSetAttribute", CALL_CONTEXT, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    const Kernel *kernel = find_kernel(function);
    if (kernel == NULL)
        return call.end(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        const size_t most = limits().shared_bytes - limits().reserved_bytes;
        if (value < 0 || kernel->shared_bytes + (size_t)value > most)
            return call.end(cudaErrorInvalidValue);
        current_device()->shared_limits[kernel] = (size_t)value;
    }
    return call.end(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                          size_t dynamic_shared)
{
    Call call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", CALL_CONTEXT, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    const Kernel *kernel = find_kernel(function);
    if (kernel == NULL)
        return call.end(cudaErrorInvalidDeviceFunction);
    if (threads <= 0)
        return call.end(cudaErrorInvalidValue);
    *blocks = threads > kernel->max_threads || dynamic_shared > shared_limit(kernel, *current_device())
                  ? 0
                  : blocks_at_once(room_of(*kernel, threads, dynamic_shared));
    return call.end(cudaSuccess);
}
