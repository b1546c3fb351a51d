/* One block of a kernel on one host thread.
 *
 * A fiber starts the block's threads one after another as plain calls and goes on to the next when one
 * returns; only when a thread must wait (barrier, warp operation, a spinning load) does its fiber keep its
 * stack, and another fiber starts the threads that are left. So a kernel without barriers switches never, and
 * one with barriers switches once per thread and barrier. Threads start in rising, falling or random order,
 * drawn per block, and with a random order also go on after a barrier in one: a missing barrier shows where
 * the result depends on the order. Races as such are found in the PTX (tests/ptx).
 *
 * __shared__ is `static __thread`: the host thread runs only this block until it is over. */
#include "block.h"

#include <cudasim_launch.h>

#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread dim3 blockDim;
__thread dim3 gridDim;

namespace cudasim
{

#if defined(__SANITIZE_ADDRESS__)
static const size_t stack_bytes = (size_t)256 << 10;
#else
static const size_t stack_bytes = (size_t)32 << 10; /* the signal handler for faults needs a third of it */
#endif
/* A stack begins so much further on from the one before than its size: at equal distances of a power of two
 * the tops of all stacks would compete for the same few lines of every cache. */
static const size_t stack_shift = 17 * 64;

__thread Block *block;
__thread Fiber *self;

/* Counting spares three divisions per thread. */
static inline void next_index(Block &b)
{
    const dim3 &size = b.body->block;
    uint3 &next = b.next_index;
    if (b.stride == 1) {
        if (++next.x == size.x) {
            next.x = 0;
            if (++next.y == size.y) {
                next.y = 0;
                next.z++;
            }
        }
    } else if (b.stride == b.n_threads - 1) {
        if (next.x-- == 0) {
            next.x = size.x - 1;
            if (next.y-- == 0) {
                next.y = size.y - 1;
                next.z--;
            }
        }
    } else {
        next = {b.next_thread % size.x, b.next_thread / size.x % size.y, b.next_thread / size.x / size.y};
    }
}

/* The fiber takes the next thread of the block. */
static inline void take_thread(Fiber *fiber)
{
    Block *b = block;
    b->started++;
    fiber->thread = b->next_thread;
    fiber->loaded = NULL;
    fiber->copies.clear(); /* of a kernel that was ended */
    fiber->groups = 0;
    threadIdx = fiber->index = b->next_index;
    b->next_thread += b->stride;
    if (b->next_thread >= b->n_threads)
        b->next_thread -= b->n_threads;
    next_index(*b);
}

static inline void make_ready(Fiber *fiber)
{
    unsigned at = block->ready_head + block->n_ready++;
    block->memory->ready[at < MAX_THREADS ? at : at - MAX_THREADS] = fiber;
}

static void fiber_main();
/* At the far end of a watched fiber's stack. Few are, as the far end is never in the cache, and threads of a
 * kernel use about as much stack as their neighbours. */
static const uint64_t canary = 0x5afe57acc0de5afeull;

/* The fiber to run next; NULL: none of the block can run. */
static inline Fiber *next_fiber()
{
    Block *b = block;
    if (b->n_ready != 0) {
        Fiber *fiber = b->memory->ready[b->ready_head];
        b->ready_head = b->ready_head + 1 < MAX_THREADS ? b->ready_head + 1 : 0;
        b->n_ready--;
        return fiber;
    }
    if (b->started < b->n_threads) {
        Fiber *fiber = b->memory->free[--b->n_free];
        if (fiber->watched)
            *(uint64_t *)fiber->context.stack = canary;
#if defined(__SANITIZE_ADDRESS__)
        /* The last function of the thread before never returned, so its frame is still marked. */
        const size_t frame = 4096;
        __asan_unpoison_memory_region((char *)fiber->context.stack + fiber->context.size - frame, frame);
#endif
        prepare(fiber->context, fiber_main);
        return fiber;
    }
    return NULL;
}

/* The calling fiber waits; it has been noted where it will be found. */
static void suspend()
{
    Fiber *mine = self, *next = next_fiber();
    if (next == mine)
        return;
    if (next != NULL)
        self = next;
    switch_context(mine->context, next != NULL ? next->context : block->main);
    self = mine;
    threadIdx = mine->index;
}

[[noreturn]] void leave_kernel()
{
    block->over = true;
    Context nowhere;
    Fiber *mine = self;
    switch_context(mine != NULL ? mine->context : nowhere, block->main);
    __builtin_unreachable();
}

void end_kernel(cudaError_t error, const char *format, ...)
{
    char why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    violate("%s %s", kernel_place().c_str(), why);
    poison(block->body->device, error);
    leave_kernel();
}

int kernel_device()
{
    return block != NULL && self != NULL ? block->body->device : -1;
}

std::string kernel_place()
{
    char text[256];
    snprintf(text, sizeof text, "kernel %.80s on device %d, block (%u,%u,%u), thread (%u,%u,%u)",
             block->body->name.c_str(), block->body->device, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
             threadIdx.y, threadIdx.z);
    return text;
}

/* Steps of this length modulo n come to all n. */
static unsigned random_stride(unsigned n)
{
    unsigned stride;
    do {
        stride = 1 + (unsigned)(machine().random() % n);
    } while (std::gcd(stride, n) != 1);
    return stride;
}

/* -- barriers -- */

/* All but the last thread to come to the barrier, which goes on immediately. */
static void release(Block &b)
{
    const unsigned n = b.n_at_barrier;
    const bool is_random = b.stride != 1 && b.stride != b.n_threads - 1;
    unsigned at = 0, stride = 1;
    if (is_random && n > 1) {
        at = (unsigned)(machine().random() % n);
        stride = random_stride(n);
    }
    for (unsigned i = 0; i < n; i++, at = (at + stride) % n)
        make_ready(b.memory->at_barrier[at]);
    b.n_at_barrier = 0;
}

static int barrier(const char *file, int line, int kind, int predicate)
{
    Block *b = block;
    if (b->exited != 0)
        end_kernel(cudaErrorLaunchFailure,
                   "waits at the barrier of %s:%d, but %u threads of the block have returned", file, line,
                   b->exited);
    if (b->n_at_barrier == 0) {
        b->barrier_file = file;
        b->barrier_line = line;
        b->barrier_kind = kind;
        b->barrier_count = 0;
    } else if (b->barrier_line != line || b->barrier_kind != kind) {
        end_kernel(cudaErrorLaunchFailure,
                   "is at the barrier of line %d while others of its block are at that of %s:%d", line,
                   b->barrier_file, b->barrier_line);
    }
    b->barrier_count += predicate;
    if (b->n_at_barrier + 1 < b->n_threads) {
        b->memory->at_barrier[b->n_at_barrier++] = self;
        suspend();
        return b->barrier_result;
    }
    release(*b);
    int n = b->barrier_count;
    b->barrier_result = kind == CUDASIM_BARRIER_AND  ? n == (int)b->n_threads
                        : kind == CUDASIM_BARRIER_OR ? n != 0
                                                     : n;
    return b->barrier_result;
}

/* -- warp operations -- */

static void do_together(const Group &group)
{
    void *brought[WARP] = {};
    if (group.arrived != group.mask)
        end_kernel(cudaErrorLaunchFailure, "returns while lanes of its warp need it for %s", group.what);
    for (uint32_t left = group.arrived; left != 0; left &= left - 1)
        brought[__builtin_ctz(left)] = (void *)group.fiber[__builtin_ctz(left)]->value;
    group.work(brought);
}

static void complete(Warp &warp, Group &group)
{
    uint32_t votes = 0;
    if (group.work != NULL)
        do_together(group);
    if (group.is_vote)
        for (uint32_t left = group.arrived; left != 0; left &= left - 1)
            votes |= group.fiber[__builtin_ctz(left)]->value != 0 ? left & -left : 0;
    for (uint32_t left = group.arrived; left != 0; left &= left - 1) {
        Fiber *fiber = group.fiber[__builtin_ctz(left)];
        if (group.is_vote)
            fiber->result = votes;
        else if (group.arrived >> fiber->source & 1)
            fiber->result = group.fiber[fiber->source]->value;
        else
            fiber->result = 0x7fc0dead7fc0deadull; /* undefined on a GPU; a NaN shows */
        if (fiber != self)
            make_ready(fiber);
    }
    if (&group != &warp.groups[--warp.n_groups])
        group = warp.groups[warp.n_groups];
}

/* Lane operations meet here: a vote has source -1, and so has `work`, which others lack. */
static uint64_t meet(const char *what, uint32_t mask, uint64_t value, int source, cudasim_work *work = NULL)
{
    Fiber *mine = self;
    unsigned lane = mine->thread % WARP;
    Warp &warp = block->memory->warps[mine->thread / WARP];
    if (!(mask >> lane & 1))
        end_kernel(cudaErrorLaunchFailure, "calls %s with a mask that leaves out its own lane", what);
    Group *group = NULL;
    for (int i = 0; i < warp.n_groups; i++)
        if (warp.groups[i].mask == mask)
            group = &warp.groups[i];
    if (group == NULL) {
        group = &warp.groups[warp.n_groups++];
        group->what = what;
        group->is_vote = source < 0;
        group->work = work;
        group->mask = mask;
        group->arrived = 0;
    } else if (group->what != what && strcmp(group->what, what) != 0) {
        end_kernel(cudaErrorLaunchFailure, "calls %s while lanes of its mask are at %s", what, group->what);
    }
    mine->value = value;
    mine->source = source;
    group->arrived |= 1u << lane;
    group->fiber[lane] = mine;
    if ((group->arrived & warp.alive) == (mask & warp.alive))
        complete(warp, *group);
    else
        suspend();
    return mine->result;
}

/* -- running -- */

static void thread_exit(Fiber *fiber)
{
    Block *b = block;
    if (!fiber->copies.empty())
        end_kernel(cudaErrorLaunchFailure, "returns, but has not waited for %zu asynchronous copies",
                   fiber->copies.size());
    b->exited++;
    if (fiber->watched && *(uint64_t *)fiber->context.stack != canary)
        end_kernel(cudaErrorHardwareStackError, "uses more stack than the simulation has");
    if (b->n_at_barrier != 0)
        end_kernel(cudaErrorLaunchFailure, "returns while others of its block wait at the barrier of %s:%d",
                   b->barrier_file, b->barrier_line);
    Warp &warp = b->memory->warps[fiber->thread / WARP];
    warp.alive &= ~(1u << fiber->thread % WARP);
    for (int i = warp.n_groups - 1; i >= 0; i--) {
        Group &group = warp.groups[i];
        if ((group.arrived & warp.alive) == (group.mask & warp.alive) && (group.arrived & warp.alive) != 0)
            complete(warp, group);
    }
}

/* The first function on a fresh stack. */
static void fiber_main()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    Block *b = block;
    Fiber *mine = self;
    do {
        take_thread(mine);
        b->body->thread();
        thread_exit(mine);
    } while (b->started < b->n_threads && b->n_ready == 0);
    b->memory->free[b->n_free++] = mine;
    Fiber *next = next_fiber();
    self = next;
    switch_context(mine->context, next != NULL ? next->context : b->main);
    __builtin_unreachable();
}

BlockMemory *block_memory_create()
{
    BlockMemory *memory = new BlockMemory();
    size_t stride = stack_bytes + stack_shift;
    size_t bytes = stride * MAX_THREADS;
    memory->stacks = (unsigned char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
#if !defined(__SANITIZE_ADDRESS__)
    madvise(memory->stacks, bytes, MADV_HUGEPAGE); /* else every switch looks for another page */
#endif
    for (int i = 0; i < MAX_THREADS; i++) {
        memory->fibers[i].context.stack = memory->stacks + stride * (size_t)i;
        memory->fibers[i].context.size = stack_bytes;
        memory->fibers[i].watched = i % WARP == 0;
    }
    shared_create(*memory);
    return memory;
}

static void describe_deadlock(Block &b)
{
    std::string text;
    if (b.n_at_barrier != 0)
        text = std::to_string(b.n_at_barrier) + " threads at the barrier of " + b.barrier_file + ":" +
               std::to_string(b.barrier_line);
    for (unsigned w = 0; w * WARP < b.n_threads; w++) {
        Warp &warp = b.memory->warps[w];
        for (int i = 0; i < warp.n_groups; i++)
            text += std::string(text.empty() ? "" : ", ") +
                    std::to_string(__builtin_popcount(warp.groups[i].arrived)) + " lanes of warp " +
                    std::to_string(w) + " at " + warp.groups[i].what;
    }
    violate("kernel %.80s on device %d, block (%u,%u,%u): threads wait for each other: %s",
            b.body->name.c_str(), b.body->device, blockIdx.x, blockIdx.y, blockIdx.z, text.c_str());
    poison(b.body->device, cudaErrorLaunchFailure);
    b.over = true;
}

static void prepare_block(Block &b, Grid &grid, uint64_t index)
{
    const Body &body = *b.body;
    b.n_threads = body.block.x * body.block.y * body.block.z;
    const unsigned order = (unsigned)(machine().random() % 3);
    b.stride = order == 0 ? 1 : order == 1 ? std::max(b.n_threads - 1, 1u) : random_stride(b.n_threads);
    b.next_thread = order == 0   ? 0
                    : order == 1 ? b.n_threads - 1
                                 : (unsigned)(machine().random() % b.n_threads);
    b.next_index = {b.next_thread % body.block.x, b.next_thread / body.block.x % body.block.y,
                    b.next_thread / body.block.x / body.block.y};
    gridDim = body.grid;
    blockDim = body.block;
    blockIdx.x = (unsigned)(index % body.grid.x);
    blockIdx.y = (unsigned)(index / body.grid.x % body.grid.y);
    blockIdx.z = (unsigned)(index / body.grid.x / body.grid.y);
    for (unsigned i = 0; i < b.n_threads; i++)
        b.memory->free[b.n_free++] = &b.memory->fibers[b.n_threads - 1 - i];
    for (unsigned w = 0; w * WARP < b.n_threads; w++) {
        unsigned lanes = b.n_threads - w * WARP;
        b.memory->warps[w].alive = lanes >= WARP ? 0xffffffffu : (1u << lanes) - 1;
        b.memory->warps[w].n_groups = 0;
    }
    shared_poison(b);
    (void)grid;
}

bool run_block(Worker *worker, BlockMemory *memory, Grid &grid, uint64_t index)
{
    Block b;
    b.memory = memory;
    b.worker = worker;
    b.body = grid.op->body.get();
    block = &b;
#if defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &b.main.stack, &b.main.size);
    pthread_attr_destroy(&attributes);
#endif
    prepare_block(b, grid, index);
    grant(b.body->device);
    view_enter(grid);
    Device &device = machine().devices[(size_t)b.body->device];
    while (!b.over) {
        Fiber *next = next_fiber();
        if (next == NULL && b.n_spinning != 0) {
            view_leave();
            park(worker);
            view_enter(grid);
            for (unsigned i = 0; i < b.n_spinning; i++)
                make_ready(memory->spinning[i]);
            b.n_spinning = 0;
            if (grid.aborted || device.sticky != cudaSuccess)
                break;
            continue;
        }
        if (next == NULL) {
            if (b.exited < b.n_threads)
                describe_deadlock(b);
            break;
        }
        self = next;
        switch_context(b.main, next->context);
        self = NULL;
    }
    view_leave();
    grant(-1);
    bool complete = b.exited == b.n_threads && !b.over;
#if defined(__SANITIZE_ADDRESS__)
    if (!complete)
        __asan_unpoison_memory_region(memory->stacks, (stack_bytes + stack_shift) * b.n_threads);
#endif
    block = NULL;
    self = NULL;
    return complete;
}

} // namespace cudasim

using namespace cudasim;

int cudasim_barrier(const char *file, int line, int kind, int predicate)
{
    return barrier(file, line, kind, predicate);
}

uint64_t cudasim_exchange(const char *what, uint32_t mask, uint64_t value, int source)
{
    return meet(what, mask, value, source & (WARP - 1));
}

uint32_t cudasim_vote(const char *what, uint32_t mask, int predicate)
{
    return (uint32_t)meet(what, mask, predicate != 0, -1);
}

void cudasim_syncwarp(uint32_t mask)
{
    meet("__syncwarp", mask, 0, -1);
}

void cudasim_together(const char *what, uint32_t mask, void *mine, cudasim_work *work)
{
    meet(what, mask, (uint64_t)mine, -1, work);
}

uint32_t cudasim_activemask()
{
    return block->memory->warps[self->thread / WARP].alive;
}

int cudasim_lane()
{
    return (int)(self->thread % WARP);
}

void cudasim_trap(const char *what)
{
    end_kernel(cudaErrorLaunchFailure, "calls %s", what);
}

void cudasim_yield()
{
    if (self == NULL) /* on the host */
        return;
    block->memory->spinning[block->n_spinning++] = self;
    suspend();
}

void cudasim_loaded(const volatile void *address)
{
    if (self == NULL)
        return;
    meet_others(block->worker);
    if (self->loaded == address)
        cudasim_yield();
    else
        self->loaded = address;
}

void cudasim_on_link(const volatile void *address, size_t bytes)
{
    if (place_of((const void *)address) != block->body->device)
        machine().link_bytes += bytes;
}
