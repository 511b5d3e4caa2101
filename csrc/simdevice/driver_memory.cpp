// libcuda.so.1: memory. Handles are files without a name, so that one may be mapped twice and given to another process.
#include <cuda.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "memory.h"
#include "simdevice.h"

using namespace simdevice;
using memory::Kind;
using memory::Physical;

namespace {

template <class T>
T* at(CUdeviceptr place) {
    return reinterpret_cast<T*>(place);
}
Physical* physical(CUmemGenericAllocationHandle handle) { return reinterpret_cast<Physical*>(handle); }

bool fits(size_t bytes) { return bytes > 0 && bytes % figure("allocation_granularity") == 0; }

CUresult copied(void* to, const void* from, size_t bytes) {
    std::memmove(to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult copied_later(void* to, const void* from, size_t bytes, CUstream stream) {
    submit(stream, [=] { std::memmove(to, from, bytes); });
    return CUDA_SUCCESS;
}

}  // namespace

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* place, size_t bytes) {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *place = reinterpret_cast<CUdeviceptr>(memory::allocate(bytes));
    return *place ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr place) {
    return !place || memory::release(at<void>(place), Kind::kDevice) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* place, size_t bytes, CUstream stream) {
    if (capturing(stream)) refuse("cuMemAllocAsync in a captured stream");
    return cuMemAlloc_v2(place, bytes);
}
SIM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr place, CUstream stream) {
    if (capturing(stream)) refuse("cuMemFreeAsync in a captured stream");
    return cuMemFree_v2(place);
}
SIM_EXPORT CUresult cuMemHostAlloc(void** place, size_t bytes, unsigned) {
    *place = memory::allocate_host(bytes);
    return *place ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_EXPORT CUresult cuMemAllocHost_v2(void** place, size_t bytes) { return cuMemHostAlloc(place, bytes, 0); }
SIM_EXPORT CUresult cuMemFreeHost(void* place) {
    return memory::release(place, Kind::kHost) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    *total = figure("memory_bytes");
    *free = *total - memory::in_use(current_device());
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr place) {
    const auto block = memory::find(at<void>(place));
    if (!block) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = reinterpret_cast<CUdeviceptr>(block->begin);
    if (bytes) *bytes = block->size;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copied(at<void>(to), at<void>(from), bytes);
}
SIM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copied_later(at<void>(to), at<void>(from), bytes, stream);
}
SIM_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return copied(at<void>(to), from, bytes);
}
SIM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    return copied_later(at<void>(to), from, bytes, stream);
}
SIM_EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return copied(to, at<void>(from), bytes);
}
SIM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copied_later(to, at<void>(from), bytes, stream);
}
SIM_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return cuMemcpy(to, from, bytes);
}
SIM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copied_later(at<void>(to), at<void>(from), bytes, stream);
}
SIM_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr place, unsigned char value, size_t count) {
    memory::fill(at<void>(place), value, count);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemsetD8Async(CUdeviceptr place, unsigned char value, size_t count, CUstream stream) {
    submit(stream, [=] { cuMemsetD8_v2(place, value, count); });
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr place, unsigned value, size_t count) {
    std::fill_n(at<unsigned>(place), count, value);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemsetD32Async(CUdeviceptr place, unsigned value, size_t count, CUstream stream) {
    submit(stream, [=] { cuMemsetD32_v2(place, value, count); });
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute number, CUdeviceptr place) {
    const auto block = memory::find(at<void>(place));
    if (!block) return CUDA_ERROR_INVALID_VALUE;
    const bool host = !block->on_device();
    switch (number) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *static_cast<unsigned*>(value) = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(value) = block->device; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<bool*>(value) = false; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(value) = place; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *static_cast<char**>(value) = block->begin;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(value) = block->size; return CUDA_SUCCESS;
        default: refuse("cuPointerGetAttribute of this attribute");
    }
}

// ------------------------------------------------------------------------------------------------ addresses apart

SIM_EXPORT CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                                  CUmemAllocationGranularity_flags) {
    *bytes = figure("allocation_granularity");
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* place, size_t bytes, size_t alignment, CUdeviceptr,
                                        unsigned long long) {
    alignment = std::max<size_t>(alignment, figure("allocation_granularity"));
    if (!fits(bytes) || !fits(alignment)) return CUDA_ERROR_INVALID_VALUE;
    *place = reinterpret_cast<CUdeviceptr>(memory::reserve(bytes, alignment));
    return *place ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr place, size_t bytes) {
    return memory::unreserve(at<void>(place), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                                unsigned long long) {
    if (!fits(bytes)) return CUDA_ERROR_INVALID_VALUE;
    const bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (on_device && (prop->location.id < 0 || prop->location.id >= device_count())) return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(memory::create(bytes, on_device ? prop->location.id : -1));
    return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return memory::release(physical(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemMap(CUdeviceptr place, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                             unsigned long long) {
    return fits(bytes) && memory::map(at<void>(place), bytes, offset, physical(handle)) ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr place, size_t bytes) {
    return memory::unmap(at<void>(place), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr place, size_t, const CUmemAccessDesc*, size_t) {
    const auto block = memory::find(at<void>(place));
    return block && block->mapped() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* place) {
    const auto block = memory::find(place);
    if (!block || !block->mapped() || !memory::retain(block->physical)) return CUDA_ERROR_INVALID_VALUE;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(block->physical);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                           CUmemGenericAllocationHandle handle) {
    if (!memory::known(physical(handle))) return CUDA_ERROR_INVALID_VALUE;
    *prop = {};
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    const int device = physical(handle)->device;
    prop->location = {.type = device < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                      .id = std::max(device, 0)};
    prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                                 CUmemAllocationHandleType type, unsigned long long) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if (!memory::known(physical(handle))) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<int*>(out) = dup(physical(handle)->file);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                                   CUmemAllocationHandleType type) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
    struct stat status;
    if (fstat(file, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
    auto* imported = memory::adopt(dup(file), static_cast<std::size_t>(status.st_size), current_device());
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(imported);
    return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// ------------------------------------------------------------------------------------------------ values of streams

// Values are written. A wait is over at once: who would write it does not exist.
SIM_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
                                          unsigned) {
    for (const auto& one : std::vector(operations, operations + count)) {
        if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
            submit(stream, [=] {
                *reinterpret_cast<cuuint64_t*>(one.writeValue.address) = one.writeValue.value64;
            });
        else if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
            submit(stream, [=] { *reinterpret_cast<cuuint32_t*>(one.writeValue.address) = one.writeValue.value; });
        else if (one.operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 && one.operation != CU_STREAM_MEM_OP_WAIT_VALUE_64)
            refuse("cuStreamBatchMemOp of this operation");
    }
    return CUDA_SUCCESS;
}
