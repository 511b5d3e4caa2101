// libcudart.so.13: streams, events and graphs.
//
// Work is done when it is handed over, so a stream is never busy. While a stream is captured the graph keeps the work,
// in the order in which it came, and does it at each launch.
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "simdevice.h"

using namespace simdevice;

namespace {

using Work = std::vector<std::function<void()>>;

struct Capture {
    unsigned long long id;
    cudaGraph_t graph;
    const void* origin;
};
struct Event {
    bool recorded = false;
    bool timed = true;
    unsigned long long capture = 0;
};
struct State {
    std::mutex mutex;
    unsigned long long captures = 0;
    std::map<const void*, Capture> capturing;
    std::map<cudaEvent_t, Event> events;
    std::map<cudaStream_t, int> priorities;
    std::map<cudaGraph_t, Work> graphs;
    std::map<cudaGraphExec_t, std::shared_ptr<const Work>> executables;
};

State& state() {
    static auto* instance = new State;
    return *instance;
}

cudaError_t new_stream(cudaStream_t* stream, int priority) {
    if (!present()) return remember(cudaErrorNoDevice);
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    *stream = static_cast<cudaStream_t>(handle());
    all.priorities[*stream] = priority;
    return cudaSuccess;
}

cudaError_t begin_capture(cudaStream_t stream, cudaGraph_t graph) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    if (!stream || stream == cudaStreamLegacy) return remember(cudaErrorStreamCaptureUnsupported);
    if (all.capturing.contains(stream)) return remember(cudaErrorIllegalState);
    if (!graph) graph = static_cast<cudaGraph_t>(handle());
    all.graphs[graph];
    all.capturing[stream] = {++all.captures, graph, stream};
    return cudaSuccess;
}

cudaError_t new_executable(cudaGraphExec_t* executable, cudaGraph_t graph) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto found = all.graphs.find(graph);
    if (found == all.graphs.end()) return remember(cudaErrorInvalidValue);
    *executable = static_cast<cudaGraphExec_t>(handle());
    all.executables[*executable] = std::make_shared<const Work>(found->second);
    return cudaSuccess;
}

}  // namespace

bool simdevice::capturing(const void* stream) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    return all.capturing.contains(stream);
}

void simdevice::submit(const void* stream, std::function<void()> work) {
    {
        auto& all = state();
        const std::lock_guard lock(all.mutex);
        if (const auto found = all.capturing.find(stream); found != all.capturing.end()) {
            all.graphs[found->second.graph].push_back(std::move(work));
            return;
        }
    }
    work();  // without the lock: a callback may call CUDA
}

// ------------------------------------------------------------------------------------------------ streams

SIM_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) { return new_stream(stream, 0); }
SIM_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return new_stream(stream, 0); }
SIM_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
    return new_stream(stream, priority);
}
SIM_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    return all.priorities.erase(stream) ? cudaSuccess : remember(cudaErrorInvalidResourceHandle);
}
SIM_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    return all.capturing.contains(stream) ? remember(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
// A stream that waits for an event of a captured stream joins the capture.
SIM_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto found = all.events.find(event);
    if (found == all.events.end()) return remember(cudaErrorInvalidResourceHandle);
    if (all.capturing.contains(stream) || !found->second.capture) return cudaSuccess;
    for (const auto& [origin, capture] : all.capturing)
        if (capture.id == found->second.capture) {
            all.capturing[stream] = capture;
            break;
        }
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto found = all.priorities.find(stream);
    *priority = found == all.priorities.end() ? 0 : found->second;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned* flags) {
    *flags = cudaStreamNonBlocking;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    submit(stream, [=] { function(data); });
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    submit(stream, [=] { function(stream, cudaSuccess, data); });
    return cudaSuccess;
}

// ------------------------------------------------------------------------------------------------ events

SIM_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    if (!present()) return remember(cudaErrorNoDevice);
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    *event = static_cast<cudaEvent_t>(handle());
    all.events[*event].timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
SIM_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    return all.events.erase(event) ? cudaSuccess : remember(cudaErrorInvalidResourceHandle);
}
SIM_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto found = all.events.find(event);
    if (found == all.events.end()) return remember(cudaErrorInvalidResourceHandle);
    const auto capture = all.capturing.find(stream);
    found->second.recorded = true;
    found->second.capture = capture == all.capturing.end() ? 0 : capture->second.id;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}
SIM_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
// Always one millisecond: programs divide by it, or repeat until some time is over. It is no measurement: nothing ran.
SIM_EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto first = all.events.find(begin), second = all.events.find(end);
    if (first == all.events.end() || second == all.events.end() || !first->second.recorded ||
        !second->second.recorded || !first->second.timed || !second->second.timed)
        return remember(cudaErrorInvalidResourceHandle);
    *milliseconds = 1.0F;
    return cudaSuccess;
}

// ------------------------------------------------------------------------------------------------ graphs

SIM_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    return begin_capture(stream, nullptr);
}
SIM_EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t*,
                                                     const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
    return begin_capture(stream, graph);
}
SIM_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto found = all.capturing.find(stream);
    if (found == all.capturing.end() || found->second.origin != stream) return remember(cudaErrorIllegalState);
    *graph = found->second.graph;
    std::erase_if(all.capturing, [id = found->second.id](const auto& entry) { return entry.second.id == id; });
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    *status = all.capturing.contains(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                                unsigned long long* id, cudaGraph_t* graph,
                                                const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                                size_t* count) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto found = all.capturing.find(stream);
    const bool active = found != all.capturing.end();
    *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (active && id) *id = found->second.id;
    if (active && graph) *graph = found->second.graph;
    if (dependencies) *dependencies = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*,
                                                           size_t, unsigned) {
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    thread_local auto current = cudaStreamCaptureModeGlobal;
    std::swap(current, *mode);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    *graph = static_cast<cudaGraph_t>(handle());
    all.graphs[*graph];
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    return new_executable(executable, graph);
}
SIM_EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                     unsigned long long) {
    return new_executable(executable, graph);
}
SIM_EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    std::shared_ptr<const Work> work;
    {
        auto& all = state();
        const std::lock_guard lock(all.mutex);
        const auto found = all.executables.find(executable);
        if (found == all.executables.end()) return remember(cudaErrorInvalidValue);
        work = found->second;
    }
    submit(stream, [work] {
        record("graph launch", "\"nodes\": " + std::to_string(work->size()));
        for (const auto& node : *work) node();
    });
    return cudaSuccess;
}
// How many there are is known; what each one is, is not.
SIM_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    if (nodes) refuse("cudaGraphGetNodes of the nodes themselves");
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    *count = all.graphs[graph].size();
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    return all.executables.erase(executable) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
SIM_EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    return all.graphs.erase(graph) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
