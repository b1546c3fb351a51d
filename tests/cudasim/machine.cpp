/* The machine as a whole: its configuration, the way into every call, injected faults, and the test API. */
#include "sim.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace cudasim
{

Machine &machine()
{
    static Machine *m = [] {
        Machine *made = new Machine; /* never destroyed: worker threads live as long as the process */
        cudasim_config usual = CUDASIM_CONFIG_INIT;
        made->config = usual;
        return made;
    }();
    return *m;
}

double now_ms()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void violate(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    Machine &m = machine();
    if (m.n_violations++ == 0)
        m.violation = text;
}

void poison(int ordinal, cudaError_t error)
{
    Device &device = machine().devices[(size_t)ordinal];
    if (device.sticky == cudaSuccess)
        device.sticky = error;
}

/* As the driver reads the variable when it starts. */
static size_t n_queues()
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const long n = text != NULL ? strtol(text, NULL, 10) : 8;
    return n >= 1 && n <= 32 ? (size_t)n : 8;
}

static void start_devices(Machine &m)
{
    m.generation++;
    m.random.seed(m.config.seed);
    choose_card(m.config);
    choose_places(m.config.last_places);
    m.devices = std::vector<Device>((size_t)m.config.n_devices);
    for (int i = 0; i < m.config.n_devices; i++) {
        Device &device = m.devices[(size_t)i];
        device.ordinal = i;
        device.sms.resize((size_t)m.config.n_sms);
        device.memory = m.config.memory_of[i] != 0 ? m.config.memory_of[i] : m.config.memory;
        device.context_bytes = context_bytes_of_card();
        device.others = m.config.taken;
        device.queues.resize(n_queues());
        memory_start(device);
        device.legacy = new CUstream_st(i, true);
        device.legacy->is_legacy = true;
    }
}

/* A machine that is not configured is made at its first use. */
static void ensure_started(Machine &m)
{
    if (m.generation == 0)
        start_devices(m);
}

Thread &thread_state()
{
    static thread_local Thread state;
    static int next_id;
    Machine &m = machine();
    if (state.generation != m.generation) {
        int id = state.id != 0 ? state.id : __atomic_add_fetch(&next_id, 1, __ATOMIC_RELAXED);
        state = Thread();
        state.id = id;
        state.generation = m.generation;
    }
    return state;
}

Device *current_device()
{
    Machine &m = machine();
    const Thread &thread = thread_state();
    size_t index = (size_t)(thread.contexts.empty() ? thread.device : thread.contexts.back());
    return index < m.devices.size() ? &m.devices[index] : NULL;
}

static int take_fault(Machine &m, const char *name, uint64_t index)
{
    for (size_t i = 0; i < m.faults.size(); i++) {
        Fault &fault = m.faults[i];
        bool hit =
            fault.name.empty() ? fault.countdown == index : fault.name == name && --fault.countdown == 0;
        if (hit) {
            int error = fault.error != 0 ? fault.error : -1;
            if (fault.device >= 0) {
                m.devices[(size_t)fault.device].sticky = (cudaError_t)error;
                error = 0;
            }
            m.faults.erase(m.faults.begin() + (long)i);
            m.faults_hit++;
            return error;
        }
    }
    return 0;
}

/* Calls of this name do not return; NULL: all do. */
static std::atomic<const char *> hanging_call{NULL};

/* Calls of this name take so long. */
static std::atomic<const char *> slow_call{NULL};
static std::atomic<unsigned> slow_us{0};

static void wait_while_hanging(const char *name)
{
    const char *slow = slow_call.load();
    if (slow != NULL && strcmp(slow, name) == 0)
        usleep(slow_us.load());
    const char *hanging;
    while ((hanging = hanging_call.load()) != NULL && strcmp(hanging, name) == 0)
        usleep(1000);
}

/* Of the current device's context, which a launch that waits for room in its queue keeps. */
static void wait_for_lock()
{
    const Device *device = current_device();
    if (device != NULL && device->launcher != 0 && device->launcher != thread_state().id)
        wait_for([device] { return device->launcher == 0; });
}

Call::Call(const char *name, unsigned flags, int usual_fault) : flags_(flags)
{
    Machine &m = machine();
    wait_while_hanging(name);
    __atomic_add_fetch(&m.waiting_for_lock, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&m.mutex);
    __atomic_sub_fetch(&m.waiting_for_lock, 1, __ATOMIC_RELAXED);
    ensure_started(m);
    uint64_t index = m.n_calls++;
    if (index < 1000000)
        m.trace.push_back(name);
    m.calls_of[name]++;

    int fault = take_fault(m, name, index);
    if (fault != 0) {
        injected_ = fault > 0 ? fault : usual_fault;
        error_ = (cudaError_t)injected_;
        failed_ = !(flags & CALL_RELEASE);
        if (!failed_)
            return;
    } else if ((flags & CALL_UNSAFE) && forbidden_by_capture()) {
        error_ = cudaErrorStreamCaptureUnsupported;
        failed_ = true;
    } else if (flags & CALL_CONTEXT) {
        wait_for_lock();
        error_ = use_context(flags & CALL_DRIVER);
        if (error_ == cudaSuccess)
            error_ = current_device()->sticky;
        failed_ = error_ != cudaSuccess;
    } else if ((flags & CALL_RELEASE) && !(flags & CALL_QUIET)) {
        use_context(false);
    }
}

Call::~Call()
{
    pthread_mutex_unlock(&machine().mutex);
}

cudaError_t Call::end(cudaError_t error)
{
    if (error == cudaSuccess && injected_ != 0)
        error = (cudaError_t)injected_;
    if (error != cudaSuccess && !(flags_ & CALL_QUIET))
        thread_state().last = error;
    return error;
}

CUresult Call::end_driver(CUresult error)
{
    return error == CUDA_SUCCESS && injected_ != 0 ? (CUresult)injected_ : error;
}

ncclResult_t Call::end_nccl(ncclResult_t error)
{
    return (error == ncclSuccess || error == ncclInProgress) && injected_ != 0 ? (ncclResult_t)injected_
                                                                               : error;
}

/* Lock without being a counted call: the test API. */
class Locked
{
  public:
    Locked()
    {
        Machine &m = machine();
        __atomic_add_fetch(&m.waiting_for_lock, 1, __ATOMIC_RELAXED);
        pthread_mutex_lock(&m.mutex);
        __atomic_sub_fetch(&m.waiting_for_lock, 1, __ATOMIC_RELAXED);
        ensure_started(m);
    }
    ~Locked()
    {
        pthread_mutex_unlock(&machine().mutex);
    }
};

static int leaked(FILE *out, const char *what, size_t n)
{
    if (n != 0 && out != NULL)
        fprintf(out, "cudasim: %zu %s not released\n", n, what);
    return (int)n;
}

static size_t n_retained()
{
    size_t n = 0;
    for (const Device &device : machine().devices)
        n += (size_t)device.retained;
    return n;
}

static int leaked_memory(FILE *out)
{
    static const char *const kinds[] = {"device memory", "mapped device memory", "managed memory",
                                        "pinned memory", "registered memory",    "another process's memory"};
    int n = 0;
    for (const auto &entry : machine().regions) {
        const Region &region = entry.second;
        n++;
        if (out != NULL)
            fprintf(out, "cudasim: %zu bytes of %s (device %d) not released\n", region.size,
                    kinds[region.kind], region.device);
    }
    return n;
}

} // namespace cudasim

using namespace cudasim;

void cudasim_configure(const cudasim_config *config)
{
    Locked lock;
    Machine &m = machine();
    cudasim_config usual = CUDASIM_CONFIG_INIT;
    abort_everything();
    memory_stop();
    m.config = config != NULL ? *config : usual;
    for (Device &device : m.devices)
        delete device.legacy;
    for (cudaStream_t stream : m.streams)
        delete stream;
    for (cudaEvent_t event : m.events)
        delete event;
    for (cudaGraph_t graph : m.graphs)
        delete graph;
    for (cudaGraphExec_t exec : m.execs)
        delete exec;
    m.streams.clear();
    m.events.clear();
    m.graphs.clear();
    m.execs.clear();
    nccl_forget();
    m.cublas_objects.clear();
    m.handles.clear();
    m.reservations.clear();
    memset(m.no_peer, 0, sizeof m.no_peer);
    m.nccl_shared_memory = -1;
    m.viewing = NULL;
    m.nccl_refuses_capture = false;
    m.page_cache = 0;
    memset(m.corrupt, 0, sizeof m.corrupt);
    memset(m.corrupt_copies, 0, sizeof m.corrupt_copies);
    m.n_calls = m.faults_hit = m.late_loads = m.link_bytes = m.operations = m.steps = 0;
    m.trace.clear();
    m.calls_of.clear();
    m.blocks_of.clear();
    m.messages.clear();
    m.faults.clear();
    m.violation.clear();
    m.n_violations = 0;
    start_devices(m);
}

void cudasim_forbid_peer(int a, int b)
{
    Locked lock;
    machine().no_peer[a] |= 1u << b;
    machine().no_peer[b] |= 1u << a;
}

void cudasim_corrupt_peer(int writer, int owner)
{
    Locked lock;
    machine().corrupt[writer] |= 1u << owner;
}

void cudasim_corrupt_peer_copies(int reader, int owner)
{
    Locked lock;
    machine().corrupt_copies[reader] |= 1u << owner;
}

int cudasim_leaks(FILE *out)
{
    Locked lock;
    Machine &m = machine();
    return leaked_memory(out) + leaked(out, "address ranges", m.reservations.size()) +
           leaked(out, "physical handles", m.handles.size()) + leaked(out, "streams", m.streams.size()) +
           leaked(out, "events", m.events.size()) + leaked(out, "graphs", m.graphs.size()) +
           leaked(out, "executable graphs", m.execs.size()) + leaked(out, "communicators", m.comms.size()) +
           leaked(out, "cuBLASLt objects", m.cublas_objects.size()) +
           leaked(out, "retained contexts", n_retained());
}

void cudasim_cache_files(size_t bytes)
{
    Locked lock;
    machine().page_cache = bytes;
}

size_t cudasim_used(int device)
{
    Locked lock;
    return machine().devices[(size_t)device].used;
}

size_t cudasim_context(int device)
{
    Locked lock;
    const Device &d = machine().devices[(size_t)device];
    return d.has_context() ? d.context_bytes : 0;
}

size_t cudasim_peak(int device)
{
    Locked lock;
    return machine().devices[(size_t)device].peak;
}

const char *cudasim_violation(void)
{
    Locked lock;
    return machine().violation.c_str();
}

int cudasim_violations(void)
{
    Locked lock;
    return machine().n_violations;
}

void cudasim_forget_violations(void)
{
    Locked lock;
    machine().violation.clear();
    machine().n_violations = 0;
}

uint64_t cudasim_calls(void)
{
    Locked lock;
    return machine().n_calls;
}

const char *cudasim_call_name(uint64_t index)
{
    Locked lock;
    return index < machine().trace.size() ? machine().trace[index] : "";
}

uint64_t cudasim_calls_of(const char *name)
{
    Locked lock;
    auto found = machine().calls_of.find(name);
    return found != machine().calls_of.end() ? found->second : 0;
}

uint64_t cudasim_messages(int from, int to)
{
    Locked lock;
    auto found = machine().messages.find({from, to});
    return found != machine().messages.end() ? found->second : 0;
}

uint64_t cudasim_blocks_of(const char *name)
{
    Locked lock;
    auto found = machine().blocks_of.find(name);
    return found != machine().blocks_of.end() ? found->second : 0;
}

void cudasim_fail_call(uint64_t index, int error)
{
    Locked lock;
    machine().faults.push_back({"", index, error, -1});
}

void cudasim_fail_named(const char *name, uint64_t nth, int error)
{
    Locked lock;
    machine().faults.push_back({name, nth, error, -1});
}

void cudasim_hang_named(const char *name)
{
    hanging_call.store(name);
}

void cudasim_slow_named(const char *name, unsigned us)
{
    slow_us.store(us);
    slow_call.store(name);
}

void cudasim_clear_faults(void)
{
    Locked lock;
    machine().faults.clear();
}

uint64_t cudasim_faults_hit(void)
{
    Locked lock;
    return machine().faults_hit;
}

void cudasim_poison_device(int device, int error)
{
    Locked lock;
    machine().devices[(size_t)device].sticky = (cudaError_t)error;
}

void cudasim_poison_at(uint64_t index, int device, int error)
{
    Locked lock;
    machine().faults.push_back({"", index, error, device});
}

void cudasim_corrupt_copy(int device, uint64_t nth, size_t bytes)
{
    Locked lock;
    machine().devices[(size_t)device].corrupt = nth;
    machine().devices[(size_t)device].corrupt_bytes = bytes;
}

void cudasim_stall_device(int device, bool stalled)
{
    Locked lock;
    machine().devices[(size_t)device].stalled = stalled;
}

void cudasim_slow_device(int device, double times)
{
    Locked lock;
    machine().devices[(size_t)device].slowness = times;
}

void cudasim_nccl_async_error(int device, int error)
{
    Locked lock;
    machine().devices[(size_t)device].nccl_error = (ncclResult_t)error;
}

void cudasim_nccl_absent(int device, bool absent)
{
    Locked lock;
    machine().devices[(size_t)device].nccl_absent = absent;
}

void cudasim_nccl_shared_memory(int n_connections)
{
    Locked lock;
    machine().nccl_shared_memory = n_connections;
}

void cudasim_nccl_refuse_capture(void)
{
    Locked lock;
    machine().nccl_refuses_capture = true;
}

uint64_t cudasim_late_loads(void)
{
    Locked lock;
    return machine().late_loads;
}

uint64_t cudasim_operations(void)
{
    Locked lock;
    return machine().operations;
}

uint64_t cudasim_link_bytes(void)
{
    Locked lock;
    return machine().link_bytes;
}
