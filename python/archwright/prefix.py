"""What a prefix holds: every file and link in it, and the packages that claim them.

Nothing outside a prefix is read, whatever a package's list of files says: only what the walk finds is opened, and the
walk follows no link.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

__all__ = ["Entry", "Package", "Prefix", "read_prefix"]

_STRONG = ("sha256", "sha384", "sha512")


@dataclass(frozen=True)
class Entry:
    """A file, or a link with its target as it is written. Devices and pipes are neither."""

    mode: int
    link: str | None

    @property
    def regular(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def executable(self) -> bool:
        """Whether the owner may run it. The other bits follow from a umask, and change nothing."""
        return self.regular and bool(self.mode & stat.S_IXUSR)


@dataclass(frozen=True)
class Package:
    """An installed package. Paths are relative to the prefix; `record` is the list of its files, which may be absent.

    `hashes` maps a path to (algorithm, hexadecimal digest). `unhashed` are its files without a digest that counts.
    `problem` says why the list cannot be trusted.
    """

    name: str
    version: str
    record: str
    hashes: dict[str, tuple[str, str]]
    unhashed: frozenset[str]
    problem: str = ""


@dataclass(frozen=True)
class Prefix:
    """Everything below `root` but folders and `__pycache__`, whose files Python makes as it likes."""

    root: Path
    entries: dict[str, Entry]
    packages: tuple[Package, ...]


def read_prefix(root: Path) -> Prefix:
    """Walk `root` and read its packages' lists. OSError when a folder or a list cannot be read.

    A conda prefix lists its files in conda-meta/*.json, with sha256 in `paths_data`: another source of `Package`s.
    """
    entries = dict(sorted(_walk(root, "")))
    return Prefix(root, entries, tuple(_wheels(root, entries)))


def _walk(root: Path, folder: str) -> Iterator[tuple[str, Entry]]:
    with os.scandir(root / folder) as found:
        for item in found:
            path = f"{folder}/{item.name}" if folder else item.name
            if item.is_symlink():
                yield path, Entry(stat.S_IFLNK, str(Path(item.path).readlink()))
            elif not item.is_dir():
                yield path, Entry(item.stat(follow_symlinks=False).st_mode, None)
            elif item.name != "__pycache__":
                yield from _walk(root, path)


def _wheels(root: Path, entries: dict[str, Entry]) -> Iterator[Package]:
    """The packages that pip or uv installed: each has a folder `<name>-<version>.dist-info` in site-packages."""
    pattern = re.compile(r"(lib/python3\.\d+t?/site-packages)/([^/]+)\.dist-info/")
    found = {match[0]: match for path in entries if (match := pattern.match(path))}
    for folder, match in found.items():
        name, _, version = match[2].rpartition("-")
        if (entry := entries.get(f"{folder}METADATA")) and entry.regular:
            head = (root / folder / "METADATA").read_bytes().partition(b"\n\n")[0]
            stated, _ = parse_email(head)
            name, version = stated.get("name", name), stated.get("version", version)
        hashes: dict[str, tuple[str, str]] = {}
        unhashed: set[str] = set()
        problem = ""
        if (entry := entries.get(f"{folder}RECORD")) and entry.regular:
            try:
                _read_record((root / folder / "RECORD").read_bytes(), match[1], hashes, unhashed)
            except (ValueError, csv.Error) as error:
                problem = str(error)
        record = f"{folder}RECORD"
        yield Package(canonicalize_name(name), version, record, hashes, frozenset(unhashed - {record}), problem)


def _read_record(data: bytes, site: str, hashes: dict[str, tuple[str, str]], unhashed: set[str]) -> None:
    """Add what RECORD lists to `hashes` or `unhashed`. ValueError for a line that cannot be meant."""
    for number, row in enumerate(csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True), start=1):
        if not row:
            continue
        if len(row) != 3:
            raise ValueError(f"line {number} has {len(row)} fields instead of 3")
        path = posixpath.normpath(posixpath.join(site, row[0]))
        if row[0].startswith("/") or path == ".." or path.startswith("../") or "\0" in path:
            raise ValueError(f"line {number} names {row[0]!a}, which is outside the prefix")
        if "__pycache__" in path.split("/"):
            continue
        algorithm, _, encoded = row[1].partition("=")
        if algorithm in _STRONG:
            hashes[path] = (algorithm, _hexadecimal(number, algorithm, encoded))
        else:
            unhashed.add(path)


def _hexadecimal(number: int, algorithm: str, encoded: str) -> str:
    try:
        digest = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != hashlib.new(algorithm).digest_size:
        raise ValueError(f"line {number} has no {algorithm} digest")
    return digest.hex()
