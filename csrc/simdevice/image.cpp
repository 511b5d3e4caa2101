#include "image.h"

#include <elf.h>

#include <cstring>

namespace simdevice {
namespace {

constexpr unsigned kCuda = 190;           // e_machine
constexpr unsigned kEntry = 0x10;         // st_other of a kernel
constexpr unsigned kContainer = 0xBA55ED50;

}  // namespace

Image* load_image(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    unsigned magic = 0;
    if (size && size < sizeof(Elf64_Ehdr)) return nullptr;
    std::memcpy(&magic, bytes, sizeof magic);
    if (magic == kContainer) {
        auto* image = new Image;
        image->opaque = true;
        return image;
    }
    Elf64_Ehdr head;
    std::memcpy(&head, bytes, sizeof head);
    if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_machine != kCuda) return nullptr;
    const auto fits = [&](std::size_t at, std::size_t length) { return !size || (at <= size && length <= size - at); };
    if (!fits(head.e_shoff, std::size_t{head.e_shnum} * sizeof(Elf64_Shdr))) return nullptr;
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes + head.e_shoff);
    auto* image = new Image;
    for (unsigned i = 0; i < head.e_shnum; ++i) {
        const auto& section = sections[i];
        if (section.sh_type != SHT_NOBITS && !fits(section.sh_offset, section.sh_size)) return nullptr;
        if (section.sh_type != SHT_SYMTAB || section.sh_link >= head.e_shnum) continue;
        const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes + section.sh_offset);
        const auto& strings = sections[section.sh_link];
        for (std::size_t s = 0; s < section.sh_size / sizeof(Elf64_Sym); ++s)
            if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC && symbols[s].st_other & kEntry &&
                symbols[s].st_name < strings.sh_size)
                image->kernels.push_back(
                    new Kernel{reinterpret_cast<const char*>(bytes + strings.sh_offset + symbols[s].st_name)});
    }
    return image;
}

}  // namespace simdevice
