"""A small reader of 64-bit little-endian ELF files: host libraries and cubins, hostile ones included.

pyelftools is the reference that the tests compare this with. It is not used here because it trusts sizes (a section of
type NOBITS may claim terabytes) and because opening the 29 cubins of one wheel with it takes longer than cuobjdump
needs for the whole wheel. Every offset is checked against the file; nothing is copied that the file does not hold.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "CUDA",
    "HIIPU",
    "RELOCATABLE",
    "SECTION_NOBITS",
    "SECTION_PROGBITS",
    "Damaged",
    "Dynamic",
    "Elf",
    "Section",
    "Symbol",
    "embedded_elfs",
]

#: e_machine of cubins and of Ascend device code (EM_HIIPU), and e_type of files that still need a link.
CUDA = 190
HIIPU = 0x1029
RELOCATABLE = 1

SECTION_PROGBITS, SECTION_NOBITS = 1, 8
_NULL, _SYMTAB, _NOTE, _DYNAMIC, _VERNEED = 0, 2, 7, 6, 0x6FFFFFFE
_NEEDED, _RPATH, _RUNPATH = 1, 15, 29

#: All names of one file together; a few kilobytes each is normal for templates, and names may overlap.
_MAX_NAMES = 64 << 20


class Damaged(ValueError):
    """The bytes are not what their header says. The message says where."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section header; `offset` and `size` in bytes. The content of a NOBITS section is not in the file."""

    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    entry_size: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """`kind` is the low half of st_info (1 object, 2 function), `binding` the high one (0 local, 1 global, 2 weak);
    `section` is an index into `Elf.sections`."""

    name: str
    kind: int
    binding: int
    other: int
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Dynamic:
    """What a shared library asks of the loader: libraries, run paths, and versions by library."""

    needed: tuple[str, ...]
    run_paths: tuple[str, ...]
    versions: tuple[str, ...]


class Elf:
    """One ELF file in memory. Raises `Damaged` for anything that is not a whole 64-bit little-endian one."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        head = self._slice(0, 64, "ELF header")
        if bytes(head[:6]) != b"\x7fELF\x02\x01":
            raise Damaged("not a 64-bit little-endian ELF file")
        self.abi_version = head[8]
        self.type, self.machine = struct.unpack_from("<HH", head, 16)
        (table,) = struct.unpack_from("<Q", head, 40)
        (self.flags,) = struct.unpack_from("<I", head, 48)
        entry, count, names = struct.unpack_from("<HHH", head, 58)
        self._table_end = table + entry * count
        if entry != 64 or not count:
            raise Damaged("an ELF file without section headers")
        raw = list(struct.Struct("<IIQQQQIIQQ").iter_unpack(self._slice(table, entry * count, "section headers")))
        if sum(r[5] for r in raw if r[1] not in (_NULL, SECTION_NOBITS)) > 2 * len(self.data):
            # cubins have two names for their constants; thousands of headers for the same bytes would multiply them
            raise Damaged("sections that together are larger than twice the file")
        if names >= count:
            raise Damaged("the section of section names does not exist")
        self._names_left = _MAX_NAMES
        self._strings: dict[int, memoryview] = {}
        self._found: dict[tuple[int, int], str] = {}
        self._raw = raw
        self.sections = tuple(Section(self.string(names, r[0]), r[1], r[2], r[4], r[5], r[6], r[7], r[9]) for r in raw)

    def _slice(self, offset: int, size: int, what: str) -> memoryview:
        if offset + size > len(self.data):
            raise Damaged(f"{what} at {offset:#x} with {size:#x} bytes ends after the file ({len(self.data):#x} bytes)")
        return self.data[offset : offset + size]

    @property
    def size(self) -> int:
        """Where the file ends by its own words, when other data may follow it."""
        (segments,) = struct.unpack_from("<Q", self.data, 32)
        entry, count = struct.unpack_from("<HH", self.data, 54)
        ends = [section.offset + section.size for section in self.sections if section.type != SECTION_NOBITS]
        return int(max(self._table_end, segments + entry * count, *ends))

    def bytes_of(self, section: Section) -> memoryview:
        """The content of `section`; empty for NOBITS."""
        if section.type == SECTION_NOBITS:
            return self.data[:0]
        return self._slice(section.offset, section.size, f"section {section.name[:80]}")

    def find(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def string(self, table: int, offset: int) -> str:
        """The text at `offset` of the string section with index `table`; what a terminal would obey is escaped."""
        if (known := self._found.get((table, offset))) is not None:
            return known
        if table not in self._strings:
            if table >= len(self._raw) or self._raw[table][1] == SECTION_NOBITS:
                raise Damaged(f"string section {table} does not exist")
            self._strings[table] = self._slice(self._raw[table][4], self._raw[table][5], f"string section {table}")
        strings = self._strings[table]
        if offset >= len(strings):
            raise Damaged(f"a name at {offset:#x} lies outside string section {table}")
        text = _until_nul(strings, offset)
        self._names_left -= len(text) + 64
        if self._names_left < 0:
            raise Damaged(f"names of more than {_MAX_NAMES >> 20} MiB")
        self._found[table, offset] = result = _printable(text.decode("utf-8", "backslashreplace"))
        return result

    def symbols(self) -> Iterator[Symbol]:
        """The symbols of the static symbol table (the one that cubins have)."""
        for section in self.sections:
            if section.type == _SYMTAB:
                content = self.bytes_of(section)
                if len(content) % 24:
                    raise Damaged("a symbol table with a part of a symbol")
                for name, info, other, index, value, size in struct.Struct("<IBBHQQ").iter_unpack(content):
                    yield Symbol(self.string(section.link, name), info & 15, info >> 4, other, index, value, size)

    def notes(self) -> Iterator[tuple[str, str, int, memoryview]]:
        """(section, owner, type, description) of each note. cubins align them to 4 bytes."""
        for section in self.sections:
            if section.type != _NOTE:
                continue
            content, at = self.bytes_of(section), 0
            while at + 12 <= len(content):
                owner, size, kind = struct.unpack_from("<III", content, at)
                start = at + 12 + _align(owner, 4)
                end = start + size
                if end > len(content):
                    raise Damaged(f"a note of {section.name[:80]} ends after its section")
                name = bytes(content[at + 12 : at + 12 + owner]).rstrip(b"\0").decode("ascii", "backslashreplace")
                yield section.name, name, kind, content[start:end]
                at = _align(end, 4)

    def dynamic(self) -> Dynamic:
        """Needed libraries, run paths and needed versions of a shared library; empty when it has none."""
        needed, paths = [], []
        versions: list[str] = []
        for section in self.sections:
            if section.type == _DYNAMIC:
                content = self.bytes_of(section)
                for tag, value in struct.Struct("<QQ").iter_unpack(content[: len(content) // 16 * 16]):
                    if tag == _NEEDED:
                        needed.append(self.string(section.link, value))
                    elif tag in (_RPATH, _RUNPATH):
                        paths.append(self.string(section.link, value))
                    elif tag == 0:
                        break
            elif section.type == _VERNEED:
                versions += self._needed_versions(section)
        return Dynamic(tuple(needed), tuple(paths), tuple(sorted(set(versions))))

    def _needed_versions(self, section: Section) -> Iterator[str]:
        content = self.bytes_of(section)
        at, left = 0, len(content) // 16  # no record is smaller, so more of them overlap
        while content:
            count, _, aux, following = _unpack("<2xHIII", content, at)
            at_aux = at + aux
            for _ in range(count):
                if (left := left - 1) <= 0:
                    raise Damaged("records of needed versions overlap")
                name, step = _unpack("<8xII", content, at_aux)
                yield self.string(section.link, name)
                at_aux += step
            if not following:
                return
            at += following
            if (left := left - 1) <= 0:
                raise Damaged("records of needed versions overlap")


def embedded_elfs(data: bytes | memoryview, machine: int) -> Iterator[memoryview]:
    """The ELF files for `machine` that lie in `data` as they are: one that is the whole of it, or several among other
    bytes. Raises Damaged for one that is cut off."""
    view, at = memoryview(data), 0
    while match := _header(machine).search(view, at):
        start = match.start()
        at = start + Elf(view[start:]).size
        if at > len(view):
            raise Damaged(f"an ELF file at {start:#x} that ends at {at:#x}, after what holds it ({len(view):#x} bytes)")
        yield view[start:at]


@functools.cache
def _header(machine: int) -> re.Pattern[bytes]:
    """How such a file begins, up to its machine."""
    return re.compile(rb"\x7fELF\x02\x01.{12}" + re.escape(machine.to_bytes(2, "little")), re.S)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _until_nul(strings: memoryview, offset: int) -> bytes:
    size = 256
    while True:  # most names are short: do not copy a whole string section for each
        text = bytes(strings[offset : offset + size])
        end = text.find(b"\0")
        if end >= 0:
            return text[:end]
        if offset + size >= len(strings):
            return text
        size *= 8


def _unpack(form: str, content: memoryview, offset: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, content, offset)
    except struct.error:
        raise Damaged(f"a record at {offset:#x} ends after its section ({len(content):#x} bytes)") from None


def _align(value: int, to: int) -> int:
    return (value + to - 1) // to * to
