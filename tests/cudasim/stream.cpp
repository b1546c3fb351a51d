/* Streams, events and kernel launches: how work comes into the queues. */
#include "sim.h"

#include <cudasim_launch.h>

#include <algorithm>

namespace cudasim
{

cudaStream_t find_stream(cudaStream_t stream)
{
    Machine &m = machine();
    if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
        Device *device = current_device();
        return device != NULL ? device->legacy : NULL;
    }
    return m.streams.count(stream) != 0 ? stream : NULL;
}

std::deque<Op *> *queue_of(cudaStream_t stream)
{
    return stream->is_legacy ? NULL : &machine().devices[(size_t)stream->device].queues[stream->queue];
}

bool forbidden_by_capture()
{
    Machine &m = machine();
    Thread &thread = thread_state();
    bool forbidden = false;
    for (cudaStream_t stream : m.streams) {
        Capture *capture = stream->capture.get();
        if (capture == NULL || stream != capture->origin || capture->mode == cudaStreamCaptureModeRelaxed)
            continue;
        bool concerns = capture->mode == cudaStreamCaptureModeGlobal
                            ? thread.mode == cudaStreamCaptureModeGlobal || capture->thread == thread.id
                            : capture->thread == thread.id;
        if (concerns && thread.mode != cudaStreamCaptureModeRelaxed) {
            capture->invalid = true;
            forbidden = true;
        }
    }
    return forbidden;
}

/* The legacy stream may not be used while a stream that synchronises with it captures. */
static bool implicit_dependency(cudaStream_t stream)
{
    bool found = false;
    for (cudaStream_t other : machine().streams) {
        if (stream->is_legacy && other->blocking && other->device == stream->device &&
            other->capture != NULL) {
            other->capture->invalid = true;
            found = true;
        }
    }
    return found;
}

static std::vector<OpRef> dependencies(cudaStream_t stream)
{
    std::vector<OpRef> after = {stream->last};
    Machine &m = machine();
    if (stream->is_legacy) {
        for (cudaStream_t other : m.streams)
            if (other->blocking && other->device == stream->device)
                after.push_back(other->last);
    } else if (stream->blocking) {
        after.push_back(m.devices[(size_t)stream->device].legacy->last);
    }
    return after;
}

cudaError_t enqueue(cudaStream_t stream, BodyRef body, OpRef *op_out)
{
    if (stream->nccl_pending != 0 && body->kind != Body::NOTHING)
        violate("%s is enqueued in a stream of device %d before a non-blocking NCCL call there has ended",
                body->name.c_str(), stream->device);
    if (stream->capture != NULL) {
        if (stream->capture->invalid)
            return cudaErrorStreamCaptureInvalidated;
        std::vector<Node> &nodes = stream->capture->graph->nodes;
        nodes.push_back({body, stream->frontier});
        stream->frontier = {(int)nodes.size() - 1};
        return cudaSuccess;
    }
    if (implicit_dependency(stream))
        return cudaErrorStreamCaptureImplicit;
    stream->last = submit(body, dependencies(stream), queue_of(stream));
    if (op_out != NULL)
        *op_out = stream->last;
    after_submit();
    return cudaSuccess;
}

} // namespace cudasim

using namespace cudasim;

static cudaError_t create_stream(const char *name, cudaStream_t *out, unsigned flags)
{
    Call call(name, CALL_CONTEXT | CALL_UNSAFE, cudaErrorMemoryAllocation);
    if (call.failed())
        return call.result();
    if (flags > cudaStreamNonBlocking)
        return call.end(cudaErrorInvalidValue);
    cudaStream_t stream = new CUstream_st(current_device()->ordinal, flags == cudaStreamDefault);
    stream->queue = (size_t)(current_device()->n_streams++ % current_device()->queues.size());
    machine().streams.insert(stream);
    *out = stream;
    return call.end(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return create_stream("cudaStreamCreate", stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return create_stream("cudaStreamCreateWithFlags", stream, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int)
{
    return create_stream("cudaStreamCreateWithPriority", stream, flags);
}

/* Work that is queued is still done. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Call call("cudaStreamDestroy", CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (machine().streams.count(stream) == 0) {
        violate("cudaStreamDestroy: no such stream");
        return call.end(cudaErrorInvalidResourceHandle);
    }
    if (stream->capture != NULL)
        stream->capture->invalid = true;
    machine().streams.erase(stream);
    delete stream;
    return call.end(cudaSuccess);
}

static cudaError_t sticky_of(int device)
{
    return machine().devices[(size_t)device].sticky;
}

/* What a stream waits for as a whole; the legacy stream also for those that synchronise with it. */
static bool stream_done(const std::vector<OpRef> &ops)
{
    return std::all_of(ops.begin(), ops.end(), [](const OpRef &op) { return op == NULL || op->done; });
}

static std::vector<OpRef> stream_ops(cudaStream_t stream)
{
    return stream->is_legacy ? dependencies(stream) : std::vector<OpRef>{stream->last};
}

static cudaError_t capture_forbids(cudaStream_t stream)
{
    if (stream->capture == NULL)
        return cudaSuccess;
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Call call("cudaStreamSynchronize", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    cudaError_t error = capture_forbids(stream);
    if (error != cudaSuccess)
        return call.end(error);
    int device = stream->device;
    std::vector<OpRef> ops = stream_ops(stream);
    wait_for([&] { return stream_done(ops) || sticky_of(device) != cudaSuccess; });
    return call.end(sticky_of(device));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    Call call("cudaStreamQuery", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    cudaError_t error = capture_forbids(stream);
    if (error != cudaSuccess)
        return call.end(error);
    int device = stream->device;
    std::vector<OpRef> ops = stream_ops(stream);
    if (!stream_done(ops))
        advance(1 + machine().random() % 64);
    if (sticky_of(device) != cudaSuccess)
        return call.end(sticky_of(device));
    return call.end(stream_done(ops) ? cudaSuccess : cudaErrorNotReady);
}

/* -- events -- */

static cudaError_t create_event(const char *name, cudaEvent_t *out, unsigned flags)
{
    Call call(name, CALL_CONTEXT, cudaErrorMemoryAllocation);
    if (call.failed())
        return call.result();
    cudaEvent_t event = new CUevent_st{current_device()->ordinal, flags, NULL, NULL, {}};
    machine().events.insert(event);
    *out = event;
    return call.end(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return create_event("cudaEventCreate", event, 0);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    return create_event("cudaEventCreateWithFlags", event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Call call("cudaEventDestroy", CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (machine().events.erase(event) == 0) {
        violate("cudaEventDestroy: no such event");
        return call.end(cudaErrorInvalidResourceHandle);
    }
    delete event;
    return call.end(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Call call("cudaEventRecord", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    stream = find_stream(stream);
    if (stream == NULL || machine().events.count(event) == 0)
        return call.end(cudaErrorInvalidResourceHandle);
    if (event->device != stream->device) {
        violate("cudaEventRecord: an event of device %d in a stream of device %d", event->device,
                stream->device);
        return call.end(cudaErrorInvalidResourceHandle);
    }
    if (stream->capture != NULL) {
        if (stream->capture->invalid)
            return call.end(cudaErrorStreamCaptureInvalidated);
        event->capture = stream->capture;
        event->nodes = stream->frontier;
        event->op = NULL;
        return call.end(cudaSuccess);
    }
    auto body = std::make_shared<Body>();
    body->device = stream->device;
    body->name = "event record";
    OpRef op;
    cudaError_t error = enqueue(stream, body, &op);
    if (error == cudaSuccess) {
        event->capture = NULL;
        event->op = op;
    }
    return call.end(error);
}

/* In a capture, an external record is a node: each launch of the graph records the event. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    if (flags == cudaEventRecordDefault)
        return cudaEventRecord(event, stream);
    Call call("cudaEventRecordWithFlags", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    stream = find_stream(stream);
    if (stream == NULL || machine().events.count(event) == 0 || event->device != stream->device)
        return call.end(cudaErrorInvalidResourceHandle);
    if (flags != cudaEventRecordExternal || stream->capture == NULL)
        return call.end(cudaErrorInvalidValue);
    auto body = std::make_shared<Body>();
    body->device = stream->device;
    body->name = "event record";
    body->event = event;
    return call.end(enqueue(stream, body, NULL));
}

/* A stream that waits for an event of a capture joins the capture. */
static cudaError_t wait_in_capture(cudaStream_t stream, cudaEvent_t event)
{
    if (event->capture == NULL ||
        event->capture->graph == NULL) { /* recorded outside, or in a capture long over */
        if (stream->capture == NULL || event->op == NULL || event->op->done)
            return stream->capture != NULL ? cudaErrorStreamCaptureIsolation : cudaSuccess;
        stream->capture->invalid = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (event->capture->invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (stream->is_legacy) {
        event->capture->invalid = true;
        return cudaErrorStreamCaptureImplicit;
    }
    if (stream->capture != NULL && stream->capture != event->capture) {
        stream->capture->invalid = event->capture->invalid = true;
        return cudaErrorStreamCaptureMerge;
    }
    stream->capture = event->capture;
    for (int node : event->nodes)
        if (std::find(stream->frontier.begin(), stream->frontier.end(), node) == stream->frontier.end())
            stream->frontier.push_back(node);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int)
{
    Call call("cudaStreamWaitEvent", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    stream = find_stream(stream);
    if (stream == NULL || machine().events.count(event) == 0)
        return call.end(cudaErrorInvalidResourceHandle);
    if (stream->capture != NULL || (event->capture != NULL && event->capture->graph != NULL))
        return call.end(wait_in_capture(stream, event));
    if (event->op == NULL) /* never recorded: nothing to wait for */
        return call.end(cudaSuccess);
    auto body = std::make_shared<Body>();
    body->device = stream->device;
    body->name = "event wait";
    std::vector<OpRef> after = dependencies(stream);
    after.push_back(event->op);
    stream->last = submit(body, after, queue_of(stream));
    after_submit();
    return call.end(cudaSuccess);
}

static cudaError_t event_ready(cudaEvent_t event)
{
    if (machine().events.count(event) == 0)
        return cudaErrorInvalidResourceHandle;
    return event->capture != NULL ? cudaErrorCapturedEvent : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    Call call("cudaEventSynchronize", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    cudaError_t error = event_ready(event);
    if (error != cudaSuccess || event->op == NULL)
        return call.end(error);
    OpRef op = event->op;
    int device = event->device;
    wait_for([&] { return op->done || sticky_of(device) != cudaSuccess; });
    return call.end(sticky_of(device));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Call call("cudaEventQuery", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    cudaError_t error = event_ready(event);
    if (error != cudaSuccess || event->op == NULL)
        return call.end(error);
    OpRef op = event->op;
    int device = event->device;
    if (!op->done)
        advance(1 + machine().random() % 64);
    if (sticky_of(device) != cudaSuccess)
        return call.end(sticky_of(device));
    return call.end(op->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    Call call("cudaEventElapsedTime", CALL_CONTEXT, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (event_ready(start) != cudaSuccess || event_ready(end) != cudaSuccess || start->op == NULL ||
        end->op == NULL || ((start->flags | end->flags) & cudaEventDisableTiming))
        return call.end(cudaErrorInvalidResourceHandle);
    if (!start->op->done || !end->op->done)
        return call.end(cudaErrorNotReady);
    *milliseconds = (float)((end->op->end_us - start->op->end_us) / 1e3);
    return call.end(cudaSuccess);
}

/* -- work -- */

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user_data)
{
    Call call("cudaLaunchHostFunc", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    auto body = std::make_shared<Body>();
    body->kind = Body::ACTION;
    body->device = stream->device;
    body->name = "host function";
    body->action = [=] {
        pthread_mutex_unlock(&machine().mutex); /* it may wait for a lock whose holder waits for ours */
        function(user_data);
        pthread_mutex_lock(&machine().mutex);
        return cudaSuccess;
    };
    return call.end(enqueue(stream, body, NULL));
}

/* A kernel that is not loaded yet is loaded now, for which a GPU may want to be idle. */
static void load(const void *function, const char *name, Device &device)
{
    if (!device.loaded.insert(function).second)
        return;
    machine().late_loads++;
    if (spins(device.ordinal))
        violate("kernel %s is loaded by its first launch, while a kernel on device %d waits: a deadlock",
                name, device.ordinal);
}

/* A launch behind this number of launches of a queue that have not started waits, and keeps the lock of the
 * context. Not documented; the number is what programs observe. */
enum { LAUNCH_DEPTH = 1024 };

static void wait_for_room(cudaStream_t stream)
{
    const std::deque<Op *> *queue = queue_of(stream);
    Device &device = machine().devices[(size_t)stream->device];
    auto has_room = [&] { return queue->size() < LAUNCH_DEPTH || device.sticky != cudaSuccess; };
    if (queue == NULL || stream->capture != NULL || has_room())
        return;
    device.launcher = thread_state().id;
    wait_for(has_room);
    device.launcher = 0;
}

cudaError_t cudasim_launch_body(const char *name, const void *function, dim3 grid, dim3 block,
                                size_t shared_bytes, cudaStream_t stream, std::function<void()> thread,
                                std::vector<unsigned char> params)
{
    Call call("cudaLaunchKernel", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed()) {
        if (call.injected() == cudaErrorLaunchFailure)
            poison(current_device()->ordinal, cudaErrorLaunchFailure);
        return call.result();
    }
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    wait_for_room(stream);
    if (stream->device != current_device()->ordinal) {
        violate("kernel %s launched in a stream of device %d while device %d is current", name,
                stream->device, current_device()->ordinal);
        return call.end(cudaErrorInvalidResourceHandle);
    }
    auto body = std::make_shared<Body>();
    body->kind = Body::KERNEL;
    body->device = stream->device;
    body->name = name;
    body->thread = std::move(thread);
    body->function = function;
    body->kernel = find_kernel(function);
    body->grid = grid;
    body->block = block;
    body->shared_bytes = shared_bytes;
    body->params = std::move(params);
    cudaError_t error = check_launch(*body);
    if (error != cudaSuccess)
        return call.end(error);
    load(function, name, *current_device());
    std::string kernel(name);
    size_t begin = kernel.find_first_not_of('(');
    machine().blocks_of[kernel.substr(begin, kernel.find_first_of("<)", begin) - begin)] +=
        (uint64_t)grid.x * grid.y * grid.z;
    return call.end(enqueue(stream, body, NULL));
}
