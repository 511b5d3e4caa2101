// Device code that a program loads: enough of a cubin is read to know its kernels and to notice a damaged one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace simdevice {

/// A kernel. The driver's CUfunction and CUkernel point to it.
struct Kernel {
    std::string name = {};
    bool loaded = true;        // from an image; otherwise a program registered it, and only its name is known
    int registers = 0;         // per thread; 0 when unknown
    std::size_t fixed = 0;     // shared memory that the compiler gave it
    long long shared = 0;      // dynamic shared memory that was allowed; 0 for what every kernel may have
    bool nonportable = false;  // clusters beyond the portable size were allowed
};

/// A loaded cubin or container. The kernels of a container (fatbin, several architectures) are not looked at.
struct Image {
    bool opaque = false;
    std::vector<Kernel*> kernels;
};

/// Reads device code; `size` is 0 where the caller's interface has none. Null for a damaged cubin, or another file.
Image* load_image(const void* data, std::size_t size);

}  // namespace simdevice
