"""`archwright env diff`: what changes from one lock to another, in the order in which a person asks.

Two hash locks, two conda locks (compared for each platform), or two folders of locks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from .errors import ArchwrightError, fail
from .lockfile import read_lock

if TYPE_CHECKING:
    from .condalock import CondaLock

__all__ = ["Change", "ChangeKind", "LockComparison", "LockDiff", "compare_locks"]

#: What matters first: the first pattern that fits a package's name gives its rank. The rest follows by name.
_FIRST = (
    ("cuda-*", "nvidia-*", "cudnn", "libcu*", "libnv*", "libnpp*", "torch", "torch-npu", "pytorch*", "nccl", "cann*"),
    ("triton", "tilelang", "apache-tvm-ffi", "flash-attn*", "tile-kernels", "quack-kernels"),
    ("python", "gcc*", "gxx*", "binutils*", "sysroot*", "libgcc*", "libstdcxx*", "ld_impl*", "kernel-headers*"),
    ("cmake", "ninja", "ccache", "scikit-build-core", "pybind11", "setuptools", "elfutils", "patchelf", "auditwheel"),
)
_MADE_FOR = re.compile(r"^# Made by .*, for (Python .*)\.$", re.M)
_NOT_COMPARED = ("AW316", "AW320")  # not yet locked; what reads conda locks is not installed: no fault of a folder's


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    UPGRADED = "upgraded"
    DOWNGRADED = "downgraded"
    OTHER_VERSION = "other version"  # of a kind that cannot be ordered
    REBUILT = "rebuilt"  # conda: the same version, another build
    OTHER_FILES = "other files"  # the same version with other hashes
    OTHER_MARKER = "other marker"
    OTHER_REASON = "other reason"


@dataclass(frozen=True)
class Change:
    """One package that is not the same in both locks.

    `step` says how far the version moved: major, minor or patch. `notes` are what else changes, in sentences.
    `suspicious` is a version whose files were replaced: of a published file an index never changes a byte.
    """

    package: str
    kind: ChangeKind
    old: str
    new: str
    step: str
    notes: tuple[str, ...]
    suspicious: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kind": str(self.kind), "notes": list(self.notes)}


@dataclass(frozen=True)
class LockComparison:
    """Two locks of one name. `platform` is conda's; hash locks serve every platform."""

    lock: str
    platform: str
    packages: int
    changes: tuple[Change, ...]

    @property
    def title(self) -> str:
        return f"{self.lock} for {self.platform}" if self.platform else self.lock

    @property
    def summary(self) -> str:
        """`runtime.lock: 12 of 66 packages change: 3 upgraded (1 major), 9 added`"""
        if not self.changes:
            return f"{self.title}: the same {_count(self.packages, 'package')}"
        kinds = Counter(change.kind for change in self.changes)
        major = Counter(change.kind for change in self.changes if change.step == "major")
        words = [
            f"{kinds[kind]} {kind}{f' ({major[kind]} major)' if major[kind] else ''}"
            for kind in ChangeKind
            if kinds[kind]
        ]
        if suspicious := sum(change.suspicious for change in self.changes):
            words.append(f"{suspicious} suspicious")
        verb = "changes" if len(self.changes) == 1 else "change"
        return f"{self.title}: {len(self.changes)} of {_count(self.packages, 'package')} {verb}: {', '.join(words)}"

    def lines(self) -> Iterator[str]:
        yield self.summary
        name = max((len(change.package) for change in self.changes), default=0)
        versions = {change.package: _versions(change) for change in self.changes}
        width = max(map(len, versions.values()), default=0)
        for change in self.changes:
            kind = f"{change.kind}, {change.step}" if change.step else str(change.kind)
            yield f"  {change.package:{name}}  {versions[change.package]:{width}}  {kind}".rstrip()
            yield from (f"      {note}" for note in change.notes)


@dataclass(frozen=True)
class LockDiff:
    """What `compare_locks` found. `notes` are about whole locks: one that is on one side only, or other platforms."""

    old: str
    new: str
    locks: tuple[LockComparison, ...]
    notes: tuple[str, ...]
    same: bool

    @property
    def summary(self) -> str:
        return "; ".join((*(lock.summary for lock in self.locks), *self.notes))

    def as_dict(self) -> dict[str, Any]:
        locks = [
            {
                "lock": lock.lock,
                "platform": lock.platform,
                "packages": lock.packages,
                "summary": lock.summary,
                "changes": [change.as_dict() for change in lock.changes],
            }
            for lock in self.locks
        ]
        notes = list(self.notes)
        return {"old": self.old, "new": self.new, "same": self.same, "locks": locks, "notes": notes}

    def lines(self) -> tuple[str, ...]:
        return (*(line for lock in self.locks for line in lock.lines()), *self.notes)


def compare_locks(old: Path, new: Path) -> LockDiff:
    """Compare two locks, or two folders with locks by their names.

    Raises AW109 when the two are not of one kind, AW319 when one cannot be read, AW316 when one is not yet locked.
    """
    if old.is_dir() != new.is_dir() or (old.is_file() and new.is_file() and _is_conda(old) != _is_conda(new)):
        raise fail(
            "AW109",
            found=f"{_kind(old)} {old} and {_kind(new)} {new}",
            needed="two hash locks, two conda locks, or two folders with locks",
            why="they name packages and builds differently: nearly every line would differ and mean nothing",
            fix="compare locks of one flavour, such as two versions of envs/sm100/runtime.lock",
        )
    if not old.is_dir():
        locks, notes, differ = _compare(old, new, new.name)
        return LockDiff(str(old), str(new), locks, notes, not differ)
    return _compare_folders(old, new)


def _compare_folders(old: Path, new: Path) -> LockDiff:
    ours, theirs = _locks(old), _locks(new)
    if not ours or not theirs:
        raise fail(
            "AW109",
            found=f"no lock in {old if not ours else new}",
            needed="a folder with .lock files or a conda-lock.yml, such as envs/sm100",
            why="there is nothing to compare",
            fix="name two of the folders in envs/, or two locks",
        )
    locks: list[LockComparison] = []
    notes = [f"{name} is only in {old if name in ours else new}" for name in sorted(ours ^ theirs)]
    differ = bool(notes)
    for name in sorted(ours & theirs):
        try:
            compared, said, other = _compare(old / name, new / name, name)
        except ArchwrightError as error:
            if error.code not in _NOT_COMPARED:
                raise
            compared, said = (), (f"{name} is not compared: {error.found}",)
            other = _as_locked(old / name) != _as_locked(new / name)
        locks += compared
        notes += said
        differ = differ or other
    return LockDiff(str(old), str(new), tuple(locks), tuple(notes), not differ)


def _locks(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix == ".lock" or path.name == "conda-lock.yml"}


def _as_locked(path: Path) -> str:
    """The text of a conda lock; of two that are not made yet nothing can differ."""
    from .condalock import read_conda_lock

    try:
        read_conda_lock(path)
    except ArchwrightError as error:
        if error.code == "AW316":
            return ""
    return path.read_text(encoding="utf-8")


def _is_conda(path: Path) -> bool:
    return path.suffix in (".yml", ".yaml")


def _kind(path: Path) -> str:
    if path.is_dir():
        return "the folder"
    return "the conda lock" if _is_conda(path) else "the hash lock"


def _compare(old: Path, new: Path, name: str) -> tuple[tuple[LockComparison, ...], tuple[str, ...], bool]:
    """The comparisons, what is to be said of the locks as a whole, and whether they differ."""
    locks, notes = (_compare_conda if _is_conda(old) else _compare_hashed)(old, new, name)
    return locks, notes, bool(notes) or any(lock.changes for lock in locks)


@dataclass(frozen=True)
class _Pinned:
    """A package of either kind of lock."""

    version: str
    files: frozenset[str]
    build: str = ""
    marker: str = ""
    reason: str = ""


type _Compared = tuple[tuple[LockComparison, ...], tuple[str, ...]]


def _compare_hashed(old: Path, new: Path, name: str) -> _Compared:
    sides = [
        {
            package.name: _Pinned(
                str(package.version), frozenset(package.hashes), marker=package.marker, reason=package.reason
            )
            for package in read_lock(path).values()
        }
        for path in (old, new)
    ]
    before, after = ([*_MADE_FOR.findall(path.read_text(encoding="utf-8")), ""][0] for path in (old, new))
    notes = (f"{name} is for {after} instead of {before}",) if before and after and before != after else ()
    return (_changes(name, "", *sides),), notes


def _compare_conda(old: Path, new: Path, name: str) -> _Compared:
    from .condalock import read_conda_lock  # most people have hash locks only

    before, after = read_conda_lock(old), read_conda_lock(new)
    ours, theirs = set(before.platforms), set(after.platforms)
    notes = tuple(
        f"{name} is for {platform} only in {old if platform in ours else new}" for platform in sorted(ours ^ theirs)
    )
    locks = tuple(
        _changes(name, platform, *(_conda_packages(lock, platform) for lock in (before, after)))
        for platform in sorted(ours & theirs)
    )
    return locks, notes


def _conda_packages(lock: CondaLock, platform: str) -> dict[str, _Pinned]:
    return {
        name: _Pinned(version, frozenset([sha256]), build)
        for name, (version, build, sha256) in lock.packages(platform).items()
    }


# ------------------------------------------------------------------------------------------------- one package
def _changes(lock: str, platform: str, old: Mapping[str, _Pinned], new: Mapping[str, _Pinned]) -> LockComparison:
    names = sorted(old.keys() | new.keys(), key=lambda name: (_rank(name), name))
    changes = [change for name in names if (change := _change(name, old.get(name), new.get(name)))]
    return LockComparison(lock, platform, len(names), tuple(changes))


def _rank(name: str) -> int:
    fits = (rank for rank, patterns in enumerate(_FIRST) if any(fnmatchcase(name, pattern) for pattern in patterns))
    return next(fits, len(_FIRST))


def _change(name: str, old: _Pinned | None, new: _Pinned | None) -> Change | None:
    if old is None:
        assert new is not None
        notes = [f"reason: {new.reason}"] if new.reason else []
        return Change(name, ChangeKind.ADDED, "", new.version, "", (*notes, *_marked(new)))
    if new is None:
        return Change(name, ChangeKind.REMOVED, old.version, "", "", ())
    notes = list(_files(old, new))
    if old.marker != new.marker:
        notes.append(f"for {new.marker or 'every platform'} instead of {old.marker or 'every platform'}")
    if old.reason != new.reason:
        notes.append(f"reason: {new.reason or 'none'} (was: {old.reason or 'none'})")
    kind, step = _moved(old, new)
    suspicious = (old.version, old.build) == (new.version, new.build) and bool(old.files - new.files)
    return Change(name, kind, old.version, new.version, step, tuple(notes), suspicious) if kind else None


def _marked(package: _Pinned) -> tuple[str, ...]:
    return (f"for {package.marker} only",) if package.marker else ()


def _moved(old: _Pinned, new: _Pinned) -> tuple[ChangeKind | None, str]:
    """The most important change, and how far the version moved."""
    if old.version != new.version:
        try:
            before, after = Version(old.version), Version(new.version)
        except InvalidVersion:  # conda's versions are freer
            return ChangeKind.OTHER_VERSION, ""
        return ChangeKind.UPGRADED if after > before else ChangeKind.DOWNGRADED, _step(before, after)
    if old.build != new.build:
        return ChangeKind.REBUILT, ""
    if old.files != new.files:
        return ChangeKind.OTHER_FILES, ""
    if old.marker != new.marker:
        return ChangeKind.OTHER_MARKER, ""
    return (ChangeKind.OTHER_REASON if old.reason != new.reason else None), ""


def _step(old: Version, new: Version) -> str:
    def parts(version: Version) -> tuple[int, int, int]:
        return version.epoch, version.major, version.minor

    before, after = parts(old), parts(new)
    if before[:2] != after[:2]:
        return "major"
    return "minor" if before != after else "patch"


def _files(old: _Pinned, new: _Pinned) -> Iterator[str]:
    """What it means that one version has other files."""
    if (old.version, old.build) != (new.version, new.build):
        if old.build != new.build:
            yield f"build {new.build} instead of {old.build}"
        return
    added, removed = len(new.files - old.files), len(old.files - new.files)
    if removed:
        yield (
            f"suspicious: {_count(removed, 'hash')} removed and {added} added for the same version; "
            "a published file does not change, so find out why"
        )
    elif added:
        yield f"{_count(added, 'hash')} added, none removed: files were published for this version later"


def _versions(change: Change) -> str:
    if change.old == change.new:
        return change.new
    return " -> ".join(filter(None, (change.old, change.new)))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'es' if word.endswith('sh') else 's'}" if number != 1 else f"1 {word}"
