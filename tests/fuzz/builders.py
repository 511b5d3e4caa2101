"""ELF files, cubins and containers of device code made by hand, for tests without CUDA.

Each has only what the readers look at, in the layout that nvcc 13.2 writes (docs/inspection.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NULL, PROGBITS, SYMTAB, STRTAB, DYNAMIC, NOTE, NOBITS, VERNEED = 0, 1, 2, 3, 6, 7, 8, 0x6FFFFFFE
LZ4, ZSTD = 0x2000, 0x8000


@dataclass
class Part:
    """A section to be written; `size` makes the header say another one than the content has."""

    name: str
    type: int
    content: bytes = b""
    link: int = 0
    size: int | None = None


def elf(parts: Iterable[Part], *, machine: int = 62, kind: int = 3, flags: int = 0, abi: int = 0) -> bytes:
    """An ELF file with section 0, the section of names (1), then `parts` from 2 on, and the headers at the end."""
    sections = [Part("", NULL), Part(".shstrtab", STRTAB), *parts]
    names = bytearray(b"\0")
    at = [0] * len(sections)
    for index, part in enumerate(sections[1:], 1):
        at[index] = len(names)
        names += part.name.encode() + b"\0"
    sections[1].content = bytes(names)
    body, headers = bytearray(64), bytearray()
    for index, part in enumerate(sections):
        body += bytes(-len(body) % 8)
        size = len(part.content) if part.size is None else part.size
        offset = len(body) if index else 0
        entry = 24 if part.type == SYMTAB else 16 if part.type == DYNAMIC else 0
        headers += struct.pack("<IIQQQQIIQQ", at[index], part.type, 0, 0, offset, size, part.link, 0, 1, entry)
        body += part.content
    body += bytes(-len(body) % 8)
    body[:64] = struct.pack(
        "<6sBBB7xHHIQQQIHHHHHH",
        *(b"\x7fELF\x02\x01", 1, 0, abi, kind, machine, 1, 0, 0, len(body), flags, 64, 0, 0, 64, len(sections), 1),
    )
    return bytes(body + headers)


def strings(*texts: str) -> tuple[bytes, dict[str, int]]:
    """A string section, and where each text is in it."""
    content, places = bytearray(b"\0"), {}
    for text in texts:
        places[text] = len(content)
        content += text.encode() + b"\0"
    return bytes(content), places


def library(
    needed: Iterable[str] = (),
    run_paths: Iterable[str] = (),
    versions: Mapping[str, Iterable[str]] | None = None,
    parts: Iterable[Part] = (),
) -> bytes:
    """A shared library with a dynamic section (2), its strings (3), its needed versions (4), and `parts` (from 5)."""
    wanted = {file: list(names) for file, names in (versions or {}).items()}
    content, at = strings(*needed, *run_paths, *wanted, *(name for names in wanted.values() for name in names))
    rows = [(1, at[name]) for name in needed] + [(29, at[path]) for path in run_paths] + [(0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *row) for row in rows)
    needs = b""
    for left, (file, names) in zip(range(len(wanted) - 1, -1, -1), wanted.items(), strict=True):
        following = 16 * (1 + len(names)) if left else 0
        needs += struct.pack("<HHIII", 1, len(names), at[file], 16, following)
        for index, name in enumerate(names):
            needs += struct.pack("<IHHII", 0, 0, 2, at[name], 16 if index < len(names) - 1 else 0)
    fixed = [Part(".dynamic", DYNAMIC, dynamic, 3), Part(".dynstr", STRTAB, content)]
    return elf([*fixed, Part(".gnu.version_r", VERNEED, needs, 3), *parts])


@dataclass(frozen=True)
class FakeKernel:
    name: str
    registers: int = 32
    stack: int = 0
    local: int = 0
    shared: int = 0
    constants: Mapping[int, int] = field(default_factory=lambda: {0: 908})
    max_threads: tuple[int, int, int] | None = None
    code: int = 128


def attribute(number: int, *values: int) -> bytes:
    return struct.pack("<BBH", 4, number, 4 * len(values)) + struct.pack(f"<{len(values)}I", *values)


def cubin(
    kernels: Iterable[FakeKernel] = (FakeKernel("_Z1kv"),),
    *,
    arch: str = "sm_100a",
    release: str = "13.2.86",
    options: str = "-m 64",
    number: int | None = None,
    kind: int = 2,
    abi: int = 8,
    parts: Iterable[Part] = (),
) -> bytes:
    """Sections: 2 names of symbols, 3 symbols, 4 note, 5 .nv.info, then those of each kernel, then `parts`."""
    kernels = list(kernels)
    words = ["", "ptxas", f"Cuda compilation tools, release 13.2, V{release}", f"-arch {arch} {options}"]
    text = struct.pack("<6I", 2, 0, 1, 7, 54, 96) + "\0".join(words).encode() + b"\0"
    note = struct.pack("<III", 12, len(text), 2000) + b"NVIDIA Corp\0" + text + bytes(-len(text) % 4)
    names, at = strings("helper", *(kernel.name for kernel in kernels))
    # symbol 0 is empty, 1 a device function, kernels follow
    symbols = bytes(24) + struct.pack("<IBBHQQ", at["helper"], 2, 0, 0, 0, 64)
    info = attribute(0x2F, 1, 255)
    rest: list[Part] = []
    for index, kernel in enumerate(kernels, 2):
        symbols += struct.pack("<IBBHQQ", at[kernel.name], 0x12, 0x10, 0, 0, kernel.code)
        info += attribute(0x2F, index, kernel.registers) + attribute(0x11, index, kernel.stack)
        bound = attribute(0x05, *kernel.max_threads) if kernel.max_threads else b""
        # the first record has a value in place of a size, and no bytes
        rest.append(Part(f".nv.info.{kernel.name}", 0x70000000, struct.pack("<BBH", 3, 0x1B, 0xFF) + bound))
        rest.append(Part(f".text.{kernel.name}", PROGBITS, bytes(kernel.code)))
        if kernel.shared:
            rest.append(Part(f".nv.shared.{kernel.name}", NOBITS, size=kernel.shared))
        if kernel.local:
            rest.append(Part(f".nv.local.{kernel.name}", NOBITS, size=kernel.local))
        rest += [Part(f".nv.constant{bank}.{kernel.name}", PROGBITS, bytes(n)) for bank, n in kernel.constants.items()]
    fixed = [Part(".strtab", STRTAB, names), Part(".symtab", SYMTAB, symbols, 2), Part(".note.nv.tkinfo", NOTE, note)]
    number = int(arch.removeprefix("sm_").rstrip("af")) if number is None else number
    everything = [*fixed, Part(".nv.info", 0x70000000, info), *rest, *parts]
    return elf(everything, machine=190, kind=kind, flags=number << 8 | 2, abi=abi)


#: e_machine of Ascend device code.
HIIPU = 0x1029


@dataclass(frozen=True)
class FakeEntry:
    """A function of Ascend device code: `binding` 1 is global; `arguments` in bytes and `kernel_type` when recorded."""

    name: str
    code: int = 128
    arguments: int | None = 16
    kernel_type: int | None = None
    binding: int = 1
    other: int = 0
    kind: int = 2


def cce(
    entries: Iterable[FakeEntry] = (FakeEntry("run"),),
    *,
    kind: int = 2,
    flags: int = 0x990000,
    section: int = 2,
    parts: Iterable[Part] = (),
) -> bytes:
    """A CCE ELF file as bisheng writes it. Sections: 2 code, 3 sizes of arguments, 4 comment, 5 names, 6 symbols."""
    entries = list(entries)
    names, at = strings(*(entry.name for entry in entries), *(f"{entry.name}__" for entry in entries))
    symbols, sizes, meta, where = bytearray(24), bytearray(), [], 0
    for entry in entries:
        info = entry.binding << 4 | entry.kind
        symbols += struct.pack("<IBBHQQ", at[entry.name], info, entry.other, section, where, entry.code)
        where += entry.code
        if entry.arguments is not None:
            symbols += struct.pack("<IBBHQQ", at[f"{entry.name}__"], 0x21, 0, 3, len(sizes), 4)
            sizes += struct.pack("<I", entry.arguments)
        if entry.kernel_type is not None:
            # a record of another kind first, as torch_npu's own code has
            records = struct.pack("<HHIHHI", 12, 4, 1, 1, 4, entry.kernel_type)
            meta.append(Part(f".ascend.meta.{entry.name}", NOTE, records))
    fixed = [
        Part(".text", PROGBITS, bytes(where)),
        Part("__CCE_KernelArgSize", PROGBITS, bytes(sizes)),
        Part(".comment", PROGBITS, b"Linker: LLD 15.0.5\0"),
        Part(".strtab", STRTAB, names),
        Part(".symtab", SYMTAB, bytes(symbols), 5),
    ]
    return elf([*fixed, *meta, *parts], machine=HIIPU, kind=kind, flags=flags)


def ascend_kernels(*entries: tuple[int, bytes], version: int = 1, count: int | None = None) -> bytes:
    """The content of a section `.ascend.kernel.<SoC>.<library>`: (kind, CCE ELF file) of each entry."""
    content = struct.pack("<II", version, len(entries) if count is None else count)
    for kind, data in entries:
        padded = data + bytes(-len(data) % 4)
        content += struct.pack("<III", kind, len(padded), len(data)) + padded
    return content


def entry(
    payload: bytes,
    *,
    kind: int = 2,
    number: int = 100,
    flags: int = 0x11,
    compressed: int = 0,
    size: int = 0,
    header: int = 64,
    padded: int | None = None,
) -> bytes:
    """One entry of a container; every field may lie."""
    payload += bytes(-len(payload) % 8)
    padded = len(payload) if padded is None else padded
    head = struct.pack("<HHIQIII", kind, 0x101, header, padded, compressed, 0, 0) + struct.pack("<I", number)
    return head + struct.pack("<8xQ8xQ", flags, size) + bytes(max(0, header - 64)) + payload


def packed(payload: bytes, compression: str, **fields: int) -> bytes:
    """An entry compressed for real by `lz4` or `zstd`."""
    if compression == "lz4":
        from lz4 import block

        stored = block.compress(payload, store_size=False)
    else:
        import zstandard

        stored = zstandard.ZstdCompressor(level=3).compress(payload)
    flag = LZ4 if compression == "lz4" else ZSTD
    defaults = {"flags": 0x11 | flag, "compressed": len(stored), "size": len(payload)}
    return entry(stored, **{**defaults, **fields})


def container(*entries: bytes, version: int = 1, header: int = 16, size: int | None = None) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, version, header, len(body) if size is None else size) + body


def ptx(arch: str = "sm_100a", body: str = "") -> bytes:
    return f"//\n// made by hand\n.version 9.2\n.target {arch}\n.address_size 64\n{body}\n".encode()


def everything() -> dict[str, bytes]:
    """Small valid inputs of every kind: where mutations start from."""
    small = cubin([FakeKernel("_Z1kv", shared=64, max_threads=(256, 1, 1)), FakeKernel("_Z1gi", local=8)])
    both = container(entry(small), packed(small, "zstd"), packed(ptx(), "zstd", kind=1))
    versions = {"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.28"], "libstdc++.so.6": ["CXXABI_1.3"]}
    fatbin = Part(".nv_fatbin", PROGBITS, both)
    return {
        "cubin": small,
        "plain.fatbin": container(entry(small), entry(ptx(), kind=1)),
        "lz4.fatbin": container(packed(small, "lz4"), packed(ptx("sm_100f"), "lz4", kind=1)),
        "zstd.fatbin": both + bytes(8) + container(packed(small, "zstd")),
        "library.so": library(["libc.so.6", "libstdc++.so.6"], ["$ORIGIN"], versions, [fatbin]),
        "code.ptx": ptx(),
        "kernel.aibin": cce([FakeEntry("run_mix_aic", kernel_type=4), FakeEntry("run_mix_aiv"), FakeEntry("help")]),
        "ascend.so": library(
            ["libascendcl.so"],
            parts=[
                Part(".aicore_binary", PROGBITS, cce()),
                Part(".ascend.kernel.ascend950pr_9599.ops", PROGBITS, ascend_kernels((1, cce()), (0, cce()))),
            ],
        ),
    }
