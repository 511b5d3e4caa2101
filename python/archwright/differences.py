"""What differs between two wheels: named as precisely as their formats allow, down to a section or a kernel.

Meant for two builds of one recipe that should be equal. Nothing here vouches for a wheel: it trusts what it reads.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from .cce import carries_code
from .cubin import ptx_arch, read_cubin
from .demangle import demangle, short_name
from .elf import HIIPU, Damaged, embedded_elfs
from .fatbin import Entry, Kind, read_fatbin

__all__ = ["DeviceCode", "Difference", "compare_content", "compare_wheels", "device_code_differences"]

#: Names the kernels that differ between two `.nv_fatbin` sections, as (where, what) pairs; none when it cannot tell.
DeviceCode = Callable[[bytes, bytes], Iterable[tuple[str, str]]]

_FATBIN = (".nv_fatbin", "__nv_relfatbin")
_MISSING = object()


@dataclass(frozen=True)
class Difference:
    """One difference. `member` is empty for the archive itself; `where` is a section, a kernel, a line or a key."""

    member: str
    where: str
    what: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.member, self.where, self.what)))


def compare_wheels(first: Path, second: Path, device_code: DeviceCode | None = None) -> tuple[Difference, ...]:
    """Every difference between two wheels; empty exactly when their bytes are equal."""
    one, two = first.read_bytes(), second.read_bytes()
    if one == two and first.name == second.name:
        return ()
    found = [] if first.name == second.name else [Difference("", "file name", f"{first.name} / {second.name}")]
    with zipfile.ZipFile(BytesIO(one)) as left, zipfile.ZipFile(BytesIO(two)) as right:
        found += _compare_archives(left, right)
        content = [
            difference
            for name in sorted(set(left.namelist()) & set(right.namelist()))
            for difference in compare_content(name, left.read(name), right.read(name), device_code)
        ]
    # RECORD repeats the hash of every other file: alone it is news, otherwise it is noise
    others = [difference for difference in content if not difference.member.endswith(".dist-info/RECORD")]
    found += others or content
    if one != two and not found:
        found.append(Difference("", "archive", f"same files, packed differently: {_first_byte(one, two)}"))
    return tuple(found)


def compare_content(name: str, one: bytes, two: bytes, device_code: DeviceCode | None = None) -> tuple[Difference, ...]:
    """The differences between two versions of the file called `name`."""
    if one == two:
        return ()
    pairs: list[tuple[str, str]] = []
    if one[:4] == two[:4] == b"\x7fELF":
        pairs = list(_compare_elf(one, two, device_code or device_code_differences))
    elif name.endswith(".json"):
        pairs = _compare_json(one, two)
    pairs = pairs or _compare_text(one, two) or [("", _first_byte(one, two))]
    return tuple(Difference(name, where, what) for where, what in pairs)


def device_code_differences(one: bytes, two: bytes) -> Iterator[tuple[str, str]]:
    """The kernels that differ between two sections of device code, and what of them."""
    try:
        ours, theirs = list(read_fatbin(one)), list(read_fatbin(two))
    except Damaged as damage:
        yield "device code", f"cannot be read: {damage}"
        return
    left, right = _without_twins(ours, theirs), _without_twins(theirs, ours)
    if len(ours) != len(theirs):
        yield "device code", f"{len(ours)} / {len(theirs)} cubins and PTX texts"
    elif not left:
        yield "device code", "the same cubins and PTX texts, in another order or packing"
    for key in dict.fromkeys((*left, *right)):
        pairs = list(zip_longest(left.get(key, ()), right.get(key, ())))
        for number, (a, b) in enumerate(pairs, start=1):
            where = key if len(pairs) == 1 else f"{key}, {number} of {len(pairs)}"
            if a is None or b is None:
                yield where, f"only in the {'second' if a is None else 'first'}"
            else:
                yield from ((", ".join(filter(None, (where, inside))), what) for inside, what in _compare_entries(a, b))


def _compare_entries(one: Entry, two: Entry) -> list[tuple[str, str]]:
    a, b = _plain(one).rstrip(b"\0"), _plain(two).rstrip(b"\0")  # padded with zeros
    pairs = _compare_text(a, b) if one.kind is Kind.PTX else list(_compare_elf(_plain(one), _plain(two)))
    return pairs or [("", _first_byte(_plain(one), _plain(two)))]


def _without_twins(entries: list[Entry], others: list[Entry]) -> dict[str, list[Entry]]:
    """The entries that have no equal among `others`, by what they hold; an entry there is the twin of one only."""
    twins = Counter(_plain(entry) for entry in others)
    result: dict[str, list[Entry]] = {}
    for entry in entries:
        payload = _plain(entry)
        if twins[payload]:
            twins[payload] -= 1
        else:
            result.setdefault(_contents(entry), []).append(entry)
    return result


def _contents(entry: Entry) -> str:
    """What a person would call it: its architecture and the first kernels of a cubin."""
    try:
        if entry.kind is Kind.PTX:
            return f"PTX for {ptx_arch(entry.payload)}"
        cubin = read_cubin(entry.payload)
    except Damaged:
        return f"{entry.kind} for sm_{entry.number}"
    names = [short_name(demangle(kernel.name)) for kernel in cubin.kernels]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    kernels = f"kernel{'s' if len(names) > 1 else ''} {', '.join(names[:2])}{more}" if names else "no kernel"
    return f"cubin for {cubin.arch} with {kernels}"


def _plain(entry: Entry) -> bytes:
    return bytes(entry.payload)


def _compare_archives(left: zipfile.ZipFile, right: zipfile.ZipFile) -> Iterator[Difference]:
    ours, theirs = ({entry.filename: entry for entry in archive.infolist()} for archive in (left, right))
    for name in ours.keys() - theirs.keys():
        yield Difference(name, "", "only in the first")
    for name in theirs.keys() - ours.keys():
        yield Difference(name, "", "only in the second")
    shared = [[name for name in archive if name in ours and name in theirs] for archive in (ours, theirs)]
    if shared[0] != shared[1]:
        one, two = next((a, b) for a, b in zip(*shared, strict=True) if a != b)
        yield Difference("", "order of the archive's entries", f"{one} / {two} comes first")
    if left.comment != right.comment:
        yield Difference("", "comment of the archive", f"{left.comment!r} / {right.comment!r}")
    for name in shared[0]:
        one_facts, two_facts = _entry_facts(ours[name]), _entry_facts(theirs[name])
        for label, value in one_facts.items():
            if value != two_facts[label]:
                yield Difference(name, label, f"{value} / {two_facts[label]}")


def _entry_facts(entry: zipfile.ZipInfo) -> dict[str, str]:
    """What the archive says of an entry beside its name, size and content."""
    year, month, day, hour, minute, second = entry.date_time
    return {
        "time stamp": f"{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}",
        "mode": f"{entry.external_attr >> 16:o}",
        "attributes": f"{entry.external_attr & 0xFFFF:#x}, {entry.internal_attr:#x}",
        "compression method": str(entry.compress_type),
        "flags": f"{entry.flag_bits:#x}",
        "made by": f"system {entry.create_system}, version {entry.create_version}",
        "extra field": entry.extra.hex(),
        "comment": repr(entry.comment),
    }


def _compare_elf(one: bytes, two: bytes, device_code: DeviceCode = lambda one, two: ()) -> Iterator[tuple[str, str]]:
    """The differing sections; where nothing but the bytes around sections differs, the first of those."""
    try:
        left, right = ELFFile(BytesIO(one)), ELFFile(BytesIO(two))
        ours, theirs = _sections(left), _sections(right)
    except (ELFError, UnicodeDecodeError):
        return
    for name in ours.keys() - theirs.keys():
        yield f"section {name}", "only in the first"
    for name in theirs.keys() - ours.keys():
        yield f"section {name}", "only in the second"
    shared = [name for name in ours if name in theirs]
    differing = [name for name in shared if ours[name].data() != theirs[name].data()]
    for name in differing:
        a, b = ours[name].data(), theirs[name].data()
        yield f"section {name}", _first_byte(a, b) + _symbol_at(left, ours[name], _offset(a, b))
        if name.partition("#")[0] in _FATBIN:
            yield from ((f"section {name}, {where}", what) for where, what in device_code(a, b))
        elif carries_code(name):
            yield from ((f"section {name}, {where}", what) for where, what in _compare_carried(a, b))
    if ours.keys() == theirs.keys() and not differing:
        moved = [name for name in shared if dict(ours[name].header) != dict(theirs[name].header)]
        yield from ((f"section {name}", "another place, type or flags") for name in moved)
        if not moved:
            yield "outside every section", _first_byte(one, two)


def _compare_carried(one: bytes, two: bytes) -> Iterator[tuple[str, str]]:
    """What differs between the CCE ELF files in two sections of Ascend device code, one by one in their order."""
    try:
        ours, theirs = (list(embedded_elfs(content, HIIPU)) for content in (one, two))
    except Damaged as damage:
        yield "device code", f"cannot be read: {damage}"
        return
    if len(ours) != len(theirs):
        yield "device code", f"{len(ours)} / {len(theirs)} CCE ELF files"
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False), 1):
        where = f"CCE ELF file {number} of {len(ours)}"
        yield from ((f"{where}, {inside}", what) for inside, what in _compare_elf(bytes(a), bytes(b)) if a != b)


def _sections(elf: ELFFile) -> dict[str, Any]:
    """Sections by name; the second of one name is called `name#2`."""
    result: dict[str, Any] = {}
    for section in elf.iter_sections():
        name, count = section.name or "(no name)", 2
        while name in result:
            name, count = f"{section.name or '(no name)'}#{count}", count + 1
        result[name] = section
    return result


def _symbol_at(elf: ELFFile, section: Any, offset: int) -> str:
    """` in <symbol>`, when a symbol of the file covers that byte of the section."""
    address = section["sh_addr"] + offset
    index = elf.get_section_index(section.name)
    for table in (s for s in elf.iter_sections() if isinstance(s, SymbolTableSection)):
        for symbol in table.iter_symbols():
            inside = symbol["st_value"] <= address < symbol["st_value"] + symbol["st_size"]
            if inside and symbol["st_shndx"] == index and symbol["st_info"]["type"] in ("STT_FUNC", "STT_OBJECT"):
                return f", in {symbol.name}"
    return ""


def _compare_json(one: bytes, two: bytes) -> list[tuple[str, str]]:
    """The keys whose values differ; none when one of them is no JSON, or when only the spelling differs."""
    try:
        left, right = json.loads(one), json.loads(two)
    except ValueError:
        return []
    return [(f"key {path}", what) for path, what in _compare_values("", left, right)]


def _compare_values(path: str, one: Any, two: Any) -> Iterator[tuple[str, str]]:
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in dict.fromkeys((*one, *two)):
            below = f"{path}.{key}" if path else str(key)
            yield from _compare_values(below, one.get(key, _MISSING), two.get(key, _MISSING))
    elif isinstance(one, list) and isinstance(two, list):
        for index, (left, right) in enumerate(zip_longest(one, two, fillvalue=_MISSING)):
            yield from _compare_values(f"{path}[{index}]", left, right)
    elif one is _MISSING or two is _MISSING or one != two or type(one) is not type(two):
        yield path or "(whole)", f"{_shown(one)} / {_shown(two)}"


def _shown(value: Any) -> str:
    return "absent" if value is _MISSING else _short(json.dumps(value, ensure_ascii=False))


def _compare_text(one: bytes, two: bytes) -> list[tuple[str, str]]:
    """The first differing line; none when one of them is no text."""
    try:
        left, right = one.decode().splitlines(keepends=True), two.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return []
    if "\0" in one.decode() + two.decode():
        return []
    for number, (a, b) in enumerate(zip_longest(left, right), start=1):
        if a != b:
            shown = ["no such line" if line is None else _short(repr(line)) for line in (a, b)]
            return [(f"line {number}", " / ".join(shown))]
    return []


def _first_byte(one: bytes, two: bytes) -> str:
    sizes = f"{len(one)} bytes" if len(one) == len(two) else f"{len(one)} / {len(two)} bytes"
    return f"{sizes}, first differing byte at {_offset(one, two):#x}"


def _offset(one: bytes, two: bytes) -> int:
    """Offset of the first differing byte. Halves a range instead of walking through it byte by byte."""
    low, high = 0, min(len(one), len(two))
    if one[:high] == two[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _short(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
