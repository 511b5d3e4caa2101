"""The wheels that locks name, as files: downloaded with pip, checked, and kept in the cache by hash.

They are chosen for the oldest C library that the locks are for, not for this machine's.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from .errors import ArchwrightError, fail
from .files import hash_files
from .lockfile import LockedPackage, packages_for
from .process import CommandFailed, clean_environment, run
from .project import cache_dir, require_space, write_errors
from .targets import target_table

__all__ = ["LockedWheel", "fetch_wheels"]

_SPACE = 5 << 30  # the wheels of both halves
_BATCH = 16  # wheels for one pip, which keeps nothing when it is interrupted
#: Older names of three of the manylinux platforms, by glibc's minor version.
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class LockedWheel:
    """A wheel in the cache, and which locks name it."""

    path: Path
    sha256: str
    locks: tuple[str, ...]


def fetch_wheels(
    locks: Mapping[str, Path],
    processor: str,
    *,
    offline: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> tuple[LockedWheel, ...]:
    """One wheel for each package of each lock, in the order of file names; from the cache where it has them.

    Raises AW201 for a file that is not as locked, AW206 when one cannot be had, AW207 for that with `offline`.
    """
    folder = cache_dir() / "wheels"
    wanted = {name: packages_for(lock, processor) for name, lock in locks.items()}
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            found = _kept(folder, wanted, processor)
            for name, packages in wanted.items():
                missing = [package for package in packages.values() if not _of(package, found)]
                for batch in itertools.batched(missing, _BATCH):
                    first = missing.index(batch[0])
                    report(f"downloading {first + 1} to {first + len(batch)} of {len(missing)} wheels of {name}.lock")
                    found |= _download(folder, locks[name], batch, processor, offline)
    wheels: dict[str, LockedWheel] = {}
    for name, packages in wanted.items():
        for digest, path in (_of(package, found)[0] for package in packages.values()):
            wheels[digest] = LockedWheel(path, digest, (*(wheels[digest].locks if digest in wheels else ()), name))
    return tuple(sorted(wheels.values(), key=lambda wheel: wheel.path.name))


def _of(package: LockedPackage, found: Mapping[str, Path]) -> list[tuple[str, Path]]:
    return [(digest, found[digest]) for digest in package.hashes if digest in found]


def _kept(folder: Path, wanted: Mapping[str, Mapping[str, LockedPackage]], processor: str) -> dict[str, Path]:
    """Fitting wheels in the cache, by hash. One that is not as it was is removed."""
    tags = _tags(processor)
    digests = {digest for packages in wanted.values() for package in packages.values() for digest in package.hashes}
    paths = {p: d for d in digests for p in (folder / d).glob("*.whl") if _fits(p.name, tags)}
    found = {}
    for path, digest in hash_files(paths).items():
        if digest == paths[path]:
            found[digest] = path
        else:
            shutil.rmtree(path.parent)
    return found


def _fits(name: str, tags: frozenset[Tag]) -> bool:
    try:
        return not tags.isdisjoint(parse_wheel_filename(name)[3])
    except InvalidWheelFilename:
        return False


def _download(
    folder: Path, lock: Path, packages: Sequence[LockedPackage], processor: str, offline: bool
) -> dict[str, Path]:
    if offline:
        raise fail(
            "AW207",
            found=f"no wheel of {', '.join(package.name for package in packages[:5])} in {folder}",
            needed=f"every wheel of {lock}",
            why="--offline forbids the network",
            fix="run it once while there is a network: the wheels are kept",
        )
    require_space(folder, _SPACE, f"the wheels of {lock.name}")
    scratch = folder / f".{uuid.uuid4().hex[:8]}.partial"
    scratch.mkdir()
    try:
        requirements = scratch / "missing.txt"
        requirements.write_text("".join(f"{package.requirement}\n" for package in packages), encoding="utf-8")
        _run_pip(scratch, requirements, lock, processor)
        return _store(folder, scratch, lock, packages)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_pip(scratch: Path, requirements: Path, lock: Path, processor: str) -> None:
    python = target_table().python
    command: list[str | Path] = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-cache-dir"),
        *("--require-hashes", "--no-deps", "--only-binary", ":all:", "--implementation", "cp"),
        *("--python-version", python, "--abi", f"cp{python.replace('.', '')}"),
        *(word for platform in _platforms(processor) for word in ("--platform", platform)),
        *("--requirement", requirements, "--dest", scratch),
    ]
    try:
        run(command, env=clean_environment(), timeout=7200)
    except CommandFailed as error:
        raise _pip_failed(error.output, scratch, lock) from error


def _pip_failed(output: str, scratch: Path, lock: Path) -> ArchwrightError:
    if os.strerror(errno.ENOSPC) in output:
        require_space(scratch, 1 << 62, f"the wheels of {lock.name}")
    differs = "DO NOT MATCH THE HASHES" in output
    lines = [line for line in output.splitlines() if not line.startswith("WARNING: Location")]
    return fail(
        "AW201" if differs else "AW206",
        found=f"pip {'got another file than' if differs else 'could not download'} what {lock} names",
        needed="every locked wheel with its sha256",
        why="an environment is made of exactly what its lock names",
        fix="check the network, `pip config list` and the mirror, and run it again: what was downloaded is kept"
        if not differs
        else "run it again; if it persists, compare the mirror's file with the index's and do not use it",
        detail=re.sub(r"//[^/\s]*@", "//", "\n".join(lines[-30:])),  # a mirror's password stays out of it
    )


def _store(folder: Path, scratch: Path, lock: Path, packages: Sequence[LockedPackage]) -> dict[str, Path]:
    """Move what pip left in `scratch` to where it is kept, and see that it is all there."""
    found: dict[str, Path] = {}
    for path, digest in hash_files(scratch.glob("*.whl")).items():
        kept = folder / digest / path.name
        kept.parent.mkdir(exist_ok=True)
        path.replace(kept)
        found[digest] = kept
    missing = [package.name for package in packages if not _of(package, found)]
    if missing:
        raise fail(
            "AW206",
            found=f"no wheel of {', '.join(missing)} after pip was done",
            needed=f"every wheel of {lock}",
            why="a bundle is complete or is not made",
            fix="run it again with another version of pip",
        )
    return found


def _platforms(processor: str) -> Iterator[str]:
    """Platform names of the oldest C library that the locks are for, and of older ones, best first."""
    _, _, minor = target_table().processors[processor].partition(".")
    for release in range(int(minor), 4, -1):
        yield f"manylinux_2_{release}_{processor}"
        if release in _OLD_NAMES:
            yield f"{_OLD_NAMES[release]}_{processor}"
    yield f"linux_{processor}"


def _tags(processor: str) -> frozenset[Tag]:
    major, _, minor = target_table().python.partition(".")
    python, platforms = (int(major), int(minor)), list(_platforms(processor))
    abi = f"cp{major}{minor}"
    return frozenset([*cpython_tags(python, abis=[abi], platforms=platforms), *compatible_tags(python, abi, platforms)])
