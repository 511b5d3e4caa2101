"""What a cubin says of itself: exact architecture, compiler, and the resources of each kernel.

A cubin is an ELF file. Kernels are functions whose `st_other` has bit 0x10; `.nv.info` holds attributes for symbols
and `.nv.info.<kernel>` those of one kernel; `.nv.shared.<kernel>` is as large as its shared memory, and so on. None of
it is documented: the tests compare every figure with cuobjdump's on real wheels (docs/inspection.md).
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .elf import CUDA, RELOCATABLE, Damaged, Elf

__all__ = ["Cubin", "Kernel", "ptx_arch", "read_cubin"]

_REGISTERS, _FRAME = 0x2F, 0x11
_MAX_THREADS, _REQUIRED_THREADS = 0x05, 0x10
_ENTRY = 0x10  # st_other
_ABI = 8  # EI_ABIVERSION of CUDA 13: the architecture number lies in bits 8 to 15 of e_flags


@dataclass(frozen=True, slots=True)
class Kernel:
    """Resources of one kernel. Registers per thread, threads per block, everything else in bytes.

    `stack` is the frame that cuobjdump calls STACK; `constants` maps bank to size, parameters in bank 0 included.
    `max_threads` is 0 where the source does not bound them.
    """

    name: str
    registers: int
    stack: int
    local: int
    shared: int
    constants: dict[int, int]
    max_threads: int
    code: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """`arch` has its suffix (`sm_100a`); `toolkit` is ptxas's release (`13.2.86`)."""

    arch: str
    toolkit: str
    notes: tuple[str, ...]
    relocatable: bool
    kernels: tuple[Kernel, ...]


@dataclass(slots=True)
class _Found:
    """What the sections of one kernel say, while they are collected."""

    code: int = 0
    shared: int = 0
    local: int = 0
    max_threads: int = 0
    constants: dict[int, int] = field(default_factory=dict)


def read_cubin(data: bytes | memoryview) -> Cubin:
    """Read one cubin. Raises Damaged when it is not one, or not one of CUDA 13."""
    elf = Elf(data)
    if elf.machine != CUDA:
        raise Damaged(f"an ELF file for machine {elf.machine}, not a cubin")
    if elf.abi_version != _ABI:
        raise Damaged(f"a cubin with ABI version {elf.abi_version}; known is {_ABI} (CUDA 13)")
    arch, toolkit, notes = _compiler(elf)
    registers, frames, found = _attributes(elf)
    kernels: dict[str, Kernel] = {}
    for index, symbol in enumerate(elf.symbols()):
        if symbol.kind == 2 and symbol.other & _ENTRY:
            if symbol.name in kernels:
                raise Damaged(f"two kernels with the name {symbol.name[:80]}")
            this = found[symbol.name]
            kernels[symbol.name] = Kernel(
                name=symbol.name,
                registers=registers.get(index, 0),
                stack=frames.get(index, 0),
                local=this.local,
                shared=this.shared,
                constants=dict(sorted(this.constants.items())),
                max_threads=this.max_threads,
                code=this.code,
            )
    return Cubin(arch, toolkit, notes, elf.type == RELOCATABLE, tuple(kernels[name] for name in sorted(kernels)))


def _compiler(elf: Elf) -> tuple[str, str, tuple[str, ...]]:
    """Architecture, release and words of the compiler. The suffix is only in the recorded ptxas options."""
    number = elf.flags >> 8 & 0xFF
    words: list[str] = []
    for section, _, _, description in elf.notes():
        if section == ".note.nv.tkinfo":
            texts = bytes(description).decode("utf-8", "backslashreplace").split("\0")
            words += [text.strip() for text in texts if len(text.strip()) > 3 and text.isprintable()]
    text = " ".join(words)
    arch = re.search(r"-arch[ =](sm_\d+[af]?)\b", text)
    release = re.search(r"\bV(\d+\.\d+\.\d+)\b", text)
    if arch is None or release is None:
        raise Damaged("a cubin without the note that names its architecture and compiler (.note.nv.tkinfo)")
    if re.sub(r"\D", "", arch[1]) != str(number):
        raise Damaged(f"a cubin compiled for {arch[1]} whose header says {number}")
    return arch[1], release[1], tuple(words)


def _attributes(elf: Elf) -> tuple[dict[int, int], dict[int, int], defaultdict[str, _Found]]:
    """Registers and frames by symbol index, and what belongs to a kernel by its name."""
    registers: dict[int, int] = {}
    frames: dict[int, int] = {}
    found: defaultdict[str, _Found] = defaultdict(_Found)
    for section in elf.sections:
        name = section.name
        if name == ".nv.info":
            for attribute, value in _records(elf.bytes_of(section)):
                if attribute in (_REGISTERS, _FRAME) and len(value) >= 8:
                    symbol, amount = struct.unpack_from("<II", value)
                    (registers if attribute == _REGISTERS else frames)[symbol] = amount
        elif name.startswith(".nv.info."):
            for attribute, value in _records(elf.bytes_of(section)):
                if attribute in (_MAX_THREADS, _REQUIRED_THREADS) and len(value) >= 12:
                    x, y, z = struct.unpack_from("<III", value)
                    found[name[9:]].max_threads = x * y * z
        elif name.startswith(".text."):
            found[name[6:]].code = section.size
        elif name.startswith(".nv.shared."):
            found[name[11:]].shared = section.size
        elif name.startswith(".nv.local."):
            found[name[10:]].local = section.size
        elif bank := re.match(r"\.nv\.constant(\d{1,2})\.", name):
            found[name[bank.end() :]].constants[int(bank[1])] = section.size
    return registers, frames, found


def _records(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(attribute, value) of each record: format 4 has a size and bytes, the others two bytes in place of the size."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form != 4:
            continue
        if at + size > len(content):
            raise Damaged(f"an attribute at {at:#x} ends after its section ({len(content):#x} bytes)")
        yield attribute, content[at : at + size]
        at += size


def ptx_arch(text: bytes | memoryview) -> str:
    """The `.target` of a PTX text, as an architecture name with its suffix. Raises Damaged when it names none."""
    if found := re.search(rb"^[ \t]*\.target[ \t]+(sm_\d+[af]?)\b", bytes(text), re.M):
        return found[1].decode()
    raise Damaged("a PTX text without .target")
