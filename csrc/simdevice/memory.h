// The memory of the simulated devices. All functions may be called from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace simdevice::memory {

/// kMapped and kMappedHost are handles at reserved addresses: a device's memory, and the host's.
enum class Kind { kDevice, kHost, kRegistered, kMapped, kMappedHost };

/// What cuMemCreate makes: memory without an address; `device` is -1 for the host's.
struct Physical {
    std::size_t size;
    int device;
    int file;
    bool imported;
};

struct Block {
    char* begin;
    std::size_t size;
    Kind kind;
    int device;
    Physical* physical;

    bool mapped() const { return kind == Kind::kMapped || kind == Kind::kMappedHost; }
    bool on_device() const { return kind == Kind::kDevice || kind == Kind::kMapped; }
};

/// Memory of the current device; null beyond the device's size.
void* allocate(std::size_t bytes);
void* allocate_host(std::size_t bytes);
/// False when it is registered already.
bool register_host(void* place, std::size_t bytes);
/// False when no allocation of this kind begins at `place`.
bool release(void* place, Kind kind);
/// The allocation in which `place` lies.
std::optional<Block> find(const void* place);
std::size_t in_use(int device);

/// Addresses without memory; null when the process has no such range.
void* reserve(std::size_t bytes, std::size_t alignment);
bool unreserve(void* place, std::size_t bytes);
/// Null beyond the device's size.
Physical* create(std::size_t bytes, int device);
/// A handle of another process, by its file.
Physical* adopt(int file, std::size_t bytes, int device);
bool known(const Physical* physical);
bool retain(Physical* physical);
bool release(Physical* physical);
bool map(void* place, std::size_t bytes, std::size_t offset, Physical* physical);
bool unmap(void* place, std::size_t bytes);

void fill(void* place, int value, std::size_t bytes);

}  // namespace simdevice::memory
