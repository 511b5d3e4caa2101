// What programs call that share memory with other devices: virtual memory by handles that another process can open,
// batches of copies, and values that a stream writes and waits for.
//
// A handle is a file in memory, so that several mappings of it are one memory, as on a device.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "simdevice.h"

using namespace simdevice;

namespace {

constexpr std::size_t granularity = std::size_t{2} << 20;

/// Physical memory. Mapped or exported it lives on, like its file, when the handle is released.
struct Physical {
    int file;
    std::size_t bytes;
    bool on_device;
};

Physical* of(CUmemGenericAllocationHandle handle) { return reinterpret_cast<Physical*>(handle); }
void* at(CUdeviceptr place) { return reinterpret_cast<void*>(place); }
bool whole(std::size_t bytes) { return bytes > 0 && bytes % granularity == 0; }

void* reserve(void* place, std::size_t bytes) {
    const int fixed = place ? MAP_FIXED : 0;
    void* got = mmap(place, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
    return got == MAP_FAILED ? nullptr : got;
}

}  // namespace

// ------------------------------------------------------------------------------------------------ virtual memory

SIM_EXPORT CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                                  CUmemAllocationGranularity_flags) {
    *bytes = granularity;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* place, size_t bytes, size_t alignment, CUdeviceptr,
                                        unsigned long long) {
    alignment = std::max(alignment, granularity);
    if (!whole(bytes) || alignment % granularity) return CUDA_ERROR_INVALID_VALUE;
    char* all = static_cast<char*>(reserve(nullptr, bytes + alignment));
    if (!all) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto begin = (reinterpret_cast<std::uintptr_t>(all) + alignment - 1) / alignment * alignment;
    char* first = reinterpret_cast<char*>(begin);
    if (first > all) munmap(all, first - all);
    munmap(first + bytes, all + alignment - first);
    *place = begin;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr place, size_t bytes) {
    return munmap(at(place), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                                unsigned long long) {
    if (!whole(bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (on_device && memory::in_use() + bytes > static_cast<std::size_t>(figure("memory_bytes"))) {
        record("out of memory", "\"bytes\": " + std::to_string(bytes));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const int file = memfd_create("archwright-simulated", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{file, bytes, on_device});
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    close(of(handle)->file);
    delete of(handle);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemMap(CUdeviceptr place, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                             unsigned long long) {
    const auto* physical = of(handle);
    if (!whole(bytes) || offset + bytes > physical->bytes) return CUDA_ERROR_INVALID_VALUE;
    // without access until cuMemSetAccess, as on a device
    const void* mapped = mmap(at(place), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, offset);
    if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    if (physical->on_device) memory::enter(at(place), bytes);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr place, size_t bytes) {
    memory::leave(at(place), bytes);
    return reserve(at(place), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr place, size_t bytes, const CUmemAccessDesc*, size_t) {
    return mprotect(at(place), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                                 CUmemAllocationHandleType type, unsigned long long) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    *static_cast<int*>(out) = dup(of(handle)->file);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                                   CUmemAllocationHandleType type) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
    struct stat status = {};
    if (fstat(file, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
    // it is counted where it was made
    auto* physical = new Physical{dup(file), static_cast<std::size_t>(status.st_size), false};
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------------------ streams

SIM_EXPORT cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes, size_t count,
                                            cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t) {
    for (size_t i = 0; i < count; ++i) std::memmove(to[i], from[i], sizes[i]);
    return cudaSuccess;
}
// Values are written. A wait is over at once: who would write it does not exist.
SIM_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) {
    for (unsigned i = 0; i < count; ++i) {
        const auto& one = operations[i];
        if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
            *static_cast<cuuint64_t*>(at(one.writeValue.address)) = one.writeValue.value64;
        else if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
            *static_cast<cuuint32_t*>(at(one.writeValue.address)) = one.writeValue.value;
        else if (one.operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 && one.operation != CU_STREAM_MEM_OP_WAIT_VALUE_64)
            refuse("cuStreamBatchMemOp of this operation");
    }
    return CUDA_SUCCESS;
}
