"""Reading hash locks: exact versions with sha256 hashes, and no address of anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from .errors import ArchwrightError, fail
from .targets import target_table

__all__ = ["LockedPackage", "lock_content", "packages_for", "read_lock"]

_HASH = re.compile(r"\s--hash=sha256:([0-9a-f]{64})(?=\s|$)")
_COMMENT = re.compile(r"\s+#")


@dataclass(frozen=True)
class LockedPackage:
    """One pinned package. `hashes` are the sha256 of each file that may be installed, sorted.

    `why` are the lines of comment below it in the lock: what asks for it, and the reason of a pin, which is also in
    `reason` as one text.
    """

    name: str
    version: Version
    hashes: tuple[str, ...]
    marker: str
    why: tuple[str, ...]
    reason: str = ""

    @property
    def requirement(self) -> str:
        """The line of a requirements file that asks for exactly this; without the marker."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{digest}" for digest in self.hashes)])


def lock_content(path: Path) -> list[list[Any]]:
    """What a lock says, for digests: its packages by name, without comments. Raises AW319."""
    return sorted(
        [package.name, str(package.version), package.hashes, *([package.marker] if package.marker else [])]
        for package in read_lock(path).values()
    )


def packages_for(path: Path, processor: str | None = None, *, python: str | None = None) -> dict[str, LockedPackage]:
    """The packages of the lock that are installed on `processor` (default: this one) with the full version `python`.

    Raises AW319.
    """
    python = python or f"{target_table().python}.0"
    where = {
        "python_full_version": python,
        "implementation_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        **({"platform_machine": processor} if processor else {}),
    }
    packages = read_lock(path)
    return {name: p for name, p in packages.items() if not p.marker or Marker(p.marker).evaluate({**where})}


def read_lock(path: Path) -> dict[str, LockedPackage]:
    """The packages of a hash lock by canonical name, in the lock's order.

    Raises AW319 for a file that is missing or not a lock: a requirement without an exact version or without a hash,
    one that is there twice, an address, an option, or a letter that other readers may take for the end of a line.
    """
    try:
        lines = path.read_bytes().decode("utf-8").replace("\r\n", "\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, 0, str(error)) from error
    for number, line in enumerate(lines, start=1):
        if not line.replace("\t", " ").isprintable():
            raise _unreadable(path, number, f"a control character in {line[:80]!a}")
    packages: dict[str, LockedPackage] = {}
    for number, text, comments in _requirements(path, lines):
        package = _package(path, number, text, comments)
        if package.name in packages:
            raise _unreadable(path, number, f"{package.name} is there twice")
        packages[package.name] = package
    if not packages:
        raise _unreadable(path, 0, "no package in it")
    return packages


def _requirements(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """The first line's number, the joined text, and the comments of each requirement."""
    number = 0
    while number < len(lines):
        start, text = number + 1, lines[number]
        while text.endswith("\\"):
            number += 1
            following = lines[number].strip() if number < len(lines) else ""
            if not following or following.startswith("#"):
                raise _unreadable(path, start, f"'{text[:80]}' is cut off")
            text = f"{text[:-1]} {following}"
        number += 1
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        first = number
        while number < len(lines) and _COMMENT.match(lines[number]):
            number += 1
        yield start, text, [line.strip() for line in lines[first:number]]


def _package(path: Path, number: int, text: str, comments: Sequence[str]) -> LockedPackage:
    hashes = _HASH.findall(text)
    stated = _HASH.sub("", text).strip()
    shown = stated[:80]
    if stated.startswith("-"):
        raise _unreadable(path, number, f"'{shown}' is an option")
    try:
        wanted = Requirement(stated)
        (specifier,) = wanted.specifier
        version = Version(specifier.version)
    except (InvalidRequirement, InvalidVersion, ValueError) as error:
        raise _unreadable(path, number, f"'{shown}' is no `name==version` with sha256 hashes") from error
    if specifier.operator != "==" or not hashes:
        raise _unreadable(path, number, f"'{shown}' has no {'hash' if not hashes else 'exact version'}")
    return LockedPackage(
        canonicalize_name(wanted.name),
        version,
        tuple(sorted(set(hashes))),
        str(wanted.marker or ""),
        tuple(line.lstrip("# ") for line in comments),
        _reason(comments),
    )


def _reason(comments: Sequence[str]) -> str:
    """The text after `# reason:`, with the lines that go on with it: they are indented further."""
    words: list[str] = []
    inside = False
    for line in comments:
        text = line.removeprefix("#")
        if text.strip().startswith("reason:"):
            inside, text = True, text.strip().removeprefix("reason:")
        elif not text.startswith("  "):
            inside = False
        if inside:
            words += text.split()
    return " ".join(words)


def _unreadable(path: Path, number: int, what: str) -> ArchwrightError:
    return fail(
        "AW319",
        found=f"{path}{f', line {number}' if number else ''}: {what}",
        needed="a lock as `archwright env lock` writes it",
        why="only exact versions with hashes reproduce an environment",
        fix="`git checkout` the lock, or make it again: `archwright env lock`",
    )
