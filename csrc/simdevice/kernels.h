// Kernels by their handles: the driver's, the runtime's, and the host functions that stand for kernels in C++ code.
#pragma once

#include "image.h"
#include "simdevice.h"

namespace simdevice {

/// The kernel of a handle or host function; one without a name when it is not known.
Kernel* kernel_of(const void* handle);
/// Makes `kernel` known under `handle`.
void know_kernel(const void* handle, Kernel* kernel);
/// Whether the device takes the launch; it is recorded, at once or with each launch of a captured graph.
bool launch_kernel(const void* handle, Launch launch, const void* stream);
/// Device code with a record of it; null for a damaged one. `from` is its path, or "memory".
Image* load_recorded(const void* data, std::size_t size, const std::string& from);
/// Null for a name that is not in the image.
Kernel* kernel_named(Image* image, const std::string& name);
/// False beyond the device's limit.
bool allow_shared(Kernel* kernel, int bytes);
/// How many blocks of the kernel one SM holds.
int blocks_per_sm(const Kernel& kernel, int threads, std::size_t dynamic);
/// How many clusters of the launch the device holds; that a cluster lies within one GPC is not looked at.
int active_clusters(const Kernel& kernel, const Launch& launch);
/// Registers of a thread. Of a kernel whose code was not read: as many as a full SM leaves each.
int registers_of(const Kernel& kernel);

}  // namespace simdevice
