// libcuda.so.1: the driver functions that torch, DeepJIT and TileLang look up by name.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "image.h"
#include "simdevice.h"

using namespace simdevice;

namespace {

CUcontext context() {
    static void* const only = handle();
    return static_cast<CUcontext>(only);
}

Kernel* kernel_of(CUfunction function) { return reinterpret_cast<Kernel*>(function); }

CUresult loaded(void** out, Image* image, const char* from) {
    if (!image) return CUDA_ERROR_INVALID_IMAGE;
    std::string names;
    for (const auto* kernel : image->kernels) names += (names.empty() ? "" : ", ") + quoted(kernel->name);
    record("load", std::string("\"from\": ") + quoted(from) + ", \"kernels\": [" + names + "]");
    *out = image;
    return CUDA_SUCCESS;
}

CUresult launched(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                  unsigned shared) {
    if (!launchable(gx, gy, gz, bx, by, bz, shared)) return CUDA_ERROR_INVALID_VALUE;
    record("launch", "\"kernel\": " + quoted(kernel_of(function)->name));
    return CUDA_SUCCESS;
}

}  // namespace

SIM_EXPORT CUresult cuInit(unsigned) { return present() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
SIM_EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = static_cast<int>(figure("driver_version"));
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = present() ? 1 : 0;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = 0;
    return present() && ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
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
SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice) {
    *out = context();
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext* out) {
    *out = context();
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    *device = 0;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxGetLimit(size_t* value, CUlimit) {
    *value = 0;
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
    *text = error == CUDA_SUCCESS                ? "CUDA_SUCCESS"
            : error == CUDA_ERROR_INVALID_IMAGE  ? "CUDA_ERROR_INVALID_IMAGE"
            : error == CUDA_ERROR_INVALID_VALUE  ? "CUDA_ERROR_INVALID_VALUE"
            : error == CUDA_ERROR_NOT_FOUND      ? "CUDA_ERROR_NOT_FOUND"
            : error == CUDA_ERROR_OUT_OF_MEMORY  ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == CUDA_ERROR_FILE_NOT_FOUND ? "CUDA_ERROR_FILE_NOT_FOUND"
                                                 : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
    cuGetErrorName(error, text);
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------------------ device code

SIM_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**, unsigned,
                                          CUlibraryOption*, void**, unsigned) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    return loaded(reinterpret_cast<void**>(library), load_image(bytes.data(), bytes.size()), path);
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
    return loaded(reinterpret_cast<void**>(module), load_image(data, 0), "memory");
}
SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* data, unsigned, CUjit_option*, void**) {
    return cuModuleLoadData(module, data);
}
SIM_EXPORT CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
SIM_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    auto* image = reinterpret_cast<Image*>(module);
    for (auto* kernel : image->kernels)
        if (kernel->name == name) {
            *function = reinterpret_cast<CUfunction>(kernel);
            return CUDA_SUCCESS;
        }
    if (!image->opaque) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(image->kernels.emplace_back(new Kernel{name}));
    return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute number, int value) {
    const bool too_much = number == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
                          value > attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    return too_much ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream, void**, void**) {
    return launched(f, gx, gy, gz, bx, by, bz, shared);
}
SIM_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                              unsigned by, unsigned bz, unsigned shared, CUstream, void**) {
    return launched(f, gx, gy, gz, bx, by, bz, shared);
}
SIM_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void**, void**) {
    return launched(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                    c->sharedMemBytes);
}
SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* place, size_t bytes) {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *place = reinterpret_cast<CUdeviceptr>(memory::allocate(bytes));
    return *place ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr place) {
    return !place || memory::release(reinterpret_cast<void*>(place)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr place, unsigned value, size_t count) {
    for (size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(place)[i] = value;
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

SIM_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult* result) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) *function = dlsym(RTLD_DEFAULT, (std::string(name) + "_v2").c_str());
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
