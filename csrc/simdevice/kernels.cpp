#include "kernels.h"

#include <mutex>
#include <unordered_map>

namespace simdevice {
namespace {

struct Known {
    std::mutex mutex;
    std::unordered_map<const void*, Kernel*> kernels;
};

Known& known() {
    static auto* instance = new Known;
    return *instance;
}

}  // namespace

Kernel* kernel_of(const void* handle) {
    auto& all = known();
    const std::lock_guard lock(all.mutex);
    auto& kernel = all.kernels[handle];
    if (!kernel) kernel = new Kernel{.loaded = false};
    return kernel;
}

void know_kernel(const void* handle, Kernel* kernel) {
    auto& all = known();
    const std::lock_guard lock(all.mutex);
    all.kernels[handle] = kernel;
}

bool launch_kernel(const void* handle, Launch launch, const void* stream) {
    auto* kernel = kernel_of(handle);
    const auto allowed = kernel->shared ? kernel->shared : figure("shared_per_block");
    const auto left = figure(kernel->shared ? "shared_per_block_optin" : "shared_per_block");
    const auto limit = std::min<long long>(allowed, left - static_cast<long long>(kernel->fixed));
    launch.nonportable = kernel->nonportable;
    const auto what = "\"kernel\": " + quoted(kernel->name.empty() ? "?" : kernel->name) + ", " + described(launch) +
                      (kernel->loaded ? "" : ", \"registered\": true");
    if (const char* problem = launch_problem(launch, limit)) {
        record("invalid launch", what + ", \"problem\": " + quoted(problem));
        return false;
    }
    submit(stream, [what] { record("launch", what); });
    return true;
}

bool allow_shared(Kernel* kernel, int bytes) {
    if (bytes < 0 || bytes > figure("shared_per_block_optin")) return false;
    kernel->shared = bytes;
    return true;
}

Image* load_recorded(const void* data, std::size_t size, const std::string& from) {
    auto* image = load_image(data, size);
    if (!image) {
        record("invalid image", "\"from\": " + quoted(from));
        return nullptr;
    }
    std::string names;
    for (auto* kernel : image->kernels) {
        names += (names.empty() ? "" : ", ") + quoted(kernel->name);
        know_kernel(kernel, kernel);
    }
    record("load", "\"from\": " + quoted(from) + ", \"kernels\": [" + names + "]");
    return image;
}

Kernel* kernel_named(Image* image, const std::string& name) {
    for (auto* kernel : image->kernels)
        if (kernel->name == name) return kernel;
    if (!image->opaque) return nullptr;
    auto* kernel = image->kernels.emplace_back(new Kernel{.name = name});
    know_kernel(kernel, kernel);
    return kernel;
}

int registers_of(const Kernel& kernel) {
    return kernel.registers ? kernel.registers
                            : static_cast<int>(figure("registers_per_sm") / figure("threads_per_sm"));
}

int blocks_per_sm(const Kernel& kernel, int threads, std::size_t dynamic) {
    return blocks_per_sm(threads, dynamic + kernel.fixed, registers_of(kernel));
}

int active_clusters(const Kernel& kernel, const Launch& launch) {
    const auto& block = launch.block;
    const auto& size = launch.cluster;
    const int blocks = blocks_per_sm(kernel, static_cast<int>(block[0] * block[1] * block[2]), launch.shared);
    return static_cast<int>(blocks * figure("sms") / (size[0] * size[1] * size[2]));
}

}  // namespace simdevice
