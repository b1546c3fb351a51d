/* Inside the simulated machine: what its parts know of each other.
 *
 *   machine.cpp   configuration, the way into every call (lock, count, faults, sticky errors), the test API
 *   memory.cpp    device, pinned and virtual memory; who may touch what
 *   schedule.cpp  operations, their dependencies, the worker threads that carry them out
 *   kernel.cpp    what is known of a kernel before it runs
 *   block.cpp     one block of a kernel: fibers, barriers, warp operations
 *   shared.cpp    its shared memory, asynchronous copies to it
 *   limits.cpp    what blocks and multiprocessors of a card can hold
 *   numbers.cpp   results that a card may round in another way
 *   hook.cpp      launches seen, and blocks executed, from outside
 *   primary.cpp   primary contexts, and the one that is current in a thread
 *   corrupt.cpp   writes to a peer's memory that arrive wrong
 *   weak.cpp      stores that others see late, loads of old values
 *   ipc.cpp       device memory that other processes open
 *   device.cpp, copy.cpp, stream.cpp, graph.cpp, driver.cpp, nccl*.cpp, nvml.cpp, cublas.cpp
 *                 the API, by chapter
 *
 * One mutex protects everything; a kernel runs with it held. Host threads that call the API wait for it. */
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H

#include <pthread.h>
#include <stdint.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include "cudasim.h"

namespace cudasim
{

/* -- kernels -- */

struct StaticShared {     /* a variable */
    size_t offset, bytes; /* of the program's thread-local variables */
};

struct Kernel {
    std::vector<StaticShared> shared;
    size_t shared_bytes = 0; /* of all of them */
    int max_threads = 1024;  /* its launch bounds */
    /* of a thread, by machine code (8.0, 9.0, 12.0); unless the compiler's are known, every block fits */
    int registers[3] = {64, 64, 64};
};

Kernel *find_kernel(const void *function); /* NULL: no function of this program */

/* -- operations -- */

struct Op;
using OpRef = std::shared_ptr<Op>;

/* What an operation does. Not changed once submitted; shared by the replays of a graph. */
struct Body {
    enum Kind { NOTHING, ACTION, KERNEL, COLLECTIVE };
    Kind kind = NOTHING;
    int device = 0;
    std::string name;
    std::function<cudaError_t()> action; /* ACTION: done at once; an error poisons the device */
    std::function<void()> thread;        /* KERNEL: one thread of it */
    const void *function = NULL;         /* KERNEL: the whole of it, by address */
    const Kernel *kernel = NULL;
    dim3 grid, block;
    size_t shared_bytes = 0;
    std::vector<unsigned char> params;
    std::function<void(const OpRef &)> arrive; /* COLLECTIVE: finish() is called later, when all have come */
    uint64_t clique = 0;                       /* COLLECTIVE: its communicators */
    const bool *revoked = NULL; /* COLLECTIVE: becomes true when its communicator is released */
    cudaEvent_t event = NULL;   /* NOTHING, in a graph: each launch records it */
};
using BodyRef = std::shared_ptr<const Body>;

/* One carrying-out of a body. Ready when all it depends on is done. */
struct Op {
    BodyRef body;
    int unfinished = 0; /* operations it waits for */
    bool done = false;
    bool meets = false;              /* a kernel that looked at what others write while it runs */
    double begin_us = 0, end_us = 0; /* on the clock of its device, see cudasim_slow_device() */
    std::vector<OpRef> next;
    std::deque<Op *> *queue = NULL; /* the hardware queue that it is in until it starts; NULL: none */
};

/* A kernel's view of one allocation (weak.cpp). */
struct View {
    std::vector<unsigned char> mine;   /* while no block of the kernel runs */
    std::vector<unsigned char> before; /* what it was when it was last brought up to date; stores differ */
    std::vector<unsigned char> shared; /* while one does: the memory that all share */
};

/* What a device's kernels have stored into one allocation and not released, by byte (weak.cpp). */
struct Late {
    std::vector<unsigned char> bytes;
    std::vector<bool> is;
};

/* A kernel being carried out. */
struct Grid {
    OpRef op;
    uint64_t next = 0, total = 0, left = 0; /* blocks: the next to start, all, not finished */
    bool aborted = false;
    std::map<uintptr_t, std::vector<unsigned char>> before; /* what it may damage (corrupt.cpp) */
    std::map<uintptr_t, View> views;
};
using GridRef = std::shared_ptr<Grid>;

struct Worker;

/* A host thread waits until `done`, or until nothing more can be done, or until some steps were made. */
struct Waiter {
    std::function<bool()> done;
    bool until_idle = false;
    uint64_t until_step = UINT64_MAX;
    bool satisfied = false;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
};

/* -- memory -- */

struct Region {
    enum Kind { MALLOC, VMM, MANAGED, PINNED, REGISTERED, OPENED };
    Kind kind;
    uintptr_t va;  /* first usable byte */
    size_t size;   /* usable bytes */
    uintptr_t map; /* first mapped byte */
    size_t map_size;
    int device;      /* owner of the memory; for host memory the device current at allocation */
    size_t offset;   /* of `map` in the device's physical memory */
    uint32_t access; /* VMM: devices allowed, one bit each */
    unsigned flags;
    uint64_t handle;      /* VMM */
    int protection;       /* without protection keys: what mprotect was last told */
    int owner;            /* OPENED: the device whose memory it is, in another process (ipc.cpp) */
    int n_opened;         /* OPENED: how often */
    int64_t process;      /* OPENED: that process */
    unsigned char *alias; /* OPENED: the simulation's own mapping */
    bool is_host() const
    {
        return kind == PINNED || kind == REGISTERED;
    }
};

struct Handle { /* cuMemCreate */
    int device;
    size_t size, offset;
    int mapped = 0;
    bool released = false;
};

/* -- devices -- */

/* Of a multiprocessor: what is in use, or what a block takes. */
struct Room {
    int blocks = 0, threads = 0, registers = 0;
    size_t shared_bytes = 0;
};

struct Device {
    int ordinal = 0;
    size_t memory = 0, used = 0, peak = 0; /* without the context's */
    size_t context_bytes = 0;              /* what a context takes, in addition */
    size_t others = 0;                     /* taken by other processes */
    bool initialised = false;              /* the runtime has made the context */
    int retained = 0;                      /* cuDevicePrimaryCtxRetain */
    bool has_context() const
    {
        return initialised || retained != 0;
    }
    size_t total() const
    {
        return memory + context_bytes;
    }
    int fd = -1;                 /* its physical memory */
    unsigned char *alias = NULL; /* all of it, always accessible to the simulation itself */
    size_t physical = 0;
    std::map<size_t, size_t> holes; /* free extents of it: offset, bytes */
    uintptr_t va_next = 0, va_end = 0;
    uint32_t peers = 0; /* enabled */
    cudaError_t sticky = cudaSuccess;
    bool stalled = false;
    double slowness = 1;  /* cudasim_slow_device() */
    double clock_us = 0;  /* its latest kernel or collective began then */
    uint64_t corrupt = 0; /* copies of corrupt_bytes and more until one is changed */
    size_t corrupt_bytes = 0;
    ncclResult_t nccl_error = ncclSuccess;
    bool nccl_absent = false;
    std::vector<Room> sms;                          /* what their blocks use */
    size_t next_sm = 0;                             /* where the next block may go */
    int pending = 0;                                /* operations not done */
    std::set<const void *> loaded;                  /* kernels */
    std::map<const Kernel *, size_t> shared_limits; /* that were set */
    std::vector<std::deque<Op *>> queues;           /* hardware queues: what is in one starts in its order */
    uint64_t n_streams = 0; /* made so far; stream n is in queue n modulo their number */
    int launcher = 0;       /* the thread that waits with the context's lock; 0: none */
    cudaStream_t legacy = NULL;
    std::map<uintptr_t, Late> late; /* what its kernels that have ended did not release */
};

/* -- the machine -- */

struct Fault {
    std::string name; /* "" = by index */
    uint64_t countdown;
    int error;
    int device; /* whose context is poisoned; -1: the call fails */
};

struct Machine {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int waiting_for_lock = 0; /* host threads; changed atomically */
    uint64_t generation = 0;
    cudasim_config config;
    std::vector<Device> devices;
    uint32_t no_peer[CUDASIM_MAX_DEVICES] = {};
    size_t page_cache = 0;
    uint32_t corrupt[CUDASIM_MAX_DEVICES] = {};        /* whose memory a device's kernels damage */
    uint32_t corrupt_copies[CUDASIM_MAX_DEVICES] = {}; /* whose memory its copies read wrong */
    std::mt19937_64 random;

    std::map<uintptr_t, Region> regions; /* by first usable byte */
    std::map<uintptr_t, size_t> reservations;
    std::map<uint64_t, Handle> handles;
    uint64_t next_handle = 1;

    std::set<cudaStream_t> streams;
    std::set<cudaEvent_t> events;
    std::set<cudaGraph_t> graphs;
    std::set<cudaGraphExec_t> execs;
    std::set<ncclComm_t> comms;
    std::set<void *> cublas_objects;

    std::vector<OpRef> ready;
    std::vector<GridRef> grids; /* with blocks to start */
    std::vector<Worker *> parked, idle, workers;
    Worker *driver = NULL; /* who carries out operations now */
    Grid *viewing = NULL;  /* whose view is in memory */
    std::vector<Waiter *> waiters;
    uint64_t steps = 0, operations = 0, fruitless = 0;
    double progress_ms = 0;

    uint64_t n_calls = 0;
    std::vector<const char *> trace;
    std::map<std::string, uint64_t> calls_of;
    std::map<std::string, uint64_t> blocks_of;        /* by kernel, without template arguments */
    std::map<std::pair<int, int>, uint64_t> messages; /* of NCCL, by sender and receiver */
    std::vector<Fault> faults;
    uint64_t faults_hit = 0;
    uint64_t late_loads = 0;
    uint64_t link_bytes = 0;
    std::string violation;
    int n_violations = 0;
    int nccl_shared_memory = -1; /* connections through the host that still fit; -1: any number */
    bool nccl_refuses_capture = false;
};

Machine &machine();
double now_ms();

/* Note a broken rule. */
void violate(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Device `ordinal` is lost: everything queued on it ends without being done. */
void poison(int ordinal, cudaError_t error);

/* -- the way into a call -- */

enum {
    CALL_CONTEXT = 1, /* fails where the current device's context is poisoned */
    CALL_UNSAFE = 2,  /* forbidden while a capture is on */
    CALL_RELEASE = 4, /* an injected fault is reported, but the work is done */
    CALL_QUIET = 8,   /* its result is not kept for cudaGetLastError */
    CALL_DRIVER = 16  /* with CALL_CONTEXT: makes no context, but fails where none is current */
};

/* Holds the machine's lock. `failed()` tells that the call must return `result()` at once; `end` is the last
 * thing a call does. */
class Call
{
  public:
    Call(const char *name, unsigned flags, int usual_fault);
    ~Call();
    bool failed() const
    {
        return failed_;
    }
    cudaError_t result()
    {
        return end(error_);
    }
    cudaError_t end(cudaError_t error);
    CUresult end_driver(CUresult error);
    ncclResult_t end_nccl(ncclResult_t error);
    int injected() const
    {
        return injected_;
    }

  private:
    unsigned flags_;
    bool failed_ = false;
    cudaError_t error_ = cudaSuccess;
    int injected_ = 0;
};

/* The calling thread's. */
struct Thread {
    uint64_t generation = 0;
    int device = 0;            /* cudaSetDevice's */
    std::vector<int> contexts; /* of these devices; the last is current; empty: none is */
    cudaError_t last = cudaSuccess;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    int id = 0;
    int group_depth = 0;
};
Thread &thread_state();
Device *current_device(); /* NULL on a machine without any */

/* -- primary.cpp -- */

size_t context_bytes_of_card();
size_t room(const Device &device); /* free bytes */
/* Unless there is one; the runtime's stays, the driver's is counted. */
cudaError_t make_context(Device &device, bool by_runtime);
/* What every call does that needs a context. */
cudaError_t use_context(bool by_driver);

/* -- schedule.cpp -- */

OpRef submit(BodyRef body, const std::vector<OpRef> &after, std::deque<Op *> *queue = NULL);
void finish(const OpRef &op);
bool wait_for(std::function<bool()> done); /* false: the machine hangs; its devices are poisoned */
void advance(uint64_t steps);              /* carry out some operations */
bool spins(int device);                    /* a kernel there waits for another block or device */
void after_submit();                       /* perhaps carry out some */
void nccl_forget();                        /* all communicators; for a new machine */
bool nccl_read();                          /* what ranks of other processes have done; true: something */
bool nccl_is_elsewhere();                  /* there may be such */
void abort_everything();                   /* end all kernels and operations; for a new machine */
void park(Worker *worker);                 /* from block.cpp: let others run, return when it is our turn */
void meet_others(Worker *worker);          /* from block.cpp: its kernel looks at what others write */

/* -- limits.cpp -- */

struct Limits { /* of a multiprocessor */
    int capability, threads, blocks;
    size_t shared_bytes, reserved_bytes; /* all; for each block, in addition to its own */
};

void choose_card(cudasim_config &config); /* what it leaves open */
const Limits &limits();
/* A kernel's launches may have so much dynamic shared memory now. */
size_t shared_limit(const Kernel *kernel, const Device &device);
cudaError_t check_launch(const Body &body);
/* The multiprocessor that a block of the kernel can start on, or -1. */
int find_room(Device &device, const Body &body);
void take_room(Device &device, int sm, const Body &body, bool back);

/* -- numbers.cpp -- */

void choose_places(uint64_t seed);

/* -- hook.cpp -- */

bool hooked();
void hook_begin(const Grid &grid);
void hook_end(const Grid &grid);
/* 1: done, 0: not wanted, -1: the kernel must end. */
int hook_block(Worker *worker, Grid &grid, uint64_t index);

/* -- corrupt.cpp -- */

void note_before(Grid &grid);    /* a kernel starts */
void damage_written(Grid &grid); /* it has ended */

/* -- weak.cpp -- */

void view_enter(Grid &grid); /* a block of the kernel begins, or goes on after others ran */
void view_leave();
void view_end(Grid &grid); /* the kernel has ended */
void view_release_all();   /* what no kernel has released; before anything else than a kernel */

/* -- block.cpp -- */

struct BlockMemory; /* a worker's stacks, reused by every block it runs */
BlockMemory *block_memory_create();

/* Run one block. Returns false if the kernel must end (a fault or an abort). */
bool run_block(Worker *worker, BlockMemory *memory, Grid &grid, uint64_t index);

/* From the signal handler: whether the thread is inside a kernel, of which device, and where to go on. */
int kernel_device();
std::string kernel_place();
[[noreturn]] void leave_kernel(); /* the fiber never runs again */

/* -- memory.cpp -- */

void catch_faults(); /* again before kernels run: test frameworks install handlers of their own */
cudaError_t memory_start(Device &device); /* a new machine */
void memory_stop();
cudaError_t device_alloc(Device &device, size_t bytes, void **out);
cudaError_t device_free(uintptr_t va);
bool physical_alloc(Device &device, size_t bytes, size_t *offset_out);
void physical_free(Device &device, size_t offset, size_t bytes);
uintptr_t address_reserve(Device &device, size_t bytes, size_t alignment);
void region_map(Region &region);    /* its physical memory appears at region.map */
void region_unmap(Region &region);  /* and disappears; the addresses fault */
void region_access(Region &region); /* after region.access changed */
bool can_peer(int device, int other);
Region *region_of(const void *pointer);
int place_of(const void *pointer); /* the device whose memory it is; -1: the host's */

/* The memory of `owner` that peers have mapped, and whether its BAR1 takes `more` bytes. */
size_t bar1_used(int owner);
bool bar1_fits(int owner, size_t more);
bool has_guests(int owner); /* another device has enabled peer access to its cudaMalloc memory */

/* Let the calling thread touch what kernels of `device` may touch; -1: nothing of any device. Without
 * protection keys it is all threads, and what was granted stays so until another device's turn, or revoke():
 * no thread works any more. */
void grant(int device);
void revoke();

/* The simulation's own view of [pointer, pointer + bytes): a piece of it, its length in *length. NULL where
 * device memory is not mapped. Host addresses are themselves. */
unsigned char *host_view(const void *pointer, size_t bytes, size_t *length);
bool is_device_range(const void *pointer); /* in the addresses of some device, mapped or not */
/* Whether all of it can be accessed: host memory, or one or more adjacent mappings. */
bool range_ok(const void *pointer, size_t bytes);
/* Whether all of it that is mapped memory was opened to `device` (cuMemSetAccess). */
bool opened_to(int device, const void *pointer, size_t bytes);
void copy_bytes(void *dst, const void *src, size_t bytes);
void set_bytes(void *dst, int value, size_t bytes);

/* -- ipc.cpp -- */

void ipc_forget(const Region &region); /* an opened one, before its region is erased */

/* -- streams and graphs -- */

struct Node {
    BodyRef body;
    std::vector<int> after; /* indices of earlier nodes */
};

struct Capture {
    cudaGraph_t graph;
    cudaStream_t origin;
    cudaStreamCaptureMode mode;
    int thread;
    bool invalid = false;
};
using CaptureRef = std::shared_ptr<Capture>;

cudaStream_t find_stream(cudaStream_t stream); /* NULL: no such stream */
std::deque<Op *> *queue_of(cudaStream_t stream);

/* Put `body` into the stream, or into the graph its capture builds. `op_out` may be NULL; it is left alone
 * in a capture. */
cudaError_t enqueue(cudaStream_t stream, BodyRef body, OpRef *op_out);

/* A capture that forbids an unsafe call of this thread is invalidated: true. */
bool forbidden_by_capture();

} // namespace cudasim

struct CUstream_st {
    CUstream_st(int device_, bool blocking_) : device(device_), blocking(blocking_)
    {
    }
    int device;
    bool blocking; /* synchronises with the legacy stream */
    bool is_legacy = false;
    size_t queue = 0;     /* index of its device's; of none if it is the legacy stream */
    int nccl_pending = 0; /* NCCL calls that are still being enqueued, by non-blocking communicators */
    cudasim::OpRef last;
    cudasim::CaptureRef capture;
    std::vector<int> frontier; /* in a capture: the nodes that what comes next follows */
};

struct CUevent_st {
    int device;
    unsigned flags;
    cudasim::OpRef op; /* last record; NULL: never */
    cudasim::CaptureRef capture;
    std::vector<int> nodes; /* in a capture */
};

struct CUgraphNode_st {
};

struct CUgraph_st {
    std::vector<cudasim::Node> nodes;
};

struct CUgraphExec_st {
    std::vector<cudasim::Node> nodes;
    cudasim::OpRef last;
};

#endif
