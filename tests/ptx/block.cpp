/* A block: its memory, its warps in the order that the launch wants, and its barriers. */
#include "warp.h"

#include <string.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace ptx
{

namespace
{

/* The warp's first registers hold its threads' places; "Special Registers". */
void special_registers(Warp &w, const Launch &launch, uint64_t index)
{
    const unsigned *n = launch.block, *g = launch.grid;
    uint32_t *to = (uint32_t *)w.registers;
    for (unsigned l = 0; l < LANES; l++) {
        const unsigned thread = w.number * LANES + l;
        const uint32_t values[SPECIALS] = {thread % n[0],
                                           thread / n[0] % n[1],
                                           thread / n[0] / n[1],
                                           n[0],
                                           n[1],
                                           n[2],
                                           (uint32_t)(index % g[0]),
                                           (uint32_t)(index / g[0] % g[1]),
                                           (uint32_t)(index / g[0] / g[1]),
                                           g[0],
                                           g[1],
                                           g[2],
                                           l};
        for (int k = 0; k < SPECIALS; k++)
            to[k * LANES + (int)l] = values[k];
    }
}

void start_warps(std::vector<Warp> &warps, Block &block, std::vector<uint8_t> &registers)
{
    const Launch &launch = *block.launch;
    const Kernel &kernel = *launch.kernel;
    const unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
    const size_t stride = (kernel.register_bytes + 63) / 64 * 64 + 64;
    warps.resize((threads + LANES - 1) / LANES);
    if (registers.size() < stride * warps.size() + 64)
        registers.resize(stride * warps.size() + 64);
    uint8_t *base = registers.data() + (64 - (uintptr_t)registers.data() % 64);
    for (unsigned n = 0; n < warps.size(); n++) {
        Warp &w = warps[n];
        const unsigned lanes = std::min(threads - n * LANES, (unsigned)LANES);
        w.block = &block;
        w.kernel = &kernel;
        w.number = n;
        w.registers = base + stride * n;
        w.constants = (const uint8_t *)kernel.constants.data();
        w.live = lanes == LANES ? 0xffffffffu : (1u << lanes) - 1;
        w.frames = {{0, -1, w.live}};
        special_registers(w, launch, block.index);
    }
}

/* All warps that are left wait: they go on together. */
void release(std::vector<Warp> &warps, Block &block)
{
    uint32_t all = 0xffffffffu;
    int line = 0, n_done = 0;
    block.barriers++;
    for (const Warp &w : warps) {
        if (w.state == Warp::DONE) {
            n_done++;
            continue;
        }
        const Instr &i = w.kernel->code[(size_t)w.frames.back().pc];
        if (line != 0 && i.line != line)
            report(w, i, "a barrier, while other warps are at that of line %d", line);
        line = i.line;
        all &= w.predicate;
    }
    for (Warp &w : warps) {
        if (w.state == Warp::DONE)
            continue;
        const Instr &i = w.kernel->code[(size_t)w.frames.back().pc];
        if (n_done != 0)
            report(w, i, "a barrier, but %d warps of the block have returned", n_done);
        if (i.control == BARRIER_AND)
            *out<uint32_t>(w, i, 0) = all;
        w.frames.back().pc++;
        w.state = Warp::READY;
        if (block.launch->counts != NULL)
            block.launch->counts->barriers++;
    }
}

std::vector<unsigned> order_of(const Launch &launch, size_t n, std::mt19937_64 &random)
{
    std::vector<unsigned> order(n);
    std::iota(order.begin(), order.end(), 0u);
    if (launch.order == 1)
        std::reverse(order.begin(), order.end());
    else if (launch.order != 0)
        std::shuffle(order.begin(), order.end(), random);
    return order;
}

} // namespace

void run_block(const Launch &launch, uint64_t index)
{
    static thread_local std::vector<uint8_t> spare; /* registers: fetched from the system once */
    std::vector<uint8_t> registers;
    const Kernel &kernel = *launch.kernel;
    const size_t shared = (kernel.shared_bytes + 15) / 16 * 16 + launch.dynamic_bytes;
    const size_t threads = (size_t)launch.block[0] * launch.block[1] * launch.block[2];
    Block block = {&launch, {}, {}, {}, index, 0, 0, {}};
    std::vector<Warp> warps;
    std::mt19937_64 random(launch.order + index);
    if (launch.parameters.size() != kernel.parameter_bytes)
        fail("%s has %zu bytes of parameters, not %zu", kernel.name.c_str(), kernel.parameter_bytes,
             launch.parameters.size());
    if (threads > kernel.max_threads)
        fail("%s: %zu threads per block, more than .maxntid", kernel.name.c_str(), threads);
    registers.swap(spare);
    block.shared.assign(shared, 0x7b); /* a number in every format, so that a use of it shows */
    block.shared_written.assign(shared, 0);
    block.shadow.assign((shared + 3) / 4, {});
    block.local.assign((threads + LANES) * kernel.local_bytes, 0x7b);
    start_warps(warps, block, registers);
    for (;;) {
        size_t n_ready = 0, n_paused = 0, n_done = 0;
        for (unsigned n : order_of(launch, warps.size(), random)) {
            Warp &w = warps[n];
            if (w.state == Warp::READY || w.state == Warp::PAUSED)
                run_warp(w);
            n_ready += w.state == Warp::READY;
            n_paused += w.state == Warp::PAUSED;
            n_done += w.state == Warp::DONE;
        }
        if (n_done == warps.size())
            break;
        if (n_paused != 0)
            launch.pause();
        else if (n_ready == 0)
            release(warps, block);
    }
    if (launch.counts != NULL)
        launch.counts->warps += warps.size();
    registers.swap(spare);
}

} // namespace ptx
