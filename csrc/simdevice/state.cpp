// Figures, records, refusals and launch limits: what the stand-ins share.
#include "simdevice.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
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

}  // namespace

bool present() {
    static const bool is = [] {
        const char* name = std::getenv("ARCHWRIGHT_SIMULATED_DEVICE");
        return name && *name && figure("sms") > 0;
    }();
    return is;
}

int device_count() {
    static const int count = [] {
        const char* text = std::getenv("ARCHWRIGHT_SIMULATED_DEVICE_COUNT");
        return text && std::atoi(text) > 0 ? std::atoi(text) : 1;
    }();
    return present() ? count : 0;
}

int& current_device() {
    thread_local int device = 0;
    return device;
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
    static auto* mutex = new std::mutex;
    const std::lock_guard lock(*mutex);
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

const char* launch_problem(const Launch& launch, long long shared_limit) {
    const auto dimension = [](unsigned value, const char* limit) { return value > 0 && value <= figure(limit); };
    const auto& [grid, block, cluster, shared, nonportable] = launch;
    if (!dimension(grid[0], "grid_x") || !dimension(grid[1], "grid_yz") || !dimension(grid[2], "grid_yz"))
        return "grid";
    if (!dimension(block[0], "threads_per_block") || !dimension(block[1], "threads_per_block") ||
        !dimension(block[2], "block_z") || 1ULL * block[0] * block[1] * block[2] > 1ULL * figure("threads_per_block"))
        return "block";
    const auto blocks = 1ULL * cluster[0] * cluster[1] * cluster[2];
    if (blocks > 1ULL * figure(nonportable ? "cluster_blocks_nonportable" : "cluster_blocks")) return "cluster";
    for (int i = 0; i < 3; ++i)
        if (cluster[i] == 0 || grid[i] % cluster[i]) return "cluster does not divide the grid";
    return shared > static_cast<std::size_t>(shared_limit) ? "dynamic shared memory" : nullptr;
}

std::string described(const Launch& launch) {
    const auto triple = [](const unsigned* v) {
        return "[" + std::to_string(v[0]) + ", " + std::to_string(v[1]) + ", " + std::to_string(v[2]) + "]";
    };
    return "\"grid\": " + triple(launch.grid) + ", \"block\": " + triple(launch.block) +
           ", \"cluster\": " + triple(launch.cluster) + ", \"shared\": " + std::to_string(launch.shared);
}

int blocks_per_sm(int threads, std::size_t shared, int registers) {
    if (threads <= 0 || threads > figure("threads_per_block")) return 0;
    const auto warp = figure("warp"), rounded = (threads + warp - 1) / warp * warp;
    const auto each = static_cast<long long>(shared) + figure("shared_reserved_per_block");
    const auto file = figure("registers_per_sm") / (rounded * std::max(registers, 1));
    return static_cast<int>(
        std::min({figure("threads_per_sm") / rounded, figure("blocks_per_sm"), figure("shared_per_sm") / each, file}));
}

void* handle() {
    static std::atomic<std::uintptr_t> next{0x1000};
    return reinterpret_cast<void*>(next += 16);
}

}  // namespace simdevice

extern "C" __attribute__((visibility("default"), noreturn)) void simdevice_refuse(const char* function) {
    simdevice::refuse(function);
}
