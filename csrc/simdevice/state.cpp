// Figures, records, refusals and memory: what the stand-ins share.
#include "simdevice.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

namespace simdevice {
namespace {

std::map<std::string, long long> read_figures() {
    std::map<std::string, long long> result;
    const char* text = std::getenv("ARCHWRIGHT_SIMULATED_FIGURES");
    std::string all = text ? text : "";
    for (std::size_t at = 0; at < all.size();) {
        const auto end = std::min(all.find(',', at), all.size());
        const auto equals = all.find('=', at);
        if (equals < end) result[all.substr(at, equals - at)] = std::atoll(all.c_str() + equals + 1);
        at = end + 1;
    }
    return result;
}

int open_log() {
    const char* folder = std::getenv("ARCHWRIGHT_SIMULATION_LOG");
    if (!folder || !*folder) return -1;
    const auto path = std::string(folder) + "/" + std::to_string(getpid()) + ".jsonl";
    return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

struct Allocations {
    std::mutex mutex;
    std::map<std::uintptr_t, std::size_t> blocks;
    std::map<std::uintptr_t, std::size_t> entered;
    std::size_t used = 0;
};

// Never destroyed: libraries free memory in their own destructors.
Allocations& allocations() {
    static auto* instance = new Allocations;
    return *instance;
}

}  // namespace

bool present() {
    static const bool is = [] {
        const char* name = std::getenv("ARCHWRIGHT_SIMULATED_DEVICE");
        return name && *name && figure("sms") > 0;
    }();
    return is;
}

long long figure(const char* name) {
    static const auto* figures = new std::map<std::string, long long>(read_figures());
    const auto found = figures->find(name);
    return found == figures->end() ? 0 : found->second;
}

const std::string& device_name() {
    static const auto* name = new std::string([] {
        const char* title = std::getenv("ARCHWRIGHT_SIMULATED_TITLE");
        return std::string(title ? title : "?") + " (simulated by Archwright)";
    }());
    return *name;
}

void record(const char* event, const std::string& details) {
    static int log = -1;
    static pid_t owner = 0;  // a fork writes a log of its own
    if (owner != getpid()) {
        owner = getpid();
        log = open_log();
    }
    if (log < 0) return;
    const auto line = std::string("{\"event\": \"") + event + "\"" + (details.empty() ? "" : ", " + details) + "}\n";
    if (write(log, line.data(), line.size()) < 0) return;  // a full disk: the program matters more than its log
}

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const unsigned char c : text) {
        char escaped[8];
        if (c < 0x20 || c == '"' || c == '\\') {
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            result += escaped;
        } else {
            result += static_cast<char>(c);
        }
    }
    return result + "\"";
}

void refuse(const char* function) {
    record("refused", "\"function\": " + quoted(function));
    std::fprintf(stderr,
                 "AW704: call outside the simulated device's scope\n"
                 "  found:  %s\n"
                 "  needed: a function that the simulated device implements\n"
                 "  why:    a made-up result would be silently wrong\n"
                 "  fix:    run it on a real device, or report which program needs it\n",
                 function);
    std::abort();
}

bool launchable(unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                std::size_t shared) {
    const auto threads = static_cast<unsigned long long>(block_x) * block_y * block_z;
    return threads > 0 && threads <= static_cast<unsigned long long>(figure("threads_per_block")) &&
           block_z <= figure("block_z") && grid_x > 0 && grid_x <= figure("grid_x") && grid_y > 0 &&
           grid_y <= figure("grid_yz") && grid_z > 0 && grid_z <= figure("grid_yz") &&
           shared <= static_cast<std::size_t>(figure("shared_per_block_optin"));
}

void* handle() {
    static std::atomic<std::uintptr_t> next{0x1000};
    return reinterpret_cast<void*>(next += 16);
}

namespace memory {

void* allocate(std::size_t bytes) {
    auto& all = allocations();
    const std::lock_guard lock(all.mutex);
    const auto size = (bytes ? bytes : 1) + 511 & ~std::size_t{511};
    if (all.used + size > static_cast<std::size_t>(figure("memory_bytes"))) {
        record("out of memory", "\"bytes\": " + std::to_string(bytes));
        return nullptr;
    }
    void* place = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return nullptr;
    all.blocks[reinterpret_cast<std::uintptr_t>(place)] = size;
    all.used += size;
    return place;
}

bool release(void* pointer) {
    auto& all = allocations();
    const std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == all.blocks.end()) return false;
    munmap(pointer, found->second);
    all.used -= found->second;
    all.blocks.erase(found);
    return true;
}

bool find(const void* pointer, void** base, std::size_t* bytes) {
    auto& all = allocations();
    const std::lock_guard lock(all.mutex);
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    for (const auto* blocks : {&all.blocks, &all.entered}) {
        auto after = blocks->upper_bound(address);
        if (after == blocks->begin() || address >= std::prev(after)->first + std::prev(after)->second) continue;
        --after;
        if (base) *base = reinterpret_cast<void*>(after->first);
        if (bytes) *bytes = after->second;
        return true;
    }
    return false;
}

void enter(void* place, std::size_t bytes) {
    auto& all = allocations();
    const std::lock_guard lock(all.mutex);
    all.entered[reinterpret_cast<std::uintptr_t>(place)] = bytes;
    all.used += bytes;
}

void leave(void* place, std::size_t bytes) {
    auto& all = allocations();
    const std::lock_guard lock(all.mutex);
    const auto begin = reinterpret_cast<std::uintptr_t>(place);
    for (auto one = all.entered.lower_bound(begin); one != all.entered.end() && one->first < begin + bytes;) {
        all.used -= one->second;
        one = all.entered.erase(one);
    }
}

std::size_t in_use() {
    auto& all = allocations();
    const std::lock_guard lock(all.mutex);
    return all.used;
}

}  // namespace memory
}  // namespace simdevice

extern "C" __attribute__((visibility("default"), noreturn)) void simdevice_refuse(const char* function) {
    simdevice::refuse(function);
}
