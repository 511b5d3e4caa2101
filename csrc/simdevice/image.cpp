#include "image.h"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <map>

#include "simdevice.h"

namespace simdevice {
namespace {

constexpr unsigned kCuda = 190;    // e_machine
constexpr unsigned kEntry = 0x10;  // st_other of a kernel
constexpr unsigned kContainer = 0xBA55ED50;

/// The sections of a cubin, each of which lies inside the file when that file's size is known.
class Cubin {
   public:
    Cubin(const unsigned char* bytes, std::size_t size) : bytes_(bytes), size_(size) {
        std::memcpy(&head_, bytes, sizeof head_);
    }

    bool valid() const {
        if (std::memcmp(head_.e_ident, ELFMAG, SELFMAG) != 0 || head_.e_machine != kCuda) return false;
        if (!fits(head_.e_shoff, std::size_t{head_.e_shnum} * sizeof(Elf64_Shdr))) return false;
        for (unsigned i = 0; i < head_.e_shnum; ++i)
            if (section(i).sh_type != SHT_NOBITS && !fits(section(i).sh_offset, section(i).sh_size)) return false;
        return head_.e_shstrndx < head_.e_shnum;
    }
    unsigned count() const { return head_.e_shnum; }
    const Elf64_Shdr& section(unsigned i) const {
        return reinterpret_cast<const Elf64_Shdr*>(bytes_ + head_.e_shoff)[i];
    }
    /// A string of a string table; the tables of a cubin that is not damaged end with a zero.
    const char* string(unsigned table, std::size_t at) const {
        if (table >= count() || at >= section(table).sh_size) return "";
        return reinterpret_cast<const char*>(bytes_ + section(table).sh_offset + at);
    }
    const char* name(unsigned i) const { return string(head_.e_shstrndx, section(i).sh_name); }
    const unsigned char* bytes(unsigned i) const { return bytes_ + section(i).sh_offset; }

   private:
    bool fits(std::size_t at, std::size_t length) const {
        return !size_ || (at <= size_ && length <= size_ - at);
    }

    const unsigned char* bytes_;
    std::size_t size_;
    Elf64_Ehdr head_;
};

/// The registers of each kernel by the number of its symbol: in .nv.info, a list of entries of (format, attribute).
std::map<unsigned, int> read_registers(const Cubin& cubin, unsigned section) {
    constexpr unsigned char kSized = 4, kRegisters = 0x2F;
    std::map<unsigned, int> result;
    const auto* bytes = cubin.bytes(section);
    const std::size_t end = cubin.section(section).sh_size;
    for (std::size_t at = 0; at + 4 <= end;) {
        std::uint16_t length = 0;
        if (bytes[at] == kSized) std::memcpy(&length, bytes + at + 2, sizeof length);
        std::uint32_t entry[2];
        if (bytes[at + 1] == kRegisters && length >= sizeof entry && at + 4 + length <= end) {
            std::memcpy(entry, bytes + at + 4, sizeof entry);
            result[entry[0]] = static_cast<int>(entry[1]);
        }
        at += 4 + length;
    }
    return result;
}

/// Where the driver has its part at the beginning of shared memory, a kernel's section counts it.
std::size_t own_part(std::size_t size, bool with_reserved) {
    const auto reserved = static_cast<std::size_t>(figure("shared_reserved_per_block"));
    return with_reserved && size >= reserved ? size - reserved : size;
}

void read_kernels(const Cubin& cubin, Image& image) {
    std::map<std::string, unsigned> sections;
    for (unsigned i = 0; i < cubin.count(); ++i) sections[cubin.name(i)] = i;
    const auto info = sections.find(".nv.info");
    const auto registers = info == sections.end() ? std::map<unsigned, int>{} : read_registers(cubin, info->second);
    const auto table = sections.find(".symtab");
    if (table == sections.end()) return;
    const auto& symbols = cubin.section(table->second);
    for (unsigned s = 0; s < symbols.sh_size / sizeof(Elf64_Sym); ++s) {
        Elf64_Sym symbol;
        std::memcpy(&symbol, cubin.bytes(table->second) + s * sizeof symbol, sizeof symbol);
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !(symbol.st_other & kEntry)) continue;
        auto* kernel = new Kernel{.name = cubin.string(symbols.sh_link, symbol.st_name)};
        if (const auto found = registers.find(s); found != registers.end()) kernel->registers = found->second;
        if (const auto data = sections.find(".nv.shared." + kernel->name); data != sections.end())
            kernel->fixed = own_part(cubin.section(data->second).sh_size, sections.contains(".nv.shared.reserved.0"));
        image.kernels.push_back(kernel);
    }
}

}  // namespace

Image* load_image(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    unsigned magic = 0;
    if (size && size < sizeof(Elf64_Ehdr)) return nullptr;
    std::memcpy(&magic, bytes, sizeof magic);
    if (magic == kContainer) return new Image{.opaque = true, .kernels = {}};
    const Cubin cubin(bytes, size);
    if (!cubin.valid()) return nullptr;
    auto* image = new Image;
    read_kernels(cubin, *image);
    return image;
}

}  // namespace simdevice
