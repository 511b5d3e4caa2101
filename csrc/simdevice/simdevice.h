// The simulated device: a CUDA runtime and driver without a GPU. docs/simulated-device.md says what it does.
//
// Every figure of the device comes from ARCHWRIGHT_SIMULATED_FIGURES ("name=value,..."), written from devices.toml.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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

/// How many devices there are, and the one that this thread uses.
int device_count();
int& current_device();

/// Does work of a stream: at once, since streams are never busy, or at each launch of the graph that is being captured.
void submit(const void* stream, std::function<void()> work);

/// Whether work of this stream goes into a graph.
bool capturing(const void* stream);

struct Launch {
    unsigned grid[3];
    unsigned block[3];
    unsigned cluster[3];
    std::size_t shared;
    bool nonportable;  // the kernel allows clusters beyond the size that every device has
};

/// What the driver would refuse in a launch, or null; `shared_limit` is the dynamic shared memory of the kernel.
const char* launch_problem(const Launch& launch, long long shared_limit);
/// The launch as fields of a record.
std::string described(const Launch& launch);
/// How many blocks of a kernel one SM holds.
int blocks_per_sm(int threads, std::size_t shared, int registers);

/// A handle that is unlike all others and never dereferenced.
void* handle();

}  // namespace simdevice
