/* One block of a kernel while it runs: its threads, what they wait for, its shared memory. */
#ifndef CUDASIM_BLOCK_H
#define CUDASIM_BLOCK_H

#include "sim.h"

#include "context.h"

namespace cudasim
{

enum { MAX_THREADS = 1024, WARP = 32, MAX_WARPS = MAX_THREADS / WARP };

/* An asynchronous copy of a thread to shared memory. */
struct Copy {
    unsigned char *to;
    const unsigned char *from;
    uint32_t bytes;
    uint32_t group; /* groups that the thread committed before it */
};

struct Fiber {
    Context context;
    bool watched; /* for stack overflow */
    unsigned thread;
    uint3 index;            /* the thread's threadIdx */
    uint64_t value, result; /* of a warp operation */
    int source;
    const volatile void *loaded;
    std::vector<Copy> copies; /* asynchronous, not complete */
    uint32_t groups;          /* of copies, committed */
};

/* Lanes that have come to a warp operation and wait for the rest of its mask. */
struct Group {
    const char *what;
    bool is_vote;
    cudasim_work *work; /* of cudasim_together */
    uint32_t mask, arrived;
    Fiber *fiber[WARP];
};

struct Warp {
    uint32_t alive;
    int n_groups;
    Group groups[WARP];
};

struct BlockMemory {
    unsigned char *stacks, *shared;
    Fiber fibers[MAX_THREADS];
    Warp warps[MAX_WARPS];
    Fiber *ready[MAX_THREADS], *at_barrier[MAX_THREADS], *spinning[MAX_THREADS], *free[MAX_THREADS];
};

struct Block {
    BlockMemory *memory;
    Worker *worker;
    const Body *body;
    unsigned n_threads, started = 0, exited = 0;
    unsigned next_thread; /* to start */
    unsigned stride;  /* to the one after it, modulo n_threads: 1 rising, n_threads - 1 falling, or random */
    uint3 next_index; /* of next_thread */
    unsigned ready_head = 0, n_ready = 0, n_at_barrier = 0, n_spinning = 0, n_free = 0;
    const char *barrier_file;
    int barrier_line, barrier_kind, barrier_count, barrier_result;
    bool over = false; /* the kernel ends here */
    Context main;
};

extern __thread Block *block;
extern __thread Fiber *self;

/* The kernel broke a rule: its device is lost. Frames of a kernel that ends so are never left in the usual
 * way: nothing in them may own memory. */
[[noreturn]] void end_kernel(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* -- shared.cpp -- */

void shared_create(BlockMemory &memory);
void shared_poison(Block &b); /* before its first thread: nothing of the previous block is left */

} // namespace cudasim

#endif
