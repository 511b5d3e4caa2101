"""Reading a wheel that nobody vouches for, without unpacking it to disk.

A zip archive says everything twice: in the central directory, and in front of each entry. Tools believe one or the
other, so an archive whose two halves disagree holds different files for different tools. Only archives in which every
byte has one meaning are read here; everything else is hostile (AW419) or damaged (AW420).

`json` is imported where it is used: `archwright inspect` has to start fast.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import io
import re
import stat
import struct
import unicodedata
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from .errors import ArchwrightError, fail

__all__ = ["WheelFile", "canonical_name", "check_record", "read_wheel"]

#: The form of a wheel's file name; no part can hold a dash, so there is one way to split it.
_FILE_NAME = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?)"
    r"-(?P<version>[0-9][A-Za-z0-9_.!]*(?:\+[A-Za-z0-9_.]+)?)"
    r"(?:-(?P<build>[0-9][A-Za-z0-9_.]*))?"
    r"-(?P<python>[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)"
    r"-(?P<abi>[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)"
    r"-(?P<platform>[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)\.whl"
)
#: `archwright.json` is ours and small: kernels by the thousand fit into this.
_MAX_JSON = 4 << 20
#: Deflate cannot do better than 258 bytes from 2 bits.
_DEFLATE_LIMIT = 1032
#: Above this size a suspicious ratio counts: a few kilobytes of zeros are no bomb.
_LARGE = 64 << 20
#: Flags of an entry that change nothing here: how hard deflate tried, sizes after the data, names in UTF-8.
_FLAGS_ALLOWED = 0x0002 | 0x0004 | 0x0008 | 0x0800
_FLAG_DESCRIPTOR = 0x0008
_FLAG_UTF8 = 0x0800
_STRONG = frozenset(["sha256", "sha384", "sha512"])
_TOO_BIG_FOR_32 = 0xFFFFFFFF


class _Hostile(Exception):
    """What is wrong with the archive, on purpose as it seems: becomes AW419."""


class _Damaged(Exception):
    """What is wrong with the archive, by accident as it seems: becomes AW420."""


@dataclass(frozen=True)
class WheelFile:
    """A wheel, read whole. `members` holds the files' content; folders are left out."""

    path: Path
    sha256: str
    size: int
    members: dict[str, bytes] = field(repr=False)
    name: str
    version: str
    build: str
    python: str
    abi: str
    platform: str
    info: str

    def fields(self, file: str, name: str) -> tuple[str, ...]:
        """The values of a field of METADATA or WHEEL, in their order. `email` would take longer than all the rest."""
        head = self.members[f"{self.info}/{file}"].decode().replace("\r\n", "\n").partition("\n\n")[0]
        lines = (line.partition(":") for line in head.split("\n"))
        return tuple(value.strip() for key, _, value in lines if key.lower() == name.lower())

    def wheel_tags(self) -> tuple[str, ...]:
        """The tags that the file WHEEL lists."""
        return self.fields("WHEEL", "Tag")

    def archwright(self) -> dict[str, Any] | None:
        """What Archwright wrote down about the wheel; None for a wheel of another tool."""
        return self._record

    @functools.cached_property
    def _record(self) -> dict[str, Any] | None:
        import json  # not every wheel has one

        text = self.members.get(f"{self.info}/archwright.json")
        if text is None:
            return None
        if len(text) > _MAX_JSON:
            raise _damaged(self.path, f"archwright.json has more than {_MAX_JSON >> 20} MiB")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _damaged(self.path, f"archwright.json is not JSON ({error})") from error
        if not isinstance(content, dict):
            raise _damaged(self.path, "archwright.json is not a JSON object")
        return content


def read_wheel(path: Path, *, max_bytes: int = 4 << 30, max_ratio: int = 200, max_members: int = 0xFFFF) -> WheelFile:
    """Read the wheel at `path` into memory, once: what is hashed is what is looked at.

    `max_bytes` bounds the file as well as its unpacked content; `max_ratio` is how many times its packed size an entry
    (or the whole) of more than 64 MiB may have. Raises AW419 for a hostile wheel, AW420 for one that cannot be read.
    """
    try:
        data, parts = _read_file(path, max_bytes)
        start, count = _find_directory(data, max_members)
        entries = _read_directory(data, count)
        _check_names([entry.filename for entry in entries])
        _check_sizes(entries, len(data), max_bytes, max_ratio)
        members = {
            entry.filename: content
            for entry, content in _read_entries(data, entries, start)
            if not entry.filename.endswith("/")
        }
        tops = {entry.filename.partition("/")[0] for entry in entries}
        info = _find_info(tops, members, parts["name"], parts["version"])
    except _Hostile as problem:
        raise fail(
            "AW419",
            found=f"{_show(path.name)}: {problem}",
            needed="a wheel in which every byte has one meaning, and every file a plain place inside",
            why="tools would read different files in it, write outside its folder, or fill the disk",
            fix="do not install it; delete it, and tell whoever runs the index or mirror that served it",
        ) from problem
    except _Damaged as problem:
        raise _damaged(path, str(problem)) from problem
    wheel = WheelFile(path, hashlib.sha256(data).hexdigest(), len(data), members, **parts, info=info)
    wheel.archwright()  # says now that it is not JSON, not when somebody asks
    return wheel


def _damaged(path: Path, what: str) -> ArchwrightError:
    return fail(
        "AW420",
        found=f"{_show(path.name)}: {what}",
        needed="a complete wheel, under the name that it was built with",
        why="what cannot be read cannot be inspected, and installing it would fail or install half of it",
        fix="check the path; build the wheel or download it again, and do not rename it",
    )


def _show(name: str) -> str:
    """`name` for a message: on one line, without control characters, and not without end."""
    plain = name if name.isprintable() else ascii(name)[1:-1]
    return plain if len(plain) <= 200 else f"{plain[:200]}..."


def _read_file(path: Path, max_bytes: int) -> tuple[bytes, dict[str, str]]:
    """The bytes of the file, and the parts of its name."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise _Damaged("not a file")
        parts = _FILE_NAME.fullmatch(path.name)
        if parts is None:
            raise _Damaged("not the name of a wheel (name-version-python-abi-platform.whl)")
        with path.open("rb") as file:
            size = path.stat().st_size
            if size > max_bytes:
                raise _Hostile(f"{size} bytes, more than {max_bytes}")
            data = file.read(size + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise _Damaged(getattr(error, "strerror", None) or str(error)) from error
    if len(data) != size:
        raise _Damaged("changed while it was read")
    return data, parts.groupdict(default="")


def _find_directory(data: bytes, max_members: int) -> tuple[int, int]:
    """Where the central directory starts, and how many entries it has.

    The end record must be the last 22 bytes (no comment: anything can hide there) and the directory must touch it.
    """
    end = len(data) - 22
    found = data.rfind(b"PK\5\6", max(0, end - 0xFFFF))
    if found < 0 or found > end:
        raise _Damaged("no end record: not a zip archive, or a truncated one")
    if found != end:
        raise _Hostile(f"{end - found} bytes after the end record")
    disk, first_disk, here, count, size, start, comment = struct.unpack_from("<4H2IH", data, end + 4)
    if comment:
        raise _Damaged("the comment after the end record is missing")
    if end >= 76 and data[end - 20 : end - 16] == b"PK\6\7":
        small = (disk, first_disk, here, count, size, start)
        end -= 76
        disk, first_disk, here, count, size, start = _zip64_end(data, end, small)
    if disk or first_disk or here != count:
        raise _Hostile("an archive of several parts")
    if start + size > end:
        raise _Damaged("the central directory is cut off")
    if start + size < end:
        raise _Hostile("bytes before the archive, or between its directory and its end")
    # Each entry starts with this signature, so that the library cannot be made to hold more of them than this.
    if max(count, data.count(b"PK\1\2", start, end)) > max_members:
        raise _Hostile(f"more than {max_members} entries")
    return start, count


def _zip64_end(data: bytes, end: int, small: tuple[int, ...]) -> tuple[int, ...]:
    """The fields of the large end record at `end`, which the `small` one must repeat where they fit."""
    disk, where, disks = struct.unpack_from("<IQI", data, end + 60)
    signature, size, *fields = struct.unpack_from("<4sQ4x2I4Q", data, end)
    if (disk, where, disks, signature, size) != (0, end, 1, b"PK\6\6", 44):
        raise _Hostile("a zip64 end record that is not where it should be")
    for value, short, limit in zip(fields, small, [0xFFFF] * 4 + [_TOO_BIG_FOR_32] * 2, strict=True):
        if short not in (value, limit):
            raise _Hostile("two end records that contradict each other")
    return tuple(fields)


def _read_directory(data: bytes, count: int) -> list[zipfile.ZipInfo]:
    """The entries of the central directory in the order of their data, each looked at alone."""
    try:
        with warnings.catch_warnings(action="error"), zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, OverflowError, UserWarning) as error:
        raise _Damaged(f"the central directory cannot be read ({_show(str(error))})") from error
    if len(entries) != count:
        raise _Hostile(f"{len(entries)} entries where the end record says {count}")
    for entry in entries:
        _check_entry(entry)
    return sorted(entries, key=lambda entry: entry.header_offset)


def _check_entry(entry: zipfile.ZipInfo) -> None:
    """Raise for a name, kind or form that no honest wheel has."""
    name, shown = entry.orig_filename, _show(entry.orig_filename)
    folder = name.endswith("/")
    if name != entry.filename or not name.isprintable() or not (name.isascii() or entry.flag_bits & _FLAG_UTF8):
        raise _Hostile(f"entry '{shown}' with a control character, or a name that tools read differently")
    if "\\" in name or re.match("[A-Za-z]:", name):
        raise _Hostile(f"entry '{shown}' with a backslash or a drive letter")
    if not {"", ".", ".."}.isdisjoint(name.removesuffix("/").split("/")):
        raise _Hostile(f"entry '{shown}' with an absolute path, '..' or an empty part")
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFDIR if folder else stat.S_IFREG):
        raise _Hostile(f"entry '{shown}' is a link or another special file")
    if not folder and (mode & (stat.S_ISUID | stat.S_ISGID) or entry.external_attr & 0x10):
        raise _Hostile(f"entry '{shown}' with the mode of a folder, or with set-user-id")
    if entry.flag_bits & ~_FLAGS_ALLOWED:
        raise _Hostile(f"entry '{shown}' is encrypted or has unknown flags ({entry.flag_bits:#x})")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _Hostile(f"entry '{shown}' with compression method {entry.compress_type}")
    if entry.volume:
        raise _Hostile(f"entry '{shown}' in another part of the archive")


def _check_names(names: list[str]) -> None:
    """Raise for names that would be one file on some system, or a file and a folder at once.

    With "/" sorted before everything else, a file's name stands right before what lies in the folder of that name.
    """

    def key(name: str) -> str:
        return unicodedata.normalize("NFC", name.removesuffix("/")).casefold().replace("/", "\0")

    for (first, name), (second, other) in pairwise(sorted((key(name), name) for name in names)):
        if first == second:
            raise _Hostile(f"entries '{_show(name)}' and '{_show(other)}' are the same")
        if second.startswith(f"{first}\0") and not name.endswith("/"):
            raise _Hostile(f"entry '{_show(name)}' is a file, and a folder in '{_show(other)}'")


def _check_sizes(entries: list[zipfile.ZipInfo], packed: int, max_bytes: int, max_ratio: int) -> None:
    """Raise for declared sizes that are too large or impossible; reading then holds entries to what they declared."""
    total = sum(entry.file_size for entry in entries)
    if total > max_bytes:
        raise _Hostile(f"{total} bytes unpacked, more than {max_bytes}")
    if total > _LARGE and total > max_ratio * packed:
        raise _Hostile(f"{total} bytes unpacked, more than {max_ratio} times the file's size")
    for entry in entries:
        size, limit = entry.file_size, entry.compress_size
        if entry.compress_type == zipfile.ZIP_STORED:
            possible = size == limit
        else:
            possible = size <= limit * (max_ratio if size > _LARGE else _DEFLATE_LIMIT)
        if not possible or (size and entry.filename.endswith("/")):
            raise _Hostile(f"entry '{_show(entry.filename)}' with {size} bytes in {limit}")


def _read_entries(data: bytes, entries: list[zipfile.ZipInfo], end: int) -> Iterator[tuple[zipfile.ZipInfo, bytes]]:
    """Each entry with its content. They must follow one another, from the first byte up to the directory at `end`."""
    position = 0
    for entry in entries:
        shown = _show(entry.filename)
        if entry.header_offset < position:
            raise _Hostile(f"entry '{shown}' overlaps another")
        if entry.header_offset > position:
            raise _Hostile(f"{entry.header_offset - position} bytes before entry '{shown}' belong to no entry")
        begin, described = _check_local(data, entry, end)
        position = begin + entry.compress_size
        if position > end:
            raise _Damaged(f"entry '{shown}' is cut off")
        yield entry, _unpack(entry, memoryview(data)[begin:position])
        if described:
            position += _descriptor_size(data, entry, position)
    if position > end:
        raise _Damaged("the last entry is cut off")
    if position < end:
        raise _Hostile(f"{end - position} bytes before the central directory belong to no entry")


def _check_local(data: bytes, entry: zipfile.ZipInfo, end: int) -> tuple[int, bool]:
    """Compare the header in front of the data with the directory; where the data starts, and if sizes follow it."""
    offset, shown = entry.header_offset, _show(entry.filename)
    if offset + 30 > end or data[offset : offset + 4] != b"PK\3\4":
        raise _Damaged(f"entry '{shown}' is not where the directory says")
    flags, method, crc, packed, size, name_size, extra_size = struct.unpack_from("<2x2H4x3I2H", data, offset + 4)
    begin = offset + 30 + name_size + extra_size
    name, extra = data[offset + 30 : offset + 30 + name_size], data[begin - extra_size : begin]
    if name != entry.orig_filename.encode("utf-8" if entry.flag_bits & _FLAG_UTF8 else "cp437"):
        raise _Hostile(f"entry '{shown}' has another name in front of its data: '{_show(name.decode('latin-1'))}'")
    described = bool(flags & _FLAG_DESCRIPTOR)
    if _TOO_BIG_FOR_32 in (size, packed):
        size, packed = _zip64_sizes(extra) or (size, packed)
    expected = (entry.CRC, entry.compress_size, entry.file_size)
    pairs = zip((crc, packed, size), expected, strict=True)
    same = all(here == there or (described and here == 0) for here, there in pairs)
    if flags & ~_FLAGS_ALLOWED or (flags ^ entry.flag_bits) & _FLAG_UTF8 or method != entry.compress_type or not same:
        raise _Hostile(f"entry '{shown}' is described differently in front of its data")
    return begin, described


def _zip64_sizes(extra: bytes) -> tuple[int, int] | None:
    """The unpacked and packed size in the extra field for large entries; None where there is none."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<2H", extra)
        if kind == 1 and 16 <= size <= len(extra) - 4:
            unpacked, packed = struct.unpack_from("<2Q", extra, 4)
            return unpacked, packed
        extra = extra[4 + size :]
    return None


def _descriptor_size(data: bytes, entry: zipfile.ZipInfo, position: int) -> int:
    """How many bytes the sizes after an entry's data take: with or without signature, 4 or 8 bytes each."""
    for form in ("<4sI2Q", "<4s3I", "<I2Q", "<3I"):
        fields = (entry.CRC, entry.compress_size, entry.file_size)
        try:
            expected = struct.pack(form, *([b"PK\7\10"] if "s" in form else []), *fields)
        except struct.error:  # too big for four bytes
            continue
        if data.startswith(expected, position):
            return len(expected)
    raise _Hostile(f"entry '{_show(entry.filename)}' is described differently after its data")


def _unpack(entry: zipfile.ZipInfo, packed: memoryview) -> bytes:
    """The content of an entry, never more than a byte above what the directory declares."""
    shown = _show(entry.filename)
    if entry.compress_type == zipfile.ZIP_STORED:
        content = bytes(packed)
    else:
        inflate = zlib.decompressobj(-15)
        try:
            content = inflate.decompress(packed, entry.file_size + 1)
        except zlib.error as error:
            raise _Damaged(f"entry '{shown}' is damaged ({error})") from error
        if len(content) > entry.file_size:
            raise _Hostile(f"entry '{shown}' has more than the {entry.file_size} bytes that it declares")
        if not inflate.eof:
            raise _Damaged(f"entry '{shown}' is cut off")
        if inflate.unused_data:
            raise _Hostile(f"entry '{shown}' hides {len(inflate.unused_data)} bytes after its content")
        if len(content) < entry.file_size:
            raise _Hostile(f"entry '{shown}' has {len(content)} bytes, and declares {entry.file_size}")
    if zlib.crc32(content) != entry.CRC:
        raise _Damaged(f"entry '{shown}' has a wrong checksum (CRC)")
    return content


def _find_info(tops: set[str], members: dict[str, bytes], name: str, version: str) -> str:
    """The one .dist-info folder among `tops`, the names at the top of the wheel; its METADATA and WHEEL are text."""
    found = sorted(top for top in tops if top.lower().endswith(".dist-info"))
    if not found:
        raise _Damaged("no .dist-info folder")
    info = found[0]
    its_name, _, its_version = info.removesuffix(".dist-info").rpartition("-")
    if len(found) > 1 or canonical_name(its_name) != canonical_name(name) or its_version != version:
        raise _Hostile(f"the folder {_show(', '.join(found))} where '{name}-{version}.dist-info' is due")
    for file in ("METADATA", "WHEEL"):
        try:
            members[f"{info}/{file}"].decode()
        except KeyError:
            raise _Damaged(f"no {file}") from None
        except UnicodeDecodeError as error:
            raise _Damaged(f"{file} is not UTF-8 text ({error.reason})") from error
    return info


def canonical_name(name: str) -> str:
    """A distribution's name as indexes compare it (packaging has the same, and takes 20 ms to import)."""
    return re.sub("[-_.]+", "-", name).lower()


def check_record(wheel: WheelFile) -> list[str]:
    """Compare the wheel's files with its RECORD; each problem is a phrase, none means that all is well."""
    own = f"{wheel.info}/RECORD"
    if own not in wheel.members:
        return ["RECORD is missing"]
    try:
        rows = list(csv.reader(io.StringIO(wheel.members[own].decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        return [f"RECORD is not a table ({error})"]
    problems: list[str] = []
    listed: set[str] = set()
    for row in rows:
        if len(row) != 3:
            problems.append(f"RECORD has a line of {len(row)} fields, not 3: {_show(','.join(row))}")
            continue
        name, digest, size = row
        if name in listed:
            problems.append(f"{_show(name)}: twice in RECORD")
        listed.add(name)
        if name == own:
            problems += ["RECORD: has a hash or size of itself"] if digest or size else []
        elif name not in wheel.members:
            problems.append(f"{_show(name)}: in RECORD, not in the wheel")
        else:
            problems += [f"{_show(name)}: {what}" for what in _check_row(wheel.members[name], digest, size)]
    unlisted = wheel.members.keys() - listed - {f"{own}.jws", f"{own}.p7s"}  # signatures are made after RECORD
    return problems + [f"{_show(name)}: not in RECORD" for name in sorted(unlisted)]


def _check_row(content: bytes, digest: str, size: str) -> Iterator[str]:
    algorithm, _, value = digest.partition("=")
    if not digest:
        yield "no hash"
    elif algorithm not in _STRONG:
        yield f"hash algorithm '{_show(algorithm)}' is weak or unknown"
    elif value != base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode():
        yield "wrong hash"
    if size != str(len(content)):
        yield f"wrong size ('{_show(size)}', not {len(content)})" if size else "no size"
