"""Ascend device code: the ELF files that hold it, their entry symbols, and how host libraries carry them.

CANN documents none of it as a format. Every fact is taken from CANN's public sources or from device code that
torch_npu ships (docs/inspection.md names the place of each); what neither tells is *unknown* here.
"""

from __future__ import annotations

import fnmatch
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .elf import HIIPU, RELOCATABLE, SECTION_PROGBITS, Damaged, Elf, embedded_elfs
from .targets import target_table

__all__ = [
    "REL_SECTION",
    "UNKNOWN",
    "AscendCode",
    "AscendKernel",
    "ascend_libraries",
    "carried_code",
    "carries_code",
    "read_cce",
]

UNKNOWN = "unknown"

#: Sections of a host library in which bisheng puts device code: linked, and not linked yet.
REL_SECTION = "__aicore_rel_binary"
_SECTIONS = (".aicore_binary", REL_SECTION)
#: Section of a host library made by `ascendc_library`: `.ascend.kernel.<SoC>.<library>`
_KERNEL_SECTION = ".ascend.kernel."
#: The kinds of its entries, and the core that runs their code; 0 is a mix of both.
_ENTRY_CORES = {0: UNKNOWN, 1: "vector", 2: "cube"}

_META = ".ascend.meta."
_ARGUMENTS = "__CCE_KernelArgSize"
_KERNEL_TYPE = 1
_CORES = {
    1: "aicore",
    2: "cube",
    3: "vector",
    4: "mix, cube leads",
    5: "mix, vector leads",
    6: "cube",
    7: "vector",
}
_SUFFIXES = {"_mix_aic": "cube", "_mix_aiv": "vector"}

_OBJECT, _FUNCTION, _GLOBAL, _HIDDEN = 1, 2, 1, 2
_RESERVED = 0xFF00  # section indices from here on stand for no section

#: Libraries of CANN and torch_npu: who needs one may launch device code.
_LIBRARIES = ("libascend*.so*", "libtorch_npu.so", "libacl_*.so*", "libhccl.so", "libruntime.so")


@dataclass(frozen=True, slots=True)
class AscendKernel:
    """One entry symbol; `code` and `arguments` in bytes (None: the file does not say)."""

    name: str
    core: str
    code: int
    arguments: int | None


@dataclass(frozen=True, slots=True)
class AscendCode:
    """One CCE ELF file, or one that lies in `section` of the host library `member`.

    `arch` is the target table's name of the SoC that the section names. e_flags differ between generations of chips,
    but no public source says how: they are kept in `flags` and not interpreted.
    """

    member: str
    section: str
    arch: str
    soc: str
    flags: int
    relocatable: bool
    compilers: tuple[str, ...]
    kernels: tuple[AscendKernel, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "flags": f"{self.flags:#x}"}


def read_cce(
    data: bytes | memoryview, member: str, section: str = "", soc: str = "", core: str = UNKNOWN
) -> AscendCode:
    """Read one CCE ELF file. `core` is what its container says. Raises Damaged when it is not one, or not whole.

    Entry symbols are the functions that CANN's loader takes for kernels: global, not hidden. Where the file names
    arguments or metadata of some of them, the others are functions that those call.
    """
    elf = Elf(data)
    if elf.machine != HIIPU:
        raise Damaged(f"an ELF file for machine {elf.machine:#x}, not for Ascend ({HIIPU:#x})")
    meta = {s.name.removeprefix(_META): elf.bytes_of(s) for s in elf.sections if s.name.startswith(_META)}
    functions: dict[str, int] = {}
    arguments: dict[str, int] = {}
    for symbol in elf.symbols():
        if len(elf.sections) <= symbol.section < _RESERVED:
            raise Damaged(f"symbol {symbol.name[:80]} lies in section {symbol.section}, which does not exist")
        if symbol.kind == _OBJECT and symbol.name.endswith("__"):
            place = elf.sections[symbol.section] if symbol.section < _RESERVED else None
            if place is not None and place.name == _ARGUMENTS:
                arguments[symbol.name[:-2]] = _number(elf.bytes_of(place), symbol.value)
        elif (
            symbol.kind == _FUNCTION
            and symbol.binding == _GLOBAL
            and symbol.other & 3 != _HIDDEN
            and symbol.section
            and symbol.name
        ):
            if symbol.name in functions:
                raise Damaged(f"two entry symbols with the name {symbol.name[:80]}")
            functions[symbol.name] = symbol.size
    named = functions.keys() & (arguments.keys() | meta.keys()) or functions.keys()
    kernels = tuple(
        AscendKernel(name, _core(name, meta.get(name), core), functions[name], arguments.get(name))
        for name in sorted(named)
    )
    return AscendCode(
        member, section, _arch(soc), soc, elf.flags, elf.type == RELOCATABLE, tuple(_compilers(elf)), kernels
    )


def carried_code(elf: Elf, member: str) -> Iterator[AscendCode]:
    """The device code that the host library `elf` carries in one of the ways that are known.

    Raises Damaged where a section that is made for it holds anything else.
    """
    for section in elf.sections:
        if section.name in _SECTIONS:
            content = elf.bytes_of(section)
            found = list(embedded_elfs(content, HIIPU))
            if not found and bytes(content).strip(b"\0"):
                raise Damaged(f"section {section.name} holds no Ascend device code")
            yield from (read_cce(data, member, section.name) for data in found)
        elif section.name.startswith(_KERNEL_SECTION):
            soc = section.name.removeprefix(_KERNEL_SECTION).partition(".")[0]
            for core, data in _entries(elf.bytes_of(section), section.name):
                yield read_cce(data, member, section.name, soc, core)
        elif section.type == SECTION_PROGBITS and section.name.startswith((".rodata", ".data")):
            for data in embedded_elfs(elf.bytes_of(section), HIIPU):
                yield read_cce(data, member, section.name)


def carries_code(section: str) -> bool:
    """Whether a section of this name is made to hold Ascend device code."""
    return section in _SECTIONS or section.startswith(_KERNEL_SECTION)


def ascend_libraries(needed: tuple[str, ...]) -> list[str]:
    """Those of the `needed` libraries that belong to CANN or torch_npu."""
    return [name for name in needed if any(fnmatch.fnmatch(name, pattern) for pattern in _LIBRARIES)]


def _entries(content: memoryview, name: str) -> Iterator[tuple[str, memoryview]]:
    """(core, ELF file) of each entry: u32 version 1, u32 count; then u32 kind, u32 padded size, u32 size, bytes."""
    if len(content) < 8 or struct.unpack_from("<I", content)[0] != 1:
        raise Damaged(f"section {name} is not of version 1")
    (count,) = struct.unpack_from("<I", content, 4)
    at = 8
    for _ in range(count):
        if at + 12 > len(content):
            raise Damaged(f"section {name} ends before its entry at {at:#x}")
        kind, padded, size = struct.unpack_from("<III", content, at)
        if kind not in _ENTRY_CORES or size > padded or at + 12 + padded > len(content):
            raise Damaged(f"section {name}: entry at {at:#x} of kind {kind} with {size:#x} of {padded:#x} bytes")
        yield _ENTRY_CORES[kind], content[at + 12 : at + 12 + size]
        at += 12 + padded


def _arch(soc: str) -> str:
    """The architecture of a target's chips; any other SoC is one of its own."""
    target = target_table().of_soc(soc)
    return next(iter(target.devices)) if target else soc or UNKNOWN


def _core(name: str, meta: memoryview | None, container: str) -> str:
    """By the metadata, else by the suffix, which says what runs this half of a kernel, else by the container."""
    if meta is not None and (kind := _kernel_type(meta)) in _CORES:
        return _CORES[kind]
    return next((core for suffix, core in _SUFFIXES.items() if name.endswith(suffix)), container)


def _kernel_type(meta: memoryview) -> int:
    """The value of the kernel's type; 0 when there is none. Records: u16 type, u16 size, value.

    Like CANN's loader this stops at a record that does not fit: some kinds nest others in a way of their own.
    """
    at = 0
    while at + 4 <= len(meta):
        kind, size = struct.unpack_from("<HH", meta, at)
        if at + 4 + size > len(meta):
            break
        if kind == _KERNEL_TYPE and size == 4:
            return int(struct.unpack_from("<I", meta, at + 4)[0])
        at += 4 + size
    return 0


def _number(content: memoryview, at: int) -> int:
    if at + 4 > len(content):
        raise Damaged(f"the size of arguments at {at:#x} lies outside {_ARGUMENTS} ({len(content):#x} bytes)")
    return int(struct.unpack_from("<I", content, at)[0])


def _compilers(elf: Elf) -> Iterator[str]:
    if section := elf.find(".comment"):
        texts = bytes(elf.bytes_of(section)).decode("utf-8", "backslashreplace").split("\0")
        yield from (text for text in texts if text and text.isprintable())
