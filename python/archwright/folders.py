"""Checks of the folders that a build writes in: room on their disks, and whether they can be written and run from.

Nothing is read off a list of mounts: a file is written and a program is run, and both are taken away again. What was
seen to break without them is in docs/doctor.md.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .backend import build_folder
from .components import components
from .findings import Finding, Level, Repair
from .machine import ccache_says
from .project import cache_path, free_bytes, output_root
from .repairs import in_shell
from .targets import Target

__all__ = ["check_disks", "check_folders", "check_temporary"]

_GB = 10**9

#: Environment, sources and objects of one target; without the environment; what compilers keep open at once; objects;
#: and what uv unpacks, which counts only on a disk of its own: elsewhere environments are hard links to it.
_CACHE, _COMPLETE, _TEMPORARY, _OBJECTS, _PACKAGES = 15 * _GB, 5 * _GB, 2 * _GB, 3 * _GB, 9 * _GB

#: Variables that name a folder, and which part of a substitute each would get.
_VARIABLES = {"ARCHWRIGHT_CACHE": "", "UV_CACHE_DIR": "/uv", "CCACHE_DIR": "/ccache", "HOME": "/home"}


def check_disks(target: Target) -> Iterator[Finding]:
    """Room for everything that a build writes, asked once of each file system."""
    complete = any((cache_path() / "envs").glob(f"{target.name}-*/env.json"))
    component = next(iter(components().values()))
    wanted = [
        ("the cache", cache_path(), _COMPLETE if complete else _CACHE),
        ("objects", build_folder(component, target, target.gencodes).parent, _OBJECTS),
        ("wheels", output_root() / "dist", _OBJECTS),
        ("temporary files", Path(tempfile.gettempdir()), _TEMPORARY),
    ]
    if (packages := uv_cache()) is not None and not complete:
        wanted.append(("uv's packages", packages, _PACKAGES))
    disks: dict[int, list[tuple[str, Path, int]]] = {}
    for purpose, path, needed in wanted:
        disks.setdefault(nearest(path).stat().st_dev, []).append((purpose, path, needed))
    for number, users in enumerate(disks.values()):
        # the cache's figure has room for the others in it
        needed = users[0][2] if number == 0 else max(need for _, _, need in users)
        yield _disk("disk" if number == 0 else f"disk: {users[0][0]}", users, needed)


def _disk(name: str, users: list[tuple[str, Path, int]], needed: int) -> Finding:
    path = users[0][1]
    free = free_bytes(nearest(path))
    if free >= needed:
        return Finding(name, Level.OK, f"{free / _GB:.0f} GB free at {path}", code="AW308")
    purposes = ", ".join(purpose for purpose, _, _ in users)
    return Finding(
        name,
        Level.FAIL,
        f"{free / _GB:.1f} GB free at {path}",
        f"{needed / _GB:.0f} GB for {purposes}",
        "a disk that fills up halfway wastes the time until then",
        "free some space, or point ARCHWRIGHT_CACHE (for temporary files TMPDIR) at a larger disk",
        "AW308",
    )


def check_folders(target: Target) -> Iterator[Finding]:
    """Whether a file can really be written, and a program run, where builds keep theirs. Nothing is left behind."""
    folders = _folders(target)
    wrong = {what: f"{what} at {path}: {said}" for what, path in folders.items() if (said := _writing_fails(path))}
    if not _has_home():
        wrong["HOME"] = "HOME is not set, and this user has no home in /etc/passwd"
    if not wrong:
        yield Finding("folders", Level.OK, f"can be written: {', '.join(folders)}", code="AW327")
    else:
        names = [name for name in _VARIABLES if name in " ".join(wrong)]
        yield Finding(
            "folders",
            Level.FAIL,
            "; ".join(wrong.values()),
            "folders that can be written",
            "sources, environments, objects and wheels are kept there; ccache and uv end when theirs cannot be written",
            f"make them writable, or name others in {', '.join(names)}" if names else "make them writable",
            "AW327",
            _elsewhere(names),
        )
    yield from _programs_run(cache_path())


def _folders(target: Target) -> dict[str, Path]:
    """Every folder that a build writes in, by what it holds and the variable that names another."""
    some = next(iter(components().values()))
    folders = {
        "the cache (ARCHWRIGHT_CACHE)": cache_path(),
        "objects": build_folder(some, target, target.gencodes).parent,
        "wheels": output_root() / "dist",
    }
    if (packages := uv_cache()) is not None:
        folders["uv's cache (UV_CACHE_DIR)"] = packages
    if (kept := ccache_says("cache_dir")) is not None:
        folders["ccache's cache (CCACHE_DIR)"] = Path(kept)
    return folders


def _has_home() -> bool:
    try:
        return bool(Path.home())
    except RuntimeError:
        return False


def _elsewhere(names: list[str]) -> tuple[Repair, ...]:
    """A folder of the user's own in /var/tmp, which outlives a restart, for each variable."""
    base = f"/var/tmp/archwright-{os.getuid()}"
    if _writing_fails(Path(base)):
        return ()
    return in_shell(*(f"export {name}={base}{_VARIABLES[name]}" for name in names))


def _programs_run(folder: Path) -> Iterator[Finding]:
    """Environments and compilers lie in the cache: every program that a build starts."""
    if said := _running_fails(nearest(folder)):
        yield Finding(
            "programs in the cache",
            Level.FAIL,
            f"{folder}: {said}",
            "a cache folder on a file system that is not mounted noexec",
            "nvcc, GCC, Python and CMake are run from there",
            "point ARCHWRIGHT_CACHE at another file system",
            "AW326",
            () if _running_fails(Path("/var/tmp")) else _elsewhere(["ARCHWRIGHT_CACHE"]),
        )


def check_temporary() -> Iterator[Finding]:
    """TMPDIR: compilers must be able to write there; few programs of ours are run there."""
    named = next((value for name in ("TMPDIR", "TEMP", "TMP") if (value := os.environ.get(name))), None)
    folder = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    said = _writing_fails(folder, must_exist=True)
    if said:
        yield Finding(
            "temporary folder",
            Level.FAIL,
            f"{folder}: {said}",
            "a folder that can be written",
            "nvcc writes its intermediate files there and stops when it cannot (GCC and Python quietly use /tmp)",
            "free some space there, or point TMPDIR at another folder",
            "AW326",
            in_shell("unset TMPDIR") if named and not _writing_fails(Path("/tmp"), must_exist=True) else (),
        )
    elif said := _running_fails(folder):
        yield Finding(
            "temporary folder",
            Level.NOTE,
            f"{folder}: {said}",
            "a folder that is not mounted noexec",
            "builds compile without it; `archwright repro` cannot change the clock, and programs that compile and "
            "load something there fail",
            "point TMPDIR at a folder on another file system",
            "AW326",
            _temporary_elsewhere(),
        )
    else:
        yield Finding("temporary folder", Level.OK, f"{folder}: can be written, and programs run there", code="AW326")


def _temporary_elsewhere() -> tuple[Repair, ...]:
    folder = Path("/var/tmp")
    return (
        () if _writing_fails(folder, must_exist=True) or _running_fails(folder) else in_shell(f"export TMPDIR={folder}")
    )


def uv_cache() -> Path | None:
    """Where uv keeps packages; None when it does not say."""
    try:
        from uv import find_uv_bin

        said = subprocess.run([find_uv_bin(), "cache", "dir"], capture_output=True, text=True, check=True, timeout=60)
    except (ImportError, OSError, subprocess.SubprocessError):
        return None
    return Path(said.stdout.strip()) if said.stdout.strip() else None


def nearest(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    while path != path.parent:
        with contextlib.suppress(OSError):  # no permission to look
            if path.exists():
                return path
        path = path.parent
    return path


def _writing_fails(path: Path, *, must_exist: bool = False) -> str:
    """Why no file can be written in `path`, or in the nearest folder above it; empty when one can."""
    folder = path if must_exist else nearest(path)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".archwright-") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _running_fails(folder: Path) -> str:
    """Why a program in `folder` cannot be run; empty when one can, or when none can be put there."""
    try:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=".archwright-")
    except OSError:
        return ""
    program = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write("#!/bin/sh\nexit 0\n")
        program.chmod(0o700)
        done = subprocess.run([program], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)
        return f"a program there ended with status {done.returncode}" if done.returncode else ""
    except PermissionError:
        return "programs there may not be run (mounted noexec?)"
    except OSError as error:
        return error.strerror or str(error)
    finally:
        program.unlink()
