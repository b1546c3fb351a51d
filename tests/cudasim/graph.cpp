/* Stream capture and graphs. A captured node keeps its body and the nodes it follows; a launch submits every
 * node anew, so that branches run in any order their edges allow. */
#include "sim.h"

using namespace cudasim;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    Call call("cudaStreamBeginCapture", CALL_CONTEXT, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    if (stream->is_legacy)
        return call.end(cudaErrorStreamCaptureUnsupported);
    if (stream->capture != NULL)
        return call.end(cudaErrorIllegalState);
    auto capture = std::make_shared<Capture>();
    capture->graph = new CUgraph_st;
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = thread_state().id;
    stream->capture = capture;
    stream->frontier.clear();
    return call.end(cudaSuccess);
}

/* Whether every node comes before the end of the origin stream. */
static bool joined(const Capture &capture)
{
    const std::vector<Node> &nodes = capture.graph->nodes;
    std::vector<bool> before(nodes.size());
    for (int node : capture.origin->frontier)
        before[(size_t)node] = true;
    for (size_t i = nodes.size(); i-- > 0;) /* a node's predecessors have smaller indices */
        if (before[i])
            for (int other : nodes[i].after)
                before[(size_t)other] = true;
    for (bool b : before)
        if (!b)
            return false;
    return true;
}

/* All streams leave the capture; events that remember it find it over. */
static void dissolve(const CaptureRef &capture)
{
    for (cudaStream_t stream : machine().streams) {
        if (stream->capture == capture) {
            stream->capture = NULL;
            stream->frontier.clear();
        }
    }
    capture->graph = NULL;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    Call call("cudaStreamEndCapture", CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    *graph = NULL;
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    CaptureRef capture = stream->capture;
    if (capture == NULL)
        return call.end(cudaErrorIllegalState);
    if (stream->nccl_pending != 0) /* a failed NCCL call may end a capture; what it still does is lost */
        capture->invalid = true;
    if (capture->origin != stream) {
        capture->invalid = true;
        return call.end(cudaErrorStreamCaptureUnmatched);
    }
    if (capture->thread != thread_state().id && capture->mode != cudaStreamCaptureModeRelaxed)
        return call.end(cudaErrorStreamCaptureWrongThread);
    cudaError_t error = capture->invalid    ? cudaErrorStreamCaptureInvalidated
                        : !joined(*capture) ? cudaErrorStreamCaptureUnjoined
                                            : (cudaError_t)call.injected();
    cudaGraph_t made = capture->graph;
    dissolve(capture);
    if (error != cudaSuccess) {
        delete made;
        return call.end(error);
    }
    machine().graphs.insert(made);
    *graph = made;
    return call.end(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    Call call("cudaStreamIsCapturing", 0, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    *status = stream->capture == NULL    ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return call.end(cudaSuccess);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    Call call("cudaThreadExchangeStreamCaptureMode", 0, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    std::swap(*mode, thread_state().mode);
    return call.end(cudaSuccess);
}

static cudaError_t instantiate(const char *name, cudaGraphExec_t *exec, cudaGraph_t graph)
{
    Call call(name, CALL_CONTEXT, cudaErrorMemoryAllocation);
    if (call.failed())
        return call.result();
    if (machine().graphs.count(graph) == 0)
        return call.end(cudaErrorInvalidValue);
    for (const auto &node : graph->nodes) {
        const Body &body = *node.body;
        if (body.kind == Body::KERNEL &&
            body.shared_bytes > shared_limit(body.kernel, machine().devices[(size_t)body.device])) {
            violate("kernel %s was captured with %zu bytes of shared memory, and its limit lowered since",
                    body.name.c_str(), body.shared_bytes);
            return call.end(cudaErrorInvalidValue);
        }
    }
    *exec = new CUgraphExec_st{graph->nodes, NULL};
    machine().execs.insert(*exec);
    return call.end(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    return instantiate("cudaGraphInstantiate", exec, graph);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    return instantiate("cudaGraphInstantiateWithFlags", exec, graph);
}

/* Only the number can be asked for. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    Call call("cudaGraphGetNodes", 0, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    if (machine().graphs.count(graph) == 0 || nodes != NULL)
        return call.end(cudaErrorInvalidValue);
    *count = graph->nodes.size();
    return call.end(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    Call call("cudaGraphUpload", CALL_CONTEXT, cudaErrorMemoryAllocation);
    if (call.failed())
        return call.result();
    bool ok = machine().execs.count(exec) != 0 && find_stream(stream) != NULL;
    return call.end(ok ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

/* By an event node. */
static void record(cudaEvent_t event, const OpRef &op)
{
    if (machine().events.count(event) == 0) {
        violate("a graph records an event that was destroyed");
        return;
    }
    event->capture = NULL;
    event->op = op;
}

/* What the graph's roots wait for: what the stream has so far (an empty operation in it stands for that), and
 * the launch of the same executable graph before this one. */
static cudaError_t launch(cudaGraphExec_t exec, cudaStream_t stream)
{
    auto marker = std::make_shared<Body>();
    marker->device = stream->device;
    marker->name = "graph";
    OpRef start;
    cudaError_t error = enqueue(stream, marker, &start);
    if (error != cudaSuccess)
        return error;
    std::vector<OpRef> ops, all;
    for (const Node &node : exec->nodes)
        if (node.body->revoked != NULL && *node.body->revoked)
            violate("a graph with %s is launched after its communicator was released",
                    node.body->name.c_str());
    for (const Node &node : exec->nodes) {
        std::vector<OpRef> after;
        for (int other : node.after)
            after.push_back(ops[(size_t)other]);
        if (after.empty())
            after = {start, exec->last};
        ops.push_back(submit(node.body, after, queue_of(stream)));
        if (cudaEvent_t event = node.body->event)
            record(event, ops.back());
    }
    all = ops;
    all.push_back(start);
    stream->last = exec->last = submit(marker, all, queue_of(stream));
    after_submit();
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    Call call("cudaGraphLaunch", CALL_CONTEXT, cudaErrorLaunchFailure);
    if (call.failed()) {
        if (call.injected() == cudaErrorLaunchFailure)
            poison(current_device()->ordinal, cudaErrorLaunchFailure);
        return call.result();
    }
    stream = find_stream(stream);
    if (stream == NULL || machine().execs.count(exec) == 0)
        return call.end(cudaErrorInvalidResourceHandle);
    if (stream->capture != NULL) { /* a child graph; not needed here */
        stream->capture->invalid = true;
        return call.end(cudaErrorNotSupported);
    }
    return call.end(launch(exec, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    Call call("cudaGraphDestroy", CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (machine().graphs.erase(graph) == 0) {
        violate("cudaGraphDestroy: no such graph");
        return call.end(cudaErrorInvalidValue);
    }
    delete graph;
    return call.end(cudaSuccess);
}

/* Launches that are queued still run: operations own their bodies. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    Call call("cudaGraphExecDestroy", CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (machine().execs.erase(exec) == 0) {
        violate("cudaGraphExecDestroy: no such executable graph");
        return call.end(cudaErrorInvalidValue);
    }
    delete exec;
    return call.end(cudaSuccess);
}
