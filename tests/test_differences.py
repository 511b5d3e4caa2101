"""What differs between two wheels, on small real files: archives, libraries of gcc and nvcc, PTX containers."""

from __future__ import annotations

import json
import struct
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from archwright.differences import Difference, compare_content, compare_wheels, device_code_differences
from archwright.environment import find_environment
from archwright.targets import target_table

from .fuzz.builders import PROGBITS, FakeEntry, Part, ascend_kernels, cce
from .fuzz.builders import library as elf_library

NAME = "tiny-1.0-cp312-cp312-linux_x86_64.whl"
FILES = {"tiny/__init__.py": b"value = 1\n", "tiny/data.bin": bytes(range(256)), "tiny-1.0.dist-info/RECORD": b"r1\n"}


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., Path]:
    """Write `<tmp>/<folder>/tiny-1.0-...whl`."""

    def write(
        folder: str,
        files: Mapping[str, bytes] = FILES,
        *,
        date: tuple[int, int, int, int, int, int] = (2020, 1, 1, 0, 0, 0),
        mode: int = 0o100644,
        method: int = zipfile.ZIP_DEFLATED,
        level: int = 6,
        name: str = NAME,
    ) -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", method, compresslevel=level) as archive:
            for member, data in files.items():
                entry = zipfile.ZipInfo(member, date)
                entry.external_attr = mode << 16
                entry.compress_type = method
                archive.writestr(entry, data, compresslevel=level)
        return path

    return write


Wheel = Callable[..., Path]


def test_equal_wheels_have_no_difference(wheel: Wheel) -> None:
    assert compare_wheels(wheel("a"), wheel("b")) == ()


def test_another_name_of_equal_bytes_is_a_difference(wheel: Wheel) -> None:
    other = NAME.replace("linux", "manylinux_2_34")
    assert compare_wheels(wheel("a"), wheel("b", name=other)) == (Difference("", "file name", f"{NAME} / {other}"),)


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"date": (2021, 2, 3, 4, 5, 6)}, "time stamp", "2020-01-01 00:00:00 / 2021-02-03 04:05:06"),
        ({"mode": 0o100600}, "mode", "100644 / 100600"),
        ({"method": zipfile.ZIP_STORED}, "compression method", "8 / 0"),
    ],
)
def test_what_the_archive_says_of_an_entry(wheel: Wheel, change: dict[str, int], where: str, what: str) -> None:
    found = compare_wheels(wheel("a"), wheel("b", **change))
    assert set(found) == {Difference(name, where, what) for name in FILES}


def test_the_order_of_entries(wheel: Wheel) -> None:
    (found,) = compare_wheels(wheel("a"), wheel("b", dict(reversed(FILES.items()))))
    assert found.member == ""
    assert found.where == "order of the archive's entries"
    assert "tiny/__init__.py / tiny-1.0.dist-info/RECORD" in found.what


def test_a_file_that_only_one_has(wheel: Wheel) -> None:
    more = {**FILES, "tiny/more.py": b""}
    assert compare_wheels(wheel("a"), wheel("b", more)) == (Difference("tiny/more.py", "", "only in the second"),)
    assert compare_wheels(wheel("c", more), wheel("d")) == (Difference("tiny/more.py", "", "only in the first"),)


def test_the_same_files_packed_with_another_effort_are_not_called_equal(wheel: Wheel) -> None:
    files = {"text": b"".join(b"%d " % (n * n) for n in range(3000))}
    (found,) = compare_wheels(wheel("a", files, level=1), wheel("b", files, level=9))
    assert "packed differently" in str(found)


def test_record_is_named_only_when_nothing_else_differs(wheel: Wheel) -> None:
    record = {**FILES, "tiny-1.0.dist-info/RECORD": b"r2\n"}
    (alone,) = compare_wheels(wheel("a"), wheel("b", record))
    assert alone == Difference("tiny-1.0.dist-info/RECORD", "line 1", "'r1\\n' / 'r2\\n'")

    (other,) = compare_wheels(wheel("c"), wheel("d", {**record, "tiny/__init__.py": b"value = 2\n"}))
    assert other.member == "tiny/__init__.py"


@pytest.mark.parametrize(
    ("one", "two", "where", "what"),
    [
        (b"a\nb\nc\n", b"a\nB\nC\n", "line 2", "'b\\n' / 'B\\n'"),
        (b"a\n", b"a\nb\n", "line 2", "no such line / 'b\\n'"),
        (b"a\n", b"a\r\n", "line 1", "'a\\n' / 'a\\r\\n'"),
        (b"\xff\x00\x01", b"\xff\x00\x02", "", "3 bytes, first differing byte at 0x2"),
        (b"\xff" * 10, b"\xff" * 12, "", "10 / 12 bytes, first differing byte at 0xa"),
        (b"\xff" + bytes(1000), b"\xff" + bytes(999) + b"\1", "", "1001 bytes, first differing byte at 0x3e8"),
        (b"\xfe" + bytes(1000), b"\xff" + bytes(1000), "", "1001 bytes, first differing byte at 0x0"),
    ],
)
def test_text_by_line_and_the_rest_by_byte(one: bytes, two: bytes, where: str, what: str) -> None:
    assert compare_content("file", one, two) == (Difference("file", where, what),)


def test_json_by_key() -> None:
    one = {"a": {"b": [1, 2], "c": True}, "same": 1}
    two = {"a": {"b": [1, 3, 4], "c": 1}, "same": 1, "new": None}
    found = compare_content("x.json", json.dumps(one).encode(), json.dumps(two).encode())
    assert {(d.where, d.what) for d in found} == {
        ("key a.b[1]", "2 / 3"),
        ("key a.b[2]", "absent / 4"),
        ("key a.c", "true / 1"),
        ("key new", "absent / null"),
    }


def test_json_that_differs_in_its_spelling_only() -> None:
    (found,) = compare_content("x.json", b'{"a": 1}', b'{"a":1}')
    assert found.where == "line 1"


@pytest.fixture
def library(gcc: str, tmp_path: Path) -> Callable[..., bytes]:
    """A shared library of a few lines of C."""

    def build(code: str, *flags: str) -> bytes:
        source, target = tmp_path / "a.c", tmp_path / "a.so"
        source.write_text(code)
        subprocess.run([gcc, "-shared", "-fPIC", "-Wl,--build-id=none", *flags, "-o", target, source], check=True)
        return target.read_bytes()

    return build


CODE = 'const char *text(void) { return "%s"; }\nint number(int x) { return x * %d; }\n'


def test_a_string_in_a_library_is_found_in_its_section(library: Callable[..., bytes]) -> None:
    (found,) = compare_content("a.so", library(CODE % ("/home/one", 3)), library(CODE % ("/home/two", 3)))
    assert found.where == "section .rodata"
    assert found.what.endswith("first differing byte at 0x6")


def test_code_in_a_library_is_found_in_its_function(library: Callable[..., bytes]) -> None:
    (found,) = compare_content("a.so", library(CODE % ("x", 1000003)), library(CODE % ("x", 1000033)))
    assert found.where == "section .text"
    assert found.what.endswith("in number")


def test_a_function_is_not_mistaken_for_one_of_another_section(gcc: str, tmp_path: Path) -> None:
    """In objects, as in cubins, every section starts at address 0."""
    objects = []
    for number in (1000003, 1000033):
        source, target = tmp_path / "a.c", tmp_path / "a.o"
        source.write_text(f"int first(int x) {{ return x * 77; }}\nint second(int x) {{ return x * {number}; }}\n")
        subprocess.run([gcc, "-c", "-ffunction-sections", "-o", target, source], check=True)
        objects.append(target.read_bytes())
    (found,) = compare_content("a.o", *objects)
    assert found.where == "section .text.second"
    assert found.what.endswith("in second")


def test_a_section_that_only_one_has(library: Callable[..., bytes]) -> None:
    code = CODE % ("x", 3)
    more = code + '__attribute__((section("extra"))) const int more = 1;'
    found = compare_content("a.so", library(code), library(more))
    assert Difference("a.so", "section extra", "only in the second") in found


def test_bytes_between_sections(library: Callable[..., bytes]) -> None:
    one = library(CODE % ("x", 3))
    two = bytearray(one)
    two[9] ^= 1  # padding of the ELF header
    (found,) = compare_content("a.so", one, bytes(two))
    assert found.where == "outside every section"
    assert found.what.endswith("at 0x9")


def test_a_damaged_library_is_still_compared(library: Callable[..., bytes]) -> None:
    one = library(CODE % ("x", 3))
    (found,) = compare_content("a.so", one[:40], one[:39])
    assert found.what == "40 / 39 bytes, first differing byte at 0x27"


def test_device_code_is_asked_for_its_kernels(library: Callable[..., bytes]) -> None:
    code = '__attribute__((section(".nv_fatbin"))) const char device[] = "%s";'

    def names(one: bytes, two: bytes) -> Iterator[tuple[str, str]]:
        yield "kernel k", f"{one!r} {two!r}"

    found = compare_content("a.so", library(code % "one"), library(code % "two"), names)
    assert [d.where for d in found] == ["section .nv_fatbin", "section .nv_fatbin, kernel k"]
    assert found[1].what == "b'one\\x00' b'two\\x00'"


def container(*payloads: bytes) -> bytes:
    """A fatbin container with one uncompressed entry of PTX for each payload."""
    body = b""
    for payload in payloads:
        padded = payload + bytes(-len(payload) % 8)
        header = bytearray(64)
        struct.pack_into("<HHIQ", header, 0, 1, 0x101, len(header), len(padded))
        struct.pack_into("<I", header, 28, 100)
        body += bytes(header) + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


PTX = b".version 9.2\n.target sm_100a\n.entry %s () { ret; }\n"


def test_ptx_is_compared_line_by_line() -> None:
    one, two = container(PTX % b"same", PTX % b"one"), container(PTX % b"same", PTX % b"two")
    ((where, what),) = device_code_differences(one, two)
    assert where == "PTX for sm_100a, line 3"
    assert ".entry one" in what
    assert ".entry two" in what


def test_device_code_in_another_order_is_named_as_that() -> None:
    one, two = container(PTX % b"one", PTX % b"two"), container(PTX % b"two", PTX % b"one")
    assert list(device_code_differences(one, two)) == [
        ("device code", "the same cubins and PTX texts, in another order or packing")
    ]


def test_device_code_that_only_one_has() -> None:
    one, two = container(PTX % b"one"), container(PTX % b"one", PTX % b"two")
    assert list(device_code_differences(one, two)) == [
        ("device code", "1 / 2 cubins and PTX texts"),
        ("PTX for sm_100a", "only in the second"),
    ]


def test_a_second_copy_of_equal_code_counts() -> None:
    one, two = container(PTX % b"one"), container(PTX % b"one", PTX % b"one")
    assert ("PTX for sm_100a", "only in the second") in list(device_code_differences(one, two))


def test_device_code_that_cannot_be_read_is_said_so() -> None:
    ((where, what),) = device_code_differences(b"nonsense" * 4, container(PTX % b"one"))
    assert where == "device code"
    assert what.startswith("cannot be read")


@pytest.mark.parametrize("section", [".aicore_binary", "__aicore_rel_binary", ".ascend.kernel.ascend950pr_9599.ops"])
def test_ascend_device_code_is_named_with_its_symbol(section: str) -> None:
    same, old, new = (cce([FakeEntry("same"), FakeEntry("run", arguments=size)]) for size in (8, 16, 24))

    def library(*files: bytes) -> bytes:
        return elf_library(parts=[Part(section, PROGBITS, ascend_kernels(*((1, file) for file in files)))])

    found = compare_content("a.so", library(same, old), library(same, new))
    assert [d.where for d in found] == [
        f"section {section}",
        f"section {section}, CCE ELF file 2 of 2, section __CCE_KernelArgSize",
    ]
    assert found[1].what.endswith(", in run__")

    found = compare_content("a.so", library(same), library(same, new))
    assert ("device code", "1 / 2 CCE ELF files") in [(d.where.rpartition(", ")[2], d.what) for d in found]

    found = compare_content("a.so", library(same), library(same[:-8]))
    assert found[1].what.startswith("cannot be read")


@pytest.fixture(scope="session")
def nvcc() -> list[str]:
    """The environment's nvcc with its host compiler."""
    environment = find_environment(target_table().targets["sm100"])
    if environment is None:
        pytest.skip("no environment: `archwright env create sm100`")
    return [str(environment.toolkit / "bin" / "nvcc"), "-ccbin", str(environment.cxx)]


KERNELS = """\
__global__ void same(float* x) { x[threadIdx.x] = 1.5f; }
template <int N> __global__ void scaled(float* x) { x[threadIdx.x] *= float(N) * %s; }
template __global__ void scaled<7>(float*);
"""


def test_a_real_kernel_is_named_with_its_section(nvcc: list[str], tmp_path: Path) -> None:
    libraries = []
    for factor in ("1.25f", "2.75f"):
        source, library = tmp_path / "k.cu", tmp_path / "k.so"
        source.write_text(KERNELS % factor)
        flags = ["-shared", "-cudart", "none", "-gencode", "arch=compute_100a,code=sm_100a", "-Xcompiler", "-fPIC"]
        subprocess.run([*nvcc, *flags, "-o", library, source], check=True, cwd=tmp_path)
        libraries.append(library.read_bytes())

    found = compare_content("k.so", *libraries)

    inside = [d for d in found if d.where.startswith("section .nv_fatbin, ")]
    assert any(".text._Z6scaledILi7EEvPf" in d.where for d in inside), found
    assert all("sm_100a" in d.where and "scaled<7>" in d.where for d in inside)
    assert not any("section .text._Z4same" in d.where for d in inside), "the other kernel is the same"
