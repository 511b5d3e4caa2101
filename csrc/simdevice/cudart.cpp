// libcudart.so.13: devices and errors. Functions of the real one that no file here has are in refused.cpp, by name.
#include <cstdio>

#include "simdevice.h"

using namespace simdevice;

namespace {

thread_local cudaError_t last = cudaSuccess;

struct {
    cudaError_t error;
    const char* name;
    const char* text;
} constexpr kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
};

}  // namespace

cudaError_t simdevice::remember(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

// ------------------------------------------------------------------------------------------------ device

SIM_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    return present() ? cudaSuccess : remember(cudaErrorNoDevice);
}
SIM_EXPORT cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return present() ? cudaSuccess : remember(cudaErrorNoDevice);
}
SIM_EXPORT cudaError_t cudaSetDevice(int device) {
    if (!present()) return remember(cudaErrorNoDevice);
    if (device < 0 || device >= device_count()) return remember(cudaErrorInvalidDevice);
    current_device() = device;
    return cudaSuccess;
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
SIM_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr number, int device) {
    if (device < 0 || device >= device_count()) return remember(cudaErrorInvalidDevice);
    *value = attribute(number);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    std::snprintf(text, size, "0000:%02x:00.0", device);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    return peer >= 0 && peer < device_count() && peer != current_device() ? cudaSuccess
                                                                         : remember(cudaErrorInvalidDevice);
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
    for (const auto& known : kErrors)
        if (known.error == error) return known.name;
    return "unrecognized error code";
}
SIM_EXPORT const char* cudaGetErrorString(cudaError_t error) {
    for (const auto& known : kErrors)
        if (known.error == error) return known.text;
    return "unrecognized error code";
}
