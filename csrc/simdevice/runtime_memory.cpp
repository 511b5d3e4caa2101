// libcudart.so.13: memory. Copies and fills are really done.
#include <cstring>

#include "memory.h"
#include "simdevice.h"

using namespace simdevice;
using memory::Kind;

SIM_EXPORT cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    *pointer = memory::allocate(bytes);
    return *pointer ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}
SIM_EXPORT cudaError_t cudaFree(void* pointer) {
    return !pointer || memory::release(pointer, Kind::kDevice) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
SIM_EXPORT cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
    if (capturing(stream)) refuse("cudaMallocAsync in a captured stream");
    return cudaMalloc(pointer, bytes);
}
SIM_EXPORT cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    if (capturing(stream)) refuse("cudaFreeAsync in a captured stream");
    return cudaFree(pointer);
}
SIM_EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    *pointer = memory::allocate_host(bytes);
    return *pointer ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}
SIM_EXPORT cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
SIM_EXPORT cudaError_t cudaFreeHost(void* pointer) {
    return !pointer || memory::release(pointer, Kind::kHost) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
SIM_EXPORT cudaError_t cudaHostRegister(void* place, size_t bytes, unsigned) {
    if (!place || !bytes) return remember(cudaErrorInvalidValue);
    return memory::register_host(place, bytes) ? cudaSuccess : remember(cudaErrorHostMemoryAlreadyRegistered);
}
SIM_EXPORT cudaError_t cudaHostUnregister(void* place) {
    return memory::release(place, Kind::kRegistered) ? cudaSuccess : remember(cudaErrorHostMemoryNotRegistered);
}
SIM_EXPORT cudaError_t cudaHostGetDevicePointer(void** out, void* place, unsigned) {
    *out = place;
    return memory::find(place) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
SIM_EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = figure("memory_bytes");
    *free = *total - memory::in_use(current_device());
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    std::memmove(to, from, bytes);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
    submit(s, [=] { std::memmove(to, from, bytes); });
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t s) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s);
}
SIM_EXPORT cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                                          cudaMemcpyKind kind) {
    void* place = nullptr;
    const auto error = cudaGetSymbolAddress(&place, symbol);
    return error == cudaSuccess ? cudaMemcpy(static_cast<char*>(place) + offset, from, bytes, kind) : error;
}
SIM_EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                         size_t height, cudaMemcpyKind, cudaStream_t s) {
    submit(s, [=] {
        for (size_t row = 0; row < height; ++row)
            std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                         width);
    });
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t count,
                                            cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t s) {
    for (size_t i = 0; i < count; ++i) cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, s);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemset(void* place, int value, size_t bytes) {
    memory::fill(place, value, bytes);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemsetAsync(void* place, int value, size_t bytes, cudaStream_t s) {
    submit(s, [=] { memory::fill(place, value, bytes); });
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    *attributes = {};
    const auto block = memory::find(pointer);
    const bool host = block && !block->on_device();
    auto* place = const_cast<void*>(pointer);
    attributes->type = !block ? cudaMemoryTypeUnregistered : host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->device = block ? block->device : cudaInvalidDeviceId;
    attributes->devicePointer = block ? place : nullptr;
    attributes->hostPointer = !block || host ? place : nullptr;
    return cudaSuccess;
}

// Pools: one for each device, which gives memory back at once.
SIM_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    static char pools[64];
    if (device < 0 || device >= device_count() || device >= static_cast<int>(sizeof pools))
        return remember(cudaErrorInvalidDevice);
    *pool = reinterpret_cast<cudaMemPool_t>(pools + device);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    return cudaDeviceGetDefaultMemPool(pool, device);
}
SIM_EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
    if (attribute < cudaMemPoolAttrReleaseThreshold)
        *static_cast<int*>(value) = 0;
    else if (attribute == cudaMemPoolAttrReleaseThreshold)
        *static_cast<std::uint64_t*>(value) = 0;
    else
        *static_cast<std::uint64_t*>(value) = memory::in_use(current_device());
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
SIM_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
