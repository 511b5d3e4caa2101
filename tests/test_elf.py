"""The reader of ELF files: the same as pyelftools on real files, and nothing but `Damaged` on hostile ones."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import NoteSection, SymbolTableSection
from hypothesis import given, settings
from hypothesis import strategies as st

from archwright.elf import Damaged, Dynamic, Elf

from .fuzz.builders import DYNAMIC, NOBITS, NOTE, PROGBITS, STRTAB, SYMTAB, VERNEED, Part, cubin, elf, library

MAPPED = sorted({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line})


def real_files() -> list[Path]:
    """The interpreter, everything it has loaded, and modules of the packages installed beside it."""
    places = [Path(sys.executable).resolve(), *(Path(name) for name in MAPPED)]
    places += Path(pytest.__file__).parents[1].rglob("*.so")
    return [path for path in dict.fromkeys(places) if path.is_file() and path.read_bytes()[:5] == b"\x7fELF\x02"]


def read_all(data: bytes) -> None:
    """Everything that can be asked of an ELF file."""
    file = Elf(data)
    for section in file.sections:
        file.bytes_of(section)
    list(file.symbols())
    list(file.notes())
    file.dynamic()


def expected_dynamic(reference: ELFFile) -> Dynamic:
    needed, paths, versions = [], [], set()
    for section in reference.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.append(tag.needed)
                elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    paths.append(tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath)
        elif isinstance(section, GNUVerNeedSection):
            versions |= {aux.name for _, auxiliaries in section.iter_versions() for aux in auxiliaries}
    return Dynamic(tuple(needed), tuple(paths), tuple(sorted(versions)))


def test_real_files_read_as_pyelftools_reads_them() -> None:
    files = real_files()
    assert len(files) > 20
    rich = 0
    for path in files:
        data = path.read_bytes()
        mine, reference = Elf(data), ELFFile(BytesIO(data))

        assert [(s.name, s.offset, s.size, s.link, s.info, s.flags) for s in mine.sections] == [
            (s.name, s["sh_offset"], s["sh_size"], s["sh_link"], s["sh_info"], s["sh_flags"])
            for s in reference.iter_sections()
        ], path
        assert mine.dynamic() == expected_dynamic(reference), path
        rich += bool(mine.dynamic().needed and mine.dynamic().versions)
    assert rich > 10


def test_contents_symbols_and_notes_are_those_of_pyelftools() -> None:
    # given files small enough to be compared byte for byte, one with a symbol table
    data = cubin()
    files = [data, *(p.read_bytes() for p in real_files() if p.stat().st_size < 300_000)]
    assert len(files) > 3
    notes = 0
    for content in files:
        mine, reference = Elf(content), ELFFile(BytesIO(content))
        for section, other in zip(mine.sections, reference.iter_sections(), strict=True):
            if section.type not in (0, NOBITS):
                assert bytes(mine.bytes_of(section)) == other.data()
        symbols = [s for t in reference.iter_sections() if isinstance(t, SymbolTableSection) for s in t.iter_symbols()]
        if mine.machine == 190:
            assert [(s.name, s.value, s.size) for s in mine.symbols()] == [
                (s.name, s["st_value"], s["st_size"]) for s in symbols
            ]
        expected = [
            (n["n_name"], n["n_descsz"])
            for s in reference.iter_sections()
            if isinstance(s, NoteSection) and s["sh_addralign"] != 8
            for n in s.iter_notes()
        ]
        found = [(name, len(d)) for section, name, _, d in mine.notes() if section != ".note.gnu.property"]
        assert found == expected
        notes += len(found)
    assert notes > 3


def test_what_a_library_needs() -> None:
    data = library(["libc.so.6", "libm.so.6"], ["$ORIGIN/../lib"], {"libc.so.6": ["GLIBC_2.28", "GLIBC_2.2.5"]})
    assert Elf(data).dynamic() == Dynamic(
        ("libc.so.6", "libm.so.6"), ("$ORIGIN/../lib",), ("GLIBC_2.2.5", "GLIBC_2.28")
    )
    assert Elf(library()).dynamic() == Dynamic((), (), ())


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(60), b"\x7fELF\x02\x02" + bytes(60)])
def test_other_files_are_damaged(data: bytes) -> None:
    with pytest.raises(Damaged):
        Elf(data)


def header_of(data: bytes, index: int) -> int:
    return struct.unpack_from("<Q", data, 40)[0] + 64 * index


def with_field(data: bytes, offset: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        (40, "<Q", 1 << 63),  # the section headers begin far outside
        (58, "<H", 63),  # their size
        (60, "<H", 0),  # their number
        (60, "<H", 65535),
        (62, "<H", 65535),  # the section of names
    ],
)
def test_lies_of_the_elf_header(offset: int, form: str, value: int) -> None:
    with pytest.raises(Damaged):
        Elf(with_field(library(["libc.so.6"]), offset, form, value))


@pytest.mark.parametrize("value", [1 << 20, 0xFFFFFFFF, (1 << 64) - 1, (1 << 64) - 64])
@pytest.mark.parametrize(("field", "form"), [(24, "<Q"), (32, "<Q")])
@pytest.mark.parametrize("index", [1, 2, 3, 4])
def test_lies_about_the_place_of_a_section(index: int, field: int, form: str, value: int) -> None:
    data = library(["libc.so.6"], versions={"libc.so.6": ["GLIBC_2.2.5"]})
    with pytest.raises(Damaged):
        read_all(with_field(data, header_of(data, index) + field, form, value))


def test_a_name_outside_its_strings() -> None:
    data = library()
    with pytest.raises(Damaged, match="a name at 0xffffffff lies outside"):
        Elf(with_field(data, header_of(data, 2), "<I", 0xFFFFFFFF))


@pytest.mark.parametrize("link", [0, 2, 77, 0xFFFFFFFF])
def test_a_link_to_a_section_without_strings(link: int) -> None:
    parts = [Part(".bss", NOBITS, size=1 << 62), Part(".dynamic", DYNAMIC, struct.pack("<QQ", 1, 1 << 40), link)]
    with pytest.raises(Damaged):
        Elf(elf(parts)).dynamic()


def test_a_section_without_bytes_in_the_file_may_claim_any_size() -> None:
    file = Elf(elf([Part(".bss", NOBITS, size=(1 << 64) - 1)]))
    assert (section := file.find(".bss")) is not None
    assert section.size == (1 << 64) - 1 and file.bytes_of(section) == b""


def test_a_part_of_a_symbol() -> None:
    with pytest.raises(Damaged, match="a part of a symbol"):
        list(Elf(elf([Part(".symtab", SYMTAB, bytes(25), 1)])).symbols())


def test_a_note_that_ends_after_its_section() -> None:
    for owner, size in ((4, 5), (0xFFFFFFFF, 0), (0, 0xFFFFFFFF)):
        with pytest.raises(Damaged, match="ends after its section"):
            list(Elf(elf([Part(".note", NOTE, struct.pack("<III", owner, size, 1) + bytes(8))])).notes())


@pytest.mark.parametrize(
    "records",
    [
        struct.pack("<HHIII", 1, 0, 1, 16, 1) * 9,  # the next one begins one byte later, for ever
        struct.pack("<HHIII", 1, 65535, 1, 16, 0) + struct.pack("<IHHII", 0, 0, 0, 1, 1) * 9,
        struct.pack("<HHIII", 1, 65535, 1, 16, 0) + struct.pack("<IHHII", 0, 0, 0, 1, 0),  # points at itself
        struct.pack("<HHIII", 1, 1, 1, 0, 0xFFFFFFFF),
        b"short",
    ],
)
def test_needed_versions_that_overlap_or_go_in_a_circle(records: bytes) -> None:
    with pytest.raises(Damaged):
        Elf(elf([Part(".gnu.version_r", VERNEED, records, 1)])).dynamic()


def test_many_headers_for_the_same_bytes_cost_no_memory() -> None:
    """65000 symbol tables that are one: 1.3 thousand million symbols if each were believed."""
    symbols = bytes(24 * 20_000)
    data = bytearray(elf([Part(".symtab", SYMTAB, symbols, 1)]))
    table = header_of(data, 0)
    headers = data[table:] + bytes(data[table + 128 : table + 192]) * 64_990
    data = bytearray(with_field(bytes(data[:table] + headers), 60, "<H", len(headers) // 64))
    with pytest.raises(Damaged, match="larger than twice the file"):
        Elf(bytes(data))


def test_names_that_overlap_stay_within_64_mib() -> None:
    """One string of 1 MiB, and a name that begins at each of its first 200 bytes: 200 MiB if each were kept."""
    text = b"\0" + b"a" * (1 << 20) + b"\0"
    symbols = b"".join(struct.pack("<IBBHQQ", place, 2, 0, 0, 0, 0) for place in range(1, 201))
    data = elf([Part(".strtab", STRTAB, text), Part(".symtab", SYMTAB, symbols, 2)])
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match="names of more than 64 MiB"):
            for _ in Elf(data).symbols():
                pass
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b".str\xffnge", ".str\\xffnge"),
        (b".\x1b[2Jang", ".\\x1b[2Jang"),  # clears a terminal
        (b".a\xe2\x80\xaebcd", ".a\\u202ebcd"),  # writes from right to left
        (b".\xc3\xa4bcdef", ".äbcdef"),
    ],
)
def test_names_are_escaped_where_a_terminal_would_obey_them(raw: bytes, shown: str) -> None:
    data = elf([Part(".strange", PROGBITS, b"x")]).replace(b".strange", raw)
    assert Elf(data).sections[2].name == shown


SAMPLES = [library(["libc.so.6"], ["$ORIGIN"], {"libc.so.6": ["GLIBC_2.2.5"], "libm.so.6": ["A", "B"]}), cubin()]


def test_files_cut_at_each_byte() -> None:
    for sample in SAMPLES:
        for end in range(len(sample)):
            with pytest.raises(Damaged):
                read_all(sample[:end])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_changed_fields_give_a_result_or_damaged(sample: bytes, data: st.DataObject) -> None:
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        at = data.draw(st.integers(0, len(changed) - size))
        value = data.draw(st.sampled_from([0, 1, 255, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1]))
        changed[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    try:
        read_all(bytes(changed))
    except Damaged as error:
        assert str(error)
