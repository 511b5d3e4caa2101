"""Reading wheels that are damaged or hostile: one of two codes, whatever the bytes."""

from __future__ import annotations

import os
import random
import stat
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from archwright.errors import ArchwrightError
from archwright.wheelfile import read_wheel

FILE_NAME = "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_28_x86_64.manylinux2014_x86_64.whl"
INFO = "tiny-1.0+cu132.sm100.dist-info"
TAGS = ("cp312-cp312-manylinux_2_28_x86_64", "cp312-cp312-manylinux2014_x86_64")
FILES = {
    "tiny/__init__.py": b"value = 1\n" * 20,
    "tiny/_C.so": b"\x7fELF" + bytes(2000),
    "tiny-1.0+cu132.sm100.data/scripts/run": b"#!python\n",
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0+cu132.sm100\n\nA wheel.\n",
    f"{INFO}/WHEEL": "".join(["Wheel-Version: 1.0\n", *(f"Tag: {tag}\n" for tag in TAGS)]).encode(),
    f"{INFO}/archwright.json": b'{"target": "sm100"}\n',
}
SIZES_LATER, UTF8 = 0x0008, 0x0800


@dataclass(frozen=True)
class Entry:
    """One entry of a zip archive, in which everything may be a lie. None means: the truth."""

    name: bytes
    data: bytes = b"evil"
    method: int = 8
    packed: bytes | None = None
    crc: int | None = None
    size: int | None = None
    packed_size: int | None = None
    flags: int = 0
    mode: int = stat.S_IFREG | 0o644
    extra: bytes = b""
    dos: int = 0
    disk: int = 0
    offset: int | None = None
    local_name: bytes | None = None
    local_size: int | None = None
    local_method: int | None = None
    local_flags: int | None = None
    local_extra: bytes = b""
    before: bytes = b""
    after: bytes = b""

    def body(self) -> bytes:
        if self.packed is not None:
            return self.packed
        return deflate(self.data) if self.method == 8 else self.data


def deflate(*data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join(map(packer.compress, data)) + packer.flush()


def archive(entries: list[Entry], *, count: int | None = None, gap: bytes = b"", comment: bytes = b"") -> bytes:
    """Write `entries` as a zip archive."""
    out, directory = b"", b""
    for e in entries:
        out += e.before
        body = e.body()
        crc = zlib.crc32(e.data) if e.crc is None else e.crc
        size = len(e.data) if e.size is None else e.size
        packed = len(body) if e.packed_size is None else e.packed_size
        offset = len(out) if e.offset is None else e.offset
        name = e.name if e.local_name is None else e.local_name
        flags = e.flags if e.local_flags is None else e.local_flags
        method = e.method if e.local_method is None else e.local_method
        here = (0, 0, 0) if e.flags & SIZES_LATER else (crc, packed, size if e.local_size is None else e.local_size)
        head = struct.pack("<4s5H3I2H", b"PK\3\4", 20, flags, method, 0, 33, *here, len(name), len(e.local_extra))
        out += head + name + e.local_extra + body + e.after
        directory += struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 0x0314, 20, e.flags, e.method, 0, 33, crc, packed, size,
            len(e.name), len(e.extra), 0, e.disk, 0, e.mode << 16 | e.dos, offset,
        )  # fmt: skip
        directory += e.name + e.extra
    n = len(entries) if count is None else count
    return out + gap + directory + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, n, n, len(directory), len(out), 0) + comment


def good() -> list[Entry]:
    return [Entry(name.encode(), data) for name, data in FILES.items()]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of these bytes under a wheel's name."""

    def write(data: bytes, name: str = FILE_NAME) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def problem_of(path: Path, **limits: int) -> str:
    """The code and what was found."""
    with pytest.raises(ArchwrightError) as caught:
        read_wheel(path, **limits)
    assert caught.value.found.isprintable() and len(caught.value.found) < 1000
    return f"{caught.value.code} {caught.value.found}"


def with_zip64_end(data: bytes, where: int = 0, **changes: int) -> bytes:
    """Put the large end record and its locator before the small one."""
    body, end = data[:-22], data[-22:]
    _, _, here, count, size, start, _ = struct.unpack("<4H2IH", end[4:])
    values = {"here": here, "count": count, "size": size, "start": start, **changes}
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, *values.values())
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(body) + where, 1)
    return body + record + locator + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)


def test_a_zip64_end_record_is_read(write: Callable[..., Path]) -> None:
    assert read_wheel(write(with_zip64_end(archive(good())))).members == FILES


def evil(name: str, **lies: object) -> bytes:
    return archive([*good(), replace(Entry(name.encode()), **lies)])  # type: ignore[arg-type]


def first(**lies: object) -> bytes:
    """A lie about the first entry of a good archive."""
    return archive([replace(good()[0], **lies), *good()[1:]])  # type: ignore[arg-type]


def last(**lies: object) -> bytes:
    """A lie about the last entry of a good archive."""
    return archive([*good()[:-1], replace(good()[-1], **lies)])  # type: ignore[arg-type]


def without(name: str, **more: bytes) -> bytes:
    files = {f"{INFO}/{key}": value for key, value in more.items()}
    return archive([Entry(n.encode(), d) for n, d in {**FILES, **files}.items() if n != f"{INFO}/{name}"])


BOMB = deflate(bytes(70 << 20))
NOISE = random.Random(1).randbytes(400_000)
INIT = FILES["tiny/__init__.py"]
NO_PATH = struct.pack("<2HBI", 0x7075, 5, 1, zlib.crc32(b"ok.py"))
UNICODE_PATH = struct.pack("<2HBI", 0x7075, 5 + 5, 1, zlib.crc32(b"ok.py")) + b"other"

HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    # names
    "absolute path": ("absolute path", lambda: evil("/etc/evil")),
    "parent folder": ("'..'", lambda: evil("tiny/../../evil")),
    "parent folder at the end": ("'..'", lambda: evil("tiny/..")),
    "parent folder as a folder": ("'..'", lambda: evil("../", data=b"", method=0, mode=stat.S_IFDIR)),
    "this folder": ("empty part", lambda: evil("tiny/./evil")),
    "empty part": ("empty part", lambda: evil("tiny//evil")),
    "empty name": ("empty part", lambda: evil("")),
    "backslash": ("backslash", lambda: evil("tiny\\evil")),
    "drive letter": ("drive letter", lambda: evil("C:evil")),
    "NUL": ("control character", lambda: evil("tiny/evil.py\0.txt")),
    "line break": ("control character", lambda: evil("tiny/evil\n.py")),
    "escape sequence": ("control character", lambda: evil("tiny/\x1b[2Jevil")),
    "reversed text": ("control character", lambda: evil("tiny/\u202eyp.live", flags=UTF8)),
    "name of unknown encoding": ("tools read differently", lambda: evil("tiny/ü.py")),
    "second name in an extra field": ("tools read differently", lambda: evil("ok.py", extra=UNICODE_PATH)),
    "twice": ("are the same", lambda: evil("tiny/__init__.py")),
    "twice but for case": ("are the same", lambda: evil("Tiny/__INIT__.py")),
    "twice but for the form of a letter": (
        "are the same",
        lambda: archive([*good(), Entry("é.py".encode(), flags=UTF8), Entry("e\u0301.py".encode(), flags=UTF8)]),
    ),
    "file and folder": ("a folder in", lambda: evil("tiny/__init__.py/evil")),
    "file and folder but for case": ("a folder in", lambda: evil("TINY")),
    "file and folder far apart": ("a folder in", lambda: archive([Entry(b"a"), Entry(b"a-b"), Entry(b"a/b"), *good()])),
    "file and folder entry": (
        "are the same",
        lambda: archive([*good(), Entry(b"x"), Entry(b"x/", b"", mode=stat.S_IFDIR)]),
    ),
    # kinds
    "symbolic link": ("special file", lambda: evil("tiny/link", data=b"/etc/passwd", mode=stat.S_IFLNK | 0o777)),
    "device": ("special file", lambda: evil("tiny/null", mode=stat.S_IFCHR | 0o666)),
    "pipe": ("special file", lambda: evil("tiny/pipe", mode=stat.S_IFIFO | 0o666)),
    "folder's mode on a file": ("special file", lambda: evil("tiny/x", mode=stat.S_IFDIR | 0o755)),
    "folder's DOS mode on a file": ("mode of a folder", lambda: evil("tiny/x", dos=0x10)),
    "file's mode on a folder": ("special file", lambda: evil("x/", data=b"", method=0)),
    "set-user-id": ("set-user-id", lambda: evil("tiny/su", mode=stat.S_IFREG | 0o4755)),
    "folder with content": ("4 bytes in", lambda: evil("x/", mode=stat.S_IFDIR)),
    # forms
    "encrypted": ("encrypted", lambda: evil("tiny/x", flags=1)),
    "strongly encrypted directory": ("encrypted", lambda: evil("tiny/x", flags=0x2000)),
    "bzip2": ("compression method 12", lambda: evil("tiny/x", method=12)),
    "method from nowhere": ("compression method 77", lambda: evil("tiny/x", method=77)),
    "another part of the archive": ("another part", lambda: evil("tiny/x", disk=1)),
    # sizes
    "more content than declared": ("more than the 1 bytes", lambda: first(size=1)),
    "no content declared": ("more than the 0 bytes", lambda: first(size=0)),
    "less content than declared": ("and declares 201", lambda: first(size=len(INIT) + 1)),
    "4 GiB declared": ("unpacked, more than 4294967296", lambda: first(size=2**32 - 2)),
    "stored with two sizes": ("200 bytes in 199", lambda: first(method=0, packed_size=199)),
    "bytes hidden after the content": ("hides 6 bytes", lambda: first(packed=deflate(INIT) + b"hidden")),
    "bomb": ("times the file's size", lambda: evil("tiny/bomb", data=bytes(70 << 20), packed=BOMB)),
    "bomb beside much honest content": (
        "73400320 bytes in",
        lambda: archive([*good(), Entry(b"x", NOISE), Entry(b"bomb", bytes(70 << 20), packed=BOMB)]),
    ),
    "impossible ratio": ("9999 bytes in 9", lambda: evil("tiny/x", size=9999, packed=b"123456789")),
    # two descriptions
    "other name before the data": ("another name", lambda: evil("tiny/x", local_name=b"../x")),
    "other method before the data": ("described differently", lambda: first(local_method=0)),
    "encrypted before the data": ("described differently", lambda: first(local_flags=1)),
    "other encoding before the data": ("described differently", lambda: first(local_flags=UTF8)),
    "other size before the data": ("described differently", lambda: first(local_size=1)),
    "other size after the data": (
        "differently after",
        lambda: first(flags=SIZES_LATER, after=struct.pack("<4s3I", b"PK\7\10", zlib.crc32(INIT), 1, 1)),
    ),
    "no size after the data": ("differently after", lambda: first(flags=SIZES_LATER)),
    # places
    "two entries over the same data": (
        "overlaps",
        lambda: archive([*good(), replace(good()[0], name=b"tiny/twin.py", local_name=b"tiny/__init__.py", offset=0)]),
    ),
    "entry inside another": (
        "overlaps",
        lambda: archive([Entry(b"q", archive([Entry(b"in")]), method=0), Entry(b"in", offset=31), *good()]),
    ),
    "hidden before the first entry": ("5 bytes before entry", lambda: first(before=b"#!/x\n")),
    "hidden between entries": ("4 bytes before entry", lambda: first(after=b"evil")),
    "an entry that the directory leaves out": (
        "belong to no entry",
        lambda: first(after=archive([Entry(b"tiny/evil.py")])[:46]),
    ),
    "hidden before the directory": ("4 bytes before the central", lambda: last(after=b"evil")),
    "hidden between directory and end": ("between its directory", lambda: archive(good(), gap=b"evil")),
    "prefixed": ("bytes before the archive", lambda: b"#!/bin/sh\n" + archive(good())),
    "comment": ("after the end record", lambda: archive(good(), comment=b"evil")),
    "appended": ("after the end record", lambda: archive(good()) + b"evil"),
    "appended archive": ("bytes before the archive", lambda: archive(good()) + archive(good())),
    "fewer entries said": ("6 entries where the end record says 5", lambda: archive(good(), count=5)),
    "several parts": ("several parts", lambda: archive(good())[:-18] + b"\1\0" + archive(good())[-16:]),
    "zip64 record elsewhere": ("not where it should", lambda: with_zip64_end(archive(good()), where=-9)),
    "two end records": (
        "contradict",
        lambda: with_zip64_end(archive(good()))[:-14] + struct.pack("<2H2IH", 5, 5, 2**32 - 1, 2**32 - 1, 0),
    ),
    "zip64 record of another directory": (
        "before the archive",
        lambda: with_zip64_end(archive(good()), start=0),
    ),
    # folders
    "second .dist-info": ("is due", lambda: evil("other-1.0.dist-info/METADATA")),
    "second .dist-info in capitals": ("is due", lambda: evil("OTHER-1.0.DIST-INFO/METADATA")),
    "second .dist-info, empty": ("is due", lambda: evil("x-1.dist-info/", data=b"", mode=stat.S_IFDIR)),
    "another project's .dist-info": (
        "is due",
        lambda: archive([replace(e, name=e.name.replace(b"tiny-", b"other-")) for e in good()]),
    ),
    "another version's .dist-info": (
        "is due",
        lambda: archive([replace(e, name=e.name.replace(b"-1.0", b"-1.1")) for e in good()]),
    ),
}  # fmt: skip

DAMAGED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty file": ("not a zip archive", lambda: b""),
    "text": ("not a zip archive", lambda: b"404 not found\n" * 9),
    "tar archive": ("not a zip archive", lambda: b"tiny" + bytes(10240)),
    "truncated": ("no end record", lambda: archive(good())[:-1]),
    "truncated to half": ("no end record", lambda: archive(good())[: len(archive(good())) // 2]),
    "without its start": ("cut off", lambda: archive(good())[100:]),
    "comment missing": ("comment", lambda: archive(good())[:-2] + b"\1\0"),
    "directory is noise": ("cannot be read", lambda: archive(good()).replace(b"PK\1\2", b"XXXX")),
    "name is not UTF-8": ("cannot be read", lambda: evil("ü").replace("ü".encode(), b"\xff\xff").replace(
        b"\x14\0\0\0\x08\0\0\0\x21\0" + struct.pack("<I", zlib.crc32(b"evil")),
        b"\x14\0\0\x08\x08\0\0\0\x21\0" + struct.pack("<I", zlib.crc32(b"evil")))),
    "extra field is cut off": ("cannot be read", lambda: evil("tiny/x", extra=struct.pack("<2H", 1, 99))),
    "empty second name": ("cannot be read", lambda: evil("ok.py", extra=NO_PATH)),
    "zip64 field is empty": ("cannot be read", lambda: evil("x", size=2**32 - 1, extra=struct.pack("<2H", 1, 0))),
    "entry elsewhere": ("is not where", lambda: archive(good()).replace(b"PK\3\4", b"PK\3\5", 1)),
    "entry runs past the end": ("is cut off", lambda: last(packed_size=9999)),
    "wrong CRC": ("wrong checksum", lambda: first(crc=1)),
    "deflate is noise": ("is damaged", lambda: first(packed=b"\xff" * 20)),
    "deflate is cut off": ("is cut off", lambda: first(packed=deflate(INIT)[:-2])),
    "nothing where something is due": ("is cut off", lambda: first(packed=b"", size=0, crc=0)),
    "no .dist-info": ("no .dist-info", lambda: archive(good()[:2])),
    "no entries": ("no .dist-info", lambda: archive([])),
    "no METADATA": ("no METADATA", lambda: without("METADATA")),
    "no WHEEL": ("no WHEEL", lambda: without("WHEEL")),
    "METADATA is not text": ("not UTF-8", lambda: without("", METADATA=b"Name: t\xff")),
    "WHEEL is not text": ("not UTF-8", lambda: without("", WHEEL=b"Tag: t\xff")),
}  # fmt: skip


def test_the_made_archives_are_good_but_for_their_lies(write: Callable[..., Path]) -> None:
    assert read_wheel(write(archive(good()))).members == FILES
    assert read_wheel(write(evil("tiny/ü.py", flags=UTF8))).members["tiny/ü.py"] == b"evil"
    assert read_wheel(write(evil("vendored/x-1.dist-info/METADATA"))).info == INFO


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_wheels_are_named_so(write: Callable[..., Path], case: str) -> None:
    words, make = HOSTILE[case]

    problem = problem_of(write(make()))

    assert problem.startswith("AW419") and words in problem


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_wheels_are_named_so(write: Callable[..., Path], case: str) -> None:
    words, make = DAMAGED[case]

    problem = problem_of(write(make()))

    assert problem.startswith("AW420") and words in problem


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"1" * 9999, b'{"a": "' + b"x" * (4 << 20) + b'"}']
)
def test_archwright_json_that_is_none_is_damage(write: Callable[..., Path], text: bytes) -> None:
    problem = problem_of(write(without("", **{"archwright.json": text})))

    assert problem.startswith("AW420") and "archwright.json" in problem


def test_limits_hold(write: Callable[..., Path]) -> None:
    path = write(archive(good()))
    total = sum(map(len, FILES.values()))

    assert read_wheel(path, max_bytes=total, max_members=6).members == FILES
    assert "unpacked, more than" in problem_of(path, max_bytes=total - 1)
    assert "bytes, more than 100" in problem_of(path, max_bytes=100)
    assert "more than 5 entries" in problem_of(path, max_members=5)


def test_many_small_bombs_are_one(write: Callable[..., Path]) -> None:
    bombs = [Entry(f"tiny/{i}".encode(), bytes(1 << 20)) for i in range(66)]

    assert "times the file's size" in problem_of(write(archive([*good(), *bombs])))


def test_a_bomb_takes_neither_time_nor_memory(write: Callable[..., Path]) -> None:
    """Whatever the directory says, no more than that is unpacked."""
    path = write(evil("tiny/bomb", data=b"\0", packed=deflate(*[bytes(1 << 20)] * 300), crc=0))
    code = (
        "import resource, sys; from pathlib import Path; from archwright.wheelfile import read_wheel\n"
        "resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))\n"
        "try: read_wheel(Path(sys.argv[1]))\n"
        "except Exception as error: print(error)"
    )

    start = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)

    assert "has more than the 1 bytes that it declares" in result.stdout, result.stderr
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "name",
    [
        "tiny.whl",
        "tiny-1.0.whl",
        "tiny-1.0-cp312-cp312-any.zip",
        "tiny-1.0-cp312-cp312-.whl",
        "tiny-1.0--cp312-cp312-any.whl",
        "tiny-x1.0-cp312-cp312-any.whl",
        "tiny-1.0-b1-cp312-cp312-any.whl",
        "tiny-1.0-1-2-cp312-cp312-any.whl",
        "tiny-1.0+a+b-cp312-cp312-any.whl",
        "tiny-1.0-cp312-cp312-any..x.whl",
        "tiny-1.0-cp312-cp312-any.whl\n",
        "tïny-1.0-cp312-cp312-any.whl",
        ".tiny-1.0-cp312-cp312-any.whl",
        "ti ny-1.0-cp312-cp312-any.whl",
    ],
)
def test_a_file_without_a_wheels_name_is_none(write: Callable[..., Path], name: str) -> None:
    problem = problem_of(write(archive(good()), name))

    assert problem.startswith("AW420") and "not the name of a wheel" in problem


def test_names_are_split_at_their_dashes(write: Callable[..., Path]) -> None:
    entries = [replace(e, name=e.name.replace(b"tiny-1.0+cu132.sm100.dist", b"Ti.ny-2!1.0rc1.dist")) for e in good()]

    wheel = read_wheel(write(archive(entries), "ti_ny-2!1.0rc1-7_b-py2.py3-none-any.whl"))

    assert (wheel.name, wheel.version, wheel.build) == ("ti_ny", "2!1.0rc1", "7_b")
    assert (wheel.python, wheel.abi, wheel.platform) == ("py2.py3", "none", "any")


def test_what_is_not_a_readable_file_says_what_the_system_says(tmp_path: Path) -> None:
    folder, pipe = tmp_path / "a-1-py3-none-any.whl", tmp_path / "b-1-py3-none-any.whl"
    folder.mkdir()
    os.mkfifo(pipe)

    assert "AW420" in problem_of(folder)
    assert "AW420" in problem_of(pipe)
    assert "No such file" in problem_of(tmp_path / FILE_NAME)
    assert "Not a directory" in problem_of(Path(__file__) / FILE_NAME)
    assert "AW420" in problem_of(tmp_path / f"\0{FILE_NAME}")
    (tmp_path / "c-1-py3-none-any.whl").symlink_to("/proc/self/status")
    assert "changed while it was read" in problem_of(tmp_path / "c-1-py3-none-any.whl")
    assert "File name too long" in problem_of(tmp_path / ("x" * 999 + FILE_NAME))
