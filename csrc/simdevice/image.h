// Device code that a program loads: enough of a cubin is read to know its kernels and to notice a damaged one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace simdevice {

/// A loaded kernel. The driver's CUfunction and CUkernel point to it.
struct Kernel {
    std::string name;
};

/// A loaded cubin or container. The kernels of a container (fatbin, several architectures) are not looked at.
struct Image {
    bool opaque = false;
    std::vector<Kernel*> kernels;
};

/// Reads device code; `size` is 0 where the caller's interface has none. Null for a damaged cubin, or another file.
Image* load_image(const void* data, std::size_t size);

}  // namespace simdevice
