// libcudart.so.13: kernels and variables that C++ code registers, and launches, which are checked and recorded.
#include <map>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "memory.h"

using namespace simdevice;

namespace {

struct Configuration {
    dim3 grid, block;
    std::size_t shared;
    void* stream;
};
thread_local std::vector<Configuration> pushed;

struct Variable {
    std::size_t size;
    void* place = nullptr;
};
struct Variables {
    std::mutex mutex;
    std::map<const void*, Variable> all;
};
Variables& variables() {
    static auto* instance = new Variables;
    return *instance;
}

Launch shape(dim3 grid, dim3 block, std::size_t shared) {
    return {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {1, 1, 1}, shared, false};
}

Launch shape(const cudaLaunchConfig_t& config) {
    auto result = shape(config.gridDim, config.blockDim, config.dynamicSmemBytes);
    for (unsigned i = 0; i < config.numAttrs; ++i)
        if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
            const auto& cluster = config.attrs[i].val.clusterDim;
            result.cluster[0] = cluster.x, result.cluster[1] = cluster.y, result.cluster[2] = cluster.z;
        }
    return result;
}

cudaError_t launched(const void* kernel, const Launch& launch, cudaStream_t stream) {
    if (!present()) return remember(cudaErrorNoDevice);
    return launch_kernel(kernel, launch, stream) ? cudaSuccess : remember(cudaErrorInvalidConfiguration);
}

}  // namespace

// ------------------------------------------------------------------------------------------------ registration

// These run before main, in every program that links kernels: they note what they are told, and look at no figure.
SIM_EXPORT void** __cudaRegisterFatBinary(void*) {
    static void* registered[4];
    return registered;
}
SIM_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
SIM_EXPORT void __cudaUnregisterFatBinary(void**) {}
SIM_EXPORT void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*,
                                       void*, int*) {
    know_kernel(host, new Kernel{.name = name, .loaded = false});
}
SIM_EXPORT void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int, int) {
    auto& known = variables();
    const std::lock_guard lock(known.mutex);
    known.all[host] = {size};
}
SIM_EXPORT char __cudaInitModule(void**) { return 0; }
SIM_EXPORT cudaError_t cudaGetSymbolAddress(void** place, const void* symbol) {
    auto& known = variables();
    const std::lock_guard lock(known.mutex);
    const auto found = known.all.find(symbol);
    if (found == known.all.end()) return remember(cudaErrorInvalidSymbol);
    if (!found->second.place) found->second.place = memory::allocate(found->second.size);
    *place = found->second.place;
    return *place ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}

// ------------------------------------------------------------------------------------------------ launches

SIM_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
    pushed.push_back({grid, block, shared, stream});
    return 0;
}
SIM_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    if (pushed.empty()) return remember(cudaErrorMissingConfiguration);
    *grid = pushed.back().grid, *block = pushed.back().block, *shared = pushed.back().shared;
    *static_cast<void**>(stream) = pushed.back().stream;
    pushed.pop_back();
    return cudaSuccess;
}
SIM_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t s) {
    return launched(f, shape(grid, block, shared), s);
}
SIM_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void**, size_t shared,
                                          cudaStream_t s) {
    return launched(f, shape(grid, block, shared), s);
}
SIM_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3 grid, dim3 block, void**, size_t shared,
                                                   cudaStream_t s) {
    return launched(f, shape(grid, block, shared), s);
}
SIM_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) {
    return launched(function, shape(*config), config->stream);
}

// ------------------------------------------------------------------------------------------------ attributes

SIM_EXPORT cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute number, int value) {
    auto* kernel = kernel_of(function);
    if (number == cudaFuncAttributeMaxDynamicSharedMemorySize && !allow_shared(kernel, value))
        return remember(cudaErrorInvalidValue);
    if (number == cudaFuncAttributeNonPortableClusterSizeAllowed) kernel->nonportable = value != 0;
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute number, int value, int) {
    return cudaFuncSetAttribute(kernel, number, value);
}
SIM_EXPORT cudaError_t cudaFuncGetName(const char** name, const void* function) {
    *name = kernel_of(function)->name.c_str();
    return cudaSuccess;
}
// Of a kernel that is linked into a program only the name is known: its figures are typical ones.
SIM_EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
    *attributes = {};
    const auto* kernel = kernel_of(function);
    attributes->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    attributes->maxDynamicSharedSizeBytes =
        static_cast<int>(kernel->shared ? kernel->shared : figure("shared_per_block"));
    attributes->numRegs = registers_of(*kernel);
    attributes->sharedSizeBytes = kernel->fixed;
    attributes->binaryVersion = attributes->ptxVersion =
        static_cast<int>(figure("capability_major") * 10 + figure("capability_minor"));
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                                     size_t shared) {
    *blocks = blocks_per_sm(*kernel_of(kernel), threads, shared);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel,
                                                                              int threads, size_t shared, unsigned) {
    *blocks = blocks_per_sm(*kernel_of(kernel), threads, shared);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel,
                                                      const cudaLaunchConfig_t* config) {
    *clusters = active_clusters(*kernel_of(kernel), shape(*config));
    return cudaSuccess;
}

// ------------------------------------------------------------------------------------------------ libraries

SIM_EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                           cudaLibraryOption*, void**, unsigned) {
    auto* image = load_recorded(code, 0, "memory");
    if (!image) return remember(cudaErrorInvalidKernelImage);
    *library = reinterpret_cast<cudaLibrary_t>(image);
    return cudaSuccess;
}
SIM_EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
    auto* found = kernel_named(reinterpret_cast<Image*>(library), name);
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return found ? cudaSuccess : remember(cudaErrorSymbolNotFound);
}
SIM_EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }
