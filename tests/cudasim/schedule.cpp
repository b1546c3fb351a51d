/* Who carries out operations, and when.
 *
 * Operations form a graph: each waits for those it depends on (the one before it in its stream, events, a
 * graph's edges). Those that wait for nothing are ready, and a *driver* picks among them at random. The
 * driver is one of a pool of worker threads; there is at most one at a time, it holds the machine's lock, and
 * it works only while some host thread waits for something (a Waiter). So nothing runs behind a program's
 * back, and a program with one host thread always sees the same order for the same seed.
 *
 * A block of a kernel occupies a worker from start to end, because the worker's thread-local variables are
 * the block's shared memory. If the block spins (waits for memory that another block or device must change),
 * its worker is *parked* and another becomes the driver;
 * a parked block is resumed like any ready operation. */
#include "sim.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace cudasim
{

struct Worker {
    pthread_t thread;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    BlockMemory *memory = NULL;
    int device = -1; /* of the block it runs */
    GridRef grid;
};

/* -- operations -- */

static void progress(Machine &m)
{
    m.progress_ms = now_ms();
    m.fruitless = 0;
}

OpRef submit(BodyRef body, const std::vector<OpRef> &after, std::deque<Op *> *queue)
{
    Machine &m = machine();
    OpRef op = std::make_shared<Op>();
    op->body = body;
    for (const OpRef &other : after) {
        if (other == NULL)
            continue;
        if (other->done) {
            op->begin_us = std::max(op->begin_us, other->end_us);
        } else {
            other->next.push_back(op);
            op->unfinished++;
        }
    }
    m.devices[(size_t)body->device].pending++;
    if (queue != NULL)
        queue->push_back(op.get());
    op->queue = queue;
    if (op->unfinished == 0)
        m.ready.push_back(op);
    progress(m);
    return op;
}

/* What is taken for the time of an operation: nothing that depends on this machine, or on who ran when. */
static double duration_us(const Body &body)
{
    switch (body.kind) {
    case Body::NOTHING:
        return 0;
    case Body::KERNEL:
        return 2 + (double)body.grid.x * body.grid.y * body.grid.z;
    default:
        return 2;
    }
}

/* One that meets others ends no earlier than the latest kernel that has begun by now did begin. */
static double end_us(Machine &m, const Op &op)
{
    const Body &body = *op.body;
    double end = op.begin_us + duration_us(body) * m.devices[(size_t)body.device].slowness;
    for (const Device &device : m.devices)
        if (op.meets || body.kind == Body::COLLECTIVE)
            end = std::max(end, device.clock_us);
    return end;
}

void finish(const OpRef &op)
{
    Machine &m = machine();
    if (op->done)
        return;
    op->done = true;
    op->end_us = end_us(m, *op);
    m.operations++;
    m.devices[(size_t)op->body->device].pending--;
    for (const OpRef &next : op->next) {
        next->begin_us = std::max(next->begin_us, op->end_us);
        if (--next->unfinished == 0)
            m.ready.push_back(next);
    }
    op->next.clear();
    progress(m);
}

static void start(Machine &m, const OpRef &op)
{
    const Body &body = *op->body;
    Device &device = m.devices[(size_t)body.device];
    if (body.kind == Body::KERNEL || body.kind == Body::COLLECTIVE)
        device.clock_us = std::max(device.clock_us, op->begin_us);
    if (op->queue != NULL) {
        op->queue->pop_front();
        op->queue = NULL;
    }
    if (body.kind != Body::KERNEL)
        view_release_all();
    if (device.sticky != cudaSuccess || body.kind == Body::NOTHING) {
        finish(op);
    } else if (body.kind == Body::ACTION) {
        cudaError_t error = body.action();
        if (error != cudaSuccess) {
            violate("%s on device %d: %s", body.name.c_str(), body.device, cudaGetErrorString(error));
            poison(body.device, error);
        }
        finish(op);
    } else if (body.kind == Body::COLLECTIVE) {
        progress(m);
        body.arrive(op);
    } else {
        GridRef grid = std::make_shared<Grid>();
        grid->op = op;
        grid->total = grid->left = (uint64_t)body.grid.x * body.grid.y * body.grid.z;
        note_before(*grid);
        hook_begin(*grid);
        m.grids.push_back(grid);
    }
}

/* -- waiters -- */

/* Whether anyone still waits; those who need not are told. */
static bool wanted(Machine &m, bool idle)
{
    bool any = false;
    if (nccl_read())
        progress(m);
    for (Waiter *waiter : m.waiters) {
        if (waiter->satisfied)
            continue;
        if ((idle && waiter->until_idle) || m.steps >= waiter->until_step || waiter->done()) {
            waiter->satisfied = true;
            __atomic_add_fetch(&m.waiting_for_lock, 1,
                               __ATOMIC_RELAXED); /* taken back when it has the lock */
            pthread_cond_signal(&waiter->cond);
        } else {
            any = true;
        }
    }
    return any;
}

/* Other host threads may have something to say. */
static void give_way(Machine &m)
{
    if (__atomic_load_n(&m.waiting_for_lock, __ATOMIC_RELAXED) == 0)
        return;
    pthread_mutex_unlock(&m.mutex);
    for (int i = 0; i < 1000 && __atomic_load_n(&m.waiting_for_lock, __ATOMIC_RELAXED) != 0; i++)
        sched_yield();
    pthread_mutex_lock(&m.mutex);
}

/* -- choosing -- */

struct Choice {
    enum Kind { NOTHING, START, BLOCK, RESUME } kind;
    size_t index;
};

static bool can_run(Machine &m, const GridRef &grid)
{
    Device &device = m.devices[(size_t)grid->op->body->device];
    return !device.stalled && find_room(device, *grid->op->body) >= 0;
}

/* Whether nothing before it in its queue has still to start. */
static bool is_first(const Op &op)
{
    return op.queue == NULL || op.queue->front() == &op;
}

static Choice choose(Machine &m, const Worker *self)
{
    /* Mostly go on with the youngest kernel: a grid of many blocks is one thing to the rest
     * of the machine. */
    if (!m.grids.empty() && (hooked() || m.random() % 8 != 0) && can_run(m, m.grids.back()))
        return {Choice::BLOCK, m.grids.size() - 1};
    std::vector<Choice> choices;
    for (size_t i = 0; i < m.ready.size(); i++)
        if (!m.devices[(size_t)m.ready[i]->body->device].stalled && is_first(*m.ready[i]))
            choices.push_back({Choice::START, i});
    for (size_t i = 0; i < m.grids.size(); i++)
        if (can_run(m, m.grids[i]))
            choices.push_back({Choice::BLOCK, i});
    bool others = !choices.empty();
    for (size_t i = 0; i < m.parked.size(); i++) {
        const Worker *worker = m.parked[i];
        /* The one that just gave up its turn is not asked again while others could move. */
        if (!m.devices[(size_t)worker->device].stalled &&
            (worker != self || (!others && m.parked.size() == 1)))
            choices.push_back({Choice::RESUME, i});
    }
    if (choices.empty())
        return {Choice::NOTHING, 0};
    return choices[m.random() % choices.size()];
}

/* -- workers -- */

static void run_next_block(Machine &m, Worker *worker, GridRef grid)
{
    uint64_t index = grid->next++;
    if (grid->next == grid->total)
        m.grids.erase(std::find(m.grids.begin(), m.grids.end(), grid));
    Device &device = m.devices[(size_t)grid->op->body->device];
    worker->device = device.ordinal;
    worker->grid = grid;
    const int sm = find_room(device, *grid->op->body);
    take_room(device, sm, *grid->op->body, false);
    bool ok = device.sticky == cudaSuccess && !grid->aborted;
    const int executed = ok ? hook_block(worker, *grid, index) : -1;
    ok = ok && executed >= 0 && (executed > 0 || run_block(worker, worker->memory, *grid, index));
    take_room(device, sm, *grid->op->body, true);
    worker->device = -1;
    worker->grid = NULL;
    if (!ok && !grid->aborted) {
        grid->aborted = true;
        if (grid->next < grid->total) { /* the rest is not started */
            m.grids.erase(std::find(m.grids.begin(), m.grids.end(), grid));
            grid->left -= grid->total - grid->next;
            grid->next = grid->total;
        }
    }
    if (--grid->left == 0) {
        view_end(*grid);
        hook_end(*grid);
        damage_written(*grid);
        finish(grid->op);
    }
    progress(m);
}

static void *worker_main(void *argument);

static Worker *idle_worker(Machine &m)
{
    if (m.idle.empty()) {
        Worker *made = new Worker;
        made->memory = block_memory_create();
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, (size_t)8 << 20);
        pthread_create(&made->thread, &attributes, worker_main, made);
        pthread_attr_destroy(&attributes);
        m.workers.push_back(made);
        m.idle.push_back(made);
    }
    Worker *worker = m.idle.back();
    m.idle.pop_back();
    return worker;
}

static void transfer(Machine &m, Worker *to)
{
    m.driver = to;
    if (to != NULL)
        pthread_cond_signal(&to->cond);
    else
        revoke();
}

/* Begin to work if a thread waits and none works. */
static void kick(Machine &m)
{
    if (m.driver == NULL && wanted(m, false)) {
        catch_faults();
        transfer(m, idle_worker(m));
    }
}

static void give_up(Machine &m);

/* Do one thing. `self` is the worker that drives; `parked` tells that its own thread holds a block that gave
 * up its turn, so it cannot start another. Returns false when it is no longer the driver. */
static bool drive_once(Machine &m, Worker *self, bool parked)
{
    give_way(m);
    if (!wanted(m, false)) {
        transfer(m, NULL);
        return false;
    }
    Choice choice = choose(m, parked ? self : NULL);
    m.steps++;
    if (choice.kind == Choice::NOTHING) {
        wanted(m, true);
        transfer(m, NULL);
        return false;
    }
    if (choice.kind == Choice::START) {
        OpRef op = m.ready[choice.index];
        m.ready.erase(m.ready.begin() + (long)choice.index);
        start(m, op);
        return true;
    }
    if (choice.kind == Choice::BLOCK) {
        if (parked) {
            transfer(m, idle_worker(m));
            return false;
        }
        run_next_block(m, self, m.grids[choice.index]);
        return true;
    }
    /* All that can be done is to let kernels look again at what they wait for:
     * leave the processor to others. */
    if (++m.fruitless > 4 * m.parked.size() + 16) {
        if (now_ms() - m.progress_ms > m.config.hang_ms) /* a waiting thread may not get the lock to say so */
            give_up(m);
        wanted(m, true);
        pthread_mutex_unlock(&m.mutex);
        usleep(20);
        pthread_mutex_lock(&m.mutex);
        if (choice.index >= m.parked.size())
            return true;
    }
    Worker *next = m.parked[choice.index];
    transfer(m, next);
    return false;
}

static void *worker_main(void *argument)
{
    Worker *self = (Worker *)argument;
    Machine &m = machine();
    pthread_mutex_lock(&m.mutex);
    for (;;) {
        while (m.driver != self)
            pthread_cond_wait(&self->cond, &m.mutex);
        while (drive_once(m, self, false)) {
        }
        m.idle.push_back(self);
    }
    return NULL;
}

void park(Worker *worker)
{
    Machine &m = machine();
    m.parked.push_back(worker);
    grant(-1);
    while (drive_once(m, worker, true)) {
    }
    while (m.driver != worker)
        pthread_cond_wait(&worker->cond, &m.mutex);
    m.parked.erase(std::find(m.parked.begin(), m.parked.end(), worker));
    grant(worker->device);
}

void meet_others(Worker *worker)
{
    worker->grid->op->meets = true;
}

bool spins(int device)
{
    for (const Worker *worker : machine().parked)
        if (worker->device == device)
            return true;
    return false;
}

/* -- for host threads -- */

/* Nothing moved for too long: say what is stuck, and end it, as a watchdog would. */
static void give_up(Machine &m)
{
    std::string stuck;
    for (Worker *worker : m.parked)
        stuck += " kernel " + worker->grid->op->body->name + " on device " + std::to_string(worker->device) +
                 " spins;";
    for (Device &device : m.devices)
        if (device.pending != 0)
            stuck += " device " + std::to_string(device.ordinal) + " has " + std::to_string(device.pending) +
                     " operations" + (device.stalled ? " and is stalled;" : ";");
    violate("nothing moves:%s", stuck.c_str());
    for (Device &device : m.devices) {
        if (device.pending != 0) {
            poison(device.ordinal, cudaErrorLaunchTimeout);
            device.stalled = false;
        }
    }
}

static void leave(Machine &m, Waiter &waiter)
{
    if (waiter.satisfied)
        __atomic_sub_fetch(&m.waiting_for_lock, 1, __ATOMIC_RELAXED);
    m.waiters.erase(std::find(m.waiters.begin(), m.waiters.end(), &waiter));
}

static bool wait_on(Machine &m, Waiter &waiter)
{
    m.waiters.push_back(&waiter);
    bool moved = true;
    progress(m);
    for (kick(m); !waiter.satisfied; kick(m)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += nccl_is_elsewhere() ? 200000 : 20000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&waiter.cond, &m.mutex, &until);
        if (!waiter.satisfied && now_ms() - m.progress_ms > m.config.hang_ms) {
            moved = false;
            give_up(m);
            break;
        }
    }
    leave(m, waiter);
    return moved;
}

bool wait_for(std::function<bool()> done)
{
    if (done())
        return true;
    Waiter waiter;
    waiter.done = std::move(done);
    return wait_on(machine(), waiter);
}

void advance(uint64_t steps)
{
    Machine &m = machine();
    Waiter waiter;
    waiter.done = [] { return false; };
    waiter.until_idle = true;
    waiter.until_step = m.steps + steps;
    nccl_read();
    if (m.ready.empty() && m.grids.empty() && m.parked.empty())
        return;
    wait_on(m, waiter);
}

void after_submit()
{
    Machine &m = machine();
    if (m.config.eager)
        advance(1000000);
    else if (m.random() % 16 == 0)
        advance(1 + m.random() % 8);
    else if (!m.waiters.empty())
        kick(m);
}

void abort_everything()
{
    Machine &m = machine();
    for (Device &device : m.devices) {
        device.sticky = cudaErrorLaunchFailure;
        device.stalled = false;
    }
    if (m.generation != 0)
        wait_for([&m] { return m.ready.empty() && m.grids.empty() && m.parked.empty(); });
    m.ready.clear();
}

} // namespace cudasim
