// The simulated device: a CUDA runtime and driver without a GPU. docs/simulated-device.md says what it does.
//
// Every figure of the device comes from ARCHWRIGHT_SIMULATED_FIGURES ("name=value,..."), written from devices.toml.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace simdevice {

/// A figure of the device by its name in devices.toml; 0 when no device is simulated.
long long figure(const char* name);

/// The device's name with the marker that it is no real one.
const std::string& device_name();

/// Whether ARCHWRIGHT_SIMULATED_DEVICE names a device: without it there is none, as on a machine without a GPU.
bool present();

/// Ends the process: `function` has no meaning here, and a made-up result would be worse than none.
[[noreturn]] void refuse(const char* function);

/// Appends one line to the log of this process (ARCHWRIGHT_SIMULATION_LOG); a crash loses none.
void record(const char* event, const std::string& details);

/// A JSON string.
std::string quoted(const std::string& text);

/// A value of cudaDeviceAttr (CUdevice_attribute has the same numbers).
int attribute(int number);

/// Keeps an error for cudaGetLastError, and returns it.
cudaError_t remember(cudaError_t error);

namespace memory {
/// Device memory, backed lazily by the host's; null beyond the device's size.
void* allocate(std::size_t bytes);
/// False when `pointer` was not allocated here.
bool release(void* pointer);
/// Whether `pointer` lies in device memory, and where its allocation begins.
bool find(const void* pointer, void** base, std::size_t* bytes);
std::size_t in_use();
/// A range that was mapped elsewhere is device memory, or is no longer.
void enter(void* place, std::size_t bytes);
void leave(void* place, std::size_t bytes);
}  // namespace memory

/// What the driver would refuse: blocks, clusters and shared memory that the device does not have.
bool launchable(unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                std::size_t shared);

/// A handle that is unlike all others and never dereferenced.
void* handle();

}  // namespace simdevice
