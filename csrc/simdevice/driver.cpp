// libcuda.so.1: the driver functions that torch, DeepJIT and TileLang look up by name.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "kernels.h"

using namespace simdevice;

namespace {

thread_local std::vector<int> stack;

// One context a device; nothing lies behind it.
CUcontext context(int device) {
    static auto* const contexts = new std::map<int, void*>;
    static auto* const mutex = new std::mutex;
    const std::lock_guard lock(*mutex);
    auto& place = (*contexts)[device];
    if (!place) place = handle();
    return static_cast<CUcontext>(place);
}

CUresult loaded(void** out, Image* image) {
    *out = image;
    return image ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

CUresult launched(CUfunction function, const Launch& launch, CUstream stream) {
    return launch_kernel(function, launch, stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// What a program set; nothing is limited by it.
std::map<CUlimit, size_t>& limits() {
    thread_local std::map<CUlimit, size_t> all;
    return all;
}

struct {
    CUresult error;
    const char* name;
} constexpr kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {CUDA_ERROR_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
};

}  // namespace

SIM_EXPORT CUresult cuInit(unsigned) { return present() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
SIM_EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = static_cast<int>(figure("driver_version"));
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = device_count();
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
SIM_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    *uuid = {};
    std::memcpy(uuid->bytes, "Archwright-sim-0", sizeof uuid->bytes);
    uuid->bytes[15] = static_cast<char>('0' + device);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDeviceGetName(char* text, int size, CUdevice) {
    std::snprintf(text, size, "%s", device_name().c_str());
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute number, CUdevice) {
    *value = attribute(number);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
    *bytes = figure("memory_bytes");
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    *out = context(device);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext* out) {
    *out = context(current_device());
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext wanted) {
    for (int device = 0; device < device_count(); ++device)
        if (context(device) == wanted) current_device() = device;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext wanted) {
    stack.push_back(current_device());
    return cuCtxSetCurrent(wanted);
}
SIM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* out) {
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (out) *out = context(current_device());
    current_device() = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    *device = current_device();
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return static_cast<CUresult>(cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}
SIM_EXPORT CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
    *value = limits()[limit];
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    limits()[limit] = value;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxResetPersistingL2Cache() { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuStreamSetAttribute(CUstream, CUstreamAttrID, const CUstreamAttrValue*) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
    for (const auto& known : kErrors)
        if (known.error == error) {
            *text = known.name;
            return CUDA_SUCCESS;
        }
    *text = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

// ------------------------------------------------------------------------------------------------ device code

SIM_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**, unsigned,
                                          CUlibraryOption*, void**, unsigned) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    return loaded(reinterpret_cast<void**>(library), load_recorded(bytes.data(), bytes.size(), path));
}
SIM_EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned,
                                      CUlibraryOption*, void**, unsigned) {
    return loaded(reinterpret_cast<void**>(library), load_recorded(code, 0, "memory"));
}
SIM_EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    *kernel = reinterpret_cast<CUkernel>(kernel_named(reinterpret_cast<Image*>(library), name));
    return *kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
SIM_EXPORT CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
    *count = reinterpret_cast<Image*>(library)->kernels.size();
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
    const auto& all = reinterpret_cast<Image*>(library)->kernels;
    for (unsigned i = 0; i < count && i < all.size(); ++i) kernels[i] = reinterpret_cast<CUkernel>(all[i]);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* data) {
    return loaded(reinterpret_cast<void**>(module), load_recorded(data, 0, "memory"));
}
SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* data, unsigned, CUjit_option*, void**) {
    return cuModuleLoadData(module, data);
}
SIM_EXPORT CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuModuleLoad(CUmodule* module, const char* path) {
    return cuLibraryLoadFromFile(reinterpret_cast<CUlibrary*>(module), path, nullptr, nullptr, 0, nullptr, nullptr, 0);
}
SIM_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    *function = reinterpret_cast<CUfunction>(kernel_named(reinterpret_cast<Image*>(module), name));
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
SIM_EXPORT CUresult cuFuncGetName(const char** name, CUfunction function) {
    *name = kernel_of(function)->name.c_str();
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuKernelGetName(const char** name, CUkernel kernel) {
    return cuFuncGetName(name, reinterpret_cast<CUfunction>(kernel));
}
SIM_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute number, int value) {
    auto* kernel = kernel_of(function);
    if (number == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) kernel->nonportable = value != 0;
    if (number == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && !allow_shared(kernel, value))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute number, CUfunction function) {
    cudaFuncAttributes all;
    cudaFuncGetAttributes(&all, function);
    switch (number) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = all.maxThreadsPerBlock; break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_cast<int>(all.sharedSizeBytes); break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = all.numRegs; break;
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = all.binaryVersion; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = all.maxDynamicSharedSizeBytes; break;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; break;  // not read
        default: refuse("cuFuncGetAttribute of this attribute");
    }
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute number, int value, CUkernel kernel, CUdevice) {
    return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), number, value);
}
SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction f, int threads, size_t shared) {
    *blocks = blocks_per_sm(*kernel_of(f), threads, shared);
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void**, void**) {
    return launched(f, {{gx, gy, gz}, {bx, by, bz}, {1, 1, 1}, shared, false}, stream);
}
SIM_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                              unsigned by, unsigned bz, unsigned shared, CUstream stream, void**) {
    return launched(f, {{gx, gy, gz}, {bx, by, bz}, {1, 1, 1}, shared, false}, stream);
}
namespace {
Launch shape(const CUlaunchConfig* c) {
    Launch launch{{c->gridDimX, c->gridDimY, c->gridDimZ},
                  {c->blockDimX, c->blockDimY, c->blockDimZ},
                  {1, 1, 1},
                  c->sharedMemBytes,
                  false};
    for (unsigned i = 0; i < c->numAttrs; ++i)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const auto& cluster = c->attrs[i].value.clusterDim;
            launch.cluster[0] = cluster.x, launch.cluster[1] = cluster.y, launch.cluster[2] = cluster.z;
        }
    return launch;
}
}  // namespace
SIM_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void**, void**) {
    return launched(f, shape(config), config->hStream);
}
SIM_EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction f, const CUlaunchConfig* config) {
    *clusters = active_clusters(*kernel_of(f), shape(config));
    return CUDA_SUCCESS;
}

// The limits are those that the driver's documentation gives for tiled tensor maps.
SIM_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address,
                                           const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                           const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle,
                                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    bool fits = rank >= 1 && rank <= 5 && reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
    for (cuuint32_t i = 0; fits && i < rank; ++i)
        fits = sizes[i] >= 1 && sizes[i] <= (1ULL << 32) && box[i] >= 1 && box[i] <= 256 && steps[i] >= 1 &&
               steps[i] <= 8 && (i + 1 == rank || (strides[i] % 16 == 0 && strides[i] < (1ULL << 40)));
    if (!fits) {
        record("invalid tensor map", "\"rank\": " + std::to_string(rank));
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::memset(map, 0, sizeof *map);
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------------------ by name

// Of a function with several versions (cuMemAlloc_v2, cuCtxCreate_v4) there is one here, the newest.
SIM_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult* result) {
    *function = nullptr;
    for (const char* suffix : {"", "_v2", "_v3", "_v4", "_v5"})
        if (!*function) *function = dlsym(RTLD_DEFAULT, (std::string(name) + suffix).c_str());
    if (!*function) record("not found", "\"function\": " + quoted(name));
    if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
SIM_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* result) {
    CUdriverProcAddressQueryResult found;
    cuGetProcAddress_v2(name, function, 0, 0, &found);
    if (result) *result = static_cast<cudaDriverEntryPointQueryResult>(found);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                               cudaDriverEntryPointQueryResult* result) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
