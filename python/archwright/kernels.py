"""The device code of a wheel: every cubin and PTX of its members, and what each kernel takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .cce import AscendCode, ascend_libraries, carried_code, read_cce
from .cubin import Cubin, Kernel, ptx_arch, read_cubin
from .elf import CUDA, HIIPU, SECTION_PROGBITS, Damaged, Dynamic, Elf, embedded_elfs
from .fatbin import MAGIC, Entry, Kind, read_fatbin
from .ptxas import Key, Report

__all__ = [
    "Binary",
    "DeviceCode",
    "KernelFacts",
    "Ptx",
    "cubin_payloads",
    "has_host_code",
    "read_device_code",
]

#: e_machine of the processors that wheels are for
_PROCESSORS = {62: "x86_64", 183: "aarch64"}
_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_CONTAINER = re.compile(re.escape(MAGIC) + rb"\x01\x00\x10\x00")


@dataclass(frozen=True)
class KernelFacts:
    """One kernel for one architecture, as the cubin says; spills as the build's ptxas said (None: not known).

    `instructions` counts families of instructions; None when no disassembler looked at it.
    """

    member: str
    name: str
    arch: str
    toolkit: str
    registers: int
    stack: int
    local: int
    shared: int
    constants: dict[int, int]
    max_threads: int
    code: int
    spill_stores: int | None = None
    spill_loads: int | None = None
    losses: tuple[str, ...] = ()
    instructions: dict[str, int] | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.arch

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Ptx:
    member: str
    arch: str
    bytes: int


@dataclass(frozen=True)
class Binary:
    """One host library of the wheel: what its ELF file is for, and what it needs."""

    member: str
    processor: str
    dynamic: Dynamic


@dataclass(frozen=True)
class DeviceCode:
    """Everything found. `cubins` has (member, section, cubin, stored bytes, compression) for each, also those that
    hold no kernel; `ascend` is the device code for Ascend."""

    binaries: tuple[Binary, ...]
    cubins: tuple[tuple[str, str, Cubin, int, str], ...]
    ptx: tuple[Ptx, ...]
    kernels: tuple[KernelFacts, ...]
    ascend: tuple[AscendCode, ...] = ()

    @property
    def inventory(self) -> dict[str, list[str]]:
        """The entry symbols of Ascend device code by architecture (case G4)."""
        found: dict[str, set[str]] = {}
        for code in self.ascend:
            found.setdefault(code.arch, set()).update(kernel.name for kernel in code.kernels)
        return {arch: sorted(names) for arch, names in sorted(found.items())}

    @property
    def unknown(self) -> dict[str, list[str]]:
        """Host libraries that need libraries of CANN (those are the values) and carry device code in no known way."""
        carriers = {code.member for code in self.ascend}
        needs = {binary.member: ascend_libraries(binary.dynamic.needed) for binary in self.binaries}
        return {member: names for member, names in needs.items() if names and member not in carriers}

    def with_reports(self, reports: Mapping[Key, Report]) -> DeviceCode:
        """The same with the spills of `reports`. A report about other code than the cubin's is not taken."""
        return replace(self, kernels=tuple(_with_report(kernel, reports) for kernel in self.kernels))

    def with_record(self, recorded: Iterable[Mapping[str, Any]]) -> DeviceCode:
        """The same with what the build wrote into archwright.json: spills and instruction counts."""
        known: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for entry in recorded:
            known.setdefault(_code_of(entry), []).append(entry)
        return replace(self, kernels=tuple(_with_entry(kernel, known) for kernel in self.kernels))


def read_device_code(members: Mapping[str, bytes]) -> DeviceCode:
    """Read every member that is an ELF file, for a host or a device, a container or PTX.

    Raises Damaged, naming the member, for one that is not what it begins as.
    """
    binaries, cubins, ptx, ascend = [], [], [], []
    for name, data in members.items():
        try:
            elf = Elf(data) if data[:4] == b"\x7fELF" else None
            if elf and elf.machine == CUDA:
                cubins.append((name, "", read_cubin(data), len(data), ""))
                continue
            if elf and elf.machine == HIIPU:
                ascend.append(read_cce(data, name))
                continue
            if elf:
                ascend += carried_code(elf, name)
                binaries.append(Binary(name, _PROCESSORS.get(elf.machine, f"machine-{elf.machine}"), elf.dynamic()))
            elif name.endswith(".ptx") and data[:4] != MAGIC:
                ptx.append(Ptx(name, ptx_arch(data), len(data)))
            cubins += [(name, section, read_cubin(data), len(data), "") for section, data in _plain_cubins(elf)]
            for section, entry in _entries(data, elf):
                if entry.kind is Kind.PTX:
                    ptx.append(Ptx(name, ptx_arch(entry.payload), len(entry.payload)))
                else:
                    cubins.append((name, section, _cubin(entry), entry.stored, entry.compression))
        except Damaged as error:
            raise Damaged(f"{name}: {error}") from error
    kernels = [_facts(member, cubin, kernel) for member, _, cubin, _, _ in cubins for kernel in cubin.kernels]
    kernels.sort(key=lambda kernel: (kernel.member, kernel.name, kernel.arch))
    return DeviceCode(tuple(binaries), tuple(cubins), tuple(ptx), tuple(kernels), tuple(ascend))


def has_host_code(members: Mapping[str, bytes]) -> bool:
    """Whether any member is a binary for the host: only such a wheel is bound to a platform."""
    devices = [machine.to_bytes(2, "little") for machine in (CUDA, HIIPU)]
    return any(data[:4] == b"\x7fELF" and data[18:20] not in devices for data in members.values())


def cubin_payloads(members: Mapping[str, bytes]) -> Iterator[bytes | memoryview]:
    """The bytes of every cubin in `members`, decompressed. Raises Damaged."""
    for data in members.values():
        elf = Elf(data) if data[:4] == b"\x7fELF" else None
        if elf and elf.machine == CUDA:
            yield data
        else:
            yield from (cubin for _, cubin in _plain_cubins(elf))
            yield from (entry.payload for _, entry in _entries(data, elf) if entry.kind is Kind.CUBIN)


def _entries(data: bytes, elf: Elf | None) -> Iterator[tuple[str, Entry]]:
    """(section, entry) of a file that is a container, or of a host library's sections for device code.

    Containers that hide in other sections are an error.
    """
    if elf is None:
        if data[:4] == MAGIC:
            yield from (("", entry) for entry in read_fatbin(data))
        return
    for section in elf.sections:
        content = elf.bytes_of(section)
        if section.name in _SECTIONS:
            yield from ((section.name, entry) for entry in read_fatbin(content))
        elif section.type == SECTION_PROGBITS and (hidden := _CONTAINER.search(content)):
            raise Damaged(f"device code in section {section.name} at {hidden.start():#x}, where nvcc puts none")


def _plain_cubins(elf: Elf | None) -> Iterator[tuple[str, memoryview]]:
    for section in elf.sections if elf else ():
        if section.type == SECTION_PROGBITS and section.name.startswith((".rodata", ".data")):
            yield from ((section.name, data) for data in embedded_elfs(elf.bytes_of(section), CUDA))  # type: ignore[union-attr]


def _cubin(entry: Entry) -> Cubin:
    cubin = read_cubin(entry.payload)
    if f"sm_{entry.number}" != cubin.arch.rstrip("af"):
        raise Damaged(f"a container that says {entry.number} around a cubin for {cubin.arch}")
    return cubin


def _facts(member: str, cubin: Cubin, kernel: Kernel) -> KernelFacts:
    return KernelFacts(member=member, arch=cubin.arch, toolkit=cubin.toolkit, **asdict(kernel))


def _with_report(kernel: KernelFacts, reports: Mapping[Key, Report]) -> KernelFacts:
    report = reports.get((*kernel.key, kernel.registers, kernel.stack))
    if report is None:
        return kernel
    return replace(kernel, spill_stores=report.spill_stores, spill_loads=report.spill_loads, losses=report.losses)


def _code_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """What a kernel's name and its code's size and resources say; several kernels of TileLang may share it."""
    return tuple(str(entry.get(name)) for name in ("name", "arch", "registers", "stack", "code"))


def _with_entry(kernel: KernelFacts, known: Mapping[tuple[str, ...], list[Mapping[str, Any]]]) -> KernelFacts:
    """Anybody may have written the record: what is not of the right kind counts as not recorded."""
    entries = known.get(_code_of(vars(kernel)), [])
    if not entries:
        return kernel
    stores, loads = (
        max((value for entry in entries if isinstance(value := entry.get(f"spill_{what}"), int)), default=None)
        for what in ("stores", "loads")
    )
    losses, families = entries[0].get("losses"), entries[0].get("instructions")
    return replace(
        kernel,
        spill_stores=stores,
        spill_loads=loads,
        losses=tuple(map(str, losses)) if isinstance(losses, list) else (),
        instructions={str(k): v for k, v in families.items() if isinstance(v, int)}
        if isinstance(families, dict)
        else None,
    )
