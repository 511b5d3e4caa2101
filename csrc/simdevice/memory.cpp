// Device memory, backed lazily by the host's: plain allocations, and handles that are mapped at reserved addresses.
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "simdevice.h"

namespace simdevice::memory {
namespace {

struct Memory {
    std::mutex mutex;
    std::map<std::uintptr_t, Block> blocks;
    std::map<std::uintptr_t, std::size_t> reserved;
    std::map<const Physical*, int> users;  // the handle itself and its mappings
    std::map<int, std::size_t> used;
};

// Never destroyed: libraries free memory in their own destructors.
Memory& state() {
    static auto* instance = new Memory;
    return *instance;
}

bool charge(Memory& all, int device, std::size_t size) {
    if (all.used[device] + size > static_cast<std::size_t>(figure("memory_bytes"))) {
        record("out of memory", "\"bytes\": " + std::to_string(size) + ", \"in use\": " +
                                    std::to_string(all.used[device]) + ", \"device\": " + std::to_string(device));
        return false;
    }
    all.used[device] += size;
    return true;
}

std::size_t rounded(std::size_t bytes, std::size_t unit) { return ((bytes ? bytes : 1) + unit - 1) / unit * unit; }

void* map_anonymous(std::size_t size, int protection) {
    void* place = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return place == MAP_FAILED ? nullptr : place;
}

void drop(Memory& all, Physical* physical) {
    if (--all.users[physical] > 0) return;
    all.users.erase(physical);
    if (!physical->imported && physical->device >= 0) all.used[physical->device] -= physical->size;
    close(physical->file);
    delete physical;
}

void* allocate_kind(std::size_t bytes, Kind kind, std::size_t unit) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto size = rounded(bytes, unit);
    const int device = current_device();
    if (kind == Kind::kDevice && !charge(all, device, size)) return nullptr;
    void* place = map_anonymous(size, PROT_READ | PROT_WRITE);
    if (place)
        all.blocks[reinterpret_cast<std::uintptr_t>(place)] = {reinterpret_cast<char*>(place), size, kind, device, {}};
    else if (kind == Kind::kDevice)
        all.used[device] -= size;
    return place;
}

}  // namespace

void* allocate(std::size_t bytes) { return allocate_kind(bytes, Kind::kDevice, 512); }

void* allocate_host(std::size_t bytes) { return allocate_kind(bytes, Kind::kHost, 4096); }

bool register_host(void* place, std::size_t bytes) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto at = reinterpret_cast<std::uintptr_t>(place);
    return all.blocks.try_emplace(at, Block{static_cast<char*>(place), bytes, Kind::kRegistered, current_device(), {}})
        .second;
}

bool release(void* place, Kind kind) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(reinterpret_cast<std::uintptr_t>(place));
    if (found == all.blocks.end() || found->second.kind != kind) return false;
    if (kind != Kind::kRegistered) munmap(place, found->second.size);
    if (kind == Kind::kDevice) all.used[found->second.device] -= found->second.size;
    all.blocks.erase(found);
    return true;
}

std::optional<Block> find(const void* place) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto address = reinterpret_cast<std::uintptr_t>(place);
    auto after = all.blocks.upper_bound(address);
    if (after == all.blocks.begin()) return {};
    --after;
    if (address >= after->first + after->second.size) return {};
    return after->second;
}

std::size_t in_use(int device) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    return all.used[device];
}

void* reserve(std::size_t bytes, std::size_t alignment) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    char* place = static_cast<char*>(map_anonymous(bytes + alignment, PROT_NONE));
    if (!place) return nullptr;
    const auto begin = rounded(reinterpret_cast<std::uintptr_t>(place), alignment);
    char* first = reinterpret_cast<char*>(begin);
    if (first > place) munmap(place, first - place);
    munmap(first + bytes, place + alignment - first);
    all.reserved[begin] = bytes;
    return first;
}

bool unreserve(void* place, std::size_t bytes) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto found = all.reserved.find(reinterpret_cast<std::uintptr_t>(place));
    if (found == all.reserved.end() || found->second != bytes) return false;
    munmap(place, bytes);
    all.reserved.erase(found);
    return true;
}

Physical* create(std::size_t bytes, int device) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    if (device >= 0 && !charge(all, device, bytes)) return nullptr;
    const int file = memfd_create("archwright-simulated", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
        if (file >= 0) close(file);
        if (device >= 0) all.used[device] -= bytes;
        return nullptr;
    }
    auto* result = new Physical{bytes, device, file, false};
    all.users[result] = 1;
    return result;
}

// Another process's memory: it does not count against this device.
Physical* adopt(int file, std::size_t bytes, int device) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    auto* result = new Physical{bytes, device, file, true};
    all.users[result] = 1;
    return result;
}

bool known(const Physical* physical) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    return all.users.contains(physical);
}

bool retain(Physical* physical) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    if (!all.users.contains(physical)) return false;
    ++all.users[physical];
    return true;
}

bool release(Physical* physical) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    if (!all.users.contains(physical)) return false;
    drop(all, physical);
    return true;
}

bool map(void* place, std::size_t bytes, std::size_t offset, Physical* physical) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto at = reinterpret_cast<std::uintptr_t>(place);
    auto range = all.reserved.upper_bound(at);
    const bool inside = range != all.reserved.begin() && (--range, at + bytes <= range->first + range->second);
    if (!inside || !all.users.contains(physical) || offset + bytes > physical->size || all.blocks.contains(at))
        return false;
    if (mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, physical->file,
             static_cast<off_t>(offset)) == MAP_FAILED)
        return false;
    const auto kind = physical->device < 0 ? Kind::kMappedHost : Kind::kMapped;
    all.blocks[at] = {static_cast<char*>(place), bytes, kind, physical->device, physical};
    ++all.users[physical];
    return true;
}

bool unmap(void* place, std::size_t bytes) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    const auto begin = reinterpret_cast<std::uintptr_t>(place), end = begin + bytes;
    auto block = all.blocks.lower_bound(begin);
    if (block == all.blocks.end() || block->first >= end) return false;
    while (block != all.blocks.end() && block->first < end) {
        if (!block->second.mapped()) return false;
        drop(all, block->second.physical);
        block = all.blocks.erase(block);
    }
    mmap(place, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return true;
}

// Zeros are given by dropping the pages, so that a tensor of many gigabytes costs nothing.
void fill(void* place, int value, std::size_t bytes) {
    const auto page = static_cast<std::uintptr_t>(getpagesize());
    const auto begin = reinterpret_cast<std::uintptr_t>(place), end = begin + bytes;
    const auto first = rounded(begin, page), last = end / page * page;
    const auto block = find(place);
    if (value != 0 || first >= last || !block || !(block->on_device() || block->mapped())) {
        std::fill_n(static_cast<unsigned char*>(place), bytes, static_cast<unsigned char>(value));
        return;
    }
    std::fill_n(static_cast<unsigned char*>(place), first - begin, 0);
    // pages of a file are dropped with their content, for all of its mappings
    madvise(reinterpret_cast<void*>(first), last - first, block->mapped() ? MADV_REMOVE : MADV_DONTNEED);
    std::fill_n(reinterpret_cast<unsigned char*>(last), end - last, 0);
}

}  // namespace simdevice::memory
