// libcudart.so.13: what torch and the run-time compilers call. Everything else is in refused.cpp, by its name.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simdevice.h"

using namespace simdevice;

namespace {

thread_local cudaError_t last = cudaSuccess;

cudaError_t fresh(void** out) {
    *out = handle();
    return cudaSuccess;
}

// Zeros are given by dropping the pages, so that a tensor of many gigabytes costs nothing.
void fill(void* place, int value, std::size_t bytes) {
    const auto page = static_cast<std::uintptr_t>(getpagesize());
    const auto begin = reinterpret_cast<std::uintptr_t>(place), end = begin + bytes;
    const auto first = (begin + page - 1) / page * page, last_page = end / page * page;
    if (value != 0 || first >= last_page || !memory::find(place, nullptr, nullptr)) {
        std::memset(place, value, bytes);
        return;
    }
    std::memset(place, 0, first - begin);
    // the pages of a file (peers.cpp) are dropped with their content by the first, those of no file by the second
    if (madvise(reinterpret_cast<void*>(first), last_page - first, MADV_REMOVE) != 0)
        madvise(reinterpret_cast<void*>(first), last_page - first, MADV_DONTNEED);
    std::memset(reinterpret_cast<void*>(last_page), 0, end - last_page);
}

cudaError_t launched(const char* kind, dim3 grid, dim3 block, std::size_t shared) {
    if (!launchable(grid.x, grid.y, grid.z, block.x, block.y, block.z, shared))
        return remember(cudaErrorInvalidConfiguration);
    record("launch", std::string("\"kind\": \"") + kind + "\"");
    return cudaSuccess;
}

}  // namespace

cudaError_t simdevice::remember(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

// ------------------------------------------------------------------------------------------------ device

SIM_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
    *count = present() ? 1 : 0;
    return present() ? cudaSuccess : remember(cudaErrorNoDevice);
}
SIM_EXPORT cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return present() ? cudaSuccess : remember(cudaErrorNoDevice);
}
SIM_EXPORT cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : remember(cudaErrorInvalidDevice);
}
SIM_EXPORT cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
    *version = static_cast<int>(figure("driver_version"));
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = static_cast<int>(figure("runtime_version"));
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr number, int) {
    *value = attribute(number);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) {
    std::snprintf(text, size, "0000:00:00.0");
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ------------------------------------------------------------------------------------------------ errors

SIM_EXPORT cudaError_t cudaGetLastError() {
    const auto error = last;
    last = cudaSuccess;
    return error;
}
SIM_EXPORT cudaError_t cudaPeekAtLastError() { return last; }
SIM_EXPORT const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        default: return "cudaErrorUnknown";
    }
}
SIM_EXPORT const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        default: return "error of the simulated device";
    }
}

// ------------------------------------------------------------------------------------------------ memory

SIM_EXPORT cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    *pointer = memory::allocate(bytes);
    return *pointer ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}
SIM_EXPORT cudaError_t cudaFree(void* pointer) {
    return !pointer || memory::release(pointer) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
SIM_EXPORT cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
    return cudaMalloc(pointer, bytes);
}
SIM_EXPORT cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
SIM_EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    *pointer = std::aligned_alloc(4096, (bytes + 4096) / 4096 * 4096);
    return *pointer ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}
SIM_EXPORT cudaError_t cudaFreeHost(void* pointer) {
    std::free(pointer);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaHostGetDevicePointer(void** out, void* place, unsigned) {
    *out = place;  // one address for both, as with unified addressing
    return place ? cudaSuccess : remember(cudaErrorInvalidValue);
}
SIM_EXPORT cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = figure("memory_bytes");
    *free = *total - memory::in_use();
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    std::memmove(to, from, bytes);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy(to, from, bytes, kind);
}
SIM_EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                         size_t height, cudaMemcpyKind, cudaStream_t) {
    for (size_t row = 0; row < height; ++row)
        std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemset(void* place, int value, size_t bytes) {
    fill(place, value, bytes);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemsetAsync(void* place, int value, size_t bytes, cudaStream_t) {
    return cudaMemset(place, value, bytes);
}
SIM_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    *attributes = {};
    const bool mine = memory::find(pointer, nullptr, nullptr);
    attributes->type = mine ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    attributes->device = 0;
    attributes->devicePointer = mine ? const_cast<void*>(pointer) : nullptr;
    attributes->hostPointer = mine ? nullptr : const_cast<void*>(pointer);
    return cudaSuccess;
}

// ------------------------------------------------------------------------------------------------ streams, events

SIM_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* s) { return fresh(reinterpret_cast<void**>(s)); }
SIM_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return cudaStreamCreate(s); }
SIM_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return cudaStreamCreate(s); }
SIM_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
    *priority = 0;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*,
                                                cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                                size_t*) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
// Everything before has been done already: the callback's turn is now.
SIM_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
    function(data);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* e) { return fresh(reinterpret_cast<void**>(e)); }
SIM_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
SIM_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
// Programs divide by it. It is no measurement: nothing ran.
SIM_EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 1e-3F;
    return cudaSuccess;
}

// ------------------------------------------------------------------------------------------------ kernels

SIM_EXPORT void** __cudaRegisterFatBinary(void*) {
    static void* registered[4];
    return registered;
}
SIM_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
SIM_EXPORT void __cudaUnregisterFatBinary(void**) {}
SIM_EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
SIM_EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
SIM_EXPORT char __cudaInitModule(void**) { return 0; }
SIM_EXPORT unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
SIM_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void*) {
    *grid = *block = dim3{1, 1, 1};
    *shared = 0;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaLaunchKernel(const void*, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t) {
    return launched("runtime", grid, block, shared);
}
SIM_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t) {
    return launched("runtime", grid, block, shared);
}
SIM_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void*, dim3 grid, dim3 block, void**, size_t shared,
                                                   cudaStream_t) {
    return launched("cooperative", grid, block, shared);
}
SIM_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
    return launched("extended", config->gridDim, config->blockDim, config->dynamicSmemBytes);
}
SIM_EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute_, int value) {
    const bool too_much = attribute_ == cudaFuncAttributeMaxDynamicSharedMemorySize &&
                          value > attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    return too_much ? remember(cudaErrorInvalidValue) : cudaSuccess;
}
SIM_EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    *attributes = {};
    attributes->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    attributes->maxDynamicSharedSizeBytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = static_cast<int>(figure("capability_major") * 10);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t) {
    const auto fit = threads > 0 ? figure("threads_per_sm") / threads : 0;
    *blocks = static_cast<int>(std::min(fit, figure("blocks_per_sm")));
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                              int threads, size_t shared, unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
