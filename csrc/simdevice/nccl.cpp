// libnccl.so.2, for a program that is one rank of a group whose other ranks do not exist: communicators, windows and
// the device communicator that DeepEP's host code makes, and the collectives that its constructors call. Preloaded only
// where it is asked for (simulate.py); every other function of NCCL is in nccl_refused.cpp, by its name.
//
// The group's size is the caller's. ARCHWRIGHT_SIMULATED_NVLINK_DOMAIN says how many of its ranks one NVLink domain
// holds (8 without it), ARCHWRIGHT_SIMULATED_GIN_STRIDE how far apart two ranks are whose adapters reach each other (1,
// every rank, without it; the size of a domain where adapters only reach those of their own rail). The other ranks are taken to do what this one does: what is gathered is one's own, many times.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nccl_device/host.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Communicator {
    int ranks, rank, domain, stride;
};

struct Window {
    char* base;
    std::size_t bytes;
};

constexpr std::size_t allocation_alignment = std::size_t{2} << 20;

Communicator* of(ncclComm_t communicator) { return reinterpret_cast<Communicator*>(communicator); }
Window* of(ncclWindow_t window) { return reinterpret_cast<Window*>(window); }

int told(const char* variable, int otherwise, int ranks) {
    const char* text = std::getenv(variable);
    const int number = text ? std::atoi(text) : otherwise;
    return number > 0 ? std::min(number, ranks) : ranks;
}

std::size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8:
        case ncclFloat8e4m3:
        case ncclFloat8e5m2:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32:
            return 4;
        default:
            return 8;
    }
}

ncclResult_t pointer_in(ncclWindow_t window, std::size_t offset, void** out) {
    if (offset >= of(window)->bytes) return ncclInvalidArgument;
    *out = of(window)->base + offset;
    return ncclSuccess;
}

}  // namespace

// ------------------------------------------------------------------------------------------------ communicators

SIM_EXPORT ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
SIM_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : "error of the simulated NCCL";
}
SIM_EXPORT const char* ncclGetLastError(ncclComm_t) { return ""; }
SIM_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::memset(id, 0, sizeof *id);
    return ncclSuccess;
}
SIM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* out, int ranks, ncclUniqueId, int rank) {
    if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    *out = reinterpret_cast<ncclComm_t>(new Communicator{
        ranks, rank, told("ARCHWRIGHT_SIMULATED_NVLINK_DOMAIN", 8, ranks),
        told("ARCHWRIGHT_SIMULATED_GIN_STRIDE", 1, ranks)});
    return ncclSuccess;
}
// Not freed: upstream destroys a communicator that its buffers still know.
SIM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
SIM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
SIM_EXPORT ncclResult_t ncclCommCount(const ncclComm_t communicator, int* count) {
    *count = of(communicator)->ranks;
    return ncclSuccess;
}
SIM_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
    *rank = of(communicator)->rank;
    return ncclSuccess;
}
SIM_EXPORT ncclTeam_t ncclTeamWorld(ncclComm_t communicator) {
    return {of(communicator)->ranks, of(communicator)->rank, 1};
}
SIM_EXPORT ncclTeam_t ncclTeamLsa(ncclComm_t communicator) {
    const auto* self = of(communicator);
    return {self->domain, self->rank % self->domain, 1};
}
// One node's links and adapters: peers write into each other's memory (GDAKI), NVLink multicast is there.
SIM_EXPORT ncclResult_t ncclCommQueryProperties(ncclComm_t communicator, ncclCommProperties_t* properties) {
    const auto* self = of(communicator);
    properties->rank = self->rank;
    properties->nRanks = self->ranks;
    properties->deviceApiSupport = properties->multimemSupport = true;
    properties->ginType = properties->railedGinType = NCCL_GIN_TYPE_GDAKI;
    properties->ginSupport[NCCL_GIN_TYPE_GDAKI] = true;
    properties->nLsaTeams = self->ranks / self->domain;
    properties->ginMinStride = self->stride;
    properties->devCommRuntimeVersionSize = sizeof(ncclDevComm);
    return ncclSuccess;
}
SIM_EXPORT ncclResult_t ncclDevCommCreate(ncclComm_t, ncclDevCommRequirements_t const*, ncclDevComm_t* out) {
    std::memset(static_cast<void*>(out), 0, sizeof *out);
    return ncclSuccess;
}
SIM_EXPORT ncclResult_t ncclDevCommDestroy(ncclComm_t, ncclDevComm_t const*) { return ncclSuccess; }

// ------------------------------------------------------------------------------------------------ memory

// Device memory, aligned like NCCL's; what cudaMalloc gave stands before it.
SIM_EXPORT ncclResult_t ncclMemAlloc(void** out, std::size_t bytes) {
    void* raw = nullptr;
    if (cudaMalloc(&raw, bytes + allocation_alignment) != cudaSuccess) return ncclUnhandledCudaError;
    const auto begin = reinterpret_cast<std::uintptr_t>(raw) + sizeof(void*);
    *out = reinterpret_cast<void*>((begin + allocation_alignment - 1) / allocation_alignment * allocation_alignment);
    static_cast<void**>(*out)[-1] = raw;
    return ncclSuccess;
}
SIM_EXPORT ncclResult_t ncclMemFree(void* pointer) {
    return cudaFree(static_cast<void**>(pointer)[-1]) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
SIM_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t, void* base, std::size_t bytes, ncclWindow_t* out, int) {
    *out = reinterpret_cast<ncclWindow_t>(new Window{static_cast<char*>(base), bytes});
    return ncclSuccess;
}
SIM_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t window) {
    delete of(window);
    return ncclSuccess;
}
SIM_EXPORT ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, std::size_t offset, int, void** out) {
    return pointer_in(window, offset, out);
}
SIM_EXPORT ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, std::size_t offset, void** out) {
    return pointer_in(window, offset, out);
}

// ------------------------------------------------------------------------------------------------ collectives

SIM_EXPORT ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                                      ncclComm_t communicator, cudaStream_t) {
    const auto bytes = count * size_of(type);
    for (int rank = 0; rank < of(communicator)->ranks; ++rank)
        std::memmove(static_cast<char*>(to) + rank * bytes, from, bytes);
    return ncclSuccess;
}
