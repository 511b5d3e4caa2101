// What a program is told about the device, by attribute and all together.
//
// Sizes and counts are never zero, since programs divide by them. A capability is zero when what it promises is not
// implemented here (managed memory, IPC, multicast, textures): a program that asks takes another path.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "simdevice.h"

using namespace simdevice;

#undef cudaGetDeviceProperties
SIM_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device);

namespace {

struct {
    int number;
    const char* figure;
} constexpr kFigures[] = {
    {cudaDevAttrComputeCapabilityMajor, "capability_major"},
    {cudaDevAttrComputeCapabilityMinor, "capability_minor"},
    {cudaDevAttrMultiProcessorCount, "sms"},
    {cudaDevAttrMaxSharedMemoryPerBlock, "shared_per_block"},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, "shared_per_block_optin"},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, "shared_per_sm"},
    {cudaDevAttrReservedSharedMemoryPerBlock, "shared_reserved_per_block"},
    {cudaDevAttrMaxRegistersPerBlock, "registers_per_sm"},
    {cudaDevAttrMaxRegistersPerMultiprocessor, "registers_per_sm"},
    {cudaDevAttrMaxThreadsPerMultiProcessor, "threads_per_sm"},
    {cudaDevAttrMaxBlocksPerMultiprocessor, "blocks_per_sm"},
    {cudaDevAttrL2CacheSize, "l2_bytes"},
    {cudaDevAttrMaxAccessPolicyWindowSize, "l2_bytes"},  // no source: never more than there is
    {cudaDevAttrClockRate, "clock_khz"},
    {cudaDevAttrMemoryClockRate, "memory_clock_khz"},
    {cudaDevAttrGlobalMemoryBusWidth, "bus_bits"},
    {cudaDevAttrWarpSize, "warp"},
    {cudaDevAttrMaxThreadsPerBlock, "threads_per_block"},
    {cudaDevAttrMaxBlockDimX, "threads_per_block"},
    {cudaDevAttrMaxBlockDimY, "threads_per_block"},
    {cudaDevAttrMaxBlockDimZ, "block_z"},
    {cudaDevAttrMaxGridDimX, "grid_x"},
    {cudaDevAttrMaxGridDimY, "grid_yz"},
    {cudaDevAttrMaxGridDimZ, "grid_yz"},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, "single_to_double"},
    {cudaDevAttrMemSyncDomainCount, "memory_sync_domains"},
    {cudaDevAttrTotalConstantMemory, "constant_bytes"},
    {cudaDevAttrMaxPitch, "pitch_bytes"},
    {cudaDevAttrTextureAlignment, "texture_alignment"},
    {cudaDevAttrSurfaceAlignment, "surface_alignment"},
    {cudaDevAttrTexturePitchAlignment, "texture_pitch_alignment"},
    {cudaDevAttrAsyncEngineCount, "copy_engines"},
    {cudaDevAttrMaxTexture1DWidth, "texture_1d"},
    {cudaDevAttrMaxTexture1DMipmappedWidth, "texture_1d_mipmapped"},
    {cudaDevAttrMaxTexture1DLinearWidth, "texture_1d_linear"},
    {cudaDevAttrMaxTexture1DLayeredWidth, "layered"},
    {cudaDevAttrMaxTexture1DLayeredLayers, "layers"},
    {cudaDevAttrMaxTexture2DWidth, "texture_2d_x"},
    {cudaDevAttrMaxTexture2DHeight, "texture_2d_y"},
    {cudaDevAttrMaxTexture2DMipmappedWidth, "texture_2d_mipmapped"},
    {cudaDevAttrMaxTexture2DMipmappedHeight, "texture_2d_mipmapped"},
    {cudaDevAttrMaxTexture2DLinearWidth, "texture_2d_linear_x"},
    {cudaDevAttrMaxTexture2DLinearHeight, "texture_2d_linear_y"},
    {cudaDevAttrMaxTexture2DLinearPitch, "texture_2d_linear_pitch"},
    {cudaDevAttrMaxTexture2DGatherWidth, "layered"},
    {cudaDevAttrMaxTexture2DGatherHeight, "layered"},
    {cudaDevAttrMaxTexture2DLayeredWidth, "layered"},
    {cudaDevAttrMaxTexture2DLayeredHeight, "layered"},
    {cudaDevAttrMaxTexture2DLayeredLayers, "layers"},
    {cudaDevAttrMaxTexture3DWidth, "texture_3d"},
    {cudaDevAttrMaxTexture3DHeight, "texture_3d"},
    {cudaDevAttrMaxTexture3DDepth, "texture_3d"},
    {cudaDevAttrMaxTexture3DWidthAlt, "texture_3d_alternate_xy"},
    {cudaDevAttrMaxTexture3DHeightAlt, "texture_3d_alternate_xy"},
    {cudaDevAttrMaxTexture3DDepthAlt, "texture_3d_alternate_z"},
    {cudaDevAttrMaxTextureCubemapWidth, "layered"},
    {cudaDevAttrMaxTextureCubemapLayeredWidth, "layered"},
    {cudaDevAttrMaxTextureCubemapLayeredLayers, "cubemap_layers"},
    {cudaDevAttrMaxSurface1DWidth, "layered"},
    {cudaDevAttrMaxSurface1DLayeredWidth, "layered"},
    {cudaDevAttrMaxSurface1DLayeredLayers, "layers"},
    {cudaDevAttrMaxSurface2DWidth, "texture_2d_x"},
    {cudaDevAttrMaxSurface2DHeight, "texture_2d_y"},
    {cudaDevAttrMaxSurface2DLayeredWidth, "layered"},
    {cudaDevAttrMaxSurface2DLayeredHeight, "layered"},
    {cudaDevAttrMaxSurface2DLayeredLayers, "layers"},
    {cudaDevAttrMaxSurface3DWidth, "texture_3d"},
    {cudaDevAttrMaxSurface3DHeight, "texture_3d"},
    {cudaDevAttrMaxSurface3DDepth, "texture_3d"},
    {cudaDevAttrMaxSurfaceCubemapWidth, "layered"},
    {cudaDevAttrMaxSurfaceCubemapLayeredWidth, "layered"},
    {cudaDevAttrMaxSurfaceCubemapLayeredLayers, "cubemap_layers"},
};

constexpr int kPresent[] = {
    cudaDevAttrUnifiedAddressing,
    cudaDevAttrCooperativeLaunch,
    cudaDevAttrClusterLaunch,
    cudaDevAttrCanMapHostMemory,
    cudaDevAttrHostRegisterSupported,
    cudaDevAttrCanUseHostPointerForRegisteredMem,
    cudaDevAttrConcurrentKernels,
    cudaDevAttrGpuOverlap,
    cudaDevAttrStreamPrioritiesSupported,
    cudaDevAttrGlobalL1CacheSupported,
    cudaDevAttrLocalL1CacheSupported,
    cudaDevAttrComputePreemptionSupported,
    cudaDevAttrEccEnabled,
    cudaDevAttrMemoryPoolsSupported,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,  // adapters write into it; none is simulated
};

// Consecutive attributes are not consecutive numbers, so the fields of an array name each of theirs.
template <class... Numbers>
void set(int* fields, Numbers... numbers) {
    ((*fields++ = attribute(numbers)), ...);
}

void set_textures(cudaDeviceProp* prop) {
    set(&prop->maxTexture1D, cudaDevAttrMaxTexture1DWidth);
    set(&prop->maxTexture1DMipmap, cudaDevAttrMaxTexture1DMipmappedWidth);
    set(prop->maxTexture2D, cudaDevAttrMaxTexture2DWidth, cudaDevAttrMaxTexture2DHeight);
    set(prop->maxTexture2DMipmap, cudaDevAttrMaxTexture2DMipmappedWidth, cudaDevAttrMaxTexture2DMipmappedHeight);
    set(prop->maxTexture2DLinear, cudaDevAttrMaxTexture2DLinearWidth, cudaDevAttrMaxTexture2DLinearHeight,
        cudaDevAttrMaxTexture2DLinearPitch);
    set(prop->maxTexture2DGather, cudaDevAttrMaxTexture2DGatherWidth, cudaDevAttrMaxTexture2DGatherHeight);
    set(prop->maxTexture3D, cudaDevAttrMaxTexture3DWidth, cudaDevAttrMaxTexture3DHeight, cudaDevAttrMaxTexture3DDepth);
    set(prop->maxTexture3DAlt, cudaDevAttrMaxTexture3DWidthAlt, cudaDevAttrMaxTexture3DHeightAlt,
        cudaDevAttrMaxTexture3DDepthAlt);
    set(&prop->maxTextureCubemap, cudaDevAttrMaxTextureCubemapWidth);
    set(prop->maxTexture1DLayered, cudaDevAttrMaxTexture1DLayeredWidth, cudaDevAttrMaxTexture1DLayeredLayers);
    set(prop->maxTexture2DLayered, cudaDevAttrMaxTexture2DLayeredWidth, cudaDevAttrMaxTexture2DLayeredHeight,
        cudaDevAttrMaxTexture2DLayeredLayers);
    set(prop->maxTextureCubemapLayered, cudaDevAttrMaxTextureCubemapLayeredWidth,
        cudaDevAttrMaxTextureCubemapLayeredLayers);
    set(&prop->maxSurface1D, cudaDevAttrMaxSurface1DWidth);
    set(prop->maxSurface2D, cudaDevAttrMaxSurface2DWidth, cudaDevAttrMaxSurface2DHeight);
    set(prop->maxSurface3D, cudaDevAttrMaxSurface3DWidth, cudaDevAttrMaxSurface3DHeight, cudaDevAttrMaxSurface3DDepth);
    set(prop->maxSurface1DLayered, cudaDevAttrMaxSurface1DLayeredWidth, cudaDevAttrMaxSurface1DLayeredLayers);
    set(prop->maxSurface2DLayered, cudaDevAttrMaxSurface2DLayeredWidth, cudaDevAttrMaxSurface2DLayeredHeight,
        cudaDevAttrMaxSurface2DLayeredLayers);
    set(&prop->maxSurfaceCubemap, cudaDevAttrMaxSurfaceCubemapWidth);
    set(prop->maxSurfaceCubemapLayered, cudaDevAttrMaxSurfaceCubemapLayeredWidth,
        cudaDevAttrMaxSurfaceCubemapLayeredLayers);
}

}  // namespace

int simdevice::attribute(int number) {
    if (number == cudaDevAttrMaxPersistingL2CacheSize) return static_cast<int>(figure("l2_bytes") / 2);  // no source
    for (const auto& known : kFigures)
        if (known.number == number) return static_cast<int>(figure(known.figure));
    return std::find(std::begin(kPresent), std::end(kPresent), number) != std::end(kPresent);
}

SIM_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
    if (!present() || device < 0 || device >= device_count()) return remember(cudaErrorInvalidDevice);
    *prop = {};
    std::snprintf(prop->name, sizeof prop->name, "%s", device_name().c_str());
    std::memcpy(prop->uuid.bytes, "Archwright-sim-0", sizeof prop->uuid.bytes);
    prop->uuid.bytes[15] = static_cast<char>('0' + device);
    prop->pciBusID = device;
    prop->totalGlobalMem = figure("memory_bytes");
    prop->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    prop->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    prop->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    prop->reservedSharedMemPerBlock = attribute(cudaDevAttrReservedSharedMemoryPerBlock);
    prop->regsPerBlock = prop->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerBlock);
    prop->warpSize = attribute(cudaDevAttrWarpSize);
    prop->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    prop->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    prop->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
    set(prop->maxThreadsDim, cudaDevAttrMaxBlockDimX, cudaDevAttrMaxBlockDimY, cudaDevAttrMaxBlockDimZ);
    set(prop->maxGridSize, cudaDevAttrMaxGridDimX, cudaDevAttrMaxGridDimY, cudaDevAttrMaxGridDimZ);
    prop->major = attribute(cudaDevAttrComputeCapabilityMajor);
    prop->minor = attribute(cudaDevAttrComputeCapabilityMinor);
    prop->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    prop->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
    prop->persistingL2CacheMaxSize = attribute(cudaDevAttrMaxPersistingL2CacheSize);
    prop->accessPolicyMaxWindowSize = attribute(cudaDevAttrMaxAccessPolicyWindowSize);
    prop->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
    prop->memPitch = attribute(cudaDevAttrMaxPitch);
    prop->totalConstMem = attribute(cudaDevAttrTotalConstantMemory);
    prop->textureAlignment = attribute(cudaDevAttrTextureAlignment);
    prop->texturePitchAlignment = attribute(cudaDevAttrTexturePitchAlignment);
    prop->surfaceAlignment = attribute(cudaDevAttrSurfaceAlignment);
    prop->asyncEngineCount = attribute(cudaDevAttrAsyncEngineCount);
    set_textures(prop);
    prop->unifiedAddressing = prop->cooperativeLaunch = prop->clusterLaunch = prop->concurrentKernels = 1;
    prop->canMapHostMemory = prop->hostRegisterSupported = prop->canUseHostPointerForRegisteredMem = 1;
    prop->globalL1CacheSupported = prop->localL1CacheSupported = prop->computePreemptionSupported = 1;
    prop->streamPrioritiesSupported = prop->ECCEnabled = prop->memoryPoolsSupported = 1;
    return cudaSuccess;
}
